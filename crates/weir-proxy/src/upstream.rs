//! The servers of a worker, and its connections to them: which one gets a request, the requests
//! that were sent and are not answered, the facts known about a server (trust, depth, limits, how
//! long it takes), whether it is in use, and the fate of requests on lost connections.
//!
//! Owns the tables of upstream connections and of servers, and no other module can reach them.
//! Responses reach the clients' side by [`Replies`](crate::cross::router::Replies), which is at
//! hand only while something of a server is read; everything else for that side (a response fails,
//! the body is held back) is sent by mail. Requests come by
//! [`Requests`](crate::cross::router::Requests).
//!
//! Decisions are made by parts, none of which can reach another unless it is handed to it: [`Pool`]
//! has the two tables and is the only writer of a connection's state; [`Groups`] chooses among the
//! servers of an upstream and counts repetitions; [`PrivatePools`] has the state of single clients;
//! [`Placing`](placing::Placing) finds a place for a request; [`View`](view::View) determines
//! possible places and can change nothing; [`Isolation`] decides which requests are sent alone;
//! [`Health`] judges servers and reads probes; [`RanEmpty`] keeps connections that ran empty until
//! all was read; [`Cancelled`] knows the unwanted responses; [`Outbox`] knows the data to be sent.
//! The parts report the consequences for other connections and for waiting requests to `Upstreams`:
//! how a connection ends ([`Ending`](agenda::Ending)), or what else has to be done
//! ([`Then`](timers::Then)). The [`Agenda`] takes note of these, and one loop carries them out
//! ([`Upstreams::work_off`]), so that nothing calls itself.
//!
//! Invariants: `ready`, `inflight` and the gauges are those of the connections' states; the bytes
//! of a connection's log are those of its unanswered requests; connections of the pool <=
//! `connections`, or `connections-max` while some are held; unanswered and waiting requests of a
//! server <= its capacity ([`Upstreams::audit`]). Bounds: docs/buffers.md.

mod adopt;
mod again;
mod agenda;
mod aside;
mod audit;
pub(crate) mod backoff;
mod balancing;
mod cancel;
mod choose;
pub(crate) mod class;
mod close;
mod comparison;
mod connect;
pub(crate) mod connection;
pub(crate) mod crash;
mod crowded;
pub(crate) mod deaf;
pub(crate) mod depth;
pub(crate) mod doubts;
pub(crate) mod early_close;
pub(crate) mod entry;
pub(crate) mod flows;
mod fresh;
mod glitches;
mod groups;
mod head;
pub mod health;
pub(crate) mod idle_limit;
mod isolation;
mod judge;
pub(crate) mod keepalive_limit;
mod late;
mod left;
pub(crate) mod lines;
mod lives;
mod load;
mod lost;
mod messages;
pub(crate) mod misframing;
mod near;
mod orders;
pub(crate) mod overlook;
mod overlooked;
mod pick;
mod placing;
mod pool;
mod private;
pub(crate) mod private_pool;
pub mod probe;
mod probes;
mod quarantine;
pub(crate) mod queue;
mod queue_timeout;
mod ran_empty;
mod receive;
pub(crate) mod rehearsal;
mod report;
pub(crate) mod request_log;
pub(crate) mod schedule;
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

pub(crate) use private::port_taken;
pub use unheard::Delivery;

use crate::upstream::agenda::Agenda;
use crate::upstream::cancel::Cancelled;
use crate::upstream::groups::Groups;
use crate::upstream::isolation::Isolation;
use crate::upstream::judge::Health;
use crate::upstream::pool::Pool;
use crate::upstream::private_pool::PrivatePools;
use crate::upstream::ran_empty::RanEmpty;
use crate::upstream::send::Outbox;

/// See the module.
#[derive(Debug)]
pub(crate) struct Upstreams {
    pool: Pool,
    groups: Groups,
    health: Health,
    private: PrivatePools,
    fields: Fields,
    outbox: Outbox,
    cancelled: Cancelled,
    ran_empty: RanEmpty,
    isolation: Isolation,
    agenda: Agenda,
}

impl Upstreams {
    /// Returns the servers and the connections to them.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// See [`Upstreams::pool`].
    pub(crate) fn pool_mut(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// Returns the state of single clients.
    pub(crate) fn private(&self) -> &PrivatePools {
        &self.private
    }

    /// Returns which requests are sent alone.
    pub(crate) fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    /// See [`Upstreams::isolation`].
    pub(crate) fn isolation_mut(&mut self) -> &mut Isolation {
        &mut self.isolation
    }
}
