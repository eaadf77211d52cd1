//! Proves: a list of blocks that is longer than allowed is an error that names it, and one of
//! exactly that length is none; nothing is cut silently, and the requirements of the last block do
//! not lead elsewhere. How: each list that has a limit, at it and a block beyond.

use weir_proxy::plan::{FAILOVER_MAX, LIMITS_MAX};

use super::*;
use crate::{Experts, parse_in, parse_servers};

/// A list of blocks that has a limit.
struct List {
    name: &'static str,
    max: usize,
    /// The document, from its lines and the number of the last one.
    document: fn(&str, usize) -> String,
    line: fn(usize) -> String,
}

const LISTEN: &str = "listen \"127.1.0.1:1\"\n";
const APP: &str = "upstream \"app\" { server \"127.0.0.1:1\"; }\n";
const OWN: &str = "route { respond 204; }\n";

fn listen(at: usize) -> String {
    format!("listen \"127.0.{}.{}:80\"", at / 250, at % 250)
}

fn server(at: usize) -> String {
    format!("server \"127.0.{}.{}:80\"", at / 250, at % 250)
}

fn upstream(at: usize) -> String {
    format!("upstream \"u{at}\" {{ server \"127.0.0.1:1\"; }}")
}

/// Puts lines in a route to `app`.
fn in_route(lines: &str, _: usize) -> String {
    format!(
        "{LISTEN}{APP}upstream \"b\" {{ server \"127.0.0.1:2\"; }}\nroute {{\nproxy \"app\"\n\
            {lines}\n}}\n"
    )
}

const LISTS: [List; 20] = [
    List {
        name: "listen",
        max: BLOCKS_MAX,
        document: |lines, _| format!("{lines}\n{OWN}"),
        line: listen,
    },
    List {
        name: "listen",
        max: BLOCKS_MAX,
        document: |lines, _| format!("{APP}tcp {{\nproxy \"app\"\n{lines}\n}}\n"),
        line: listen,
    },
    List {
        name: "listen",
        max: BLOCKS_MAX,
        document: |lines, _| format!("forward {{\n{lines}\n}}\n"),
        line: listen,
    },
    List {
        name: "upstream",
        max: BLOCKS_MAX,
        document: |lines, last| format!("{LISTEN}{lines}\nroute {{ proxy \"u{last}\"; }}\n"),
        line: upstream,
    },
    List {
        name: "upstream",
        max: BLOCKS_MAX,
        document: |lines, last| {
            format!("{LISTEN}{lines}\nroute pool=\"pinned\" {{ proxy \"u{last}\"; }}\n")
        },
        line: upstream,
    },
    List {
        name: "upstream",
        max: BLOCKS_MAX,
        document: |lines, last| {
            format!("{LISTEN}{lines}\nroute {{ proxy \"u0\"; split \"u{last}\" percent=5; }}\n")
        },
        line: upstream,
    },
    List {
        name: "upstream",
        max: BLOCKS_MAX,
        document: |lines, last| {
            format!("{lines}\ntcp {{ listen \"127.0.0.1:2\"; proxy \"u{last}\"; }}\n")
        },
        line: upstream,
    },
    List {
        name: "upstream",
        max: BLOCKS_MAX,
        document: |lines, last| {
            let first = lines.replacen("{ server", &format!("{{ fallback \"u{last}\"; server"), 1);
            format!("{LISTEN}{first}\n{OWN}")
        },
        line: upstream,
    },
    List {
        name: "server",
        max: BLOCKS_MAX,
        document: |lines, _| {
            format!("{LISTEN}upstream \"app\" {{\n{lines}\n}}\nroute {{ proxy \"app\"; }}\n")
        },
        line: server,
    },
    List {
        name: "route",
        max: BLOCKS_MAX,
        document: |lines, _| format!("{LISTEN}{lines}\n"),
        line: |at| format!("route path=\"/{at}\" {{ respond 204; }}"),
    },
    List {
        name: "certificate",
        max: BLOCKS_MAX,
        document: |lines, _| format!("listen \"127.0.0.1:443\" {{ tls {{\n{lines}\n}}; }}\n{OWN}"),
        line: |at| format!("certificate \"/etc/{at}.pem\""),
    },
    List {
        name: "condition",
        max: RULES_MAX,
        document: in_route,
        line: |at| format!("header \"X-{at}\""),
    },
    List {
        name: "path-regex",
        max: RULES_MAX,
        document: in_route,
        line: |at| format!("path-regex \"{at}\""),
    },
    List {
        name: "access",
        max: RULES_MAX,
        document: in_route,
        line: |at| format!("deny \"10.0.0.{at}\""),
    },
    List {
        name: "split",
        max: RULES_MAX,
        document: in_route,
        line: |_| "split \"b\" percent=\"0.25\"".to_owned(),
    },
    List {
        name: "rewrite",
        max: RULES_MAX,
        document: in_route,
        line: |at| format!("rewrite \"^/a{at}\" \"/b\""),
    },
    List {
        name: "edit",
        max: RULES_MAX,
        document: |lines, at| in_route(&format!("request {{\n{lines}\n}}"), at),
        line: |at| format!("add \"X-A\" \"{at}\""),
    },
    List {
        name: "error-page",
        max: RULES_MAX,
        document: in_route,
        line: |_| "error-page \"5xx\" file=\"/etc/sorry.html\"".to_owned(),
    },
    List {
        name: "failover",
        max: FAILOVER_MAX,
        document: |lines, _| {
            let upstream = format!("upstream \"app\" {{\nserver \"127.0.0.1:1\"\n{lines}\n}}\n");
            format!("{LISTEN}{upstream}route {{ proxy \"app\"; }}\n")
        },
        line: |at| format!("failover \"{}\"", 500 + at),
    },
    List {
        name: "limit",
        max: LIMITS_MAX,
        document: |lines, _| format!("{LISTEN}{OWN}shield {{\n{lines}\n}}\n"),
        line: |at| {
            format!("limit \"l{at}\" count=\"requests\" rate=\"10/s\" {{ match path=\"/{at}\"; }}")
        },
    },
];

