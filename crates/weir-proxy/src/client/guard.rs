//! Limits of `shield`: whether a client may connect, and whether a request is accepted (stages
//! accept and route).
//!
//! Called by `Clients::accepted` before memory is spent on the client; with TLS, a [`Door`] ran
//! before the handshake. Called by `Clients::request_parsed` before anything else is done for a
//! request. Each request is charged when it is parsed, before passwords are compared, a server is
//! chosen and the body is read. The accounts are those of [`crate::shield`], shared by all workers.
//! This module notes what this worker's connections and requests have open in them, and gives it
//! back when they end, or all of it when a worker restarts. Without `shield` no [`Guard`] exists.
//! Bound: [`KNOWN_BYTES`] a connection, and a request as many places as [`IN_PROGRESS_MAX`] allows.
//! docs/limits.md.

mod door;
mod standing;
mod suspect;

use std::net::IpAddr;
use std::sync::Arc;

use weir_http::{FieldName, Fields, RequestHead};

pub use self::door::{Door, Visit};
pub(super) use self::standing::Standing;
use self::suspect::{Moment, Said, Suspect};
use super::banned::{Asker, asker};
use super::connection::ClientConn;
use super::stalls::carrier_of;
use super::{Clients, tarpit};
use crate::action::Action;
use crate::base::keys::{ClientKey, ExchangeKey, FlowKey};
use crate::base::side_table::SideTable;
use crate::cause::Local;
use crate::context::Context;
use crate::ending::ClientEnd;
use crate::observe::counters::Counters;
use crate::plan::{IN_PROGRESS_MAX, LIMITS_MAX, LimitPlan, Over, Plan, ShieldPlan, Terms};
use crate::request::route::path;
use crate::shield::bans::Offence;
use crate::shield::by::{Counted, Message};
use crate::shield::key::Key;
use crate::shield::table::{Name, Place, Table, TableSeed};

/// After this many refusals in a row a connection ends.
const REFUSALS_MAX: u16 = 1000;
/// After this many refusals in a row the input of a connection is deferred, until a request is not
/// refused: bytes of many such connections together cost a fraction.
const DEFERRED_AFTER: u16 = 2;
/// Most clients to be banned that a turn can hold.
const OFFENCES_MAX: usize = 64;
/// The slots in the account of a client's offences: their number, and when the client was last
/// offered for a ban.
const OFFENDED: usize = 0;
const OFFERED: usize = 1;
/// No client is offered again within this time.
const OFFERED_US: u64 = 1_000_000;

/// Most memory for the notes on a connection.
const KNOWN_BYTES: usize = 112;
const _: () = assert!(size_of::<Option<Known>>() <= KNOWN_BYTES);

/// What clients of this worker have open in the accounts.
#[derive(Debug)]
pub(super) struct Guard {
    seed: Arc<TableSeed>,
    conns: SideTable<ClientKey, Known>,
    requests: SideTable<ExchangeKey, Holds>,
    /// Where connections of `tcp` count as open.
    flows: SideTable<FlowKey, Place>,
    /// Requests with responses that may count.
    watched: SideTable<ExchangeKey, Watched>,
    /// For the request that is just being taken.
    begun: Holds,
    begun_watched: Option<Watched>,
    offences: Offences,
    /// The values that the last request counts for.
    values: Vec<u8>,
}

/// The notes on a connection.
#[derive(Debug, Default)]
struct Known {
    /// Where it counts as open.
    open: Option<Place>,
    /// The account of its client among [`CONNECTIONS`], so that each request need not search for
    /// it.
    account: Option<(Key, Name, Place)>,
    /// Refusals in a row.
    refusals: u16,
    /// Its input is deferred.
    deferred: bool,
}

/// Where a request counts as in progress: for each such limit at two places at most.
type Holds = [Option<Place>; 2 * IN_PROGRESS_MAX];

/// The client of a response, and the limits that count it if its status is among theirs: a bit for
/// each, in their order.
#[derive(Debug, Clone)]
struct Watched {
    key: Key,
    limits: u64,
    /// The accounts of the limits that don't count by client, with the positions of those limits in
    /// that order.
    others: Vec<(usize, Name)>,
}

const _: () = assert!(LIMITS_MAX <= u64::BITS as usize);

/// Clients to be banned, until they are taken: at most [`OFFENCES_MAX`].
#[derive(Debug, Default)]
struct Offences(Vec<Offence>);

impl Offences {
    fn offer(&mut self, offence: Option<Offence>, counters: &Counters) {
        let Some(offence) = offence else { return };
        if self.0.len() < OFFENCES_MAX {
            self.0.push(offence);
        } else {
            counters.offences_lost.increment();
        }
    }

