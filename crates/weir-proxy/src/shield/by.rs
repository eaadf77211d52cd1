//! How a limit tells apart what it counts: by client, by values of requests, or by both together.
//!
//! A client chooses the values in its requests, and another value has another account. So such a
//! limit protects the owner of a value (a user who logs in, an application with its key) and does
//! not protect against the clients that send it. Called where a request is judged. Bound: linear in
//! the head.

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

use weir_http::{Fields, RequestHead};

use super::key::{Key, values_begin};
use super::table::{Name, Table};
use crate::placement::cookie;
use crate::request::route::{HOST_BYTES_MAX, bare_host};
use crate::request::rules::matching::{query, reads_as};

/// Most parts of one [`By`].
pub const PARTS_MAX: usize = 4;

/// One property that tells counted requests apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// The client.
    Client,
    /// The host of the request, in lower case and without port.
    Host,
    /// The field of this name, compared without case.
    Header(String),
    /// The cookie of this name, compared with case.
    Cookie(String),
    /// The member of the query of this name, decoded.
    Query(String),
}

/// All parts together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct By {
    /// Empty: nothing, so that all requests are counted together.
    pub parts: Vec<Part>,
    /// A request without one of them is counted by its client. Default false: it is not counted.
    pub falls_back: bool,
}

/// A request as received: spans of head and fields point into the bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) head: &'a RequestHead,
    pub(crate) fields: &'a Fields,
    pub(crate) bytes: &'a [u8],
}

/// Selects one of several values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    First,
    Last,
}

/// The accounts that a request counts for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Counted {
    /// Its client.
    Client,
    /// The accounts of its values: the first of each name and, where that differs, the last one,
    /// because servers take one or the other.
    Others(Name, Option<Name>),
    /// No account.
    Nobody,
}

impl Default for By {
    fn default() -> By {
        By { parts: vec![Part::Client], falls_back: false }
    }
}

impl By {
    /// The client and nothing else.
    #[inline]
    pub fn is_client(&self) -> bool {
        self.parts == [Part::Client]
    }

    /// Whether each account belongs to one client.
    #[inline]
    pub fn has_client(&self) -> bool {
        self.parts.contains(&Part::Client)
    }

    /// Returns the accounts in a group that a request counts for. `scratch` is overwritten.
    #[inline]
    pub(crate) fn counted(
        &self,
        table: &Table,
        (group, client): (u32, Key),
        said: Message<'_>,
        scratch: &mut Vec<u8>,
    ) -> Counted {
        if self.is_client() {
            return Counted::Client;
        }
        self.of_values(table, (group, client), said, scratch)
    }

    #[inline(never)]
    fn of_values(
        &self,
        table: &Table,
        (group, client): (u32, Key),
        said: Message<'_>,
        scratch: &mut Vec<u8>,
    ) -> Counted {
        let mut name = |which: Which| {
            scratch.clear();
            scratch.extend_from_slice(&values_begin(group));
            let says_all = self.parts.iter().all(|part| part.write(client, said, which, scratch));
            says_all.then(|| table.name_of_values(group, scratch))
        };
        match (name(Which::First), name(Which::Last)) {
            (Some(first), last) => {
                Counted::Others(first, last.filter(|last| !last.is_same(&first)))
            }
            (None, _) if self.falls_back => Counted::Client,
            (None, _) => Counted::Nobody,
        }
    }
}

impl Part {
    /// Appends the value of a request to `into`, so that requests with different values never have
    /// the same bytes there. False: it has no value.
    fn write(
        &self,
        client: Key,
        Message { head, fields, bytes }: Message<'_>,
        which: Which,
        into: &mut Vec<u8>,
    ) -> bool {
        match self {
            Part::Client => {
                into.extend_from_slice(&client.message(0));
                true
            }
            Part::Host => {
                let mut buffer = [0; HOST_BYTES_MAX];
                value(bare_host(head.authority.of(bytes), &mut buffer).into_iter(), which, into)
            }
            Part::Header(name) => {
                // A field of the connection between client and weir says nothing about the client.
                let lines = fields.as_slice().iter().filter(|field| !field.listed);
                let mine = lines.filter(|field| reads_as(field.name.of(bytes), name.as_bytes()));
                value(mine.map(|field| field.value.of(bytes)), which, into)
            }
            Part::Cookie(name) => {
                value(cookie::values(fields, bytes, name.as_bytes()), which, into)
            }
            Part::Query(name) => {
                let mine =
                    query(head.path.of(bytes)).filter(|(key, _)| key.reads_as(name.as_bytes()));
                value(mine.map(|(_, value)| value.collect::<Vec<u8>>()), which, into)
            }
        }
    }
}

