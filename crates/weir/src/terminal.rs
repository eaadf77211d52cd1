//! Output to a terminal: colours only there, and not with NO_COLOR (<https://no-color.org>).

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::OnceLock;

use jiff::Timestamp;
use weir_config::Errors;

/// Width of reports, columns.
const COLUMNS: usize = 100;

/// Returns the report, coloured if standard error is a terminal that wants it.
pub(crate) fn render(errors: &Errors) -> String {
    errors.render(io::stderr().is_terminal() && wants_colour(), COLUMNS)
}

/// Whether output to a terminal, if any, may be coloured.
pub(crate) fn wants_colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    !refused && !dumb
}

/// Returns columns and rows of the terminal on standard output; None: it is not a terminal.
pub(crate) fn size() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0 && size.ws_row > 0)
        .then(|| (usize::from(size.ws_col), usize::from(size.ws_row)))
}

/// Replaces control characters in foreign text, which may be meant for another terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Writes to standard output. A reader that went away (`| head`) is not an error of weir.
pub(crate) fn print(text: &str) {
    let _ = try_print(text);
}

/// The same; false: the reader has gone.
pub(crate) fn try_print(text: &str) -> bool {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
}

/// The level of a line: its word, and its number for the journal (sd-daemon(3)).
type Level = (&'static str, u8);

const INFO: Level = ("info", 6);
const WARNING: Level = ("warning", 4);
const ERROR: Level = ("error", 3);

/// Logs a line of a running weir to standard error, with time and level, or without the time to the
/// systemd journal, which adds it. A reader that has gone is no reason to end (`eprintln!` would
/// panic).
pub(crate) fn tell(line: impl Display) {
    log(INFO, &line);
}

/// The same for a line that needs an operator's attention.
pub(crate) fn warn(line: impl Display) {
    log(WARNING, &line);
}

/// The same for a failure.
pub(crate) fn alarm(line: impl Display) {
    log(ERROR, &line);
}

fn log((word, number): Level, line: &dyn Display) {
    if is_journal() {
        print_error(&format!("<{number}>{line}\n"));
    } else {
        print_error(&format!("{:.3} {word} weir: {line}\n", Timestamp::now()));
    }
}

/// Whether standard error is connected to the journal (systemd.exec(5), `$JOURNAL_STREAM`).
fn is_journal() -> bool {
    static IS_IT: OnceLock<bool> = OnceLock::new();
    *IS_IT.get_or_init(|| {
        let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
        rustix::fs::fstat(io::stderr())
            .is_ok_and(|file| named == format!("{}:{}", file.st_dev, file.st_ino))
    })
}

/// Writes to standard error. If that is closed, the text is lost.
pub(crate) fn print_error(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}
