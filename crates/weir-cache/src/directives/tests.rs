//! Tests for Cache-Control with every known oddity of the field.

use super::*;
use proptest::prelude::*;

fn answer(lines: &[&str]) -> AnswerDirectives {
    let mut directives = AnswerDirectives::default();
    lines.iter().for_each(|line| directives.add_line(line.as_bytes(), DirectiveSet::default()));
    directives
}

fn request(lines: &[&str]) -> RequestDirectives {
    let mut directives = RequestDirectives::default();
    lines.iter().for_each(|line| directives.add_line(line.as_bytes()));
    directives
}

#[test]
fn names_are_in_the_order_of_the_enumeration() {
    for (at, (name, directive)) in NAMES.iter().enumerate() {
        assert_eq!(*directive as usize, at);
        assert_eq!(Directive::of(&name.to_ascii_uppercase()), Some(*directive));
        assert_eq!(directive.name(), *name);
    }
    assert_eq!(Directive::of(b"no-transform"), None);
}

/// RFC 9111 §5.2: case does not matter, other directives are ignored, arguments may be quoted.
#[test]
fn what_lines_say() {
    assert_eq!(answer(&[]), AnswerDirectives::default());
    assert_eq!(
        answer(&["", ",", "foobar, x=\"no-store, max-age=1\""]),
        AnswerDirectives::default()
    );
    let said = answer(&[
        "MaX-aGe=3600, PUBLIC",
        "s-maxage=\"7\",stale-while-revalidate=8 , stale-if-error=9",
    ]);
    let set = DirectiveSet::of(&[MaxAge, Public, SMaxage, StaleWhileRevalidate, StaleIfError]);
    let expected = AnswerDirectives {
        set,
        max_age_s: Some(3600),
        s_maxage_s: Some(7),
        stale_while_revalidate_s: Some(8),
        stale_if_error_s: Some(9),
    };
    assert_eq!(said, expected);
}

/// RFC 9111 §5.2.2.1 and §1.2.2; unreadable values are 0.
#[test]
fn lifetimes() {
    let cases = [
        ("max-age=3600", 3600),
        ("max-age=003600", 3600),
        ("max-age=\"3600\"", 3600),
        ("max-age=2147483647", DELTA_MAX - 1),
        ("max-age=2147483649", DELTA_MAX),
        ("max-age=99999999999999999999", DELTA_MAX),
        ("max-age=-3600", 0),
        ("max-age='3600'", 0),
        ("max-age=3600.0", 0),
        ("max-age=a3600", 0),
        ("max-age=3600a", 0),
        ("max-age =3600", 0),
        ("max-age= 3600", 0),
        ("max-age", 0),
        ("max-age=", 0),
        ("max-age=\"\"", 0),
        ("max-age=\"3600", 0),
        ("max-age=3600;", 0),
        ("max-age:3600", 0),
        ("max-age=\"36\\00\"", 0),
        ("max-age=1800, max-age=1", 1),
        ("max-age=1, max-age=1800", 1),
        ("max-age=1800, max-age=x", 0),
        ("extension=\"max-age=3600\", max-age=1", 1),
        ("max-age=1, extension=\"max-age=3600\"", 1),
        ("extension=\"max-age=0\\\", max-age=5\", max-age=6", 6),
    ];
    for (line, seconds) in cases {
        assert_eq!(answer(&[line]).max_age_s, Some(seconds), "{line}");
        assert_eq!(answer(&["max-age=2147483648", line]).max_age_s, Some(seconds), "{line}");
    }
    assert_eq!(answer(&["xmax-age=1, max-agex=1, \"max-age=1\", =1, max_age=1"]).max_age_s, None);
}

/// A malformed forbidding directive holds, a malformed permitting one does not.
#[test]
fn broken_text_only_forbids() {
    for (name, directive) in NAMES {
        let name = String::from_utf8_lossy(name);
        for rest in ["=x", "=\"x, y\"", "; max-age=9", " foo", "=", "=\"x"] {
            let said = answer(&[&format!("{name}{rest}")]);
            if directive.has_seconds() {
                assert_eq!(said.clone().place(directive), Some(0), "{name}{rest}");
            } else {
                assert_eq!(said.set.has(directive), !directive.permits(), "{name}{rest}");
            }
        }
    }
    let said = answer(&["private; max-age=60"]);
    assert!(said.set.has(Private) && said.max_age_s.is_none());
}

