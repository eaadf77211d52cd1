//! The target of a laboratory tool: a URL, read and resolved once, and the guard against servers of
//! others.
//!
//! Called by `weir bomb` and `weir probe` before anything is sent. Syntax by RFC 3986 §3 as far as
//! RFC 9110 §4.2.1 uses it: `http://HOST[:PORT][/PATH][?QUERY]` or the same with `https`; without a
//! scheme it is `http`. Private ranges by RFC 1918, RFC 4193, RFC 3927 and RFC 4291 §2.5.6.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _};

use http::Uri;

/// Port of `http` where the URL names none (RFC 9110 §4.2.1).
const PORT: u16 = 80;
/// The same of `https` (RFC 9110 §4.2.2).
const TLS_PORT: u16 = 443;

/// The content of a URL, before its host is resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// Value of the Host field: host and port as written.
    pub host: String,
    /// Target of the request line: path and query, begins with `/`.
    pub path: String,
    /// A name or an address, without brackets.
    pub name: String,
    /// It uses TLS.
    pub is_tls: bool,
    port: u16,
}

/// A URL with the address of its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Where to connect to. The only address that is ever contacted for this target.
    pub address: SocketAddr,
    /// Value of the Host field: host and port as written.
    pub host: String,
    /// Target of the request line: path and query, begins with `/`.
    pub path: String,
    /// The host alone: a name or an address, without brackets.
    pub name: String,
    /// It uses TLS.
    pub is_tls: bool,
}

impl Url {
    /// Reads a URL.
    ///
    /// # Errors
    /// What is wrong with it and how it should look, in one line.
    pub fn parse(text: &str) -> Result<Url, String> {
        let wrong = |why: &str| {
            format!("`{text}`: {why}; expected http://HOST[:PORT][/PATH][?QUERY] or https://...")
        };
        let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let is_tls = match whole.split_once("://") {
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("http") => false,
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("https") => true,
            _ => return Err(wrong("unknown scheme")),
        };
        if !whole.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(wrong("bytes that must be percent-encoded in a URL"));
        }
        let uri: Uri =
            whole.parse().map_err(|error: http::uri::InvalidUri| wrong(&error.to_string()))?;
        let authority = uri.authority().ok_or_else(|| wrong("no host"))?;
        let bare = authority.host().trim_start_matches('[').trim_end_matches(']');
        if bare.is_empty() || authority.as_str().contains('@') {
            return Err(wrong(if bare.is_empty() {
                "no host"
            } else {
                "weir does not send a user name"
            }));
        }
        let port = match authority.as_str()[authority.host().len()..].strip_prefix(':') {
            None if is_tls => TLS_PORT,
            None => PORT,
            Some(digits) => {
                digits.parse().ok().filter(|port| *port > 0).ok_or_else(|| wrong("no such port"))?
            }
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Url { host: authority.as_str().to_owned(), path, name: bare.to_owned(), is_tls, port })
    }

    /// Resolves the host by the system: once, so that a run has one target. A name of this machine
    /// that has addresses of both families means IPv4, where test servers listen; any other name
    /// its first address.
    ///
    /// # Errors
    /// The host has no address, in one line.
    pub fn resolve(self) -> Result<Target, String> {
        let asked = (self.name.as_str(), self.port).to_socket_addrs();
        let found: Vec<SocketAddr> =
            asked.map_err(|error| format!("`{}` has no address: {error}", self.name))?.collect();
        let first = found.first().ok_or_else(|| format!("`{}` has no address", self.name))?;
        let local = found.iter().find(|address| address.is_ipv4() && address.ip().is_loopback());
        let address = *local.filter(|_| first.ip().is_loopback()).unwrap_or(first);
        Ok(Target {
            address,
            host: self.host,
            path: self.path,
            name: self.name,
            is_tls: self.is_tls,
        })
    }
}

impl Url {
    /// The scheme with its colon and slashes.
    pub fn scheme(is_tls: bool) -> &'static str {
        if is_tls { "https://" } else { "http://" }
    }
}

impl Target {
    /// Reads a URL and resolves its host.
    ///
    /// # Errors
    /// What is wrong, in one line.
    pub fn parse(text: &str) -> Result<Target, String> {
        Url::parse(text)?.resolve()
    }

    /// Checks whether load may be sent there: always to loopback and private ranges, elsewhere only
    /// with `--yes`, and then the text is a warning to show.
    ///
    /// # Errors
    /// `yes` is missing; the text says so.
    pub fn permit(&self, yes: bool) -> Result<Option<String>, String> {
        let ip = self.address.ip();
        if is_private(ip) {
            return Ok(None);
        }
        let is_said = self.host.contains(&ip.to_string());
        let who = if is_said { self.host.clone() } else { format!("{} ({ip})", self.host) };
        let what = format!("{who} is neither this machine nor in a private range");
        if yes {
            return Ok(Some(format!("{what}; sending requests there because of --yes")));
        }
        Err(format!(
            "{what}. Load on a server of another person is an attack; if it is yours, add --yes"
        ))
    }
}

