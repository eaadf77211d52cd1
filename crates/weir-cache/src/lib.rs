//! What a shared HTTP cache may store and serve: pure functions of parsed heads, options and the time (RFC 9111).
//!
//! Nothing here stores, waits or sends. [`bypass`] says whether the cache has anything to do with a request. The head that a server sends
//! becomes an [`Answer`]; [`may_store`] says on which [`Terms`] it is stored, or why not, a [`Selector`] for which requests. Later
//! [`judge_usage`] says whether it may be used, [`judge_conditions`] whether the client has it already, and [`is_sent_on_failure`] what a
//! stale one is good for when the server fails.
//!
//! The rule of doubt: what is malformed is not stored, or stale at once; an answer that nobody may see twice costs a request, one that the
//! wrong person sees costs a secret.
#![forbid(unsafe_code)]

mod answer;
mod date;
mod directives;
mod freshness;
#[cfg(test)]
mod kit;
mod list;
mod options;
mod request;
mod storable;
mod structured;
mod usage;
mod validators;
mod vary;

pub use answer::{Answer, Control, Expires};
pub use date::parse_date;
pub use directives::{AnswerDirectives, Directive, DirectiveSet, RequestDirectives};
pub use freshness::{Lifetime, LifetimeSource, Times, initial_age_us, lifetime};
pub use list::DELTA_MAX;
pub use options::{Options, RequestDirectivesMode};
pub use request::{Bypass, Request, bypass, is_kept_from_fetches};
pub use storable::{FIELD_BYTES_MAX, NotStored, Terms, may_store};
pub use structured::{Invalid, Value, parse_dictionary, parse_list};
pub use usage::{
    REVALIDATE_AGAIN_US, Reason, ServerFailure, Usage, is_fresh, is_sent_on_failure, judge_usage, staleness_us,
};
pub use validators::{
    Condition, Validators, is_etag, is_on_not_modified, is_strong, judge_conditions, matches_strongly, matches_weakly,
};
pub use vary::{NAMES_MAX, Selector, Vary, accept_encoding};
