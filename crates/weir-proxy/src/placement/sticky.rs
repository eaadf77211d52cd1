//! `sticky`: a cookie that binds a session to a server.
//!
//! The cookie's value is an identifier of the server: SipHash-2-4 of the names of upstream and
//! server under a key from the configured `secret`. So it is the same after a restart, on every
//! worker, and in every weir with the same names and secret. Without the secret it reveals nothing
//! about the address. Without a `secret` the key is public: the address can't be read, but found by
//! trying addresses. A session has no other state. The engine asks for the server of a request
//! ([`Sticky::server`]) and for the response field that binds a session ([`Sticky::cookie`]). RFC
//! 6265, docs/failover.md#how-weir-chooses-a-server.

use bytes::Bytes;
use weir_http::Fields;

use crate::base::stamp::{Stamp, hex, siphash};
use crate::placement::cookie;

/// Keys that turn the secret into a key.
const SECRET_KEYS: [[u64; 2]; 2] = [[0x7765_6972, 0x7374_6963], [0x7765_6972, 0x6b79_2d32]];

/// When browsers send the cookie along with requests that other sites cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SameSite {
    /// When a user follows a link. The default.
    #[default]
    Lax,
    /// Never.
    Strict,
    /// Always; browsers want `Secure` with it.
    None,
}

/// The attributes of the cookie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cookie {
    /// A token.
    pub name: String,
    /// Begins with `/`, has no `;`. Default `/`.
    pub path: String,
    /// Seconds after which browsers forget it; None (the default): when they are closed.
    pub max_age_s: Option<u64>,
    /// Not for scripts. Default true.
    pub http_only: bool,
    /// Only over TLS. Default false.
    pub secure: bool,
    /// Default lax.
    pub same_site: SameSite,
}

/// The cookie of one upstream.
#[derive(Debug, Clone)]
pub struct Sticky {
    cookie: Cookie,
    /// The upstream.
    upstream: String,
    /// Derived from the secret.
    key: [u64; 2],
    /// A session fails over when its server cannot be used, and is then bound to the other one.
    /// Default true.
    pub allow_failover: bool,
    /// By server; None: no session is bound to it.
    stamps: Vec<Option<Stamp>>,
    cookies: Vec<Option<Bytes>>,
}

impl Sticky {
    /// Returns the cookies of an upstream and its servers of these names. A secret may be any text;
    /// `""` is a public one.
    pub fn new(
        cookie: &Cookie,
        allow_failover: bool,
        secret: &str,
        upstream: &str,
        servers: &[&str],
    ) -> Sticky {
        let key = SECRET_KEYS.map(|key| siphash(key, secret.as_bytes()));
        let (cookie, upstream) = (cookie.clone(), upstream.to_owned());
        Sticky { cookie, upstream, key, allow_failover, stamps: Vec::new(), cookies: Vec::new() }
            .of(servers)
    }

    /// Returns the cookies for servers of other names.
    pub(crate) fn of(&self, servers: &[&str]) -> Sticky {
        let text = |server: &str| [self.upstream.as_bytes(), b"\0", server.as_bytes()].concat();
        let stamps: Vec<Stamp> =
            servers.iter().map(|server| hex(siphash(self.key, &text(server)))).collect();
        let cookies =
            stamps.iter().map(|stamp| Some(Bytes::from(self.cookie.value(stamp)))).collect();
        Sticky { stamps: stamps.into_iter().map(Some).collect(), cookies, ..self.clone() }
    }

    /// Returns the cookies for servers in another order: `order` has the old index for each place.
    /// None: no session is bound to that place.
    pub(crate) fn ordered(&self, order: &[Option<usize>]) -> Sticky {
        Sticky {
            stamps: order.iter().map(|from| from.and_then(|from| self.stamps[from])).collect(),
            cookies: order
                .iter()
                .map(|from| from.and_then(|from| self.cookies[from].clone()))
                .collect(),
            ..self.clone()
        }
    }

    /// Returns the server to which the request's cookie binds it: the first cookie of that name
    /// with a known value. `input` is the parsed text.
    pub fn server(&self, fields: &Fields, input: &[u8]) -> Option<u16> {
        let known = |value: &[u8]| {
            self.stamps.iter().position(|stamp| stamp.is_some_and(|stamp| stamp[..] == *value))
        };
        cookie::values(fields, input, self.cookie.name.as_bytes())
            .find_map(known)
            .map(|at| at as u16)
    }

