//! `request-id` and `trace-context` of `client`, with everything that concerns the fields that they
//! set. Called by [`super::compile`].

use weir_proxy::request::identity::{TRACE_PARENT, TRACE_STATE};
use weir_proxy::request::rules::edits::{Side, refusal};

use super::Compiler;
use crate::check::Checked;
use crate::problem::{Problem, Span};

/// Checks that no other option uses the fields that they set, and that their names have a meaning.
pub(super) fn check_identity(compiler: &mut Compiler<'_>, document: &Checked) {
    let Some(client) = document.all("client").next() else { return };
    let (name, traces) = (client.text("request-id"), client.flag("trace-context"));
    if let Some(why) = refusal(name, Side::Request, true).filter(|_| !name.is_empty()) {
        compiler.push(Problem::new(
            "bad-value",
            &client.place("request-id"),
            format!("`{name}` cannot be used here: {why}"),
        ));
    }
    let id = Some(("request-id", name)).filter(|_| !name.is_empty());
    let trace = [TRACE_PARENT, TRACE_STATE]
        .map(|name| ("trace-context", name))
        .into_iter()
        .filter(|_| traces);
    for (option, name) in id.into_iter().chain(trace) {
        for span in others(document, name) {
            let message = format!("`{name}` is set by `{option}` of `client`");
            compiler.push(
                Problem::new("conflict", &span, message).related(&client.place(option), "here"),
            );
        }
    }
    for (option, word, is_known) in
        [("request-id", "request_id", id.is_some()), ("trace-context", "trace_id", traces)]
    {
        for (block, row) in
            texts(document).filter(|(block, row)| !is_known && names(block.text(row), word))
        {
            let message = format!("`${word}` has no value without `{option}` in `client`");
            compiler.warnings.push(Problem::new("no-effect", &block.place(row), message));
        }
    }
}

/// Returns the other places that set or remove a field of requests.
fn others(document: &Checked, name: &str) -> Vec<Span> {
    let is = |block: &&Checked, row: &str| block.text(row).eq_ignore_ascii_case(name);
    let requests = document.all("route").flat_map(|route| route.all("request"));
    let edits = requests.flat_map(|request| request.all("edit")).filter(|edit| is(edit, "name"));
    let pipelines = document.all("upstream").flat_map(|upstream| upstream.all("pipeline"));
    let echoes = pipelines.filter(|pipeline| is(pipeline, "echo"));
    edits
        .map(|edit| edit.place("name"))
        .chain(echoes.map(|pipeline| pipeline.place("echo")))
        .collect()
}

/// Returns all texts with names of requests: the block, and the option in it.
fn texts(document: &Checked) -> impl Iterator<Item = (&Checked, &'static str)> {
    let routes = || document.all("route");
    let edited = |name: &'static str| {
        routes()
            .flat_map(move |route| route.all(name))
            .flat_map(|block| block.all("edit"))
            .map(|edit| (edit, "value"))
    };
    let redirects =
        routes().flat_map(|route| route.all("redirect")).map(|redirect| (redirect, "to"));
    let logs = document.all("access-log").map(|log| (log, "format"));
    edited("request").chain(edited("answer")).chain(redirects).chain(logs)
}

/// Whether a text contains this name.
fn names(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let bare = text
        .match_indices(&format!("${word}"))
        .any(|(at, found)| !text[at + found.len()..].starts_with(is_part));
    bare || text.contains(&format!("${{{word}}}"))
}
