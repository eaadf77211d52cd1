//! The counters of one worker: totals, gauges, and words that name why something was refused or
//! closed.
//!
//! The worker that owns a [`Counters`] is its only writer and adds with a plain load and store; any
//! thread may read at any time, and [`Totals`] adds up several workers for status and metrics. A
//! counter is declared once, in the table below, with its name and help. Bounds: about 3 KB; words
//! are those of their enumeration ([`CountByKind`]).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::base::encoder::Coding;
use crate::cause::Cause;
use crate::cross::doubt::Doubt;
use crate::ending::{ClientEnd, FlowEnd, Held, ServerTlsFailure, Timeout, TlsFailure, UpstreamEnd};
use crate::observe::glitch::{ClientGlitch, UpstreamGlitch};
use crate::observe::kinds::CountByKind;
use crate::request::rules::compress::Passed;

/// Off only to measure the cost of counting: `scripts/icount --cost` compiles weir a second time
/// with it.
pub(crate) const COUNTING: bool = cfg!(not(weir_uncounted));

/// One number, written by one thread and read by any.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Returns zero.
    pub const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    /// Adds. Only the owner may call it: without a lock prefix, two writers would lose counts.
    #[inline]
    pub fn add(&self, amount: u64) {
        self.set(self.get().wrapping_add(amount));
    }

    /// Adds one.
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    /// Subtracts, for gauges. Only the owner may call it.
    #[inline]
    pub fn sub(&self, amount: u64) {
        self.set(self.get().wrapping_sub(amount));
    }

    /// Replaces, for gauges. Only the owner may call it.
    #[inline]
    pub fn set(&self, value: u64) {
        if COUNTING {
            self.0.store(value, Relaxed);
        }
    }

    /// Returns the value as of some moment ago.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// How a value behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Total,
    /// Rises and falls.
    Gauge,
}

/// One value for people and machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// With underscores, as in metrics, without prefix and unit suffix.
    pub name: &'static str,
    /// Name and value of its label, when one name has several values.
    pub label: Option<(&'static str, &'static str)>,
    /// How it behaves.
    pub kind: Kind,
    /// One line for people.
    pub help: &'static str,
    /// The value.
    pub value: u64,
}