    /// Returns the value of Set-Cookie that binds a session to a server; None for an unknown
    /// server.
    pub fn cookie(&self, server: u16) -> Option<&Bytes> {
        self.cookies.get(usize::from(server))?.as_ref()
    }
}

impl Cookie {
    /// Returns a cookie with all defaults.
    pub fn new(name: &str) -> Cookie {
        Cookie {
            name: name.to_owned(),
            path: "/".to_owned(),
            max_age_s: None,
            http_only: true,
            secure: false,
            same_site: SameSite::Lax,
        }
    }

    fn value(&self, stamp: &Stamp) -> String {
        let max_age =
            self.max_age_s.map_or_else(String::new, |seconds| format!("; Max-Age={seconds}"));
        let http_only = if self.http_only { "; HttpOnly" } else { "" };
        let secure = if self.secure { "; Secure" } else { "" };
        let same_site = match self.same_site {
            SameSite::Lax => "Lax",
            SameSite::Strict => "Strict",
            SameSite::None => "None",
        };
        let value = String::from_utf8_lossy(stamp);
        format!(
            "{}={value}; Path={}{max_age}{http_only}{secure}; SameSite={same_site}",
            self.name, self.path
        )
    }
}

#[cfg(test)]
mod tests {
    //! Proves: identifiers are stable, differ by server, upstream and secret, and contain nothing
    //! of the address; returned cookies are read, and nothing else is. How: examples, one stored.

    use super::*;

    const SERVERS: [&str; 2] = ["10.0.0.1:80", "10.0.0.2:80"];

    fn sticky(secret: &str, upstream: &str) -> Sticky {
        Sticky::new(&Cookie::new("srv"), true, secret, upstream, &SERVERS)
    }

    fn bound(sticky: &Sticky, cookie: &str) -> Option<u16> {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\nCookie: {cookie}\r\n\r\n");
        let mut fields = Fields::default();
        weir_http::parse_request(text.as_bytes(), &weir_http::Limits::default(), &mut fields)
            .unwrap()
            .unwrap();
        sticky.server(&fields, text.as_bytes())
    }

    fn value(sticky: &Sticky, server: u16) -> String {
        String::from_utf8_lossy(&sticky.stamps[usize::from(server)].unwrap()).into_owned()
    }

    #[test]
    fn cookies() {
        let plain = sticky("", "app");
        let wanted = format!("srv={}; Path=/; HttpOnly; SameSite=Lax", value(&plain, 0));
        assert_eq!(plain.cookie(0).unwrap(), &wanted);
        assert_eq!(plain.cookie(2), None);
        let cookie = Cookie {
            path: "/a".to_owned(),
            max_age_s: Some(60),
            http_only: false,
            secure: true,
            same_site: SameSite::None,
            ..Cookie::new("srv")
        };
        let cookie = Sticky::new(&cookie, true, "", "app", &SERVERS).cookie(1).unwrap().clone();
        let wanted =
            format!("srv={}; Path=/a; Max-Age=60; Secure; SameSite=None", value(&plain, 1));
        assert_eq!(cookie, wanted);
    }

    #[test]
    fn identifiers_differ_and_stay() {
        let mut all: Vec<String> = [("", "app"), ("secret", "app"), ("", "other")]
            .iter()
            .flat_map(|(secret, upstream)| {
                [0, 1].map(|server| value(&sticky(secret, upstream), server))
            })
            .collect();
        assert_eq!(all[0], "3eb6fcfb857285dd");
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 6);
    }

    #[test]
    fn what_comes_back() {
        let sticky = sticky("", "app");
        let (first, second) = (value(&sticky, 0), value(&sticky, 1));
        for (cookies, wanted) in [
            (format!("srv={first}"), Some(0)),
            (format!("a=b; srv={second}; c=d"), Some(1)),
            (format!("srv=\"{second}\""), Some(1)),
            (format!("srv=old; srv={second}; srv={first}"), Some(1)),
            (format!("srv={}", first.to_uppercase()), None),
            (format!("srv={first}0"), None),
            (format!("srv={}", &first[..15]), None),
            (format!("xsrv={first}; Srv={first}; srv"), None),
            (format!("srv={}", "9".repeat(9_000)), None),
            ("srv=10.0.0.1:80".to_owned(), None),
            ("srv=0".to_owned(), None),
        ] {
            assert_eq!(bound(&sticky, &cookies), wanted, "{cookies}");
        }
    }
}
