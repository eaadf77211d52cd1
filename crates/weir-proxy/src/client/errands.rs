//! News of errands: names that were resolved for the forward proxy (`forward/decide.rs`), credentials that were verified for it and for routes
//! with users (`visitors.rs`).

use super::Clients;
use crate::context::Context;
use crate::forward::lookup::{Errand, News};

impl Clients {
    /// The next thing to be asked of the side thread, if any: call it until None at the end of a turn.
    pub(crate) fn take_errand(&mut self) -> Option<Errand> {
        self.forward.take_errand()
    }

    /// What has become of an errand. News that nobody waits for any more are ignored.
    pub(crate) fn on_news(&mut self, news: News, cx: &Context) {
        match news {
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
            News::Verified { token, user, .. } => match self.answers.conns.of_token(token) {
                Some(index) if self.conn(index).flags.proxied => {
                    self.conn_mut(index).forward_state().verdict = Some(user);
                    self.answers.conns.resume_decision(self.answers.conns.local_name(index));
                }
                Some(index) if self.answers.conns.visitors.judged(index, user) => self.answers.conns.look_again(index),
                _ => {}
            },
        }
    }
}
