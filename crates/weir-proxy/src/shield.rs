//! Limits for each client on rates and amounts, over all workers together.
//!
//! [`table`] holds the accounts, [`limit`] computes what one limit does with one account, and
//! [`key`] tells clients apart. [`by`] names what else a limit may count by, [`shared`] serves
//! values without room in the table, and [`tally`] counts the outcomes of each limit. [`survey`]
//! shows operators the accounts, and [`bans`] says which clients are banned. Called by the clients'
//! side (`client/guard.rs`) with the terms of the plan ([`ShieldPlan`](crate::plan::ShieldPlan)).
//! Shared by all workers without locks: no worker waits here for another. Bound: the table, which
//! has a fixed size. A client that finds no room in it is let through and counted; a value shares
//! an account. docs/limits.md.

pub mod bans;
pub mod by;
pub mod key;
pub mod limit;
pub mod shared;
pub mod survey;
pub mod table;
pub mod tally;

#[cfg(test)]
mod tests;
