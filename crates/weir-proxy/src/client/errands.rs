//! Results of errands: names that were resolved for the forward proxy (`forward/decide.rs`),
//! credentials that were verified for it and for routes with users (`visitors.rs`). Also bytes that
//! were encoded on another thread (`compressing/away.rs`).

use std::sync::Arc;

use super::Clients;
use crate::context::Context;
use crate::forward::lookup::{Errand, News, Question, Unverified, User};

impl Clients {
    /// Returns the next errand for the side thread, if any: call it until None at the end of a
    /// turn.
    pub(crate) fn take_errand(&mut self) -> Option<Errand> {
        self.forward.take_errand()
    }

    /// Takes the result of an errand. Results that are no longer awaited are ignored.
    pub(crate) fn on_news(&mut self, news: News, cx: &mut Context) {
        match news {
            News::Encoded(encoded) => self.answers.on_encoded(*encoded, cx),
            News::Resolved { name, asker, answer } => {
                let waited = self.forward.on_resolved(&name, &asker, answer, cx.now_us);
                for client in &waited.refused {
                    if self.answers.conns.knows(*client) {
                        self.conn_mut(client.0).forward_state().no_room = Some(name.clone());
                    }
                }
                waited
                    .refused
                    .into_iter()
                    .chain(waited.others)
                    .for_each(|client| self.answers.conns.resume_decision(client));
            }
            News::Verified { question, user, .. } => on_verdict(self, question, user),
        }
    }
}

/// Takes a verdict. It is for the request that asked for it, not for a later one of its connection.
fn on_verdict(clients: &mut Clients, question: Question, user: Result<Arc<User>, Unverified>) {
    let Some(index) = clients.answers.conns.of_token(question.token) else { return };
    if clients.conn(index).flags.proxied {
        let state = clients.conn_mut(index).forward_state();
        if state.asked == question.serial {
            state.verdict = Some(user);
            clients.answers.conns.resume_decision(clients.answers.conns.local_name(index));
        }
    } else if clients.answers.conns.visitors.judged(index, question.serial, user) {
        clients.answers.conns.look_again(index);
    }
}
