//! The line of a connection of `tcp`, written when it has ended. It has the values of tunnels, and
//! nothing of HTTP.

use std::net::SocketAddr;

use super::{Access, Blame, Client, Placed, Record, Stage, render, write_address};
use crate::observe::secured::Secured;
use crate::request::pending_request::ConnId;

/// The values of a line for a connection. All times are microseconds.
#[derive(Debug)]
pub(crate) struct FlowLine {
    /// Its client.
    pub(crate) peer: SocketAddr,
    /// Its name.
    pub(crate) conn: ConnId,
    /// When it was accepted.
    pub(crate) begun_us: u64,
    /// When a server was connected; None: never.
    pub(crate) connected_us: Option<u64>,
    /// Index in the plan; None: no upstream.
    pub(crate) upstream: Option<u16>,
    /// The name that its client has asked for, if the first message was read.
    pub(crate) name: Option<Box<str>>,
    /// Index of the server in every engine; None: no server.
    pub(crate) server: Option<u32>,
    /// The original destination of its client, if that is not this machine.
    pub(crate) destination: Option<SocketAddr>,
    /// Bytes from the client and to it.
    pub(crate) moved: (u64, u64),
    /// Servers that were tried.
    pub(crate) tries: u32,
    /// Why it has ended.
    pub(crate) why: Blame,
    /// The stage at its end.
    pub(crate) stage: Stage,
    /// When it has ended.
    pub(crate) now_us: u64,
}

impl Access {
    /// A connection of `tcp` has ended.
    pub(crate) fn flow_ended(&mut self, mut line: FlowLine) {
        let mut client = Client { port: line.peer.port(), is_flow: true, ..Client::default() };
        write_address(&mut client.address, line.peer.ip());
        let name = line.name.take();
        client.secured =
            name.map(|name| Box::new(Secured { name: Some(name), ..Secured::default() }));
        // The destination of a client matters even if no server is there.
        let server = line.server.or(line.destination.map(|_| u32::MAX));
        let placed = server.map(|server| Placed {
            conn: line.conn,
            server,
            sent_us: line.connected_us.unwrap_or(line.now_us),
            connected_us: line.connected_us.unwrap_or(line.now_us),
            before: 0,
            address: line.destination,
        });
        let mut record = Record::default();
        record.reset(line.begun_us, self.newest());
        record.upstream = line.upstream;
        record.forwarded_us = Some(line.begun_us);
        record.first_connected_us = line.connected_us;
        (record.request_bytes, record.bytes_sent) = line.moved;
        (record.placed, record.tries) = (placed, line.tries);
        record.blame(line.why, line.stage);
        let around = &mut self.around;
        around.now_us = line.now_us;
        around.stamp.set((around.unix_us(line.now_us) / 1_000_000) as i64, around.zone_s);
        if let Some(template) = self.templates.back() {
            render::line(&mut self.lines, template, &record, &client, around);
            self.count += 1;
        }
    }
}
