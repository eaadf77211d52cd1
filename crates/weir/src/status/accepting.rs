//! How the worker for a new connection is chosen, for people. Pure: document -> text.

use crate::admin::document::Status;

/// Returns a line for each way, with its listeners if there are several ways. Empty with one
/// worker.
pub(super) fn accepting(status: &Status) -> String {
    let mut ways: Vec<(&str, Option<&str>, Vec<&str>)> = Vec::new();
    for one in status.io.accepting.iter().filter(|one| one.way != "one worker") {
        let why = one.why.as_deref();
        match ways.iter_mut().find(|(way, because, _)| *way == one.way && *because == why) {
            Some((_, _, listeners)) => listeners.push(&one.listener),
            None => ways.push((&one.way, why, vec![&one.listener])),
        }
    }
    let are_several = ways.len() > 1;
    let mut out = String::new();
    for (at, (way, why, listeners)) in ways.iter().enumerate() {
        let head = if at == 0 { "accept  " } else { "        " };
        let why = why.map_or_else(String::new, |why| format!(" ({why})"));
        let at = if are_several { format!("  {}", listeners.join(", ")) } else { String::new() };
        out += &format!("{head} {way}{why}{at}\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::document::{Accepting, Io};

    fn shown(of: &[(&str, &str, Option<&str>)]) -> String {
        let one = |(listener, way, why): &(&str, &str, Option<&str>)| Accepting {
            listener: (*listener).to_owned(),
            way: (*way).to_owned(),
            why: why.map(str::to_owned),
        };
        let io = Io { accepting: of.iter().map(one).collect(), ..Io::default() };
        accepting(&Status { io, ..Status::default() })
    }

    #[test]
    fn each_way_has_a_line() {
        assert_eq!(shown(&[]), "");
        assert_eq!(shown(&[("a:1", "one worker", None)]), "");
        let both = [("a:1", "even by eBPF", None), ("b:2", "even by eBPF", None)];
        assert_eq!(shown(&both), "accept   even by eBPF\n");
        let why = Some("no eBPF: no right");
        let three =
            [("a:1", "by hash", why), ("b:2", "even by classic BPF", why), ("c:3", "by hash", why)];
        let said = "accept   by hash (no eBPF: no right)  a:1, c:3\n         even by classic BPF \
            (no eBPF: no right)  b:2\n";
        assert_eq!(shown(&three), said);
    }
}