    fn take(&mut self) -> Option<Offence> {
        self.0.pop()
    }
}

/// A refused request.
struct Refusal {
    over: Over,
    retry_after_s: u32,
    /// It is the last of its connection, after too many refusals in a row.
    is_one_of_many: bool,
    /// Its connection also serves other clients.
    is_forwarded: bool,
}

impl Guard {
    /// For a plan with `shield`.
    fn new(plan: &ShieldPlan) -> Guard {
        let seed = Arc::clone(&plan.seed);
        Guard {
            seed,
            conns: SideTable::default(),
            requests: SideTable::default(),
            flows: SideTable::default(),
            watched: SideTable::default(),
            begun: Holds::default(),
            begun_watched: None,
            offences: Offences::default(),
            values: Vec::new(),
        }
    }

    /// Creates the guard for a plan; an old guard with the same accounts continues. Accounts are
    /// looked up again, because other rules may tell clients apart. Responses to earlier requests
    /// no longer count, because limits may have other positions.
    pub(super) fn of(plan: &Plan, old: Option<Box<Guard>>) -> Option<Box<Guard>> {
        let shield = plan.shield.as_ref()?;
        let old = old.filter(|old| Arc::ptr_eq(&old.seed, &shield.seed));
        let mut guard = old.unwrap_or_else(|| Box::new(Guard::new(shield)));
        guard.conns.iter_mut().for_each(|known| known.account = None);
        guard.watched = SideTable::default();
        Some(guard)
    }

    /// Records that an admitted client is this connection.
    pub(super) fn keep(&mut self, index: ClientKey, open: Option<Place>) {
        if open.is_some() {
            self.conns.get_or_default(index).open = open;
        }
    }

    /// Records that an admitted client of `tcp` is this flow.
    pub(super) fn keep_flow(&mut self, key: FlowKey, open: Option<Place>) {
        open.into_iter().for_each(|open| self.flows.put(key, open));
    }

    /// Records that a flow has ended.
    pub(super) fn flow_left(&mut self, key: FlowKey) {
        self.flows.take(key).into_iter().for_each(|place| self.seed.table().leave(place));
    }

    /// Turns away an admitted client after all.
    pub(super) fn turn_away(&self, open: Option<Place>) {
        open.into_iter().for_each(|place| self.seed.table().leave(place));
    }

    /// Records that a connection has ended.
    pub(super) fn left(&mut self, index: ClientKey) {
        if let Some(place) = self.conns.take(index).and_then(|known| known.open) {
            self.seed.table().leave(place);
        }
    }

    /// Records that the request that was just admitted has begun.
    #[inline]
    pub(super) fn begun(&mut self, exchange: ExchangeKey) {
        if self.begun != Holds::default() {
            *self.requests.get_or_default(exchange) = std::mem::take(&mut self.begun);
        }
        if let Some(watched) = self.begun_watched.take() {
            self.watched.put(exchange, watched);
        }
    }

    /// Records that a request has ended.
    #[inline]
    pub(super) fn ended(&mut self, exchange: ExchangeKey) {
        if let Some(holds) = self.requests.take(exchange) {
            self.give_back(holds);
        }
        self.watched.take(exchange);
    }

    /// Records that the final response to a request begins.
    #[inline]
    pub(super) fn answered(&mut self, exchange: ExchangeKey, status: u16, cx: &Context) {
        if let Some(watched) = self.watched.take(exchange) {
            charge_answer(&watched, status, cx);
        }
    }

    fn give_back(&self, holds: Holds) {
        holds.into_iter().flatten().for_each(|place| self.seed.table().leave(place));
    }

    /// Gives back what the request that is just being taken holds.
    fn forget_begun(&mut self) {
        let holds = std::mem::take(&mut self.begun);
        self.begun_watched = None;
        self.give_back(holds);
    }

    /// Connections with deferred input: they are not deferred any more.
    pub(super) fn take_deferred(&mut self) -> Vec<ClientKey> {
        let deferred =
            self.conns.iter().filter(|(_, known)| known.deferred).map(|(index, _)| index).collect();
        self.conns.iter_mut().for_each(|known| known.deferred = false);
        deferred
    }

    /// Returns a client that is to be banned, if any.
    pub(super) fn take_offence(&mut self) -> Option<Offence> {
        self.offences.take()
    }

    /// How much is open in accounts because of this worker.
    #[cfg(test)]
    fn holds(&self) -> usize {
        let requests = self.requests.iter().flat_map(|(_, holds)| holds.iter().flatten());
        self.conns.iter().filter(|(_, known)| known.open.is_some()).count() + requests.count()
    }
}

