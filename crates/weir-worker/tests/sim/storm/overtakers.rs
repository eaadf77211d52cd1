//! docs/hostile.md E29: requests that their server refuses at once, before it answers those in
//! front of them.

use super::super::run::Run;
use super::super::server::OVERTAKER;
use super::super::{each_seed, seeds_of};
use super::{Counts, Outcome, add_clients, count, scenario, settle};
use crate::storm::Act;

/// Worlds where a hundred seeds are usual.
const WORLDS: u64 = 60;

/// Each client gets its own response, and the client that asks for the refusal gets that.
#[test]
fn e29_an_error_that_overtakes_is_nobodys() {
    let counts = Counts::default();
    each_seed(seeds_of(WORLDS), |seed| {
        let run = Run::new(scenario("overtakers", seed, 2));
        add_clients(&run, seed, "GET", |number, script| {
            script.burst(&[], 2, None);
            if number % 8 == 7 {
                let bytes = script.add("GET", None);
                script.asked.last_mut().expect("just added").trigger = Some(OVERTAKER.to_owned());
                script.acts.push_back(Act::Send(bytes));
            }
            script.burst(&[], 3, None);
        });
        run.finish_with(|book| {
            count(&counts, book);
            for (nonce, entry) in &book.entries {
                let fine = match entry.asked.trigger {
                    Some(_) => matches!(&entry.replies[..], [reply] if reply.status == 431),
                    None => entry.outcome == Outcome::Answered,
                };
                if !fine {
                    return Err(format!(
                        "{nonce} got {:?}, {:?}",
                        entry.outcome, entry.asked.trigger
                    ));
                }
            }
            Ok(())
        });
    });
    settle("overtakers", WORLDS, counts, [OVERTAKER].into_iter(), [OVERTAKER].into_iter());
}
