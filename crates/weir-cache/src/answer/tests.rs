//! Tests for heads of responses, field by field.

use super::*;
use crate::directives::DirectiveSet;
use crate::kit::{NOW_S, answer};
use weir_http::http_date;

fn read(lines: &[&'static str]) -> Answer {
    answer(200, lines, &Options::default())
}

/// RFC 9111 §5.1
#[test]
fn ages() {
    let cases: [(&[&'static str], u32); 12] = [
        (&[], 0),
        (&["Age: 7200"], 7200),
        (&["Age: abc"], 0),
        (&["Age: -7200"], 0),
        (&["Age: 7200.0"], 0),
        (&["Age: 7200, 0"], 7200),
        (&["Age: 0, 7200"], 0),
        (&["Age: 7200", "Age: 0"], 7200),
        (&["Age: 0", "Age: 7200"], 0),
        (&["Age: 2147483647"], DELTA_MAX),
        (&["Age: 2147483649"], DELTA_MAX),
        (&["Age: 2147483646"], DELTA_MAX - 2),
    ];
    for (lines, expected) in cases {
        assert_eq!(read(lines).age_s, expected, "{lines:?}");
    }
}

/// RFC 9111 §5.3
#[test]
fn expires() {
    let cases: [(&[&'static str], Expires); 8] = [
        (&[], Expires::Absent),
        (&["Expires: Thu, 01 Jan 1970 00:00:10 GMT"], Expires::At(10)),
        (&["Expires: Sunday, 06-Nov-94 08:49:37 GMT"], Expires::At(784_111_777)),
        (&["Expires: 0"], Expires::Invalid),
        (&["Expires: "], Expires::Invalid),
        (&["Expires: Thu, 01 Jan 1970 00:00:10 UTC"], Expires::Invalid),
        (
            &["Expires: Thu, 01 Jan 2099 00:00:10 GMT", "Expires: Thu, 01 Jan 2099 00:00:10 GMT"],
            Expires::Invalid,
        ),
        (&["Expires: x", "Expires: Thu, 01 Jan 2099 00:00:10 GMT"], Expires::Invalid),
    ];
    for (lines, expected) in cases {
        assert_eq!(read(lines).expires, expected, "{lines:?}");
    }
}

#[test]
fn other_fields() {
    let date = http_date(NOW_S - 5);
    let line: &'static str = String::from_utf8_lossy(&date).into_owned().leak();
    let lines: [&'static str; 7] = [
        format!("Date: {line}").leak(),
        "date: Thu, 01 Jan 1970 00:00:10 GMT",
        format!("LAST-MODIFIED: {line}").leak(),
        "ETag: \"x\"",
        "Vary: Foo",
        "Set-Cookie: a=b",
        "Cache-Control: max-age=7",
    ];
    let answer = read(&lines);
    assert_eq!((answer.date_s, answer.modified_s), (Some(NOW_S - 5), Some(NOW_S - 5)));
    assert!(answer.has_etag && answer.sets_cookie && answer.has_validator());
    assert_eq!(answer.directives.max_age_s, Some(7));
    assert_eq!(answer.field_bytes, lines.iter().map(|line| line.len() + 2).sum::<usize>());
    assert!(!read(&["ETag: x", "Date: foo", "Last-Modified: foo"]).has_validator());
    assert!(read(&["Set-Cookie2: a=b"]).sets_cookie);
    let options = Options { strip: vec![b"set-cookie".to_vec()], ..Options::default() };
    assert!(!super::super::kit::answer(200, &["Set-Cookie: a=b"], &options).sets_cookie);
}

/// RFC 9213 §2.1, §2.2: the first valid field of the list, and nothing else.
#[test]
fn targeted_fields() {
    let far = "Expires: Thu, 01 Jan 2099 00:00:10 GMT";
    let cdn = |lines: &[&'static str]| {
        let answer = read(lines);
        (
            answer.control,
            answer.directives.max_age_s,
            answer.directives.set.has(Directive::NoStore),
            answer.expires,
        )
    };
    let (own, second) = (Control::Targeted(0), Control::Targeted(1));
    let none = Expires::Absent;
    assert_eq!(
        cdn(&["CDN-Cache-Control: max-age=5", "Cache-Control: no-store", far]),
        (second, Some(5), false, none)
    );
    assert_eq!(
        cdn(&["CDN-Cache-Control: no-store", "Cache-Control: max-age=9", far]),
        (second, None, true, none)
    );
    assert_eq!(
        cdn(&["CDN-Cache-Control: max-age=1", "Weir-Cache-Control: max-age=2"]),
        (own, Some(2), false, none)
    );
    assert_eq!(
        cdn(&["CDN-Cache-Control: a", "CDN-Cache-Control: max-age=3"]),
        (second, Some(3), false, none)
    );
    assert_eq!(
        cdn(&["CDN-Cache-Control: max-age=99999999999"]),
        (second, Some(DELTA_MAX), false, none)
    );
    assert_eq!(cdn(&["CDN-Cache-Control: max-age=-5"]), (second, Some(0), false, none));
    assert_eq!(cdn(&["CDN-Cache-Control: max-age=9, max-age=5"]), (second, Some(5), false, none));
    assert_eq!(cdn(&["CDN-Cache-Control: max-age=5;x=y"]), (second, Some(5), false, none));
    assert_eq!(cdn(&["CDN-Cache-Control: no-store=?0, max-age=5"]), (second, Some(5), false, none));
    // Neither a dictionary nor present: Cache-Control counts.
    for broken in [
        "CDN-Cache-Control: max-age=10000, &&&&&",
        "CDN-Cache-Control: max-age =100",
        "CDN-Cache-Control: MaX-aGe=3600",
        "CDN-Cache-Control:",
    ] {
        assert_eq!(
            cdn(&[broken, "Cache-Control: no-store"]),
            (Control::CacheControl, None, true, none),
            "{broken}"
        );
    }
    // Of the wrong type: as an unreadable one.
    for wrong in ["max-age=\"10000\"", "max-age", "max-age=1.5", "max-age=(1)", "max-age=?0"] {
        let line: &'static str = format!("CDN-Cache-Control: {wrong}").leak();
        assert_eq!(
            cdn(&[line, "Cache-Control: no-store"]),
            (second, Some(0), false, none),
            "{wrong}"
        );
    }
    let set = |line: &'static str| read(&[line]).directives.set;
    assert!(set("CDN-Cache-Control: private=\"x\"").has(Directive::Private));
    assert!(!set("CDN-Cache-Control: public=\"x\"").has(Directive::Public));
    assert!(!set("CDN-Cache-Control: public, public=2").has(Directive::Public));
    let options =
        Options { ignored: DirectiveSet::of(&[Directive::Private]), ..Options::default() };
    let ignored = answer(200, &["CDN-Cache-Control: private, max-age=4"], &options);
    assert_eq!(ignored.directives.set, DirectiveSet::of(&[Directive::MaxAge]));
}
