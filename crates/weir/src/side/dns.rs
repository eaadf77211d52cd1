//! One query to name servers, for the addresses of one kind of a name, by hickory-resolver. Called
//! by `names` and by `discovery`.
//!
//! Names of the forward proxy are absolute: weir appends no search domain of resolv.conf, so that
//! one network's `intranet` never becomes another's. Names of servers use the search domains, as in
//! any program of the host ([`Dns::searching`]). Aliases (CNAME) are followed, at most
//! [`ALIASES_MAX`] of them. The caller decides what to keep, and for how long; this module keeps
//! nothing.
//!
//! Bounds: a datagram is sent again after a third of a second, up to three times, within
//! [`PATIENCE`]; then once more to the other name servers.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::rdata::SRV;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use hickory_resolver::system_conf::read_system_conf;

use super::order::{Found, LIST_MAX, Missing};
use super::stamp::Stamp;

/// The name servers of the system.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// How often the file is checked.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// For one name server to reply. Two rounds end within the deadline of a name.
const PATIENCE: Duration = Duration::from_secs(3);
/// Largest number of aliases on the way to an address.
const ALIASES_MAX: usize = 16;
/// Queries at once on a connection (after a truncated response): as many as `names` sends.
const AT_ONCE_MAX: usize = 1024;

/// The name servers to query.
#[derive(Debug)]
pub(crate) struct Dns {
    /// Given name servers are fixed; those of the system are read again when they have changed.
    is_system: bool,
    /// Names that are not absolute are looked up in the search domains of the system.
    searches: bool,
    /// Largest number of addresses in a result.
    list_max: usize,
    servers: RefCell<Servers>,
}

#[derive(Debug)]
struct Servers {
    resolver: TokioResolver,
    stamp: Option<Stamp>,
    looked: Instant,
}

/// A kind of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    V4,
    V6,
}

impl Dns {
    /// Uses the name servers of the system, or these. Call it within a tokio runtime.
    ///
    /// # Errors
    /// The objections of hickory-resolver.
    pub(crate) fn new(given: &[SocketAddr]) -> Result<Dns, NetError> {
        Dns::of(given, false, LIST_MAX)
    }

    /// The same for names that need not be absolute, with at most this many addresses in a result.
    ///
    /// # Errors
    /// As [`Dns::new`].
    pub(crate) fn searching(given: &[SocketAddr], list_max: usize) -> Result<Dns, NetError> {
        Dns::of(given, true, list_max)
    }

    fn of(given: &[SocketAddr], searches: bool, list_max: usize) -> Result<Dns, NetError> {
        let stamp = Stamp::at(Path::new(RESOLV_CONF)).ok();
        let resolver = if given.is_empty() { system(searches) } else { resolver(of(given), None) }?;
        let servers = RefCell::new(Servers { resolver, stamp, looked: Instant::now() });
        Ok(Dns { is_system: given.is_empty(), searches, list_max, servers })
    }

    /// Queries the addresses of one kind of a name.
    pub(crate) async fn ask(&self, name: &Name, kind: Kind) -> Result<Found, Missing> {
        let record_type = match kind {
            Kind::V4 => RecordType::A,
            Kind::V6 => RecordType::AAAA,
        };
        let resolver = self.resolver();
        match resolver.lookup(name.clone(), record_type).await {
            Ok(lookup) => {
                let asked = lookup
                    .answers()
                    .iter()
                    .map(|record| &record.name)
                    .find(|owner| begins(owner, name));
                let found = asked.and_then(|asked| select(asked, lookup.answers(), self.list_max));
                found.ok_or(Missing::Kind(None))
            }
            Err(error) => Err(missing(&error)),
        }
    }

    /// Queries the servers of a service (RFC 2782).
    pub(crate) async fn ask_service(&self, name: &Name) -> Result<(Vec<SRV>, Duration), Missing> {
        let lookup = self
            .resolver()
            .lookup(name.clone(), RecordType::SRV)
            .await
            .map_err(|error| missing(&error))?;
        let (mut services, mut ttl) = (Vec::new(), Duration::MAX);
        for record in lookup.answers() {
            if let RData::SRV(service) = &record.data {
                ttl = ttl.min(Duration::from_secs(record.ttl.into()));
                services.push(service.clone());
            }
        }
        services.truncate(self.list_max);
        if services.is_empty() { Err(Missing::Kind(None)) } else { Ok((services, ttl)) }
    }

