//! Errands of the machines and the news of them: names to be resolved, credentials to be verified. Both are noted in
//! [`super::decide`].

use super::Clients;
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::client::connection::Reading;
use crate::context::Context;
use crate::forward::dns_cache::Client;
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
                for (index, generation) in &unasked.refused {
                    if self.sessions.holds(*index, *generation) {
                        self.proxied(*index).no_room = Some(name.clone());
                    }
                }
                self.resume_all(unasked.refused);
                self.resume_all(unasked.others);
            }
            News::Resolved { name, answer, .. } => {
                let waiting = self.names.learn(&name, answer, cx.now_us);
                self.resume_all(waiting);
            }
            News::Verified { token, user, .. } => {
                if let Some(index) = self.session_of(token).filter(|index| self.sessions.at(*index).flags.proxied) {
                    self.proxied(index).verdict = Some(user);
                    self.resume_decision(index);
                }
            }
        }
    }

    /// The requests of clients that waited for a name are looked at again.
    fn resume_all(&mut self, clients: Vec<Client>) {
        for (index, generation) in clients {
            if self.sessions.holds(index, generation) {
                self.resume_decision(index);
            }
        }
    }

    /// The request of a client that waited for the side thread is looked at again.
    fn resume_decision(&mut self, index: ClientKey) {
        let session = self.sessions.at_mut(index);
        if session.reading == Reading::Await && session.first == ExchangeKey::NONE {
            session.reading = Reading::Head;
            self.to_parse.push_back((index, self.sessions.generation(index)));
        }
    }
}
