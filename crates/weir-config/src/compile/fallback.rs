//! `fallback` of `upstream`: which upstream stands in for which. Called by [`super::compile`].

use weir_proxy::plan::{AllDown, UpstreamPlan};

use super::Compiler;
use crate::check::Checked;
use crate::problem::Problem;

/// Notes in each upstream which other one stands in for it. Chains end, and connections of one belong to clients where those of the
/// other do.
pub(super) fn fallbacks(compiler: &mut Compiler<'_>, document: &Checked, upstreams: &mut [UpstreamPlan]) {
    let blocks: Vec<&Checked> = document.all("upstream").take(upstreams.len()).collect();
    let names: Vec<&str> = blocks.iter().map(|block| block.text("name")).collect();
    for (at, block) in blocks.iter().enumerate() {
        let Some(next) = compiler.upstream_named(block, "fallback", &names) else { continue };
        let (name, other) = (names[at], names[next]);
        let problem = |message: String| Problem::new("conflict", &block.place("fallback"), message);
        let mut chain = if next == at { vec![at] } else { vec![at, next] };
        while let Some(further) = chain.last().and_then(|last| upstreams[*last].fallback())
            && !chain.contains(&further)
        {
            chain.push(further);
        }
        let end = chain.last().copied().unwrap_or(next);
        if next == at || upstreams[end].fallback().is_some() {
            let way: Vec<&str> = chain.iter().map(|at| names[*at]).chain([name]).collect();
            let message = format!("requests would go round: {}", way.join(" -> "));
            compiler.push(problem(message).help("let one of them have no `fallback`"));
            continue;
        }
        if upstreams[at].pool.is_private() != upstreams[next].pool.is_private() {
            let [this, that] = [at, next].map(|at| upstreams[at].pool.word());
            let message =
                format!("`{other}` has `pool {that}` and `{name}` has `pool {this}`: one can't stand in for the other");
            let help = "connections of both belong to clients (`pinned`, `per-request`), or of none";
            compiler.push(problem(message).help(help));
            continue;
        }
        if block.word("all-down") == "refuse" {
            let message =
                "`all-down` has no effect with `fallback`, which has the requests when all servers are suspended";
            compiler.push(Problem::new("conflict", &block.place("all-down"), message));
        }
        upstreams[at].all_down = AllDown::Fallback(next);
    }
}

impl Compiler<'_> {
    /// The index of the upstream that an option names. None: there is none, which is reported, or the option does not stand there.
    pub(super) fn upstream_named(&mut self, block: &Checked, option: &str, names: &[&str]) -> Option<usize> {
        let name = block.text(option);
        let target = names.iter().position(|other| *other == name);
        // A missing or wrong name has been reported already.
        if target.is_none() && !name.is_empty() {
            self.push(super::route::unknown_upstream(block, option, names));
        }
        target
    }
}
