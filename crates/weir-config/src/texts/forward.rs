//! Checks of text values of `forward`: names, ports, dates, addresses of name servers. Called
//! through the option table.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use weir_proxy::forward::policy::host::{self, Host};
use weir_proxy::forward::policy::{Hours, Pattern, PatternError};

/// The port of name servers, RFC 1035 §4.2.
const DNS_PORT: u16 = 53;
/// Minutes of a day.
const DAY_MIN: u16 = 1440;

/// The pool of a forward proxy.
pub(crate) fn pool(text: &str) -> Result<String, String> {
    match text {
        "pinned" | "per-request" => Ok(text.to_owned()),
        "shared" | "pipelined" | "fresh" => Err(format!(
            "`{text}` would mix requests of different clients on one connection to foreign \
                servers: write `pinned` or `per-request`"
        )),
        _ => Err("expected `pinned` or `per-request`".to_owned()),
    }
}

/// The path of a file.
pub(crate) fn file(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(char::is_control) {
        return Err("a path must not be empty or contain control characters".to_owned());
    }
    Ok(text.to_owned())
}

/// The realm of a challenge: it is in quotes (RFC 9110 §11.5).
pub(crate) fn realm(text: &str) -> Result<String, String> {
    let fine = |c: char| (c.is_ascii_graphic() || c == ' ') && !matches!(c, '"' | '\\');
    if text.is_empty() || text.len() > 64 || !text.chars().all(fine) {
        return Err(
            "expected 1 to 64 ASCII letters, digits and signs, without `\"` and `\\`".to_owned()
        );
    }
    Ok(text.to_owned())
}

/// The address of a name server.
pub(crate) fn resolver(text: &str) -> Result<String, String> {
    let address = match text.parse::<IpAddr>() {
        Ok(address) => Some(SocketAddr::new(address, DNS_PORT)),
        Err(_) => text.parse::<SocketAddr>().ok(),
    };
    match address.filter(|address| address.port() > 0 && !address.ip().is_unspecified()) {
        Some(address) => Ok(address.to_string()),
        None => Err(format!(
            "`{text}` is not the address of a name server, such as 127.0.0.1 or [::1]:5353"
        )),
    }
}

/// The host under which clients reach the proxy.
pub(crate) fn proxy_host(text: &str) -> Result<String, String> {
    match host::parse(text.as_bytes()) {
        Ok(Host::Name(name)) => Ok(name.into_owned()),
        Ok(Host::Address(IpAddr::V4(address))) => Ok(address.to_string()),
        Ok(Host::Address(IpAddr::V6(address))) => Ok(format!("[{address}]")),
        Err(_) if text.parse::<IpAddr>().is_ok() => {
            Err("an IPv6 address needs brackets".to_owned())
        }
        Err(error) => Err(format!("`{text}` is not a host: {error}")),
    }
}

/// Names of destinations.
pub(crate) fn name(text: &str) -> Result<String, String> {
    pattern(text).map(|pattern| pattern.text())
}

/// Parses the pattern for names of destinations.
pub(crate) fn pattern(text: &str) -> Result<Pattern, String> {
    Pattern::parse(text).map_err(|error| match error {
        PatternError::Address => {
            format!("`{text}` is an address: write address=\"{}\"", text.trim_matches(['[', ']']))
        }
        PatternError::Star if text == "*" => {
            "leave `*` out: a rule without names matches all names".to_owned()
        }
        PatternError::Star => {
            format!(
                "`{text}`: `*.` is allowed only in front of a name, and matches all names below it"
            )
        }
        PatternError::Host(_) if text.contains("://") => "write a name without a scheme".to_owned(),
        PatternError::Host(_)
            if text.contains('/') && text.split('/').next().is_some_and(is_address) =>
        {
            format!("`{text}` is a range of addresses: write address=\"{text}\"")
        }
        PatternError::Host(_) if text.contains([' ', '\t']) => format!("`{text}`: write one name"),
        PatternError::Host(error) => format!("`{text}` is not a name: {error}"),
    })
}

