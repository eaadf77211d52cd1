//! `route`: which requests it is for and where they go. Called by [`super::compile`].

use weir_proxy::plan::UpstreamPlan;
use weir_proxy::request::route::{HostMatch, Route, RouteTable};

use super::{BLOCKS_MAX, Compiler, pool};
use crate::check::Checked;
use crate::problem::{Problem, Span, nearest};

impl Compiler<'_> {
    /// Those with a pool of their own get an upstream of their own, behind all others.
    pub(super) fn routes(&mut self, document: &Checked, upstreams: &mut Vec<UpstreamPlan>) -> RouteTable {
        let names: Vec<&str> = document.all("upstream").map(|upstream| upstream.text("name")).collect();
        let mut routes: Vec<(Route, Span)> = Vec::new();
        for block in document.all("route").take(BLOCKS_MAX) {
            let Some(target) = self.target(block, &names) else { continue };
            let target = match pool::pool(block.word("pool")) {
                Some(pool) => pool::derived(upstreams, target, pool),
                None => target,
            };
            let methods = block.texts("methods");
            let route = Route {
                host: host_match(block.text("host")),
                path: block.text("path").to_owned(),
                methods: (!methods.is_empty()).then(|| methods.iter().map(|one| (*one).to_owned()).collect()),
                target,
                ..Route::default()
            };
            if let Some((_, span)) = routes.iter().find(|(other, _)| hides(other, &route)) {
                let message = "this route is never reached: an earlier one takes the same host, path and methods";
                self.push(Problem::new("conflict", &block.span, message).related(span, "the earlier one"));
            }
            routes.push((route, block.span.clone()));
        }
        RouteTable::new(routes.into_iter().map(|(route, _)| route).collect())
    }

    fn target(&mut self, block: &Checked, names: &[&str]) -> Option<usize> {
        let name = block.text("proxy");
        let target = names.iter().position(|other| *other == name);
        // A missing or wrong name has been reported already.
        if target.is_none() && !name.is_empty() {
            let problem =
                Problem::new("unknown-upstream", &block.place("proxy"), format!("there is no upstream `{name}`"));
            self.push(match nearest(name, names.iter().copied()) {
                Some(known) => problem.help(format!("did you mean `{known}`?")),
                None => problem.help(format!("define it: upstream \"{name}\" {{ server \"127.0.0.1:9090\" }}")),
            });
        }
        target
    }
}

fn host_match(text: &str) -> HostMatch {
    match text {
        "*" => HostMatch::Any,
        _ if text.starts_with("*.") => HostMatch::Suffix(text.to_owned()),
        _ => HostMatch::Exact(text.to_owned()),
    }
}

/// Whether the earlier route takes everything that the later one is for, at the same host and path.
fn hides(earlier: &Route, later: &Route) -> bool {
    let methods = match (&earlier.methods, &later.methods) {
        (None, None) => true,
        (Some(earlier), Some(later)) => later.iter().all(|method| earlier.contains(method)),
        _ => false,
    };
    methods && earlier.host == later.host && earlier.path == later.path
}
