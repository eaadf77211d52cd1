//! Hostile servers (rows E of docs/hostile.md) against the real binary, with victims around the
//! asker.
//!
//! Each row is played in every company in which HTTP lets a proxy notice the fault. The company is
//! none, victims queued at depth 1, or victims pipelined in front of and behind the trigger on the
//! same connection. In all of them each victim gets its own nonce, exactly once, in order. The
//! asker gets what the row says, and the connection ends if the row says so. The clients, their
//! number and their order are random; the seed is printed.

use crate::kit::{Behaviour, Client, Gone, Io, Link, Random, Server, Weir, app, nonce};
use weir_check::Request;
use weir_check::upstreams::{
    Asker, Company, HostileUpstream, Outcome, Step, Trust, by_id, catalogue, check_honest,
};

crate::kit::rows_on_both_drivers! { play:
    e0_honest,
    e1_second_answer, e1_garbage_behind, e1_http_like_garbage, e1_half_an_answer_behind,
    e2_second_answer_later, e21_split_answer, e21_split_by_the_target,
    e3_crlf_behind, e3_two_crlf_behind, e3_many_crlf_behind,
    e4_head_with_body, e4_head_with_an_answer_as_body,
    e5_204_with_body, e5_204_with_an_answer_as_body, e5_204_with_chunks,
    e6_304_with_body, e6_304_with_an_answer_as_body,
    e7_hints_behind, e7_hints_and_processing, e7_continue_unasked, e7_32_hints, e7_33_hints,
    e7_2000_hints,
    e8_101_unasked, e8_101_and_an_answer,
    e9_early_answer, e9_early_refusal,
    e10_late_answer, e11_client_leaves,
    e12_length_fin, e12_length_rst, e12_stranger_in_body, e12_chunk_fin, e12_chunks_without_last,
    e12_last_chunk_cut,
    e16_chunk_two_to_64_plus_2, e16_chunk_sign, e16_chunk_data_too_long, e16_chunk_line_by_lf,
    e16_chunk_size_empty,
    e13_length_and_chunked, e13_chunked_and_length,
    e14_two_different, e14_list, e14_minus, e14_plus, e14_empty, e14_two_to_64,
    e15_gzip, e15_unknown_and_length, e15_chunked_then_gzip, e15_two_lines,
    e17_bare_lf, e17_lf_in_head, e17_bare_cr, e17_nul_in_value, e17_status_2000, e17_status_20,
    e17_status_099,
    e17_version_2, e17_lower_case_version, e17_no_status_line, e17_empty_name, e17_no_colon,
    e17_field_before_status_line, e17_head_of_1_mib,
    e17_fold_becomes_space, e17_space_before_colon_is_removed,
    e26_connection_bound_auth, e28_ends_by_close, e28_http_10, e28_connection_close,
}

#[test]
fn every_row_has_a_test() {
    let missing: Vec<&str> =
        catalogue().iter().map(|row| row.id).filter(|id| !ROWS.contains(id)).collect();
    assert!(missing.is_empty(), "rows without a test: {missing:?}");
}

/// Plays one row in every company that it allows.
fn play(io: Io, id: &str) {
    let row = by_id(id);
    let mut random = Random::new();
    for company in [Company::Alone, Company::Queued, Company::Pipelined] {
        if company <= row.company {
            eprintln!("company: {company:?}");
            Play::new(io, row, company, random.fork()).run();
        }
    }
}

/// The server of a row: honest, except for the trigger and for gates.
///
/// It responds to `/gate?n=..&unanswered=K` when K requests are unanswered on its connection and
/// the test has said `open`.
struct Scripted {
    row: HostileUpstream,
    company: Company,
}

impl Behaviour for Scripted {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        if request.target.starts_with("/trigger") {
            return self.script(link, request);
        }
        if let Some(unanswered) = request.query("unanswered") {
            link.await_event(&format!("open {}", request.nonce()))?;
            if !link.await_unanswered(unanswered.parse().expect("a number"))? {
                eprintln!("pipelined less: {} of {unanswered}", link.unanswered());
            }
        }
        link.honest(request)
    }

    fn on_head(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        if request.target.starts_with("/trigger") && self.row.trigger.is_incomplete() {
            return self.script(link, request);
        }
        Ok(())
    }
}

