//! The store in status, metrics and `weir cache`: types of the document, and functions that fill
//! them. Called by `status`, `metrics` and `routes`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weir_cache::{
    By, Missed, NotKept, NotStored, Report, Served, SnapshotFigures, Store, Top, url_of,
};
use weir_proxy::observe::histogram::Snapshot;
use weir_proxy::plan::Plan;

use super::document::Latency;
use super::exposition::{Exposition, Type};
use super::metrics::histogram;
use super::status::latency;

/// `GET /v1/cache`, and `cache` of the status, where it has no version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Cache {
    pub(crate) version: u32,
    #[serde(flatten)]
    pub(crate) figures: CacheFigures,
}

/// How full the store is, and what has happened since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CacheFigures {
    /// Limit of the bytes for everything.
    pub(crate) size_bytes: u64,
    /// Bytes in use.
    pub(crate) bytes: u64,
    /// Of these, bytes of stored responses.
    pub(crate) stored_bytes: u64,
    /// Of these, bytes of responses that are being fetched.
    pub(crate) fetch_bytes: u64,
    /// Keys with responses, and responses.
    pub(crate) keys: u64,
    pub(crate) answers: u64,
    /// Fetches under way.
    pub(crate) fetches: u64,
    /// Purges that have not yet been compared with every response.
    pub(crate) purges: u64,
    /// Requests by their result.
    pub(crate) requests: BTreeMap<String, u64>,
    /// Bytes of bodies that came from the store.
    pub(crate) served_bytes: u64,
    /// Responses that were stored.
    pub(crate) stored: u64,
    /// Responses that were not stored, by reason.
    pub(crate) not_stored: BTreeMap<String, u64>,
    /// Stored responses that are gone, by reason.
    pub(crate) gone: BTreeMap<String, u64>,
    /// URLs that requests have changed and so invalidated.
    pub(crate) invalidations: u64,
    /// Connections that turned out to be out of step.
    pub(crate) withdrawals: u64,
    /// How long responses from the store took, since the start.
    pub(crate) hit_latency: Latency,
    /// What is kept over a restart; None: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) snapshot: Option<Kept>,
}

/// The snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Kept {
    /// When the last one was written, Unix time in seconds; 0: not yet.
    pub(crate) written: u64,
    pub(crate) answers: u64,
    pub(crate) bytes: u64,
    /// Responses that were stored again at the start, and those that were not.
    pub(crate) restored: u64,
    pub(crate) left_out: u64,
    /// Why the snapshot is missing, or was only partly used; empty: all is well.
    pub(crate) problem: String,
}

/// `GET /v1/cache/top`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CacheTop {
    pub(crate) version: u32,
    pub(crate) keys: Vec<CachedKey>,
    /// Keys with the most requests to servers, if the query is for these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) missed: Vec<MissedKey>,
}

/// A key with requests to servers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MissedKey {
    /// The front of a long URL.
    pub(crate) url: String,
    /// The rest of its key.
    pub(crate) upstream: String,
    /// Number of requests, since the start.
    pub(crate) misses: u64,
    /// Largest error of that number, which may be too high.
    pub(crate) over: u64,
    /// Why the last request went to a server, or why its response was not stored.
    pub(crate) why: String,
}

/// One of the keys at the top.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CachedKey {
    pub(crate) url: String,
    /// The rest of its key.
    pub(crate) upstream: String,
    /// Status of the newest response.
    pub(crate) status: u16,
    /// Its responses.
    pub(crate) answers: u64,
    pub(crate) hits: u64,
    pub(crate) bytes: u64,
}

/// The result of `POST /v1/cache/purge`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Purged {
    pub(crate) version: u32,
    /// URLs, prefixes, hosts or tags, as keys and responses have them; none: everything.
    pub(crate) what: Vec<String>,
    /// Marked stale instead of removed.
    pub(crate) soft: bool,
}

/// `GET /v1/cache/explain`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Explained {
    pub(crate) version: u32,
    /// What would happen to the request, a word.
    pub(crate) verdict: String,
    /// The reasons, in the order of the decisions.
    pub(crate) lines: Vec<Line>,
}

/// A line of an explanation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) text: String,
}

/// Returns the store; None: no route has `cache`.
pub(crate) fn store(plan: &Plan) -> Option<&Arc<Store>> {
    plan.cache.as_ref()?.store.as_ref()
}

