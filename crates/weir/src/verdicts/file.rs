//! A verdict as a line of JSON, for people and programs. Pure.

use serde::{Deserialize, Serialize};
use weir_proxy::cross::doubt::Doubt;
use weir_proxy::cross::verdict::Verdict;

use super::{Entry, Key};

/// A line. Times are seconds since 1970.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    upstream: String,
    server: String,
    verdict: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    doubt: Option<String>,
    since: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gone: Option<u64>,
}

/// Parses a line. None: it is malformed.
pub(super) fn parsed(line: &[u8]) -> Option<(Key, Entry)> {
    let Line { upstream, server, verdict, doubt, since, gone } =
        serde_json::from_slice(line).ok()?;
    let verdict = Verdict::read(&verdict, doubt.as_deref())?;
    Some(((upstream, server), Entry { verdict, since_s: since, gone_s: gone }))
}

/// Appends the line of a verdict to a text.
pub(super) fn append(text: &mut Vec<u8>, (upstream, server): &Key, entry: &Entry) {
    let Entry { verdict, since_s, gone_s } = entry;
    let line = Line {
        upstream: upstream.clone(),
        server: server.clone(),
        verdict: verdict.word().to_owned(),
        doubt: verdict.doubt().map(|doubt| Doubt::word(doubt).to_owned()),
        since: *since_s,
        gone: *gone_s,
    };
    // Texts and numbers can always be written to memory.
    if serde_json::to_writer(&mut *text, &line).is_ok() {
        text.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a written verdict is one line and can be read again; any bytes are a line or not.
    //! How: properties.

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn what_is_written_is_read_again(
            key in ("\\PC{0,12}", "(\\PC|[\n\"\\\\]){0,12}"),
            doubt in prop::option::of(0..Doubt::ALL.len()),
            is_unfit in any::<bool>(),
            (since_s, gone_s) in any::<(u64, Option<u64>)>(),
        ) {
            let doubt = doubt.map(|at| Doubt::ALL[at]);
            let verdict = match doubt {
                Some(doubt) if is_unfit => Verdict::Unfit(doubt),
                doubt => Verdict::Surplus(doubt),
            };
            let entry = Entry { verdict, since_s, gone_s };
            let mut text = Vec::new();
            append(&mut text, &key, &entry);
            prop_assert_eq!(text.iter().position(|byte| *byte == b'\n'), Some(text.len() - 1));
            prop_assert_eq!(parsed(text.trim_ascii_end()), Some((key, entry)));
        }

        #[test]
        fn any_bytes_are_a_line_or_none(line in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = parsed(&line);
        }
    }
}
