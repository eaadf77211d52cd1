//! The file that keeps bans over a restart: a line of JSON each, for people and programs.
//!
//! Written as a whole into a file beside it that then takes its name, so that a crash leaves the old one or the new one. Called by the
//! keeper (`bans`). Bound: [`FILE_BYTES_MAX`]; a line that can't be read is left out and reported by its number.

use std::fs::{File, OpenOptions, rename};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use weir_proxy::shield::bans::Block;

use super::ledger::Ban;

/// More is no file of ours: a million bans with long reasons.
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

/// What a file has, and the numbers of lines that can't be read.
type Kept = (Vec<(Block, Ban)>, Vec<usize>);

/// Reads a file. One that is not there has nothing.
pub(super) fn read(path: &Path) -> io::Result<Kept> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), Vec::new())),
        Err(error) => return Err(error),
    };
    let (mut bans, mut broken) = (Vec::new(), Vec::new());
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty()) {
        match parsed(line) {
            Some(ban) => bans.push(ban),
            None => broken.push(number + 1),
        }
    }
    Ok((bans, broken))
}

fn parsed(line: &[u8]) -> Option<(Block, Ban)> {
    let Line { network, since, until, count, reason, forced, forwarded } = serde_json::from_slice(line).ok()?;
    let ban = Ban { since_s: since, until_s: until, count, reason, forced, forwarded };
    Some((Block::read(&network, 32, 128)?, ban))
}

/// The text of a file with these.
pub(super) fn text<'a>(bans: impl Iterator<Item = (Block, &'a Ban)>) -> Vec<u8> {
    let mut text = Vec::new();
    for (block, ban) in bans {
        let line = Line {
            network: block.to_string(),
            since: ban.since_s,
            until: ban.until_s,
            count: ban.count,
            reason: ban.reason.clone(),
            forced: ban.forced,
            forwarded: ban.forwarded,
        };
        // Texts and numbers can always be written to memory.
        if serde_json::to_writer(&mut text, &line).is_ok() {
            text.push(b'\n');
        }
    }
    text
}

/// Puts a text in the place of what is there.
pub(super) fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    // What a crash has left, or somebody else has put there, is not written to.
    match std::fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    file.write_all(text)?;
    file.sync_data()?;
    rename(&beside, path)
}

#[cfg(test)]
mod tests {
    //! Proves: what is written is read again, and a broken line costs that line. How: a file in a directory of its own.

    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let directory = std::env::temp_dir().join(format!("weir-bans-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("bans");
        assert_eq!(read(&path).unwrap(), (Vec::new(), Vec::new()), "there is none yet");
        let block = |text| Block::read(text, 32, 128).unwrap();
        let ban = |count| Ban {
            since_s: 1,
            until_s: 2,
            count,
            reason: "limit \"a\"\n".to_owned(),
            forced: count == 2,
            forwarded: count == 3,
        };
        let bans = [(block("192.0.2.1"), ban(1)), (block("2001:db8::/48"), ban(2)), (block("2001:db8::1"), ban(3))];
        write(&path, &text(bans.iter().map(|(block, ban)| (*block, ban)))).unwrap();
        assert_eq!(read(&path).unwrap(), (bans.to_vec(), Vec::new()));
        let lines = std::fs::read_to_string(&path).unwrap();
        let whole: Vec<&str> = lines.lines().collect();
        assert_eq!(whole.len(), 3, "{lines}");
        let broken = format!("{}\n{{\n\n{}\n{}", whole[0], whole[1].replace("/48", "/480"), &whole[2][..20]);
        std::fs::write(&path, broken).unwrap();
        assert_eq!(read(&path).unwrap(), (bans[..1].to_vec(), vec![2, 4, 5]));
        // A link in the place of the new one is not followed.
        let other = directory.join("other");
        std::fs::write(&other, b"mine").unwrap();
        std::os::unix::fs::symlink(&other, directory.join("bans.new")).unwrap();
        write(&path, b"").unwrap();
        assert_eq!(std::fs::read(&other).unwrap(), b"mine");
        assert_eq!(read(&path).unwrap(), (Vec::new(), Vec::new()));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