fn is_address(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

/// A port, or the first and the last of a range.
pub(crate) fn ports(text: &str) -> Result<String, String> {
    let range = port_range(text).ok_or_else(|| {
        format!("`{text}` is neither a port (1 to 65535) nor a range of them such as 8000-8999")
    })?;
    let (first, last) = range.into_inner();
    Ok(if first == last { first.to_string() } else { format!("{first}-{last}") })
}

/// Parses a range of ports.
pub(crate) fn port_range(text: &str) -> Option<RangeInclusive<u16>> {
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (port(first)?, port(last)?);
    (first <= last).then_some(first..=last)
}

/// The name of a user: it precedes a colon (RFC 7617 §2).
pub(crate) fn user(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 255 || text.contains(|c: char| c.is_control() || c == ':') {
        return Err(
            "the name of a user must have 1 to 255 bytes, without colons and control characters"
                .to_owned(),
        );
    }
    Ok(text.to_owned())
}

/// A date or a time.
pub(crate) fn moment(text: &str) -> Result<String, String> {
    match (date(text), text.parse::<Timestamp>()) {
        (Some(date), _) => Ok(date.to_string()),
        (None, Ok(time)) => Ok(time.to_string()),
        (None, Err(_)) => Err(format!(
            "`{text}` is neither a date such as 2026-12-31 nor a time such as 2026-12-31T18:00:00Z"
        )),
    }
}

/// A text with more digits is a time, of which only the date would be read.
fn date(text: &str) -> Option<Date> {
    text.parse().ok().filter(|_| text.len() == "2026-12-31".len())
}

/// Returns when a date begins or a time is, in seconds since 1970.
pub(crate) fn since_s(text: &str) -> Option<i64> {
    match date(text) {
        Some(date) => start_s(date),
        None => text.parse::<Timestamp>().ok().map(Timestamp::as_second),
    }
}

/// Returns when a date has ended or a time is, in seconds since 1970.
pub(crate) fn until_s(text: &str) -> Option<i64> {
    match date(text) {
        Some(date) => start_s(date.tomorrow().ok()?),
        None => since_s(text),
    }
}

fn start_s(date: Date) -> Option<i64> {
    TimeZone::UTC
        .to_ambiguous_zoned(date.at(0, 0, 0, 0))
        .unambiguous()
        .ok()
        .map(|zoned| zoned.timestamp().as_second())
}

/// A part of the day.
pub(crate) fn hours(text: &str) -> Result<String, String> {
    let Some(hours) = hours_of(text) else {
        return Err(format!(
            "`{text}` is not a time range such as 08:00-18:00, or 22:00-06:00 across midnight"
        ));
    };
    let time = |minutes: u16| format!("{:02}:{:02}", minutes / 60, minutes % 60);
    Ok(format!("{}-{}", time(hours.from_min), time(hours.to_min)))
}

/// Parses a part of the day.
pub(crate) fn hours_of(text: &str) -> Option<Hours> {
    let (from, to) = text.split_once('-')?;
    let (from_min, to_min) = (minutes(from)?, minutes(to)?);
    (from_min != to_min && from_min < DAY_MIN).then_some(Hours { from_min, to_min })
}

/// `HH:MM` up to 24:00.
fn minutes(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':')?;
    let number =
        |text: &str| text.parse::<u16>().ok().filter(|_| text.len() == 2 && !text.starts_with('+'));
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    (minutes < 60 && hours * 60 + minutes <= DAY_MIN).then_some(hours * 60 + minutes)
}

#[cfg(test)]
mod tests {
    //! Proves: which values are accepted, their canonical form, which reads back, and which are
    //! refused. How: tables.

    use super::*;
    use crate::schema::TextCheck;

    fn table(check: TextCheck, good: &[(&str, &str)], bad: &[&str]) {
        for (text, canonical) in good {
            assert_eq!(check(text).as_deref(), Ok(*canonical));
            assert_eq!(
                check(canonical).as_deref(),
                Ok(*canonical),
                "the canonical form reads back"
            );
        }
        for text in bad {
            assert!(check(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_and_ports() {
        let good = [(".Ads.Example", "ads.example"), ("*.a.b.", "*.a.b"), ("=a.b", "=a.b")];
        table(
            name,
            &good,
            &[
                "",
                "*",
                "a.*",
                "10.0.0.1",
                "10.0.0.0/8",
                "http://a",
                "0.0.0.0 ads.example",
                "bücher.de",
            ],
        );
        table(
            ports,
            &[("80", "80"), ("8000-8999", "8000-8999"), ("5-5", "5")],
            &["0", "a", "-5", "9-8", "65536", "1-2-3"],
        );
    }

    #[test]
    fn parts_of_the_day() {
        let good = [
            ("08:00-18:00", "08:00-18:00"),
            ("22:30-06:00", "22:30-06:00"),
            ("00:00-24:00", "00:00-24:00"),
        ];
        table(
            hours,
            &good,
            &[
                "",
                "8-18",
                "08:00",
                "08:00-08:00",
                "24:00-08:00",
                "08:60-09:00",
                "25:00-26:00",
                "+8:00-09:00",
            ],
        );
        assert_eq!(hours_of("22:30-06:00"), Some(Hours { from_min: 1350, to_min: 360 }));
    }

    #[test]
    fn dates_and_times() {
        let good = [
            ("2026-12-31", "2026-12-31"),
            ("2026-12-31T18:00Z", "2026-12-31T18:00:00Z"),
            ("2026-12-31T18:00:00+01:00", "2026-12-31T17:00:00Z"),
        ];
        table(
            moment,
            &good,
            &["", "2026-13-01", "2026-02-29", "31.12.2026", "2026-12-31T18:00", "2026", "tomorrow"],
        );
        assert_eq!(since_s("1970-01-02"), Some(86_400));
        assert_eq!(until_s("1970-01-02"), Some(2 * 86_400));
        assert_eq!(
            (since_s("1970-01-01T00:01Z"), until_s("1970-01-01T00:01Z")),
            (Some(60), Some(60))
        );
        assert_eq!(until_s("2024-02-28"), since_s("2024-02-29"));
    }

    #[test]
    fn addresses_of_others() {
        let good = [
            ("127.0.0.1", "127.0.0.1:53"),
            ("::1", "[::1]:53"),
            ("10.0.0.1:5353", "10.0.0.1:5353"),
        ];
        table(resolver, &good, &["", "dns.example", "127.0.0.1:0", "0.0.0.0", "127.1"]);
        table(
            proxy_host,
            &[("Proxy.Example", "proxy.example"), ("[::1]", "[::1]"), ("10.0.0.1", "10.0.0.1")],
            &["", "::1", "a:3128", "127.1", "a b"],
        );
    }

    #[test]
    fn words_for_people() {
        table(
            realm,
            &[("weir of the office", "weir of the office")],
            &["", "a\"b", "a\\b", "ä", "a\n"],
        );
        table(user, &[("ann", "ann"), ("Jörg", "Jörg")], &["", "a:b", "a\n"]);
        table(
            pool,
            &[("pinned", "pinned"), ("per-request", "per-request")],
            &["shared", "pipelined", "fresh", ""],
        );
        table(file, &[("/etc/weir/users", "/etc/weir/users"), ("users", "users")], &["", "a\nb"]);
        assert!(pool("shared").unwrap_err().contains("would mix"));
    }
}
