//! A scripted name server on loopback: replies for a name in the order of a script, the last of
//! which is repeated; counts queries. Unknown names do not exist. UDP only, so nothing longer than
//! a datagram.
//!
//! Uses nothing of the kit, because tests inside the crate use it as well. Nothing waits by
//! sleeping: a slow reply is slow until [`NameServer::release`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::rdata::{CNAME, SOA, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use weir_check::waiting::Waiting;

/// The type of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// The servers of a service.
    Srv,
}

/// One reply.
#[derive(Debug, Clone)]
pub enum Reply {
    /// These addresses, for this many seconds.
    Addresses(Vec<IpAddr>, u32),
    /// Priority, weight, port and host of each server of a service, for this many seconds.
    Services(Vec<(u16, u16, u16, &'static str)>, u32),
    /// An alias for another name, for this many seconds; with the records of that name, if sent at
    /// once.
    Alias(&'static str, u32, Option<Box<Reply>>),
    /// The name does not exist, for this many seconds.
    NoSuchName(u32),
    /// The name has no addresses of this kind, for this many seconds.
    Nothing(u32),
    /// SERVFAIL.
    Failure,
    /// No reply.
    Silence,
    /// This reply, when the name is released.
    Held(Box<Reply>),
    /// Datagrams that do not belong to the query, then this reply.
    Garbage(Box<Reply>),
}

impl Reply {
    /// Returns addresses from text with spaces between them.
    ///
    /// # Panics
    /// A word is not an address.
    pub fn of(addresses: &str, ttl_s: u32) -> Reply {
        Reply::Addresses(
            addresses.split_whitespace().map(|word| word.parse().expect("an address")).collect(),
            ttl_s,
        )
    }

    /// Returns the same, held until it is released.
    pub fn held(self) -> Reply {
        Reply::Held(Box::new(self))
    }
}

/// A running name server.
#[derive(Debug)]
pub struct NameServer {
    /// Its address.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    socket: UdpSocket,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    scripts: HashMap<(String, Kind), VecDeque<Reply>>,
    /// Message identifiers by query: a repeated datagram has the same one.
    asked: HashMap<(String, Kind), HashSet<u16>>,
    held: Vec<(String, Message, Reply, SocketAddr)>,
    released: HashSet<String>,
    ending: bool,
}

impl NameServer {
    /// Starts without any names.
    pub fn start() -> NameServer {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let address = socket.local_addr().expect("bound");
        let shared = Arc::new(Shared { socket, state: Mutex::default(), changed: Condvar::new() });
        let work = Arc::clone(&shared);
        let thread = Some(std::thread::spawn(move || work.work()));
        NameServer { address, shared, thread }
    }

    /// Sets the replies to queries for a name: one for each query, the last one for all further
    /// ones.
    pub fn script(&self, name: &str, kind: Kind, replies: impl IntoIterator<Item = Reply>) {
        self.shared.state().scripts.insert((name.to_owned(), kind), replies.into_iter().collect());
    }

    /// Returns the number of queries; a datagram that is only repeated counts once.
    pub fn asked(&self, name: &str, kind: Kind) -> usize {
        self.shared.state().asked.get(&(name.to_owned(), kind)).map_or(0, HashSet::len)
    }

    /// Waits until a query has been sent this often.
    ///
    /// # Panics
    /// That does not happen in time.
    pub fn wait_for(&self, name: &str, kind: Kind, times: usize) {
        let mut waiting = Waiting::begin();
        let key = (name.to_owned(), kind);
        let mut state = self.shared.state();
        while state.asked.get(&key).map_or(0, HashSet::len) < times {
            let asked = state.asked.get(&key).map_or(0, HashSet::len);
            assert!(
                waiting.goes_on(),
                "{name} was asked for {asked} of {times} times; {}",
                waiting.story()
            );
            state = self.shared.changed.wait_timeout(state, waiting.block()).expect("no panic").0;
        }
    }

    /// Sends the held replies for a name, and holds no more of them.
    pub fn release(&self, name: &str) {
        let mut state = self.shared.state();
        state.released.insert(name.to_owned());
        let (due, held): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.held).into_iter().partition(|held| held.0 == name);
        state.held = held;
        drop(state);
        for (_, question, reply, to) in due {
            self.shared.answer(&question, &reply, to);
        }
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.shared.state().ending = true;
        let _ = self.shared.socket.send_to(&[], self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    fn work(&self) {
        let mut buffer = [0; 4096];
        loop {
            let received = self.socket.recv_from(&mut buffer);
            if self.state().ending {
                return;
            }
            if let Ok((length, from)) = received
                && let Ok(question) = Message::from_vec(&buffer[..length])
            {
                self.serve(&question, from);
            }
        }
    }

    fn serve(&self, question: &Message, from: SocketAddr) {
        let Some(query) = question.queries.first() else { return };
        let name = query.name().to_ascii().trim_end_matches('.').to_ascii_lowercase();
        let kind = match query.query_type() {
            RecordType::A => Kind::A,
            RecordType::AAAA => Kind::Aaaa,
            RecordType::SRV => Kind::Srv,
            _ => return,
        };
        let mut state = self.state();
        let is_new =
            state.asked.entry((name.clone(), kind)).or_default().insert(question.metadata.id);
        let is_known = [Kind::A, Kind::Aaaa, Kind::Srv]
            .iter()
            .any(|kind| state.scripts.contains_key(&(name.clone(), *kind)));
        let reply = match state.scripts.get_mut(&(name.clone(), kind)) {
            Some(replies) if replies.len() > 1 && is_new => replies.pop_front(),
            Some(replies) => replies.front().cloned(),
            None => Some(if is_known { Reply::Nothing(60) } else { Reply::NoSuchName(60) }),
        };
        let reply = reply.unwrap_or(Reply::Silence);
        if let Reply::Held(reply) = &reply
            && !state.released.contains(&name)
        {
            state.held.push((name, question.clone(), (**reply).clone(), from));
            drop(state);
        } else {
            drop(state);
            self.answer(question, &reply, from);
        }
        self.changed.notify_all();
    }

    fn answer(&self, question: &Message, reply: &Reply, to: SocketAddr) {
        let Some(query) = question.queries.first() else { return };
        let mut message = Message::response(question.metadata.id, question.metadata.op_code);
        message.metadata.recursion_desired = question.metadata.recursion_desired;
        message.metadata.recursion_available = true;
        message.add_query(query.clone());
        if self.fill(&mut message, query, reply, to) {
            let _ = self.socket.send_to(&message.to_vec().expect("a short message"), to);
        }
    }

    /// False: nothing to send.
    fn fill(&self, message: &mut Message, query: &Query, reply: &Reply, to: SocketAddr) -> bool {
        match reply {
            Reply::Silence => return false,
            Reply::Failure => message.metadata.response_code = ResponseCode::ServFail,
            Reply::Nothing(ttl_s) => nothing(message, *ttl_s),
            Reply::NoSuchName(ttl_s) => {
                message.metadata.response_code = ResponseCode::NXDomain;
                nothing(message, *ttl_s);
            }
            Reply::Addresses(list, ttl_s) => addresses(message, query.name(), list, *ttl_s),
            Reply::Services(list, ttl_s) => {
                for (priority, weight, port, target) in list {
                    let target = Name::from_ascii(format!("{target}.")).expect("a name");
                    let data = RData::SRV(SRV::new(*priority, *weight, *port, target));
                    message.add_answer(Record::from_rdata(query.name().clone(), *ttl_s, data));
                }
            }
            Reply::Alias(target, ttl_s, then) => {
                let target = Name::from_ascii(format!("{target}.")).expect("a name");
                let alias = RData::CNAME(CNAME(target.clone()));
                message.add_answer(Record::from_rdata(query.name().clone(), *ttl_s, alias));
                if let Some(Reply::Addresses(list, ttl_s)) = then.as_deref() {
                    addresses(message, &target, list, *ttl_s);
                }
            }
            Reply::Held(reply) => return self.fill(message, query, reply, to),
            Reply::Garbage(reply) => {
                let mut other = message.clone();
                other.metadata.id = message.metadata.id.wrapping_add(1);
                addresses(&mut other, query.name(), &[IpAddr::from([198, 51, 100, 66])], 60);
                for bytes in
                    [Vec::new(), vec![0], vec![7; 40], other.to_vec().expect("a short message")]
                {
                    let _ = self.socket.send_to(&bytes, to);
                }
                return self.fill(message, query, reply, to);
            }
        }
        true
    }
}

fn addresses(message: &mut Message, owner: &Name, list: &[IpAddr], ttl_s: u32) {
    for address in list {
        let data = match *address {
            IpAddr::V4(address) => RData::A(address.into()),
            IpAddr::V6(address) => RData::AAAA(address.into()),
        };
        message.add_answer(Record::from_rdata(owner.clone(), ttl_s, data));
    }
}

/// Adds a negative result, for this long (RFC 2308 §5: the smaller of two times).
fn nothing(message: &mut Message, ttl_s: u32) {
    let zone = Name::from_ascii("test.").expect("a name");
    let soa = SOA::new(zone.clone(), zone.clone(), 1, 3600, 600, 86_400, ttl_s);
    message.add_authority(Record::from_rdata(zone, 3600, RData::SOA(soa)));
}
