//! Whole heads of responses inside the body of another one: if a server declares more than it
//! sends, the next response, which belongs to another request, ends up in this body.
//!
//! The engine searches bodies of requests that others stood behind ([`next_quote`]), holds back
//! text that may become a head, and compares each head that it finds with the response's own
//! ([`Print::is_like`]). A page that merely quotes HTTP has neither this moment's `Date` nor, where
//! the server sends none, the fields of its responses. At the end of a body, the possible beginning
//! of a head is judged by the bytes behind it ([`judge_end`]). Bounds: each byte is looked at a
//! bounded number of times; [`QUOTE_BYTES_MAX`] bytes are held back. RFC 9112 §6.3, §9.2;
//! docs/hostile.md E12.

use std::ops::Range;
use std::sync::LazyLock;

use memchr::memchr;
use memchr::memmem::Finder;

/// The beginning of every response head: it does not tell which request it belongs to.
pub(crate) const BEGINNING: &[u8] = b"HTTP/1.";
static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(BEGINNING));

/// A head longer than this is not searched for to its end.
pub(crate) const QUOTE_BYTES_MAX: usize = 16 * 1024;
/// Consecutive responses are not further apart than this.
const MOMENT_S: u64 = 5;

/// Heads of responses found in a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Quote {
    /// Nothing, and nothing that could become one.
    None,
    /// The text from here may become one with further bytes.
    Partial(usize),
    /// Status line, fields and empty line.
    Whole(Range<usize>),
}

/// Returns the first head of a response in `text[from..]`, or the beginning of a possible one at
/// its end.
pub(crate) fn next_quote(text: &[u8], from: usize) -> Quote {
    let mut at = from;
    while let Some(found) = FINDER.find(&text[at..]) {
        let start = at + found;
        match head_len(&text[start..]) {
            Ok(Some(len)) => return Quote::Whole(start..start + len),
            Ok(None) if text.len() - start < QUOTE_BYTES_MAX => return Quote::Partial(start),
            Ok(None) => at = text.len(),
            Err(fault) => at = start + fault,
        }
    }
    let tail = &text[at.max(text.len().saturating_sub(BEGINNING.len() - 1))..];
    let begun = (0..tail.len()).find(|at| BEGINNING.starts_with(&tail[*at..]));
    begun.map_or(Quote::None, |begun| Quote::Partial(text.len() - tail.len() + begun))
}

/// What the bytes behind a complete body show about its last bytes, which may begin a response
/// head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The body ends where its server says: the next response begins there.
    Body,
    /// A head begins in the body: the next response does not begin behind it.
    Head,
    /// More is needed.
    Unknown,
}

/// Judges the end of a body: `text[..inside]` is the part that was held back, the rest is what came
/// behind.
pub(crate) fn judge_end(text: &[u8], inside: usize) -> Verdict {
    let begins = match next_quote(text, 0) {
        Quote::Partial(at) => at < inside,
        Quote::Whole(found) => found.start < inside,
        Quote::None => false,
    };
    // Some servers end a body with a line end that they did not count.
    let blanks = text[inside..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    let rest = &text[inside + blanks..];
    if !begins || is_beginning(rest) && rest.len() >= START_BYTES {
        Verdict::Body
    } else if is_beginning(rest) {
        Verdict::Unknown
    } else {
        Verdict::Head
    }
}

/// Bytes of a version, a space and a status.
const START_BYTES: usize = BEGINNING.len() + b"1 200".len();

/// Whether a text begins, as far as it reaches, like a head of a response.
fn is_beginning(text: &[u8]) -> bool {
    let fits = |(at, byte): (usize, &u8)| match at {
        0..7 => *byte == BEGINNING[at],
        7 => matches!(byte, b'0' | b'1'),
        8 => *byte == b' ',
        _ => byte.is_ascii_digit(),
    };
    text.iter().take(START_BYTES).enumerate().all(fits)
}

/// Returns the length of the head that `text` begins with; None: it is not complete.
///
/// # Errors
///
/// It is no head: where to continue the search. Anything that begins before that fails at the same
/// place.
fn head_len(text: &[u8]) -> Result<Option<usize>, usize> {
    if !is_beginning(text) {
        return Err(BEGINNING.len());
    }
    let mut at = 0;
    loop {
        let Some(len) = memchr(b'\n', &text[at..]) else { return Ok(None) };
        let line = &text[at..at + len];
        let Some((b'\r', line)) = line.split_last() else {
            return Err((at + len).max(BEGINNING.len()));
        };
        if line.is_empty() {
            return Ok(Some(at + len + 1));
        }
        let named = memchr(b':', line)
            .is_some_and(|colon| colon > 0 && line[..colon].iter().all(u8::is_ascii_graphic));
        if at > 0 && !named {
            return Err(at);
        }
        at += len + 1;
    }
}

/// Properties that the responses of one server at one moment have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Print {
    /// Names of its fields in their order.
    names: u64,
    /// One of them is not among those that nearly every response has.
    telling: bool,
    /// Value of `Server`; 0: it has none.
    server: u64,
    /// `Date`, seconds since 1970.
    date_s: Option<u64>,
}

