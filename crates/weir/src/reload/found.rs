//! Describes changes of servers outside the configuration for people: new addresses of names, other
//! servers in files, and servers that operators have added.

use std::collections::{HashMap, HashSet};

use weir_proxy::plan::{Plan, ServerPlan, UpstreamPlan};

/// Returns a line for each such server that is new, removed or changed. `new` is made from the
/// written plan, and is not merged.
pub(super) fn lines(old: &Plan, new: &Plan) -> Vec<String> {
    let mut lines = Vec::new();
    let living = old.upstreams.iter().filter(|one| !one.is_retired());
    let living: HashMap<_, _> = living.map(|one| (one.name.as_str(), one)).collect();
    for plan in &new.upstreams {
        let before = living.get(plan.name.as_str());
        let (old, new) = (before.map_or_else(Vec::new, |before| found(before)), found(plan));
        let known: HashMap<_, _> = old.iter().map(|one| (one.name.as_str(), told(one))).collect();
        let mut add = |sign, server: &ServerPlan| {
            lines.push(format!("upstream \"{}\": {sign} server \"{}\"", plan.name, server.name));
        };
        for server in &new {
            match known.get(server.name.as_str()) {
                None => add('+', server),
                Some(before) if *before != told(server) => add('~', server),
                Some(_) => {}
            }
        }
        // A temporary server may be in the configuration now.
        let present: HashSet<_> = plan.present().map(|one| one.name.as_str()).collect();
        let is_gone = |server: &&&ServerPlan| !present.contains(server.name.as_str());
        old.iter().filter(is_gone).for_each(|server| add('-', server));
    }
    lines
}

fn found(plan: &UpstreamPlan) -> Vec<&ServerPlan> {
    plan.present().filter(|server| server.found).collect()
}

/// Returns what may differ for a server of the same name.
fn told(server: &ServerPlan) -> (u32, bool, [u32; 3], [Option<u32>; 2]) {
    let connections = [server.connections_min, server.connections, server.connections_max];
    let limits = [server.concurrency, server.tcp_connections_max];
    (server.weight, server.backup, connections, limits)
}

#[cfg(test)]
mod tests {
    //! Proves: each new and each removed server has a line, and no other server does. How: an
    //! example.

    use std::collections::BTreeSet;
    use std::net::SocketAddr;

    use super::*;
    use weir_proxy::plan::{Known, UNLOCATED};

    #[test]
    fn who_comes_and_goes_is_told() {
        let servers = vec![
            ServerPlan::new("a.test:80", UNLOCATED),
            ServerPlan::new("10.0.0.9:80", ([10, 0, 0, 9], 80).into()),
        ];
        let upstream = UpstreamPlan { name: "app".to_owned(), servers, ..UpstreamPlan::default() };
        let written = Plan { upstreams: vec![upstream], ..Plan::default() };
        let at = |last: &[u8]| {
            let at = |last: &u8| SocketAddr::from(([10, 0, 0, *last], 80)).into();
            let addresses = last.iter().map(at).collect();
            written.located(&Known {
                names: [("a.test:80".to_owned(), addresses)].into(),
                ..Known::default()
            })
        };
        let first = at(&[1, 2]).merged(at(&[2, 3]), 9, &BTreeSet::new()).expect("room");
        assert_eq!(
            lines(&first, &at(&[2, 4])),
            [
                "upstream \"app\": + server \"a.test@10.0.0.4:80\"",
                "upstream \"app\": - server \"a.test@10.0.0.3:80\""
            ]
        );
        assert!(lines(&first, &at(&[3, 2])).is_empty());
        assert_eq!(lines(&first, &written.located(&Known::default())).len(), 2);
        // A changed server has a line as well.
        let changes: [fn(&mut ServerPlan); 5] = [
            |server| server.weight += 1,
            |server| server.backup = true,
            |server| server.connections_max += 1,
            |server| server.concurrency = Some(7),
            |server| server.tcp_connections_max = Some(7),
        ];
        for change in changes {
            let mut next = at(&[2, 3]);
            change(&mut next.upstreams[0].servers[0]);
            let changed = next.upstreams[0].servers[0].name.clone();
            assert_eq!(lines(&first, &next), [format!("upstream \"app\": ~ server \"{changed}\"")]);
        }
    }
}
