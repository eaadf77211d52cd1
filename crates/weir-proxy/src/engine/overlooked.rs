//! Requests that a server overlooks. gunicorn with threads reads what came together, answers the first request, and waits until there is
//! more to read; so the next one is unanswered until the connection is closed for idle.
//!
//! A late request that was sent behind another one is sent on another connection as well ([`super::late`]). When its server answers it
//! there, and here nothing has come for [`OVERLOOKED_US`], nor [`OUTRUN_US`](crate::upstream::early_close::OUTRUN_US) later, the server has overlooked it, or is very slow now and then. It has
//! overlooked it when it closes such a connection; or, because it may keep connections for long, when two of them together have been
//! silent for [`SILENCE_US`]. When all are silent, so that nothing can be sent elsewhere, one is given up for that after [`GIVEN_UP_US`].
//! Then it is doubted ([`Doubt::CutsShort`]), and whatever is overlooked on other connections goes again. A server
//! whose late answers come after all is soon taken for slow ([`crate::upstream::early_close`]), so that nothing is sent twice for this.
//! docs/pipelining.md#what-may-follow-what

use super::Engine;
use super::loss::Loss;
use crate::ending::UpstreamEnd;
use crate::request::pending_request::{ExchangeId, RequestFlags};
use crate::upstream::early_close::OVERLOOKED_US;
use crate::upstream::entry::EntryCopy;
use crate::upstream::trust::Doubt;

/// So long must connections of a server have been silent together, each for [`OVERLOOKED_US`] at least.
const SILENCE_US: u64 = 2_000_000;
/// One that is silent is given up after this, if it must be.
const GIVEN_UP_US: u64 = 1_000_000;
/// Connections of a server whose oldest request was sent elsewhere as well and is unanswered. While there are more, the server may have
/// come to a stop altogether, and nothing is sent twice for this.
const OUTSTANDING_MAX: usize = 16;

impl Engine {
    /// Whether a server may have overlooked a late request that was sent behind another one.
    pub(super) fn may_overlook(&self, server: usize) -> bool {
        let outstanding = |index: &&u32| {
            let link = self.links.at(**index);
            !link.begun && link.entries.front().is_some_and(|front| front.overlooked && front.copy == EntryCopy::Sent)
        };
        self.servers[server].early_close.may_overlook(self.now_us)
            && self.servers[server].links.iter().filter(outstanding).count() < OUTSTANDING_MAX
    }

    /// A request that was moved is being answered on this connection: what its server makes of it where it came from will show.
    pub(super) fn note_copy_answered(&mut self, answering: u32, id: ExchangeId) {
        let (now_us, server) = (self.now_us, self.links.at(answering).server as usize);
        for position in 0..self.servers[server].links.len() {
            let index = self.servers[server].links[position];
            let link = self.links.at_mut(index);
            let Some(entry) = link.entries.iter_mut().find(|entry| entry.ask.id == id && entry.copy == EntryCopy::Sent)
            else {
                continue;
            };
            entry.copy = EntryCopy::Answered(now_us);
            if let Some(due_us) = link.outrun_us() {
                self.arm_late(index, due_us);
            }
        }
    }

    /// Looks whether the server has overlooked the oldest request of a connection, of which nobody may want the answer here any more. This
    /// may end it.
    pub(super) fn check_silence(&mut self, index: u32) {
        let link = self.links.at(index);
        let Some(due_us) = link.outrun_us().filter(|_| link.is_ready()) else { return };
        let server = link.server as usize;
        let known = self.servers[server].trust.penalty_for(self.now_us) == Some(Doubt::CutsShort);
        if self.now_us < due_us {
            self.arm_late(index, due_us);
        } else if known && link.lasts() {
            self.lose_link(index, Loss::Ours, UpstreamEnd::Overlooked);
        } else if self.is_overlooking(server) {
            self.server_overlooks(server);
        } else {
            self.arm_late(index, self.now_us + OVERLOOKED_US);
        }
    }

    /// Whether so many connections of a server have been silent for so long, although it answered elsewhere, that this is no accident.
    /// One that was outrun stands for all where nothing more can be sent elsewhere.
    fn is_overlooking(&self, server: usize) -> bool {
        let machine = &self.servers[server];
        let stuck = !machine.has_room();
        let links = machine.links.iter().map(|index| self.links.at(*index));
        let silent = links.filter_map(|link| Some((link.silence_us(self.now_us)?, link.overlooks(self.now_us))));
        let (outrun, sum_us) = silent
            .filter(|(_, outrun)| *outrun || stuck)
            .fold((0, 0), |(count, sum_us), (us, outrun)| (count + u32::from(outrun), sum_us + us));
        sum_us >= SILENCE_US && outrun > u32::from(!stuck)
    }

    /// A connection is silent, and there is no other for what may be overlooked on it: it is given up, one a second of its server's at
    /// most, so that another one shows whether the server has come to a stop. The oldest request of one that stays is asked there
    /// first.
    pub(super) fn give_one_up(&mut self, index: u32) {
        let link = self.links.at(index);
        let server = link.server as usize;
        let usual_us = Some(self.servers[server].usual.late_us()).filter(|us| *us < u64::MAX).unwrap_or(SILENCE_US);
        let long = link.silence_us(self.now_us).is_some_and(|us| us >= usual_us.max(GIVEN_UP_US));
        if !long || !link.lasts() || !self.may_send_again(index) {
            return;
        }
        if !self.servers[server].early_close.may_give_up(self.now_us) {
            return;
        }
        let stays = |other: &&u32| {
            let other = self.links.at(**other);
            other.may_overlook() && other.silence_us(self.now_us).is_some()
        };
        let other = self.servers[server].links.iter().filter(|other| **other != index).find(stays).copied();
        let link = self.links.at(index);
        let answers = link.answers - link.answers_alone;
        self.lose_link(index, Loss::Ours, UpstreamEnd::Overlooked);
        if let Some(other) = other {
            let link = self.links.at_mut(other);
            let front = link.entries.front().map(|entry| entry.ask.id);
            let mut moved = link.take_behind(true, |ask| Some(ask.id) == front);
            for (ask, _) in &mut moved {
                ask.traits = ask.traits.with(RequestFlags::MOVED, true).with(RequestFlags::ALONE, true);
            }
            self.send_moved(server, moved);
        }
        if self.servers[server].early_close.on_end(self.now_us, answers) {
            self.server_overlooks(server);
        }
    }

    /// A server overlooks requests: it has one at a time for a while, and what else it may have overlooked is sent again.
    pub(super) fn server_overlooks(&mut self, server: usize) {
        let doubt = Doubt::CutsShort;
        self.servers[server].early_close.on_overlooked();
        self.doubt_server(server as u32, Some(doubt));
        self.tell_all_doubt(server as u32, Some(doubt));
        for position in 0..self.servers[server].links.len() {
            let index = self.servers[server].links[position];
            let link = self.links.at(index);
            if link.is_ready() && link.silence_us(self.now_us).is_some() && link.lasts() {
                self.lose_link(index, Loss::Ours, UpstreamEnd::Overlooked);
            }
        }
    }
}
