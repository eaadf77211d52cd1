//! The access log of one worker: records of exchanges in progress, and the lines of those that
//! ended.
//!
//! Exists only when a log is configured. Called by `client/account.rs`; lines leave once a turn
//! through [`crate::engine::Engine::take_lines`]. An exchange ends for the log when the kernel has
//! taken the last byte of its response, or when its client is gone. Bound: a record for each
//! exchange, and for each response with the driver.

mod calendar;
mod flow;
mod name;
mod record;
mod render;
mod template;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use crate::base::keys::{ClientKey, ExchangeKey, Key};
use crate::observe::secured::Secured;
use crate::plan::{Plan, Shown};
use calendar::Stamp;

pub(crate) use flow::FlowLine;
pub use name::Name;
pub(crate) use record::Compressed;
pub use record::{Blame, LINE_BYTES_MAX, Party, Placed, Record, Stage, VALUE_BYTES_MAX};
pub(crate) use template::pieces;
pub use template::{
    COMBINED, COMMON, Escape, FIELDS_MAX, JSON, TEMPLATE_BYTES_MAX, Template, TemplateError,
};

/// Records kept for reuse.
const SPARE_RECORDS_MAX: usize = 256;
/// Text of a record that is worth keeping for reuse, bytes.
const SPARE_TEXT_BYTES_MAX: usize = 4096;
/// Buffer for lines that is kept from one turn to the next, bytes.
const LINES_BYTES_KEPT: usize = 256 * 1024;

/// `access-log` of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessPlan {
    /// The destination of lines.
    pub destination: Destination,
    /// The format of lines.
    pub template: Template,
}

/// The destination of lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// Standard output.
    Stdout,
    /// A file, which is appended to, or a FIFO.
    File(PathBuf),
}

/// One client connection, as named in lines.
#[derive(Debug, Default)]
struct Client {
    address: String,
    port: u16,
    /// Its TLS parameters; None: no TLS.
    secured: Option<Box<Secured>>,
    /// Bytes that the kernel took.
    delivered: u64,
    /// The end of the last complete response within everything that it was sent.
    answered: u64,
    /// Complete responses that the kernel has not taken completely.
    waiting: VecDeque<Box<Record>>,
    /// It is a connection of `tcp`, which has no requests.
    is_flow: bool,
}

/// The context of a line besides its record.
#[derive(Debug)]
struct Surroundings {
    now_us: u64,
    /// Wall clock minus monotonic clock.
    offset_us: i64,
    zone_s: i32,
    stamp: Stamp,
    worker: u16,
    plan: Arc<Plan>,
    /// Addresses, by index of the server in every engine.
    servers: Vec<String>,
}

impl Surroundings {
    /// Microseconds since 1970.
    fn unix_us(&self, monotonic_us: u64) -> u64 {
        monotonic_us.saturating_add_signed(self.offset_us)
    }

    fn upstream(&self, upstream: Option<u16>) -> &[u8] {
        let plan = upstream.and_then(|upstream| self.plan.upstreams.get(usize::from(upstream)));
        plan.map_or(&[], |plan| plan.name.as_bytes())
    }

    fn server(&self, server: u32) -> &[u8] {
        self.servers.get(server as usize).map_or(&[], |address| address.as_bytes())
    }
}

/// The access log of one worker.
#[derive(Debug)]
pub(crate) struct Access {
    /// The formats of records in progress; the last one is in force.
    templates: VecDeque<Template>,
    /// The number of the first of them.
    oldest: u32,
    around: Surroundings,
    /// By slot of the exchange.
    records: Vec<Option<Box<Record>>>,
    /// By slot of the connection.
    clients: Vec<Client>,
    // Records move from table to queue to here as pointers; their memory is not moved.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Record>>,
    lines: Vec<u8>,
    count: u64,
}

