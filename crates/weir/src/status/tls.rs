//! TLS in `weir status`: handshakes with clients and servers, and certificates that need attention.
//! Pure: document -> text.

use std::time::Duration;

use serde_json::Value;

use super::figures::{count, span};
use super::table::{Cell, Tone};
use crate::admin::document::{Certificate, Status};

/// Returns a line with counts if any client has tried to use TLS, and the same for servers.
pub(super) fn handshakes(status: &Status) -> String {
    of_side(status, "tls     ", "") + &of_side(status, "tls out ", "upstream_")
}

/// Returns a line for each file with a problem.
pub(super) fn troubles(status: &Status) -> Vec<Cell> {
    let files =
        status.tls_files.iter().filter_map(|file| Some((&file.file, file.problem.as_ref()?)));
    let files = files.map(|(file, problem)| {
        (format!("file {file}: {problem}; the previous content remains in force"), Tone::Bad)
    });
    let all = status.certificates.iter().filter_map(trouble).chain(files);
    all.map(|(text, tone)| Cell { text, tone }).collect()
}

/// Returns the line of one side, whose counts have this prefix; empty while the counts are zero.
fn of_side(status: &Status, name: &str, prefix: &str) -> String {
    let value = |name: &str| status.totals.get(&format!("{prefix}{name}"));
    let total = |name: &str| value(name).and_then(Value::as_u64).unwrap_or(0);
    let failures = value("tls_failures").and_then(Value::as_object);
    let failures: Vec<(&str, u64)> = failures
        .into_iter()
        .flatten()
        .filter_map(|(word, value)| Some((word.as_str(), value.as_u64()?)))
        .filter(|(_, value)| *value > 0)
        .collect();
    let mut out = String::new();
    let (done, resumed) = (total("tls_handshakes"), total("tls_resumed"));
    if done > 0 || !failures.is_empty() {
        let failed: u64 = failures.iter().map(|(_, value)| value).sum();
        out += &format!(
            "{name} handshakes {}  resumed {}  failed {}",
            count(done),
            count(resumed),
            count(failed)
        );
        let words: Vec<String> =
            failures.iter().map(|(word, value)| format!("{word} {}", count(*value))).collect();
        out +=
            &if words.is_empty() { "\n".to_owned() } else { format!(" ({})\n", words.join(", ")) };
    }
    out
}

/// Returns the problem of a certificate.
fn trouble(certificate: &Certificate) -> Option<(String, Tone)> {
    let file = &certificate.file;
    let left = span(Duration::from_secs(certificate.left_seconds.unsigned_abs()));
    if let Some(problem) = &certificate.problem {
        return Some((
            format!("certificate {file}: {problem}; the previous one remains in force"),
            Tone::Bad,
        ));
    }
    match certificate.left_seconds {
        ..0 => Some((format!("certificate {file} expired {left} ago"), Tone::Bad)),
        0..weir_tls::EXPIRES_SOON_S => {
            Some((format!("certificate {file} expires in {left}"), Tone::Odd))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    //! Proves: only problems have a line. How: examples.

    use super::*;
    use crate::admin::document::TlsFile;

    #[test]
    fn only_what_matters_is_said() {
        let lines = |status: &Status| {
            let troubles = troubles(status).into_iter().map(|cell| cell.text + "\n");
            handshakes(status) + &troubles.collect::<String>()
        };
        assert_eq!(lines(&Status::default()), "");
        let mut status = Status::default();
        status.totals.insert("tls_handshakes".to_owned(), 12.into());
        status.totals.insert("tls_resumed".to_owned(), 3.into());
        assert_eq!(lines(&status), "tls      handshakes 12  resumed 3  failed 0\n");
        status.totals.insert("upstream_tls_handshakes".to_owned(), 7.into());
        status
            .totals
            .insert("upstream_tls_failures".to_owned(), serde_json::json!({"tls-name": 4}));
        status.totals.insert(
            "tls_failures".to_owned(),
            serde_json::json!({"left": 2, "not-tls": 1, "alert": 0}),
        );
        let problem =
            |problem: &str| Some(problem.to_owned()).filter(|problem| !problem.is_empty());
        status.certificates =
            [("a", 86_400 * 30, ""), ("b", 86_400, ""), ("c", -7200, ""), ("d", 9, "gone")]
                .map(|(file, left_seconds, text)| Certificate {
                    file: file.to_owned(),
                    left_seconds,
                    problem: problem(text),
                    ..Certificate::default()
                })
                .to_vec();
        status.tls_files = [("e", ""), ("f", "gone")]
            .map(|(file, text)| TlsFile { file: file.to_owned(), problem: problem(text) })
            .to_vec();
        let expected = "tls      handshakes 12  resumed 3  failed 3 (left 2, not-tls 1)\n\
                        tls out  handshakes 7  resumed 0  failed 4 (tls-name 4)\n\
                        certificate b expires in 1d\n\
                        certificate c expired 2h ago\n\
                        certificate d: gone; the previous one remains in force\n\
                        file f: gone; the previous content remains in force\n";
        assert_eq!(lines(&status), expected);
    }
}
