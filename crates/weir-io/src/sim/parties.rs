//! How the world calls actors, and the requests of actors. A callback runs inside an event; its
//! requests take effect through later events, so no actor is ever entered twice.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};

use super::actor::{Actor, Conn, Net};
use super::end::{End, EndId, Owner, What};
use super::world::{Listener, Listening, World};

impl World {
    pub(super) fn call(
        &mut self,
        actor: usize,
        callback: impl FnOnce(&mut dyn Actor, &mut Net<'_>),
    ) {
        let Some(mut body) = self.actors[actor].body.take() else {
            self.fail("an actor was entered twice")
        };
        callback(&mut *body, &mut Net { world: self, actor });
        self.actors[actor].body = Some(body);
    }

    pub(super) fn read_actor(&mut self, actor: usize, id: EndId) {
        let Some(end) = self.ends.get_mut(id) else { return };
        if end.paused {
            return;
        }
        if !end.inbox.is_empty() {
            let data = end.inbox.split().freeze();
            self.acknowledge(id, data.len());
            self.call(actor, |actor, net| actor.on_data(net, Conn(id), &data));
        }
        // The callback may have closed or paused it.
        let Some(end) = self.ends.get_mut(id) else { return };
        if end.paused {
            return;
        }
        if end.fin && !end.told {
            end.told = true;
            self.call(actor, |actor, net| actor.on_end(net, Conn(id)));
        } else if end.reset {
            self.ends.remove(id);
            self.call(actor, |actor, net| actor.on_reset(net, Conn(id)));
        }
    }

    pub(super) fn flush_actor(&mut self, id: EndId) {
        let mut sent = false;
        loop {
            let room = self.room(id);
            let Some(end) = self.ends.get_mut(id) else { return };
            if end.peer.is_none() {
                return;
            }
            if end.shut || end.reset {
                end.outbox.clear();
            }
            if end.outbox.is_empty() {
                break;
            }
            if room == 0 {
                end.blocked = true;
                return;
            }
            let take = room.min(end.outbox.len());
            let bytes = end.outbox.split_to(take).freeze();
            self.push(id, bytes);
            sent = true;
        }
        if self.ends.get(id).is_some_and(|end| end.finish) {
            self.shut_end(id);
        }
        if sent {
            self.schedule(self.now_us, What::Drained { end: id });
        }
    }

    pub(super) fn on_drained(&mut self, id: EndId) {
        let Some(end) = self.ends.get(id) else { return };
        if let Owner::Actor(actor) = end.owner
            && end.outbox.is_empty()
        {
            self.call(actor, |actor, net| actor.on_drained(net, Conn(id)));
        }
    }

    pub(super) fn listen_actor(&mut self, address: SocketAddr, actor: usize) {
        if self.listeners.contains_key(&address) {
            self.fail(&format!("{address} is taken"));
        }
        let listening =
            Listening { by: Listener::Actor(actor), backlog: VecDeque::new(), deaf: false };
        self.listeners.insert(address, vec![listening]);
    }

    pub(super) fn unlisten(&mut self, address: SocketAddr) {
        self.listeners.remove(&address);
    }

    pub(super) fn connect_actor(&mut self, actor: usize, to: SocketAddr) -> EndId {
        let local = self.new_local(Ipv4Addr::new(10, 1, (actor >> 8) as u8, actor as u8));
        let id = self.ends.insert(End::new(Owner::Actor(actor), local, to));
        self.start_connect(id, to, false);
        id
    }

    pub(super) fn send_actor(&mut self, id: EndId, bytes: &[u8]) {
        let Some(end) = self.ends.get_mut(id) else { return };
        if end.shut || end.reset || end.finish {
            return;
        }
        end.outbox.extend_from_slice(bytes);
        self.flush_actor(id);
    }

    pub(super) fn finish_actor(&mut self, id: EndId) {
        if let Some(end) = self.ends.get_mut(id) {
            end.finish = true;
            self.flush_actor(id);
        }
    }

    pub(super) fn close_actor(&mut self, id: EndId) {
        let Some(end) = self.ends.get_mut(id) else { return };
        // A real program would linger; here the rest is sent past the window at once.
        if !end.outbox.is_empty() && !end.shut && end.peer.is_some() {
            let bytes = end.outbox.split().freeze();
            self.push(id, bytes);
        }
        self.close_end(id, false);
    }

    pub(super) fn kill_actor(&mut self, id: EndId) {
        self.close_end(id, false);
    }

    pub(super) fn reset_actor(&mut self, id: EndId) {
        self.close_end(id, true);
    }

    pub(super) fn set_paused(&mut self, id: EndId, paused: bool) {
        let Some(end) = self.ends.get_mut(id) else { return };
        end.paused = paused;
        if !paused {
            self.schedule(self.now_us, What::Read { end: id });
        }
    }

    pub(super) fn calm(&mut self, id: EndId) {
        let Some(end) = self.ends.get_mut(id) else { return };
        end.calm = true;
        if let Some(peer) = end.peer
            && let Some(other) = self.ends.get_mut(peer)
        {
            other.calm = true;
        }
    }

    pub(super) fn set_timer(&mut self, actor: usize, after_us: u64, id: u64) {
        self.schedule(self.now_us + after_us, What::Timer { actor, id });
    }
}
