//! The loop of one core: reap completions, feed the machines, drain their actions, submit once.
//!
//! [`Worker::perform`] is everything that the proxy can do to the outside world.

use std::io;
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use weir_io::{
    Announced, Class, Completion, Driver, Event, Payload, Receive, RecvBuf, RelayEnd, Socket,
};
use weir_proxy::base::output::Out;
use weir_proxy::base::token::Token;
use weir_proxy::ending::Farewell;
use weir_proxy::engine::{
    Action, Delivery, Engine, Input, Parts, end_costly, end_turn, number_listeners,
    restore_verdicts,
};
use weir_proxy::forward::lookup::News;
use weir_proxy::observe::server_event::Event as ServerEvent;
use weir_tls::Sealed;

use crate::bans::Bans;
use crate::control::{
    Adoption, COMMANDS, Command, Control, DRAIN, HAND_OVER, NEWS, STOP, TUNNELS_ONLY,
};
use crate::doing::Step;
use crate::encoding::Encoders;
use crate::enquiry::Enquiry;
use crate::errands::{Errands, Open};
use crate::flows;
use crate::gate::DoorGate;
use crate::listeners::Listeners;
use crate::log_sink::LogSink;
use crate::looks;
use crate::mailbox::Mailbox;
use crate::moves::{self, Moves};
use crate::prepared::Dialing;
use crate::presence::Presence;

/// The pool that clients are received into.
const OF_CLIENTS: Class = Class::Small;
/// The pool that servers are received into.
const OF_SERVERS: Class = Class::Large;
/// Smaller receives are copied; larger ones are passed on by reference.
const SHARE_BYTES_MIN: usize = 4096;
/// Panics within [`CALM_US`] after which a worker gives up: a panic without input from outside
/// would recur for ever.
const PANICS_MAX: u32 = 10;
/// Time after which earlier panics are forgotten.
const CALM_US: u64 = 1_000_000;
/// How often the wall clock is read.
const CLOCK_US: u64 = 1_000_000;
/// How soon mail that did not fit is tried again.
const MAIL_RETRY_US: u64 = 200;

/// One core's driver and machines.
pub struct Worker<D: Driver> {
    pub(crate) driver: Sealed<Announced<D>>,
    pub(crate) engine: Engine,
    pub(crate) mailbox: Mailbox,
    /// Connections that move to other workers.
    pub(crate) moves: Moves,
    completions: Vec<Completion>,
    pub(crate) listeners: Listeners,
    /// It is draining.
    pub(crate) draining: bool,
    /// The last turn brought new clients.
    pub(crate) accepted: bool,
    /// All clients except tunnels were ended.
    tunnels_only: bool,
    mail_waits: bool,
    core: Option<usize>,
    pub(crate) presence: Presence,
    /// Receives changes of servers.
    events: Option<SyncSender<ServerEvent>>,
    /// Where it is asked what it is doing, and how many questions are answered.
    pub(crate) enquiry: Arc<Enquiry>,
    pub(crate) answered: u64,
    /// The banned clients, and where clients that are to be banned are reported.
    pub(crate) bans: Bans,
    /// Receives the lines of the access log, if one is configured.
    log: Option<LogSink>,
    /// The wall clock, and when it is read again.
    clock: Option<fn() -> i64>,
    clock_us: u64,
    /// The errands that the machines have given to the side thread.
    errands: Open,
    /// Its means for connections to servers.
    pub(crate) dialing: Dialing,
    /// The parts from which new machines are made.
    pub(crate) parts: Parts,
    /// How often it has restarted its machines.
    life: u32,
    /// Panics since `calm_us`.
    panics: u32,
    calm_us: u64,
}

pub(crate) fn pack(socket: Socket) -> u64 {
    u64::from(socket.index) << 32 | u64::from(socket.generation)
}

pub(crate) fn unpack(name: u64) -> Socket {
    Socket { index: (name >> 32) as u32, generation: name as u32 }
}