impl Print {
    /// Returns that of a head, as far as its lines are complete. With status line.
    pub(crate) fn of(head: &[u8]) -> Print {
        let mut print = Print { names: BASIS, telling: false, server: 0, date_s: None };
        let mut rest = head;
        let mut first = true;
        while let Some(len) = memchr(b'\n', rest) {
            let line = rest[..len].trim_ascii();
            rest = &rest[len + 1..];
            if !std::mem::take(&mut first)
                && let Some(colon) = memchr(b':', line)
            {
                print.add(line[..colon].trim_ascii_end(), line[colon + 1..].trim_ascii_start());
            }
        }
        print
    }

    fn add(&mut self, name: &[u8], value: &[u8]) {
        const COMMON: [&[u8]; 4] =
            [b"content-length", b"content-type", b"connection", b"transfer-encoding"];
        self.names = mix(mix(self.names, name), b":");
        self.telling |= !COMMON.iter().any(|common| name.eq_ignore_ascii_case(common));
        if name.eq_ignore_ascii_case(b"date") {
            self.date_s = self.date_s.or(weir_http::parse_http_date(value));
        } else if name.eq_ignore_ascii_case(b"server") {
            self.server = mix(BASIS, value);
        }
    }

    /// Whether `other`, a head in the body of this response, is a response of the same server at
    /// this moment. This response came `age_s` seconds ago; `now_s` is the time by our own clock,
    /// seconds since 1970. `whole`: all its fields are known.
    pub(crate) fn is_like(&self, other: &Print, age_s: u64, now_s: u64, whole: bool) -> bool {
        match (self.date_s, other.date_s) {
            (own_s, Some(date_s)) => {
                let near = |moment_s: u64| date_s.abs_diff(moment_s) <= MOMENT_S;
                near(now_s) || own_s.is_some_and(|own_s| near(own_s + age_s))
            }
            (Some(_), None) => false,
            (None, None) => {
                let same_names = self.telling && self.names == other.names;
                whole && (same_names || self.server != 0 && self.server == other.server)
            }
        }
    }
}

const BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a without regard to case.
fn mix(hash: u64, text: &[u8]) -> u64 {
    text.iter().fold(hash, |hash, byte| {
        (hash ^ u64::from(byte.to_ascii_lowercase())).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    //! Proves: a head is found wherever it is and however it is cut, quickly; only one of this
    //! server at this moment is like its responses. How: examples, all cuts, and the worst texts
    //! that we know.

    use proptest::prelude::*;

    use super::*;

    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nServer: s\r\n\
            Content-Length: 2\r\n\r\n";
    const THEN_S: u64 = 784_111_777;

    #[test]
    fn heads_are_found() {
        for (before, behind) in [
            ("", ""),
            ("abc", "ok"),
            ("HTTP/1.1 200 OK\r\n", "x"),
            ("HTTP/1.HTTP/1.1 20", ""),
            ("A: b\r\n", ""),
        ] {
            let text = [before.as_bytes(), HEAD, behind.as_bytes()].concat();
            let Quote::Whole(found) = next_quote(&text, 0) else { panic!("{before}") };
            assert_eq!(found.end, before.len() + HEAD.len(), "{before}");
            assert!(found.start <= before.len(), "{before}");
        }
        assert_eq!(next_quote(b"HTTP/1.0 404\r\n\r\n", 0), Quote::Whole(0..16));
    }

    #[test]
    fn other_text_is_none() {
        for text in [
            "",
            "x",
            "HTTP/2 200\r\n\r\n",
            "HTTP/1.1\r\n\r\n x",
            "GET / HTTP/1.1\r\n\r\n.",
            "HTTP/1.1 200 OK\nA: b\n\n",
            "HTTP/1.1 2x0 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nno field\r\n\r\n",
            "HTTP/1.1 200 OK\r\n: x\r\n\r\n",
            "\"GET / HTTP/1.1\" 200 12\r\n\r\n",
        ] {
            assert_eq!(next_quote(text.as_bytes(), 0), Quote::None, "{text}");
        }
    }

    #[test]
    fn each_cut_is_held() {
        for cut in 1..HEAD.len() {
            let text = [b"body: ", &HEAD[..cut]].concat();
            assert_eq!(next_quote(&text, 0), Quote::Partial(6), "{cut}");
        }
        let long = [&HEAD[..17], &vec![b'x'; QUOTE_BYTES_MAX]].concat();
        assert_eq!(next_quote(&long, 0), Quote::None, "nothing is held for ever");
    }

    /// The end of a body is where the next response begins, if there is a choice.
    #[test]
    fn ends_are_judged_by_what_follows() {
        let judge = |held: &[u8], rest: &[u8]| judge_end(&[held, rest].concat(), held.len());
        for cut in 1..HEAD.len() {
            let (held, rest) = HEAD.split_at(cut);
            assert_eq!(judge(held, b""), Verdict::Unknown, "{cut}");
            for more in 1..rest.len() {
                let blank = rest[..more].iter().all(|byte| matches!(byte, b'\r' | b'\n'));
                let expected =
                    if blank && cut + more < HEAD.len() { Verdict::Unknown } else { Verdict::Head };
                assert_eq!(judge(held, &rest[..more]), expected, "{cut} {more}");
            }
            for next in [HEAD, b"\r\nHTTP/1.0 404 \r\n\r\n"] {
                assert_eq!(judge(held, next), Verdict::Body, "{cut}");
                assert_ne!(judge(held, &next[..3]), Verdict::Head, "{cut}");
            }
        }
        assert_eq!(
            (judge(b"H", b"x"), judge(b"H", b"HT"), judge(b"HT", b"Tx")),
            (Verdict::Body, Verdict::Body, Verdict::Body)
        );
        assert_eq!(
            (judge(b"HT", b"T"), judge(b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 20")),
            (Verdict::Head, Verdict::Unknown)
        );
    }

    /// Texts in which much begins and nothing ends: as many steps as bytes, or this takes minutes.
    #[test]
    fn the_worst_texts_are_read_in_a_moment() {
        for part in [
            "HTTP/1.1 200 ",
            "HTTP/1.",
            "HTTP/1.1 200 \r\nA:HTTP/1.1 200 \r\n",
            "HTTP/1.1 200 \r\nA: b\r\n",
            "HTTP/1.1 200 \n",
        ] {
            for end in ["", "\n", "\r\nno field\r\n"] {
                let text = [part.repeat(8 << 20 >> 4).as_bytes(), end.as_bytes()].concat();
                let mut at = 0;
                while let Quote::Whole(found) = next_quote(&text, at) {
                    at = found.end;
                }
            }
        }
    }

    #[test]
    fn what_is_like_an_answer_of_this_moment() {
        let head = |date: &str, more: &str| {
            let date = if date.is_empty() {
                String::new()
            } else {
                format!("Date: Sun, 06 Nov 1994 {date} GMT\r\n")
            };
            Print::of(format!("HTTP/1.1 200 OK\r\n{date}{more}\r\n").as_bytes())
        };
        let own = head("08:49:37", "Server: s\r\nX: y\r\n");
        let like = |other: Print, age_s, now_s| own.is_like(&other, age_s, now_s, true);
        assert!(
            like(head("08:49:37", ""), 0, 0)
                && like(head("08:49:42", ""), 0, 0)
                && like(head("08:51:37", ""), 120, 0)
        );
        assert!(like(head("09:00:00", ""), 0, THEN_S + 623));
        assert!(
            !like(head("08:49:43", ""), 0, 0)
                && !like(head("07:49:37", "Server: s\r\nX: y\r\n"), 0, THEN_S)
        );
        assert!(!like(head("", "Server: s\r\nX: y\r\n"), 0, THEN_S));
        let dateless = head("", "Server: s\r\nX: y\r\n");
        assert!(dateless.is_like(&head("", "server:s\r\n"), 0, THEN_S, true), "the same server");
        assert!(!dateless.is_like(&head("", "server:t\r\n"), 0, THEN_S, true));
        assert!(!dateless.is_like(&head("", "server:s\r\n"), 0, THEN_S, false));
        assert!(dateless.is_like(&head("08:49:40", ""), 0, THEN_S, false));
        let plain = head("", "Content-Length: 2\r\nX-Nonce: a\r\n");
        assert!(
            plain.is_like(&head("", "content-length: 9\r\nx-nonce: b\r\n"), 0, 0, true),
            "the same fields"
        );
        assert!(!plain.is_like(&head("", "X-Nonce: b\r\nContent-Length: 9\r\n"), 0, 0, true));
        let bare = head("", "Content-Length: 2\r\n");
        assert!(
            !bare.is_like(&head("", "Content-Length: 9\r\n"), 0, 0, true),
            "every page that quotes an answer has these"
        );
    }

    proptest! {
        /// What is held back and what is searched later find together what one search finds.
        #[test]
        fn cuts_make_no_difference(
            before in "[ -~]{0,30}",
            cut in 0..200usize,
            behind in "[ -~]{0,30}",
        ) {
            let text = [before.as_bytes(), HEAD, behind.as_bytes()].concat();
            let (first, second) = text.split_at(cut.min(text.len()));
            let found = |found: Quote| matches!(found, Quote::Whole(_));
            let in_pieces = match next_quote(first, 0) {
                Quote::Whole(_) => true,
                Quote::None => found(next_quote(second, 0)),
                Quote::Partial(at) => found(next_quote(&[&first[at..], second].concat(), 0)),
            };
            prop_assert!(in_pieces && found(next_quote(&text, 0)));
        }
    }
}
