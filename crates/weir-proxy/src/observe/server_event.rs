//! Events for the operator's log: changes of a server's standing, each reported once by the worker
//! that knows first.
//!
//! The engine notes them, and the worker takes them after each turn
//! ([`crate::engine::Engine::take_event`]) and passes them on to the log. They are rare; events
//! without room are counted (`events_lost`), and nothing waits. Bound: [`EVENTS_MAX`].

use std::fmt;

use crate::cross::doubt::Doubt;
use crate::cross::standing::{Order, SuspensionCause};
use crate::cross::verdict::Verdict;
use crate::ending::ServerTlsFailure;
use crate::plan::{FailoverRule, Plan, UpstreamPlan};
use crate::upstream::health::Symptom;

/// Events of one turn that are kept until they are taken.
pub const EVENTS_MAX: usize = 64;

/// Something happened to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Index of the server over all upstreams of the plan.
    pub server: u32,
    /// The change.
    pub what: What,
}

/// The change of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// It gets nothing new until it has shown that it works.
    Suspended(SuspensionCause),
    /// A suspended one works again.
    Recovered,
    /// An operator's order holds from now on.
    Ordered(Order),
    /// No connection is left, and none can be made; a reason means that its TLS is the cause.
    Unreachable(Option<ServerTlsFailure>),
    /// It accepts connections again.
    Reachable,
    /// Put back to one request at a time for a while; until an operator clears it, if the doubt
    /// lasts.
    Demoted(Doubt),
    /// Gave one response too many: one request at a time until an operator clears it.
    Surplus,
    /// Cannot handle several requests at once, shown a second time: one at a time until an operator
    /// clears it.
    Unfit(Doubt),
    /// A worker knows of this verdict from now on, as its finder or from another worker: for the
    /// keeper of verdicts. No line.
    Judged(Verdict),
    /// A worker knows of an operator's `clear`, which ends verdicts. No line.
    Cleared,
}

impl Event {
    /// Returns the upstream and the name of the server; None when the plan has no such server.
    pub fn place(self, plan: &Plan) -> Option<(&UpstreamPlan, &str)> {
        plan.server(self.server as usize).map(|(upstream, server)| (upstream, server.name.as_str()))
    }

    /// Returns a sentence for people, without the server: `10 responses 5xx within 10 s`. None: the
    /// plan has no such server, or the event is not for people.
    pub fn text(self, plan: &Plan) -> Option<String> {
        if matches!(self.what, What::Judged(_) | What::Cleared) {
            return None;
        }
        let (upstream, _) = self.place(plan)?;
        Some(Told { what: self.what, upstream }.to_string())
    }
}

/// The way to end a demotion without time limit.
const WAY_OUT: &str = "`weir server clear` after it is repaired";

/// A change in the words of its upstream.
struct Told<'a> {
    what: What,
    upstream: &'a UpstreamPlan,
}

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            What::Suspended(
                cause @ (SuspensionCause::Answers { rule } | SuspensionCause::Losses { rule }),
            ) => match self.upstream.failover.get(usize::from(rule)) {
                Some(FailoverRule { symptom: Symptom::Status(codes), limit, window_us }) => {
                    write!(f, "{limit} responses {codes} within {}", Seconds(*window_us))
                }
                Some(FailoverRule { symptom: Symptom::Lost, limit, window_us }) => {
                    write!(f, "{limit} connections lost within {}", Seconds(*window_us))
                }
                None => write!(f, "for its {}", cause.word()),
            },
            What::Suspended(SuspensionCause::Probe { fault }) => {
                let fall = self.upstream.health.as_ref().map_or(0, |health| health.fall);
                write!(f, "{fall} probes in a row failed, the last one with: {fault}")
            }
            What::Recovered => match &self.upstream.health {
                Some(health) => write!(f, "{} good probes", health.rise),
                None => f.write_str("a good response to one request"),
            },
            What::Ordered(_) => f.write_str("by command"),
            What::Unreachable(None) => f.write_str("no connection is left, and a connect failed"),
            What::Unreachable(Some(why)) => {
                write!(f, "{} ({})", why.text(), why.word())
            }
            What::Reachable => f.write_str("it accepts connections again"),
            What::Demoted(doubt) if doubt.lasts() => {
                write!(f, "one request at a time from now on: {}; {WAY_OUT}", doubt.word())
            }
            What::Demoted(doubt) => {
                write!(f, "one request at a time for a while: {}", doubt.word())
            }
            What::Unfit(doubt) => {
                write!(
                    f,
                    "it cannot handle several requests at once ({}, a second time): ",
                    doubt.word()
                )?;
                write!(f, "one request at a time from now on; {WAY_OUT}")
            }
            What::Judged(_) | What::Cleared => Ok(()),
            What::Surplus => {
                f.write_str(
                    "it sent a surplus response; an earlier response may have reached the \
                    wrong client: ",
                )?;
                write!(f, "one request at a time from now on; {WAY_OUT}")
            }
        }
    }
}