impl<D: Driver> Worker<D> {
    /// A worker that accepts on `listeners` (bound, listening, non-blocking).
    ///
    /// # Errors
    /// The operating system's, when a listener can't be registered.
    pub fn new(
        driver: D,
        parts: Parts,
        listeners: Vec<TcpListener>,
        mailbox: Mailbox,
    ) -> io::Result<Worker<D>> {
        let mut driver = Sealed::new(Announced::new(driver));
        mailbox.set_waker(driver.waker());
        let mut open = Listeners::default();
        for (listener, plan) in listeners.into_iter().zip(&parts.plan.listeners) {
            open.add(&mut driver, vec![listener.into()], false, plan)?;
        }
        open.announce(driver.inner_mut(), &parts.plan);
        let engine = Engine::new(parts.clone(), driver.now_us());
        let bans = Bans::new(&parts);
        driver.set_gate(DoorGate::of(&bans.door));
        Ok(Worker {
            driver,
            engine,
            mailbox,
            moves: Moves::default(),
            completions: Vec::new(),
            listeners: open,
            draining: false,
            accepted: false,
            tunnels_only: false,
            mail_waits: false,
            core: None,
            presence: Presence::default(),
            events: None,
            enquiry: Arc::default(),
            answered: 0,
            bans,
            log: None,
            clock: None,
            clock_us: 0,
            errands: Open::new(parts.worker, None),
            dialing: Dialing::default(),
            parts,
            life: 0,
            panics: 0,
            calm_us: 0,
        })
    }

    /// Tells which core the worker's thread is bound to (None: to none), so that it prefers
    /// connections whose packets arrive there. A worker that is unpinned for a while keeps it as
    /// its core: connections outlive that time.
    pub fn set_core(&mut self, core: Option<usize>) {
        self.core = core;
    }

    /// Sets where it may be asked what it is doing.
    pub fn set_enquiry(&mut self, enquiry: Arc<Enquiry>) {
        enquiry.set_waker(self.driver.waker());
        self.enquiry = enquiry;
    }

    /// Sets where changes of servers are reported. Never blocks: a report without room is counted.
    pub fn set_events(&mut self, events: SyncSender<ServerEvent>) {
        self.events = Some(events);
    }

    /// Sets the runner of errands; without one they fail.
    pub fn set_errands(&mut self, errands: Option<Arc<dyn Errands>>) {
        self.errands.set_runner(errands);
    }

    /// Sets the encoder of parts of large responses; without one the worker encodes them.
    pub(crate) fn set_encoders(&mut self, encoders: Encoders) {
        self.errands.set_encoders(encoders);
    }

    /// Sets the source of the microseconds since 1970 less those of the driver's clock; without it,
    /// and without a log, the machines don't know the time of day.
    pub fn set_clock(&mut self, clock: fn() -> i64) {
        self.clock = Some(clock);
    }

    /// Sets where the worker shows what it is doing.
    pub(crate) fn set_presence(&mut self, presence: Presence) {
        self.presence = presence;
    }

    /// Sets where the lines of the access log are sent; without that they are lost.
    pub fn set_log(&mut self, log: Option<LogSink>) {
        self.log = log;
    }

    /// Runs until it is stopped, or has drained.
    ///
    /// # Errors
    /// Errors that make the driver unusable.
    pub fn run(&mut self, control: &Control) -> io::Result<()> {
        loop {
            let told = control.told();
            if told & STOP != 0 {
                flows::stop(self);
                return self.turn(Some(0));
            }
            self.obey(control);
            self.hear(control);
            if told & DRAIN != 0 {
                if !self.draining && told & HAND_OVER != 0 {
                    self.hand_over(&control.taken());
                } else if !self.draining {
                    self.drain();
                }
                if told & TUNNELS_ONLY != 0 && !std::mem::replace(&mut self.tunnels_only, true) {
                    self.keep_tunnels_only();
                }
                if self.is_drained() {
                    self.mailbox.say_drained();
                    // Until then clients of other workers may wait for responses on this worker's
                    // connections.
                    if self.mailbox.all_drained() {
                        // The last closes are queued; one turn hands them to the kernel.
                        return self.turn(Some(0));
                    }
                }
            }
            self.answer(control);
            self.turn(None)?;
        }
    }

    /// Carries out an operator's commands, if any have come.
    pub fn obey(&mut self, control: &Control) {
        if control.told() & COMMANDS == 0 {
            return;
        }
        let commands = control.take_commands();
        self.survive(|worker| {
            worker.engine.begin_turn(worker.driver.now_us());
            for command in commands {
                match command {
                    Command::Order { server, order } => worker.engine.order(server, order),
                    Command::Clear { server } => worker.engine.clear_surplus(server),
                    Command::Forgive => worker.engine.forgive_suspects(),
                    Command::Judge(verdicts) => restore_verdicts(&mut worker.engine, &verdicts),
                    Command::Ban(bans) => worker.ban(bans),
                    Command::Adopt(adoption) => worker.adopt(&adoption),
                    Command::Open(opening) => worker.open(&opening),
                    Command::Lend(lending) => worker.lend(&lending),
                    Command::Shed { to, most } => moves::shed(worker, to, most),
                }
            }
            worker.engine.settle();
            worker.act();
        });
        self.presence.show(&self.load());
    }

