//! `fallback` of `upstream`: the stand-in of each upstream. Called by [`super::compile`].

use weir_proxy::plan::{AllDown, UpstreamPlan};

use super::Compiler;
use super::names::Names;
use crate::check::Checked;
use crate::problem::Problem;

/// Upstreams in a chain of fallbacks, including the first: a request may try all of them.
const CHAIN_MAX: usize = 16;

/// Notes the fallback in each upstream. Chains end, and if connections of an upstream belong to
/// clients, those of its fallback do as well.
pub(super) fn fallbacks(
    compiler: &mut Compiler<'_>,
    document: &Checked,
    upstreams: &mut [UpstreamPlan],
) {
    let blocks: Vec<&Checked> = document.all("upstream").take(upstreams.len()).collect();
    let names = &Names::of_upstreams(document);
    for (at, block) in blocks.iter().enumerate() {
        let Some(next) = compiler.upstream_named(block, "fallback", names) else { continue };
        let (name, other) = (names.at(at), names.at(next));
        let problem = |message: String| Problem::new("conflict", &block.place("fallback"), message);
        let mut chain = if next == at { vec![at] } else { vec![at, next] };
        while let Some(further) = chain.last().and_then(|last| upstreams[*last].fallback())
            && !chain.contains(&further)
            && chain.len() <= CHAIN_MAX
        {
            chain.push(further);
        }
        let end = chain.last().copied().unwrap_or(next);
        let is_circle =
            next == at || upstreams[end].fallback().is_some_and(|further| chain.contains(&further));
        if is_circle {
            let way: Vec<&str> = chain.iter().map(|at| names.at(*at)).chain([name]).collect();
            let message = format!("`fallback` forms a loop: {}", way.join(" -> "));
            compiler.push(problem(message).help("remove `fallback` from one of them"));
            continue;
        }
        if upstreams[at].pool.is_private() != upstreams[next].pool.is_private() {
            let [this, that] = [at, next].map(|at| upstreams[at].pool.word());
            let message = format!(
                "`{other}` has `pool {that}` and `{name}` has `pool {this}`: one cannot be the \
                    fallback of the other"
            );
            let help = "use `pinned` or `per-request` for both, or for neither";
            compiler.push(problem(message).help(help));
            continue;
        }
        if block.word("all-down") == "refuse" {
            let message = "`all-down` has no effect with `fallback`, which gets the requests when \
                all servers are suspended";
            compiler.push(Problem::new("conflict", &block.place("all-down"), message));
        }
        upstreams[at].all_down = AllDown::Fallback(next);
    }
    check_length(compiler, &blocks, upstreams);
}

/// Cuts chains that are too long, so that each walk along one ends soon.
fn check_length(compiler: &mut Compiler<'_>, blocks: &[&Checked], upstreams: &mut [UpstreamPlan]) {
    for (at, block) in blocks.iter().enumerate() {
        if std::iter::successors(Some(at), |at| upstreams[*at].fallback()).nth(CHAIN_MAX).is_none()
        {
            continue;
        }
        let message = format!("more than {CHAIN_MAX} upstreams in a chain of `fallback`");
        let help =
            "merge the servers of some, or let `fallback` name one nearer to the end of the chain";
        compiler.push(Problem::new("too-many", &block.place("fallback"), message).help(help));
        upstreams[at].all_down = AllDown::TryAll;
    }
}
