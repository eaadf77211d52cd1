//! Servers that operators add while weir runs (`weir server add`): checks which can be added and
//! removed, and explains why not. Called by [`super`] for each such job, and before one is taken.
//! Pure. Bound: [`TEMPORARY_MAX`]. docs/temporary-servers.md.
//!
//! They are only in memory ([`Written`](super::Written)), and only a job that succeeds changes
//! them: each plan is made with them. So an order that failed may be tried again.

use std::collections::BTreeMap;

use weir_config::parse_server;
use weir_proxy::plan::{Location, Plan, ServerPlan, UpstreamPlan};

use crate::names::meant;

/// Largest number of temporary servers over all upstreams, with those that are derived for another
/// `pool`. It is a part of the available slots, so that names have theirs.
pub(crate) const TEMPORARY_MAX: usize = 256;

/// Options of a server that mean nothing if connections belong to clients.
const OF_SHARED: [&str; 4] = ["connections-min", "connections", "connections-max", "concurrency"];

/// A server to add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Added {
    pub(crate) server: ServerPlan,
    /// The given options.
    written: Vec<String>,
}

impl Added {
    /// Parses a server at this address, with options of `server` and their values.
    ///
    /// # Errors
    /// The user's error: the text has the problem and a remedy.
    pub(crate) fn read(address: &str, options: &[(String, String)]) -> Result<Added, String> {
        let server = parse_server(address, options)?;
        if server.is_name() {
            return Err(format!(
                "`{address}` is a name, whose servers change over time: write it into the \
                 configuration and \
                 `weir reload`, or add an address (10.0.0.1:80) or a socket (unix:PATH)"
            ));
        }
        Ok(Added { server, written: options.iter().map(|(name, _)| name.clone()).collect() })
    }
}

/// Temporary servers by the written name of their upstream.
pub(crate) type Temporary = BTreeMap<String, Vec<ServerPlan>>;

/// Returns what happens to the temporary servers of a plan in its successor. Each gets a line,
/// except those that remain or were removed.
pub(super) fn lines(plan: &Plan, wanted: &Plan) -> Vec<String> {
    let mut lines = Vec::new();
    for (upstream, servers) in plan.temporary() {
        let of_it = |plan: &&UpstreamPlan| !plan.is_retired() && plan.written_name() == upstream;
        let after: Vec<_> = wanted.upstreams.iter().filter(of_it).collect();
        for server in servers {
            let there = after.iter().find_map(|plan| present(plan, &server.name));
            let what = match there {
                None if after.is_empty() => "is removed with it".to_owned(),
                Some(there) if !there.temporary => {
                    format!("{} now", origin(wanted, &upstream, there))
                }
                _ => continue,
            };
            lines.push(format!(
                "upstream \"{upstream}\": temporary server \"{}\" {what}",
                server.name
            ));
        }
    }
    lines
}

/// Returns the temporary servers of a plan with one more. The plan has everything that is known
/// now.
///
/// # Errors
/// Why it cannot be added, with a remedy.
pub(super) fn with(plan: &Plan, upstream: &str, added: &Added) -> Result<Temporary, String> {
    let server = &added.server;
    let all = upstreams(plan, upstream)?;
    if let Some(there) = all.iter().find_map(|plan| present(plan, &server.name)) {
        return Err(format!(
            "upstream `{upstream}` has server `{}` already: it {}\n  help: `weir server weight \
                {upstream} {} N` changes its share",
            server.name,
            origin(plan, upstream, there),
            server.name
        ));
    }
    if let Some(there) =
        all.iter().find_map(|plan| plan.present().find(|one| one.address == Location::Destination))
    {
        return Err(format!(
            "upstream `{upstream}` forwards each client to its original destination (`{}`), and \
                cannot have other servers\n  help: name another upstream",
            there.name
        ));
    }
    if all.iter().all(|plan| plan.pool.is_private())
        && let Some(option) = added.written.iter().find(|name| OF_SHARED.contains(&name.as_str()))
    {
        return Err(format!(
            "`{option}` has no effect with `pool {}`: weir opens connections when clients need \
                them\n  help: remove it",
            all[0].pool.word()
        ));
    }
    let living = plan.upstreams.iter().filter(|plan| !plan.is_retired());
    let slots: usize =
        living.map(|plan| plan.present().filter(|server| server.temporary).count()).sum();
    if slots + all.len() > TEMPORARY_MAX {
        return Err(format!(
            "no room for another temporary server: the limit is {TEMPORARY_MAX}, and a server \
             counts once for \
             each `pool` with which routes use its upstream\n  help: write permanent servers \
             into the \
             configuration and `weir reload`, or `weir server remove` others"
        ));
    }
    let mut temporary = plan.temporary();
    temporary.entry(upstream.to_owned()).or_default().push(server.clone());
    Ok(temporary)
}

