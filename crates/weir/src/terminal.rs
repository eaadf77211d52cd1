//! Output to a terminal: colours only there, and not with NO_COLOR (<https://no-color.org>).

use std::io::{self, IsTerminal as _, Write as _};

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

/// Writes to standard error. If that is closed, the text is lost.
pub(crate) fn print_error(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}