    /// Returns the present resolver.
    fn resolver(&self) -> TokioResolver {
        let mut servers = self.servers.borrow_mut();
        if self.is_system && servers.looked.elapsed() >= LOOK_EVERY {
            servers.looked = Instant::now();
            let stamp = Stamp::at(Path::new(RESOLV_CONF)).ok();
            // A file that is being replaced is checked again.
            if stamp != servers.stamp
                && let Ok(resolver) = system(self.searches)
            {
                (servers.resolver, servers.stamp) = (resolver, stamp);
            }
        }
        servers.resolver.clone()
    }
}

/// Uses the name servers of the system; without any, the one on this host (resolv.conf(5)).
fn system(searches: bool) -> Result<TokioResolver, NetError> {
    match read_system_conf() {
        Ok((config, options)) if searches => resolver(config, Some(options.ndots)),
        Ok((config, _)) => resolver(
            ResolverConfig::from_parts(None, Vec::new(), config.name_servers().to_vec()),
            None,
        ),
        Err(_) => resolver(of(&[SocketAddr::from(([127, 0, 0, 1], 53))]), None),
    }
}

fn of(servers: &[SocketAddr]) -> ResolverConfig {
    let config = |server: &SocketAddr| {
        let mut config = NameServerConfig::udp_and_tcp(server.ip());
        config
            .connections
            .iter_mut()
            .for_each(|connection: &mut ConnectionConfig| connection.port = server.port());
        config
    };
    ResolverConfig::from_parts(None, Vec::new(), servers.iter().map(config).collect())
}

/// `ndots`: the number of dots from which a name is queried as it is before search domains are
/// appended.
fn resolver(config: ResolverConfig, ndots: Option<usize>) -> Result<TokioResolver, NetError> {
    let mut options = ResolverOpts::default();
    options.ndots = ndots.unwrap_or(options.ndots);
    options.cache_size = 0;
    options.use_hosts_file = ResolveHosts::Never;
    options.preserve_intermediates = true;
    options.timeout = PATIENCE;
    options.attempts = 1;
    options.max_active_requests = AT_ONCE_MAX;
    TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        .with_options(options)
        .build()
}

/// Whether a record's owner is the queried name, or that name in a search domain if it is not
/// absolute.
fn begins(owner: &Name, asked: &Name) -> bool {
    let (mut owner_labels, is_absolute) = (owner.iter(), asked.is_fqdn());
    let begins = asked
        .iter()
        .all(|label| owner_labels.next().is_some_and(|other| other.eq_ignore_ascii_case(label)));
    begins && (!is_absolute || owner_labels.next().is_none())
}

/// Returns the addresses that belong to a name by the aliases of a response, and the shortest TTL
/// of all records on the way.
fn select(name: &Name, answers: &[Record], list_max: usize) -> Option<Found> {
    let mut found = Found { list: Vec::new(), ttl: Duration::MAX };
    let mut owner = name;
    for _ in 0..=ALIASES_MAX {
        let of_owner = || answers.iter().filter(|record| record.name == *owner);
        for record in of_owner() {
            let address = match &record.data {
                RData::A(address) => IpAddr::V4(address.0),
                RData::AAAA(address) => IpAddr::V6(address.0).to_canonical(),
                _ => continue,
            };
            found.ttl = found.ttl.min(Duration::from_secs(record.ttl.into()));
            if found.list.len() < list_max {
                found.list.push(address);
            }
        }
        if !found.list.is_empty() {
            return Some(found);
        }
        let alias = of_owner().find_map(|record| match &record.data {
            RData::CNAME(target) => Some((&target.0, record.ttl)),
            _ => None,
        });
        let (target, ttl) = alias?;
        found.ttl = found.ttl.min(Duration::from_secs(ttl.into()));
        owner = target;
    }
    None
}

fn missing(error: &NetError) -> Missing {
    match error {
        NetError::Dns(DnsError::NoRecordsFound(no)) => {
            let ttl = no.negative_ttl.map(|seconds| Duration::from_secs(seconds.into()));
            match no.response_code {
                ResponseCode::NXDomain => Missing::Name(ttl),
                ResponseCode::NoError => Missing::Kind(ttl),
                _ => Missing::Failed,
            }
        }
        NetError::Timeout => Missing::TimedOut,
        _ => Missing::Failed,
    }
}

