//! `failover` and `health` of an upstream: the rules that suspend its servers, and its probes.
//! Called by [`super::compile`].

use weir_proxy::plan::{FAILOVER_MAX, FailoverRule, HealthPlan};
use weir_proxy::upstream::health::{Codes, Symptom};

use super::{Compiler, narrow};
use crate::check::Checked;
use crate::problem::Problem;
use crate::texts;

/// Compiles the rules of an upstream that suspend a server.
pub(super) fn failover(compiler: &mut Compiler<'_>, upstream: &Checked) -> Vec<FailoverRule> {
    compiler.at_most(upstream, "failover", FAILOVER_MAX);
    let rules = upstream.all("failover").take(FAILOVER_MAX);
    rules
        .filter_map(|block| {
            let symptom = Symptom::parse(block.text("code"))?;
            Some(FailoverRule {
                symptom,
                limit: narrow(block.number("limit")),
                window_us: block.number("window"),
            })
        })
        .collect()
}

/// Compiles the probes of an upstream; None: its servers are not probed.
pub(super) fn health(compiler: &mut Compiler<'_>, upstream: &Checked) -> Option<HealthPlan> {
    let block = upstream.all("health").next()?;
    if let Some(second) = upstream.all("health").nth(1) {
        let problem =
            Problem::new("duplicate", &second.span, "`health` may occur only once in an upstream");
        compiler.push(problem.related(&block.span, "first here"));
    }
    let given = |name| Some(block.text(name)).filter(|text| !text.is_empty()).map(str::to_owned);
    if block.word("method") == "HEAD" && given("expect-body").is_some() {
        let message = "a response to HEAD has no body: every probe would fail";
        compiler
            .push(Problem::new("conflict", &block.place("expect-body"), message).help("use GET"));
    }
    Some(HealthPlan {
        method: block.word("method").to_owned(),
        path: block.text("path").to_owned(),
        host: given("host"),
        expect_status: Codes::parse(block.text("expect-status"))?,
        expect_body: given("expect-body").as_deref().and_then(texts::body_check),
        interval_us: block.number("interval"),
        timeout_us: block.number("timeout"),
        rise: narrow(block.number("rise")),
        fall: narrow(block.number("fall")),
    })
}
