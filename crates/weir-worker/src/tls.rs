//! The worker's part in TLS: it seals connections to servers, and passes failures to the counters
//! and the machines, and the negotiated parameters of clients to the machines.

use std::io;
use std::sync::Arc;

use weir_io::{Driver, Outbound, ProxyHeader, ProxyVersion, Socket};
use weir_proxy::base::token::Token;
use weir_proxy::ending::{ServerTlsFailure, TlsFailure};
use weir_proxy::engine::on_port_taken;
use weir_proxy::observe::counters::Counters;
use weir_proxy::observe::secured::{Secured, Shown};
use weir_proxy::plan::{Announcement, Location, Protocols, ProxyProtocol, Way, Whose};
use weir_tls::{Facts, Failure, Tally};

use crate::flows::is_port_taken;
use crate::start::{Sealing, ServerSeals};
use crate::tuning::tuning;
use crate::worker::{Worker, unpack};

impl<D: Driver> Worker<D> {
    /// Sets which servers speak TLS, by server over all upstreams.
    pub fn set_server_seals(&mut self, seals: ServerSeals) {
        self.dialing.seals = seals;
    }

    /// From now on the clients of these listeners speak TLS, by listener of the plan; None, or no
    /// entry: nothing changes.
    pub fn seal_listeners(&mut self, seals: &[Option<Sealing>]) {
        let sockets: Vec<_> = self.listeners.sockets().map(<[_]>::to_vec).collect();
        for (sockets, sealing) in sockets.into_iter().zip(seals) {
            if let Some(sealing) = sealing {
                sockets.into_iter().for_each(|socket| self.seal(socket, sealing));
            }
        }
    }

    /// From now on the clients of a listener speak TLS.
    pub(crate) fn seal(
        &mut self,
        listener: Socket,
        Sealing { seal, handshake_timeout_us }: &Sealing,
    ) {
        self.driver.seal(listener, Arc::clone(seal), *handshake_timeout_us);
    }

    /// Starts a connection to a server, which begins with an announcement if one is configured.
    pub(crate) fn connect(
        &mut self,
        token: u64,
        (address, way): (&Location, Option<&Way>),
        server: u32,
        announcement: Option<Announcement>,
    ) -> io::Result<Socket> {
        let seal = self.dialing.seals.get(server as usize).and_then(Option::as_ref);
        let (now_us, resets) = (self.driver.now_us(), Token::is_flow(token));
        let usual = Outbound { resets, ..Outbound::default() };
        let way =
            way.map_or(usual, |Way { from, is_client, congestion, tuning: options, .. }| {
                Outbound {
                    from: *from,
                    transparent: *is_client,
                    congestion: congestion.as_deref(),
                    tuning: tuning(options.as_deref()),
                    resets,
                }
            });
        let socket = match (address, seal) {
            (Location::Network(address), None) => match self.dialing.ready(way, *address, now_us) {
                Some(connected) => self.driver.adopt(connected, token),
                None => self.driver.connect_by(way, *address, token),
            },
            (Location::Network(address), Some(seal)) => {
                self.driver.connect_sealed(way, *address, token, seal.cipher())
            }
            // The machine that asks has replaced it with the real destination.
            (Location::Destination, _) => Err(io::ErrorKind::InvalidInput.into()),
            (Location::Unix(path), None) => self.driver.connect_unix(path, token),
            (Location::Unix(path), Some(seal)) => {
                self.driver.connect_unix_sealed(path, token, seal.cipher())
            }
        }?;
        if let Some(announcement) = announcement {
            let header = self.header(announcement);
            self.driver.inner_mut().precede(socket, header);
        }
        Ok(socket)
    }

    /// The bytes of an announcement.
    fn header(&mut self, Announcement { version, whose }: Announcement) -> Vec<u8> {
        let version = match version {
            ProxyProtocol::V1 => ProxyVersion::V1,
            ProxyProtocol::V2 => ProxyVersion::V2,
        };
        let whose = match whose {
            Whose::Own => weir_io::Whose::Own,
            Whose::Unknown => weir_io::Whose::Unknown,
            Whose::Client { address, socket } => weir_io::Whose::Client {
                from: address,
                to: self.driver.destination(unpack(socket)),
            },
        };
        ProxyHeader::write(version, whose)
    }

    /// A client that was accepted by this listener speaks TLS.
    pub(crate) fn sealed(&mut self, listener: u64, token: u64, facts: Facts) {
        let told = self.listeners.tells_certificates(listener);
        self.engine.client_sealed(token, secured(facts, told));
    }

    /// A connect has ended.
    pub(crate) fn connected(&mut self, token: u64, socket: Socket, result: &io::Result<()>) {
        // The negotiated parameters of a server are not used.
        drop(self.driver.take_facts(socket));
        let error = result.as_ref().err();
        match error.and_then(server_failure) {
            Some(why) => self.engine.upstream_tls_refused(token, why),
            None if error.is_some_and(is_port_taken) => on_port_taken(&mut self.engine, token),
            None => self.engine.upstream_connected(token, result.is_ok()),
        }
    }

