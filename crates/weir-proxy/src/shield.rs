//! Limits for each client: how fast and how much, over all workers together.
//!
//! [`table`] is the memory of it, [`limit`] what one limit makes of one account, [`key`] by what clients are told apart, [`by`] what else a limit
//! may count by, [`shared`] what they have for whom there is no room, [`tally`] what is counted of each limit, [`survey`] what operators see of the accounts, [`bans`] who is banned. Called by the clients' side (`client/guard.rs`) with what the plan says
//! ([`ShieldPlan`](crate::plan::ShieldPlan)). Shared by all workers and without locks: nobody waits here for anybody. Bound: the table,
//! whose size is fixed; a client who finds no room in it is let through and counted, a value shares an account.
//! docs/limits.md.

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