/// Microseconds in a readable form.
struct Seconds(u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            us if us % 1_000_000 == 0 => write!(f, "{} s", us / 1_000_000),
            us => write!(f, "{} ms", us / 1000),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: each event says what changed and why. How: examples over two upstreams.

    use super::*;
    use crate::cross::standing::ProbeFault;
    use crate::plan::{HealthPlan, ServerPlan};
    use crate::upstream::health::Codes;

    #[test]
    fn texts_say_why() {
        let address = std::net::SocketAddr::from(([10, 0, 0, 1], 80));
        let upstream = |name: &str, servers: &[&str]| UpstreamPlan {
            name: name.to_owned(),
            servers: servers.iter().map(|name| ServerPlan::new(name, address)).collect(),
            ..UpstreamPlan::default()
        };
        let codes = Codes { first: 500, last: 599 };
        let mut app = upstream("app", &["a:1", "b:2"]);
        let rule = |symptom, limit| FailoverRule { symptom, limit, window_us: 2_500_000 };
        app.failover = vec![rule(Symptom::Status(codes), 10), rule(Symptom::Lost, 5)];
        let other =
            UpstreamPlan { health: Some(HealthPlan::default()), ..upstream("other", &["c:3"]) };
        let plan = Plan { upstreams: vec![app, other], ..Plan::default() };
        let line = |server, what| Event { server, what }.text(&plan);
        for (server, what, expected) in [
            (
                1,
                What::Suspended(SuspensionCause::Answers { rule: 0 }),
                "10 responses 5xx within 2500 ms",
            ),
            (
                1,
                What::Suspended(SuspensionCause::Losses { rule: 1 }),
                "5 connections lost within 2500 ms",
            ),
            (
                2,
                What::Suspended(SuspensionCause::Probe { fault: ProbeFault::Status(503) }),
                "3 probes in a row failed, the last one with: \
                    status 503",
            ),
            (
                0,
                What::Unreachable(Some(ServerTlsFailure::Expired)),
                "its certificate, or one above it, has expired \
                    (tls-expired)",
            ),
            (0, What::Recovered, "a good response to one request"),
            (2, What::Recovered, "2 good probes"),
            (2, What::Ordered(Order::Drain), "by command"),
            (0, What::Demoted(Doubt::Garbage), "one request at a time for a while: garbage"),
            (
                0,
                What::Demoted(Doubt::Misframing),
                "one request at a time from now on: misframing; `weir server \
                    clear` after it is repaired",
            ),
            (
                0,
                What::Surplus,
                "it sent a surplus response; an earlier response may have reached the \
                 wrong client: one request at a \
                 time from now on; `weir server clear` after it is repaired",
            ),
            (
                1,
                What::Unfit(Doubt::FailsRehearsal),
                "it cannot handle several requests at once (fails-rehearsal, a second \
                 time): one request at a time \
                 from now on; `weir server clear` after it is repaired",
            ),
        ] {
            assert_eq!(line(server, what).as_deref(), Some(expected));
        }
        assert_eq!(line(3, What::Reachable), None);
        assert_eq!(
            line(0, What::Judged(Verdict::Unfit(Doubt::FailsRehearsal))),
            None,
            "it was told already"
        );
    }
}