#[test]
fn ignored_directives_are_not_there() {
    let mut said = AnswerDirectives::default();
    said.add_line(b"private, max-age=5, no-store", DirectiveSet::of(&[Private, MaxAge]));
    assert_eq!(said.set, DirectiveSet::of(&[NoStore]));
    assert_eq!(said.max_age_s, None);
}

/// RFC 9111 §4.2.4, §5.2.2.2, §5.2.2.8, §5.2.2.10.
#[test]
fn who_forbids_stale_answers() {
    for line in ["must-revalidate", "proxy-revalidate", "no-cache", "no-cache=\"a\"", "s-maxage=9"]
    {
        assert!(answer(&[line]).forbids_stale(), "{line}");
    }
    assert!(!answer(&["max-age=1, public, stale-if-error=9, immutable"]).forbids_stale());
}

/// RFC 9111 §5.2.1
#[test]
fn what_requests_say() {
    let said = request(&["no-cache, No-Store", "only-if-cached"]);
    assert!(said.no_cache && said.no_store && said.only_if_cached);
    assert_eq!(request(&["max-age=5, max-age=3"]).max_age_s, Some(3));
    assert_eq!(request(&["max-age=x"]).max_age_s, Some(0));
    assert_eq!(request(&["max-stale"]).max_stale_s, Some(DELTA_MAX));
    assert_eq!(request(&["max-stale=4"]).max_stale_s, Some(4));
    assert_eq!(request(&["max-stale=4, max-stale"]).max_stale_s, Some(4));
    assert_eq!(request(&["max-stale=x"]).max_stale_s, None);
    assert_eq!(request(&["max-stale ", "min-fresh=\"7\""]).min_fresh_s, Some(7));
    assert_eq!(request(&["min-fresh=7, min-fresh=8"]).min_fresh_s, Some(8));
    assert_eq!(request(&["public, s-maxage=4, x=\"no-cache\""]), RequestDirectives::default());
}

/// Text made of pieces of directives, whole and broken.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "max-age",
        "s-maxage",
        "no-store",
        "private",
        "public",
        "stale-if-error",
        "=",
        "\"",
        ",",
        " ",
        "\\",
        "0",
        "3600",
        "99999999999",
        "-1",
        ";",
        "x",
        "\u{fc}",
        "no-cache",
        "\t",
    ]);
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    /// Any text is read, and an additional line never extends a lifetime or takes a prohibition
    /// back.
    #[test]
    fn more_text_never_permits_more(first in pieces(), second in pieces()) {
        let (one, both) = (answer(&[&first]), answer(&[&first, &second]));
        for (_, directive) in NAMES {
            prop_assert!(both.set.has(directive) || !one.set.has(directive));
        }
        for (a, b) in [(one.max_age_s, both.max_age_s), (one.s_maxage_s, both.s_maxage_s)] {
            prop_assert!(a.is_none_or(|a| b.is_some_and(|b| b <= a)));
        }
        prop_assert_eq!(both, answer(&[&second, &first]));
        request(&[&first, &second]);
    }

    /// Lines are one list (RFC 9110 §5.3), unless a quoted string is open at the end of one.
    #[test]
    fn lines_are_one_list(first in "[a-z=0-9, ;-]{0,30}", second in pieces()) {
        prop_assert_eq!(answer(&[&first, &second]), answer(&[&format!("{first},{second}")]));
        prop_assert_eq!(request(&[&first, &second]), request(&[&format!("{first},{second}")]));
    }

    /// Every truncation of a line is read; as long as a forbidding directive is whole, it forbids.
    #[test]
    fn every_truncation(line in pieces()) {
        for end in (0..=line.len()).filter(|end| line.is_char_boundary(*end)) {
            answer(&[&line[..end]]);
            request(&[&line[..end]]);
            let cut = format!("no-store, {}", &line[..end]);
            prop_assert!(answer(&[&cut]).set.has(NoStore));
        }
    }
}
