//! A shared HTTP cache: what it may store and serve, as pure functions of parsed heads, options and
//! the time (RFC 9111), and the store itself.
//!
//! Nothing here waits or sends; [`Store`] holds the stored responses for all workers. The steps for
//! a request: [`bypass`] says whether the cache handles it, and [`key`] names its response.
//! [`Variants::find`] selects one of several, [`Bans::judge`] checks whether it was purged, and
//! [`judge_usage`] whether it may be used now; then [`judge_conditions`] and [`judge_range`] decide
//! which part of it the client gets. If none may be used, the request is forwarded to a server
//! without the fields in [`is_kept_from_fetches`] and with [`Validators::conditions`].
//!
//! The response head becomes an [`Answer`]. [`may_store`] decides on which [`Terms`] it is stored,
//! or why not, [`put_lines`] which lines of it are kept, and [`fate`] which waiting requests share
//! it. [`is_confirmed`] and [`update_lines`] apply a 304, and [`is_sent_on_failure`] says whether a
//! stale response may be served when the server fails. After other methods, [`invalidates`] and
//! [`same_origin_path`] name the URLs that are no longer valid. [`CacheStatus`] reports the result,
//! [`explain`] the reasons.
//!
//! The rule of doubt: a malformed response is not stored, or is stale at once. A response that is
//! not reused costs a request; one that reaches the wrong person costs a secret.
#![forbid(unsafe_code)]

mod answer;
mod bans;
mod cache_status;
mod collapse;
mod date;
mod directives;
mod explain;
mod freshness;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod invalidate;
mod key;
#[cfg(test)]
mod kit;
mod lines;
mod list;
mod options;
mod range;
mod request;
mod storable;
mod store;
mod structured;
mod tags;
mod usage;
mod validators;
mod variants;
mod vary;

pub use answer::{Answer, Control, Expires};
pub use bans::{BANS_MAX, Bans, Serial, SourceMark, Target, TooManyBans, Verdict};
pub use cache_status::{CacheStatus, Forward};
pub use collapse::{Fate, fate, may_wait};
pub use date::parse_date;
pub use directives::{AnswerDirectives, Directive, DirectiveSet, RequestDirectives};
pub use explain::explain;
pub use freshness::{Lifetime, LifetimeSource, Times, initial_age_us, lifetime};
pub use invalidate::{invalidates, same_origin_path};
pub use key::{KeyRules, Place, asked_path, key, put_key, url, url_of};
pub use lines::{
    is_confirmed, is_contradicted, put_fields, put_lines, stored_fields, update_lines,
};
pub use list::DELTA_MAX;
pub use options::{Options, RequestDirectivesMode};
pub use range::{Part, is_on_part, judge_range};
pub use request::{Bypass, Request, bypass, is_kept_from_fetches};
pub use storable::{FIELD_BYTES_MAX, NotStored, Terms, may_store};
pub use store::{
    Begun, By, Change, Changed, Collector, Draft, Fill, FillName, Flaw, Found, INLINE_MAX, Limits,
    MARKS_MAX, Missed, Moment, NotKept, Noted, OBJECT_BYTES, Object, PREFACE_BYTES, Pending,
    Preface, Records, Report, Restored, Restoring, SNAPSHOT_MAGIC, Served, SnapshotFigures, Store,
    Top, WORKERS_MAX, Workers, put_change,
};
pub use structured::{Invalid, Value, parse_dictionary, parse_list};
pub use tags::{TAG_BYTES_MAX, TAGS_MAX, TagField, TooManyTags, groups, read_tags};
pub use usage::{
    REVALIDATE_AGAIN_US, Reason, ServerFailure, Usage, is_fresh, is_sent_on_failure, judge_usage,
    staleness_us,
};
pub use validators::{
    Condition, Validators, is_etag, is_on_not_modified, is_strong, judge_conditions,
    matches_strongly, matches_weakly,
};
pub use variants::Variants;
pub use vary::{NAMES_MAX, Selector, Vary, accept_encoding};
