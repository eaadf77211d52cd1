//! What a configuration needs of the kernel's TCP, tried before anything depends on it: congestion
//! controls, options of sockets, and sockets with foreign addresses. Called at the start, after
//! dropping the privileges that are to be dropped, and before a reload.

use std::collections::BTreeSet;

use weir_proxy::plan::{Plan, Source, Tuning};

use crate::failure::Failure;

/// Whether any socket has an option that needs a privilege (CAP_NET_RAW).
pub(crate) fn need_raw(plan: &Plan) -> bool {
    are_transparent(plan) || tunings(plan).any(|tuning| tuning.needs_raw())
}

/// Returns the configured options of sockets.
fn tunings(plan: &Plan) -> impl Iterator<Item = &Tuning> {
    let upstreams = plan.upstreams.iter().filter_map(|upstream| upstream.dial.tuning.as_deref());
    plan.listeners.iter().filter_map(|listener| listener.tuning.as_deref()).chain(upstreams)
}

/// Whether any socket has a foreign address.
fn are_transparent(plan: &Plan) -> bool {
    let is_client = plan.upstreams.iter().any(|upstream| upstream.dial.source == Source::Client);
    is_client || plan.listeners.iter().any(|listener| listener.transparent)
}

/// Checks that this thread, and those that it makes, can do what the plan needs.
///
/// # Errors
/// What is impossible, with a remedy.
pub(crate) fn check(plan: &Plan) -> Result<(), Failure> {
    let upstreams = plan.upstreams.iter().flat_map(|upstream| upstream.dial.congestion.names());
    let names: BTreeSet<&str> = plan
        .listeners
        .iter()
        .flat_map(|listener| listener.congestion.names())
        .chain(upstreams)
        .map(AsRef::as_ref)
        .collect();
    for name in names {
        weir_io::check_congestion(name).map_err(|error| Failure::binding(&error))?;
    }
    for chosen in tunings(plan) {
        weir_worker::tuning(Some(chosen)).check().map_err(|error| Failure::binding(&error))?;
    }
    if are_transparent(plan)
        && let Err(error) = weir_io::check_transparent()
    {
        let text = "weir: `transparent` of a `listen` and `source \"client\"` of an upstream need \
            the capability CAP_NET_RAW";
        let help = "start weir as root, or give it that capability (systemd: \
            AmbientCapabilities=CAP_NET_RAW)";
        return Err(Failure::Privilege(format!("{text}: {error}\n  help: {help}\n")));
    }
    Ok(())
}
