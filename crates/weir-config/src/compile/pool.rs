//! `pool` of upstreams and routes: a route with another pool than its upstream gets its own
//! upstream, derived from that. Called by [`super::compile`].

use std::collections::{HashMap, HashSet};
use std::path::Path;

use weir_proxy::plan::{
    AllDown, Dial, PipelineMode, PipelineState, Pool, ProxyProtocol, Source, UpstreamPlan,
};

use super::tcp::is_unusual;
use super::{Compiler, sockets};
use crate::check::Checked;
use crate::problem::Problem;

/// Returns the pool of a word.
pub(super) fn pool(word: &str) -> Option<Pool> {
    [Pool::Pipelined, Pool::Shared, Pool::Pinned, Pool::PerRequest, Pool::Fresh]
        .into_iter()
        .find(|pool| pool.word() == word)
}

/// Returns the file for verdicts on servers.
pub(super) fn pipeline_state(compiler: &mut Compiler<'_>, document: &Checked) -> PipelineState {
    let path = match document.text_or_word("pipeline-state") {
        // A wrong path has been reported.
        "auto" | "" => return PipelineState::Auto,
        "off" => return PipelineState::Off,
        path => Path::new(path),
    };
    if let Err(why) = (compiler.world.experts.keeps)(path) {
        let message = format!(
            "weir cannot remember across restarts which servers it must not pipeline to: {why}"
        );
        let help = "choose a separate file in a directory that belongs to weir's user, such as \
            /var/lib/weir/pipelining";
        let problem = Problem::new("unwritable", &document.place("pipeline-state"), message);
        compiler.warnings.push(problem.help(help));
    }
    PipelineState::File(path.into())
}

/// Returns the header at the start of connections, by a word of the configuration.
fn proxy_protocol(word: &str) -> Option<ProxyProtocol> {
    match word {
        "v1" => Some(ProxyProtocol::V1),
        "v2" => Some(ProxyProtocol::V2),
        _ => None,
    }
}

/// Returns how connections to the servers of an upstream are made.
pub(super) fn dial(block: &Checked) -> Dial {
    let source = match block.text("source") {
        "client" => Source::Client,
        text => text.parse().map_or(Source::Route, Source::Address),
    };
    let proxy_protocol = proxy_protocol(block.word("proxy-protocol"));
    Dial {
        proxy_protocol,
        source,
        congestion: sockets::congestion(block),
        tuning: sockets::tuning(block),
    }
}