impl Access {
    /// Returns None when no log is configured.
    pub(crate) fn new(plan: &Arc<Plan>, worker: u16) -> Option<Box<Access>> {
        let template = plan.access_log.as_ref()?.template.clone();
        let around = Surroundings {
            now_us: 0,
            offset_us: 0,
            zone_s: 0,
            stamp: Stamp::default(),
            worker,
            plan: Arc::clone(plan),
            servers: addresses(plan),
        };
        Some(Box::new(Access {
            templates: VecDeque::from([template]),
            oldest: 0,
            around,
            records: Vec::new(),
            clients: Vec::new(),
            spare: Vec::new(),
            lines: Vec::new(),
            count: 0,
        }))
    }

    /// Another plan with a log is in force. Exchanges in progress are written in the format in
    /// which they began.
    pub(crate) fn adopt(&mut self, plan: &Arc<Plan>) {
        self.around.plan = Arc::clone(plan);
        self.around.servers = addresses(plan);
        let Some(AccessPlan { template, .. }) = &plan.access_log else { return };
        if self.templates.back() != Some(template) {
            self.templates.push_back(template.clone());
        }
        let waiting = self.clients.iter().flat_map(|client| &client.waiting);
        let begun = self.records.iter().flatten().chain(waiting).map(|record| record.template());
        let oldest = begun.min().unwrap_or(u32::MAX).min(self.newest());
        self.templates.drain(..(oldest - self.oldest) as usize);
        self.oldest = oldest;
    }

    /// Returns the number of the template that is in force.
    fn newest(&self) -> u32 {
        self.oldest + self.templates.len() as u32 - 1
    }

    /// Sets the wall clock.
    pub(crate) fn set_wall(&mut self, offset_us: i64, zone_s: i32) {
        (self.around.offset_us, self.around.zone_s) = (offset_us, zone_s);
    }

    /// A client was accepted.
    pub(crate) fn accepted(&mut self, conn: ClientKey, peer: SocketAddr) {
        let at = conn.index();
        if at >= self.clients.len() {
            self.clients.resize_with(at + 1, Client::default);
        }
        let client = &mut self.clients[at];
        debug_assert!(client.waiting.is_empty());
        (client.port, client.delivered, client.answered) = (peer.port(), 0, 0);
        client.secured = None;
        client.address.clear();
        write_address(&mut client.address, peer.ip().to_canonical());
    }

    /// A stream of a connection was opened: its lines name the client of that connection.
    pub(crate) fn stream_opened(&mut self, stream: ClientKey, carrier: ClientKey) {
        let of = &self.clients[carrier.index()];
        let client = Client {
            address: of.address.clone(),
            port: of.port,
            secured: of.secured.clone(),
            ..Client::default()
        };
        if stream.index() >= self.clients.len() {
            self.clients.resize_with(stream.index() + 1, Client::default);
        }
        self.clients[stream.index()] = client;
    }

    /// A client that was accepted speaks TLS.
    pub(crate) fn sealed(&mut self, conn: ClientKey, secured: Secured) {
        self.clients[conn.index()].secured = Some(Box::new(secured));
    }

    /// Begins the record of an exchange.
    pub(crate) fn begin(
        &mut self,
        slot: ExchangeKey,
        received_us: u64,
    ) -> (&mut Record, &[String]) {
        let at = slot.index();
        if at >= self.records.len() {
            self.records.resize_with(at + 1, || None);
        }
        let mut record = self.spare.pop().unwrap_or_default();
        record.reset(received_us, self.newest());
        let fields = self.templates.back().map_or(&[][..], |template| &template.fields);
        (self.records[at].insert(record), fields)
    }

    /// Returns the record of an exchange.
    pub(crate) fn record(&mut self, slot: ExchangeKey) -> Option<&mut Record> {
        self.records.get_mut(slot.index())?.as_deref_mut()
    }