impl Scripted {
    fn script(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        let mut answered = false;
        for step in &self.row.steps {
            match step {
                Step::Send(template) => {
                    let bytes = Step::bytes(template, request.nonce());
                    match std::mem::replace(&mut answered, true) {
                        false => link.answer(&bytes)?,
                        // weir may have closed already: that is what most rows want.
                        true => drop(link.write(&bytes)),
                    }
                }
                Step::AwaitDelivered => link.await_event("delivered")?,
                Step::Fin => link.fin(),
                Step::Rst => return Err(link.rst()),
            }
        }
        match self.row.trust {
            Trust::Kept | Trust::Either | Trust::Any => Ok(()),
            Trust::Closed | Trust::Rude | Trust::Doubt | Trust::Surplus => self.must_close(link),
        }
    }

    /// Checks that weir ends the connection by itself and (where nothing was sent before) sends no
    /// more requests on it.
    fn must_close(&self, link: &mut Link) -> Result<(), Gone> {
        let late = link.until_closed();
        if !late.is_empty() && self.company < Company::Pipelined {
            link.fault(&format!("{} requests after the fault, first {:?}", late.len(), late[0]));
        }
        link.tell("closed by weir");
        Err(Gone)
    }
}

/// One run of one row.
struct Play<'a> {
    row: &'a HostileUpstream,
    company: Company,
    random: Random,
    server: Server,
    weir: Weir,
    /// Victims' connections with the nonces that they expect, in order.
    victims: Vec<(Client, Vec<String>)>,
}

