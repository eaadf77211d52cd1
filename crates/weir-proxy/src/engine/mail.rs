//! Delivery of mail: from other workers, or from one side of this worker to the other.

use weir_http::{Field, Trailers};

use super::Engine;
use crate::base::piece::Piece;
use crate::client::cache::readers;
use crate::client::fallback::falls_back;
use crate::cross::answer::Stop;
use crate::cross::mail::{Flow, Mail, Post};
use crate::cross::router::Requests;
use crate::request::pending_request::ExchangeId;
use crate::upstream::doubts::restore;
use crate::upstream::schedule::on_permit;

/// A larger buffer of a worker's mail to itself is given back to the allocator.
const OWN_POST_BYTES_MAX: usize = 64 * 1024;

impl Engine {
    /// Handles all mail of the worker `from`.
    pub fn deliver(&mut self, from: u16, post: Post) {
        for mail in post.mail {
            self.cx.counters.mail_received.add(1);
            self.deliver_one(from, mail, &post.bytes, &post.fields);
            self.pass_on();
        }
    }

    /// Delivers this worker's mail to itself, until none is left.
    #[inline]
    pub(super) fn pass_on(&mut self) {
        while self.cx.has_own_mail {
            self.deliver_own();
        }
    }

    #[cold]
    fn deliver_own(&mut self) {
        let me = self.cx.worker;
        self.cx.has_own_mail = false;
        let mut post = std::mem::take(&mut self.own_post);
        std::mem::swap(&mut post, &mut self.cx.posts[usize::from(me)]);
        for mail in post.mail.drain(..) {
            self.deliver_one(me, mail, &post.bytes, &post.fields);
        }
        if post.bytes.capacity() <= OWN_POST_BYTES_MAX {
            post.bytes.clear();
            post.fields.clear();
            self.own_post = post;
        }
    }

    /// Takes a piece of a response from another worker.
    fn deliver_piece(&mut self, id: ExchangeId, piece: Piece<'_>) {
        if let Some(Stop { conn, client }) =
            self.clients.answers().on_answer_piece(id, piece, &mut self.cx)
        {
            self.cx.post(conn.worker, Mail::Flow { conn, client, flow: Flow::Stop });
        }
    }

    fn deliver_one(&mut self, from: u16, mail: Mail, bytes: &[u8], fields: &[Field]) {
        let is_stranger = self.is_stranger(from);
        let Engine { clients, upstreams, cx, .. } = self;
        match mail {
            Mail::Reborn { life } => self.on_reborn(from, life),
            Mail::Welcome { life } => self.on_welcome(from, life),
            Mail::Permit { server } => on_permit(upstreams, server, cx),
            // It is about the life before; its names may have new owners now.
            _ if is_stranger => {}
            Mail::Ask { ask, bytes: range } => upstreams.accept_mailed(ask, &bytes[range], cx),
            Mail::Again { ask, fate, bytes: range } => {
                if clients.answers().on_again(&ask, cx) {
                    upstreams.place_back(ask, fate, &bytes[range], cx);
                }
            }
            Mail::Move { worker, ask, bytes: range } => {
                let bytes = &bytes[range];
                if clients.answers().on_move(worker, ask, bytes, cx) {
                    let bytes = cx.write_to_post(worker, bytes);
                    cx.post(worker, Mail::Ask { ask, bytes });
                }
            }
            Mail::Body { id, client, conn, data, end } => {
                upstreams.conn_body(id, client, conn, Piece::Kept(data), end, cx);
            }
            Mail::Cancel { id, what } => upstreams.cancel_here(id, what, cx),
            Mail::Withdrawn { id } => clients.answers().on_withdrawn(id, cx),
            Mail::Flow { conn, client, flow } => upstreams.flow_here(conn, client, flow, cx),
            Mail::Needed { id, conn, left, aside, most } => {
                clients.answers().on_needed(id, conn, left, aside, most, cx)
            }
            Mail::Gone { client } => upstreams.end_own(client, cx),
            Mail::Doubt { server, doubt } => _ = upstreams.pool_mut().distrust(server, doubt, cx),
            Mail::Verdict { server, verdict } => restore(server, verdict, upstreams, cx),
            Mail::Unheard { server, since_us } => upstreams.forget_resting(server, since_us, cx),
            Mail::Vacate { server } => upstreams.vacate(server, cx),
            Mail::Health { server, news } => upstreams.on_health(server, news, cx),
            Mail::Suspect { key, deaths, refused_until_us } => {
                upstreams.isolation_mut().on_suspect(&key, deaths, refused_until_us, cx)
            }
            Mail::Acquitted { key } => upstreams.isolation_mut().on_acquitted(&key),
            Mail::Assigned { id, conn } => clients.answers().on_assigned(id, conn, cx),
            Mail::Joined { id, conn } => clients.answers().on_joined(id, conn, cx),
            Mail::Placed { id, placed } => clients.answers().on_placed(id, placed),
            Mail::BodyFlow { id, pause } => clients.answers().on_body_flow(id, pause, cx),
            // When the client is gone, its cancellation is on the way.
            Mail::Head { id, conn, head } => {
                clients.answers().on_answer_head(id, conn, &head.head(bytes, fields), cx);
            }
            Mail::Small { id, bytes: range } => {
                self.deliver_piece(id, Piece::Borrowed(&bytes[range]))
            }
            Mail::Large { id, data } => self.deliver_piece(id, Piece::Kept(data)),
            Mail::Metered { id, conn, client, data } => {
                // The source has stopped, and continues if there is room or the response is no
                // longer wanted.
                if clients.answers().on_answer_piece(id, Piece::Kept(data), cx).is_none() {
                    cx.post(conn.worker, Mail::Flow { conn, client, flow: Flow::Go });
                }
            }
            Mail::End { id, trailers } => {
                upstreams.isolation_mut().on_answer_elsewhere(id, cx);
                clients.answers().on_answer_end(id, Trailers::kept(&trailers), cx);
            }
            Mail::Fetched { name, failure } => {
                readers::on_elsewhere(clients.answers(), name, failure, cx)
            }
            Mail::Fail { id, cause } => {
                upstreams.isolation_mut().on_answer_elsewhere(id, cx);
                if !falls_back(clients, id, cause, &mut Requests::new(upstreams), cx) {
                    clients.answers().on_answer_fails(id, cause, cx);
                }
            }
        }
    }
}
