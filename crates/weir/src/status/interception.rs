//! What an interception does with new connections, for people. Pure: document -> text.

use super::figures::count;
use crate::admin::document::Status;

/// Returns a line about connections that were taken and that passed by, and why new ones do. Empty
/// without an interception.
pub(super) fn interception(status: &Status) -> String {
    let Some(of) = &status.io.interception else { return String::new() };
    let (taken, passed) = (count(of.taken), count(of.passed_by));
    let (options, nat) = (count(of.with_options), count(of.translated));
    let unserved = if of.unserved > 0 {
        format!(", while weir did not run {}", count(of.unserved))
    } else {
        String::new()
    };
    let now = of
        .passing
        .as_ref()
        .map_or_else(String::new, |why| format!("; new ones bypass weir: {why}"));
    format!(
        "taken    {taken}  bypassed {passed}, for options {options}, for NAT {nat}{unserved}{now}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::document::{Interception, Io};

    #[test]
    fn what_passes_by_is_seen() {
        assert_eq!(interception(&Status::default()), "");
        let of = Interception {
            taken: 12,
            passed_by: 3,
            with_options: 2,
            translated: 1,
            ..Interception::default()
        };
        let said = |of: Interception| {
            interception(&Status {
                io: Io { interception: Some(of), ..Io::default() },
                ..Status::default()
            })
        };
        assert_eq!(said(of.clone()), "taken    12  bypassed 3, for options 2, for NAT 1\n");
        let stopped = said(Interception { unserved: 4, ..of.clone() });
        assert_eq!(
            stopped,
            "taken    12  bypassed 3, for options 2, for NAT 1, while weir did not run 4\n"
        );
        let now = said(Interception { passing: Some("a flood".to_owned()), ..of });
        assert_eq!(
            now,
            "taken    12  bypassed 3, for options 2, for NAT 1; new ones bypass weir: a flood\n"
        );
    }
}
