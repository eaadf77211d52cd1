//! An operator, who tells every worker what is to become of a server.

use std::sync::Arc;

use weir_io::Waker;
use weir_io::sim::{Actor, Conn, Net};
use weir_worker::{Command, Control};

use super::dials::Ordered;

/// The actor.
pub struct Operator {
    pub orders: Vec<Ordered>,
    /// Of each worker.
    pub controls: Vec<(Arc<Control>, Arc<dyn Waker>)>,
}

impl Actor for Operator {
    fn on_start(&mut self, net: &mut Net<'_>) {
        self.orders.iter().enumerate().for_each(|(index, one)| net.timer(one.at_us, index as u64));
    }

    fn on_timer(&mut self, _: &mut Net<'_>, index: u64) {
        let Ordered { server, order, .. } = self.orders[index as usize];
        for (control, waker) in &self.controls {
            control.command(Command::Order { server, order }).expect("it carries them out at once");
            waker.wake();
        }
    }

    fn on_data(&mut self, _: &mut Net<'_>, _: Conn, _: &[u8]) {}
}
