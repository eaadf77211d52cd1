//! `metrics`: the address of the metrics listener. Called by [`super::compile`].

use std::net::SocketAddr;

use weir_proxy::plan::Plan;

use super::{Compiler, is_same_place};
use crate::check::Checked;
use crate::problem::Problem;

impl Compiler<'_> {
    /// Returns the address of the metrics listener.
    pub(super) fn metrics(&mut self, document: &Checked, plan: &Plan) -> Option<SocketAddr> {
        let address = document.text("metrics").parse::<SocketAddr>().ok()?;
        let place = document.place("metrics");
        if let Some(listener) =
            plan.listeners.iter().find(|listener| is_same_place(&listener.address, &address.into()))
        {
            let message = format!("`{}` is already in use by a `listen`", listener.address);
            self.push(
                Problem::new("conflict", &place, message).help("choose another port for metrics"),
            );
        }
        if !address.ip().is_loopback() {
            let message = format!(
                "`metrics` on {address} shows names and load of the servers to all who can connect"
            );
            let help = "use 127.0.0.1 to keep it on this machine, or let a firewall admit only \
                your metrics collectors";
            self.warnings.push(Problem::new("exposed", &place, message).help(help));
        }
        Some(address)
    }
}