    /// Puts another plan into force, also for machines that are created later.
    fn adopt(&mut self, adoption: &Adoption) {
        self.parts.plan = Arc::clone(&adoption.plan);
        self.bans.door.borrow_mut().adopt(Arc::clone(&adoption.plan));
        self.parts.servers.clone_from(&adoption.servers[usize::from(self.parts.worker)]);
        self.dialing.seals.clone_from(&adoption.server_seals);
        self.engine.adopt(Arc::clone(&adoption.plan), &self.parts.servers);
        // Before they get any requests.
        restore_verdicts(&mut self.engine, &adoption.verdicts);
        match &adoption.listeners {
            Some(changes) => adoption.tell_failed(self.change_listeners(changes)),
            None => {
                number_listeners(&mut self.engine, self.listeners.in_plan(&adoption.plan));
            }
        }
    }

    /// Tells the machines the results of their errands, if any have come. Results of errands from
    /// before a restart are discarded.
    pub fn hear(&mut self, control: &Control) {
        let told = if control.told() & NEWS == 0 { Vec::new() } else { control.take_news() };
        let news = self.errands.close(told);
        if news.is_empty() {
            return;
        }
        self.survive(|worker| {
            worker.engine.begin_turn(worker.driver.now_us());
            for news in news {
                worker.engine.on_news(news);
            }
            worker.engine.settle();
            worker.act();
        });
    }

    /// Finishes what is under way, and takes nothing new except connected clients.
    pub fn drain(&mut self) {
        self.draining = true;
        self.stop_accepting(&[]);
        self.survive(|worker| {
            worker.engine.drain(Farewell::All);
            worker.act();
        });
    }

    /// Whether a drain is complete, as far as this worker's clients are concerned.
    pub fn is_drained(&self) -> bool {
        let has_none = self.engine.is_drained() && self.moves.is_empty();
        has_none && self.listeners.is_empty() && !self.driver.is_closing()
    }

    /// The machines, for inspection.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The driver, for inspection.
    pub fn driver(&self) -> &D {
        self.driver.inner().inner()
    }

    /// One turn, waiting at most `wait_max_us` (None: until something happens or is due).
    ///
    /// # Errors
    /// Errors that make the driver unusable.
    pub fn turn(&mut self, wait_max_us: Option<u64>) -> io::Result<()> {
        let wait_us = self.patience(wait_max_us);
        let mut completions = std::mem::take(&mut self.completions);
        self.accepted = false;
        let now_us = self.presence.rest(&self.load()).unwrap_or_else(|| self.driver.now_us());
        end_turn(&mut self.engine, now_us);
        self.driver.turn(wait_us, &mut completions)?;
        self.presence.begin_turn(self.driver.now_us(), self.parts.counters.requests.get());
        self.count_tls();
        self.count_unannounced();
        self.survive(|worker| {
            worker.engine.begin_turn(worker.driver.now_us());
            worker.look_at_the_clock();
            for completion in completions.drain(..) {
                let token = completion.token;
                worker.presence.step(if Token::is_upstream(token) {
                    Step::Server
                } else {
                    Step::Client
                });
                worker.handle(completion);
                // When that takes too long, as determined elsewhere, the client whose event it is
                // is ended.
                if worker.presence.is_blamed() && !Token::is_upstream(token) {
                    end_costly(&mut worker.engine, token);
                }
            }
            worker.presence.step(Step::Mail);
            while let Some((from, post)) = worker.mailbox.receive() {
                worker.engine.deliver(from, post);
            }
            moves::take_given(worker);
            worker.presence.step(Step::Timers);
            worker.engine.settle();
            worker.presence.step(Step::Acting);
            worker.act();
        });
        completions.clear();
        self.completions = completions;
        self.stop_listening();
        Ok(())
    }

    /// Tells the machines the wall-clock time.
    fn look_at_the_clock(&mut self) {
        if let Some((offset_us, zone_s)) = self.log.as_ref().map(LogSink::wall) {
            self.engine.set_wall(offset_us, zone_s);
        } else if let Some(clock) = self.clock.filter(|_| self.driver.now_us() >= self.clock_us) {
            self.clock_us = self.driver.now_us() + CLOCK_US;
            self.engine.set_wall(clock(), 0);
        }
    }

