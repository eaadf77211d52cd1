//! Invariants for any text. Called by the fuzz targets `config` and `units` and by property tests;
//! no network is touched.

use std::io;
use std::path::Path;

use crate::texts::shield;
use crate::units::{parse_size, parse_time, size_text, time_text};
use crate::{Config, Errors, Experts, World, parse_in};

/// Checks any bytes, for fuzzing and its smoke test: nothing panics, errors can be rendered, and an
/// accepted configuration prints KDL and JSON that read back to the same plan. No name is looked
/// up.
pub fn config(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let variables = |name: &str| (name == "V").then(|| "1${V}".to_owned());
    for name in ["fuzz.kdl", "fuzz.json"] {
        match parse_in(&text, name, World { variables: &variables, ..WORLD }) {
            Err(errors) => {
                assert!(!errors.render(false, 80).is_empty() && !errors.to_json().is_null())
            }
            Ok(config) => assert_reads_back(&config),
        }
    }
}

/// Checks any text as a time, a size, and the values of `shield`: times and sizes equal a plain
/// sum, without overflow, and read back as they are printed; any other accepted value is canonical.
pub fn units(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let time = parse_time(&text);
    assert_eq!(time.as_ref().ok(), summed(&text, time_scale, true).as_ref(), "{text:?}: {time:?}");
    let size = parse_size(&text);
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| format!("{text}B"));
    let expected = summed(plain.as_deref().unwrap_or(&text), size_scale, false);
    assert_eq!(size.as_ref().ok(), expected.as_ref(), "{text:?}: {size:?}");
    if let Ok(us) = time {
        assert_eq!(parse_time(&time_text(us)), Ok(us));
    }
    if let Ok(bytes) = size {
        assert_eq!(parse_size(&size_text(bytes)), Ok(bytes));
    }
    for (is, what) in [
        (shield::rate(&text), "rate"),
        (shield::by(&text), "by"),
        (shield::statuses(&text), "status"),
    ] {
        let Ok(canonical) = is else { continue };
        let again = match what {
            "rate" => shield::rate(&canonical),
            "by" => shield::by(&canonical),
            _ => shield::statuses(&canonical),
        };
        assert_eq!(again.as_ref(), Ok(&canonical), "{what} {text:?}");
        match what {
            "rate" => {
                let (count, us) = shield::rate_of(&canonical).expect("a canonical rate");
                assert!(
                    (1..=1_000_000).contains(&count) && [1, 60, 3600].contains(&(us / 1_000_000)),
                    "{text:?}"
                );
            }
            "by" => {
                let count = canonical.split(',').filter(|word| *word != "all").count();
                assert_eq!(shield::parts_of(&canonical).len(), count, "{text:?}");
            }
            _ => assert_eq!(
                shield::statuses_of(&canonical).len(),
                canonical.split(',').count(),
                "{text:?}"
            ),
        }
    }
}

/// Returns the sum of numbers with units, one or several; None: it is no such text, or exceeds u64.
fn summed(text: &str, scale: fn(&str) -> Option<u128>, several: bool) -> Option<u64> {
    let (mut rest, mut sum, mut count) = (text, 0u128, 0);
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit()).filter(|at| *at > 0)?;
        let end = rest[digits..]
            .find(|letter: char| !letter.is_ascii_alphabetic())
            .map_or(rest.len(), |at| digits + at);
        let number = rest[..digits].trim_start_matches('0');
        let number: u128 = if number.is_empty() { 0 } else { number.parse::<u64>().ok()?.into() };
        sum = sum.checked_add(number.checked_mul(scale(&rest[digits..end])?)?)?;
        (rest, count) = (&rest[end..], count + 1);
    }
    u64::try_from(sum).ok().filter(|_| count == 1 || several && count > 0)
}

fn time_scale(unit: &str) -> Option<u128> {
    Some(match unit {
        "us" => 1,
        "ms" => 1000,
        "s" => 1_000_000,
        "m" => 60 * 1_000_000,
        "h" => 3600 * 1_000_000,
        "d" => 86_400 * 1_000_000,
        _ => return None,
    })
}

fn size_scale(unit: &str) -> Option<u128> {
    let at = ["B", "KiB", "MiB", "GiB", "TiB"].iter().position(|known| *known == unit)?;
    Some(1024u128.pow(at as u32))
}

/// Texts for [`units`] to start from.
pub fn unit_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "1h30m",
        "250us",
        "0s",
        "18446744073709551615us",
        "64KiB",
        "512",
        "16777216TiB",
        "200/s",
        "5 / minute",
        "10/h",
    ];
    let others = ["client,header:x-key", "all", "query:a b,cookie:id", "401,4xx,500-503"];
    texts.into_iter().chain(others).map(|text| text.as_bytes().to_vec()).collect()
}

/// Checks a configuration without access to the world: every file is good.
///
/// # Errors
/// The mistakes in the text alone.
pub(crate) fn check(text: &str) -> Result<Config, Errors> {
    parse_in(text, "imported.kdl", WORLD)
}

const WORLD: World<'static> =
    World { variables: &|_| None, read: &any_file, experts: Experts::NOBODY };

/// Every file can be read and contains one name.
fn any_file(_: &Path) -> io::Result<Vec<u8>> {
    Ok(b"# names\nblocked.example\n".to_vec())
}

/// Panics unless both printed forms give the same plan and the same print.
pub fn assert_reads_back(config: &Config) {
    let plan = format!("{:?} {:?} {:?}", config.plan, config.workers, config.io);
    for (name, text) in
        [("printed.kdl", config.tree.to_kdl()), ("printed.json", config.tree.to_json())]
    {
        let again =
            parse_in(&text, name, WORLD).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
        assert_eq!(plan, format!("{:?} {:?} {:?}", again.plan, again.workers, again.io), "{text}");
        assert_eq!(config.tree.to_kdl(), again.tree.to_kdl(), "{text}");
    }
}
