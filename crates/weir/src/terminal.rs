//! What may be written to a terminal: colours only there, and not with NO_COLOR (<https://no-color.org>).

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};

use weir_config::Errors;

/// Width of reports, columns.
const COLUMNS: usize = 100;

/// The report, coloured when standard error is a terminal that wants it.
pub(crate) fn render(errors: &Errors) -> String {
    errors.render(io::stderr().is_terminal() && wants_colour(), COLUMNS)
}

/// Whether a terminal, if there is one, may be coloured.
pub(crate) fn wants_colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    !refused && !dumb
}

/// Columns and rows of the terminal on standard output; None when it is none.
pub(crate) fn size() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then(|| (usize::from(size.ws_col), usize::from(size.ws_row)))
}

/// Writes to standard output. A reader that went away (`| head`) is not an error of ours.
pub(crate) fn print(text: &str) {
    let _ = try_print(text);
}

/// The same; false: nobody reads it any more.
pub(crate) fn try_print(text: &str) -> bool {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
}

/// A line on standard error in the name of weir. Whoever has read them may be gone, which is no reason to end (`eprintln!` would
/// panic).
pub(crate) fn tell(line: impl Display) {
    print_error(&format!("weir: {line}\n"));
}

/// Writes to standard error. Nobody is left to tell when it is closed.
pub(crate) fn print_error(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}
