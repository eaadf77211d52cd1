//! Reading -> metrics: the families and their samples. Called by `routes`; pure.
//!
//! Every counter of `weir_proxy` appears automatically. Labels are names of the configuration and
//! words of the program, so the configuration bounds their number; nothing that a client sends
//! becomes a label.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use weir_io::AcceptQueue;
use weir_proxy::observe::counters::{Counters, Kind, Sample};
use weir_proxy::observe::histogram::Snapshot;
use weir_proxy::observe::report::ConnectionState;
use weir_proxy::plan::Plan;
use weir_proxy::shield::tally::Outcome;
use weir_proxy::upstream::trust::TrustState;
use weir_worker::WorkerReport;

use super::exposition::{Exposition, Format, Label, Seconds, Type};
use super::reading::{FreshNow, Now, Reading, ServerReading};
use super::status::{Facts, gauge, state, up};
use super::{arms, cache};
use crate::reload::Told;

/// Counts that are more informative for each worker than as a sum.
const OF_WORKERS: [&str; 8] = [
    "turns",
    "mail_sent",
    "mail_received",
    "mail_delayed",
    "connections_given",
    "connections_taken",
    "connections_not_given",
    "rebirths",
];
/// Bounds of histograms: 2^6 to 2^25 microseconds (64 us to 34 s). The buckets of `Histogram` end
/// at powers of two, so these counts are exact.
const BOUNDS: std::ops::RangeInclusive<u32> = 6..=25;
/// In the order of severity.
const STATES: [&str; 6] = ["up", "down", "suspended", "draining", "disabled", "unknown"];

/// Returns the whole text.
pub(crate) fn metrics(
    reading: &Reading,
    plan: &Plan,
    facts: &Facts,
    told: &Told,
    uptime: Duration,
    format: Format,
) -> String {
    let mut text = Exposition::new(format);
    process(&mut text, reading, plan, facts, uptime);
    reloads(&mut text, reading, told);
    clients(&mut text, reading);
    certificates(&mut text, facts);
    names(&mut text, facts);
    workers(&mut text, reading);
    workers_now(&mut text, reading);
    super::workers::metrics(&mut text, reading);
    upstreams(&mut text, reading, plan);
    shield(&mut text, plan);
    bans(&mut text, facts);
    cache::metrics(&mut text, plan, &reading.hits);
    arms::metrics(&mut text, &arms::merged(reading));
    let names: Vec<[Label<'_>; 2]> =
        reading.servers.iter().map(|server| labels(server, plan)).collect();
    servers_counted(&mut text, reading, &names);
    servers_now(&mut text, reading, &names, plan);
    text.finish()
}

fn process(text: &mut Exposition, reading: &Reading, plan: &Plan, facts: &Facts, uptime: Duration) {
    text.family("build", Type::Info, "Version of weir.");
    text.sample(&[("version", env!("CARGO_PKG_VERSION")), ("driver", &facts.driver)], 1);
    let started = SystemTime::now()
        .checked_sub(uptime)
        .and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    text.family("start_time_seconds", Type::Gauge, "When weir started, in seconds since 1970.");
    text.sample(&[], Seconds(started.map_or(0, micros)));
    text.family("uptime_seconds", Type::Gauge, "How long weir has been running.");
    text.sample(&[], Seconds(micros(uptime)));
    text.family("ready", Type::Gauge, "Whether weir should get traffic, like /readyz.");
    text.sample(&[], u8::from(reading.unready(plan).is_none()));
}

fn reloads(text: &mut Exposition, reading: &Reading, told: &Told) {
    text.family(
        "config_generation",
        Type::Gauge,
        "Configurations that have been in force, including the current one.",
    );
    text.sample(&[], told.generation);
    let help = "Whether the last reload succeeded: 0 if the previous configuration remains in \
        force. 1 before the first reload.";
    text.family("config_reload_success", Type::Gauge, help);
    text.sample(&[], u8::from(told.last.as_ref().is_none_or(|last| last.error.is_none())));
    if let Some(last) = &told.last {
        text.family(
            "config_reload_time_seconds",
            Type::Gauge,
            "When the last reload was, in seconds since 1970.",
        );
        text.sample(&[], Seconds(last.at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, micros)));
    }
    let help = "Requests and tunnels at servers that are no longer in the configuration.";
    text.family("config_leaving", Type::Gauge, help);
    text.sample(&[], reading.leaving());
}