impl Drop for Guard {
    /// Runs also when a worker has lost everything.
    fn drop(&mut self) {
        let table = self.seed.table();
        let conns = self.conns.iter().filter_map(|(_, known)| known.open);
        let requests = self.requests.iter().flat_map(|(_, holds)| holds.iter().flatten().copied());
        let conns = conns.chain(self.flows.iter().map(|(_, place)| *place));
        let places = conns.chain(requests).chain(self.begun.iter().flatten().copied());
        places.for_each(|place| table.leave(place));
    }
}

/// The key of a client, or of a larger network that it belongs to.
fn key_of(client: IpAddr, plan: &ShieldPlan, table: &Table, now_us: u64) -> Key {
    let key = Key::of(client, plan.prefix);
    if plan.aggregate { table.client(key, now_us) } else { key }
}

/// Decides whether a client that has just connected may stay; returns where it counts as open,
/// which [`Guard::keep`] takes.
///
/// # Errors
/// The client may not stay; what to do with the connection.
pub(super) fn admit(guard: &mut Guard, peer: IpAddr, cx: &Context) -> Result<Option<Place>, Over> {
    let Some(plan) = door::applying(&cx.plan, peer) else { return Ok(None) };
    door::judge(plan, peer, false, Moment::of(cx), &mut guard.offences, &cx.counters)
}

/// The same for a client that a [`Door`] admitted.
pub(super) fn take_visit(guard: Option<&Guard>, visit: Visit) -> Option<Place> {
    visit.hand_over(guard)
}

/// Refuses a request that is over a limit, and returns whether it did; otherwise the request counts
/// as in progress as soon as it is an exchange.
#[inline(never)]
pub(super) fn is_over_limit(
    clients: &mut Clients,
    index: ClientKey,
    head: &RequestHead,
    fields: &Fields,
    bytes: &[u8],
    cx: &mut Context,
) -> bool {
    let (refusal, defers) = judge_request(clients, index, head, fields, bytes, cx);
    let carrier = carrier_of(&clients.answers.conns, index);
    if let Some(on) = defers {
        cx.actions.push_back(Action::DeferClient { socket: clients.conn(carrier).socket, on });
    }
    let Some(refusal) = refusal else { return false };
    let over = becomes(&refusal, clients, carrier, cx);
    // For the access log, which has each request.
    let exchange = clients.add_exchange(index, head, fields, bytes, cx);
    if over == Over::Reset {
        clients.conn_mut(carrier).flags.reset = true;
        clients.answers.close_conn(carrier, ClientEnd::OverLimit, cx);
        return true;
    }
    let ends = !refusal.is_forwarded && (over == Over::Close || refusal.is_one_of_many);
    let status = if let Over::Status(status) = over { status } else { 429 };
    if ends && carrier == index {
        clients.answers.conns.exchange_mut(exchange).want.close = true;
        clients.conn_mut(index).take_no_more();
    }
    let local = Local::OverLimit { status, retry_after_s: refusal.retry_after_s };
    match &cx.plan.shield {
        Some(plan) if over == Over::Tarpit => {
            let for_us = plan.tarpit_us;
            tarpit::hold(clients, index, exchange, head, local, for_us, cx);
        }
        _ => clients.answer_locally(index, exchange, head, bytes.len() > head.bytes, local, cx),
    }
    if ends && carrier != index && clients.is_there(carrier) {
        clients.answers.conns.drain_one(carrier, cx);
    }
    true
}

/// Decides what happens to a refused request and its connection. A connection that serves other
/// clients is never reset, and never made to wait.
fn becomes(refusal: &Refusal, clients: &Clients, carrier: ClientKey, cx: &Context) -> Over {
    let conns = &clients.answers.conns;
    let held_max = cx.plan.shield.as_ref().map_or(0, |plan| plan.tarpit_max);
    match refusal.over {
        Over::Reset | Over::Ban | Over::Tarpit if refusal.is_forwarded => Over::Status(429),
        // A client that has to leave is not held.
        Over::Tarpit if conns.at(carrier).flags.leaves => Over::Close,
        Over::Tarpit if conns.tarpit.is_full(held_max) => {
            cx.counters.tarpit_full.add(1);
            Over::Reset
        }
        Over::Ban => Over::Reset,
        over => over,
    }
}