/// Whether an address can only belong to this machine or to a private network.
pub fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_private_v4(ip),
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(mapped) => is_private_v4(mapped),
            None => {
                ip.is_loopback()
                    || ip.is_unspecified()
                    || ip.is_unique_local()
                    || ip.is_unicast_link_local()
            }
        },
    }
}

/// 0.0.0.0 reaches this machine.
fn is_private_v4(ip: Ipv4Addr) -> bool {
    ip.is_loopback() || ip.is_private() || ip.is_link_local() || ip.is_unspecified()
}

#[cfg(test)]
mod tests {
    //! Proves: a URL is read as browsers read it, an invalid one is rejected with the reason, and
    //! without `--yes` requests go only to private networks. How: tables of texts and addresses at
    //! the edges of each range.

    use super::*;

    #[test]
    fn parts_are_found_and_defaults_filled_in() {
        for (text, name, port, host, path) in [
            ("http://127.0.0.1:9090/a?b=c", "127.0.0.1", 9090, "127.0.0.1:9090", "/a?b=c"),
            ("HTTP://Example.test", "Example.test", 80, "Example.test", "/"),
            ("localhost:8080", "localhost", 8080, "localhost:8080", "/"),
            ("localhost/x", "localhost", 80, "localhost", "/x"),
            ("http://h?a=1", "h", 80, "h", "/?a=1"),
            ("http://[::1]:81/", "::1", 81, "[::1]:81", "/"),
            ("http://h/a#fragment", "h", 80, "h", "/a"),
            ("https://h", "h", 443, "h", "/"),
            ("HTTPS://[::1]:8443/a", "::1", 8443, "[::1]:8443", "/a"),
        ] {
            let url = Url::parse(text).unwrap();
            assert_eq!(url.is_tls, text.to_ascii_lowercase().starts_with("https"), "{text}");
            assert_eq!(
                (url.name.as_str(), url.port, url.host.as_str(), url.path.as_str()),
                (name, port, host, path)
            );
        }
    }

    #[test]
    fn what_cannot_be_asked_is_refused_with_the_reason() {
        for (text, why) in [
            ("ftp://a/", "scheme"),
            ("", ""),
            ("http://", ""),
            ("http:///a", ""),
            ("http://:80/", "no host"),
            ("http://user@a/", "user name"),
            ("http://a:99999/", "no such port"),
            ("http://a:0/", "no such port"),
            ("http://a:/", "no such port"),
            ("http://a/b c", "percent-encoded"),
            ("http://a/\r\nX: y", "percent-encoded"),
            ("http://ä/", "percent-encoded"),
            ("http://[::1/", ""),
        ] {
            let error = Url::parse(text).unwrap_err();
            assert!(
                error.contains(why) && error.contains("expected http://HOST"),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn addresses_are_taken_as_they_are_and_local_names_mean_ipv4() {
        assert_eq!(Target::parse("http://[::1]:81").unwrap().address, "[::1]:81".parse().unwrap());
        let target = Target::parse("localhost:82/x").unwrap();
        assert_eq!(target.address, "127.0.0.1:82".parse().unwrap());
        assert_eq!((target.host.as_str(), target.path.as_str()), ("localhost:82", "/x"));
        assert!(
            Target::parse("http://no-such-host.invalid/")
                .unwrap_err()
                .contains("`no-such-host.invalid` has no address")
        );
    }

    #[test]
    fn only_own_networks_are_private() {
        for (text, private) in [
            ("127.9.9.9", true),
            ("0.0.0.0", true),
            ("10.255.255.255", true),
            ("11.0.0.0", false),
            ("172.15.255.255", false),
            ("172.16.0.0", true),
            ("172.31.255.255", true),
            ("172.32.0.0", false),
            ("192.168.0.1", true),
            ("192.169.0.1", false),
            ("169.254.1.1", true),
            ("100.64.0.1", false),
            ("8.8.8.8", false),
            ("::1", true),
            ("::", true),
            ("fd00::1", true),
            ("fe80::1", true),
            ("2001:db8::1", false),
            ("::ffff:10.0.0.1", true),
            ("::ffff:8.8.8.8", false),
        ] {
            assert_eq!(is_private(text.parse().unwrap()), private, "{text}");
        }
    }

    #[test]
    fn others_are_asked_only_with_consent() {
        let own = Target::parse("127.0.0.1:1").unwrap();
        assert_eq!(own.permit(false), Ok(None));
        let other = Target::parse("http://192.0.2.1/").unwrap();
        assert!(other.permit(false).unwrap_err().contains("add --yes"));
        assert!(other.permit(true).unwrap().unwrap().contains("192.0.2.1"));
    }
}
