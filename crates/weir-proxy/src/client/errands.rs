//! Errands of the machines and the news of them: names to be resolved, credentials to be verified. Both are noted in
//! [`super::decide`].

use super::Clients;
use crate::context::Context;
use crate::forward::lookup::{Errand, News, Unresolved};

impl Clients {
    /// The next thing to be asked of the side thread, if any: call it until None at the end of a turn.
    pub(crate) fn take_errand(&mut self) -> Option<Errand> {
        self.errands.pop_front()
    }

    /// What has become of an errand. News that nobody waits for any more are ignored.
    pub(crate) fn on_news(&mut self, news: News, cx: &Context) {
        match news {
            News::Resolved { name, asker, answer: Err(Unresolved::NoRoom) } => {
                let unasked = self.names.refuse(&name, &asker);
                for client in &unasked.refused {
                    if self.conns.knows(*client) {
                        self.conns.at_mut(client.0).forward_state().no_room = Some(name.clone());
                    }
                }
                unasked.refused.into_iter().chain(unasked.others).for_each(|client| self.conns.resume_decision(client));
            }
            News::Resolved { name, answer, .. } => {
                let waiting = self.names.learn(&name, answer, cx.now_us);
                waiting.into_iter().for_each(|client| self.conns.resume_decision(client));
            }
            News::Verified { token, user, .. } => {
                if let Some(index) = self.conns.of_token(token).filter(|index| self.conns.at(*index).flags.proxied) {
                    self.conns.at_mut(index).forward_state().verdict = Some(user);
                    self.conns.resume_decision(self.conns.local_name(index));
                }
            }
        }
    }
}
