//! `discovery` and `servers-from` -> plan, and problems with names and files of servers. Called by
//! [`super::compile`], and for the contents of such a file by `servers`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use weir_proxy::plan::{DiscoveryPlan, Family, ORIGINAL_DESTINATION, ServerPlan};

use super::{Compiler, World};
use crate::Experts;
use crate::check::Checked;
use crate::file::read_list;
use crate::problem::Problem;
use crate::servers::parse_servers;

/// Returns the servers in a file of servers.
pub(crate) fn servers(document: &Checked, problems: &mut Vec<Problem>) -> Vec<ServerPlan> {
    let world = World { variables: &|_| None, read: &read_list, experts: Experts::NOBODY };
    for server in
        document.all("server").filter(|server| server.text("address") == ORIGINAL_DESTINATION)
    {
        let message = format!(
            "`{ORIGINAL_DESTINATION}` cannot be in a list of servers: it must be the only server \
                of its upstream"
        );
        problems.push(Problem::new("conflict", &server.place("address"), message));
    }
    Compiler::new(world, problems).listed(document, true)
}

impl Compiler<'_> {
    fn servers_from(&mut self, block: &Checked) -> Option<PathBuf> {
        let path = Some(block.text("servers-from")).filter(|path| !path.is_empty())?;
        let why = match (self.world.read)(path.as_ref()) {
            Ok(bytes) => parse_servers(&bytes, path).err().map(|errors| errors.to_string()),
            Err(error) => Some(format!("`{path}` can't be read: {error}")),
        };
        if let Some(why) = why {
            let help = "weir starts without its servers, and checks the file every two seconds";
            let first = why.lines().next().unwrap_or_default();
            self.warnings
                .push(Problem::new("unusable", &block.place("servers-from"), first).help(help));
        }
        Some(path.into())
    }

    /// Returns how names are looked up; warns of those that cannot be.
    pub(super) fn discovery(&mut self, document: &Checked) -> DiscoveryPlan {
        let Some(block) = document.all("discovery").next() else { return DiscoveryPlan::default() };
        let (ttl_min_us, ttl_max_us) = (block.number("ttl-min"), block.number("ttl-max"));
        if ttl_max_us > 0 && ttl_min_us > ttl_max_us {
            let problem = Problem::new(
                "conflict",
                &block.place("ttl-min"),
                "`ttl-min` is longer than `ttl-max`",
            );
            self.push(problem.help("raise `ttl-max`, or lower `ttl-min`"));
        }
        let family = match block.word("family") {
            "ipv4" => Family::V4,
            "ipv6" => Family::V6,
            _ => Family::Any,
        };
        let resolvers =
            block.texts("resolver").iter().filter_map(|text| text.parse().ok()).collect();
        let (hold_us, files) = (block.number("hold"), files(self, document));
        let plan = DiscoveryPlan { resolvers, family, ttl_min_us, ttl_max_us, hold_us, files };
        warn_of_names(self, &plan);
        plan
    }
}

/// Returns the files of upstreams, by name; warns of those that have no servers now.
fn files(compiler: &mut Compiler<'_>, document: &Checked) -> BTreeMap<String, PathBuf> {
    let all = document
        .all("upstream")
        .map(|block| (block.text("name").to_owned(), compiler.servers_from(block)));
    all.filter_map(|(name, path)| Some((name, path?))).collect()
}

fn warn_of_names(compiler: &mut Compiler<'_>, plan: &DiscoveryPlan) {
    let names: Vec<&str> = compiler.names.iter().map(|(name, _)| name.as_str()).collect();
    if names.is_empty() {
        return;
    }
    let all = (compiler.world.experts.names)(plan, &names);
    for ((name, place), why) in compiler.names.iter().zip(all) {
        let Some(why) = why else { continue };
        let message = format!("cannot resolve `{name}`: {why}");
        let help = "weir starts without it and keeps trying; --no-resolve skips all lookups";
        compiler.warnings.push(Problem::new("unresolvable", place, message).help(help));
    }
}
