//! An operator that tells every worker how to use a server: by an order, or by a configuration
//! without it.

use std::sync::Arc;

use weir_io::Waker;
use weir_io::sim::{Actor, Conn, Net};
use weir_proxy::cross::standing::Order;
use weir_proxy::observe::server_stats::ServerStats;
use weir_proxy::plan::Plan;
use weir_worker::{Adoption, Command, Control};

use super::dials::Ordered;

/// The actor.
pub struct Operator {
    pub orders: Vec<Ordered>,
    /// One for each worker.
    pub controls: Vec<(Arc<Control>, Arc<dyn Waker>)>,
    /// The plan in force.
    pub plan: Arc<Plan>,
    /// Each worker's counters of each server.
    pub servers: Vec<Vec<Arc<ServerStats>>>,
}

impl Operator {
    /// Reloads a configuration with or without a server; the weights of all servers differ each
    /// time. False: the configuration was already so, or the upstream would have no servers.
    fn reload(&mut self, server: u32, retired: bool, at_us: u64) -> bool {
        let mut plan = Plan::clone(&self.plan);
        let Some((upstream, index)) = plan.places().get(server as usize).copied() else {
            return false;
        };
        let servers = &mut plan.upstreams[usize::from(upstream)].servers;
        let others = servers
            .iter()
            .enumerate()
            .any(|(at, other)| at != usize::from(index) && !other.retired);
        if servers[usize::from(index)].retired == retired || retired && !others {
            return false;
        }
        servers[usize::from(index)].retired = retired;
        servers
            .iter_mut()
            .for_each(|server| server.weight_ordered = Some(1 + (at_us % 100) as u32));
        self.plan = Arc::new(plan);
        let adoption = Adoption::new(Arc::clone(&self.plan), self.servers.clone(), Vec::new());
        self.tell(&Command::Adopt(Arc::new(adoption)));
        true
    }

    fn tell(&self, command: &Command) {
        for (control, waker) in &self.controls {
            control.command(command.clone()).expect("it carries them out at once");
            waker.wake();
        }
    }
}

impl Actor for Operator {
    fn on_start(&mut self, net: &mut Net<'_>) {
        self.orders.iter().enumerate().for_each(|(index, one)| net.timer(one.at_us, index as u64));
    }

    fn on_timer(&mut self, _: &mut Net<'_>, index: u64) {
        let Ordered { server, order, at_us } = self.orders[index as usize];
        let by_file = !at_us.is_multiple_of(2);
        let done = match order {
            // Whichever way the server was taken out of use.
            Order::Enable => {
                self.reload(server, false, at_us);
                false
            }
            Order::Drain | Order::Disable => by_file && self.reload(server, true, at_us),
        };
        if !done {
            self.tell(&Command::Order { server, order });
        }
    }

    fn on_data(&mut self, _: &mut Net<'_>, _: Conn, _: &[u8]) {}
}
