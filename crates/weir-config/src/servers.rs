//! Lists of servers in files of their own (`servers-from`): text -> servers as they are written. Called when a file has changed, and to check.

use weir_proxy::plan::ServerPlan;

use crate::compile::servers;
use crate::problem::{Errors, Problem};
use crate::tree::Entry;
use crate::{check, json_text, kdl_text, options};

/// The servers of a list: `server` with its options in KDL, or where the name ends in `.json` an array of objects with the same. A list
/// without any is taken for a mistake. Variables are not expanded.
///
/// # Errors
/// The fault of whoever wrote it: everything that is wrong, with places.
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
        problems.push(Problem::of_file("missing-value", "there is no `server` in it"));
    }
    if problems.is_empty() { Ok(all) } else { Err(Errors::new(name, &text, problems)) }
}

#[cfg(test)]
mod tests {
    //! Proves: both forms say the same, and what is wrong is said with its place. How: examples.

    use super::*;

    #[test]
    fn both_forms_say_the_same() {
        let kdl = "server \"10.0.0.1:80\" weight=20\nserver \"app.test:80\" { backup #true; }\n";
        let json = r#" [{"address": "10.0.0.1:80", "weight": 20}, {"address": "app.test:80", "backup": true}] "#;
        let [kdl, json] =
            [(kdl, "a.kdl"), (json, "a.json")].map(|(text, name)| parse_servers(text.as_bytes(), name).unwrap());
        assert_eq!(kdl, json);
        assert_eq!((kdl[0].weight, kdl[0].is_name(), kdl[1].backup, kdl[1].is_name()), (20, false, true, true));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, name, says) in [
            ("server \"10.0.0.1:80\" wait=20", "a", "a:1:22: `wait` is not known in `server`"),
            ("serve \"10.0.0.1:80\"", "a", "a:1:1: `serve` is not known at the top of the file"),
            ("listen \"10.0.0.1:80\"", "a", "`listen` is not known at the top of the file"),
            ("server \"10.0.0.1:80\"\nserver \"10.0.0.1:80\"", "a", "a:2:8: server `10.0.0.1:80` is listed twice"),
            ("server \"${HOME}:80\"", "a", "HOME"),
            ("", "a", "a: there is no `server` in it"),
            ("[]", "a.json", "a.json: there is no `server` in it"),
            ("{}", "a.json", "a.json:1:1: a list in JSON is an array of objects"),
            ("[{\"address\": \"10.0.0.1\"}]", "a.json", "a.json:1:14: `address`: the port is missing"),
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