/// Returns the messages about lists that are too long.
fn too_many(problems: &[Problem]) -> Vec<&str> {
    problems
        .iter()
        .filter(|problem| problem.code == "too-many")
        .map(|problem| problem.message.as_str())
        .collect()
}

#[test]
fn nothing_of_a_list_is_cut_without_a_word() {
    let world =
        World { variables: &|_| None, read: &|_| Ok(b"sorry".to_vec()), experts: Experts::NOBODY };
    for List { name, max, document, line } in LISTS {
        let text = |count: usize| {
            let lines: Vec<String> = (0..count).map(line).collect();
            document(&lines.join("\n"), count - 1)
        };
        let full = parse_in(&text(max), "weir.kdl", world).map(|_| ());
        assert_eq!(full.map_err(|errors| errors.to_string()), Ok(()), "{max} of {name}");
        let errors = parse_in(&text(max + 1), "weir.kdl", world).unwrap_err();
        let said = too_many(errors.problems());
        let wanted = format!("more than {max} of `{name}` in ");
        assert!(said.len() == 1 && said[0].starts_with(&wanted), "{name}: {said:?}");
    }
}

#[test]
fn a_file_of_servers_has_the_limit_of_an_upstream() {
    let text = |count: usize| (0..count).map(|at| server(at) + "\n").collect::<String>();
    assert_eq!(
        parse_servers(text(BLOCKS_MAX).as_bytes(), "a").map(|all| all.len()),
        Ok(BLOCKS_MAX)
    );
    let errors = parse_servers(text(BLOCKS_MAX + 1).as_bytes(), "a").unwrap_err();
    assert_eq!(too_many(errors.problems()), ["more than 10000 of `server` in the file"]);
}
