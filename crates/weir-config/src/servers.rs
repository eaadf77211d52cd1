//! Lists of servers in separate files (`servers-from`): text -> servers as they are written. Called
//! when a file has changed, and for checks.

use weir_proxy::plan::ServerPlan;

use crate::compile::servers;
use crate::problem::{Errors, Problem};
use crate::tree::{Entry, Scalar, Value};
use crate::{check, json_text, kdl_text, options};

/// Returns the servers of a list: `server` with its options in KDL, or, if the name ends in
/// `.json`, an array of objects with the same options. An empty list is a mistake. Variables are
/// not expanded.
///
/// # Errors
/// The author's fault: everything that is wrong, with places.
pub fn parse_servers(bytes: &[u8], name: &str) -> Result<Vec<ServerPlan>, Errors> {
    let text = String::from_utf8_lossy(bytes);
    let mut problems = Vec::new();
    let entries = if name.to_ascii_lowercase().ends_with(".json") {
        json_text::read_list(&text, "server", &|_| None, &mut problems)
    } else {
        kdl_text::read(&text, &|_| None, &mut problems)
    };
    let mut all = Vec::new();
    if problems.is_empty() {
        let whole = Entry { entries, ..Entry::default() };
        let document = check::check(&options::SERVERS, &whole, &mut problems);
        all = servers(&document, &mut problems);
    }
    if all.is_empty() && problems.is_empty() {
        problems.push(Problem::of_file("missing-value", "the list has no `server`"));
    }
    if problems.is_empty() { Ok(all) } else { Err(Errors::new(name, &text, problems)) }
}

/// Returns one server that is in no file, from its address and options of `server` with their
/// values, as written.
///
/// # Errors
/// The author's fault: the mistakes, in one line each.
pub fn parse_server(address: &str, written: &[(String, String)]) -> Result<ServerPlan, String> {
    let value = |text: &str| vec![Value { scalar: Scalar::Text(text.to_owned()), span: 0..0 }];
    let option = |(name, text): &(String, String)| Entry {
        name: name.clone(),
        values: value(text),
        ..Entry::default()
    };
    let entries = written.iter().map(option).collect();
    let server =
        Entry { name: "server".to_owned(), values: value(address), entries, ..Entry::default() };
    let whole = Entry { entries: vec![server], ..Entry::default() };
    let mut problems = Vec::new();
    let document = check::check(&options::SERVERS, &whole, &mut problems);
    let server = servers(&document, &mut problems).pop();
    let lines = |problem: &Problem| match &problem.help {
        Some(help) => format!("{}: {help}", problem.message),
        None => problem.message.clone(),
    };
    let text = || problems.iter().map(lines).collect::<Vec<_>>().join("\n");
    server.filter(|_| problems.is_empty()).ok_or_else(text)
}

#[cfg(test)]
mod tests {
    //! Proves: both forms are equivalent, and mistakes are reported with their places. How:
    //! examples.

    use super::*;

    #[test]
    fn both_forms_say_the_same() {
        let kdl = "server \"10.0.0.1:80\" weight=20\nserver \"app.test:80\" { backup #true; }\n";
        let json = r#" [
            {"address": "10.0.0.1:80", "weight": 20},
            {"address": "app.test:80", "backup": true}
        ] "#;
        let [kdl, json] = [(kdl, "a.kdl"), (json, "a.json")]
            .map(|(text, name)| parse_servers(text.as_bytes(), name).unwrap());
        assert_eq!(kdl, json);
        assert_eq!(
            (kdl[0].weight, kdl[0].is_name(), kdl[1].backup, kdl[1].is_name()),
            (20, false, true, true)
        );
    }

    #[test]
    fn one_server_says_the_same_as_a_line() {
        let options = [("weight", "20"), ("backup", "on"), ("connections", "2000")];
        let options = options.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let line = b"server \"[::1]:80\" weight=20 backup=#true connections=2000";
        assert_eq!(
            parse_server("[0::1]:80", &options).unwrap(),
            parse_servers(line, "a").unwrap()[0]
        );
        assert!(
            parse_server("unix:/run/a.sock", &[])
                .is_ok_and(|server| server.name == "unix:/run/a.sock")
        );
        for (address, name, text, says) in [
            (
                "10.0.0.1",
                "weight",
                "5",
                "`address`: the port is missing: write 10.0.0.1:80 or another port",
            ),
            ("10.0.0.1:80", "weight", "0", "`weight`: "),
            ("10.0.0.1:80", "weight", "much", "`weight`: "),
            (
                "10.0.0.1:80",
                "wieght",
                "5",
                "`wieght` is not known in `server`: did you mean `weight`?",
            ),
            (
                "10.0.0.1:80",
                "connections-min",
                "40",
                "`connections-min` is 40, but `connections` allows at most 32",
            ),
            (
                "original-destination",
                "weight",
                "5",
                "`original-destination` cannot be in a list of servers",
            ),
            ("/run/a.sock", "weight", "5", "write a unix socket as unix:/run/a.sock"),
            ("", "weight", "5", "`address`: "),
        ] {
            let said = parse_server(address, &[(name.to_owned(), text.to_owned())]).unwrap_err();
            assert!(said.contains(says), "{said}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, name, says) in [
            ("server \"10.0.0.1:80\" wait=20", "a", "a:1:22: `wait` is not known in `server`"),
            ("serve \"10.0.0.1:80\"", "a", "a:1:1: `serve` is not known at the top of the file"),
            ("listen \"10.0.0.1:80\"", "a", "`listen` is not known at the top of the file"),
            (
                "server \"10.0.0.1:80\"\nserver \"10.0.0.1:80\"",
                "a",
                "a:2:8: server `10.0.0.1:80` is listed twice",
            ),
            ("server \"${HOME}:80\"", "a", "HOME"),
            ("", "a", "a: the list has no `server`"),
            ("[]", "a.json", "a.json: the list has no `server`"),
            ("{}", "a.json", "a.json:1:1: a list in JSON is an array of objects"),
            (
                "[{\"address\": \"10.0.0.1\"}]",
                "a.json",
                "a.json:1:14: `address`: the port is missing",
            ),
            ("[{\"address\": \"10.0.0.1:80\"}", "a.json", "EOF"),
            ("[{\"address\": \"10.0.0.1:80\"}] x", "a.json", "trailing"),
            ("server \"10.0", "a", "a:1:"),
        ] {
            let said = parse_servers(text.as_bytes(), name).unwrap_err().to_string();
            assert!(said.contains(says), "{said}");
        }
        assert!(parse_servers(b"\xff\xfe", "a").is_err());
    }
}
