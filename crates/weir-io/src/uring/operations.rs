//! The operations that the driver queues, and how they are named. Called by the commands of
//! [`super::Uring`] and by `reap`.
//!
//! Bound: one receive, one send, one connect, accept or poll in flight for each socket, and one
//! cancellation of each.

use io_uring::{opcode, squeue, types};

use crate::outgoing::Next;
use crate::table::{self, NO_SEND, STARVED, Slot};
use crate::{Class, Receive, Socket};

use super::{
    ACCEPTING, ARMED, ARMED_LARGE, ARMED_MANY, CANCELLING, CHANGED, DEFERRED, DRAINED, ODD, POLLED,
    POLLING, SHARED, Uring,
};

/// The kind of an operation, in the top bits of its `user_data`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Receive = 1,
    Send = 2,
    Accept = 3,
    Connect = 4,
    /// Cancellation of a receive that is not [`ODD`].
    CancelEven = 5,
    Wake = 6,
    /// The outcome is ignored.
    Ignored = 7,
    /// Readiness for a relay.
    Relay = 8,
    /// Cancellation of a receive that is [`ODD`].
    CancelOdd = 9,
}

/// `user_data`: kind (4 bits), slot (28 bits), generation (32 bits).
pub(super) fn user_data(kind: Kind, socket: Socket) -> u64 {
    debug_assert!(socket.index < 1 << 28);
    (kind as u64) << 60 | u64::from(socket.index) << 32 | u64::from(socket.generation)
}

pub(super) fn decode(user_data: u64) -> (Kind, Socket) {
    let kind = match user_data >> 60 {
        1 => Kind::Receive,
        2 => Kind::Send,
        3 => Kind::Accept,
        4 => Kind::Connect,
        5 => Kind::CancelEven,
        6 => Kind::Wake,
        8 => Kind::Relay,
        9 => Kind::CancelOdd,
        _ => Kind::Ignored,
    };
    let index = (user_data >> 32) as u32 & ((1 << 28) - 1);
    (kind, Socket { index, generation: user_data as u32 })
}

