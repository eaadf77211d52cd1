//! Sits between an actor and weir and speaks TLS for it, with a toy cipher: actors stay as they
//! are, and weir sees records.
//!
//! ```text
//!   client ── plain ──▶ Relay ── records ──▶ weir ── records ──▶ Relay ── plain ──▶ server
//! ```
//!
//! The plain side is calm, so that faults hit the records. It passes an orderly end (close_notify)
//! on as an end, and an end without one as a reset: the bytes before it may have been cut
//! (RFC 9112 §9.8). Some connections go wrong on purpose ([`Mischief`]).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use weir_io::sim::{Actor, Conn, Net, Rng};
use weir_tls::paper::{ClientPapers, Papers, record};
use weir_tls::{Cipher, HANDSHAKE_RECORD, RECORD_BYTES_MAX, Seal, State};

const ALERT_RECORD: u8 = 0x15;
/// Bytes that may wait to be sent on one side before the relay stops reading the other.
const QUEUED_MAX: usize = 64 << 10;

/// How a connection fails on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mischief {
    /// It speaks no TLS.
    Plain,
    /// It sends nothing, or half a message and nothing more.
    Stops(usize),
    /// It leaves in the middle of a message.
    Leaves,
    /// It sends an alert.
    Alerts,
    /// It makes the library of the other side panic.
    Panics,
    /// After this number of bytes it ends in the middle of a record.
    Cuts(usize),
    /// After this number of bytes a record is damaged.
    Damages(usize),
    /// After this number of bytes an alert replaces a record.
    Breaks(usize),
}

impl Mischief {
    fn random(rng: &mut Rng) -> Mischief {
        let shift = rng.between(1, 16);
        let after = rng.index(1 << shift);
        match rng.below(8) {
            0 => Mischief::Plain,
            1 => Mischief::Stops(rng.index(9)),
            2 => Mischief::Leaves,
            3 => Mischief::Alerts,
            4 => Mischief::Panics,
            5 => Mischief::Cuts(after),
            6 => Mischief::Damages(after),
            _ => Mischief::Breaks(after),
        }
    }

    /// The bytes that replace a handshake; None: the handshake is normal.
    fn instead(self) -> Option<Vec<u8>> {
        let mut hello = Vec::new();
        record(HANDSHAKE_RECORD, 0, &[b"hello"], &mut hello);
        match self {
            Mischief::Plain => hello = b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            Mischief::Stops(bytes) => hello.truncate(bytes),
            Mischief::Leaves => hello.truncate(7),
            Mischief::Alerts => record(ALERT_RECORD, 1, &[&[40]], &mut hello),
            Mischief::Panics => record(HANDSHAKE_RECORD, 1, &[b"panic"], &mut hello),
            Mischief::Cuts(_) | Mischief::Damages(_) | Mischief::Breaks(_) => return None,
        }
        Some(hello)
    }
}

/// The actor.
pub struct Relay {
    at: SocketAddr,
    to: SocketAddr,
    seal: Box<dyn Seal>,
    /// Whether the accepted side carries records; otherwise the side that it connects does.
    accepts_sealed: bool,
    /// Thousandths of connections that go wrong on purpose.
    mischief: u32,
    tunnels: Vec<Tunnel>,
    by_conn: BTreeMap<Conn, usize>,
}

/// A connection, with both of its sides.
struct Tunnel {
    plain: Conn,
    sealed: Conn,
    /// None: it has gone wrong, and waits for its end.
    cipher: Option<Box<dyn Cipher>>,
    mischief: Option<Mischief>,
    is_connected: bool,
    is_open: bool,
    /// Bytes of records that are not used yet.
    rest: Vec<u8>,
    /// Plain bytes that wait for the end of the handshake.
    held: Vec<u8>,
    sent: usize,
    plain_ended: bool,
    sealed_ended: bool,
}

impl Relay {
    /// Relays for clients: accepts them at `at`, and speaks TLS to `to`.
    pub fn of_clients(at: SocketAddr, to: SocketAddr, http2: bool, mischief: u32) -> Relay {
        Relay::new(at, to, Box::new(ClientPapers { http2 }), false, mischief)
    }

    /// Relays for a server at `to`: speaks TLS at `at`, with a flight of `flight` bytes.
    pub fn of_server(at: SocketAddr, to: SocketAddr, flight: usize, mischief: u32) -> Relay {
        Relay::new(at, to, Box::new(Papers(flight)), true, mischief)
    }

    fn new(
        at: SocketAddr,
        to: SocketAddr,
        seal: Box<dyn Seal>,
        accepts_sealed: bool,
        mischief: u32,
    ) -> Relay {
        Relay {
            at,
            to,
            seal,
            accepts_sealed,
            mischief,
            tunnels: Vec::new(),
            by_conn: BTreeMap::new(),
        }
    }

    fn tunnel(&mut self, conn: Conn) -> Option<&mut Tunnel> {
        self.tunnels.get_mut(*self.by_conn.get(&conn)?)
    }
}

impl Tunnel {
    /// Begins once both sides are connected.
    fn begin(&mut self, net: &mut Net<'_>) {
        net.calm(self.plain);
        self.is_connected = true;
        if let Some(bytes) = self.mischief.and_then(Mischief::instead) {
            self.cipher = None;
            net.send(self.sealed, &bytes);
            if self.mischief == Some(Mischief::Leaves) {
                net.finish(self.sealed);
            }
            return;
        }
        self.open(net);
    }

