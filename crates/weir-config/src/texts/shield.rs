//! Checks of text values of `shield`: rates, and the consequences of exceeding a limit. Called
//! through the option table.

use weir_proxy::plan::Over;
use weir_proxy::shield::by::{PARTS_MAX, Part};
use weir_proxy::upstream::health::Codes;

use super::codes;

/// The largest count of a rate.
const COUNT_MAX: u32 = 1_000_000;

/// The most bytes in the name of an interface (IFNAMSIZ of net/if.h, without the end).
const INTERFACE_BYTES_MAX: usize = 15;

/// The name of a network interface, as the kernel accepts it (dev_valid_name).
pub(crate) fn interface(text: &str) -> Result<String, String> {
    let is_odd = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    if text.is_empty()
        || text.len() > INTERFACE_BYTES_MAX
        || [".", ".."].contains(&text)
        || text.contains(is_odd)
    {
        return Err(format!(
            "`{text}` is not the name of a network interface: 1 to {INTERFACE_BYTES_MAX} bytes \
                without spaces, `/` and `:`; `ip link` lists them"
        ));
    }
    Ok(text.to_owned())
}

/// A number in a time.
pub(crate) fn rate(text: &str) -> Result<String, String> {
    let expected = || format!("`{text}` is not a rate: write one such as 200/s, 5/min or 10/h");
    let (count, unit) = text.split_once('/').ok_or_else(expected)?;
    let unit = match unit.trim() {
        "s" | "sec" | "second" => "s",
        "m" | "min" | "minute" => "min",
        "h" | "hour" => "h",
        _ => return Err(expected()),
    };
    let count = count.trim();
    if count.is_empty() || !count.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(expected());
    }
    match count.parse() {
        Ok(count @ 1..=COUNT_MAX) => Ok(format!("{count}/{unit}")),
        _ => Err(format!("`{text}`: out of range: from 1 to {COUNT_MAX}")),
    }
}

/// Returns the rate as a number, and the time in microseconds.
pub(crate) fn rate_of(text: &str) -> Option<(u32, u64)> {
    let (count, unit) = text.split_once('/')?;
    let seconds = match unit {
        "s" => 1,
        "min" => 60,
        _ => 3600,
    };
    Some((count.parse().ok()?, seconds * 1_000_000))
}

/// Statuses, classes and ranges of them, separated by commas.
pub(crate) fn statuses(text: &str) -> Result<String, String> {
    let statuses: Result<Vec<String>, String> =
        text.split(',').map(|status| codes(status.trim())).collect();
    Ok(statuses?.join(","))
}

/// Returns them in the form for comparisons.
pub(crate) fn statuses_of(text: &str) -> Vec<Codes> {
    text.split(',').filter_map(Codes::parse).collect()
}

/// The property that a limit counts by.
pub(crate) fn by(text: &str) -> Result<String, String> {
    let words: Vec<&str> = text.split(',').map(str::trim).collect();
    if words == ["all"] {
        return Ok("all".to_owned());
    }
    if words.len() > PARTS_MAX {
        return Err(format!("`{text}`: at most {PARTS_MAX} values can be combined"));
    }
    for (at, word) in words.iter().enumerate() {
        let name = word.split_once(':').map(|(_, name)| name);
        match (part(word), name) {
            (Some(Part::Header(_) | Part::Cookie(_)), Some(name)) if !super::is_token(name) => {
                return Err(format!("`{name}` is not the name of a header, cookie or parameter"));
            }
            (Some(Part::Query(_)), Some("")) => return Err(format!("`{word}` has no name")),
            (Some(_), _) => {}
            (None, _) if *word == "all" => {
                return Err("`all` cannot be combined with other values".to_owned());
            }
            (None, _) => {
                return Err(format!(
                    "`{word}` is not known here: write `client`, `host`, `header:NAME`, \
                        `cookie:NAME`, `query:NAME` or `all`"
                ));
            }
        }
        if words[..at].contains(word) {
            return Err(format!("`{word}` is listed twice"));
        }
    }
    Ok(words.join(","))
}

