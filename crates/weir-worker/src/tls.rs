//! What the worker does for TLS: it seals connections to servers, passes reasons on to the counters and the machines, and to these what
//! was agreed with clients.

use std::io;
use std::net::SocketAddr;

use weir_io::{Driver, Socket};
use weir_proxy::ending::{ServerTlsFailure, TlsFailure};
use weir_proxy::observe::counters::Counters;
use weir_proxy::observe::secured::Secured;
use weir_tls::{Facts, Failure, Tally};

use crate::start::ServerSeals;
use crate::worker::Worker;

impl<D: Driver> Worker<D> {
    /// Tells which servers are spoken TLS to, by server over all upstreams.
    pub fn set_server_seals(&mut self, seals: ServerSeals) {
        self.server_seals = seals;
    }

    /// Starts a connection to a server.
    pub(crate) fn connect(&mut self, token: u64, address: SocketAddr, server: u32) -> io::Result<Socket> {
        match self.server_seals.get(server as usize).and_then(Option::as_ref) {
            Some(seal) => self.driver.connect_sealed(None, address, token, seal.cipher()),
            None => self.driver.connect(address, token),
        }
    }

    /// A connect has ended.
    pub(crate) fn connected(&mut self, token: u64, socket: Socket, result: &io::Result<()>) {
        // Nobody asks what was agreed with a server.
        drop(self.driver.take_facts(socket));
        match result.as_ref().err().and_then(server_failure) {
            Some(why) => self.engine.link_tls_refused(token, why),
            None => self.engine.link_connected(token, result.is_ok()),
        }
    }

    /// A server has ended its sending direction.
    pub(crate) fn ended(&mut self, token: u64, socket: Socket) {
        if self.driver.is_cut(socket) {
            self.engine.link_cut(token);
        } else {
            self.engine.link_ended(token);
        }
    }

    /// A connection to a server has broken.
    pub(crate) fn failed(&mut self, token: u64, error: &io::Error) {
        match server_failure(error) {
            Some(why) => self.engine.link_tls_failed(token, why),
            None => self.engine.link_failed(token),
        }
    }

    /// Counts what has happened to handshakes.
    pub(crate) fn count_tls(&mut self) {
        if let Some(tally) = self.driver.take_tally() {
            count(&self.parts.counters, &tally);
        }
        if let Some(tally) = self.driver.take_connects_tally() {
            count_servers(&self.parts.counters, &tally);
        }
    }
}

/// Why TLS is to blame for an error; None: it is not.
fn server_failure(error: &io::Error) -> Option<ServerTlsFailure> {
    error.get_ref()?.downcast_ref::<Failure>().map(|why| of_server(*why))
}

/// What has happened to handshakes with servers, as the counters say it.
fn count_servers(counters: &Counters, tally: &Tally) {
    counters.upstream_tls_handshakes.add(tally.completed);
    counters.upstream_tls_resumed.add(tally.resumed);
    for (why, count) in Failure::ALL.into_iter().zip(tally.failed) {
        (0..count).for_each(|_| counters.upstream_tls_failures.count(of_server(why)));
    }
}

/// The same reason in the words of the counters, for a server.
fn of_server(why: Failure) -> ServerTlsFailure {
    match why {
        Failure::NotTls => ServerTlsFailure::NotTls,
        Failure::NothingInCommon => ServerTlsFailure::NothingInCommon,
        Failure::Alert => ServerTlsFailure::Alert,
        Failure::Misbehaved => ServerTlsFailure::Misbehaved,
        Failure::Left => ServerTlsFailure::Left,
        Failure::WrongName => ServerTlsFailure::Name,
        Failure::Expired => ServerTlsFailure::Expired,
        Failure::NotYetValid => ServerTlsFailure::NotYetValid,
        Failure::UnknownCa => ServerTlsFailure::UnknownCa,
        Failure::BadCertificate => ServerTlsFailure::Certificate,
        // Only clients ask for names, and only they have a time and a number of their own.
        Failure::UnknownName | Failure::Timeout | Failure::TooMany | Failure::Internal => ServerTlsFailure::Internal,
    }
}

/// What has happened to handshakes with clients, as the counters say it.
fn count(counters: &Counters, tally: &Tally) {
    counters.tls_handshakes.add(tally.completed);
    counters.tls_resumed.add(tally.resumed);
    for (why, count) in Failure::ALL.into_iter().zip(tally.failed) {
        (0..count).for_each(|_| counters.tls_failures.count(failure(why)));
    }
}

/// The same reason in the words of the counters.
fn failure(why: Failure) -> TlsFailure {
    match why {
        Failure::NotTls => TlsFailure::NotTls,
        Failure::NothingInCommon => TlsFailure::NothingInCommon,
        Failure::UnknownName => TlsFailure::UnknownName,
        Failure::Alert => TlsFailure::Alert,
        Failure::Misbehaved => TlsFailure::Misbehaved,
        Failure::Left => TlsFailure::Left,
        Failure::Timeout => TlsFailure::Timeout,
        Failure::TooMany => TlsFailure::TooMany,
        Failure::Internal => TlsFailure::Internal,
        // Certificates are judged by whoever connects.
        Failure::WrongName | Failure::Expired | Failure::NotYetValid | Failure::UnknownCa | Failure::BadCertificate => {
            TlsFailure::Internal
        }
    }
}

/// What the machines are to know of a connection that speaks TLS.
pub(crate) fn secured(facts: Facts) -> Secured {
    Secured { version: facts.version, suite: facts.suite, name: facts.name, resumed: facts.resumed }
}

#[cfg(test)]
mod tests {
    //! Proves: what is counted has the same word here and there, and all of it is counted. How: each reason.

    use super::*;

    #[test]
    fn each_reason_of_servers_is_counted_and_found_in_errors() {
        let tally = Tally { completed: 7, resumed: 3, failed: [1; Failure::ALL.len()] };
        let counters = Counters::default();
        count_servers(&counters, &tally);
        assert_eq!((counters.upstream_tls_handshakes.get(), counters.upstream_tls_resumed.get()), (7, 3));
        assert_eq!(counters.upstream_tls_failures.sum(), Failure::ALL.len() as u64);
        for why in ServerTlsFailure::ALL {
            assert!(counters.upstream_tls_failures.get(why.word()) > 0, "{why:?}");
        }
        let error = io::Error::new(io::ErrorKind::ConnectionAborted, Failure::Expired);
        assert_eq!(server_failure(&error), Some(ServerTlsFailure::Expired));
        assert_eq!(server_failure(&io::ErrorKind::ConnectionRefused.into()), None);
    }

    #[test]
    fn the_words_are_the_same() {
        let mut tally = Tally { completed: 7, resumed: 3, ..Tally::default() };
        for (at, why) in Failure::ALL.into_iter().enumerate() {
            if TlsFailure::ALL.iter().any(|known| known.word() == why.word()) {
                tally.failed[at] = at as u64;
            }
        }
        assert_eq!(tally.failed.iter().filter(|count| **count > 0).count(), TlsFailure::ALL.len() - 1);
        let counters = Counters::default();
        count(&counters, &tally);
        assert_eq!((counters.tls_handshakes.get(), counters.tls_resumed.get()), (7, 3));
        for (at, why) in Failure::ALL.into_iter().enumerate() {
            assert_eq!(counters.tls_failures.get(why.word()), tally.failed[at], "{why:?}");
        }
    }
}
