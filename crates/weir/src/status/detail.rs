//! `weir status server`: everything about one server, for people. Pure: document -> text.

use std::time::Duration;

use super::figures::{count, rate, span, time};
use super::overview::{Look, lasting_doubt, tone};
use super::table::{Column, Row, Tone, number, table, text};
use crate::admin::document::{self, ServerStatus};

/// Left out first on a narrow terminal.
const CONNECTIONS: [Column; 10] = [
    number("CONN", 0),
    number("WORKER", 2),
    text("STATE"),
    number("FOR", 0),
    number("SENT", 0),
    number("QUEUED", 0),
    number("ANSWERS", 1),
    number("GLITCHES", 3),
    number("CLOSES", 0),
    text("LAST CLOSED BY"),
];

/// Which requests may share connections.
const CLASSES: [Column; 3] = [text("REQUESTS"), number("USUALLY", 0), text("SHARE CONNECTIONS")];
/// More are in the JSON.
const CLASSES_SHOWN: usize = 20;

/// Returns the whole page.
pub(crate) fn detail(status: &ServerStatus, look: Look) -> String {
    let server = &status.server;
    let mut out = format!("{} of {}", server.name, status.upstream);
    if server.address != server.name {
        out += &format!(" ({})", server.address);
    }
    out += &format!("  {}", tone(&server.state).paint(&server.state, look.colour));
    if let Some(why) = &server.why {
        out += &format!(": {why}");
    }
    if server.backup {
        out += ", backup: used only while no other server of the upstream is usable";
    }
    if server.temporary {
        out += ", temporary: not in the configuration";
    }
    out.push('\n');
    for (name, value) in facts(status) {
        out += &format!("  {name:<13} {value}\n");
    }
    if !status.classes.is_empty() {
        out.push('\n');
        let rows: Vec<Row> = status.classes.iter().take(CLASSES_SHOWN).map(class).collect();
        out += &table(&CLASSES, &rows, 2, look.width, look.colour);
    }
    out.push('\n');
    let rows: Vec<Row> = status.rows.iter().map(row).collect();
    out += &table(&CONNECTIONS, &rows, 2, look.width, look.colour);
    out
}

/// Returns lines of a name and a fact.
fn facts(status: &ServerStatus) -> Vec<(&'static str, String)> {
    let server = &status.server;
    let connections = &server.connections;
    let seconds = span(Duration::from_secs_f64(server.window.seconds.clamp(0.0, 1e12)));
    let mut facts = vec![
        (
            "connections",
            format!(
                "{} up, at most {} shared{}",
                connections.up,
                connections.configured,
                beside(connections)
            ),
        ),
        ("requests", requests(server)),
        (
            "window",
            format!(
                "{seconds}, {} responses, {} req/s; {} req/s now",
                count(server.window.latency.count),
                rate(server.window.requests_per_second),
                rate(server.window.requests_per_second_now)
            ),
        ),
        ("latency", latency(&server.window.latency)),
        ("percentiles", percentiles(&server.window.latency)),
        (
            "answers",
            listed(status.statuses.iter().map(|(status, count)| (status.to_string(), *count))),
        ),
        ("trust", trust(server)),
    ];
    if let Some(fresh) = &server.fresh {
        facts.push(("fresh", self::fresh(fresh)));
    }
    if let Some(most) = server.bounds.concurrency {
        facts.push(("concurrency", format!("at most {most} requests at once, as configured")));
    }
    if let Some(limit) = &server.bounds.limit {
        facts.push(("limit", self::limit(limit)));
    }
    if let Some(places) = server.bounds.places {
        let more = "further ones got no response before others closed";
        facts.push(("places", format!("{places} connections at once, learned: {more}")));
    }
    for (name, key) in [("doubts", "doubts"), ("glitches", "glitches"), ("closes", "closes")] {
        let counts =
            server.totals.get(key).and_then(|value| value.as_object()).into_iter().flatten();
        facts.push((
            name,
            listed(counts.map(|(word, count)| (word.clone(), count.as_u64().unwrap_or(0)))),
        ));
    }
    let plain = server
        .totals
        .iter()
        .filter_map(|(name, value)| Some((name.replace('_', "-"), value.as_u64()?)));
    facts.push(("counts", listed(plain)));
    if let Some(problem) = &server.last_problem {
        facts.push((
            "last problem",
            format!("{}, {} ago", problem.word, span(Duration::from_micros(problem.ago_us))),
        ));
    }
    facts
}

fn beside(connections: &document::Connections) -> String {
    let mut out = String::new();
    for (number, what) in
        [(connections.aside, "set aside for slow clients"), (connections.tunnels, "in tunnels")]
    {
        if number > 0 {
            out += &format!(", {number} {what}");
        }
    }
    out
}

