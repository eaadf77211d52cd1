//! The file that keeps bans over a restart: a line of JSON each, for people and programs.
//!
//! Called by the keeper (`bans`), which writes it ([`lines::write`]). Bound: [`FILE_BYTES_MAX`].

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use weir_proxy::shield::bans::Block;

use super::ledger::Ban;
use crate::lasting::lines::{self, Broken};

/// Largest file that can be weir's: a million bans with long reasons.
const FILE_BYTES_MAX: u64 = 512 << 20;

/// A line. Times are seconds since 1970.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    network: String,
    since: u64,
    until: u64,
    count: u32,
    #[serde(default)]
    reason: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    forced: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    forwarded: bool,
}

/// Reads a file, one ban after the other. A missing file has none; a file that another user may
/// have written is an error.
pub(super) fn read(path: &Path, mut each: impl FnMut(Block, Ban)) -> io::Result<Broken> {
    lines::read(path, FILE_BYTES_MAX, |line| {
        parsed(line).map(|(block, ban)| each(block, ban)).is_some()
    })
}

fn parsed(line: &[u8]) -> Option<(Block, Ban)> {
    let Line { network, since, until, count, reason, forced, forwarded } =
        serde_json::from_slice(line).ok()?;
    let ban = Ban { count, forced, forwarded, ..Ban::new(since, until, reason) };
    Some((Block::read(&network, 32, 128)?, ban))
}

/// Appends the line of a ban to a text.
pub(super) fn append(text: &mut Vec<u8>, block: Block, ban: &Ban) {
    let line = Line {
        network: block.to_string(),
        since: ban.since_s(),
        until: ban.until_s(),
        count: ban.count,
        reason: ban.reason().to_owned(),
        forced: ban.forced,
        forwarded: ban.forwarded,
    };
    // Texts and numbers can always be written to memory.
    if serde_json::to_writer(&mut *text, &line).is_ok() {
        text.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    //! Proves: what is written can be read again, and a broken line costs only that line. How: a
    //! file in a separate directory.

    use proptest::prelude::*;

    use super::*;
    use crate::lasting::lines::write;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        /// Any line that is read as a ban is written as one line that is read as the same ban.
        #[test]
        fn any_line_that_is_read_is_written_and_read_again(
            network in "([0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}|[0-9a-f:]{2,9}|\
                ::ffff:1\\.2\\.3\\.4)(/[0-9]{1,3})?",
            (since, until) in any::<(u64, u64)>(),
            count in any::<u32>(),
            reason in "(\\PC|\\\\[nu\"]|[\n\"]){0,12}",
            more in "(,\"forced\":(true|false|1))?(,\"other\":[0-9])?(,\"forwarded\":true)?",
            tail in "( |\t|\r|x)?",
        ) {
            let reason = serde_json::to_string(&reason).unwrap();
            let line = format!(
                "{{\"network\":\"{network}\",\"since\":{since},\"until\":{until},\
                    \"count\":{count},\"reason\":{reason}{more}}}{tail}"
            );
            assert_reads_back(line.as_bytes());
        }

        #[test]
        fn any_bytes_are_a_line_or_none(line in prop::collection::vec(any::<u8>(), 0..80)) {
            assert_reads_back(&line);
        }
    }

    fn assert_reads_back(line: &[u8]) {
        let Some((block, ban)) = parsed(line.trim_ascii_end()) else { return };
        let mut text = Vec::new();
        append(&mut text, block, &ban);
        let end = text.iter().position(|byte| *byte == b'\n');
        assert_eq!(end, Some(text.len() - 1), "{}", text.escape_ascii());
        assert_eq!(parsed(text.trim_ascii_end()), Some((block, ban)), "{}", text.escape_ascii());
    }

    #[test]
    fn what_is_written_is_read_again() {
        let directory = std::env::temp_dir().join(format!("weir-bans-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("bans");
        let all = || {
            let mut bans = Vec::new();
            read(&path, |block, ban| bans.push((block, ban))).map(|broken| (bans, broken)).unwrap()
        };
        assert_eq!(all(), (Vec::new(), Broken::default()), "there is none yet");
        let block = |text| Block::read(text, 32, 128).unwrap();
        let ban = |count| Ban {
            count,
            forced: count == 2,
            forwarded: count == 3,
            ..Ban::new(1, 2, "limit \"a\"\n")
        };
        let bans = [
            (block("192.0.2.1"), ban(1)),
            (block("2001:db8::/48"), ban(2)),
            (block("2001:db8::1"), ban(3)),
        ];
        let mut left = bans.iter();
        write(&path, |text| {
            left.next().into_iter().for_each(|(block, ban)| append(text, *block, ban))
        })
        .unwrap();
        assert_eq!(all(), (bans.to_vec(), Broken::default()));
        let lines = std::fs::read_to_string(&path).unwrap();
        let whole: Vec<&str> = lines.lines().collect();
        assert_eq!(whole.len(), 3, "{lines}");
        let broken =
            format!("{}\n{{\n\n{}\n{}", whole[0], whole[1].replace("/48", "/480"), &whole[2][..20]);
        std::fs::write(&path, broken).unwrap();
        assert_eq!(all(), (bans[..1].to_vec(), Broken { count: 3, first: 2 }));
        // A file that others may have written is not trusted.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        std::fs::set_permissions(&path, open).unwrap();
        let refused = read(&path, |_, _| panic!("a ban that is not ours")).unwrap_err();
        assert!(refused.to_string().contains("others may write it"), "{refused}");
        // A link in the place of the new file is not followed.
        let other = directory.join("other");
        std::fs::write(&other, b"mine").unwrap();
        std::os::unix::fs::symlink(&other, directory.join("bans.new")).unwrap();
        write(&path, |_| {}).unwrap();
        assert_eq!(std::fs::read(&other).unwrap(), b"mine");
        assert_eq!(all(), (Vec::new(), Broken::default()));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