/// Judges a request. Also returns whether the input of the connection is deferred from now on, if
/// that changes.
fn judge_request(
    clients: &mut Clients,
    index: ClientKey,
    head: &RequestHead,
    fields: &Fields,
    bytes: &[u8],
    cx: &Context,
) -> (Option<Refusal>, Option<bool>) {
    let Some(plan) = &cx.plan.shield else { return (None, None) };
    let carrier = carrier_of(&clients.answers.conns, index);
    let Asker { client, by_proxy, is_unknown } = asker(clients, index, fields, bytes, cx);
    // A request through a trusted proxy that names no client may come from any client.
    let guard =
        clients.answers.conns.guard.as_deref_mut().filter(|_| !is_unknown && !plan.allows(client));
    let Some(guard) = guard else { return (None, None) };
    let table = plan.seed.table();
    let key = key_of(client, plan, table, cx.now_us);
    let known = guard.conns.get(carrier).filter(|_| !by_proxy);
    let account = known.and_then(|known| known.account).filter(|(of, ..)| *of == key);
    let mut suspect =
        Suspect::new(table, key, account.map(|(_, name, place)| (name, place)), Moment::of(cx));
    let asked = Asked { message: Message { head, fields, bytes }, path: None };
    let refusal = judge_all(guard, &mut suspect, plan, asked, &mut clients.path);
    let (mut is_one_of_many, mut defers) = (false, None);
    if !by_proxy {
        let known = guard.conns.get_or_default(carrier);
        known.refusals = if refusal.is_some() { known.refusals.saturating_add(1) } else { 0 };
        is_one_of_many = known.refusals >= REFUSALS_MAX;
        // A connection of HTTP/2 carries other requests besides.
        let has_time = known.refusals >= DEFERRED_AFTER && carrier == index;
        defers = (std::mem::replace(&mut known.deferred, has_time) != has_time).then_some(has_time);
        if let Some((name, Some(place))) = suspect.first {
            known.account = Some((key, name, place));
        }
    }
    let Some((over, retry_after_s, offence)) = refusal else { return (None, defers) };
    guard.forget_begun();
    let says_for_whom = [FieldName::XForwardedFor, FieldName::Forwarded]
        .iter()
        .any(|name| fields.find(*name).is_some());
    let forwards = says_for_whom && !by_proxy;
    guard
        .offences
        .offer(offence.map(|offence| Offence { by_proxy, forwards, ..offence }), &cx.counters);
    (Some(Refusal { over, retry_after_s, is_one_of_many, is_forwarded: by_proxy }), defers)
}

/// Charges the limits that count such a response to such a request.
#[cold]
fn charge_answer(watched: &Watched, status: u16, cx: &Context) {
    let Some(plan) = &cx.plan.shield else { return };
    let mut suspect = Suspect::new(plan.seed.table(), watched.key, None, Moment::of(cx));
    for (at, limit) in plan.limits.iter().enumerate() {
        if watched.limits >> at & 1 == 1 && limit.answers.iter().any(|codes| codes.contain(status))
        {
            let mut is_by_client = true;
            for (_, name) in watched.others.iter().filter(|(other, _)| *other == at) {
                is_by_client = false;
                suspect.note_one(limit, Some(*name));
            }
            if is_by_client {
                suspect.note_one(limit, None);
            }
        }
    }
}

/// A connection has ended: charges its glitches and timeouts to its client, as at accept.
#[cold]
pub(super) fn charge_manners(conn: &ClientConn, cx: &Context) {
    let Some(plan) = door::applying(&cx.plan, conn.peer) else { return };
    let table = plan.seed.table();
    let mut suspect =
        Suspect::new(table, key_of(conn.peer, plan, table, cx.now_us), None, Moment::of(cx));
    for limit in &plan.limits {
        let times = match limit.terms {
            Terms::Glitches(_) => conn.glitches,
            Terms::Timeouts(_) => conn.flags.late.into(),
            _ => 0,
        };
        // The charge stops when a limit is exhausted.
        (0..times).take_while(|_| suspect.note_one(limit, None)).for_each(drop);
    }
}

/// The parts of a request that limits look at.
struct Asked<'a> {
    message: Message<'a>,
    /// Normalised; None: no limit has needed it yet.
    path: Option<&'a [u8]>,
}

impl<'a> Asked<'a> {
    /// Whether a limit applies to the request. An ambiguous path matches no limit: it is the reason
    /// to refuse the request.
    fn is_for(&mut self, limit: &LimitPlan, scratch: &mut Option<&'a mut Vec<u8>>) -> bool {
        if limit.requests.is_everything() {
            return true;
        }
        let Message { head, bytes, .. } = self.message;
        if let (None, Some(scratch)) = (self.path, scratch.take()) {
            self.path = Some(path::normalised(head.path.of(bytes), scratch).unwrap_or_default());
        }
        limit.requests.has(
            head.authority.of(bytes),
            self.path.unwrap_or_default(),
            head.method_span.of(bytes),
        )
    }
}