    /// A server has ended its sending direction.
    pub(crate) fn ended(&mut self, token: u64, socket: Socket) {
        if self.driver.is_cut(socket) {
            self.engine.upstream_cut(token);
        } else {
            self.engine.upstream_ended(token);
        }
    }

    /// A connection to a server has broken.
    pub(crate) fn failed(&mut self, token: u64, error: &io::Error) {
        match server_failure(error) {
            Some(why) => self.engine.upstream_tls_failed(token, why),
            None => self.engine.upstream_failed(token),
        }
    }

    /// Counts the outcomes of handshakes.
    pub(crate) fn count_tls(&mut self) {
        if let Some(tally) = self.driver.take_tally() {
            count(&self.parts.counters, &tally);
        }
        if let Some(tally) = self.driver.take_connects_tally() {
            count_servers(&self.parts.counters, &tally);
        }
    }
}

/// Returns the TLS failure behind an error; None: TLS is not to blame.
fn server_failure(error: &io::Error) -> Option<ServerTlsFailure> {
    error.get_ref()?.downcast_ref::<Failure>().map(|why| of_server(*why))
}

/// Counts the outcomes of handshakes with servers.
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
        Failure::NoNames => ServerTlsFailure::NoNames,
        Failure::CaCertificate => ServerTlsFailure::CaCertificate,
        Failure::UnusableKey => ServerTlsFailure::UnusableKey,
        // The last three concern only clients.
        Failure::BadCertificate | Failure::NoCertificate | Failure::Revoked | Failure::Unlisted => {
            ServerTlsFailure::Certificate
        }
        // Only clients ask for names, and only they have their own time limit and maximum.
        Failure::UnknownName | Failure::Timeout | Failure::TooMany | Failure::Internal => {
            ServerTlsFailure::Internal
        }
    }
}

/// Counts the outcomes of handshakes with clients.
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
        Failure::NoCertificate => TlsFailure::CertificateMissing,
        Failure::UnknownCa => TlsFailure::CertificateUnknownCa,
        Failure::Expired => TlsFailure::CertificateExpired,
        Failure::NotYetValid => TlsFailure::CertificateNotYetValid,
        Failure::Revoked => TlsFailure::CertificateRevoked,
        Failure::Unlisted => TlsFailure::CertificateUnlisted,
        // The others concern only servers.
        Failure::BadCertificate
        | Failure::WrongName
        | Failure::NoNames
        | Failure::CaCertificate
        | Failure::UnusableKey => TlsFailure::CertificateBad,
    }
}

/// The protocol that a client speaks with TLS, of those allowed: the negotiated one. A client that
/// negotiates none speaks HTTP/1.1 if that is allowed (RFC 9113 §3.3).
pub(crate) fn agreed(may: Protocols, facts: &Facts) -> Protocols {
    let http2 = facts.http2 || !may.http1;
    Protocols { http1: !http2, http2 }
}

/// The facts about a TLS connection that the machines need. `told`: so do servers, about the
/// certificate that the client has shown.
fn secured(facts: Facts, told: bool) -> Secured {
    let certificate = facts.certificate.as_deref();
    Secured {
        version: facts.version,
        suite: facts.suite,
        name: facts.name,
        resumed: facts.resumed,
        subject: certificate.and_then(weir_tls::subject_text).map(Into::into),
        shown: certificate.filter(|_| told).map(|certificate| Arc::new(Shown::new(certificate))),
    }
}

#[cfg(test)]
mod tests {
    //! Proves: counts have the same word here and there, and everything is counted. How: each
    //! reason.

    use super::*;

    #[test]
    fn each_reason_of_servers_is_counted_and_found_in_errors() {
        let tally = Tally { completed: 7, resumed: 3, failed: [1; Failure::ALL.len()] };
        let counters = Counters::default();
        count_servers(&counters, &tally);
        assert_eq!(
            (counters.upstream_tls_handshakes.get(), counters.upstream_tls_resumed.get()),
            (7, 3)
        );
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
        let tally = Tally { completed: 7, resumed: 3, failed: [1; Failure::ALL.len()] };
        let counters = Counters::default();
        count(&counters, &tally);
        assert_eq!((counters.tls_handshakes.get(), counters.tls_resumed.get()), (7, 3));
        // Failures that concern only servers are counted among the rest: a wrong name, no names,
        // that of a CA, a key.
        let rest = TlsFailure::CertificateBad.word();
        for why in TlsFailure::ALL {
            let word = why.word();
            assert_eq!(
                counters.tls_failures.get(word),
                if word == rest { 5 } else { 1 },
                "{why:?}"
            );
            let here = match word.strip_prefix("client-certificate-") {
                Some("missing") => "no-certificate",
                Some("bad") => "bad-certificate",
                Some(rest) => rest,
                None => word,
            };
            assert!(
                Failure::ALL.iter().any(|known| known.word() == here && failure(*known) == why),
                "{why:?}"
            );
        }
    }
}
