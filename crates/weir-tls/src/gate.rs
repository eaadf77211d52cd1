//! Decides which clients may shake hands: a [`Gate`] is asked about each client before anything
//! expensive.
//!
//! [`Sealed`] asks its [`Gate`] when a client has connected, before it allocates any memory for the
//! client. It asks again before each handshake step that may do the asymmetric work: of the clients
//! that arrived at the same time, more may have been admitted than may shake hands. The gate learns
//! the outcome. Connections to servers do not pass a gate.

use std::any::Any;
use std::net::{IpAddr, SocketAddr};

use weir_io::{Driver, Socket};

use crate::cipher::Failure;
use crate::sealed::Sealed;
use crate::session::{Origin, Session};

/// How an unwanted client is turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Its connection is closed.
    Close,
    /// Its connection is reset.
    Reset,
}

/// State that a gate keeps with a client that it has admitted. It is dropped when the client's
/// handshake fails. Otherwise the caller may take it ([`Sealed::take_pass`]), or it is dropped with
/// the connection.
pub type Pass = Box<dyn Any>;

/// See the module. Times are microseconds of the driver's clock. All methods except [`Gate::admit`]
/// are called only for clients with a pass.
pub trait Gate {
    /// A client with this address has connected to a sealed listener. None: it may shake hands, and
    /// the gate hears nothing more about it.
    ///
    /// # Errors
    /// The client is unwanted.
    fn admit(&mut self, client: IpAddr, now_us: u64) -> Result<Option<Pass>, Refusal>;

    /// A step of the client's handshake may do the asymmetric work, which has not been done yet.
    /// [`Gate::settle`] reports immediately afterwards whether it was done.
    ///
    /// # Errors
    /// The client is unwanted.
    fn charge(&mut self, client: IpAddr, pass: &mut Pass, now_us: u64) -> Result<(), Refusal>;

    /// The step is over. `worked`: the work was done; otherwise it was not, or not yet.
    fn settle(&mut self, client: IpAddr, pass: &mut Pass, worked: bool, now_us: u64);

    /// The client's handshake has failed, but not for lack of room or because of a fault of ours.
    fn failed(&mut self, client: IpAddr, pass: &mut Pass, now_us: u64);
}

impl<D: Driver> Sealed<D> {
    /// From now on this gate judges the clients that sealed listeners accept; until then every
    /// client may shake hands.
    pub fn set_gate(&mut self, gate: Box<dyn Gate>) {
        self.gate = Some(gate);
    }

    /// Takes what the gate has kept with a connection that was reported as accepted. Returns it
    /// only once.
    pub fn take_pass(&mut self, socket: Socket) -> Option<Pass> {
        self.sessions.get_mut(socket)?.pass.take()
    }

    /// A client has connected to a listener that is sealed.
    pub(crate) fn arrived(&mut self, socket: Socket, listener: Socket, peer: SocketAddr) {
        let now_us = self.inner.now_us();
        let admitted = self.gate.as_mut().map_or(Ok(None), |gate| gate.admit(peer.ip(), now_us));
        match admitted {
            Ok(pass) => {
                self.begin(socket, Origin::Accepted { listener, peer }, None, 0);
                if let Some(session) = self.sessions.get_mut(socket) {
                    session.pass = pass;
                }
            }
            Err(refusal) => self.refuse(socket, refusal),
        }
    }

    pub(crate) fn refuse(&mut self, socket: Socket, refusal: Refusal) {
        match refusal {
            Refusal::Close => self.inner.close(socket),
            Refusal::Reset => self.inner.reset(socket),
        }
    }

    /// A handshake step that may do the asymmetric work is about to be made. A step with nothing to
    /// read does none.
    pub(crate) fn charge(&mut self, session: &mut Session) -> Result<(), Refusal> {
        let now_us = self.inner.now_us();
        match (&mut self.gate, &mut session.pass, session.origin) {
            (Some(gate), Some(pass), Origin::Accepted { peer, .. })
                if !session.rest.is_empty() && !session.settled =>
            {
                session.charged = true;
                gate.charge(peer.ip(), pass, now_us)
            }
            _ => Ok(()),
        }
    }

    /// The step was made.
    pub(crate) fn settle(&mut self, session: &mut Session) {
        let now_us = self.inner.now_us();
        if !std::mem::take(&mut session.charged) {
            return;
        }
        let worked = session.cipher.as_ref().and_then(|cipher| cipher.has_worked());
        session.settled = worked.is_some();
        if let (Some(gate), Some(pass), Origin::Accepted { peer, .. }) =
            (&mut self.gate, &mut session.pass, session.origin)
        {
            gate.settle(peer.ip(), pass, worked == Some(true), now_us);
        }
    }

    /// A handshake has failed.
    pub(crate) fn tell_failed(&mut self, session: &mut Session, why: Failure) {
        let now_us = self.inner.now_us();
        let is_ours = match why {
            Failure::TooMany | Failure::Internal => true,
            // The client has done its part, and its handshake waits here for its turn.
            Failure::Timeout | Failure::Left => session.listed,
            _ => false,
        };
        if let (Some(gate), Some(mut pass), Origin::Accepted { peer, .. }) =
            (&mut self.gate, session.pass.take(), session.origin)
            && !is_ours
        {
            gate.failed(peer.ip(), &mut pass, now_us);
        }
    }
}
