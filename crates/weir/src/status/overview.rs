//! `weir status` for people: one screen that shows which server is in trouble and why. Pure:
//! document -> text.

use std::cmp::Reverse;
use std::time::Duration;

use super::figures::{count, rate, span, time};
use super::screen::{Page, Sort};
use super::table::{Cell, Column, Layout, Row, Tone, number, table, text};
use crate::admin::document::{Problem, Server, Status, Upstream};

/// How to show it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    /// Columns of the terminal; as many as needed elsewhere.
    pub(crate) width: usize,
    /// With terminal escapes.
    pub(crate) colour: bool,
}

/// Left out first on a narrow terminal: the mean rate, weight, 2xx, p90, connections.
const COLUMNS: [Column; 15] = [
    text("SERVER"),
    text("STATE"),
    number("WEIGHT", 4),
    number("REQ/S", 0),
    number("MEAN", 5),
    number("BUSY", 0),
    number("WAIT", 0),
    number("P50", 0),
    number("P90", 2),
    number("P99", 0),
    number("2XX", 3),
    number("4XX", 0),
    number("5XX", 0),
    number("RETRY", 0),
    number("CONNS", 1),
];
/// A problem this old is not shown beside a healthy server.
const OLD_US: u64 = 300_000_000;

/// Returns the whole screen.
pub(crate) fn overview(status: &Status, look: Look) -> String {
    let mut out = head(status, look);
    if !status.workers.is_empty() && status.workers.iter().all(|worker| worker.ended) {
        // No worker is left that knows the state of the servers.
        return out;
    }
    let rows: Vec<Row> =
        status.upstreams.iter().flat_map(|upstream| &upstream.servers).map(row).collect();
    let layout = Layout::new(&COLUMNS, &rows, 2, look.width, look.colour);
    let mut rows = &rows[..];
    for upstream in &status.upstreams {
        let (own, rest) = rows.split_at(upstream.servers.len());
        rows = rest;
        out.push('\n');
        out.push_str(&heading(upstream, look));
        out.push_str(&layout.table(own));
    }
    out.push_str(&super::workers::workers(&status.workers, look));
    out.push_str(
        &status.usage.as_ref().map_or_else(String::new, |usage| super::usage::usage(usage, look)),
    );
    out.push_str(&super::limits::limits(&status.limits, look));
    out.push_str(&super::arms::arms(&status.congestion, look));
    out.push_str(&suspects(status, look));
    out
}

fn head(status: &Status, look: Look) -> String {
    let workers = status.workers.len();
    let plural = if workers == 1 { "" } else { "s" };
    let uptime = span(Duration::from_secs_f64(status.uptime_seconds.clamp(0.0, 1e12)));
    let (state, tone) = match (&status.unready, status.state.as_str()) {
        (None, _) => ("ready".to_owned(), Tone::Good),
        (_, state @ ("leaving" | "draining")) => (state.to_owned(), Tone::Odd),
        (Some(why), _) => (format!("not ready: {}", sentence(why)), Tone::Bad),
    };
    let mut out = format!(
        "weir {}, pid {}, up {uptime}, {}, {workers} worker{plural}, {}\n",
        status.weir,
        status.pid,
        status.io.driver,
        tone.paint(&state, look.colour)
    );
    let clients = &status.clients;
    let latency = &clients.window.latency;
    out += &format!(
        "now      clients {}  req/s {}  busy {}  waiting {}\n",
        count(clients.connections),
        rate(clients.window.requests_per_second_now),
        count(clients.in_flight),
        count(clients.waiting),
    );
    let seconds = clients.window.seconds.min(status.window_seconds as f64);
    let answers = &clients.window.answers;
    out += &format!(
        "last {:<3} req/s {}  p50 {}  p99 {}  max {}\n         ",
        span(Duration::from_secs_f64(seconds.max(0.0))),
        rate(clients.window.requests_per_second),
        time(latency.p50_us),
        time(latency.p99_us),
        time(latency.max_us)
    );
    let classes = [
        ("2xx", answers.c2xx),
        ("3xx", answers.c3xx),
        ("4xx", answers.c4xx),
        ("5xx", answers.c5xx),
    ];
    let shown: Vec<String> =
        classes.iter().map(|(name, value)| format!("{name} {}", count(*value))).collect();
    out += &shown.join("  ");
    out.push('\n');
    out += &super::accepting::accepting(status);
    out += &super::tls::handshakes(status);
    out += &super::interception::interception(status);
    out += &super::arms::cores(status);
    out += &bans(status);
    out += &super::cache::cache(status);
    for notice in notices(status) {
        out += &notice.tone.paint(&notice.text, look.colour);
        out.push('\n');
    }
    out
}