    /// Turns the records that have arrived into plain bytes.
    fn open(&mut self, net: &mut Net<'_>) {
        let Some(cipher) = self.cipher.as_mut().filter(|_| self.is_connected && !self.sealed_ended)
        else {
            return;
        };
        let (mut plain, mut out) = (Vec::new(), Vec::new());
        let opened = cipher.open(&mut self.rest, &mut plain, &mut out);
        self.rest.drain(..opened.used);
        self.is_open |= matches!(opened.state, Ok(State::Open | State::Ended));
        if self.is_open {
            // Held bytes follow the last message of the handshake.
            let held = std::mem::take(&mut self.held);
            self.seal(net, &held, out);
            self.say_end(net);
        } else {
            net.send(self.sealed, &out);
        }
        net.send(self.plain, &plain);
        self.hold_up(net);
        match opened.state {
            Ok(State::Ended) => {
                self.sealed_ended = true;
                net.finish(self.plain);
                self.close(net);
            }
            Ok(_) => {}
            Err(_) => {
                net.reset(self.plain);
                net.close(self.sealed);
            }
        }
    }

    /// Sends bytes in records, after `out`.
    fn seal(&mut self, net: &mut Net<'_>, bytes: &[u8], mut out: Vec<u8>) {
        let Some(cipher) = self.cipher.as_mut() else { return };
        let mut records = Vec::new();
        if !bytes.is_empty() {
            cipher
                .seal(&mut [], &[bytes], RECORD_BYTES_MAX, &mut records)
                .expect("paper does not wear out");
        }
        self.sent += bytes.len();
        let is_due = |after: usize| !bytes.is_empty() && self.sent > after;
        let mut goes_wrong = true;
        match self.mischief {
            Some(Mischief::Cuts(after)) if is_due(after) => drop(records.pop()),
            Some(Mischief::Damages(after)) if is_due(after) => {
                records.iter_mut().rev().take(1).for_each(|byte| *byte ^= 1)
            }
            Some(Mischief::Breaks(after)) if is_due(after) => records[0] = ALERT_RECORD,
            _ => goes_wrong = false,
        }
        out.extend(records);
        net.send(self.sealed, &out);
        if goes_wrong {
            self.cipher = None;
            if matches!(self.mischief, Some(Mischief::Cuts(_))) {
                net.finish(self.sealed);
            }
        }
    }

    /// Sends an end once the plain side has ended and all bytes before it are sent.
    fn say_end(&mut self, net: &mut Net<'_>) {
        if let Some(cipher) = self.cipher.as_mut().filter(|_| self.is_open && self.plain_ended) {
            let mut out = Vec::new();
            cipher.close(&mut [], &mut out);
            net.send(self.sealed, &out);
            net.finish(self.sealed);
            self.close(net);
        }
    }

    /// Reads neither side faster than the other takes its bytes.
    fn hold_up(&self, net: &mut Net<'_>) {
        for (from, to) in [(self.plain, self.sealed), (self.sealed, self.plain)] {
            if net.queued(to) > QUEUED_MAX {
                net.pause(from);
            }
        }
    }

    fn close(&self, net: &mut Net<'_>) {
        if self.plain_ended && self.sealed_ended {
            net.close(self.plain);
            net.close(self.sealed);
        }
    }
}

impl Actor for Relay {
    fn on_start(&mut self, net: &mut Net<'_>) {
        net.listen(self.at);
    }

    fn on_accepted(&mut self, net: &mut Net<'_>, conn: Conn, _: SocketAddr) {
        let made = net.connect(self.to);
        let (plain, sealed) = if self.accepts_sealed { (made, conn) } else { (conn, made) };
        let mischief = net.rng().chance(self.mischief).then(|| Mischief::random(net.rng()));
        self.by_conn.extend([(plain, self.tunnels.len()), (sealed, self.tunnels.len())]);
        self.tunnels.push(Tunnel {
            plain,
            sealed,
            cipher: Some(self.seal.cipher()),
            mischief,
            is_connected: false,
            is_open: false,
            rest: Vec::new(),
            held: Vec::new(),
            sent: 0,
            plain_ended: false,
            sealed_ended: false,
        });
    }

    fn on_connected(&mut self, net: &mut Net<'_>, conn: Conn, result: std::io::Result<()>) {
        let Some(tunnel) = self.tunnel(conn) else { return };
        match result {
            Ok(()) => tunnel.begin(net),
            Err(_) => {
                net.reset(tunnel.plain);
                net.reset(tunnel.sealed);
            }
        }
    }

    fn on_data(&mut self, net: &mut Net<'_>, conn: Conn, data: &[u8]) {
        let Some(tunnel) = self.tunnel(conn) else { return };
        if conn == tunnel.sealed {
            tunnel.rest.extend_from_slice(data);
            tunnel.open(net);
        } else if tunnel.is_open {
            tunnel.seal(net, data, Vec::new());
            tunnel.hold_up(net);
        } else {
            tunnel.held.extend_from_slice(data);
        }
    }

    fn on_end(&mut self, net: &mut Net<'_>, conn: Conn) {
        let Some(tunnel) = self.tunnel(conn) else { return };
        if conn == tunnel.plain {
            tunnel.plain_ended = true;
            tunnel.say_end(net);
        } else if !tunnel.sealed_ended {
            net.reset(tunnel.plain);
            net.close(tunnel.sealed);
        }
    }

    fn on_reset(&mut self, net: &mut Net<'_>, conn: Conn) {
        let Some(tunnel) = self.tunnel(conn) else { return };
        if conn == tunnel.plain {
            net.reset(tunnel.sealed);
        } else if !tunnel.sealed_ended {
            net.reset(tunnel.plain);
        }
    }

    fn on_drained(&mut self, net: &mut Net<'_>, conn: Conn) {
        let Some(tunnel) = self.tunnel(conn) else { return };
        net.resume(if conn == tunnel.plain { tunnel.sealed } else { tunnel.plain });
    }
}
