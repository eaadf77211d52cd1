//! Errands of a worker for the side thread, and their results: addresses of names, and whether
//! credentials are correct. No worker waits for either; requests that need them do.
//! docs/forward.md. Encoded bytes come back to a worker in the same way.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::forward::shares::{Asker, Lane};
use crate::request::encoding::Encoded;

/// An errand. Each yields one [`News`] to its worker, within [`ERRAND_US`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Errand {
    /// The addresses of a name (lower case, without a dot at its end).
    Resolve {
        /// The name.
        name: Box<str>,
        /// The client or user: each has a share of the lookups.
        asker: Asker,
    },
    /// Whether a user may pass.
    Verify {
        /// Identifies the question.
        question: Question,
        /// The client: each has a share of the comparisons.
        client: Lane,
        /// The file with the user.
        users: Arc<Path>,
        /// The credentials of the request.
        credentials: Credentials,
    },
}

/// Identifies a verification in its result: a connection asks more than once, and a verdict on
/// other credentials would admit the wrong user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// The connection that asks.
    pub token: u64,
    /// Different for each question of a worker.
    pub serial: u64,
}

/// Time within which an errand has a result, microseconds, even if the side thread could not try.
pub const ERRAND_US: u64 = 10_000_000;

/// A name and a password in clear (RFC 7617).
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// UTF-8 without colon or control characters.
    pub name: Box<str>,
    /// Never logged.
    pub password: Box<[u8]>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The result of work that a worker does not do itself.
#[derive(Debug)]
pub enum News {
    /// Of an [`Action::Encode`](crate::engine::Action::Encode).
    Encoded(Box<Encoded>),
    /// To [`Errand::Resolve`].
    Resolved {
        /// The name that was resolved.
        name: Box<str>,
        /// The client or user of the errand.
        asker: Asker,
        /// Its addresses.
        answer: Result<Addresses, Unresolved>,
    },
    /// To [`Errand::Verify`].
    Verified {
        /// The question of the errand.
        question: Question,
        /// The client of the errand.
        client: Lane,
        /// The user.
        user: Result<Arc<User>, Unverified>,
    },
}

/// Why credentials are rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unverified {
    /// Name or password are wrong.
    Wrong,
    /// They were not compared: too many comparisons are under way for this client, or for all. That
    /// says nothing of them.
    NoRoom,
}

/// The addresses of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    /// In the order in which they are to be tried, not empty: IPv6 and IPv4 in turn (RFC 8305 §4).
    pub list: Arc<[IpAddr]>,
    /// How long they are valid, microseconds; the shortest TTL on the way.
    pub ttl_us: u64,
}

/// Why a name has no addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unresolved {
    /// The name does not exist, or has no addresses.
    NoSuchName {
        /// How long that is valid, microseconds.
        ttl_us: u64,
    },
    /// Name servers could not answer.
    Failed,
    /// Name servers did not answer in time.
    TimedOut,
    /// The name servers were not asked: too many names are being resolved for this client or user,
    /// or for all. That says nothing of the name, nor to others that want it.
    NoRoom,
}

/// A user in a file of users with one password, and its present use of the forward proxy. Shared by
/// all workers.
///
/// When the user is deleted, or gets another password, this object is revoked for ever; connections
/// that have proved to be the user have to prove it again. With another password the user is
/// [another object](User::renewed), which continues with the same limits.
#[derive(Debug)]
pub struct User {
    /// As in the file.
    pub name: Box<str>,
    is_revoked: AtomicBool,
    using: Arc<Using>,
}

/// The present use by a user, with whatever password.
#[derive(Debug, Default)]
struct Using {
    connections: AtomicU32,
    /// The arrival time of the next request if requests came evenly (the theoretical arrival time
    /// of GCRA), microseconds.
    due_us: AtomicU64,
}

impl User {
    /// Creates a user without connections.
    pub fn new(name: &str) -> User {
        User { name: name.into(), is_revoked: AtomicBool::new(false), using: Arc::default() }
    }

    /// Creates the same user with another password, or back again: its connections and its rate
    /// continue to count.
    pub fn renewed(&self) -> User {
        User {
            name: self.name.clone(),
            is_revoked: AtomicBool::new(false),
            using: Arc::clone(&self.using),
        }
    }

    /// Revokes the user: it is deleted or has another password now.
    pub fn revoke(&self) {
        self.is_revoked.store(true, Ordering::Relaxed);
    }

    /// Whether connections that have proved to be this user have to prove it again.
    pub fn is_revoked(&self) -> bool {
        self.is_revoked.load(Ordering::Relaxed)
    }

    /// Counts a connection, unless `max` are open already.
    pub fn enter(&self, max: Option<u32>) -> bool {
        let room = |count: u32| (max.is_none_or(|max| count < max)).then(|| count + 1);
        self.using.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
    }

    /// A connection that was counted has ended.
    pub fn leave(&self) {
        self.using.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// The number of connections now.
    pub fn connections(&self) -> u32 {
        self.using.connections.load(Ordering::Relaxed)
    }

    /// Counts a request, unless there are more than `rate` a second (with a burst of that many).
    pub fn spend(&self, rate: Option<u32>, now_us: u64) -> bool {
        let Some(rate) = rate else { return true };
        let gap_us = 1_000_000 / u64::from(rate.max(1));
        let next = |due_us: u64| {
            let due_us = due_us.max(now_us);
            (due_us + gap_us <= now_us + 1_000_000).then_some(due_us + gap_us)
        };
        self.using.due_us.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_so_many_connections() {
        let user = User::new("ann");
        assert!(user.enter(Some(2)) && user.enter(Some(2)) && !user.enter(Some(2)));
        user.leave();
        assert!(user.enter(Some(2)) && user.enter(None));
        assert_eq!(user.connections(), 3);
    }

    #[test]
    fn limits_outlive_a_password() {
        let user = User::new("ann");
        assert!(user.enter(Some(1)) && user.spend(Some(1), 5_000_000));
        let again = user.renewed();
        user.revoke();
        assert!(user.is_revoked() && !again.is_revoked() && *again.name == *"ann");
        assert!(!again.enter(Some(1)) && !again.spend(Some(1), 5_000_000));
        user.leave();
        assert!(again.enter(Some(1)));
    }

    #[test]
    fn a_user_has_so_many_requests_a_second() {
        let user = User::new("ann");
        let spent = |now_us: u64| (0..100).filter(|_| user.spend(Some(10), now_us)).count();
        assert_eq!(spent(5_000_000), 10);
        assert_eq!(spent(5_250_000), 2);
        assert_eq!(spent(9_000_000), 10);
        assert!(user.spend(None, 9_000_000));
    }

    #[test]
    fn a_password_is_never_shown() {
        let credentials = Credentials { name: "ann".into(), password: Box::from(*b"secret") };
        assert!(!format!("{credentials:?}").contains("secret"));
        assert!(!format!("{credentials:?}").contains("115"));
    }
}