/// Returns a line about banned clients, if there are or were any.
fn bans(status: &Status) -> String {
    let bans = &status.bans;
    if bans.total == 0 && bans.in_force == 0 {
        return String::new();
    }
    let lost = status.totals.get("offences_lost").and_then(serde_json::Value::as_u64).unwrap_or(0);
    let also = |number: u64, what: &str| {
        if number > 0 { format!("  {what} {}", count(number)) } else { String::new() }
    };
    format!(
        "bans     {} in force{}  {} since the start{}{}{}\n",
        count(bans.in_force),
        in_kernel(bans),
        count(bans.total),
        also(bans.displaced, "displaced"),
        also(lost, "lost"),
        also(bans.packets_dropped, "packets dropped")
    )
}

/// Returns how many of them the kernel knows, and how it drops packets.
fn in_kernel(bans: &crate::admin::document::Bans) -> String {
    let tier = bans.kernel_tier.as_deref().unwrap_or_default();
    bans.in_kernel
        .map_or_else(String::new, |known| format!(" ({} in the kernel, {tier})", count(known)))
}

/// Returns the same for watching: sick servers first, all upstreams in one table.
pub(crate) fn watched(status: &Status, look: Look, sort: Sort) -> Page {
    let mut head: Vec<String> = head(status, look).lines().map(str::to_owned).collect();
    head.push(String::new());
    let all = status
        .upstreams
        .iter()
        .flat_map(|upstream| upstream.servers.iter().map(move |server| (upstream, server)));
    let mut all: Vec<(&Upstream, &Server)> = all.collect();
    all.sort_by_key(|(_, server)| {
        let window = &server.window;
        let much = match sort {
            Sort::Configured => 0,
            // Thousandths, as in the document.
            Sort::Rate => (window.requests_per_second_now * 1e3) as u64,
            Sort::Busy => server.in_flight,
            Sort::Waiting => server.waiting,
            Sort::Slow => window.latency.p99_us.unwrap_or(0),
            Sort::Failures => window.answers.c5xx,
        };
        Reverse((server.sickness(), much))
    });
    let columns: Vec<Column> = [text("UPSTREAM")].into_iter().chain(COLUMNS).collect();
    let rows: Vec<Row> = all
        .iter()
        .map(|(upstream, server)| {
            let mut row = row(server);
            row.cells[0] = shortened(&server.name, 24).into();
            row.cells.insert(0, shortened(&upstream.name, 16).into());
            row
        })
        .collect();
    let text = table(&columns, &rows, 0, look.width, look.colour)
        + &super::workers::workers(&status.workers, look)
        + &status.usage.as_ref().map_or_else(String::new, |usage| super::usage::usage(usage, look))
        + &super::limits::limits(&status.limits, look)
        + &super::arms::arms(&status.congestion, look)
        + &suspects(status, look);
    let mut lines = text.lines().map(str::to_owned);
    head.extend(lines.next());
    Page { head, body: lines.collect(), sorted: true }
}

/// Shortens a name to this many characters: its begin, and its end, where names differ.
fn shortened(name: &str, characters_max: usize) -> String {
    let all: Vec<char> = name.chars().collect();
    if all.len() <= characters_max {
        return name.to_owned();
    }
    let begin = characters_max / 2 - 1;
    let end = all.len() - (characters_max - begin - 2);
    all[..begin].iter().chain(&['.', '.']).chain(&all[end..]).collect()
}