    /// Lets the machines work. When they panic, the worker restarts with new machines; when that
    /// happens again and again, the panic continues.
    pub(crate) fn survive(&mut self, work: impl FnOnce(&mut Self)) {
        // Nothing that the panic may have left half-done is used afterwards except the driver and
        // the mailbox, whose methods are complete in themselves.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(self))) {
            let now_us = self.driver.now_us();
            if now_us.saturating_sub(self.calm_us) >= CALM_US {
                (self.calm_us, self.panics) = (now_us, 0);
            }
            self.panics += 1;
            if self.panics > PANICS_MAX {
                resume_unwind(panic);
            }
            self.begin_anew();
        }
    }

    /// Gives up all connections, because their machines are in an unknown state, and continues with
    /// new machines.
    fn begin_anew(&mut self) {
        for socket in self.driver.streams() {
            self.driver.reset(socket);
        }
        self.moves = Moves::default();
        self.life += 1;
        self.clock_us = 0;
        self.errands.begin_anew();
        self.engine = Engine::reborn(self.parts.clone(), self.driver.now_us(), self.life);
        self.engine.set_bans(Arc::clone(&self.bans.set));
        number_listeners(&mut self.engine, self.listeners.in_plan(&self.parts.plan));
        if self.draining {
            self.engine.drain(Farewell::All);
        }
        self.act();
    }

    /// How long the driver may wait.
    fn patience(&mut self, wait_max_us: Option<u64>) -> Option<u64> {
        let now_us = self.driver.now_us();
        let due_us = self.engine.next_deadline().map(|due_us| due_us.saturating_sub(now_us));
        let mail_us = self.mail_waits.then_some(MAIL_RETRY_US);
        let news_us = self.errands.has_failed().then_some(0);
        let listening_us =
            self.listening_until_us().map(|until_us| until_us.saturating_sub(now_us));
        [wait_max_us, due_us, mail_us, news_us, listening_us].into_iter().flatten().min()
    }

    fn handle(&mut self, completion: Completion) {
        let token = completion.token;
        if Token::is_flow(token) {
            return flows::handle(self, completion);
        }
        match completion.event {
            Event::Received(buffer) => {
                self.sample_wait(token, completion.socket);
                self.received(token, buffer);
            }
            Event::Sent { payload, result } => {
                let ok = result.is_ok();
                if Token::is_upstream(token) {
                    self.engine.upstream_sent(token, ok);
                } else {
                    let spare =
                        if let Payload::Owned(bytes) = payload { Some(bytes) } else { None };
                    self.engine.client_sent(token, spare, ok);
                }
            }
            Event::Accepted { socket, peer } => self.on_accepted(token, socket, peer),
            Event::AcceptFailed(_) => self.engine.accept_failed(),
            Event::Connected(result) => self.connected(token, completion.socket, &result),
            Event::Ended if Token::is_upstream(token) => self.ended(token, completion.socket),
            Event::Ended => self.engine.client_ended(token),
            Event::ReceiveFailed(error) if Token::is_upstream(token) => self.failed(token, &error),
            Event::ReceiveFailed(_) => self.engine.client_failed(token),
            Event::RelayEnded { moved, how } => {
                let by_client = matches!(how, RelayEnd::FailedA(_));
                self.engine.relay_ended(token, moved.a_to_b, moved.b_to_a, by_client);
            }
            Event::Released(released) => moves::on_released(self, completion.socket, *released),
            Event::Woken => {}
        }
    }

    fn received(&mut self, token: u64, buffer: RecvBuf) {
        // A kept buffer is unavailable to all others of its pool until its last reader is done:
        // only while that pool has plenty.
        if buffer.len() >= SHARE_BYTES_MIN && self.has_plenty(class_of(token)) {
            let bytes = buffer.into_bytes();
            self.feed(token, &Input::shared(&bytes));
        } else {
            self.feed(token, &Input::borrowed(&buffer));
            self.driver.recycle(buffer);
        }
    }

    fn has_plenty(&self, class: Class) -> bool {
        let (free, total) = self.driver.buffers(class);
        free * 2 >= total
    }

    fn feed(&mut self, token: u64, input: &Input<'_>) {
        if Token::is_upstream(token) {
            self.engine.upstream_received(token, input);
        } else {
            self.engine.client_received(token, input);
        }
    }

    /// Hands out the lines of the access log.
    fn write_log(&mut self) {
        let mut lost = 0;
        let log = &mut self.log;
        self.engine
            .take_lines(|lines, count| lost = log.as_mut().map_or(count, |log| log.push(lines)));
        if lost > 0 {
            self.engine.lines_lost(lost);
        }
    }

    /// Does what the machines want, then hands out mail.
    pub(crate) fn act(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            self.presence.step(Step::Acting);
            self.perform(action);
        }
        self.write_log();
        while let Some(errand) = self.engine.take_errand() {
            if !self.errands.run(errand) {
                self.parts.counters.errands_refused.increment();
            }
        }
        while let Some(event) = self.engine.take_event() {
            if self.events.as_ref().is_some_and(|events| events.try_send(event).is_err()) {
                self.parts.counters.events_lost.add(1);
            }
        }
        self.tell_offences();
        self.mail_waits = false;
        for worker in 0..self.mailbox.workers() {
            if let Some(post) = self.engine.take_post(worker)
                && let Err(post) = self.mailbox.send(worker, post)
            {
                self.engine.return_post(worker, post);
                self.mail_waits = true;
            }
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::SendClient { socket, out } | Action::SendUpstream { socket, out } => {
                self.driver.send(unpack(socket), payload(out));
            }
            Action::Encode(job) => {
                let counters = &self.parts.counters;
                match self.errands.encode(job) {
                    Ok(()) => counters.compressions_elsewhere.increment(),
                    Err(job) => {
                        counters.compressions_refused.increment();
                        self.engine.on_news(News::Encoded(job.run()));
                    }
                }
            }
            Action::ReceiveClient { socket, on } => {
                let how = if on { Receive::Many(OF_CLIENTS) } else { Receive::Off };
                self.driver.receive(unpack(socket), how);
            }
            Action::SeeClient { token, socket } => looks::see_client(self, token, unpack(socket)),
            Action::LookClient { token, socket, over } => {
                looks::look_at_client(self, token, unpack(socket), over)
            }
            Action::DeferClient { socket, on } => self.driver.defer(unpack(socket), on),
            Action::LocateUpstream { token, socket } => {
                let receiving = self.driver.receiving_core(unpack(socket));
                let near =
                    self.core.zip(receiving).map(|(core, receiving)| receiving as usize == core);
                self.engine.upstream_located(token, near);
            }
            Action::ExamineUpstream { token, socket } => {
                let delivery = match self.driver.delivery(unpack(socket)) {
                    weir_io::Delivery::Acknowledged => Delivery::Acknowledged,
                    weir_io::Delivery::Underway => Delivery::Underway,
                    weir_io::Delivery::Unheard => Delivery::Unheard,
                };
                self.engine.upstream_examined(token, delivery);
            }
            Action::Relay { client, server } => self.driver.relay(unpack(client), unpack(server)),
            Action::LookRelay { token, client } => {
                if let Some(moved) = self.driver.relayed(unpack(client)) {
                    self.engine.relay_looked(token, moved.a_to_b, moved.b_to_a, moved.half_closed);
                }
            }
            Action::KeepAlive { socket } => self.driver.keep_alive(unpack(socket)),
            Action::Measure { socket, arm } => flows::measure(self, socket, &arm),
            Action::CompareCores { client, server } => flows::compare_cores(self, client, server),
            Action::ReceiveUpstream { socket } => {
                self.driver.receive(unpack(socket), Receive::Once(OF_SERVERS))
            }
            Action::AcknowledgeUpstream { socket } => self.driver.acknowledge(unpack(socket)),
            Action::ShutdownClient { socket } | Action::ShutdownUpstream { socket } => {
                self.driver.shutdown_write(unpack(socket));
            }
            Action::CloseClient { socket, reset: true } | Action::ResetUpstream { socket } => {
                self.driver.reset(unpack(socket))
            }
            Action::CloseClient { socket, reset: false } | Action::CloseUpstream { socket } => {
                self.driver.close(unpack(socket));
            }
            Action::Connect { token, address, server, announcement, way } => {
                match self.connect(token, (&address, way.as_deref()), server, announcement) {
                    Ok(socket) => {
                        if !self.engine.upstream_started(token, pack(socket)) {
                            self.driver.close(socket);
                        }
                    }
                    Err(error) => flows::unstarted(self, token, &error),
                }
            }
        }
    }
}

/// The pool that a connection is received into.
pub(crate) fn class_of(token: u64) -> Class {
    if Token::is_upstream(token) { OF_SERVERS } else { OF_CLIENTS }
}

fn payload(out: Out) -> Payload {
    match out {
        Out::Owned(bytes) => Payload::Owned(bytes),
        Out::Shared(bytes) => Payload::Shared(bytes),
        Out::Vectored(list) => Payload::Vectored(list),
    }
}
