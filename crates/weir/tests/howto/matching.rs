//! Whether a program has printed what a page shows.

/// Matches any text, including several lines and no text.
const ANYTHING: char = '…';

/// Whether the output is as the page shows it. White space at the end of lines, and empty lines at
/// the end, do not count.
pub(crate) fn is_shown(shown: &str, printed: &str) -> bool {
    let (shown, printed) = (trimmed(shown), trimmed(printed));
    let parts: Vec<&str> = shown.split(ANYTHING).collect();
    let [first, middle @ .., last] = &parts[..] else { return shown == printed };
    let Some(mut rest) = printed.strip_prefix(first) else { return false };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

fn trimmed(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n").trim_end().to_owned()
}

#[test]
fn dots_stand_for_anything() {
    for (shown, printed) in [
        ("a\nb\n", "a \nb\n\n"),
        ("…", ""),
        ("a…c", "a\nb\nc"),
        ("a…", "abc"),
        ("…c", "abc"),
        ("a…b…c", "a1b2b3c"),
        ("a … d", "a b c d"),
    ] {
        assert!(is_shown(shown, printed), "{shown:?} {printed:?}");
    }
    for (shown, printed) in [
        ("a", "a\nb"),
        ("a…", "ba"),
        ("…a", "ab"),
        ("a…b…a", "aba b"),
        ("a…a", "a"),
        ("a\nb", "ab"),
    ] {
        assert!(!is_shown(shown, printed), "{shown:?} {printed:?}");
    }
}
