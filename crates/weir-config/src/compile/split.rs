//! `split` of `route`: the share of its requests for each upstream. Called by [`super::route`].

use weir_proxy::placement::balance::Key;
use weir_proxy::plan::UpstreamPlan;
use weir_proxy::request::rules::split::{Split, WHOLE};

use super::names::Names;
use super::route::RULES_MAX;
use super::{Compiler, pool};
use crate::check::Checked;
use crate::problem::Problem;
use crate::texts::route::hundredths;

/// Returns the shares of a route whose other requests are sent to `rest`; None: it has none, or
/// they are wrong.
pub(super) fn split(
    compiler: &mut Compiler<'_>,
    route: &Checked,
    rest: usize,
    names: &Names<'_>,
    upstreams: &mut Vec<UpstreamPlan>,
) -> Option<Split> {
    compiler.at_most(route, "split", RULES_MAX);
    let key = route.text("split-by");
    let mut parts: Vec<(u32, usize)> = Vec::new();
    for block in route.all("split").take(RULES_MAX) {
        let upstream = compiler.upstream_named(block, "upstream", names)?;
        if block.text("upstream") == route.text("proxy") {
            let message =
                format!("`{}` already gets all requests that no `split` takes", names.at(upstream));
            compiler.push(
                Problem::new("conflict", &block.place("upstream"), message)
                    .help("name another upstream"),
            );
            return None;
        }
        // A wrong number has been reported.
        let share = hundredths(block.text("percent"))?;
        let upstream = pool::pooled(compiler, route, upstream, upstreams);
        parts.push((share, upstream));
        if parts.iter().map(|(share, _)| share).sum::<u32>() > WHOLE {
            let message = "the shares of a route add up to more than 100 percent";
            compiler.push(Problem::new("conflict", &block.place("percent"), message));
            return None;
        }
    }
    if parts.is_empty() && !key.is_empty() {
        let message = "`split-by` has an effect only with `split`";
        let help = "split \"canary\" percent=5";
        compiler.push(Problem::new("conflict", &route.place("split-by"), message).help(help));
    }
    (!parts.is_empty()).then(|| Split::new(&parts, rest, key_of(key)))
}

/// Returns the key of requests with this name.
pub(super) fn key_of(text: &str) -> Option<Key> {
    match text.split_once(':') {
        _ if text.is_empty() => None,
        Some(("header", name)) => Some(Key::Header(name.to_owned())),
        Some((_, name)) => Some(Key::Cookie(name.to_owned())),
        None => Some(if text == "uri" { Key::Uri } else { Key::ClientIp }),
    }
}