/// Returns the temporary servers of such a plan, the second, without this one. The first plan is in
/// force: a server that was only partly added can be removed from it.
///
/// # Errors
/// Why it cannot be removed, with a remedy.
pub(super) fn without(
    [in_force, plan]: [&Plan; 2],
    upstream: &str,
    server: &str,
) -> Result<Temporary, String> {
    let all = upstreams(plan, upstream)?;
    let living = in_force
        .upstreams
        .iter()
        .filter(|plan| !plan.is_retired() && plan.written_name() == upstream);
    let Some(found) = all.iter().copied().chain(living).find_map(|plan| present(plan, server))
    else {
        if all[0].present().next().is_none() {
            return Err(format!("no server `{server}`; upstream `{upstream}` has none"));
        }
        return Err(meant("server", server, all[0].present().map(|plan| plan.name.as_str())));
    };
    if !found.temporary {
        let out = match place(plan, upstream, found) {
            Place::Configuration => "remove it from the file and `weir reload`".to_owned(),
            Place::Name => {
                format!("weir removes it when `{}` no longer has that address", found.written)
            }
            Place::File(file) => {
                format!("remove it from `{file}`, which weir rereads when it changes")
            }
        };
        return Err(format!(
            "server `{server}` of upstream `{upstream}` cannot be removed, because `weir server \
             add` did not add it: it {}\n  help: {out}; \
             `weir server drain {upstream} {server}` sends it no new requests",
            origin(plan, upstream, found)
        ));
    }
    let mut temporary = plan.temporary();
    temporary.entry(upstream.to_owned()).or_default().retain(|one| one.name != server);
    Ok(temporary)
}

/// Returns an upstream, with those derived from it for routes with another `pool`.
fn upstreams<'a>(plan: &'a Plan, name: &str) -> Result<Vec<&'a UpstreamPlan>, String> {
    let forward = plan.forward.as_ref().and_then(|forward| plan.upstreams.get(forward.upstream));
    if forward.is_some_and(|forward| forward.name == name) {
        return Err(format!(
            "`{name}` is the forward proxy, whose servers are the destinations of clients\n  help: \
                `allow` and `deny` of `forward` select them"
        ));
    }
    let written = living(plan).find(|plan| plan.name == name).map(|plan| plan.written_name());
    if let Some(written) = written.filter(|written| *written != name) {
        return Err(format!(
            "upstream `{name}` is `{written}` for routes with another `pool`\n  help: name \
                `{written}`; it has the servers of all of them"
        ));
    }
    known_upstream(plan, name)?;
    Ok(living(plan).filter(|plan| plan.written_name() == name).collect())
}

/// Checks that a plan has an upstream of this name, or one derived from it.
///
/// # Errors
/// It has none: a suggestion.
pub(crate) fn known_upstream(plan: &Plan, name: &str) -> Result<(), String> {
    if living(plan).any(|plan| plan.name == name || plan.written_name() == name) {
        return Ok(());
    }
    let forward = plan.forward.as_ref().and_then(|forward| plan.upstreams.get(forward.upstream));
    let others =
        living(plan).filter(|plan| forward.is_none_or(|forward| !std::ptr::eq(forward, *plan)));
    let others = others.map(|plan| plan.name.as_str()).filter(|name| !name.contains(' '));
    Err(meant("upstream", name, others))
}

fn living(plan: &Plan) -> impl Iterator<Item = &UpstreamPlan> {
    plan.upstreams.iter().filter(|plan| !plan.is_retired())
}

fn present<'a>(plan: &'a UpstreamPlan, server: &str) -> Option<&'a ServerPlan> {
    plan.present().find(|one| one.name == server)
}

/// The place of a server that is not temporary.
enum Place<'a> {
    Configuration,
    /// It is one of the addresses of a name.
    Name,
    File(std::path::Display<'a>),
}

fn place<'a>(plan: &'a Plan, upstream: &str, server: &ServerPlan) -> Place<'a> {
    match plan.discovery.files.get(upstream) {
        _ if server.written != server.name => Place::Name,
        Some(file) if server.found => Place::File(file.display()),
        _ => Place::Configuration,
    }
}

/// Returns where a server is from, for people.
fn origin(plan: &Plan, upstream: &str, server: &ServerPlan) -> String {
    match place(plan, upstream, server) {
        _ if server.temporary => "was added by `weir server add`".to_owned(),
        Place::Configuration => "is in the configuration".to_owned(),
        Place::Name => format!("is an address of `{}`", server.written),
        Place::File(file) => format!("is in `{file}`"),
    }
}

#[cfg(test)]
mod tests;
