//! Proves: the text follows the grammar of OpenMetrics 1.0.0 whatever the counters hold, and many
//! servers are no problem. How: a strict parser, over readings of plans of one server and of
//! hundreds; the time for 10,000 series is printed, not judged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_http::RequestError;
use weir_proxy::ending::UpstreamEnd;
use weir_proxy::plan::{ServerPlan, UpstreamPlan};

use super::*;
use crate::admin::reading::Reader;
use crate::reload::Told;

/// Returns a reading of servers whose workers do not run; names need escapes.
fn reading(servers: usize) -> (Arc<Plan>, Arc<Reading>) {
    let name = |at: usize| format!("host-{at}\"\\:90");
    let server =
        |at| ServerPlan { name: name(at), ..ServerPlan::new("", ([127, 0, 0, 1], 9).into()) };
    let upstream = UpstreamPlan {
        name: "app".to_owned(),
        servers: (0..servers).map(server).collect(),
        ..UpstreamPlan::default()
    };
    let plan = Arc::new(Plan { upstreams: vec![upstream], ..Plan::default() });
    let handle = weir_worker::Handle::of_views(&plan, 2);
    for view in handle.views() {
        view.counters.answer(200);
        view.counters.refusals.count(RequestError::HostMissing.into());
        // One worker gives back what another took.
        view.counters.in_flight.sub(1);
        for stats in &view.servers {
            stats.statuses.count(502);
            stats.closes.count(UpstreamEnd::Reset);
            [0, 63, 64, 5_000, 1 << 40].into_iter().for_each(|us| stats.latency.record(us));
        }
    }
    let reading = Reader::new(Arc::clone(&plan), handle).read_in(Duration::ZERO);
    (plan, reading)
}

fn text(servers: usize, format: Format) -> String {
    let (plan, reading) = reading(servers);
    let told = Told { generation: 1, last: None, listeners: Vec::new() };
    metrics(&reading, &plan, &Facts::default(), &told, Duration::from_millis(1500), format)
}

/// Returns name, labels and value of a sample line.
fn sample(line: &str) -> (&str, Vec<(&str, &str)>, f64) {
    let (series, value) = line.rsplit_once(' ').expect("a value");
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    assert!(name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_')), "{line}");
    let mut rest = labels.strip_suffix('}').expect("closed labels");
    let mut found = Vec::new();
    while !rest.is_empty() {
        let (label, after) = rest.split_once("=\"").expect("a label");
        let mut escaped = false;
        let end = after.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let end = end.expect("a closed value");
        found.push((label, &after[..end]));
        rest = after[end + 1..].strip_prefix(',').unwrap_or(&after[end + 1..]);
    }
    (name, found, value.parse().unwrap_or_else(|_| panic!("{line}")))
}

#[test]
fn the_grammar_is_kept() {
    let text = text(2, Format::OpenMetrics);
    let body = text.strip_suffix("# EOF\n").expect("the end is marked");
    let (mut families, mut series, mut current) =
        (BTreeSet::new(), BTreeSet::new(), (String::new(), String::new()));
    let mut histograms: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert!(families.insert(name.to_owned()), "{name} stands twice");
            current = (name.to_owned(), kind.to_owned());
            continue;
        }
        if let Some(rest) = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# UNIT ")) {
            assert!(rest.starts_with(&format!("{} ", current.0)), "{line}");
            continue;
        }
        assert!(series.insert(line.rsplit_once(' ').expect("a value").0), "{line} stands twice");
        let (name, labels, value) = sample(line);
        let suffix = name
            .strip_prefix(&current.0)
            .unwrap_or_else(|| panic!("{line} is not of {}", current.0));
        let allowed: &[&str] = match current.1.as_str() {
            "counter" => &["_total"],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_count", "_sum"],
            _ => &[""],
        };
        assert!(allowed.contains(&suffix) && value >= 0.0, "{line}");
        let names: BTreeSet<&str> = labels.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), labels.len(), "{line}");
        if suffix == "_bucket" || suffix == "_count" {
            let plain: Vec<_> = labels.iter().filter(|(name, _)| *name != "le").collect();
            histograms.entry(format!("{}{plain:?}", current.0)).or_default().push(value);
        }
    }
    assert!(
        families.len() > 40 && series.len() > 200,
        "{} families, {} series",
        families.len(),
        series.len()
    );
    for (name, counts) in histograms {
        assert!(counts.is_sorted() && counts.len() == 22, "{name}: {counts:?}");
        assert_eq!(counts[20], counts[21], "{name}: the last bucket holds all");
    }
    let unit = |end: &str| families.iter().filter(|name| name.ends_with(end)).count();
    assert!(unit("_seconds") >= 4 && unit("_bytes") >= 6 && unit("_us") == 0);
}

#[test]
fn bounds_are_exact() {
    let text = text(1, Format::OpenMetrics);
    let count = |le: &str| {
        let start = format!(
            "weir_server_response_seconds_bucket{{upstream=\"app\",\
                server=\"host-0\\\"\\\\:90\",le=\"{le}\"}} "
        );
        text.lines()
            .find_map(|line| line.strip_prefix(&start))
            .unwrap_or_else(|| panic!("{start}"))
            .to_owned()
    };
    // Two workers; 0 and 63 us, then 64 us, then 5 ms, and 13 days beyond all bounds.
    assert_eq!(
        ["0.000064", "0.000128", "0.008192", "33.554432", "+Inf"].map(count),
        ["4", "6", "8", "8", "10"]
    );
}

#[test]
fn ten_thousand_series() {
    let (plan, reading) = reading(130);
    let start = Instant::now();
    let told = Told { generation: 1, last: None, listeners: Vec::new() };
    let text =
        metrics(&reading, &plan, &Facts::default(), &told, Duration::ZERO, Format::OpenMetrics);
    let took = start.elapsed();
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    println!("{series} series, {} bytes: written in {took:?}", text.len());
    assert!(series >= 8_000, "{series}");
}