/// Declares plain counters once; every list of them follows. The type has a method `each_labelled`
/// for the rest.
macro_rules! counters {
    (
        $(#[doc = $about:literal])+ struct $name:ident;
        $($(#[doc = $help:literal])+ $counter:ident: $kind:ident,)+
        and $($(#[doc = $more:literal])+ $field:ident: $type:ty,)+
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Default)]
        pub struct $name {
            $($(#[doc = $help])+ pub $counter: $crate::observe::counters::Counter,)+
            $($(#[doc = $more])+ pub $field: $type,)+
        }

        impl $name {
            /// Calls `visit` with each value, in a fixed order.
            pub fn each(&self, mut visit: impl FnMut($crate::observe::counters::Sample)) {
                $(visit($crate::observe::counters::Sample {
                    name: stringify!($counter),
                    label: None,
                    kind: $crate::observe::counters::Kind::$kind,
                    help: concat!($($help),+).trim_ascii(),
                    value: self.$counter.get(),
                });)+
                self.each_labelled(&mut visit);
            }

            /// Resets all gauges, because everything that they counted is gone. Only the owner may
            /// call it.
            pub fn reset_gauges(&self) {
                use $crate::observe::counters::Kind;
                $(if Kind::$kind == Kind::Gauge {
                    self.$counter.set(0);
                })+
            }
        }
    };
}
pub(crate) use counters;

counters! {
    /// All counters of one worker.
    struct Counters;
    /// Client connections that weir accepted.
    accepted: Total,
    /// Client connections that weir closed at once, because there were too many.
    connections_refused: Total,
    /// Client connections that weir reset at once, because their client is banned.
    connections_banned: Total,
    /// Requests over a limit that weir rejected only after a delay (`over="tarpit"`).
    tarpitted: Total,
    /// Requests over such a limit that weir reset instead, because `tarpit-max` others waited.
    tarpit_full: Total,
    /// Clients that weir did not ban although it should have, because too many were due at once.
    /// They stay limited.
    offences_lost: Total,
    /// Times that weir paused accepting, because the operating system refused (descriptors, memory)
    /// or clients had used their share of descriptors.
    accept_failures: Total,
    /// Client connections that weir closed, because no load balancer announced their client
    /// correctly (`proxy-protocol`).
    clients_unannounced: Total,
    /// Requests in which a trusted proxy named an invalid scheme for its client. weir used the
    /// scheme of the proxy's connection.
    schemes_ignored: Total,
    /// Completed TLS handshakes with clients.
    tls_handshakes: Total,
    /// Completed TLS handshakes with clients that resumed an earlier session.
    tls_resumed: Total,
    /// Completed TLS handshakes with servers.
    upstream_tls_handshakes: Total,
    /// Completed TLS handshakes with servers that resumed an earlier session.
    upstream_tls_resumed: Total,
    /// Open client connections.
    client_connections: Gauge,
    /// Idle client connections that a worker gave to another worker, because it had too much to do.
    connections_given: Total,
    /// Idle client connections that a worker got from another worker.
    connections_taken: Total,
    /// Idle client connections that a worker could not give to another worker, because their
    /// clients left or the other worker had no room.
    connections_not_given: Total,
    /// Client connections that used HTTP/2.
    http2_connections: Total,
    /// Streams of HTTP/2 that clients opened.
    http2_streams: Total,
    /// Streams of HTTP/2 that clients reset.
    http2_streams_reset: Total,
    /// Complete request heads received.
    requests: Total,
    /// Requests whose client's connection ended before their response began.
    requests_abandoned: Total,
    /// Requests that weir sent to a fallback upstream, because no server of their own upstream
    /// could take them.
    fallbacks: Total,
    /// Requests that a `split` gave to another upstream.
    split_off: Total,
    /// Requests waiting for an upstream connection.
    queue_waiting: Gauge,
    /// Requests sent and not yet answered.
    in_flight: Gauge,
    /// Requests sent behind an unanswered one.
    pipelined: Total,
    /// Started connects to upstreams.
    upstream_connects: Total,
    /// Failed connects to upstreams.
    upstream_connect_failures: Total,
    /// Established upstream connections.
    upstream_connections: Gauge,
    /// Receives on upstream connections.
    upstream_receives: Total,
    /// Sends on upstream connections.
    upstream_sends: Total,
    /// Requests that weir moved to another connection before it had sent any part of them.
    moves: Total,
    /// Requests that weir sent again, because a connection closed on purpose after another
    /// response.
    resends: Total,
    /// Requests that weir sent again on another connection because the response in front of theirs
    /// was late, or once more alone because the server seems to overlook them.
    escapes: Total,
    /// Requests that weir sent again after a failure: each counts against forward-retries.
    retries: Total,
    /// Requests that weir sent alone and one at a time, because they were lost twice or are
    /// suspected of killing servers.
    quarantined: Total,
    /// Interim responses (1xx) that weir forwarded.
    interim: Total,
    /// Interim responses that weir did not forward: their request was sent behind another one, or
    /// they lack its identifier.
    interim_dropped: Total,
    /// Times that weir put a server back to depth 1.
    demotions: Total,
    /// Surplus responses, found at a sync point or otherwise.
    surplus: Total,
    /// Changes of servers that weir did not log, because too many came at once.
    events_lost: Total,
    /// Lookups of names and checks of credentials that weir refused, because too many were in
    /// progress.
    errands_refused: Total,
    /// Servers that weir suspended because of their health.
    suspensions: Total,
    /// Suspended servers that returned to service.
    recoveries: Total,
    /// Probes that weir sent to servers.
    probes: Total,
    /// Probes that failed.
    probe_failures: Total,
    /// Probes that weir skipped, because requests of clients had just shown the same.
    probes_skipped: Total,
    /// Requests that weir sent to a suspended server to test whether it works again.
    trials: Total,
    /// Lines of the access log that weir did not write, because their destination was too slow or
    /// full.
    log_lines_lost: Total,
    /// Sync points: times that weir let a pipelined connection run empty.
    sync_points: Total,
    /// Connections that a large response made exclusive.
    exclusive: Total,
    /// Connections that left the pool, because a client read its response slowly.
    set_aside: Total,
    /// Responses whose rest weir buffered although their client read them slowly, because others
    /// needed their connections.
    absorbed: Total,
    /// Bytes that weir has reserved for such responses, received or still to come.
    absorbed_bytes: Gauge,
    /// Responses that weir aborted, because their client had kept too many connections from others
    /// for too long.
    stalled: Total,
    /// Times that weir searched all connections to servers for requests whose clients had left.
    searches: Total,
    /// Client connections of `tcp` that weir accepted.
    tcp_connections: Total,
    /// Connects that weir repeated from another port, because the client's port was in use.
    tcp_ports_changed: Total,
    /// First packets of clients that weir holds until their server has responded (`weir intercept
    /// --connect first`), or connections to servers that it started for clients it has not accepted
    /// yet (`syn`).
    tcp_holding: Gauge,
    /// Connections of `tcp` for which weir compared the cores that receive the two sides: the first
    /// one of each worker, then one in 64.
    tcp_cores_compared: Total,
    /// Compared connections of `tcp` of which one core receives both sides.
    tcp_cores_same: Total,
    /// Open tunnels, and connections of `tcp` that are joined with a server.
    tunnels: Gauge,
    /// Opened tunnels, and connections of `tcp` that were joined with a server.
    tunnels_opened: Total,
    /// Bytes received from clients.
    client_bytes_in: Total,
    /// Bytes sent to clients.
    client_bytes_out: Total,
    /// Bytes received from upstreams.
    upstream_bytes_in: Total,
    /// Bytes sent to upstreams.
    upstream_bytes_out: Total,
    /// Bytes of compressed responses before compression.
    compression_bytes_in: Total,
    /// Bytes of compressed responses after compression.
    compression_bytes_out: Total,
    /// Parts of large responses that a worker gave to another thread to compress.
    compressions_elsewhere: Total,
    /// Parts of large responses that a worker compressed itself, because no other thread had room
    /// for them.
    compressions_refused: Total,
    /// Parts of large responses that another thread is compressing.
    compressions_away: Gauge,
    /// Responses that continued uncompressed, because their encoders were idle and others needed
    /// the memory.
    compressions_reclaimed: Total,
    /// Messages sent to other workers.
    mail_sent: Total,
    /// Messages received from other workers.
    mail_received: Total,
    /// Times that mail for a worker had to wait because its mailbox was full.
    mail_delayed: Total,
    /// Turns of the event loop.
    turns: Total,
    /// Times that a worker lost everything because of a bug in weir, and restarted.
    rebirths: Total,
    and
    /// Final responses sent to clients, by class: 1xx (101 only) to 5xx.
    answers: [Counter; 5],
    /// Doubts about upstream connections, by [`Doubt`].
    doubts: [Counter; Doubt::ALL.len()],
    /// Glitches of clients, by [`ClientGlitch`].
    client_glitches: [Counter; ClientGlitch::COUNT],
    /// Glitches of servers, by [`UpstreamGlitch`].
    upstream_glitches: [Counter; UpstreamGlitch::COUNT],
    /// Requests that weir itself answered with an error, or did not answer to the end.
    refusals: CountByKind<Cause>,
    /// Responses that were compressed.
    compressed: CountByKind<Coding>,
    /// Responses of routes with `compress` that were not compressed.
    compression_passed: CountByKind<Passed>,
    /// Deadlines that passed.
    timeouts: CountByKind<Timeout>,
    /// TLS handshakes with clients that failed, and connections whose records could not be read.
    tls_failures: CountByKind<TlsFailure>,
    /// TLS handshakes with servers that failed, and connections whose records could not be read.
    upstream_tls_failures: CountByKind<ServerTlsFailure>,
    /// Ends of client connections.
    client_closes: CountByKind<ClientEnd>,
    /// Ends of client connections of `tcp`.
    tcp_closes: CountByKind<FlowEnd>,
    /// First packets of clients for which weir connected to servers before it accepted the clients,
    /// by result.
    tcp_held: CountByKind<Held>,
    /// Ends of upstream connections.
    upstream_closes: CountByKind<UpstreamEnd>,
}

impl Counters {
    /// Counts a final answer by its status; 100 to 599, others count as the nearest class.
    #[inline]
    pub fn answer(&self, status: u16) {
        self.answers[usize::from(status / 100).clamp(1, 5) - 1].increment();
    }

    /// Counts a doubt.
    #[inline]
    pub fn doubt(&self, doubt: Doubt) {
        self.doubts[doubt as usize].increment();
    }

    fn each_labelled(&self, visit: &mut impl FnMut(Sample)) {
        let mut one = |name, label, value, help, counted| {
            visit(Sample {
                name,
                label: Some((label, value)),
                kind: Kind::Total,
                help,
                value: counted,
            });
        };
        for (class, counter) in ["1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().zip(&self.answers) {
            one("answers", "class", class, "Final responses sent to clients.", counter.get());
        }
        for (doubt, counter) in Doubt::ALL.into_iter().zip(&self.doubts) {
            one(
                "doubts",
                "kind",
                doubt.word(),
                "Doubts about upstream connections.",
                counter.get(),
            );
        }
        for ((_, word, _), counter) in ClientGlitch::ALL.iter().zip(&self.client_glitches) {
            one(
                "client_glitches",
                "kind",
                word,
                "Unusual but legal events on client connections.",
                counter.get(),
            );
        }
        for ((_, word, _), counter) in UpstreamGlitch::ALL.iter().zip(&self.upstream_glitches) {
            let help = "Unusual but legal events on upstream connections.";
            one("upstream_glitches", "kind", word, help, counter.get());
        }
        self.refusals.each("refusals", "Requests that weir itself answered with an error.", visit);
        self.compressed.each("compressed", "Responses that were compressed.", visit);
        let help = "Responses of routes with `compress` that were not compressed.";
        self.compression_passed.each("compression_passed", help, visit);
        self.timeouts.each("timeouts", "Deadlines that passed.", visit);
        let help = "TLS handshakes with clients that failed, and connections whose records could \
            not be read.";
        self.tls_failures.each("tls_failures", help, visit);
        let help = "TLS handshakes with servers that failed, and connections whose records could \
            not be read.";
        self.upstream_tls_failures.each("upstream_tls_failures", help, visit);
        self.client_closes.each("client_closes", "Ends of client connections.", visit);
        self.tcp_closes.each("tcp_closes", "Ends of client connections of `tcp`.", visit);
        let help = "First packets of clients for which weir connected to servers before accepting \
            the clients, by result.";
        self.tcp_held.each("tcp_held", help, visit);
        self.upstream_closes.each("upstream_closes", "Ends of upstream connections.", visit);
    }
}

/// The sum of several workers' counters.
#[derive(Debug, Default)]
pub struct Totals {
    samples: Vec<Sample>,
    places: BTreeMap<(&'static str, Option<&'static str>), usize>,
}

impl Totals {
    /// Adds one worker.
    pub fn add(&mut self, counters: &Counters) {
        counters.each(|sample| self.add_sample(sample));
    }

    /// Adds one value of one worker.
    pub fn add_sample(&mut self, sample: Sample) {
        let key = (sample.name, sample.label.map(|(_, value)| value));
        match self.places.get(&key) {
            // A gauge may be negative in one worker, if another one returns what it took: the sum
            // is right.
            Some(&at) => self.samples[at].value = self.samples[at].value.wrapping_add(sample.value),
            None => {
                self.places.insert(key, self.samples.len());
                self.samples.push(sample);
            }
        }
    }

    /// Returns all values, those of one name together.
    pub fn samples(&self) -> Vec<Sample> {
        let mut names = BTreeMap::new();
        for sample in &self.samples {
            let next = names.len();
            names.entry(sample.name).or_insert(next);
        }
        let mut sorted = self.samples.clone();
        sorted.sort_by_key(|sample| names[sample.name]);
        sorted
    }

    /// Returns one value, or the sum of all labels of a name. 0 if it does not exist or did not
    /// occur.
    pub fn get(&self, name: &str, label: Option<&str>) -> u64 {
        let fits = |sample: &&Sample| {
            sample.name == name
                && label.is_none_or(|wanted| sample.label.is_some_and(|(_, value)| value == wanted))
        };
        self.samples.iter().filter(fits).fold(0, |sum, sample| sum.wrapping_add(sample.value))
    }
}

#[cfg(test)]
mod tests {
    //! Proves: each counter shows up once under its name, words are counted each, workers add up.
    //! How: examples.

    use std::collections::BTreeSet;

    use weir_http::RequestError;

    use super::*;

    #[test]
    fn every_counter_is_listed_once_with_a_name_and_help() {
        let counters = Counters::default();
        let mut seen = BTreeSet::new();
        counters.each(|sample| {
            assert!(seen.insert((sample.name, sample.label)), "{sample:?}");
            assert!(
                sample.name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_')),
                "{sample:?}"
            );
            assert!(sample.help.ends_with('.') && !sample.help.starts_with(' '), "{sample:?}");
            assert_eq!(sample.value, 0);
        });
        assert!(seen.contains(&("accepted", None)));
        assert!(seen.contains(&("doubts", Some(("kind", "forbidden-body")))));
    }

    #[test]
    fn counting() {
        let counters = Counters::default();
        counters.client_connections.add(3);
        counters.client_connections.sub(1);
        counters.requests.increment();
        counters.queue_waiting.set(9);
        for status in [101, 200, 204, 304, 404, 502, 599, 999, 0] {
            counters.answer(status);
        }
        counters.doubt(Doubt::InvalidLength);
        counters.refusals.count(RequestError::HostMissing.into());
        counters.refusals.count(Cause::NoRoute);
        counters.refusals.count(RequestError::HostMissing.into());
        let mut totals = Totals::default();
        totals.add(&counters);
        for (name, label, expected) in [
            ("client_connections", None, 2),
            ("requests", None, 1),
            ("queue_waiting", None, 9),
            ("answers", None, 9),
            ("answers", Some("1xx"), 2),
            ("answers", Some("2xx"), 2),
            ("answers", Some("5xx"), 3),
            ("doubts", Some("invalid-length"), 1),
            ("refusals", Some("host-missing"), 2),
            ("refusals", Some("no-route"), 1),
            ("refusals", Some("host-invalid"), 0),
            ("nonsense", None, 0),
        ] {
            assert_eq!(totals.get(name, label), expected, "{name} {label:?}");
        }
        assert_eq!((counters.refusals.get("host-missing"), counters.refusals.sum()), (2, 3));
    }

    #[test]
    fn workers_add_up_also_when_one_gives_back_what_another_took() {
        let workers = [Counters::default(), Counters::default()];
        workers[0].in_flight.add(5);
        workers[1].in_flight.sub(2);
        workers[0].timeouts.count(Timeout::Idle);
        workers[1].timeouts.count(Timeout::Head);
        workers[1].timeouts.count(Timeout::Idle);
        let mut totals = Totals::default();
        workers.iter().for_each(|worker| totals.add(worker));
        assert_eq!((totals.get("in_flight", None), totals.get("timeouts", Some("idle"))), (3, 2));
        let names: Vec<_> = totals.samples().iter().map(|sample| sample.name).collect();
        let mut grouped = names.clone();
        grouped.dedup();
        assert_eq!(
            grouped.len(),
            names.iter().collect::<BTreeSet<_>>().len(),
            "values of one name stand together"
        );
    }
}