impl Uring {
    /// Queues an operation whose memory is in `scratch`, `sends` or the pools.
    pub(super) fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: `scratch` is cleared only when everything was submitted; payloads remain in
        // `sends` until their completion was reaped; pool memory is only reached through the
        // registered rings.
        unsafe { self.ring.push(entry) };
    }

    pub(super) fn watch_wake(&mut self) {
        let nobody = Socket { index: 0, generation: 0 };
        // Multishot is edge-triggered here: each write posts one completion, and the counter needs
        // no reading.
        let poll = opcode::PollAdd::new(types::Fd(self.wake.fd()), libc::POLLIN as u32).multi(true);
        self.push(poll.build().user_data(user_data(Kind::Wake, nobody)));
    }

    pub(super) fn arm_accept(&mut self, socket: Socket) {
        let is_wary = self.refused.pauses(socket.index) || self.table.is_near_full();
        let Some(slot) = self.table.named(socket) else { return };
        slot.set(ACCEPTING);
        slot.clear(POLLED);
        let fd = types::Fd(slot.fd);
        let entry = if slot.has(SHARED) || is_wary {
            slot.set(POLLED);
            // A pending accept takes the connection at once, also for a driver that doesn't turn; a
            // poll takes nothing.
            opcode::PollAdd::new(fd, libc::POLLIN as u32).build()
        } else {
            opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build()
        };
        self.push(entry.user_data(user_data(Kind::Accept, socket)));
    }

    /// Makes the kernel report when a socket of a relay becomes ready; multishot is edge-triggered.
    pub(super) fn watch_relayed(&mut self, socket: Socket) {
        let slot = self.table.slot(socket.index);
        slot.set(POLLING);
        let events = libc::POLLIN | libc::POLLPRI | libc::POLLOUT | libc::POLLRDHUP;
        let poll = opcode::PollAdd::new(types::Fd(slot.fd), events as u32).multi(true);
        self.push(poll.build().user_data(user_data(Kind::Relay, socket)));
    }

    /// Notes that the receive of a socket may have to change. It changes before the next system
    /// call, so that only the mode at that time counts. A receive on a socket with bytes takes
    /// them, up to 33 buffers of them, in the call that submits it, and a cancellation behind it
    /// comes too late.
    pub(super) fn change(&mut self, socket: Socket) {
        let Some(slot) = self.table.named(socket) else { return };
        // It was off when a buffer came for it: it keeps its place among the waiting.
        if let Receive::Once(class) | Receive::Many(class) = slot.want()
            && !slot.has(ARMED | STARVED | DEFERRED | table::ENDED)
            && self.scarce.keeps(socket)
        {
            slot.set(STARVED);
            self.scarce.wait(class, socket);
        } else if !slot.has(CHANGED) {
            slot.set(CHANGED);
            self.changed.push(socket);
        }
    }

    /// Updates the receives of all sockets for which they may have to change.
    pub(super) fn carry_out_changes(&mut self) {
        let mut changed = std::mem::take(&mut self.changed);
        for socket in changed.drain(..) {
            if let Some(slot) = self.table.named(socket) {
                slot.clear(CHANGED);
                self.reconcile(socket);
            }
        }
        self.changed = changed;
        for class in [Class::Small, Class::Large] {
            // The pool has to know about those that wait only now.
            if self.groups[class as usize].armed() == 0 {
                self.feed(class);
            }
        }
    }

    /// Makes the receive in flight match the wanted mode: arms, cancels, or leaves it.
    pub(super) fn reconcile(&mut self, socket: Socket) {
        let Some(slot) = self.table.named(socket) else { return };
        if slot.has(table::ENDED | table::LISTENER) {
            return;
        }
        let want = slot.want();
        if !slot.has(ARMED) {
            if want != Receive::Off && !slot.has(STARVED | DEFERRED) {
                self.arm_receive(socket, want);
            }
        } else if !satisfies(slot, want) && !slot.has(CANCELLING) {
            slot.set(CANCELLING);
            self.cancel_receive(socket);
        }
    }

    /// Whether bytes that arrive on a socket may come later.
    pub(super) fn is_deferred(&mut self, socket: Socket) -> bool {
        self.table.named(socket).is_some_and(|slot| slot.has(DEFERRED))
    }

    /// Something has come on a deferred socket.
    pub(super) fn receive_deferred(&mut self, socket: Socket) {
        let Some(slot) = self.table.named(socket) else { return };
        if let Receive::Once(class) | Receive::Many(class) = slot.want()
            && !slot.has(ARMED | STARVED | table::ENDED)
        {
            self.arm_receive(socket, Receive::Once(class));
        }
    }

    pub(super) fn cancel_receive(&mut self, socket: Socket) {
        self.cancelled += 1;
        let cancel = opcode::AsyncCancel::new(user_data(Kind::Receive, socket));
        let entry = cancel.build().flags(squeue::Flags::SKIP_SUCCESS);
        let kind =
            if self.table.slot(socket.index).has(ODD) { Kind::CancelOdd } else { Kind::CancelEven };
        self.push(entry.user_data(user_data(kind, socket)));
    }

    /// Queues a receive. Where others wait for a buffer, a socket that may have bytes waits behind
    /// them.
    fn arm_receive(&mut self, socket: Socket, how: Receive) {
        let (Receive::Once(class) | Receive::Many(class)) = how else { return };
        let group = &mut self.groups[class as usize];
        // The kernel ends a receive with ENOBUFS when the ring is empty, even when no data waits
        // (liburing #1275).
        group.refill();
        let is_empty = group.armed() == 0;
        // Sockets may be waiting with completions that were not handled yet.
        let others_wait = !self.scarce.is_empty(class) || self.is_behind && self.scarce.keeps_any();
        let slot = self.table.slot(socket.index);
        if is_empty || others_wait && !slot.has(DRAINED) {
            self.stats.starved += u64::from(is_empty);
            slot.set(STARVED);
            self.scarce.wait(class, socket);
            return;
        }
        self.queue_receive(socket, class, matches!(how, Receive::Many(_)));
    }

    /// Queues a receive, regardless of waiting sockets.
    fn queue_receive(&mut self, socket: Socket, class: Class, many: bool) {
        let group = &self.groups[class as usize];
        let (id, bytes) = (group.id(), group.pool.size());
        let slot = self.table.slot(socket.index);
        let was_odd = slot.has(ODD);
        slot.clear(ARMED_MANY | ARMED_LARGE | CANCELLING | ODD);
        slot.set(if was_odd { ARMED } else { ARMED | ODD });
        slot.set(if many { ARMED_MANY } else { 0 });
        slot.set(if class == Class::Large { ARMED_LARGE } else { 0 });
        let fd = types::Fd(slot.fd);
        let entry = if many {
            opcode::RecvMulti::new(fd, id).build()
        } else {
            let receive = opcode::Recv::new(fd, std::ptr::null_mut(), bytes).buf_group(id);
            receive.build().flags(squeue::Flags::BUFFER_SELECT)
        };
        self.push(entry.user_data(user_data(Kind::Receive, socket)));
    }

    /// Takes buffers back from other threads, hands free ones to the kernel, and arms those that
    /// waited for them, oldest first, as many as there are buffers, and each for one: a receive of
    /// many takes up to 33 in the call that submits it. Runs before all other receives of a turn,
    /// which would get the buffers otherwise.
    pub(super) fn feed(&mut self, class: Class) {
        let group = &mut self.groups[class as usize];
        if self.scarce.is_empty(class) {
            group.pool.collect();
            group.refill();
            return;
        }
        group.pool.collect_or_starve();
        group.refill();
        let mut left = group.armed();
        while left > 0 {
            let Some((place, socket)) = self.scarce.pop(class) else { return };
            let Some(slot) = self.table.named(socket) else { continue };
            slot.clear(STARVED);
            let (Receive::Once(wanted) | Receive::Many(wanted)) = slot.want() else {
                if !slot.has(ARMED | table::ENDED) {
                    self.scarce.keep(place, socket);
                }
                continue;
            };
            if wanted != class {
                // It waits for buffers of the other class from now on.
                self.change(socket);
            } else if !slot.has(ARMED | table::ENDED) {
                // Receives that the kernel already has may use the buffers up before this receive
                // does.
                self.scarce.keep(place, socket);
                self.queue_receive(socket, class, false);
                left -= 1;
            }
        }
    }

    /// Whether sockets wait for a buffer although some are free, because those in front of them may
    /// have nothing to receive; or wait for a noted change to be carried out.
    pub(super) fn may_feed(&self) -> bool {
        let may_feed =
            |class: Class| self.groups[class as usize].armed() > 0 && !self.scarce.is_empty(class);
        may_feed(Class::Small) || may_feed(Class::Large) || !self.changed.is_empty()
    }

    pub(super) fn queue_send(&mut self, socket: Socket) {
        let slot = self.table.slot(socket.index);
        let fd = types::Fd(slot.fd);
        let Some(outgoing) = self.sends.get(slot.send) else { return };
        // With WAITALL the kernel continues after a short send without being asked.
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let entry = match outgoing.next() {
            Next::Nothing => return,
            Next::One(start, len) => opcode::Send::new(fd, start, len as u32).flags(flags).build(),
            Next::Several => {
                let message = self.scratch.message(outgoing);
                opcode::SendMsg::new(fd, message).flags(flags as u32).build()
            }
        };
        self.push(entry.user_data(user_data(Kind::Send, socket)));
    }

    pub(super) fn cancel_ignored(&mut self, kind: Kind, socket: Socket) {
        self.cancelled += 1;
        let entry = opcode::AsyncCancel::new(user_data(kind, socket))
            .build()
            .flags(squeue::Flags::SKIP_SUCCESS);
        self.push(entry.user_data(user_data(Kind::Ignored, socket)));
    }

    /// Frees the slot of a closed socket once nothing of it is in flight.
    pub(super) fn free(&mut self, index: u32) {
        let slot = self.table.slot(index);
        if slot.send == NO_SEND && !slot.has(ARMED | ACCEPTING | POLLING | table::CONNECTING) {
            self.table.remove(index);
        }
    }
}

/// Whether the receive in flight delivers what is wanted.
fn satisfies(slot: &Slot, want: Receive) -> bool {
    let class_of = |class| (class == Class::Large) == slot.has(ARMED_LARGE);
    match want {
        Receive::Off => false,
        Receive::Once(class) => class_of(class) && !slot.has(ARMED_MANY),
        // A single receive will do for now: it is followed by a multishot one.
        Receive::Many(class) => class_of(class) && !(slot.has(DEFERRED) && slot.has(ARMED_MANY)),
    }
}
