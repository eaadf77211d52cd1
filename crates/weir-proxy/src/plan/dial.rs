//! How connections to servers are made, and from which address.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::{Congestion, NO_ADDRESS, ProxyProtocol, Side, Tuning};

/// How connections to the servers of an upstream are made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dial {
    /// Each begins by announcing its client. None, the default: no announcement.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Their source address.
    pub source: Source,
    /// Their congestion controls; several share the connections, which only an upstream of `tcp`
    /// may have.
    pub congestion: Congestion,
    /// Other options of their sockets. None, the default: no options.
    pub tuning: Option<Arc<Tuning>>,
}

/// The source address of connections to servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// The address that the route chooses. The default.
    #[default]
    Route,
    /// This address of this machine.
    Address(IpAddr),
    /// The address and port of the client, whose packets return through this machine; another port
    /// if that is taken, or if the client has had a connection for requests before. A connection
    /// without a client, such as that of a probe, comes from an address of this machine.
    Client,
}

/// How one connection is made, as far as the kernel does not decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// Its source address; port 0: any.
    pub from: Option<SocketAddr>,
    /// The source is a client's address, not one of this machine.
    pub is_client: bool,
    /// The name of its congestion control (tcp(7), TCP_CONGESTION). None: that of the system.
    pub congestion: Option<Arc<str>>,
    /// The congestion control is one of several that are compared.
    pub is_arm: bool,
    /// As [`Dial::tuning`].
    pub tuning: Option<Arc<Tuning>>,
}

impl Dial {
    /// Whether a connection is for one client and tells its server which one.
    pub fn names_client(&self) -> bool {
        self.proxy_protocol.is_some() || self.source == Source::Client
    }

    /// Returns how a connection for this client is made; None: the kernel decides everything.
    pub(crate) fn way(&self, client: Option<SocketAddr>) -> Option<Box<Way>> {
        let client = client.filter(|client| client.ip() != NO_ADDRESS);
        let (from, is_client) = match self.source {
            Source::Route => (None, false),
            Source::Address(address) => (Some(SocketAddr::new(address, 0)), false),
            Source::Client => (client, client.is_some()),
        };
        let Dial { congestion, tuning, .. } = self;
        let is_arm = client.is_some() && congestion.is_divided();
        let congestion =
            client.map_or_else(|| congestion.usual(), |client| congestion.of(Side::Server, client));
        let is_usual = from.is_none() && congestion.is_none() && tuning.is_none();
        (!is_usual).then(|| {
            Box::new(Way {
                from,
                is_client,
                congestion: congestion.cloned(),
                is_arm,
                tuning: tuning.clone(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a connection comes from the source of its upstream, and from the client's address
    //! only if the client has one. How: examples.

    use std::collections::BTreeSet;

    use super::*;
    use crate::plan::Tunable;

    #[test]
    fn where_connections_come_from() {
        let client = Some(SocketAddr::from(([198, 51, 100, 7], 4000)));
        let own = IpAddr::from([10, 0, 0, 5]);
        let way = |source, client| {
            let way = Dial { source, ..Dial::default() }.way(client)?;
            Some((way.from, way.is_client))
        };
        assert_eq!(way(Source::Route, client), None);
        assert_eq!(way(Source::Address(own), client), Some((Some(SocketAddr::new(own, 0)), false)));
        assert_eq!(way(Source::Client, client), Some((client, true)));
        let nobody = SocketAddr::new(NO_ADDRESS, 0);
        assert_eq!((way(Source::Client, None), way(Source::Client, Some(nobody))), (None, None));
        let paced =
            Dial { congestion: Congestion::new(["bbr"].into_iter()), ..Dial::default() }.way(None);
        assert_eq!(paced.map(|way| (way.from, way.congestion)), Some((None, Some("bbr".into()))));
        let divided =
            Dial { congestion: Congestion::new(["bbr", "reno"].into_iter()), ..Dial::default() };
        let names = (1..100).filter_map(|port| {
            let way = divided.way(Some(SocketAddr::from(([198, 51, 100, 7], port))))?;
            assert!(way.is_arm);
            way.congestion
        });
        assert_eq!(names.collect::<BTreeSet<_>>().len(), 2);
        let probe = divided.way(None).expect("not as usual");
        assert_eq!((probe.congestion, probe.is_arm), (Some("bbr".into()), false));
        let mut tuning = Tuning::default();
        tuning.set(Tunable::Mark, Some(7));
        let marked = Dial { tuning: Some(tuning.into()), ..Dial::default() }
            .way(None)
            .expect("not as usual");
        assert_eq!(marked.tuning.and_then(|tuning| tuning.get(Tunable::Mark)), Some(7));
    }
}