/// Returns the figures of the store, if any, with the times of hits.
pub(crate) fn figures(plan: &Plan, hits: &Snapshot) -> Option<CacheFigures> {
    let report = store(plan)?.report();
    let gone =
        [("evicted", report.evicted), ("purged", report.purged), ("withdrawn", report.withdrawn)];
    Some(CacheFigures {
        size_bytes: report.limit_bytes,
        bytes: report.live_bytes,
        stored_bytes: report.stored_bytes,
        fetch_bytes: report.fill_bytes,
        keys: report.keys,
        answers: report.objects,
        fetches: report.fills,
        purges: report.bans,
        requests: by_word(Served::ALL.map(Served::word), report.served),
        served_bytes: report.served_bytes,
        stored: report.stored,
        not_stored: not_stored(&report),
        gone: gone.into_iter().map(|(word, count)| (word.to_owned(), count)).collect(),
        invalidations: report.invalidations,
        withdrawals: report.withdrawals,
        hit_latency: latency(hits),
        snapshot: report.snapshot.map(snapshot),
    })
}

fn snapshot(figures: SnapshotFigures) -> Kept {
    let SnapshotFigures { written_s, answers, bytes, restored, left_out, problem } = figures;
    Kept { written: written_s, answers, bytes, restored, left_out, problem }
}

fn by_word<const N: usize>(words: [&str; N], counts: [u64; N]) -> BTreeMap<String, u64> {
    words.into_iter().map(str::to_owned).zip(counts).collect()
}

/// Returns why responses were not stored; a word that is used at the head and at the end of a body
/// counts once.
fn not_stored(report: &Report) -> BTreeMap<String, u64> {
    let mut all = by_word(NotStored::ALL.map(NotStored::word), report.not_stored);
    for (why, count) in NotKept::ALL.into_iter().zip(report.not_kept) {
        *all.entry(why.word().to_owned()).or_default() += count;
    }
    all
}

/// Returns URL and upstream of a key, for people.
fn parts_of(key: &[u8]) -> (String, String) {
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    (text(url_of(key)), key.split(|byte| *byte == b'\n').nth(1).map(text).unwrap_or_default())
}

/// Returns the keys with the most requests to servers.
pub(crate) fn missed(store: &Store, most: usize) -> Vec<MissedKey> {
    let row = |missed: Missed| {
        let (url, upstream) = parts_of(&missed.key);
        MissedKey {
            url,
            upstream,
            misses: missed.misses,
            over: missed.over,
            why: missed.why.to_owned(),
        }
    };
    store.missed(most).into_iter().map(row).collect()
}

/// Returns the keys at the top.
pub(crate) fn top(store: &Store, by: By, most: usize) -> Vec<CachedKey> {
    let row = |Top { key, variants, hits, bytes, status }: Top| {
        let (url, upstream) = parts_of(&key);
        CachedKey { url, upstream, status, answers: variants as u64, hits, bytes }
    };
    store.top(by, most).into_iter().map(row).collect()
}

/// Adds the families of metrics about it; none without a store.
pub(crate) fn metrics(text: &mut Exposition, plan: &Plan, hits: &Snapshot) {
    let Some(cache) = figures(plan, hits) else { return };
    let mut counts =
        |name: &str, label: &'static str, help: &str, counts: &BTreeMap<String, u64>| {
            text.family(name, Type::Counter, help);
            counts.iter().for_each(|(word, count)| text.sample(&[(label, word)], count));
        };
    counts(
        "cache_requests",
        "result",
        "Requests of routes with `cache`, by result.",
        &cache.requests,
    );
    counts(
        "cache_not_stored",
        "why",
        "Responses of routes with `cache` that weir did not store, by reason.",
        &cache.not_stored,
    );
    counts(
        "cache_gone",
        "why",
        "Stored responses that are gone: evicted for lack of room, found purged, or withdrawn \
            because their connection was out of step.",
        &cache.gone,
    );
    let totals = [
        ("cache_stored", "Responses that weir stored.", cache.stored),
        (
            "cache_served_bytes",
            "Bytes of bodies that weir served from the store.",
            cache.served_bytes,
        ),
        (
            "cache_invalidations",
            "URLs that weir invalidated because a request changed them.",
            cache.invalidations,
        ),
        (
            "cache_withdrawals",
            "Connections that proved out of step, whose stored responses were withdrawn.",
            cache.withdrawals,
        ),
    ];
    for (name, help, value) in totals {
        text.family(name, Type::Counter, help);
        text.sample(&[], value);
    }
    let help = "Time from the receipt of a request to the end of the turn in which its worker \
        answered it from the store.";
    text.family("cache_hit_duration_seconds", Type::Histogram, help);
    histogram(text, &[], hits);
    let gauges = [
        ("cache_limit_bytes", "Limit of bytes stored, sent or fetched: `size`.", cache.size_bytes),
        ("cache_live_bytes", "Bytes stored, sent or fetched.", cache.bytes),
        ("cache_fetch_bytes", "Bytes of responses being fetched.", cache.fetch_bytes),
        ("cache_stored_bytes", "Bytes of stored responses.", cache.stored_bytes),
        ("cache_keys", "Keys with responses.", cache.keys),
        ("cache_answers", "Stored responses.", cache.answers),
        ("cache_fetches", "Fetches for the store in progress.", cache.fetches),
        (
            "cache_purges",
            "Purges for which weir has not yet checked all stored responses.",
            cache.purges,
        ),
    ];
    for (name, help, value) in gauges {
        text.family(name, Type::Gauge, help);
        text.sample(&[], value);
    }
    if let Some(snapshot) = &cache.snapshot {
        snapshot_metrics(text, snapshot);
    }
}