fn certificates(text: &mut Exposition, facts: &Facts) {
    let (all, files) = (facts.certificates.shown(), facts.certificates.files());
    if !files.is_empty() {
        let help = "Whether the content of a file with CAs, revocation lists or ticket keys is in \
            force: 0 if weir could not use it.";
        text.family("tls_file_current", Type::Gauge, help);
    }
    for shown in &files {
        text.sample(&[("file", &shown.file)], u8::from(shown.problem.is_none()));
    }
    if all.is_empty() {
        return;
    }
    text.family(
        "certificate_not_after_seconds",
        Type::Gauge,
        "When a certificate expires, in seconds since 1970.",
    );
    for shown in &all {
        text.sample(&[("file", &shown.file)], shown.not_after);
    }
    let help =
        "Whether the certificate in force is that of its file: 0 when the file could not be used.";
    text.family("certificate_current", Type::Gauge, help);
    for shown in &all {
        text.sample(&[("file", &shown.file)], u8::from(shown.problem.is_none()));
    }
}

fn names(text: &mut Exposition, facts: &Facts) {
    let (all, lists) = (facts.names.shown(), facts.names.lists());
    if !lists.is_empty() {
        let help = "Whether weir could use the current content of a file with servers.";
        text.family("server_file_current", Type::Gauge, help);
    }
    for shown in &lists {
        text.sample(&[("file", &shown.file)], u8::from(shown.problem.is_none()));
    }
    if all.is_empty() {
        return;
    }
    text.family("name_addresses", Type::Gauge, "Addresses in use of a host name of servers.");
    for shown in &all {
        text.sample(&[("name", &shown.name)], shown.addresses.len());
    }
    text.family("name_current", Type::Gauge, "Whether the last lookup of the name succeeded.");
    for shown in &all {
        text.sample(&[("name", &shown.name)], u8::from(shown.problem.is_none()));
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the name of a family for the name of a counter, with the unit at the end.
fn family_name(name: &str) -> String {
    match (name.strip_suffix("bytes_in"), name.strip_suffix("bytes_out")) {
        (Some(what), _) => format!("{what}received_bytes"),
        (_, Some(what)) => format!("{what}sent_bytes"),
        _ => name.to_owned(),
    }
}

fn family(text: &mut Exposition, prefix: &str, sample: &Sample) {
    let kind = if sample.kind == Kind::Total { Type::Counter } else { Type::Gauge };
    text.family(&format!("{prefix}{}", family_name(sample.name)), kind, sample.help);
}

/// Returns the value of a sample. A gauge may be below zero for a moment; a counter never is.
fn value(sample: &Sample) -> u64 {
    if sample.kind == Kind::Gauge { gauge(sample.value) } else { sample.value }
}

fn clients(text: &mut Exposition, reading: &Reading) {
    let samples = reading.totals.samples();
    for family_samples in samples.chunk_by(|a, b| a.name == b.name) {
        if OF_WORKERS.contains(&family_samples[0].name) {
            continue;
        }
        family(text, "", &family_samples[0]);
        for sample in family_samples {
            text.sample(sample.label.as_slice(), value(sample));
        }
    }
    text.family(
        "request_duration_seconds",
        Type::Histogram,
        "Time from the receipt of a request to the end of its response.",
    );
    histogram(text, &[], &reading.latency);
}

pub(super) fn histogram(text: &mut Exposition, labels: &[Label<'_>], snapshot: &Snapshot) {
    let buckets: Vec<_> =
        BOUNDS.map(|power| (Seconds(1 << power), snapshot.count_up_to((1 << power) - 1))).collect();
    text.histogram(labels, &buckets, snapshot.count(), Seconds(snapshot.sum_us()));
}

fn workers(text: &mut Exposition, reading: &Reading) {
    let numbers: Vec<String> =
        (0..reading.workers.len()).map(|number| number.to_string()).collect();
    let of = |counters: &Counters, name: &str| {
        let mut found = None;
        counters.each(|sample| found = found.or((sample.name == name).then_some(sample)));
        found
    };
    for name in OF_WORKERS {
        for (at, (worker, number)) in reading.workers.iter().zip(&numbers).enumerate() {
            let Some(sample) = of(&worker.view.counters, name) else { continue };
            if at == 0 {
                family(text, "worker_", &sample);
            }
            text.sample(&[("worker", number)], value(&sample));
        }
    }
    text.family("worker_responsive", Type::Gauge, "Whether the worker reported its state in time.");
    for (worker, number) in reading.workers.iter().zip(&numbers) {
        text.sample(&[("worker", number)], u8::from(worker.report.is_some()));
    }
}

/// Adds the reports of the workers.
fn workers_now(text: &mut Exposition, reading: &Reading) {
    let numbered = reading.workers.iter().enumerate();
    let told: Vec<_> = numbered
        .filter_map(|(at, worker)| Some((worker.report.as_deref()?, at.to_string())))
        .collect();
    let reports = || told.iter().map(|(report, number)| (*report, number.as_str()));
    text.family("worker_cpu_seconds", Type::Counter, "CPU time of the worker.");
    reports()
        .for_each(|(report, number)| text.sample(&[("worker", number)], Seconds(report.cpu_us)));
    text.family(
        "worker_accept_queue",
        Type::Gauge,
        "Connections that wait to be accepted by the worker.",
    );
    accept_queues(text, reports(), |queue| queue.waiting);
    text.family(
        "worker_accept_queue_limit",
        Type::Gauge,
        "Limit of waiting connections; further ones are not established.",
    );
    accept_queues(text, reports(), |queue| queue.limit);
    text.family("worker_driver", Type::Info, "I/O driver of the worker.");
    reports().for_each(|(report, number)| {
        text.sample(&[("worker", number), ("driver", report.driver)], 1)
    });
    text.family("worker_syscalls", Type::Counter, "System calls of the worker's driver.");
    reports().for_each(|(report, number)| {
        text.sample(&[("worker", number)], report.driver_stats.syscalls)
    });
    text.family(
        "worker_buffer_waits",
        Type::Counter,
        "Times that a socket waited for a receive buffer.",
    );
    reports().for_each(|(report, number)| {
        text.sample(&[("worker", number)], report.driver_stats.starved)
    });
}

fn accept_queues<'a>(
    text: &mut Exposition,
    reports: impl Iterator<Item = (&'a WorkerReport, &'a str)>,
    of: fn(&AcceptQueue) -> u32,
) {
    for (report, number) in reports {
        for (listener, queue) in &report.accept_queues {
            text.sample(&[("worker", number), ("listener", &listener.to_string())], of(queue));
        }
    }
}

/// Adds what limits did.
fn shield(text: &mut Exposition, plan: &Plan) {
    let Some(shield) = &plan.shield else { return };
    let help = "Connections and requests that a limit of `shield` applied to: passed, refused, \
        observed (it would have refused them), untracked (no room in the table); of these, shared \
        (counted together with others, because the table has no room for their values).";
    text.family("shield", Type::Counter, help);
    for limit in &shield.limits {
        for outcome in Outcome::ALL {
            text.sample(
                &[("limit", &limit.name), ("outcome", outcome.word())],
                limit.tally.get(outcome),
            );
        }
    }
}

/// Adds numbers about bans.
fn bans(text: &mut Exposition, facts: &Facts) {
    let figures = facts.bans.figures();
    text.family("bans", Type::Gauge, "Banned clients.");
    text.sample(&[], figures.in_force);
    text.family("bans_begun", Type::Counter, "Bans since the start, including bans by operators.");
    text.sample(&[], figures.total);
    let help = "Bans that others displaced early, because `bans-max` was reached.";
    text.family("bans_displaced", Type::Counter, help);
    text.sample(&[], figures.displaced);
    text.family(
        "bans_kept",
        Type::Gauge,
        "Whether bans survive a restart: 0 if no file is set, or weir cannot write it.",
    );
    text.sample(&[], u8::from(figures.file.is_some() && figures.problem.is_none()));
    text.family("bans_in_kernel", Type::Gauge, "Banned clients whose packets the kernel drops.");
    text.sample(&[], figures.kernel.bans.unwrap_or(0));
    text.family(
        "banned_packets_dropped",
        Type::Counter,
        "Packets of banned clients that the kernel has dropped.",
    );
    text.sample(&[], figures.kernel.packets);
}

fn upstreams(text: &mut Exposition, reading: &Reading, plan: &Plan) {
    text.family(
        "upstream_usable_servers",
        Type::Gauge,
        "Servers of the upstream that can take requests.",
    );
    let all = plan.upstreams.iter().zip(reading.by_upstream(plan));
    for (upstream, servers) in all.filter(|(upstream, _)| !upstream.is_retired()) {
        let usable = servers.iter().filter(|server| server.is_usable()).count();
        text.sample(&[("upstream", &upstream.name)], usable);
    }
}

fn labels<'a>(server: &ServerReading, plan: &'a Plan) -> [Label<'a>; 2] {
    let (upstream, server) = server.plan(plan);
    [("upstream", &upstream.name), ("server", &server.name)]
}

/// Adds the counts of servers, family after family.
fn servers_counted(text: &mut Exposition, reading: &Reading, names: &[[Label<'_>; 2]]) {
    let mut families: BTreeMap<&str, Vec<(usize, Sample)>> = BTreeMap::new();
    for (at, server) in reading.servers.iter().enumerate() {
        for sample in server.totals.samples() {
            families.entry(sample.name).or_default().push((at, sample));
        }
    }
    for samples in families.values() {
        family(text, "server_", &samples[0].1);
        for (at, sample) in samples {
            match sample.label {
                Some(label) => text.sample(&[names[*at][0], names[*at][1], label], value(sample)),
                None => text.sample(&names[*at], value(sample)),
            }
        }
    }
    let help =
        "Time from the assignment of a request to its connection to the end of its response.";
    text.family("server_response_seconds", Type::Histogram, help);
    for (server, labels) in reading.servers.iter().zip(names) {
        histogram(text, labels, &server.latency);
    }
}

/// Adds the present state of servers; leaves out those without a report of any worker.
fn servers_now(text: &mut Exposition, reading: &Reading, names: &[[Label<'_>; 2]], plan: &Plan) {
    let servers = || reading.servers.iter().zip(names);
    text.family("server_state", Type::Gauge, "1 for the current state of the server.");
    for (server, [upstream, name]) in servers() {
        let (now, _) = state(server);
        STATES.iter().for_each(|word| {
            text.sample(&[*upstream, *name, ("state", word)], u8::from(*word == now))
        });
    }
    text.family("server_connections", Type::Gauge, "Connections to the server by state.");
    for (server, [upstream, name]) in servers() {
        for state in ConnectionState::ALL {
            let count = server
                .connections
                .iter()
                .filter(|(_, connection)| connection.state == state)
                .count();
            text.sample(&[*upstream, *name, ("state", state.word())], count);
        }
    }
    let mut each = |name: &str, help: &str, of: &dyn Fn(&ServerReading) -> Option<u64>| {
        text.family(name, Type::Gauge, help);
        for (server, labels) in servers() {
            if let Some(value) = of(server) {
                text.sample(labels, value);
            }
        }
    };
    let now = |of: fn(&Now) -> u32| {
        move |server: &ServerReading| server.now.as_ref().map(|now| u64::from(of(now)))
    };
    each("server_up", "Whether requests can go to the server.", &|server| {
        Some(u64::from(server.is_usable()))
    });
    each("server_weight", "Configured weight of the server.", &|server| {
        Some(u64::from(server.plan(plan).1.weight))
    });
    each(
        "server_backup",
        "Whether the server gets requests only while no other server of its upstream can.",
        &|server| Some(u64::from(server.plan(plan).1.backup)),
    );
    each("server_connections_up", "Established connections.", &|server| {
        Some(u64::from(up(server)))
    });
    each("server_connections_configured", "Limit of connections that requests share.", &|server| {
        Some(u64::from(server.plan(plan).1.connections))
    });
    each("server_in_flight", "Unanswered requests on connections.", &now(|now| now.unanswered));
    each("server_waiting", "Requests that wait for a connection.", &now(|now| now.waiting));
    each("server_depth", "Limit of unanswered requests on a connection.", &now(|now| now.depth));
    let help = "Limit of requests at once, if weir has learned that more are worse for the server.";
    each("server_limit", help, &|server| {
        server.now.as_ref()?.limit.map(|learned| learned.limit.into())
    });
    let help = "Limit of requests at once (`concurrency`).";
    each("server_concurrency", help, &|server| server.plan(plan).1.concurrency.map(u64::from));
    let help = "Connections that the server serves at a time, if weir has learned that.";
    each("server_places", help, &|server| {
        server.now.as_ref()?.places.map(|places| places.get().into())
    });
    each("server_tunnels", "Connections joined with a client.", &now(|now| now.tunnels));
    each(
        "server_trusted",
        "Whether weir may pipeline to the server.",
        &now(|now| u32::from(now.trust == TrustState::Trusted)),
    );
    servers_fresh(text, reading, names);
}

/// Adds the comparison of kept connections with those made for one request, where weir makes it.
fn servers_fresh(text: &mut Exposition, reading: &Reading, names: &[[Label<'_>; 2]]) {
    let servers = || {
        let all = reading.servers.iter().zip(names);
        all.filter_map(|(server, labels)| Some((server.now.as_ref()?.fresh?, labels)))
    };
    let help = "Workers whose requests use connections opened for them (`pool \"fresh\"`).";
    text.family("server_fresh_in_force", Type::Gauge, help);
    servers().for_each(|(now, labels)| text.sample(labels, now.in_force));
    text.family("server_fresh_connections", Type::Gauge, "Connections opened for one request.");
    servers().for_each(|(now, labels)| text.sample(labels, now.connections));
    type P99 = fn(FreshNow) -> Option<u64>;
    let kinds: [(&str, &str, P99); 2] = [
        ("server_kept_p99_seconds", "on a kept connection", |now| now.kept_p99_us),
        ("server_fresh_p99_seconds", "on a connection opened for it", |now| now.fresh_p99_us),
    ];
    for (name, on, of) in kinds {
        let help = format!(
            "Time from a request to the beginning of its response {on} lately, 99th percentile."
        );
        text.family(name, Type::Gauge, &help);
        servers()
            .filter_map(|(now, labels)| Some((of(now)?, labels)))
            .for_each(|(us, labels)| text.sample(labels, Seconds(us)));
    }
}

#[cfg(test)]
mod tests;
