//! Where and how something was measured: the machine, the date, and the command line as it would be
//! typed.
//!
//! Called by `bench` and `bomb` for the heads of their reports. Reads /proc; unreadable values are
//! `unknown` or 0.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The facts about a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// The model of its cores.
    pub processor: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Its memory, MiB; 0: unknown.
    pub memory_mib: u64,
    /// Release of the kernel.
    pub kernel: String,
}

impl Machine {
    /// Looks at this machine.
    pub fn look() -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (cpu, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
        let model =
            cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
        let kib = memory
            .split_whitespace()
            .nth(1)
            .and_then(|number| number.parse::<u64>().ok())
            .unwrap_or(0);
        Machine {
            processor: model.trim_start_matches([' ', '\t', ':']).trim().to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: kib / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}

/// Returns the current date as HTTP writes it (RFC 9110 §5.6.7).
pub fn date() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    String::from_utf8_lossy(&weir_http::http_date(seconds)).into_owned()
}

/// Returns words as they would be typed in a shell.
pub fn command_line(words: &[String]) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_=./:,@+%".contains(letter);
    let quoted = |word: &String| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// Fields whose values a report shows; those of others may be secrets, and reports are passed on.
const SHOWN_FIELDS: [&str; 6] =
    ["accept", "accept-encoding", "connection", "content-type", "host", "user-agent"];
/// Short options with a value: characters after them in the same word are not options.
const SHORT_WITH_VALUE: &str = "cRdntX";
/// The text in place of a secret.
const SECRET: &str = "***";

/// The same for a report of `weir bomb`, without values of fields, bodies, user names and queries.
pub fn shown_command_line(words: &[String]) -> String {
    let mut shown = Vec::with_capacity(words.len());
    // How to show the value in this word that the previous option has.
    let mut value: Option<Mask> = None;
    for word in words {
        shown.push(match value.take() {
            Some(show) => show(word),
            None => {
                let (start, show) = option(word);
                // The value is the next word, or in the same one.
                if show.is_some() && start == word.len() && !word.ends_with('=') {
                    value = show;
                    word.clone()
                } else {
                    format!("{}{}", &word[..start], show.unwrap_or(shown_url)(&word[start..]))
                }
            }
        });
    }
    command_line(&shown)
}

/// Returns the text that a report shows in place of a value.
type Mask = fn(&str) -> String;

/// If a word is an option whose value may be a secret, returns where its value begins, and how that
/// is shown.
fn option(word: &str) -> (usize, Option<Mask>) {
    if let Some(long) = word.strip_prefix("--") {
        let name = long.split('=').next().unwrap_or_default();
        let show: Mask = match name {
            "header" => shown_field,
            "body" => shown_body,
            "class" => shown_class,
            _ => return (0, None),
        };
        // After the equals sign, if there is one.
        return ((2 + name.len() + 1).min(word.len()), Some(show));
    }
    let Some(letters) = word.strip_prefix('-') else { return (0, None) };
    let mut letters =
        letters.char_indices().take_while(|(_, letter)| !SHORT_WITH_VALUE.contains(*letter));
    match letters.find(|(_, letter)| *letter == 'H') {
        Some((at, _)) => {
            let start = at + 2;
            (start + usize::from(word[start..].starts_with('=')), Some(shown_field))
        }
        None => (0, None),
    }
}

fn shown_field(field: &str) -> String {
    match field.split_once(':') {
        Some((name, _))
            if SHOWN_FIELDS.iter().any(|shown| name.trim().eq_ignore_ascii_case(shown)) =>
        {
            field.to_owned()
        }
        Some((name, _)) => format!("{name}: {SECRET}"),
        None => SECRET.to_owned(),
    }
}

fn shown_body(body: &str) -> String {
    // The name of a file.
    if body.starts_with('@') { body.to_owned() } else { SECRET.to_owned() }
}

fn shown_class(class: &str) -> String {
    let shown = class.split(',').map(|pair| match pair.split_once('=') {
        Some((key, _)) if key.rsplit(':').next().is_some_and(|key| key.trim() == "body") => {
            format!("{key}={SECRET}")
        }
        _ => shown_url(pair),
    });
    shown.collect::<Vec<_>>().join(",")
}

/// Returns a URL or a path without its user name and its query. Other words don't change.
pub(crate) fn shown_url(url: &str) -> String {
    let (before, query) =
        url.split_once('?').map_or((url, None), |(before, query)| (before, Some(query)));
    let authority = before.find("://").map_or(before.len(), |at| at + 3);
    let end = before[authority..].find('/').map_or(before.len(), |at| authority + at);
    let host = before[authority..end].rfind('@').map_or(authority, |at| authority + at);
    let user = if host > authority { SECRET } else { "" };
    let query = query.map_or(String::new(), |_| format!("?{SECRET}"));
    format!("{}{user}{}{query}", &before[..authority], &before[host..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_known_of_this_machine() {
        let here = Machine::look();
        assert!(here.cores > 0 && here.memory_mib > 0 && !here.kernel.is_empty(), "{here:?}");
        assert!(date().ends_with(" GMT"), "{}", date());
    }

    #[test]
    fn a_command_line_can_be_typed_and_has_no_secrets() {
        let words = |all: &[&str]| all.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(command_line(&words(&["a", "b c", "d'e", ""])), r"a 'b c' 'd'\''e' ''");
        for (given, shown) in [
            (
                &["bomb", "-H", "Authorization: Bearer x", "-HCookie: a=b"][..],
                "bomb -H 'Authorization: ***' '-HCookie: ***'",
            ),
            (
                &["--header=cookie:x", "--header", "X-Api-Key: x"],
                "'--header=cookie: ***' --header 'X-Api-Key: ***'",
            ),
            (
                &["-H=Authorization: x", "-kHAuthorization: x"],
                "'-H=Authorization: ***' '-kHAuthorization: ***'",
            ),
            (
                &["-kH", "A: x", "-H", "no field", "-H", "-H", "u"],
                "-kH 'A: ***' -H '***' -H '***' u",
            ),
            (
                &["-H", "Accept: c", "--header=host: d", "-XHEAD", "-c2"],
                "-H 'Accept: c' '--header=host: d' -XHEAD -c2",
            ),
            (
                &["--body", "{\"p\":\"x\"}", "--body=x", "--body="],
                "--body '***' '--body=***' '--body=***'",
            ),
            (&["--body", "@file", "--body=@file"], "--body @file --body=@file"),
            (
                &["http://h/?token=x", "u:p@h/a?b@c", "https://u:p@h:1/a@b?c"],
                "'http://h/?***' 'u:p@h/a?***' 'https://***@h:1/a@b?***'",
            ),
            (
                &["--class", "a: body=x y, path=/p?t=x,rate=1"],
                "--class 'a: body=***, path=/p?***,rate=1'",
            ),
            (&["--class=a:rate=1,body=x"], "'--class=a:rate=1,body=***'"),
            // Text that only looks like a header field doesn't change.
            (&["Authorization:x", "--", "-", "p99>20ms"], "Authorization:x -- - 'p99>20ms'"),
        ] {
            assert_eq!(shown_command_line(&words(given)), shown);
        }
    }
}
