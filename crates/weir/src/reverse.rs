//! `weir reverse`: a reverse proxy from flags alone. It writes the equivalent configuration and
//! continues as `weir run` would.

use weir_config::{Reverse, parse_with};

use crate::cli::ReverseArgs;
use crate::failure::Failure;
use crate::upgrade::Heritage;
use crate::{run, terminal};

/// Runs the verb; returns when the proxy has ended.
///
/// # Errors
/// Wrong flags, or the errors of [`run::serve`].
pub(crate) fn reverse(arguments: ReverseArgs, heritage: Heritage) -> Result<(), Failure> {
    let reverse = Reverse {
        listen: arguments.listen,
        cert: arguments.cert,
        key: arguments.key,
        to: arguments.to,
        connections_min: arguments.connections_min,
        connections: arguments.connections,
        connections_max: arguments.connections_max,
        pool: arguments.pool,
        pipeline: arguments.pipeline,
        common: arguments.engine.into(),
    };
    if let Some(fault) = reverse.fault() {
        return Err(Failure::Usage(format!("weir reverse: {fault}\n")));
    }
    let text = reverse.to_kdl();
    // Errors here are errors of the command line.
    let config = parse_with(&text, "(from the command line)", run::EXPERTS)
        .map_err(|errors| Failure::Usage(terminal::render(&errors)))?;
    if arguments.print {
        terminal::print(&text);
        return Ok(());
    }
    run::serve(config, heritage)
}