/// Parses a name that is relative unless it ends in a dot; None: it cannot be a name.
pub(crate) fn relative(text: &str) -> Option<Name> {
    let is_absolute = text.ends_with('.');
    let mut name = absolute(text.strip_suffix('.').unwrap_or(text))?;
    name.set_fqdn(is_absolute);
    Some(name)
}

/// Parses a name for DNS; None: it cannot be a name. The text is in lower case and without a dot at
/// its end.
///
/// Text that some programs take for an IPv4 address (`127.1`, `0x7f.0.0.1`, `2130706433`) is not a
/// name: no top-level domain is a number (RFC 3696 §2).
pub(crate) fn absolute(text: &str) -> Option<Name> {
    let usual = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let last = text.rsplit('.').next()?;
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit())
        || last
            .strip_prefix("0x")
            .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let fits = text.len() <= 253 && text.split('.').all(|label| (1..=63).contains(&label.len()));
    if is_number || !fits || !text.bytes().all(|byte| usual(byte) || byte == b'.') {
        return None;
    }
    let mut name = Name::from_labels(text.split('.').map(str::as_bytes)).ok()?;
    name.set_fqdn(true);
    Some(name)
}

#[cfg(test)]
mod tests {
    //! Proves: text that cannot be a name is rejected, and addresses come only from names that the
    //! aliases lead to. How: records as they come. Whole responses are tested in `names`.

    use super::*;
    use hickory_resolver::proto::rr::rdata::{A, CNAME};

    #[test]
    fn numbers_and_odd_labels_are_no_names() {
        for text in [
            "example.org",
            "localhost",
            "a",
            "xn--mnchen-3ya.de",
            "_dmarc.example.org",
            "0x7f.example",
        ] {
            let name = absolute(text).unwrap();
            assert!(name.is_fqdn() && name.to_ascii() == format!("{text}."), "{name}");
        }
        let long = format!("{}.org", "a".repeat(64));
        let longer = vec!["a".repeat(60); 5].join(".");
        for text in [
            "",
            "127.1",
            "2130706433",
            "0x7f.1",
            "127.0.0.0x1",
            "0x",
            ".",
            "a..b",
            "a.",
            ".a",
            "a b",
            "a\\.b",
            "m\u{fc}.de",
            &long,
            &longer,
        ] {
            assert_eq!(absolute(text), None, "{text}");
        }
    }

    #[test]
    fn only_the_chain_counts() {
        let name = |text: &str| absolute(text).unwrap();
        let a = |owner: &str, last: u8, ttl| {
            Record::from_rdata(name(owner), ttl, RData::A(A::new(192, 0, 2, last)))
        };
        let alias = |owner: &str, target: &str, ttl| {
            Record::from_rdata(name(owner), ttl, RData::CNAME(CNAME(name(target))))
        };
        let chain = [
            a("evil.org", 66, 9),
            alias("www.org", "cdn.net", 50),
            alias("cdn.net", "edge.net", 40),
            a("edge.net", 1, 60),
        ];
        let found = select(&name("www.org"), &chain, LIST_MAX).unwrap();
        assert_eq!((found.list.len(), found.ttl), (1, Duration::from_secs(40)));
        assert_eq!(found.list[0], IpAddr::from([192, 0, 2, 1]));
        assert_eq!(select(&name("other.org"), &chain, LIST_MAX), None);
        let relative = |text: &str| relative(text).unwrap();
        for (owner, asked, is_it) in [
            (name("www.org"), name("www.org"), true),
            (name("WWW.org"), name("www.org"), true),
            (name("www.org.test"), name("www.org"), false),
            (name("www.org.test"), relative("www.org"), true),
            (name("www.org"), relative("www.org"), true),
            (name("ww.org"), relative("www"), false),
            (name("www.org.test"), relative("www.org."), false),
        ] {
            assert_eq!(begins(&owner, &asked), is_it, "{owner} {asked}");
        }
        let circle = [alias("a.org", "b.org", 1), alias("b.org", "a.org", 1)];
        assert_eq!(select(&name("a.org"), &circle, LIST_MAX), None);
    }
}
