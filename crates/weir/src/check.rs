//! `weir check`: shows all errors of a configuration, or the effective configuration. Binds no
//! listener; looks up names of servers, unless told not to.

mod rights;

use std::io::IsTerminal as _;

use weir_config::{Config, Errors, Experts, find_path, load};

use crate::cli::CheckArgs;
use crate::failure::Failure;
use crate::{arrival, certificates, discovery, privileges, side, snapshot, terminal};

/// Check the files that a configuration names.
const EXPERTS: Experts<'static> = Experts {
    users: &side::users::check,
    tls: &certificates::check,
    names: &discovery::check,
    account: &privileges::check,
    group: &privileges::group,
    keeps: &snapshot::check,
    arrival: &arrival::check,
};

/// Runs the verb.
///
/// # Errors
/// The configuration is wrong or cannot be read.
pub(crate) fn check(arguments: &CheckArgs) -> Result<(), Failure> {
    let experts = if arguments.no_resolve {
        Experts { names: Experts::NOBODY.names, ..EXPERTS }
    } else {
        EXPERTS
    };
    let loaded =
        find_path(arguments.config.path()).and_then(|path| Ok((load(&path, experts)?, path)));
    match loaded {
        Ok((config, path)) => {
            if let Some(warnings) = config.warnings.as_ref().filter(|_| !arguments.json) {
                terminal::print_error(&terminal::render(warnings));
            }
            terminal::print(&shown(arguments, &config));
            // Programs use the code; people wonder whether anything has happened.
            if !arguments.print && !arguments.json && std::io::stdout().is_terminal() {
                let needed: String =
                    rights::needed(&config.plan).iter().map(rights::Right::line).collect();
                terminal::print(&format!("{}: ok\n{needed}", path.display()));
            }
            Ok(())
        }
        Err(errors) if arguments.json => {
            terminal::print(&json(&errors));
            Err(Failure::Configuration(String::new()))
        }
        Err(errors) => Err(errors.into()),
    }
}

/// Returns the requested output, if any.
fn shown(arguments: &CheckArgs, config: &Config) -> String {
    match (arguments.print, arguments.json) {
        (true, true) => config.tree.to_json(),
        (true, false) => config.tree.to_kdl(),
        (false, true) => {
            let warnings = config
                .warnings
                .as_ref()
                .map_or_else(|| serde_json::json!([]), |all| all.to_json()["errors"].take());
            let needs: Vec<_> =
                rights::needed(&config.plan).iter().map(rights::Right::json).collect();
            format!(
                "{}\n",
                serde_json::json!({
                    "count": 0, "errors": [], "warnings": warnings, "needs": needs
                })
            )
        }
        (false, false) => String::new(),
    }
}

fn json(errors: &Errors) -> String {
    format!("{}\n", errors.to_json())
}
