//! `original-destination`: the options that such an upstream cannot have, and the requests that may
//! use it. Called by [`super::tcp`], when it is known which upstreams are for connections that are
//! passed on unchanged. docs/transparent.md.

use weir_proxy::plan::{ORIGINAL_DESTINATION, UpstreamPlan};

use super::Compiler;
use super::pool::shared;
use crate::check::Checked;
use crate::problem::{Problem, Span};

/// Blocks of an upstream that judge or choose servers, and why they cannot here.
const OF_SERVERS: [(&str, &str); 3] = [
    ("failover", "what one of them does says nothing of the others"),
    ("sticky", "where a client goes is what he has connected to"),
    ("tls", "nobody has said what the names in their certificates are; weir passes TLS on in a `tcp`"),
];

/// Returns the server of an upstream that is the original destination of its client.
pub(super) fn original(upstream: &Checked) -> Option<&Checked> {
    upstream.all("server").find(|server| server.text("address") == ORIGINAL_DESTINATION)
}

/// Checks all upstreams with such a server; `blocks` are those of the plans.
pub(super) fn check(compiler: &mut Compiler<'_>, document: &Checked, blocks: &[&Checked], upstreams: &[UpstreamPlan]) {
    for (block, plan) in blocks.iter().zip(upstreams) {
        let Some(server) = original(block) else { continue };
        let place = server.place("address");
        let problem = |wrong: &str| Problem::new("conflict", &place, format!("`{ORIGINAL_DESTINATION}`: {wrong}"));
        if block.all("server").nth(1).is_some() || !block.text("servers-from").is_empty() {
            compiler.push(problem("it is where each client goes by itself, and others can't be beside it"));
        } else if block.all("health").next().is_some() {
            compiler.push(problem("it is many servers, and `health` can't ask them"));
        } else if !plan.is_tcp() {
            check_for_requests(compiler, document, block, plan, (&place, problem));
        }
    }
}

/// Checks one that requests are sent to.
fn check_for_requests(
    compiler: &mut Compiler<'_>,
    document: &Checked,
    block: &Checked,
    plan: &UpstreamPlan,
    (place, problem): (&Span, impl Fn(&str) -> Problem),
) {
    for (word, why) in OF_SERVERS {
        if let Some(inner) = block.all(word).next() {
            let message = format!("`{word}` can't be: `{ORIGINAL_DESTINATION}` is many servers, and {why}");
            compiler.push(Problem::new("conflict", &inner.span, message).help("leave it out"));
        }
    }
    if !plan.pool.is_private() {
        let why = format!("those of `{}` lead to where each has connected to", plan.name);
        compiler.push(shared(block, plan.pool, &why));
    }
    if let Some(other) = document.all("upstream").find(|other| other.text("fallback") == plan.name) {
        let message =
            format!("`{}` leads to where clients have connected to, and can't stand in for others", plan.name);
        compiler.push(Problem::new("conflict", &other.place("fallback"), message).help("lead a route there"));
    }
    let transparent = || document.all("listen").filter(|listen| listen.flag("transparent"));
    if let Some(tls) = transparent().find_map(|listen| listen.all("tls").next()) {
        let message =
            format!("clients speak TLS here, and `{ORIGINAL_DESTINATION}` would be asked in plain text for them");
        let problem = Problem::new("conflict", &tls.span, message).related(place, "here");
        compiler.push(
            problem.help("write the `listen` into a `tcp`, which passes TLS on, or name servers in the upstream"),
        );
    }
    if transparent().next().is_none() {
        let wrong = "clients of each `listen` here have connected to this machine, and it is to ask where they have connected to";
        let help = "write `transparent=#true` behind `listen`, and lead clients' packets here (docs/transparent.md)";
        compiler.push(problem(wrong).help(help));
    }
}
