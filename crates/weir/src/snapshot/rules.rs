//! The rules by which responses were stored: a snapshot has a mark of them, so that its responses
//! are never used under other rules. Called by the keeper (`snapshot`). Pure.
//!
//! The mark depends on everything that decides which response is stored under which key, with which
//! fields, and for how long. That is `cache` of each route, and how requests are changed before a
//! server gets them. It does not depend on servers, which change all the time, or on decisions at
//! the use of a response.

use weir_proxy::plan::{CacheRules, Plan};
use weir_proxy::request::rules::RouteRules;

/// Returns the mark. The order of the routes makes no difference.
pub(super) fn mark(plan: &Plan) -> u64 {
    let mut texts: Vec<String> = plan.routes.rules().filter_map(text).collect();
    texts.sort_unstable();
    texts.dedup();
    fnv(texts.join("\n").as_bytes())
}

fn text(rules: &RouteRules) -> Option<String> {
    let CacheRules { options, keys, tags, .. } = &**rules.cache.as_ref()?;
    let stored =
        (&options.targets, options.heuristic, &options.lifetimes, &options.forced_lifetimes);
    let windows = (
        options.error_lifetime_max_s,
        options.stale_while_revalidate_s,
        options.stale_if_error_s,
        options.ignored,
    );
    let kept = (options.stores_set_cookie, &options.strip, &options.bypass_cookies, keys, tags);
    let asked = (&rules.path, &rules.host, &rules.request);
    Some(format!("{stored:?} {windows:?} {kept:?} {asked:?}"))
}

/// FNV-1a: the same in each build, which the standard library's hashes do not promise. A collision
/// is of no use to an attacker.
fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    //! Proves: the mark changes when stored responses would, and only then. How: configurations.

    use super::*;

    fn of(routes: &str) -> u64 {
        let text = format!(
            "listen \"127.0.0.1:8080\"\nupstream \"app\" {{ server \"127.0.0.1:1\"; }}\n{routes}"
        );
        let config =
            weir_config::parse(&text, "(test)").unwrap_or_else(|errors| panic!("{errors}"));
        mark(&config.plan)
    }

    #[test]
    fn what_makes_a_difference() {
        let plain = of("route { proxy \"app\"; cache; }");
        let other = "route path=\"/b\" { proxy \"app\"; cache { ttl \"1h\"; }; }\n";
        let all = "route { proxy \"app\"; cache; }\n";
        assert_eq!(of(&format!("{all}{other}")), of(&format!("{other}{all}")));
        for same in [
            "cache { cache-status on; }",
            "cache { max-stale \"5s\"; hit-for-miss \"1s\"; }",
            "cache; methods \"GET\";",
        ] {
            assert_eq!(of(&format!("route {{ proxy \"app\"; {same} }}")), plain, "{same}");
        }
        for changed in [
            "cache { strip \"Set-Cookie\"; }",
            "cache { set-cookie store; }",
            "cache { key cookie=\"lang\"; }",
            "cache { bypass cookie=\"session\"; }",
            "cache { tags \"xkey\"; }",
            "cache { error-ttl \"1m\"; }",
            "cache; request { remove \"Cookie\"; }",
        ] {
            assert_ne!(of(&format!("route {{ proxy \"app\"; {changed} }}")), plain, "{changed}");
        }
    }
}
