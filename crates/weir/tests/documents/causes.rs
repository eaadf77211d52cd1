//! Checks the pages about causes and ends against the words in the code.

use std::collections::BTreeSet;

use weir_proxy::cause::Cause;
use weir_proxy::cross::doubt::Doubt;
use weir_proxy::ending::{
    ClientEnd, FlowEnd, Held, ServerTlsFailure, Timeout, TlsFailure, UpstreamEnd,
};
use weir_proxy::observe::kinds::Kinds;

use super::markdown::tables_of;
use super::read;

/// Returns the rows of the tables with this head: the first two cells of each, without backticks.
fn told(page: &str, head: &[&str]) -> Vec<(String, String)> {
    let rows = tables_of(&read(page), head).concat();
    rows.iter().map(|row| (row[0].trim_matches('`').to_owned(), row[1].clone())).collect()
}

/// Returns the words of the tables with this head, and fails if a word has two rows.
fn told_words(head: &[&str]) -> BTreeSet<String> {
    let all = told("docs/ends.md", head);
    let words: BTreeSet<String> = all.iter().map(|(word, _)| word.clone()).collect();
    assert_eq!(words.len(), all.len(), "a word under {head:?} has two rows");
    words
}

fn words<K: Kinds>(of: impl IntoIterator<Item = K>) -> BTreeSet<String> {
    of.into_iter().map(|kind| kind.word().to_owned()).collect()
}

#[test]
fn every_cause_is_in_its_page_with_its_status() {
    let rows = told("docs/causes.md", &["word", "status", "what is wrong"]);
    let rows = rows.into_iter().chain(told("docs/causes.md", &["word", "status", "what happened"]));
    let rows: Vec<(String, String)> = rows.collect();
    let known: BTreeSet<(String, String)> = Cause::all()
        .iter()
        .map(|cause| (cause.word().to_owned(), cause.status().to_string()))
        .collect();
    assert_eq!(rows.len(), known.len(), "a word has no row or two rows");
    assert_eq!(rows.into_iter().collect::<BTreeSet<_>>(), known);
}

#[test]
fn every_end_is_in_its_page() {
    assert_eq!(told_words(&["end of a client connection", "meaning"]), words(ClientEnd::all()));
    assert_eq!(told_words(&["end of a connection of tcp", "meaning"]), words(FlowEnd::all()));
    assert_eq!(told_words(&["TLS failure of a client", "meaning"]), words(TlsFailure::all()));
    assert_eq!(told_words(&["TLS failure of a server", "meaning"]), words(ServerTlsFailure::all()));
    assert_eq!(told_words(&["doubt as the end", "what the server did"]), words(Doubt::all()));
    assert_eq!(told_words(&["deadline", "what did not happen in time"]), words(Timeout::all()));
    assert_eq!(told_words(&["first packet", "what became of it"]), words(Held::all()));
}

#[test]
fn the_page_says_which_ends_tell_something_about_a_server() {
    let all = UpstreamEnd::all();
    let is_own = |end: &UpstreamEnd| !matches!(end, UpstreamEnd::Doubt(_) | UpstreamEnd::Tls(_));
    let own =
        |tells: bool| words(all.iter().copied().filter(|end| is_own(end) && end.tells() == tells));
    assert_eq!(told_words(&["end that says something about the server", "meaning"]), own(true));
    assert_eq!(told_words(&["end that says nothing about the server", "meaning"]), own(false));
}