/// Returns what needs attention besides servers, a line each.
pub(crate) fn notices(status: &Status) -> Vec<Cell> {
    let mut all = super::tls::troubles(status);
    let mut add = |text: String, tone: Tone| all.push(Cell { text, tone });
    for name in &status.names {
        if let Some(problem) = &name.problem {
            let stays = if name.addresses.is_empty() {
                "it has no server"
            } else {
                "known addresses remain in use"
            };
            add(format!("cannot resolve {}: {problem}; {stays}", name.name), Tone::Bad);
        }
    }
    for problem in status.server_files.iter().filter_map(|file| file.problem.as_ref()) {
        add(format!("{problem}; the servers read before remain in use"), Tone::Bad);
    }
    if let Some(problem) = &status.bans.problem {
        let file = status.bans.file.as_deref().unwrap_or("their file");
        add(format!("bans do not survive a restart: {file}: {problem}"), Tone::Bad);
    }
    if let Some(problem) = status.bans.kernel_problem.as_ref().filter(|_| status.bans.total > 0) {
        let (tier, weir) = (
            status.bans.kernel_tier.as_deref(),
            "weir, which resets connections of banned clients",
        );
        add(format!("bans are enforced by {}: {problem}", tier.unwrap_or(weir)), Tone::Odd);
    }
    if status.reload.ok == Some(false) {
        let error = status.reload.error.as_deref().unwrap_or_default();
        let first = error.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        add(
            format!("the last reload failed, the previous configuration remains in force: {first}"),
            Tone::Bad,
        );
    }
    if status.reload.leaving > 0 {
        add(
            format!("{} requests are still at removed servers", count(status.reload.leaving)),
            Tone::Odd,
        );
    }
    for worker in status.workers.iter().filter(|worker| !worker.responsive) {
        let (what, tone) = match (worker.ended, status.state.as_str()) {
            (true, "draining") => ("has ended", Tone::Plain),
            (true, _) => ("has ended", Tone::Bad),
            (false, _) => ("does not respond", Tone::Bad),
        };
        add(format!("worker {} {what}", worker.number), tone);
    }
    for worker in status.workers.iter().filter(|worker| worker.rebirths > 0) {
        let text = format!(
            "worker {} panicked {} times and restarted: a bug in weir",
            worker.number, worker.rebirths
        );
        add(text, Tone::Bad);
    }
    all
}

/// Returns a word of the document for people.
fn sentence(unready: &str) -> String {
    match unready.split_once(' ') {
        Some(("no-server", upstream)) => format!("no server of {upstream} is usable"),
        _ => unready.to_owned(),
    }
}

fn heading(upstream: &Upstream, look: Look) -> String {
    let usable = upstream.servers.iter().filter(|server| server.usable).count();
    let all = upstream.servers.len();
    let tone = if usable == all && all > 0 { Tone::Plain } else { Tone::Bad };
    format!(
        "{}  {}\n",
        upstream.name,
        tone.paint(&format!("{usable} of {all} servers up"), look.colour)
    )
}

/// Returns the tone of a state.
pub(crate) fn tone(state: &str) -> Tone {
    match state {
        "up" => Tone::Good,
        "draining" | "disabled" => Tone::Odd,
        _ => Tone::Bad,
    }
}

fn row(server: &Server) -> Row {
    let window = &server.window;
    let latency = &window.latency;
    let toned = |value: u64, tone: Tone| Cell {
        text: count(value),
        tone: if value > 0 { tone } else { Tone::Plain },
    };
    let connections = &server.connections;
    let missing = server.waiting > 0 && connections.up == 0;
    let connected = Cell {
        text: format!("{}/{}", connections.up, connections.configured),
        tone: if missing { Tone::Odd } else { Tone::Plain },
    };
    let cells = vec![
        server.name.as_str().into(),
        Cell { text: server.state_shown(), tone: tone(&server.state) },
        server.weight_shown().into(),
        rate(window.requests_per_second_now).into(),
        rate(window.requests_per_second).into(),
        count(server.in_flight).into(),
        toned(server.waiting, Tone::Odd),
        time(latency.p50_us).into(),
        time(latency.p90_us).into(),
        time(latency.p99_us).into(),
        count(window.answers.c2xx).into(),
        count(window.answers.c4xx).into(),
        toned(window.answers.c5xx, Tone::Bad),
        toned(window.retries, Tone::Odd),
        connected,
    ];
    Row { cells, below: remark(server) }
}