/// Returns it for the plan. `all` has no parts.
pub(crate) fn parts_of(text: &str) -> Vec<Part> {
    text.split(',').filter_map(part).collect()
}

fn part(word: &str) -> Option<Part> {
    match (word, word.split_once(':')) {
        ("client", _) => Some(Part::Client),
        ("host", _) => Some(Part::Host),
        (_, Some(("header", name))) => Some(Part::Header(name.to_owned())),
        (_, Some(("cookie", name))) => Some(Part::Cookie(name.to_owned())),
        (_, Some(("query", name))) => Some(Part::Query(name.to_owned())),
        _ => None,
    }
}

/// The consequence of exceeding a limit.
pub(crate) fn over(text: &str) -> Result<String, String> {
    match text {
        "drop" | "delay" => Err(format!(
            "`{text}` is not known here: write a status such as 429, `close`, `reset`, `tarpit` or \
                `ban`"
        )),
        _ if over_of(text).is_some() => Ok(text.to_owned()),
        _ => Err(format!(
            "`{text}` is not allowed: write a status from 400 to 499 or 503, `close`, `reset`, \
                `tarpit` or `ban`"
        )),
    }
}

/// Returns it for the plan.
pub(crate) fn over_of(text: &str) -> Option<Over> {
    match text {
        "close" => Some(Over::Close),
        "reset" => Some(Over::Reset),
        "tarpit" => Some(Over::Tarpit),
        "ban" => Some(Over::Ban),
        _ if text.len() != 3 => None,
        _ => text.parse().ok().filter(|status| matches!(status, 400..=499 | 503)).map(Over::Status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        for (text, expected) in [
            ("200/s", Ok((200, 1_000_000))),
            ("5/min", Ok((5, 60_000_000))),
            ("5 / m", Ok((5, 60_000_000))),
            ("10/h", Ok((10, 3_600_000_000))),
            ("1000000/s", Ok((1_000_000, 1_000_000))),
            ("0/s", Err(())),
            ("1000001/s", Err(())),
            ("99999999999999999999/s", Err(())),
            ("-1/s", Err(())),
            ("+1/s", Err(())),
            ("1.5/s", Err(())),
            ("/s", Err(())),
            ("5", Err(())),
            ("5/", Err(())),
            ("5/d", Err(())),
            ("5r/s", Err(())),
        ] {
            let found = rate(text).map(|text| rate_of(&text).expect("canonical")).map_err(drop);
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn whom_a_limit_counts() {
        for (text, expected) in [
            ("client", Some("client")),
            ("client , host", Some("client,host")),
            ("header:X-Api-Key", Some("header:X-Api-Key")),
            ("query:a b", Some("query:a b")),
            ("cookie:id,client", Some("cookie:id,client")),
            ("all", Some("all")),
            ("all,client", None),
            ("client,client", None),
            ("client,host,header:a,header:b,header:c", None),
            ("header:", None),
            ("header:a b", None),
            ("query:", None),
            ("path", None),
            ("", None),
        ] {
            let found = by(text).ok();
            assert_eq!(found.as_deref(), expected, "{text}");
            let parts =
                expected.map_or(0, |text| if text == "all" { 0 } else { text.split(',').count() });
            assert_eq!(found.map_or(0, |text| parts_of(&text).len()), parts, "{text}");
        }
    }

    #[test]
    fn what_becomes_of_one_too_many() {
        for (text, expected) in [
            ("429", Some(Over::Status(429))),
            ("503", Some(Over::Status(503))),
            ("close", Some(Over::Close)),
            ("reset", Some(Over::Reset)),
            ("500", None),
            ("399", None),
            ("+429", None),
            ("0429", None),
            ("ban", Some(Over::Ban)),
            ("tarpit", Some(Over::Tarpit)),
            ("delay", None),
            ("", None),
        ] {
            assert_eq!(over(text).ok().as_deref().and_then(over_of), expected, "{text}");
        }
    }
}
