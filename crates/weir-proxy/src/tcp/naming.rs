//! A flow with an upstream that depends on the name that its client asks for: weir reads the
//! client's first message and passes it on unchanged.
//!
//! The bytes that were received here are sent to the server ahead of those that the relay moves.
//! Bounds: [`HELLO_BYTES_MAX`] and the excess of one receive; `hello-timeout`.

use super::flow::Phase;
use super::hello::{self, Found, HELLO_BYTES_MAX};
use super::{Flows, Sides};
use crate::action::Action;
use crate::base::keys::FlowKey;
use crate::base::output::Out;
use crate::ending::FlowEnd;
use crate::upstream::flows::Tried;

/// Bytes that were received from a client before its server was connected.
#[derive(Debug, Default)]
pub(super) struct Hello {
    bytes: Vec<u8>,
    /// With fewer bytes nothing more can be said.
    wanted: usize,
    /// The name that the client asks for.
    pub(super) name: Option<Box<str>>,
    /// Bytes that were sent to the server ahead of those of the relay.
    pub(super) sent: u64,
}

impl Flows {
    /// A client of a block with names was accepted.
    pub(super) fn await_hello(&mut self, key: FlowKey, sides: &mut Sides<'_>) {
        let flow = self.flows.at(key);
        let timeout_us = flow.terms.names.as_ref().map_or(0, |names| names.timeout_us);
        sides.cx.actions.push_back(Action::ReceiveClient { socket: flow.client, on: true });
        self.hellos.put(key, Box::default());
        self.arm(key, sides.cx.now_us + timeout_us, sides.cx);
    }

    /// A client sent bytes.
    pub(crate) fn received(&mut self, token: u64, bytes: &[u8], sides: &mut Sides<'_>) {
        let Some(key) = self.of_token(token) else { return };
        let Some(hello) = self.hellos.get_mut(key) else { return };
        hello.bytes.extend_from_slice(bytes);
        if self.flows.at(key).phase != Phase::Hello || hello.bytes.len() < hello.wanted {
            return;
        }
        let found = match hello::read(&hello.bytes[..hello.bytes.len().min(HELLO_BYTES_MAX)]) {
            Found::More(wanted) if hello.bytes.len() < HELLO_BYTES_MAX => {
                return hello.wanted = wanted;
            }
            Found::Name(name) => Some(name),
            Found::More(_) | Found::Nothing => None,
        };
        hello.name = found;
        self.route(key, sides);
    }

    /// Routes a flow by the name that its client asks for, or by none.
    fn route(&mut self, key: FlowKey, sides: &mut Sides<'_>) {
        let name = self.hellos.get(key).and_then(|hello| hello.name.as_deref());
        let flow = self.flows.at_mut(key);
        let known = flow.terms.names.as_ref().zip(name).and_then(|(names, name)| names.find(name));
        sides.cx.actions.push_back(Action::ReceiveClient { socket: flow.client, on: false });
        let Some(upstream) = known.or(flow.terms.upstream) else {
            return self.end(key, FlowEnd::UnknownName, sides);
        };
        (flow.upstream, flow.phase) =
            (upstream, Phase::Connecting { tried: Tried::default(), any_port: false });
        self.connect(key, FlowEnd::NoServer, sides);
    }

    /// A client ended its direction; a relay hears of that from the driver.
    pub(crate) fn client_ended(&mut self, token: u64, sides: &mut Sides<'_>) {
        let waits = |key: &FlowKey| self.flows.at(*key).phase == Phase::Hello;
        if let Some(key) = self.of_token(token).filter(waits) {
            self.end(key, FlowEnd::HelloTruncated, sides);
        }
    }

    /// A client's connection broke before it was relayed.
    pub(crate) fn client_failed(&mut self, token: u64, sides: &mut Sides<'_>) {
        let is_early = |key: &FlowKey| !matches!(self.flows.at(*key).phase, Phase::Relaying { .. });
        if let Some(key) = self.of_token(token).filter(is_early) {
            self.end(key, FlowEnd::ClientReset, sides);
        }
    }

    /// Sends the bytes that were received from a client to its server before anything else.
    pub(super) fn send_hello(&mut self, key: FlowKey, server: u64, sides: &mut Sides<'_>) {
        let Some(hello) = self.hellos.get_mut(key).filter(|hello| !hello.bytes.is_empty()) else {
            return;
        };
        let bytes = std::mem::take(&mut hello.bytes);
        hello.sent = bytes.len() as u64;
        sides.cx.actions.push_back(Action::SendUpstream { socket: server, out: Out::Owned(bytes) });
    }
}
