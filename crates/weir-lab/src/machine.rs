//! Where and how something was measured: the machine, the date, and the command line as one types it.
//!
//! Called by `bench` and `bomb` for the heads of their reports. Reads /proc; what can't be read is `unknown` or 0.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// What a machine is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// What its cores are.
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
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
        let kib = memory.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
        Machine {
            processor: model.trim_start_matches([' ', '\t', ':']).trim().to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: kib / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}

/// The date of now as HTTP writes it (RFC 9110 §5.6.7).
pub fn date() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    String::from_utf8_lossy(&weir_http::http_date(seconds)).into_owned()
}

/// Words as one types them in a shell.
pub fn command_line(words: &[String]) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_=./:,@+%".contains(letter);
    let quoted = |word: &String| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// Fields whose values are secrets: reports are passed on.
const SECRET: [&str; 3] = ["authorization", "proxy-authorization", "cookie"];

/// The same for a report, without the secrets in fields that `-H` or `--header` gives.
pub fn shown_command_line(words: &[String]) -> String {
    let is_flag = |at: usize| at > 0 && ["-H", "--header"].contains(&words[at - 1].as_str());
    let shown = words.iter().enumerate().map(|(at, word)| {
        let flag = ["--header=", "-H"].into_iter().find(|flag| word.starts_with(flag) && word.len() > flag.len());
        let field = flag.map_or(word.as_str(), |flag| &word[flag.len()..]);
        match field.split_once(':') {
            Some((name, _)) if (flag.is_some() || is_flag(at)) && is_secret(name) => {
                format!("{}{name}: ***", flag.unwrap_or_default())
            }
            _ => word.clone(),
        }
    });
    command_line(&shown.collect::<Vec<_>>())
}

fn is_secret(name: &str) -> bool {
    SECRET.iter().any(|secret| name.trim().eq_ignore_ascii_case(secret))
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
        let given = ["bomb", "-H", "Authorization: Bearer x", "-HCookie: a=b", "--header=X-A: b", "-H", "Accept: c"];
        assert_eq!(
            shown_command_line(&words(&given)),
            "bomb -H 'Authorization: ***' '-HCookie: ***' '--header=X-A: b' -H 'Accept: c'"
        );
        assert_eq!(shown_command_line(&words(&["--header=cookie:x"])), "'--header=cookie: ***'");
        // What is no field stays, whatever it looks like.
        assert_eq!(shown_command_line(&words(&["Authorization:x"])), "Authorization:x");
    }
}
