//! Helpers for tests with both ends of a connection in memory, beyond those that fuzzing uses.

use std::io::Read as _;
use std::sync::Arc;

use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, Error, SignatureScheme, SupportedProtocolVersion};

use crate::cipher::RECORD_BYTES_MAX;
use crate::clients::ClientTrust;
use crate::fuzzing::wire::client_builder;
pub(super) use crate::fuzzing::wire::{ECDSA, RSA, Wire, any_client, client_config};
use crate::pairs::Pair;
use crate::terms::{Materials, Terms, Wanted, provider};
use crate::tickets::TicketKeys;

/// A client that shows this certificate to every server that asks, whatever names of CAs it
/// receives.
pub(super) fn client_with(
    version: &'static SupportedProtocolVersion,
    pair: &Pair,
) -> Arc<ClientConfig> {
    Arc::new(
        client_builder(&[version], &[ECDSA, RSA])
            .with_client_cert_resolver(Arc::new(Shown(Arc::clone(&pair.key)))),
    )
}

#[derive(Debug)]
struct Shown(Arc<CertifiedKey>);

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

pub(super) fn wanted() -> Wanted {
    Wanted {
        files: Vec::new(),
        only_tls13: false,
        strict_names: false,
        tickets: true,
        clients: None,
        ticket_keys: None,
        port: 443,
        role: "",
        http1: true,
        http2: false,
    }
}

pub(super) fn terms(pairs: &[Pair], change: impl FnOnce(&mut Wanted)) -> Terms {
    let mut wanted = wanted();
    change(&mut wanted);
    let clients =
        wanted.clients.as_ref().map(|wanted| ClientTrust::read(wanted, &provider()).unwrap());
    let keys = wanted.ticket_keys.as_ref().map(|path| TicketKeys::read(path).unwrap());
    let materials = Materials { pairs, clients: clients.as_ref(), ticket_keys: keys.as_ref() };
    Terms::new(wanted, materials, provider()).unwrap()
}

impl Wire {
    /// Until both have nothing to send; each flight of the client is received in pieces, as `cut`
    /// makes them from its number and length.
    pub(super) fn run_in_pieces(
        &mut self,
        mut cut: impl FnMut(usize, usize) -> Vec<usize>,
    ) -> Result<(), Error> {
        for flight in 0.. {
            let bytes = self.said();
            let mut from = 0;
            for to in cut(flight, bytes.len()).into_iter().chain([bytes.len()]) {
                self.hear(&bytes[from..to]);
                from = to;
            }
            if bytes.is_empty() && self.out.is_empty() {
                break;
            }
            self.answer()?;
        }
        Ok(())
    }

    pub(super) fn run(&mut self) -> Result<(), Error> {
        self.run_in_pieces(|_, _| Vec::new())
    }

    /// The server sends these.
    pub(super) fn send(&mut self, parts: &[&[u8]]) {
        self.send_in(parts, RECORD_BYTES_MAX);
    }

    /// The same in records that hold at most this number of bytes.
    pub(super) fn send_in(&mut self, parts: &[&[u8]], record_max: usize) {
        self.server.seal(&mut self.rest, parts, record_max, &mut self.out).unwrap();
    }

    pub(super) fn close(&mut self) {
        self.server.close(&mut self.rest, &mut self.out);
    }

    /// Plain bytes that the client has received, and whether the end was announced.
    pub(super) fn read(&mut self) -> (Vec<u8>, bool) {
        let ended = self.client.reader().read(&mut [0]).is_ok_and(|count| count == 0);
        (std::mem::take(&mut self.read), ended)
    }
}