/// Adds the families of metrics about the snapshot.
fn snapshot_metrics(text: &mut Exposition, snapshot: &Kept) {
    let gauges = [
        (
            "cache_snapshot_timestamp_seconds",
            "When the last snapshot was written, seconds since 1970; 0 if there is none.",
            snapshot.written,
        ),
        ("cache_snapshot_bytes", "Bytes of the last snapshot.", snapshot.bytes),
        ("cache_snapshot_answers", "Responses in the last snapshot.", snapshot.answers),
        (
            "cache_restored_answers",
            "Responses that weir restored from a snapshot at the start.",
            snapshot.restored,
        ),
    ];
    for (name, help, value) in gauges {
        text.family(name, Type::Gauge, help);
        text.sample(&[], value);
    }
}

#[cfg(test)]
mod tests {
    //! Proves: counts arrive by word. How: a store with known counts.

    use weir_proxy::observe::histogram::Histogram;
    use weir_proxy::plan::CachePlan;

    use super::*;
    use crate::admin::exposition::Format;

    #[test]
    fn counts_arrive_by_word() {
        let mut cache =
            CachePlan { size_bytes: 1 << 20, object_bytes_max: 1 << 18, ..CachePlan::default() };
        let hits = Histogram::default();
        hits.record_many(100, 3);
        let hits = hits.snapshot();
        assert_eq!(figures(&Plan { cache: Some(cache.clone()), ..Plan::default() }, &hits), None);
        cache.open([1, 2], 2);
        let plan = Plan { cache: Some(cache), ..Plan::default() };
        let kept = store(&plan).expect("a store");
        kept.count_served(Served::Hit, 10, 0);
        kept.count_served(Served::Hit, 5, 1);
        kept.count_served(Served::Miss, 0, 1);
        kept.count_not_stored(NotStored::BodyTooLarge);
        kept.count_not_kept(NotKept::TooLarge);
        kept.count_not_kept(NotKept::Purged);
        let figures = figures(&plan, &hits).expect("figures");
        assert_eq!((figures.hit_latency.count, figures.hit_latency.max_us), (3, Some(100)));
        assert_eq!(
            (figures.requests["hit"], figures.requests["miss"], figures.served_bytes),
            (2, 1, 15)
        );
        assert_eq!((figures.not_stored["body-too-large"], figures.not_stored["purged"]), (2, 1));
        assert_eq!((figures.size_bytes, figures.bytes, figures.answers), (1 << 20, 0, 0));
        let mut text = Exposition::new(Format::OpenMetrics);
        metrics(&mut text, &plan, &hits);
        let text = text.finish();
        for line in [
            "weir_cache_requests_total{result=\"hit\"} 2\n",
            "weir_cache_not_stored_total{why=\"body-too-large\"} 2\n",
            "weir_cache_served_bytes_total 15\n",
            "weir_cache_hit_duration_seconds_bucket{le=\"0.000128\"} 3\n",
            "weir_cache_hit_duration_seconds_count 3\n",
            "weir_cache_limit_bytes 1048576\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        assert!(top(kept, By::Hits, 10).is_empty());
        kept.count_miss(b"http://a.test/x\napp", "uri-miss");
        kept.note_answer(b"http://a.test/x\napp", Some("private"));
        let MissedKey { url, upstream, misses, over, why } = missed(kept, 10).remove(0);
        assert_eq!(
            (&*url, &*upstream, misses, over, &*why),
            ("http://a.test/x", "app", 1, 0, "private")
        );
    }
}
