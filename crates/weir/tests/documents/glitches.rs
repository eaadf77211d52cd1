//! Checks the page about status against the kinds of glitches in the code.

use weir_proxy::observe::glitch::{ClientGlitch, UpstreamGlitch};

use super::markdown::tables_of;
use super::read;

#[test]
fn every_glitch_is_in_its_page() {
    let page = read("docs/status-glitches.md");
    let row = |word: &str, help: &str| vec![format!("`{word}`"), help.to_owned()];
    let clients: Vec<Vec<String>> =
        ClientGlitch::ALL.iter().map(|(_, word, help)| row(word, help)).collect();
    let servers: Vec<Vec<String>> =
        UpstreamGlitch::ALL.iter().map(|(_, word, help)| row(word, help)).collect();
    assert_eq!(tables_of(&page, &["by a client", "what happened"]), [clients]);
    assert_eq!(tables_of(&page, &["by a server", "what happened"]), [servers]);
}
