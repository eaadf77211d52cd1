//! The parties of the simulation against each other, without weir between them: a fault here is a
//! fault of the tests.

use std::rc::Rc;

use weir_check::Rules;
use weir_io::sim::{Faults, Rng, Settings, SimWorld};

use super::book::{Outcome, SharedBook};
use super::client::{Client, Manners};
use super::server::{Server, Style};

#[test]
fn clients_and_servers_understand_each_other() {
    for seed in 0..40 {
        let world = SimWorld::new(seed, Settings::random(seed, Faults::harmless(seed)));
        let book = SharedBook::default();
        let rng = &mut Rng::new(seed);
        let rules = Rules { via: false, lasts: false, ..Rules::default() };
        let style =
            Style { delay_us_max: 100_000, pieces: 300, slow: 20, rules, ..Style::honest() };
        let address = "192.0.2.1:80".parse().expect("an address");
        world.actor(Server::new(address, &book, style));
        let manners = Manners { burst: 5, abort: 100, slow: 50, ..Manners::quiet(8) };
        for number in 0..5 {
            let start_us = rng.below(100_000);
            world.actor(Client::random(number, address, start_us, &book, &manners, rng));
        }
        let done = Rc::clone(&book);
        assert!(
            world.run(u64::MAX, 1_000_000, |_| {}, || done.borrow().clients_done == 5),
            "seed {seed}"
        );
        let book = book.borrow();
        assert_eq!(book.violations, Vec::<String>::new(), "seed {seed}");
        let cut = book.entries.values().filter(|entry| entry.outcome == Outcome::Cut).count();
        let answered =
            book.entries.values().filter(|entry| entry.outcome == Outcome::Answered).count();
        assert!(answered > 10 && cut < 25, "seed {seed}: {answered} answered, {cut} cut");
    }
}
