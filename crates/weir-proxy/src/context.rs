//! The state that all machines of a worker share for a turn: the time, the configuration, counters,
//! and their messages to others.
//!
//! The machines ([`Clients`](crate::client::Clients), [`Upstreams`](crate::upstream::Upstreams))
//! get it with each call and keep nothing of it. Work outside the machines is appended to
//! [`Context::actions`]. Messages to the other side or to another worker are sent with
//! [`Context::post`]. Mail of a worker to itself is delivered as soon as the running machine
//! returns ([`Engine`](crate::engine::Engine)), so no machine is ever called from within itself.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use weir_cache::Store;
use weir_http::h2::{Limits, WindowPool};

use crate::action::Action;
use crate::base::output::Spare;
use crate::base::timer_wheel::Wheel;
use crate::cross::mail::{Flow, Mail, Post};
use crate::observe::accounting::Usage;
use crate::observe::counters::Counters;
use crate::plan::{ClientPlan, ForwardPlan, Http2Plan, Plan};
use crate::request::pending_request::ConnId;
use crate::shield::bans::BanSet;

/// See the module.
#[derive(Debug)]
pub(crate) struct Context {
    /// The time of this turn: microseconds, monotonic.
    pub now_us: u64,
    /// This worker's number.
    pub worker: u16,
    /// Workers in all.
    pub workers: u16,
    /// The configuration.
    pub plan: Arc<Plan>,
    /// Written by this worker only.
    pub counters: Arc<Counters>,
    /// To be done outside, in this order.
    pub actions: VecDeque<Action>,
    /// One timer a client connection, a few an upstream connection: by token.
    pub wheel: Wheel,
    /// Mail by worker, including mail to itself.
    pub posts: Vec<Post>,
    /// This worker has mail from itself.
    pub has_own_mail: bool,
    /// Buffers to be used again.
    pub spare: Spare,
    /// Traffic of clients that choose their destinations.
    pub usage: Usage,
    /// Whether any upstream has private connections for single clients or requests.
    pub has_private: bool,
    /// Whether the driver moves the bytes of tunnels.
    pub relays: bool,
    /// By the number of a listener ([`Entrance::listener`](crate::plan::Entrance::listener)): its
    /// index in the plan, as long as routes name listeners.
    pub listeners: Vec<Option<usize>>,
    /// Limits of connections of HTTP/2.
    pub http2: Arc<Limits>,
    /// The banned clients.
    pub bans: Arc<BanSet>,
    /// Connections of `tcp`.
    pub flows: usize,
    /// Whether an access log is kept: it needs the connection that each request was put on.
    pub logs: bool,
    /// The store of all workers, as the plan says, or the last plan with one; None: nothing is
    /// stored.
    pub cache: Option<Arc<Store>>,
    clock: WallClock,
}

/// The wall clock.
#[derive(Debug)]
struct WallClock {
    /// Wall clock minus the engine's time, microseconds.
    offset_us: i64,
    /// The second that `date` shows; None until the wall clock is set.
    date_s: Option<i64>,
    date: [u8; 29],
}

impl Context {
    /// Creates it for this worker of `workers`, at the time of its first turn.
    pub(crate) fn new(
        plan: Arc<Plan>,
        counters: Arc<Counters>,
        worker: u16,
        workers: u16,
        now_us: u64,
    ) -> Context {
        Context {
            now_us,
            worker,
            workers,
            http2: http2_limits(&plan.client, &Arc::default()),
            has_private: plan.upstreams.iter().any(|upstream| upstream.pool.is_private()),
            cache: store(&plan),
            plan,
            counters,
            actions: VecDeque::new(),
            wheel: Wheel::new(now_us),
            posts: (0..workers).map(|_| Post::default()).collect(),
            has_own_mail: false,
            spare: Spare::default(),
            usage: Usage::default(),
            relays: false,
            listeners: Vec::new(),
            bans: Arc::default(),
            flows: 0,
            logs: false,
            clock: WallClock { offset_us: 0, date_s: None, date: weir_http::http_date(0) },
        }
    }

    /// Whether a client is banned.
    #[inline]
    pub(crate) fn is_banned(&self, client: IpAddr) -> bool {
        self.bans.bans(client, self.now_us)
    }

