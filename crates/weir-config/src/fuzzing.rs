//! What holds for any text at all. Called by the fuzz target `config` and by property tests; no network is touched.

use std::io;
use std::path::Path;

use crate::{Config, Errors, Experts, World, parse_in};

/// What fuzzing and its smoke test check of any bytes: nothing panics, errors can be drawn, and an accepted
/// configuration prints KDL and JSON that read back to the same plan. No name is looked up.
pub fn config(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let variables = |name: &str| (name == "V").then(|| "1${V}".to_owned());
    for name in ["fuzz.kdl", "fuzz.json"] {
        match parse_in(&text, name, World { variables: &variables, ..WORLD }) {
            Err(errors) => assert!(!errors.render(false, 80).is_empty() && !errors.to_json().is_null()),
            Ok(config) => assert_reads_back(&config),
        }
    }
}

/// Checks a configuration without a look at the world: every file is good.
///
/// # Errors
/// What is wrong with the text alone.
pub(crate) fn check(text: &str) -> Result<Config, Errors> {
    parse_in(text, "imported.kdl", WORLD)
}

const WORLD: World<'static> = World { variables: &|_| None, read: &any_file, experts: Experts::NOBODY };

/// Every file can be read and has one name in it.
fn any_file(_: &Path) -> io::Result<Vec<u8>> {
    Ok(b"# names\nblocked.example\n".to_vec())
}

/// Panics unless both printed forms give the same plan and the same print.
pub fn assert_reads_back(config: &Config) {
    let plan = format!("{:?} {:?} {:?}", config.plan, config.workers, config.io);
    for (name, text) in [("printed.kdl", config.tree.to_kdl()), ("printed.json", config.tree.to_json())] {
        let again = parse_in(&text, name, WORLD).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
        assert_eq!(plan, format!("{:?} {:?} {:?}", again.plan, again.workers, again.io), "{text}");
        assert_eq!(config.tree.to_kdl(), again.tree.to_kdl(), "{text}");
    }
}
