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
    ("failover", "failures of one say nothing about the others"),
    ("sticky", "each client goes to the one that it connected to"),
    ("tls", "the names in their certificates are unknown; use `tcp`, which forwards TLS unchanged"),
];

/// Returns the server of an upstream that is the original destination of its client.
pub(super) fn original(upstream: &Checked) -> Option<&Checked> {
    upstream.all("server").find(|server| server.text("address") == ORIGINAL_DESTINATION)
}

/// Checks all upstreams with such a server; `blocks` are those of the plans.
pub(super) fn check(
    compiler: &mut Compiler<'_>,
    document: &Checked,
    blocks: &[&Checked],
    upstreams: &[UpstreamPlan],
) {
    for (block, plan) in blocks.iter().zip(upstreams) {
        let Some(server) = original(block) else { continue };
        let place = server.place("address");
        let problem = |wrong: &str| {
            Problem::new("conflict", &place, format!("`{ORIGINAL_DESTINATION}`: {wrong}"))
        };
        if block.all("server").nth(1).is_some() || !block.text("servers-from").is_empty() {
            compiler.push(problem(
                "it is the destination of each client, so its upstream can have no other servers",
            ));
        } else if block.all("health").next().is_some() {
            compiler.push(problem("it represents many servers, which `health` cannot probe"));
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
            let message = format!(
                "`{word}` cannot be used here: `{ORIGINAL_DESTINATION}` represents many servers, \
                    and {why}"
            );
            compiler.push(Problem::new("conflict", &inner.span, message).help("leave it out"));
        }
    }
    if !plan.pool.is_private() {
        let why = format!("those of `{}` go to the original destination of each client", plan.name);
        compiler.push(shared(block, plan.pool, &why));
    }
    if let Some(other) = document.all("upstream").find(|other| other.text("fallback") == plan.name)
    {
        let message = format!(
            "`{}` leads to the original destination of each client, so it cannot be a fallback",
            plan.name
        );
        compiler.push(
            Problem::new("conflict", &other.place("fallback"), message)
                .help("use it in `proxy` of a route"),
        );
    }
    let transparent = || document.all("listen").filter(|listen| listen.flag("transparent"));
    if let Some(tls) = transparent().find_map(|listen| listen.all("tls").next()) {
        let message = format!(
            "clients speak TLS here, but weir would send plain text to `{ORIGINAL_DESTINATION}`"
        );
        let problem = Problem::new("conflict", &tls.span, message).related(place, "here");
        compiler.push(problem.help(
            "move the `listen` into a `tcp`, which forwards TLS unchanged, or name \
                    servers in the upstream",
        ));
    }
    if transparent().next().is_none() {
        let wrong = "it needs a `listen` with `transparent=#true`: clients of all others have \
            connected to this machine";
        let help = "add `transparent=#true` to `listen`, and route the clients' packets to this \
            machine (docs/transparent.md)";
        compiler.push(problem(wrong).help(help));
    }
}