    /// Updates the facts derived from the plan after a change.
    pub(crate) fn plan_changed(&mut self) {
        // Running fetches continue with the store where they began.
        self.cache = store(&self.plan).or(self.cache.take());
        // The growth of windows remains taken.
        self.http2 = http2_limits(&self.plan.client, &self.http2.growth);
        self.has_private = self.plan.upstreams.iter().any(|upstream| upstream.pool.is_private());
    }

    /// Sets the wall clock: its microseconds since 1970 minus the engine's time.
    pub(crate) fn set_wall(&mut self, offset_us: i64) {
        self.clock.offset_us = offset_us;
        self.clock.date_s.get_or_insert(i64::MIN);
    }

    /// The wall clock, microseconds since 1970.
    pub(crate) fn wall_us(&self) -> u64 {
        self.now_us.saturating_add_signed(self.clock.offset_us)
    }

    /// The same in seconds.
    pub(crate) fn wall_s(&self) -> i64 {
        (self.now_us as i64).saturating_add(self.clock.offset_us) / 1_000_000
    }

    /// The present value of the field Date; None: the wall clock is not set (RFC 9110 §6.6.1).
    pub(crate) fn date(&mut self) -> Option<[u8; 29]> {
        let now_s = self.wall_s();
        let clock = &mut self.clock;
        if clock.date_s? != now_s {
            clock.date_s = Some(now_s);
            clock.date = weir_http::http_date(u64::try_from(now_s).unwrap_or(0));
        }
        Some(clock.date)
    }

    /// Whether an upstream serves many destinations: all of the forward proxy, or those that
    /// clients have connected to.
    pub(crate) fn is_anywhere(&self, upstream: u16) -> bool {
        let is_of_forward = |forward: &ForwardPlan| forward.upstream == usize::from(upstream);
        self.plan.forward.as_ref().is_some_and(is_of_forward)
            || self.plan.upstreams[usize::from(upstream)].is_destination()
    }

    /// Whether the connections of an upstream belong to single clients or requests.
    pub(crate) fn is_private(&self, upstream: u16) -> bool {
        self.has_private && self.plan.upstreams[usize::from(upstream)].pool.is_private()
    }

    /// Sends mail to a worker, which may be this worker.
    pub(crate) fn post(&mut self, worker: u16, mail: Mail) {
        let is_own = worker == self.worker;
        self.has_own_mail |= is_own;
        self.counters.mail_sent.add(u64::from(!is_own));
        self.posts[usize::from(worker)].mail.push(mail);
    }

    /// A source of responses is stopped: drops earlier mail that would resume it.
    pub(crate) fn forget_resume(&mut self, conn: ConnId) {
        if self.has_own_mail {
            let resumes = |mail: &Mail| {
                matches!(
                    mail,
                    Mail::Flow { conn: other, flow: Flow::Go, .. } if *other == conn
                )
            };
            self.posts[usize::from(self.worker)].mail.retain(|mail| !resumes(mail));
        }
    }

    /// Appends bytes to the mail of a worker. Returns their position in it.
    pub(crate) fn write_to_post(&mut self, worker: u16, bytes: &[u8]) -> Range<usize> {
        let post = &mut self.posts[usize::from(worker)];
        let start = post.bytes.len();
        post.bytes.extend_from_slice(bytes);
        start..post.bytes.len()
    }

    /// Sends the same mail to every other worker.
    pub(crate) fn tell_all(&mut self, mail: impl Fn() -> Mail) {
        let me = self.worker;
        (0..self.workers)
            .filter(|worker| *worker != me)
            .for_each(|worker| self.post(worker, mail()));
    }
}

/// The store for responses.
fn store(plan: &Plan) -> Option<Arc<Store>> {
    plan.cache.as_ref()?.store.clone()
}

/// The limits of HTTP/2 connections. `growth`: how much the windows of this worker may grow.
fn http2_limits(plan: &ClientPlan, growth: &Arc<WindowPool>) -> Arc<Limits> {
    let Http2Plan { streams_max, window_bytes, connection_window_bytes } = plan.http2;
    let (head, growth) = (plan.head.clone(), Arc::clone(growth));
    Arc::new(Limits {
        head,
        growth,
        streams_max,
        window_bytes,
        connection_window_bytes,
        ..Limits::default()
    })
}
