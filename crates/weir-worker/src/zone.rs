//! The time zone of the access log: what `TZ` says, as other programs of the host understand it
//! (POSIX.1-2024, section 8.3; tzset(3)), otherwise that of the system. Called by the log writer,
//! once at its start. Bound: [`FILE_BYTES_MAX`] of a file.

use std::ffi::OsStr;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use weir_io::open_regular;

/// Where the rules of zones are, without `TZDIR`.
const DIRECTORY: &str = "/usr/share/zoneinfo";
/// Bytes of a file with the rules of one zone; the largest one has about 4 KiB.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The names of UTC. It needs no file: small images have none.
const UTC: [&str; 5] = ["UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z"];

/// A time zone.
#[derive(Debug)]
pub(crate) enum Zone {
    /// That of the system, which may change while weir runs.
    System,
    /// The zone that `TZ` names.
    Told(TimeZone),
}

impl Zone {
    /// Reads the environment: the zone, and what is wrong with it. An unknown zone is UTC, as for
    /// other programs.
    pub(crate) fn read() -> (Zone, Option<String>) {
        let directory = std::env::var_os("TZDIR").filter(|path| !path.is_empty());
        let directory = directory.map_or_else(|| PathBuf::from(DIRECTORY), PathBuf::from);
        Zone::of(std::env::var_os("TZ").as_deref(), &directory)
    }

    /// The zone of this value of `TZ`, with the rules in this directory.
    fn of(value: Option<&OsStr>, directory: &Path) -> (Zone, Option<String>) {
        let Some(value) = value else { return (Zone::System, None) };
        let text = value.to_string_lossy();
        let name = text.strip_prefix(':').unwrap_or(&text);
        if name.is_empty() || UTC.contains(&name) {
            return (Zone::Told(TimeZone::UTC), None);
        }
        // An absolute path takes the place of the directory.
        if let Some(zone) = file(&directory.join(name), name).or_else(|| TimeZone::posix(name).ok())
        {
            return (Zone::Told(zone), None);
        }
        let why = format!(
            "unknown TZ={text}: the access log uses UTC; {} has the names (package tzdata)",
            directory.display()
        );
        (Zone::Told(TimeZone::UTC), Some(why))
    }

    /// Seconds that its clocks are ahead of UTC at this time.
    pub(crate) fn offset_s(&self, now: Timestamp) -> i32 {
        match self {
            Zone::System => TimeZone::system().to_offset(now).seconds(),
            Zone::Told(zone) => zone.to_offset(now).seconds(),
        }
    }
}

/// The zone with its rules (RFC 9636) in a file; None: they can't be read.
fn file(path: &Path, name: &str) -> Option<TimeZone> {
    let mut bytes = Vec::new();
    open_regular(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    TimeZone::tzif(name, &bytes).ok()
}

#[cfg(test)]
mod tests {
    //! Proves: each way to name a zone is understood, and other values are reported. How: two
    //! moments, in summer and in winter, and a directory of rules that the test makes, so that it
    //! needs no package.

    use super::*;

    /// The rules of a zone without summer time, in version 1 and 2 of RFC 9636.
    fn rules(offset_s: i32, posix: &str) -> Vec<u8> {
        let block = |version: u8| {
            let mut out = b"TZif".to_vec();
            out.push(version);
            out.extend([0; 15]);
            // One type of local time, its abbreviation in four bytes.
            for count in [0u32, 0, 0, 0, 1, 4] {
                out.extend(count.to_be_bytes());
            }
            out.extend(offset_s.to_be_bytes());
            out.extend([0, 0]);
            out.extend(b"XXX\0");
            out
        };
        [block(b'2'), block(b'2'), format!("\n{posix}\n").into_bytes()].concat()
    }

    #[test]
    fn zones_are_understood_as_elsewhere() {
        let directory = std::env::temp_dir().join(format!("weir-zone-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("Asia")).unwrap();
        let kolkata = directory.join("Asia/Kolkata");
        std::fs::write(&kolkata, rules(19_800, "XXX-5:30")).unwrap();
        std::fs::write(directory.join("notes"), "no rules").unwrap();
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, directory.join("pipe"), kind, mode, 0).unwrap();
        let [winter, summer] =
            [1_795_977_600, 1_782_864_000].map(|second| Timestamp::from_second(second).unwrap());
        let absolute = kolkata.display().to_string();
        for (text, of_winter, of_summer, is_known) in [
            ("Asia/Kolkata", 19_800, 19_800, true),
            (":Asia/Kolkata", 19_800, 19_800, true),
            (&absolute, 19_800, 19_800, true),
            ("EST5EDT,M3.2.0,M11.1.0", -18_000, -14_400, true),
            ("CET-1CEST,M3.5.0,M10.5.0/3", 3_600, 7_200, true),
            ("<+0330>-3:30", 12_600, 12_600, true),
            ("UTC0", 0, 0, true),
            ("UTC", 0, 0, true),
            (":Etc/UTC", 0, 0, true),
            ("GMT", 0, 0, true),
            ("Etc/GMT", 0, 0, true),
            ("Z", 0, 0, true),
            ("", 0, 0, true),
            ("Nonsense/Zone", 0, 0, false),
            ("notes", 0, 0, false),
            ("Asia", 0, 0, false),
            // Opening it would block until a writer comes.
            ("pipe", 0, 0, false),
        ] {
            let (zone, why) = Zone::of(Some(OsStr::new(text)), &directory);
            assert_eq!(
                (zone.offset_s(winter), zone.offset_s(summer)),
                (of_winter, of_summer),
                "{text}"
            );
            assert_eq!(why.is_none(), is_known, "{text}: {why:?}");
        }
        let (_, why) = Zone::of(Some(OsStr::new("Nonsense/Zone")), &directory);
        assert!(why.unwrap().starts_with("unknown TZ=Nonsense/Zone: the access log uses UTC"));
        assert!(matches!(Zone::of(None, &directory), (Zone::System, None)));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
