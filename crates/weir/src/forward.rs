//! `weir forward`: a forward proxy from flags alone. It writes the equivalent configuration and
//! continues as `weir run` would.

use weir_config::{Forward, parse_with};

use crate::cli::ForwardArgs;
use crate::failure::Failure;
use crate::upgrade::Heritage;
use crate::{run, terminal};

/// Runs the verb; returns when the proxy has ended.
///
/// # Errors
/// Wrong flags, or the errors of [`run::serve`].
pub(crate) fn forward(arguments: ForwardArgs, heritage: Heritage) -> Result<(), Failure> {
    let text = Forward {
        listen: arguments.listen,
        users: arguments.users,
        clients: arguments.client,
        allow_addresses: arguments.allow_address,
        allow_ports: arguments.allow_port,
        allow_names: arguments.allow_name,
        deny_names: arguments.deny_name,
        resolvers: arguments.resolver,
        pac: arguments.pac,
        common: arguments.engine.into(),
    }
    .to_kdl();
    // Errors here are errors of the command line.
    let config = parse_with(&text, "(from the command line)", run::EXPERTS)
        .map_err(|errors| Failure::Usage(terminal::render(&errors)))?;
    if arguments.print {
        terminal::print(&text);
        return Ok(());
    }
    if let Some(warnings) = &config.warnings {
        eprint!("{}", terminal::render(warnings));
    }
    run::serve(config, heritage)
}