fn requests(server: &document::Server) -> String {
    let (busy, waiting, room) = (server.in_flight, server.waiting, server.capacity);
    format!(
        "{busy} unanswered, {waiting} waiting, room for {}; weight {}",
        count(room),
        server.weight_shown()
    )
}

fn latency(latency: &document::Latency) -> String {
    format!(
        "min {}  mean {}  max {}",
        time(latency.min_us),
        time(latency.mean_us),
        time(latency.max_us)
    )
}

fn percentiles(latency: &document::Latency) -> String {
    let all = [
        ("p50", latency.p50_us),
        ("p75", latency.p75_us),
        ("p90", latency.p90_us),
        ("p95", latency.p95_us),
        ("p99", latency.p99_us),
        ("p99.9", latency.p999_us),
    ];
    all.map(|(name, value)| format!("{name} {}", time(value))).join("  ")
}

fn trust(server: &document::Server) -> String {
    let penalty = Duration::from_micros(server.penalty_us);
    let word = match server.trust.as_str() {
        "penalty" => {
            format!(
                "not pipelined for {}: {}",
                span(penalty),
                server.penalty_for.as_deref().unwrap_or("doubt")
            )
        }
        "surplus" => lasting_doubt(server),
        "earning" => "earning trust: not pipelined yet".to_owned(),
        "clean" => "clean so far: not pipelined before its rehearsal".to_owned(),
        "unfit" => {
            "cannot handle several requests at once: not pipelined until it is cleared".to_owned()
        }
        word => word.to_owned(),
    };
    format!("{word}; depth {}", server.depth)
}

/// Returns how requests use connections with `pool "fresh"`, and why.
pub(crate) fn fresh(fresh: &document::Fresh) -> String {
    let way = match fresh.in_force {
        0 => "kept connections are used".to_owned(),
        all if all == fresh.workers => "each request has its own connection".to_owned(),
        some => {
            format!("each request has its own connection on {some} of {} workers", fresh.workers)
        }
    };
    let known = |us: Option<u64>| if us.is_some() { time(us) } else { "unknown".to_owned() };
    format!(
        "{way}: p99 to the first byte {} kept, {} fresh",
        known(fresh.kept_p99_us),
        known(fresh.fresh_p99_us)
    )
}

/// Returns how many requests a server gets at once, and why.
pub(crate) fn limit(limit: &document::ConcurrencyLimit) -> String {
    let document::ConcurrencyLimit { requests, before, gain_percent } = limit;
    format!(
        "{requests} requests at once, learned: {gain_percent} % more responses per second than \
            with {before}"
    )
}

/// Returns counts with their names, without those that are 0.
fn listed(counts: impl Iterator<Item = (String, u64)>) -> String {
    let shown: Vec<String> = counts
        .filter(|(_, value)| *value > 0)
        .map(|(name, value)| format!("{name} {}", count(value)))
        .collect();
    if shown.is_empty() { "none".to_owned() } else { shown.join("  ") }
}

fn class(class: &document::Class) -> Row {
    let sharing = match class.sharing.as_str() {
        "alike" => "yes".to_owned(),
        "new" => format!("unknown before {} more responses", class.missing),
        "overtaken" => {
            format!("not for {} more responses: others overtook one of them", class.missing)
        }
        "slower" => "no: they take much longer than the fastest".to_owned(),
        "long" => "no: some responses have more than 64 KiB".to_owned(),
        word => word.to_owned(),
    };
    let usually = time(Some(class.usual_us.into()).filter(|us| *us > 0));
    let shape: String =
        class.shape.chars().map(|char| if char.is_control() { '?' } else { char }).collect();
    Row { cells: vec![shape.into(), usually.into(), sharing.into()], below: None }
}

fn row(row: &document::Row) -> Row {
    let state = match row.retry_us {
        0 => row.state.clone(),
        us => format!("{}, retry in {}", row.state, time(Some(us))),
    };
    let down = matches!(row.state.as_str(), "down" | "connecting");
    let cells = vec![
        row.number.to_string().into(),
        row.worker.to_string().into(),
        super::table::Cell { text: state, tone: if down { Tone::Bad } else { Tone::Plain } },
        span(Duration::from_micros(row.since_us)).into(),
        row.in_flight.to_string().into(),
        row.queued.to_string().into(),
        count(row.answers).into(),
        count(row.glitches.into()).into(),
        count(row.closes).into(),
        row.closed_why.clone().unwrap_or_else(|| "-".to_owned()).into(),
    ];
    Row { cells, below: None }
}