/// Charges the limits of requests in their order, up to the first that refuses. Returns what
/// happens to the request, the seconds for Retry-After, and the client to ban for it.
fn judge_all<'a>(
    guard: &mut Guard,
    suspect: &mut Suspect<'_>,
    plan: &ShieldPlan,
    mut asked: Asked<'a>,
    scratch: &'a mut Vec<u8>,
) -> Option<(Over, u32, Option<Offence>)> {
    let mut scratch = Some(scratch);
    let mut held = 0;
    guard.begun_watched = None;
    for (at, limit) in
        plan.limits.iter().enumerate().filter(|(_, limit)| !limit.terms.is_of_connections())
    {
        if !asked.is_for(limit, &mut scratch) {
            continue;
        }
        let account = (limit.seat.group, suspect.key);
        let names = match limit.by.counted(suspect.table, account, asked.message, &mut guard.values)
        {
            Counted::Client => [Some(None), None],
            Counted::Others(first, last) => [Some(Some(first)), last.map(Some)],
            Counted::Nobody => continue,
        };
        let mut said = None;
        for of in names.into_iter().flatten() {
            said = weigh(guard, suspect, plan, (at, limit), of, &mut held).or(said);
            if matches!(said, Some(Said::Over(_))) {
                break;
            }
        }
        let Some(said) = said else { continue };
        if let Some((retry_after_s, offence)) = suspect.judge(limit, &said, plan) {
            return Some((limit.over, retry_after_s, offence));
        }
    }
    None
}

/// Applies a limit to a request; `of`: another account than the client's. None: it passes, and its
/// response may count.
fn weigh(
    guard: &mut Guard,
    suspect: &mut Suspect<'_>,
    plan: &ShieldPlan,
    (at, limit): (usize, &LimitPlan),
    of: Option<Name>,
    held: &mut usize,
) -> Option<Said> {
    match limit.terms {
        Terms::InProgress(max) => {
            let (said, place) = suspect.enter(limit, max, plan.observe || limit.observe, of);
            if let Some(hold) = guard.begun.get_mut(*held) {
                *hold = place;
                *held += 1;
            } else {
                // More of them than a plan may have.
                place.into_iter().for_each(|place| suspect.table.leave(place));
            }
            Some(said)
        }
        Terms::Answers(_) => {
            let watched = guard.begun_watched.get_or_insert(Watched {
                key: suspect.key,
                limits: 0,
                others: Vec::new(),
            });
            watched.limits |= 1 << at;
            watched.others.extend(of.map(|name| (at, name)));
            Some(suspect.look(limit, of)).filter(|said| !matches!(said, Said::Passed))
        }
        _ => Some(suspect.charge(limit, of)),
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a worker returns everything that it has open in accounts when its clients end, and
    //! when the worker does. How: by hand.

    use super::*;
    use crate::base::keys::Key as _;
    use crate::shield::key::Prefix;
    use crate::shield::table::Entered;

    #[test]
    fn what_is_open_comes_back() {
        let plan = Plan { shield: Some(ShieldPlan::new(Vec::new(), 1024)), ..Plan::default() };
        let mut guard = Guard::of(&plan, None).unwrap();
        let seed = Arc::clone(&guard.seed);
        let name = seed.table().name(1, Key::of("192.0.2.1".parse().unwrap(), Prefix::default()));
        let enter = || match seed.table().enter(&name, None, 9, 1) {
            Entered::At(place, _) => place,
            other => panic!("{other:?}"),
        };
        for number in 0..3 {
            guard.conns.get_or_default(ClientKey::new(number)).open = Some(enter());
            guard.begun[0] = Some(enter());
            guard.begun(ExchangeKey::new(number));
        }
        assert_eq!((guard.holds(), seed.table().open_sum()), (6, 6));
        guard.left(ClientKey::new(1));
        guard.left(ClientKey::new(1));
        guard.ended(ExchangeKey::new(2));
        assert_eq!((guard.holds(), seed.table().open_sum()), (4, 4));
        let guard = Guard::of(&plan, Some(guard)).unwrap();
        assert_eq!(guard.holds(), 4, "another plan with the same accounts");
        assert!(Guard::of(&Plan::default(), Some(guard)).is_none());
        assert_eq!(seed.table().open_sum(), 0);
    }
}