    /// The response is complete. `stream_bytes`: everything for the client so far, whether taken by
    /// the kernel, with the driver or waiting.
    pub(crate) fn complete(
        &mut self,
        conn: ClientKey,
        slot: ExchangeKey,
        stream_bytes: u64,
        now_us: u64,
    ) {
        let Some(mut record) = self.records.get_mut(slot.index()).and_then(Option::take) else {
            return;
        };
        let client = &mut self.clients[conn.index()];
        record.bytes_sent = stream_bytes - client.answered;
        record.end_at = stream_bytes;
        client.answered = stream_bytes;
        client.waiting.push_back(record);
        self.write_delivered(conn, now_us);
    }

    /// The kernel took `bytes` more.
    pub(crate) fn delivered(&mut self, conn: ClientKey, bytes: u64, now_us: u64) {
        self.clients[conn.index()].delivered += bytes;
        self.write_delivered(conn, now_us);
    }

    /// Returns the bytes that the kernel took so far.
    pub(crate) fn delivered_bytes(&self, conn: ClientKey) -> u64 {
        self.clients[conn.index()].delivered
    }

    fn write_delivered(&mut self, conn: ClientKey, now_us: u64) {
        loop {
            let client = &mut self.clients[conn.index()];
            let delivered = client.delivered;
            let Some(mut record) = client.waiting.pop_front_if(|record| record.end_at <= delivered)
            else {
                return;
            };
            record.blame(record.last_because, Stage::Done);
            self.write(conn, record, now_us);
        }
    }

    /// The connection ends: responses that the client does not have yet will not arrive.
    pub(crate) fn close(&mut self, conn: ClientKey, why: Blame, now_us: u64) {
        while let Some(mut record) = self.clients[conn.index()].waiting.pop_front() {
            let missing = record.end_at.saturating_sub(self.clients[conn.index()].delivered);
            record.bytes_sent = record.bytes_sent.saturating_sub(missing);
            record.blame(why, Stage::Deliver);
            self.write(conn, record, now_us);
        }
    }

    /// The exchange ends without a complete response, or in order if it was a tunnel.
    pub(crate) fn abandon(
        &mut self,
        conn: ClientKey,
        slot: ExchangeKey,
        why: Blame,
        stage: Stage,
        now_us: u64,
    ) {
        let Some(mut record) = self.records.get_mut(slot.index()).and_then(Option::take) else {
            return;
        };
        record.blame(why, stage);
        if record.status == 0 {
            record.status = if record.party == Party::Client { 499 } else { 444 };
        }
        let client = &mut self.clients[conn.index()];
        record.bytes_sent = client.delivered.saturating_sub(client.answered);
        client.answered = client.answered.max(client.delivered);
        self.write(conn, record, now_us);
    }

    fn write(&mut self, conn: ClientKey, record: Box<Record>, now_us: u64) {
        let around = &mut self.around;
        around.now_us = now_us;
        around.stamp.set((around.unix_us(now_us) / 1_000_000) as i64, around.zone_s);
        let template = &self.templates[(record.template() - self.oldest) as usize];
        render::line(&mut self.lines, template, &record, &self.clients[conn.index()], around);
        self.count += 1;
        if self.spare.len() < SPARE_RECORDS_MAX && record.text_capacity() <= SPARE_TEXT_BYTES_MAX {
            self.spare.push(record);
        }
    }

    /// Passes the lines of this turn and their number to `to`, if there are any.
    pub(crate) fn take_lines(&mut self, to: impl FnOnce(&[u8], u64)) {
        if self.count > 0 {
            to(&self.lines, self.count);
            self.count = 0;
            self.lines.clear();
            self.lines.shrink_to(LINES_BYTES_KEPT);
        }
    }
}

/// Returns the addresses of all servers, by slot.
fn addresses(plan: &Plan) -> Vec<String> {
    let servers = (0..plan.servers()).filter_map(|slot| plan.server(slot));
    servers.map(|(_, server)| server.address.to_string()).collect()
}

fn write_address(out: &mut String, address: IpAddr) {
    use std::fmt::Write;
    // Writing to a string cannot fail.
    let _ = write!(out, "{}", Shown(address));
}
