//! Comparisons between connections. Those with one of several congestion controls are measured at
//! their end, and for some the cores that receive both sides are compared. Other connections pay
//! only for the check whether they are among these.

use std::sync::Arc;

use super::flow::Flow;
use super::{Flows, Sides};
use crate::action::{Action, MeasuredArm};
use crate::base::keys::FlowKey;
use crate::context::Context;
use crate::plan::Side;

/// One of this many connections is looked at, which costs two system calls.
const COMPARED_EACH: u32 = 64;

/// The congestion controls of a connection, on each side that has one of several.
#[derive(Debug, Default)]
pub(super) struct Divided {
    client: Option<Arc<str>>,
    server: Option<Arc<str>>,
}

impl Divided {
    /// Requests the measurement of a flow that is about to be closed, if it ever had both sides.
    pub(super) fn measure(self, flow: &Flow, cx: &mut Context) {
        let (Some(connected_us), Some(server)) = (flow.connected_us(), flow.server()) else {
            return;
        };
        let lasted_us = cx.now_us.saturating_sub(connected_us);
        let sides = [(Side::Client, flow.client, self.client), (Side::Server, server, self.server)];
        for (side, socket, name) in sides {
            if let Some(name) = name {
                cx.actions.push_back(Action::Measure {
                    socket,
                    arm: Box::new(MeasuredArm { side, name, lasted_us }),
                });
            }
        }
    }
}

impl Flows {
    /// Notes that the flow of a token has one of several congestion controls on this side.
    pub(crate) fn has_arm(&mut self, token: u64, side: Side, name: &Arc<str>) {
        if let Some(key) = self.of_token(token) {
            self.keep_arm(key, side, name);
        }
    }

    pub(super) fn keep_arm(&mut self, key: FlowKey, side: Side, name: &Arc<str>) {
        let divided = self.divided.get_or_default(key);
        let place = match side {
            Side::Client => &mut divided.client,
            Side::Server => &mut divided.server,
        };
        *place = Some(Arc::clone(name));
    }

    /// Both sides are connected: compares the cores of some flows.
    pub(super) fn compare_cores(&mut self, client: u64, server: u64, sides: &mut Sides<'_>) {
        match self.uncompared.checked_sub(1) {
            Some(left) => self.uncompared = left,
            None => {
                self.uncompared = COMPARED_EACH - 1;
                sides.cx.actions.push_back(Action::CompareCores { client, server });
            }
        }
    }
}