impl<'a> Play<'a> {
    fn new(io: Io, row: &'a HostileUpstream, company: Company, mut random: Random) -> Play<'a> {
        let server = Server::start(Scripted { row: row.clone(), company });
        // For the late response. All others come at once, but the limit also holds for them, so
        // even a busy machine must keep it.
        let timeout = if row.letter == "E10" { "forward-timeout \"4s\"" } else { "" };
        let pipeline = format!("pipeline depth=64\n {timeout}");
        // With two workers, one of them reaches the only connection through the other. A late
        // response may be there before the mail that nobody waits for it: then it is one, and the
        // connection remains.
        let workers = if row.letter == "E10" { 1 } else { random.below(2) as u32 + 1 };
        let weir = Weir::start(io, workers, &app(&server, 1, &pipeline));
        Play { row, company, random, server, weir, victims: Vec::new() }
    }

    fn run(mut self) {
        if self.company == Company::Pipelined {
            self.earn_trust();
        }
        self.some_alone(3);
        let accepted = self.server.log().accepted;
        self.trigger_among_victims();
        if matches!(self.row.trust, Trust::Closed | Trust::Rude | Trust::Doubt | Trust::Surplus) {
            self.server.wait("weir replaces the connection", |log| log.accepted > accepted);
        }
        if self.row.trust == Trust::Kept {
            assert_eq!(
                self.server.log().accepted,
                accepted,
                "the connection should have been kept"
            );
        }
        self.some_alone(3);
        if matches!(self.row.trust, Trust::Doubt | Trust::Surplus) {
            self.is_not_pipelined(accepted);
        }
        drop(self.victims);
        self.weir.stop();
        self.server.finish();
    }

    /// Makes enough clean exchanges that requests may follow each other.
    fn earn_trust(&mut self) {
        let mut client = Client::connect(self.weir.address);
        for _ in 0..10 {
            let nonces: Vec<String> = (0..10).map(|_| nonce()).collect();
            nonces.iter().for_each(|nonce| client.get(&format!("/victim?n={nonce}")));
            nonces.iter().for_each(|nonce| check_honest(nonce, &client.reply()).unwrap());
        }
    }

    /// Victims, one after the other.
    fn some_alone(&mut self, count: usize) {
        for _ in 0..count {
            let mut client = Client::connect(self.weir.address);
            let nonce = nonce();
            client.get(&format!("/victim?n={nonce}"));
            check_honest(&nonce, &client.reply()).unwrap();
        }
    }

    /// Sends a victim's request on a random connection, sometimes a new one.
    fn victim(&mut self) {
        if self.victims.len() < 2 || self.random.below(3) == 0 {
            self.victims.push((Client::connect(self.weir.address), Vec::new()));
        }
        let nonce = nonce();
        let which = self.random.below(self.victims.len());
        let (client, nonces) = &mut self.victims[which];
        client.get(&format!("/victim?n={nonce}"));
        nonces.push(nonce);
    }

    /// Checks that every victim gets its own responses, in order.
    fn victims_are_fine(&mut self) {
        for (client, nonces) in &mut self.victims {
            for nonce in nonces.drain(..) {
                check_honest(&nonce, &client.reply())
                    .unwrap_or_else(|error| panic!("a victim was harmed: {error}"));
            }
        }
    }

    fn trigger_among_victims(&mut self) {
        let nonce = nonce();
        let crowded = self.company > Company::Alone;
        let (before, behind) = (self.random.below(5) + 1, self.random.below(5) + 1);
        // While the gate is shut, all requests are queued or pipelined behind it.
        let mut gate = crowded.then(|| self.shut_gate(before, behind));
        if crowded {
            (0..before).for_each(|_| self.victim());
        }
        let mut asker = Client::connect(self.weir.address);
        match self.row.trigger.fields.contains("Upgrade") {
            true => asker.ask_upgrade(),
            false => asker.ask(self.row.trigger.method, false),
        }
        asker.send(&self.row.trigger.bytes("a", &nonce));
        if crowded {
            (0..behind).for_each(|_| self.victim());
        }
        if let Some((client, nonce)) = &mut gate {
            self.server.tell(&format!("open {nonce}"));
            check_honest(nonce, &client.reply()).unwrap();
        }
        self.asker_is_served(asker, &nonce);
        self.victims_are_fine();
    }

    /// Sends a request that the server holds until everything that may be pipelined behind it has
    /// arrived there.
    fn shut_gate(&mut self, before: usize, behind: usize) -> (Client, String) {
        let trigger = &self.row.trigger;
        let alone =
            trigger.method != "GET" || !(trigger.fields.is_empty() && trigger.query.is_empty());
        let unanswered = match self.company {
            Company::Pipelined if alone => 1 + before,
            Company::Pipelined => 1 + before + 1 + behind,
            _ => 1,
        };
        let mut client = Client::connect(self.weir.address);
        let nonce = nonce();
        client.get(&format!("/gate?n={nonce}&unanswered={unanswered}"));
        self.server.wait("the gate is reached", |log| {
            log.requests.iter().any(|(_, it)| it.nonce() == nonce)
        });
        (client, nonce)
    }

    fn asker_is_served(&self, mut asker: Client, nonce: &str) {
        if self.row.asker == Asker::Leaves {
            asker.beginning(1);
            asker.reset();
            return self.server.tell("delivered");
        }
        let replies: Vec<_> = asker.try_reply().into_iter().collect();
        self.server.tell("delivered");
        if !self.row.trigger.is_incomplete() {
            asker.finish();
            asker.end();
        }
        let extra = if asker.ended().is_some() { asker.try_reply() } else { None };
        let replies: Vec<_> = replies.into_iter().chain(extra).collect();
        let end = asker.ended().map(|ended| ended.end.clone());
        let outcome = Outcome { nonce, replies: &replies, end: end.as_ref() };
        self.row.asker.check(outcome).unwrap_or_else(|error| panic!("the asker: {error}"));
    }

    /// Checks that after a doubt no client's requests follow each other.
    fn is_not_pipelined(&mut self, first_new: usize) {
        let mut gate = Client::connect(self.weir.address);
        let nonce = nonce();
        gate.get(&format!("/gate?n={nonce}&unanswered=1"));
        self.server.wait("the gate is reached", |log| {
            log.requests.iter().any(|(_, it)| it.nonce() == nonce)
        });
        (0..8).for_each(|_| self.victim());
        self.server.tell(&format!("open {nonce}"));
        check_honest(&nonce, &gate.reply()).unwrap();
        self.victims_are_fine();
        let log = self.server.log();
        assert!(
            log.depths[first_new..].iter().all(|&depth| depth <= 1),
            "pipelined after doubt: {:?}",
            log.depths
        );
    }
}
