//! Who may shake hands: somebody else's affair, who is asked about each client in front of what costs something.
//!
//! [`Sealed`] asks its [`Gate`] when a client has connected, before there is any memory of him, and again in front of each step of his
//! handshake that may do the asymmetric work: of those who came at the same time more may have been let in than may shake hands. What
//! came of it is told. Servers are nobody's affair here.

use std::any::Any;
use std::net::{IpAddr, SocketAddr};

use weir_io::{Driver, Socket};

use crate::cipher::Failure;
use crate::sealed::Sealed;
use crate::session::{Origin, Session};

/// What becomes of a client who is not wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// He is closed.
    Close,
    /// He is reset.
    Reset,
}

/// What a gate keeps with a client whom it has let in. It is dropped when his handshake comes to nothing; else the caller may take it
/// ([`Sealed::take_pass`]), or it is dropped with the connection.
pub type Pass = Box<dyn Any>;

/// See the module. Times are microseconds of the driver's clock. All but [`Gate::admit`] is said of clients with a pass only.
pub trait Gate {
    /// A client of this address has connected to a listener that is sealed. None: he may shake hands, and nothing more is to be said of him.
    ///
    /// # Errors
    /// He is not wanted.
    fn admit(&mut self, client: IpAddr, now_us: u64) -> Result<Option<Pass>, Refusal>;

    /// A step of his handshake may do the asymmetric work, which it has not done yet. Whether it did is told at once by [`Gate::settle`].
    ///
    /// # Errors
    /// He is not wanted.
    fn charge(&mut self, client: IpAddr, pass: &mut Pass, now_us: u64) -> Result<(), Refusal>;

    /// That step is over. `worked`: the work was done; else it was not, or not yet.
    fn settle(&mut self, client: IpAddr, pass: &mut Pass, worked: bool, now_us: u64);

    /// His handshake has come to nothing, and not for want of room or for a fault of ours.
    fn failed(&mut self, client: IpAddr, pass: &mut Pass, now_us: u64);
}

impl<D: Driver> Sealed<D> {
    /// From now on who is accepted by a listener that is sealed is this gate's affair; before that, everybody may shake hands.
    pub fn set_gate(&mut self, gate: Box<dyn Gate>) {
        self.gate = Some(gate);
    }

    /// What the gate has kept with a connection that was told as accepted. It is told once.
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

    /// A step of a handshake is about to be made that may do the asymmetric work. Of one that has nothing to read none does.
    pub(crate) fn charge(&mut self, session: &mut Session) -> Result<(), Refusal> {
        let now_us = self.inner.now_us();
        match (&mut self.gate, &mut session.pass, session.origin) {
            (Some(gate), Some(pass), Origin::Accepted { peer, .. }) if !session.rest.is_empty() && !session.settled => {
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

    /// A handshake has come to nothing.
    pub(crate) fn tell_failed(&mut self, session: &mut Session, why: Failure) {
        let now_us = self.inner.now_us();
        let is_ours = match why {
            Failure::TooMany | Failure::Internal => true,
            // It has said its part, and waits for its turn here.
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