/// Appends one of the values that are not empty to `into`, behind its length. False: all are empty.
fn value(all: impl Iterator<Item = impl AsRef<[u8]>>, which: Which, into: &mut Vec<u8>) -> bool {
    let mut all = all.filter(|value| !value.as_ref().is_empty());
    let Some(value) = (if which == Which::First { all.next() } else { all.last() }) else {
        return false;
    };
    let value = value.as_ref();
    into.extend_from_slice(&(value.len() as u64).to_le_bytes());
    into.extend_from_slice(value);
    true
}

#[cfg(test)]
mod tests {
    //! Proves: requests count for the same account exactly if they have the same values. How: a
    //! table, and values that could run into each other.

    use std::net::IpAddr;

    use super::*;
    use crate::shield::key::Prefix;

    fn part(text: &str) -> Part {
        match text.split_once(':') {
            Some(("header", name)) => Part::Header(name.to_owned()),
            Some(("cookie", name)) => Part::Cookie(name.to_owned()),
            Some(("query", name)) => Part::Query(name.to_owned()),
            _ if text == "host" => Part::Host,
            _ => Part::Client,
        }
    }

    /// Returns the bytes of a request of this client. None: it has no value.
    fn said(by: &str, client: u8, target: &str, lines: &str) -> Option<Vec<u8>> {
        one(by, client, target, lines, Which::First)
    }

    fn one(by: &str, client: u8, target: &str, lines: &str, which: Which) -> Option<Vec<u8>> {
        let text = format!("GET {target} HTTP/1.1\r\n{lines}\r\n");
        let mut fields = Fields::default();
        let head =
            weir_http::parse_request(text.as_bytes(), &weir_http::Limits::default(), &mut fields);
        let head = head.unwrap().unwrap();
        let client = Key::of(IpAddr::from([192, 0, 2, client]), Prefix::default());
        let said = Message { head: &head, fields: &fields, bytes: text.as_bytes() };
        let mut into = Vec::new();
        by.split(',').all(|word| part(word).write(client, said, which, &mut into)).then_some(into)
    }

    #[test]
    fn what_requests_say() {
        let of = |by: &str, target: &str, lines: &str| {
            said(by, 1, target, &format!("Host: A.test:80\r\n{lines}"))
        };
        assert_eq!(of("host", "/", ""), said("host", 2, "/x", "Host: a.test.\r\n"));
        assert_ne!(of("host", "/", ""), said("host", 1, "/", "Host: b.test\r\n"));
        assert_eq!(
            of("header:x-key", "/", "X-KEY: a\r\n"),
            of("header:x-key", "/y", "A: b\r\nx-key:  a \r\n")
        );
        for (by, target, lines) in [
            ("header:x-key", "/", ""),
            ("header:x-key", "/", "X-Key:\r\n"),
            ("header:x-key", "/", "Connection: x-key\r\nX-Key: a\r\n"),
            ("cookie:id", "/", "Cookie: ID=a\r\n"),
            ("query:user", "/?user=&users=a", ""),
            ("client,query:user", "/", ""),
        ] {
            assert_eq!(of(by, target, lines), None, "{by} {target} {lines}");
        }
        assert_eq!(
            of("cookie:id", "/", "Cookie: a=b; id=1\r\n"),
            of("cookie:id", "/", "Cookie: id=1\r\nCookie: c=d\r\n")
        );
        assert_eq!(of("query:user", "/?user=a+b", ""), of("query:user", "/x?y&us%65r=a%20b", ""));
        assert_ne!(of("query:user", "/?user=a", ""), of("query:user", "/?user=A", ""));
        assert_ne!(
            said("client,host", 1, "/", "Host: a\r\n"),
            said("client,host", 2, "/", "Host: a\r\n")
        );
    }

    #[test]
    fn values_do_not_run_into_each_other() {
        let by = "header:a,header:b";
        let lines = |lines: &str| said(by, 1, "/", &format!("Host: a\r\n{lines}")).unwrap();
        let all =
            [lines("A: 1\r\nB: 23\r\n"), lines("A: 12\r\nB: 3\r\n"), lines("A: 1,2\r\nB: 3\r\n")];
        for (at, one) in all.iter().enumerate() {
            assert!(all[at + 1..].iter().all(|other| other != one), "{at}");
        }
    }

    /// Servers take the first of two values, or the last: a request with both counts for both.
    #[test]
    fn of_several_values_two_count() {
        let of = |target: &str, lines: &str, which| {
            one("query:user,header:x-key", 1, target, &format!("Host: a\r\n{lines}"), which)
        };
        let plain = |user: &str, key: &str| {
            of(&format!("/?user={user}"), &format!("X-Key: {key}\r\n"), Which::Last)
        };
        let both = |which| of("/?user=a&user=b&u=c&user=", "X-Key: 1\r\nX_Key: 2\r\n", which);
        assert_eq!((both(Which::First), both(Which::Last)), (plain("a", "1"), plain("b", "2")));
        // PHP reads names this way.
        assert_eq!(
            said("query:a_b", 1, "/?a.b=1", "Host: a\r\n"),
            said("query:a_b", 1, "/?a_b=1", "Host: a\r\n")
        );
    }
}
