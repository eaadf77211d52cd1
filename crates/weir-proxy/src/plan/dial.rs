//! How connections to servers are made, and from whose address.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::{Congestion, NO_ADDRESS, ProxyProtocol, Side, Tuning};

/// How connections to the servers of an upstream are made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dial {
    /// Each begins by saying whose it is. None, the default: it doesn't.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Where they come from.
    pub source: Source,
    /// Their congestion controls; of several, which only an upstream of `tcp` has, each has its part.
    pub congestion: Congestion,
    /// Other options of their sockets. None, the default: there are none.
    pub tuning: Option<Arc<Tuning>>,
}

/// Where connections to servers come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// From the address that the route has. The default.
    #[default]
    Route,
    /// From this one, of this machine.
    Address(IpAddr),
    /// From the address and port of the client, whose packets come back through this machine; another port where that one is taken, or where the
    /// client has had a connection for requests before. A connection that is nobody's, as that of a probe, comes from an address of this machine.
    Client,
}

/// How one connection is made, as far as that is not left to the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// Where it comes from; port 0: any.
    pub from: Option<SocketAddr>,
    /// That is a client's address, not one of this machine.
    pub is_client: bool,
    /// The name of its congestion control (tcp(7), TCP_CONGESTION). None: that of the system.
    pub congestion: Option<Arc<str>>,
    /// It is one of several that are compared.
    pub is_arm: bool,
    /// As [`Dial::tuning`].
    pub tuning: Option<Arc<Tuning>>,
}

impl Dial {
    /// Whether a connection is for one client, whom its server learns of by it.
    pub fn names_client(&self) -> bool {
        self.proxy_protocol.is_some() || self.source == Source::Client
    }

    /// How a connection is made that is for this client; None: as the kernel makes it.
    pub(crate) fn way(&self, client: Option<SocketAddr>) -> Option<Box<Way>> {
        let client = client.filter(|client| client.ip() != NO_ADDRESS);
        let (from, is_client) = match self.source {
            Source::Route => (None, false),
            Source::Address(address) => (Some(SocketAddr::new(address, 0)), false),
            Source::Client => (client, client.is_some()),
        };
        let Dial { congestion, tuning, .. } = self;
        let is_arm = client.is_some() && congestion.is_divided();
        let congestion = client.map_or_else(|| congestion.usual(), |client| congestion.of(Side::Server, client));
        let is_usual = from.is_none() && congestion.is_none() && tuning.is_none();
        (!is_usual)
            .then(|| Box::new(Way { from, is_client, congestion: congestion.cloned(), is_arm, tuning: tuning.clone() }))
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a connection comes from where its upstream says, and a client's only where there is one. How: examples.

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
        let paced = Dial { congestion: Congestion::new(["bbr"].into_iter()), ..Dial::default() }.way(None);
        assert_eq!(paced.map(|way| (way.from, way.congestion)), Some((None, Some("bbr".into()))));
        let divided = Dial { congestion: Congestion::new(["bbr", "reno"].into_iter()), ..Dial::default() };
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
        let marked = Dial { tuning: Some(tuning.into()), ..Dial::default() }.way(None).expect("not as usual");
        assert_eq!(marked.tuning.and_then(|tuning| tuning.get(Tunable::Mark)), Some(7));
    }
}
