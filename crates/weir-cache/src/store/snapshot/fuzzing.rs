//! Invariants for any bytes that are read as a snapshot. Called by the fuzz target `cache_snapshot`
//! and by tests; a violation panics.

use super::format::{HEAD_BYTES, Head, put_change};
use super::*;
use crate::bans::Target;
use crate::store::changes::Change;

const BYTES: u64 = 1 << 20;
const OBJECT_BYTES_MAX: u64 = 1 << 16;
const WRITTEN: Moment = Moment { wall_us: 1_795_824_000_000_000, now_us: 500_000_000 };
const READ: Moment = Moment { wall_us: WRITTEN.wall_us + 5_000_000, now_us: 700_000_000 };

/// Returns a store for untrusted snapshots.
pub(crate) fn store() -> Store {
    Store::new(
        Limits { bytes: BYTES, object_bytes_max: OBJECT_BYTES_MAX, variants_max: 4 },
        [7, 9],
        2,
    )
}

/// Returns the snapshot of a store with these changes behind it.
pub(crate) fn snapshot_of(store: &Store, moment: Moment, changes: &[Change]) -> Vec<u8> {
    let mut bytes = vec![0; PREFACE_BYTES];
    let mut answers = 0;
    for key in store.hottest(u64::MAX, || ()) {
        answers +=
            store.put_records(&key, moment, u64::MAX, &mut bytes).expect("memory takes all").0;
    }
    let preface =
        Preface { rules: 1, written_us: moment.wall_us, end: bytes.len() as u64, answers };
    bytes[..PREFACE_BYTES].copy_from_slice(&preface.encode());
    for change in changes {
        assert!(put_change(&mut bytes, change));
    }
    bytes
}

/// Reads a snapshot into a store: returns the outcome for each response, and the flaw that ended
/// it.
pub(crate) fn restore_all(
    store: &Store,
    bytes: &[u8],
    moment: Moment,
) -> (Vec<Restored>, Option<Flaw>) {
    let mut all = Vec::new();
    let flaw = read_into(store, bytes, moment, &mut all).err();
    (all, flaw)
}

fn read_into(
    store: &Store,
    bytes: &[u8],
    moment: Moment,
    all: &mut Vec<Restored>,
) -> Result<(), Flaw> {
    let preface = Preface::decode(bytes.first_chunk().ok_or(Flaw::Cut)?)?;
    let end = usize::try_from(preface.end).unwrap_or(usize::MAX);
    let changed = Changed::read(bytes.get(end..).ok_or(Flaw::Cut)?)?;
    let restoring = store.begin_restoring();
    let mut records = Records::new(&bytes[PREFACE_BYTES..end], &preface);
    while let Some(restored) =
        store.restore(&restoring, &mut records, (&preface, &changed), moment)?
    {
        all.push(restored);
    }
    assert_eq!(records.offset(), preface.end);
    Ok(())
}

/// Reads any bytes, unchanged and with corrected checksums, so that the checks behind these are
/// reached as well.
pub fn snapshot(data: &[u8]) {
    judge(data);
    let mut mended = data.to_vec();
    mend(&mut mended);
    judge(&mended);
}

fn judge(data: &[u8]) {
    let store = store();
    let (restored, flaw) = restore_all(&store, data, READ);
    let report = store.report();
    assert!(report.live_bytes <= BYTES && report.fill_bytes == 0, "{report:?}");
    let kept = restored.iter().filter(|one| **one == Restored::Kept).count() as u64;
    assert_eq!(report.objects, kept);
    // It writes everything that it accepts so that it is accepted again.
    let again = snapshot_of(&store, READ, &[]);
    let other = self::store();
    let (restored, second) = restore_all(&other, &again, READ);
    assert!(
        second.is_none() && restored.iter().all(|one| *one == Restored::Kept),
        "{restored:?} {second:?} {flaw:?}"
    );
    assert_eq!(snapshot_of(&other, READ, &[]), again);
}

/// Corrects the checksums, as far as records reach.
pub(crate) fn mend(bytes: &mut [u8]) {
    let Some(first) = bytes.first_chunk_mut::<PREFACE_BYTES>() else { return };
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| first[at + byte]));
    let preface =
        Preface { rules: number(12), written_us: number(20), end: number(28), answers: number(36) };
    *first = preface.encode();
    let mut at = PREFACE_BYTES;
    while let Some(head) = bytes
        .get_mut(at..)
        .filter(|_| (at as u64) < preface.end)
        .and_then(<[u8]>::first_chunk_mut::<HEAD_BYTES>)
    {
        let crc = crc32fast::hash(&head[..HEAD_BYTES - 4]);
        head[HEAD_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        let Ok(head) = Head::decode(head) else { return };
        let end =
            usize::try_from(head.record_bytes()).ok().and_then(|length| at.checked_add(length));
        let Some(record) = end.and_then(|end| bytes.get_mut(at..end)) else { return };
        let (record, said) = record.split_at_mut(record.len() - 4);
        said.copy_from_slice(&crc32fast::hash(record).to_le_bytes());
        at += record.len() + 4;
    }
}

/// Snapshots to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    let full = store();
    let texts: [(&str, &[u8], &str, &[u8]); 4] = [
        (
            "http://a/\napp\n",
            b"",
            "Date: Sat, 28 Nov 2026 00:00:00 GMT\r\nETag: \"1\"\r\n",
            b"hello",
        ),
        ("http://a/\napp\n", b"accept-encoding=gzip\nx\n", "Vary: Accept-Encoding, X\r\n", b""),
        ("https://b/x?y\napp\nx=1\n", b"", "Cache-Groups: \"a\"\r\n", &[7; 5000]),
        ("http://c/\napp\n", b"", "", b"c"),
    ];
    for (at, (key, selector, lines, body)) in texts.into_iter().enumerate() {
        let terms = Terms {
            status: 200,
            received_us: 400_000_000,
            received_s: 1_795_823_900,
            initial_age_us: 0,
            lifetime_s: 3600 * at as u32,
            lifetime_source: crate::freshness::LifetimeSource::MaxAge,
            stale_while_revalidate_s: 0,
            stale_if_error_s: if at == 0 { 3600 } else { 0 },
            no_cache: false,
            forbids_stale: false,
            immutable: at == 1,
            has_validator: at == 0,
        };
        let selector = Selector::read(selector).expect("a selector");
        let tags = if at == 2 { vec![b"a".to_vec(), b"b".to_vec()] } else { Vec::new() };
        let source = SourceMark { connection: at as u64, position: 1 };
        let draft =
            Draft { key: key.as_bytes(), selector, lines: lines.as_bytes(), terms, tags, source };
        let fill = full.lone_fill(draft.key);
        let mut collector = full.collect(None).expect("it is small");
        collector.push(body).expect("room");
        let pending = full.complete(&fill, draft, collector).map_err(|(why, _)| why).expect("room");
        full.insert(pending, WRITTEN.now_us).expect("room");
    }
    let change = |target, is_soft| Change { target, is_soft };
    let changes = [
        change(Target::Url(b"http://c/".to_vec()), false),
        change(Target::Tag { tag: b"z".to_vec(), host: Some(b"a".to_vec()) }, true),
        change(Target::Source(SourceMark { connection: 9, position: 9 }), false),
        change(Target::Prefix(b"http://d/".to_vec()), true),
        change(Target::Host(b"e".to_vec()), false),
    ];
    let empty = snapshot_of(&store(), WRITTEN, &[]);
    vec![snapshot_of(&full, WRITTEN, &[]), snapshot_of(&full, WRITTEN, &changes), empty]
}