/// Returns what the operator should know of a server, in one line.
pub(crate) fn remark(server: &Server) -> Option<Cell> {
    let mut parts: Vec<String> = Vec::new();
    let ago = |problem: &Problem| {
        format!("{} {} ago", problem.word, span(Duration::from_micros(problem.ago_us)))
    };
    let why = server.why.as_ref().filter(|_| server.state != "up");
    let problem = server.last_problem.as_ref();
    match (why, problem) {
        (Some(why), Some(problem)) if *why == problem.word => {
            parts.push(format!("{}: {}", server.state, ago(problem)))
        }
        (Some(why), _) if server.suspended_us > 0 => {
            let since = span(Duration::from_micros(server.suspended_us));
            let reason = match why.as_str() {
                "answers" => "it sent as many bad responses as a `failover` rule allows".to_owned(),
                fault => fault.to_owned(),
            };
            parts.push(format!("{} for {since}: {reason}", server.state));
        }
        (Some(why), _) => parts.push(format!("{}: {why}", server.state)),
        _ => {}
    }
    match server.trust.as_str() {
        "surplus" => parts.push(lasting_doubt(server)),
        "penalty" => {
            let left = span(Duration::from_micros(server.penalty_us));
            parts.push(format!(
                "not pipelined for {left}: {}",
                server.penalty_for.as_deref().unwrap_or("doubt")
            ));
        }
        _ => {}
    }
    if let Some(fresh) = server.fresh.as_ref().filter(|fresh| fresh.in_force > 0) {
        parts.push(super::detail::fresh(fresh));
    }
    if let Some(limit) = &server.bounds.limit {
        parts.push(super::detail::limit(limit));
    }
    if let Some(problem) =
        problem.filter(|problem| problem.ago_us < OLD_US && why != Some(&problem.word))
    {
        parts.push(format!("last problem: {}", ago(problem)));
    }
    if server.temporary {
        parts.push("temporary: not in the configuration".to_owned());
    }
    let tone = if server.state == "up" { Tone::Odd } else { tone(&server.state) };
    (!parts.is_empty()).then(|| Cell { text: parts.join("; "), tone })
}

/// Returns why a server is not pipelined until an operator clears it.
pub(crate) fn lasting_doubt(server: &Server) -> String {
    let doubt = server.penalty_for.as_deref().unwrap_or("it sent a surplus response");
    format!("not pipelined: {doubt}; `weir server clear` after it is repaired")
}

/// Returns the suspects. Requests that are only noted may be innocent, and are only in the JSON.
fn suspects(status: &Status, look: Look) -> String {
    const COLUMNS: [Column; 6] = [
        text("UPSTREAM"),
        text("METHOD"),
        text("HOST"),
        text("PATH"),
        number("DEATHS", 0),
        text("STATE"),
    ];
    let suspects = status.suspects.iter().filter(|suspect| suspect.state != "noted");
    let rows: Vec<Row> = suspects
        .map(|suspect| {
            let state = match suspect.left_us {
                0 => "sent alone".to_owned(),
                us => format!("refused for {}", span(Duration::from_micros(us))),
            };
            let texts = [&suspect.upstream, &suspect.method, &suspect.host, &suspect.path]
                .map(|text| plain(text));
            let cells = texts
                .into_iter()
                .chain([suspect.deaths.to_string(), state])
                .map(Cell::from)
                .collect();
            Row { cells, below: None }
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let heading = "requests that seem to kill servers; clear them with `weir server forgive`";
    let heading = Tone::Bad.paint(heading, look.colour);
    format!("\n{heading}\n{}", table(&COLUMNS, &rows, 2, look.width, look.colour))
}

/// Returns text that a client sent, safe for a terminal, and not too long.
fn plain(text: &str) -> String {
    const CHARACTERS_MAX: usize = 40;
    let shown: String = text.chars().map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect();
    match shown.len() {
        0..=CHARACTERS_MAX => shown,
        _ => format!("{}...", &shown[..CHARACTERS_MAX - 3]),
    }
}

/// Returns one line, for a log.
pub(crate) fn line(status: &Status) -> String {
    let clients = &status.clients;
    let servers = || status.upstreams.iter().flat_map(|upstream| &upstream.servers);
    let up = servers().filter(|server| server.usable).count();
    format!(
        "up {}  servers {up}/{}  req/s {}  mean {}  busy {}  waiting {}  p50 {}  p99 {}  4xx {}  \
            5xx {}\n",
        span(Duration::from_secs_f64(status.uptime_seconds.clamp(0.0, 1e12))),
        servers().count(),
        rate(clients.window.requests_per_second_now),
        rate(clients.window.requests_per_second),
        count(clients.in_flight),
        count(clients.waiting),
        time(clients.window.latency.p50_us),
        time(clients.window.latency.p99_us),
        count(clients.window.answers.c4xx),
        count(clients.window.answers.c5xx)
    )
}

#[cfg(test)]
mod tests;
