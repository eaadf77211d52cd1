//! The servers of a worker, and its connections to them: which one gets a request, what was sent and is not answered, what is known of a
//! server (trust, depth, limits, how long it takes), whether it is in use, and what becomes of requests whose connection is lost.
//!
//! Owns the tables of upstream connections and of servers, and nobody else can reach them. Answers go to the clients' side by
//! [`Replies`](crate::cross::router::Replies), which is at hand only while something of a server is read; everything else that it has
//! to know (there is no answer, hold the body back) goes by mail. Requests come by [`Requests`](crate::cross::router::Requests).
//!
//! What it decides it asks of parts, none of which can reach another: [`Pool`] has the two tables and is the only writer of where a
//! connection stands; [`View`](view::View) says where a request may go and can change nothing; [`Isolation`] says what goes alone;
//! [`Health`] judges servers and reads probes. `Upstreams` carries out what follows for requests and connections.
//!
//! Invariants: `ready`, `inflight` and the gauges are those of the connections' states; the bytes of a connection's log are those of its
//! unanswered requests; connections of the pool <= `connections`, or `connections-max` while some are held; unanswered and waiting requests
//! of a server <= its capacity ([`Upstreams::audit`]). Bounds: docs/buffers.md.

mod again;
mod aside;
mod audit;
pub(crate) mod backoff;
mod cancel;
mod choose;
mod connect;
pub(crate) mod connection;
mod crowded;
pub(crate) mod depth;
pub(crate) mod early_close;
pub(crate) mod entry;
mod glitches;
mod head;
pub mod health;
pub(crate) mod idle_limit;
mod isolation;
mod judge;
pub(crate) mod keepalive_limit;
mod late;
pub(crate) mod lines;
mod lives;
mod loss;
mod messages;
pub(crate) mod misframing;
mod near;
mod orders;
pub(crate) mod overlook;
mod overlooked;
pub(crate) mod places;
mod pool;
mod private;
pub(crate) mod private_pool;
pub mod probe;
mod probes;
mod quarantine;
pub(crate) mod queue;
mod receive;
mod report;
pub(crate) mod request_log;
mod schedule;
mod send;
pub(crate) mod server;
pub mod server_state;
pub mod slow_answer;
mod start;
mod suspend;
mod timers;
pub mod trust;
mod tunnels;
mod unheard;
mod view;
mod watch;

use weir_http::Fields;

pub use unheard::Delivery;

use crate::base::keys::{ClientKey, ConnKey, ServerIndex};
use crate::base::side_table::SideTable;
use crate::base::table::Run;
use crate::placement::balance::Balance;
use crate::retry::budget::Budget;
use crate::upstream::isolation::Isolation;
use crate::upstream::judge::Health;
use crate::upstream::pool::Pool;
use crate::upstream::private_pool::PrivatePool;
use crate::upstream::queue::ByRequest;

/// The servers of one upstream.
#[derive(Debug)]
struct Group {
    servers: Run<ServerIndex>,
    /// How many of them health has suspended.
    suspended: u32,
    budget: Budget,
}

impl Group {
    /// The server with this index in the upstream.
    fn server(&self, index: u16) -> ServerIndex {
        self.servers.first() + usize::from(index)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Upstreams {
    pool: Pool,
    groups: Vec<Group>,
    /// By upstream: which of its servers is next; None for a single one. Apart, because a choice looks at everything else.
    balances: Vec<Option<Box<Balance>>>,
    health: Health,
    /// Connections of single clients, and the requests that wait for one.
    private: SideTable<ClientKey, Box<PrivatePool>>,
    /// Requests for which no private connection could be made and that wait for the next round.
    parked: u32,
    fields: Fields,
    /// Servers in the order in which one request looks for a second one; kept for its memory.
    order: Vec<usize>,
    dirty_links: Vec<ConnKey>,
    doomed: Vec<(ConnKey, u32)>,
    /// Requests that were cancelled in this turn and that some connection may carry; and whether that has to end.
    cancelled: ByRequest<bool>,
    /// Connections that received answers of a pipeline in this turn, and what had been given to the driver by then.
    to_acknowledge: Vec<(ConnKey, u32, u64)>,
    synced: Vec<(ConnKey, u32)>,
    synced_before: Vec<(ConnKey, u32)>,
    /// Connections that ran empty in this turn and are to be looked at, with the number of their answers.
    emptied: Vec<(ConnKey, u32, u64)>,
    /// The same in turns before, as long as others are preferred to them.
    emptied_before: Vec<(ConnKey, u32, u64)>,
    isolation: Isolation,
    swept_us: u64,
    /// Some upstream is balanced by what all workers have at its servers.
    shares_loads: bool,
}

impl Upstreams {
    /// Which requests go alone.
    pub(crate) fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    /// See [`Upstreams::isolation`].
    pub(crate) fn isolation_mut(&mut self) -> &mut Isolation {
        &mut self.isolation
    }
}
