//! docs/hostile.md E19: requests that kill every server that reads them.

use super::super::run::Run;
use super::super::server::KILLER;
use super::super::{each_seed, seeds_of};
use super::{Counts, Outcome, VICTIMS, add_clients, count, judge, scenario, settle};
use crate::storm::Act;

/// Worlds where a hundred seeds are usual.
const WORLDS: u64 = 100;

/// A seed where a suspect was sent right behind a response whose server had died long ago, and was
/// taken for the cause.
const BEHIND_AN_ANSWER: u64 = 100_372;

/// Most times that a request may reach servers that it kills: the first time, `forward-retries`,
/// `PASSED_MAX` orderly ends when it is the next request. And once behind another request, which is
/// to blame as far as weir can see.
const KILLER_ARRIVALS_MAX: usize = 1 + 5 + 2 + 1;

/// Most victims that may be refused, of a hundred.
const REFUSED_PERCENT_MAX: usize = 0;

/// E19: a request that kills every server that reads it. It gets its error after a bounded number
/// of tries, and the requests whose connections it broke are answered elsewhere or later.
#[test]
fn e19_a_request_that_kills_is_alone_in_its_end() {
    let counts = Counts::default();
    each_seed(seeds_of(WORLDS).into_iter().chain([BEHIND_AN_ANSWER]), |seed| {
        let run = Run::new(scenario("killer", seed, 2));
        let mut nonce = String::new();
        add_clients(&run, seed, "HEAD", |number, script| {
            script.burst(&[], VICTIMS, None);
            if number == 7 {
                let bytes = script.add("GET", None);
                let asked = script.asked.last_mut().expect("just added");
                asked.trigger = Some(KILLER.to_owned());
                nonce = asked.nonce.clone();
                script.acts.push_back(Act::Send(bytes));
            }
        });
        run.finish_with(|book| {
            count(&counts, book);
            let killer = &book.entries[&nonce];
            let refused = killer.replies.iter().all(|reply| matches!(reply.status, 502 | 503));
            // A response that had begun to its client may have been cut before.
            let ended = killer.replies.len() == 1 || killer.outcome == Outcome::Cut;
            if !ended || !refused || killer.arrivals.len() > KILLER_ARRIVALS_MAX {
                return Err(format!(
                    "the killer got {} replies after {} tries",
                    killer.replies.len(),
                    killer.arrivals.len()
                ));
            }
            judge(book, true, REFUSED_PERCENT_MAX)
        });
    });
    settle("killer", WORLDS, counts, [KILLER].into_iter(), [].into_iter());
}