/// By index of an upstream and word of a pool: the index of the upstream that was derived from it
/// with this pool.
pub(super) type Derived = HashMap<(usize, &'static str), usize>;

/// Returns the index of the upstream that has the same servers in this mode; it is added if need
/// be.
fn derived(
    known: &mut Derived,
    upstreams: &mut Vec<UpstreamPlan>,
    target: usize,
    pool: Pool,
) -> usize {
    let base = &upstreams[target];
    if base.pool == pool {
        return target;
    }
    if let Some(known) = known.get(&(target, pool.word())) {
        return *known;
    }
    // Names of upstreams have neither spaces nor parentheses.
    let name = format!("{} ({})", base.name, pool.word());
    let pipeline = match (Pool::PIPELINED.contains(&pool), Pool::PIPELINED.contains(&base.pool)) {
        (true, true) => base.pipeline,
        (true, false) => PipelineMode::Adaptive,
        (false, _) => PipelineMode::Off,
    };
    let plan = UpstreamPlan { name, pool, pipeline, ..base.clone() };
    // Its fallback has the same pool. Chains end.
    let all_down = plan
        .fallback()
        .map(|fallback| AllDown::Fallback(derived(known, upstreams, fallback, pool)));
    let plan = UpstreamPlan { all_down: all_down.unwrap_or(plan.all_down), ..plan };
    upstreams.push(plan);
    known.insert((target, pool.word()), upstreams.len() - 1);
    upstreams.len() - 1
}

/// Returns the index of the upstream for the requests that a route leads to this one: with the pool
/// of the route, if it has one.
pub(super) fn pooled(
    compiler: &mut Compiler<'_>,
    route: &Checked,
    target: usize,
    upstreams: &mut Vec<UpstreamPlan>,
) -> usize {
    let Some(pool) = self::pool(route.word("pool")) else { return target };
    check_counted(compiler, route, &upstreams[target], pool);
    // Chains end.
    let mut next = Some(target);
    while let Some(upstream) = next.map(|at| &upstreams[at]) {
        check_shared(compiler, route, upstream, pool);
        next = upstream.fallback();
    }
    derived(&mut compiler.derived, upstreams, target, pool)
}

/// Reports connections that name a client, or lead to its original destination, but would carry
/// other clients' requests. `block` has the pool.
fn check_shared(compiler: &mut Compiler<'_>, block: &Checked, upstream: &UpstreamPlan, pool: Pool) {
    if upstream.is_destination() && !pool.is_private() {
        let why =
            format!("those of `{}` go to the original destination of each client", upstream.name);
        compiler.push(shared(block, pool, &why));
    } else {
        check_announced(compiler, block, upstream, pool);
    }
}

/// Reports connections that name a client but would carry other clients' requests. `block` has the
/// pool.
pub(super) fn check_announced(
    compiler: &mut Compiler<'_>,
    block: &Checked,
    upstream: &UpstreamPlan,
    pool: Pool,
) {
    let by = match &upstream.dial {
        Dial { proxy_protocol: Some(_), .. } => "`proxy-protocol` makes each one to",
        Dial { source: Source::Client, .. } => "`source \"client\"` makes each one to",
        _ => return,
    };
    if !pool.is_private() {
        compiler.push(shared(block, pool, &format!("{by} `{}` name one client", upstream.name)));
    }
}

/// Reports connections that `concurrency` of servers does not count, beside those that it does.
/// `block` has the pool.
pub(super) fn check_counted(
    compiler: &mut Compiler<'_>,
    block: &Checked,
    upstream: &UpstreamPlan,
    pool: Pool,
) {
    let is_beside = pool != upstream.pool || pool == Pool::Fresh;
    if is_beside && upstream.servers.iter().any(|server| server.concurrency.is_some()) {
        let message = format!(
            "`pool {}` makes connections that `concurrency` in `{}` does not count",
            pool.word(),
            upstream.name
        );
        compiler.push(
            Problem::new("conflict", &block.place("pool"), message)
                .help("leave out `pool` or `concurrency`"),
        );
    }
}

/// Returns the problem that clients would share connections. `block` has the pool.
pub(super) fn shared(block: &Checked, pool: Pool, why: &str) -> Problem {
    let message = format!("with `pool {}`, clients share connections, but {why}", pool.word());
    Problem::new("conflict", &block.place("pool"), message).help("use `pinned` or `per-request`")
}

impl Compiler<'_> {
    /// Reports options for kept connections if none are kept.
    pub(super) fn check_private(&mut self, document: &Checked) {
        let is_kept =
            |route: &&Checked| pool(route.word("pool")).is_some_and(|pool| !pool.is_private());
        let kept: HashSet<&str> =
            document.all("route").filter(is_kept).map(|route| route.text("proxy")).collect();
        for upstream in document.all("upstream") {
            let is_private = pool(upstream.word("pool")).is_some_and(Pool::is_private);
            if !is_private || kept.contains(upstream.text("name")) {
                continue;
            }
            let of_server = ["connections-min", "connections", "connections-max", "concurrency"];
            let servers =
                upstream.all("server").flat_map(|server| of_server.map(|name| server.chosen(name)));
            let of_queue = ["queue-size", "queue-timeout"].map(|name| upstream.chosen(name));
            let all = servers.chain(of_queue).flatten();
            for chosen in all.filter(|chosen| is_unusual(chosen)) {
                let message = format!(
                    "`{}` has no effect with `pool {}`: weir opens connections when clients \
                        need them",
                    chosen.row.name,
                    upstream.word("pool")
                );
                let place = chosen.span.as_ref().unwrap_or(&upstream.span);
                self.push(
                    Problem::new("conflict", place, message)
                        .help("limit clients instead, with `connections` and `queue` in `client`"),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: each word means its pool, and derived upstreams are made once. How: examples.

    use weir_proxy::plan::ServerPlan;

    use super::*;

    #[test]
    fn words_and_derived_upstreams() {
        assert_eq!(pool("pinned"), Some(Pool::Pinned));
        assert_eq!(pool("fresh"), Some(Pool::Fresh));
        assert_eq!(pool(""), None);
        assert_eq!(
            ["v1", "v2", ""].map(proxy_protocol),
            [Some(ProxyProtocol::V1), Some(ProxyProtocol::V2), None]
        );
        let servers = vec![ServerPlan::new("10.0.0.1:80", "10.0.0.1:80".parse().unwrap())];
        let mut upstreams =
            vec![UpstreamPlan { name: "app".to_owned(), servers, ..UpstreamPlan::default() }];
        let mut known = Derived::new();
        assert_eq!(derived(&mut known, &mut upstreams, 0, Pool::Pipelined), 0);
        assert_eq!(derived(&mut known, &mut upstreams, 0, Pool::Pinned), 1);
        assert_eq!(derived(&mut known, &mut upstreams, 0, Pool::Shared), 2);
        assert_eq!(derived(&mut known, &mut upstreams, 0, Pool::Pinned), 1);
        assert_eq!(derived(&mut known, &mut upstreams, 0, Pool::Fresh), 3);
        assert_eq!(upstreams[3].pipeline, PipelineMode::Adaptive);
        assert_eq!((upstreams[1].name.as_str(), upstreams[1].pool), ("app (pinned)", Pool::Pinned));
        assert_eq!(upstreams[1].servers, upstreams[0].servers);
    }
}
