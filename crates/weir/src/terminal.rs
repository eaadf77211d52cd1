//! What may be written to a terminal: colours only there, and not with NO_COLOR (<https://no-color.org>).

use std::io::{self, IsTerminal as _, Write as _};

use weir_config::Errors;

/// Width of reports, columns.
const COLUMNS: usize = 100;

/// The report, coloured when standard error is a terminal that wants it.
pub(crate) fn render(errors: &Errors) -> String {
    let refused = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    errors.render(io::stderr().is_terminal() && !refused("NO_COLOR") && !dumb, COLUMNS)
}

/// Writes to standard output. A reader that went away (`| head`) is not an error of ours.
pub(crate) fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
