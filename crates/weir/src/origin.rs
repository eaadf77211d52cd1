//! `weir origin`: the test origin of weir-lab until SIGINT or SIGTERM.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use weir_lab::origin::{OriginOptions, spawn};

use crate::cli::OriginArgs;
use crate::failure::Failure;
use crate::{machine, run};

/// Does the verb.
///
/// # Errors
/// The address can't be listened on, or the driver doesn't work.
pub(crate) fn origin(arguments: &OriginArgs) -> Result<(), Failure> {
    machine::raise_descriptors();
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| run::failed("signals", &error))?;
    let threads = arguments.threads.unwrap_or_else(machine::workers) as usize;
    let io = run::io_choice(arguments.io.into());
    let origin =
        spawn(OriginOptions { listen: arguments.listen, threads, io }).map_err(|error| Failure::binding(&error))?;
    eprintln!("weir origin: {}, {threads} threads, listening on {}", origin.driver(), origin.local_addr());
    signals.forever().next();
    origin.stop().map_err(|error| run::failed("origin", &error))
}
