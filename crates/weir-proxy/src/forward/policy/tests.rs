//! Proves which destinations are refused without any rule, and what rules allow and deny and in
//! which order. No name is resolved that could only be refused, and none is refused before its
//! lookup that could be allowed. How: tables (docs/hostile.md F6-F7), and generated rules against a
//! judge without compiling, merging and sets.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;

use proptest::prelude::*;

use super::host::{self, Host};
use super::*;
use crate::plan::Network;

const TUNNEL: &[u8] = b"CONNECT";
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 7, 7));
/// 2026-11-22T12:34:56Z, a Sunday.
const NOON_S: i64 = 1_795_350_896;

fn wanted<'a>(method: &'a [u8], host: &'a str, port: u16) -> Wanted<'a> {
    let literal = match host::parse(host.as_bytes()) {
        Ok(Host::Address(address)) => Some(address),
        Ok(Host::Name(_)) => None,
        Err(error) => panic!("{host}: {error}"),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Wanted {
        host: host.as_bytes(),
        literal,
        port,
        method,
        client: CLIENT,
        user: None,
        wall_s: NOON_S,
    }
}

fn network(text: &str) -> Network {
    let (address, bits) = text.split_once('/').unwrap();
    Network { address: address.parse().unwrap(), prefix_bits: bits.parse().unwrap() }
}

fn allow() -> Rule {
    Rule { allow: true, ..Rule::default() }
}

fn deny() -> Rule {
    Rule::default()
}

impl Rule {
    fn names(self, names: &[&str]) -> Rule {
        Rule {
            names: Some(names.iter().map(|name| Pattern::parse(name).unwrap()).collect()),
            ..self
        }
    }

    fn addresses(self, networks: &[&str]) -> Rule {
        Rule { addresses: networks.iter().map(|text| network(text)).collect(), ..self }
    }

    fn ports(self, ports: RangeInclusive<u16>) -> Rule {
        Rule { ports: vec![ports], ..self }
    }
}

fn policy(rules: &[Rule]) -> Policy {
    Policy::new(rules.to_vec(), vec!["127.0.0.1:3128".parse().unwrap()])
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The verdict for a name that resolves to this address: before the lookup and after it.
fn verdict(policy: &Policy, wanted: &Wanted<'_>, resolved: &str) -> Result<(), Refusal> {
    policy.check(wanted).and_then(|()| policy.check_address(wanted, address(resolved)))
}

#[test]
fn without_rules_the_usual_ports_of_public_addresses_are_allowed() {
    let policy = policy(&[]);
    for (method, port, expected) in [
        (TUNNEL, 443, Ok(())),
        (TUNNEL, 8443, Ok(())),
        (TUNNEL, 80, Err(Refusal::Port)),
        (TUNNEL, 25, Err(Refusal::Port)),
        (TUNNEL, 0, Err(Refusal::Port)),
        (TUNNEL, 65_535, Err(Refusal::Port)),
        (b"GET", 80, Ok(())),
        (b"POST", 8080, Ok(())),
        (b"GET", 443, Err(Refusal::Port)),
        (b"GET", 25, Err(Refusal::Port)),
        (b"GET", 3000, Err(Refusal::Port)),
    ] {
        assert_eq!(policy.check(&wanted(method, "example.com", port)), expected, "{port}");
        assert_eq!(
            verdict(&policy, &wanted(method, "example.com", port), "8.8.8.8"),
            expected,
            "{port}"
        );
        assert_eq!(policy.check(&wanted(method, "8.8.8.8", port)), expected, "{port}");
    }
}

#[test]
fn f7_addresses_of_the_own_network_are_refused() {
    let policy = policy(&[]);
    for text in [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "168.63.129.16",
        "192.0.2.1",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:7f00:1",
        "::127.0.0.1",
        "64:ff9b::127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::8.8.8.8",
        "2002:7f00:1::1",
        "2002:c0a8:101::1",
        "fe80::1",
        "fc00::1",
        "fd00:ec2::254",
        "fec0::1",
        "ff02::1",
    ] {
        let literal = if text.contains(':') { format!("[{text}]") } else { text.to_owned() };
        assert_eq!(policy.check(&wanted(b"GET", &literal, 80)), Err(Refusal::Address), "{text}");
        assert_eq!(policy.check(&wanted(TUNNEL, &literal, 443)), Err(Refusal::Address), "{text}");
        // The same behind a name: refused after the lookup.
        let named = wanted(b"GET", "rebind.example", 80);
        assert_eq!(policy.check(&named), Ok(()));
        assert_eq!(policy.check_address(&named, address(text)), Err(Refusal::Address), "{text}");
    }
    for text in ["8.8.8.8", "[2606:4700::1111]", "[::ffff:8.8.8.8]", "[64:ff9b::8.8.8.8]"] {
        assert_eq!(policy.check(&wanted(b"GET", text, 80)), Ok(()), "{text}");
    }
}

#[test]
fn f7_own_listeners_are_refused_whatever_rules_say() {
    let everything = [allow().addresses(&["0.0.0.0/0", "::/0"]).ports(0..=65_535)];
    let refused = |own: &str, target: &str| {
        let policy = Policy::new(everything.to_vec(), vec![own.parse().unwrap()]);
        policy.check_address(&wanted(TUNNEL, "name.example", 3128), address(target))
            == Err(Refusal::Own)
    };
    for (own, yes, no) in [
        (
            "127.0.0.1:3128",
            &["127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0", "::"][..],
            &["127.0.0.2", "10.0.0.1"][..],
        ),
        ("[::1]:3128", &["::1", "::", "0.0.0.0"], &["127.0.0.1", "::2"]),
        ("0.0.0.0:3128", &["127.0.0.1", "127.9.9.9", "0.0.0.0", "::ffff:127.0.0.1"], &["10.0.0.1"]),
        ("[::]:3128", &["::1", "::", "127.0.0.1"], &["2001:db8::1"]),
        ("10.0.0.5:3128", &["10.0.0.5", "::ffff:10.0.0.5"], &["127.0.0.1", "0.0.0.0"]),
        ("10.0.0.5:3129", &[], &["10.0.0.5"]),
    ] {
        yes.iter().for_each(|target| assert!(refused(own, target), "{own} {target}"));
        no.iter().for_each(|target| assert!(!refused(own, target), "{own} {target}"));
    }
}

#[test]
fn a_listener_on_all_addresses_is_reached_by_those_of_the_machine() {
    let own = ["0.0.0.0:3128", "127.0.0.1:9100"].map(|text| text.parse().unwrap());
    let mut policy =
        Policy::new(vec![allow().addresses(&["0.0.0.0/0"]).ports(1..=65_535)], own.to_vec());
    let judge = |policy: &Policy, port| {
        policy.check_address(&wanted(TUNNEL, "name.example", port), address("10.0.0.5"))
    };
    assert_eq!(judge(&policy, 3128), Ok(()));
    // The machine's addresses are looked up each time, and only where a listener is on all
    // addresses.
    let has = std::sync::Arc::new(std::sync::Mutex::new((Vec::new(), 0)));
    let asked = std::sync::Arc::clone(&has);
    policy.set_local(std::sync::Arc::new(move |address| {
        let mut has = asked.lock().unwrap();
        has.1 += 1;
        has.0.contains(&address)
    }));
    assert_eq!(judge(&policy, 3128), Ok(()));
    has.lock().unwrap().0.push(address("10.0.0.5"));
    assert_eq!(judge(&policy, 3128), Err(Refusal::Own));
    let mapped =
        policy.check_address(&wanted(TUNNEL, "name.example", 3128), address("::ffff:10.0.0.5"));
    assert_eq!(mapped, Err(Refusal::Own));
    has.lock().unwrap().1 = 0;
    assert_eq!(judge(&policy, 9100), Ok(()));
    assert_eq!(has.lock().unwrap().1, 0, "nobody listens on all addresses at this port");
}

#[test]
fn f7_a_name_alone_opens_no_private_address() {
    let rules = [allow().names(&["intranet.example"])];
    let named = wanted(b"GET", "intranet.example", 80);
    assert_eq!(verdict(&policy(&rules), &named, "10.1.2.3"), Err(Refusal::Address));
    let rules = [allow().names(&["intranet.example"]).addresses(&["10.0.0.0/8"])];
    assert_eq!(verdict(&policy(&rules), &named, "10.1.2.3"), Ok(()));
    assert_eq!(verdict(&policy(&rules), &named, "127.0.0.1"), Err(Refusal::Address));
    assert_eq!(
        verdict(&policy(&rules), &wanted(b"GET", "other.example", 80), "10.1.2.3"),
        Err(Refusal::Address)
    );
    assert_eq!(policy(&rules).check(&wanted(b"GET", "10.1.2.3", 80)), Err(Refusal::Address));
}

#[test]
fn ports_are_opened_by_rules_that_list_them() {
    let listed = [allow().ports(3000..=3001), allow().ports(22..=25)];
    for (rules, method, port, expected) in [
        (&listed[..], &b"GET"[..], 3000, Ok(())),
        (&listed, b"GET", 3002, Err(Refusal::Port)),
        (&listed, TUNNEL, 3001, Ok(())),
        (&listed, TUNNEL, 22, Ok(())),
        // These ports never serve HTTP.
        (&listed, b"POST", 25, Err(Refusal::Port)),
        (&[allow()], b"GET", 3000, Err(Refusal::Port)),
        (&[allow().names(&["example.com"])], TUNNEL, 22, Err(Refusal::Port)),
        (&[allow().addresses(&["0.0.0.0/0"])], TUNNEL, 22, Err(Refusal::Port)),
        (&[deny().ports(80..=80)], b"GET", 80, Err(Refusal::Rule)),
    ] {
        assert_eq!(
            verdict(&policy(rules), &wanted(method, "example.com", port), "8.8.8.8"),
            expected,
            "{port}"
        );
    }
    // A port that is allowed on some addresses only.
    let rules = [allow().addresses(&["10.0.0.0/8"]).ports(5000..=5000)];
    let named = wanted(b"GET", "example.com", 5000);
    assert_eq!(policy(&rules).check(&named), Ok(()));
    assert_eq!(verdict(&policy(&rules), &named, "10.0.0.1"), Ok(()));
    assert_eq!(verdict(&policy(&rules), &named, "8.8.8.8"), Err(Refusal::Port));
}

#[test]
fn the_first_rule_that_matches_decides() {
    let rules = [
        allow().names(&["good.ads.example"]),
        deny().names(&["ads.example"]),
        deny().addresses(&["8.8.0.0/16"]),
        allow().names(&["=dns.example"]),
    ];
    let policy = policy(&rules);
    for (host, resolved, expected) in [
        ("good.ads.example", "1.1.1.1", Ok(())),
        ("a.good.ads.example", "8.8.8.8", Ok(())),
        ("bad.ads.example", "1.1.1.1", Err(Refusal::Rule)),
        ("dns.example", "8.8.8.8", Err(Refusal::Rule)),
        ("dns.example", "1.1.1.1", Ok(())),
        ("other.example", "1.1.1.1", Ok(())),
    ] {
        assert_eq!(
            verdict(&policy, &wanted(b"GET", host, 80), resolved),
            expected,
            "{host} {resolved}"
        );
    }
}

#[test]
fn denied_names_are_never_looked_up() {
    let check = |rules: &[Rule], host| policy(rules).check(&wanted(b"GET", host, 80));
    let denied = deny().names(&["ads.example"]);
    assert_eq!(check(std::slice::from_ref(&denied), "www.ads.example"), Err(Refusal::Rule));
    // A name that a rule with addresses may still allow has to be resolved.
    let private = allow().addresses(&["10.0.0.0/8"]);
    assert_eq!(check(&[private.clone(), denied.clone()], "www.ads.example"), Ok(()));
    assert_eq!(check(&[denied.clone(), private.clone()], "www.ads.example"), Err(Refusal::Rule));
    // A rule with addresses that could only deny is no reason.
    assert_eq!(
        check(&[deny().addresses(&["10.0.0.0/8"]), denied], "www.ads.example"),
        Err(Refusal::Rule)
    );
    // Nor is a rule for another name.
    let elsewhere = private.names(&["intranet.example"]);
    assert_eq!(check(&[elsewhere, deny()], "www.example"), Err(Refusal::Rule));
}

#[test]
fn a_last_deny_makes_a_list_of_what_is_allowed() {
    let policy =
        policy(&[allow().names(&["example.com"]), allow().addresses(&["10.0.0.0/8"]), deny()]);
    assert_eq!(verdict(&policy, &wanted(TUNNEL, "www.example.com", 443), "8.8.8.8"), Ok(()));
    assert_eq!(
        verdict(&policy, &wanted(TUNNEL, "www.example.org", 443), "8.8.8.8"),
        Err(Refusal::Rule)
    );
    assert_eq!(verdict(&policy, &wanted(TUNNEL, "www.example.org", 443), "10.0.0.1"), Ok(()));
    assert_eq!(policy.check(&wanted(TUNNEL, "8.8.8.8", 443)), Err(Refusal::Rule));
    assert_eq!(policy.check(&wanted(TUNNEL, "www.example.org", 444)), Err(Refusal::Rule));
}

#[test]
fn an_address_inside_of_another_is_denied_but_not_allowed() {
    let inside = ["64:ff9b::1.1.1.1", "2002:101:101::1", "::ffff:1.1.1.1", "1.1.1.1"];
    let named = wanted(b"GET", "example.com", 80);
    let denied = policy(&[deny().addresses(&["1.1.1.0/24"])]);
    assert!(
        inside.iter().all(|text| denied.check_address(&named, address(text)) == Err(Refusal::Rule))
    );
    assert_eq!(denied.check_address(&named, address("64:ff9b::1.1.2.1")), Ok(()));
    let allowed = policy(&[allow().addresses(&["10.0.0.0/8"])]);
    assert_eq!(allowed.check_address(&named, address("64:ff9b::10.0.0.1")), Err(Refusal::Address));
}

#[test]
fn names_of_an_empty_file_match_nothing() {
    let (denied, allowed) = (deny().names(&[]), allow().names(&[]).addresses(&["0.0.0.0/0"]));
    assert_eq!(verdict(&policy(&[denied]), &wanted(b"GET", "a.example", 80), "8.8.8.8"), Ok(()));
    assert_eq!(
        verdict(&policy(&[allowed]), &wanted(b"GET", "a.example", 80), "10.0.0.1"),
        Err(Refusal::Address)
    );
}

#[test]
fn names_are_not_compared_with_addresses() {
    let rules = [allow().names(&["example.com"]), deny()];
    assert_eq!(policy(&rules).check(&wanted(b"GET", "[2606:4700::1111]", 80)), Err(Refusal::Rule));
}

#[test]
fn who_and_how_count() {
    let method = Rule { methods: vec!["GET".to_owned(), "HEAD".to_owned()], ..deny() };
    let user = Rule { users: vec!["bob".to_owned(), "ann".to_owned()], ..deny() };
    let client = Rule { clients: vec![network("192.168.0.0/16")], ..deny() };
    let get = wanted(b"GET", "example.com", 80);
    let of = |rule: &Rule, wanted: &Wanted<'_>| {
        policy(std::slice::from_ref(rule)).check(wanted).is_err()
    };
    assert!(of(&method, &get) && !of(&method, &Wanted { method: b"POST", ..get }));
    assert!(!of(&method, &Wanted { method: b"get", ..get }));
    assert!(!of(&user, &get) && of(&user, &Wanted { user: Some("ann"), ..get }));
    assert!(
        of(&user, &Wanted { user: Some("bob"), ..get })
            && !of(&user, &Wanted { user: Some("ANN"), ..get })
    );
    assert!(of(&client, &get) && !of(&client, &Wanted { client: address("10.0.0.1"), ..get }));
    assert!(of(&client, &Wanted { client: address("::ffff:192.168.1.1"), ..get }));
}

#[test]
fn rules_hold_for_a_time() {
    let at = |rule: &Rule, wall_s| {
        let wanted = Wanted { wall_s, ..wanted(b"GET", "example.com", 80) };
        policy(std::slice::from_ref(rule)).check(&wanted).is_err()
    };
    let between = Rule { since_s: Some(NOON_S), until_s: Some(NOON_S + 10), ..deny() };
    assert!(
        !at(&between, NOON_S - 1)
            && at(&between, NOON_S)
            && at(&between, NOON_S + 9)
            && !at(&between, NOON_S + 10)
    );
    let midnight = NOON_S - NOON_S.rem_euclid(86_400);
    let minutes = |from_min, to_min| Rule { hours: vec![Hours { from_min, to_min }], ..deny() };
    let (work, night, whole) = (minutes(480, 1080), minutes(1320, 360), minutes(0, 1440));
    for (minute, at_work, at_night) in [
        (0, false, true),
        (359, false, true),
        (360, false, false),
        (479, false, false),
        (480, true, false),
    ]
    .into_iter()
    .chain([
        (1079, true, false),
        (1080, false, false),
        (1319, false, false),
        (1320, false, true),
        (1439, false, true),
    ]) {
        // The seconds of a minute, and days before 1970.
        for wall_s in
            [midnight + minute * 60, midnight + minute * 60 + 59, -86_400 * 3 + minute * 60]
        {
            assert_eq!(
                (at(&work, wall_s), at(&night, wall_s), at(&whole, wall_s)),
                (at_work, at_night, true),
                "{minute}"
            );
        }
    }
}

#[test]
fn rules_that_differ_in_one_list_are_one() {
    let single = |number: u32| deny().names(&[&format!("host-{number}.example")]);
    assert_eq!(rule::merged((0..1000).map(single).collect()).len(), 1);
    let ranges = |number: u8| deny().addresses(&[&format!("10.{number}.0.0/16")]);
    assert_eq!(rule::merged((0..100).map(ranges).collect()).len(), 1);
    for (one, other) in [
        (single(1), allow().names(&["host-2.example"])),
        (single(1), ranges(1)),
        (single(1), single(2).ports(80..=80)),
        (single(1).addresses(&["10.0.0.0/8"]), single(2).addresses(&["11.0.0.0/8"])),
        (single(1), deny()),
        (deny(), deny().addresses(&["10.0.0.0/8"])),
        (ranges(1), single(2).addresses(&["10.0.0.0/8"])),
        (single(1), Rule { until_s: Some(0), ..single(2) }),
    ] {
        assert_eq!(rule::merged(vec![one.clone(), other.clone()]), [one, other]);
    }
}

#[test]
fn words_are_told_apart() {
    let all = [Refusal::Rule, Refusal::Port, Refusal::Address, Refusal::Own];
    let mut words = all.map(Refusal::word).to_vec();
    words.sort_unstable();
    words.dedup();
    assert_eq!(words.len(), all.len());
}

/// A judge without sets, merging and order of criteria.
fn naive(rules: &[Rule], wanted: &Wanted<'_>, address: IpAddr) -> Result<(), Refusal> {
    let tunnel = wanted.method == b"CONNECT";
    let usual = if tunnel { [443, 8443] } else { [80, 8080] }.contains(&wanted.port);
    let named = |pattern: &Pattern| {
        let (text, host) = (pattern.text(), std::str::from_utf8(wanted.host).unwrap());
        match text.as_bytes()[0] {
            b'=' => host == &text[1..],
            b'*' => host.ends_with(&text[1..]),
            _ => host == text || host.ends_with(&format!(".{text}")),
        }
    };
    let minute = (wanted.wall_s.rem_euclid(86_400) / 60) as u16;
    for rule in rules {
        let held = |hours: &Hours| {
            let length = (1440 + hours.to_min - hours.from_min) % 1440;
            (0..length).any(|offset| (hours.from_min + offset) % 1440 == minute)
        };
        let criteria = [
            rule.names
                .as_ref()
                .is_none_or(|names| wanted.literal.is_none() && names.iter().any(named)),
            rule.addresses.is_empty()
                || rule.addresses.iter().any(|network| network.contains(address))
                || !rule.allow
                    && address == "64:ff9b::8.8.8.8".parse::<IpAddr>().unwrap()
                    && rule
                        .addresses
                        .iter()
                        .any(|network| network.contains(Ipv4Addr::new(8, 8, 8, 8).into())),
            rule.ports.is_empty() || rule.ports.iter().any(|ports| ports.contains(&wanted.port)),
            rule.methods.is_empty()
                || rule.methods.iter().any(|method| method.as_bytes() == wanted.method),
            rule.users.is_empty()
                || rule.users.iter().any(|user| Some(user.as_str()) == wanted.user),
            rule.clients.is_empty()
                || rule.clients.iter().any(|network| network.contains(wanted.client)),
            rule.since_s.is_none_or(|since| since <= wanted.wall_s),
            rule.until_s.is_none_or(|until| wanted.wall_s < until),
            rule.hours.is_empty() || rule.hours.iter().any(held),
        ];
        if criteria.contains(&false) {
            continue;
        }
        if !rule.allow {
            return Err(Refusal::Rule);
        }
        if !(usual || !rule.ports.is_empty() && (tunnel || wanted.port > 1024)) {
            return Err(Refusal::Port);
        }
        return if !rule.addresses.is_empty() || is_public(address) {
            Ok(())
        } else {
            Err(Refusal::Address)
        };
    }
    match (usual, is_public(address)) {
        (false, _) => Err(Refusal::Port),
        (true, false) => Err(Refusal::Address),
        (true, true) => Ok(()),
    }
}

fn list<T: std::fmt::Debug + Clone + 'static>(
    from: &[T],
) -> impl Strategy<Value = Vec<T>> + use<T> {
    prop::sample::subsequence(from.to_vec(), 0..=from.len())
}

fn some_names() -> impl Strategy<Value = Option<Vec<Pattern>>> {
    let patterns = ["a", "=a.b", "*.b", "b.a", "c"].map(|text| Pattern::parse(text).unwrap());
    prop::option::of(list(&patterns))
}

fn some_rule() -> impl Strategy<Value = Rule> {
    let networks = ["10.0.0.0/8", "0.0.0.0/0", "8.0.0.0/8", "::/0", "fd00::/8"].map(network);
    let who = (
        list(&["GET".to_owned(), "CONNECT".to_owned()]),
        list(&["ann".to_owned()]),
        list(&networks[..2]),
    );
    let when = (
        prop::option::of(0i64..200_000),
        prop::option::of(0i64..200_000),
        prop::collection::vec((0u16..1440, 0u16..1439), 0..2),
    );
    let ports = list(&[80..=80, 443..=443, 1025..=2000, 20..=25, 8000..=9000]);
    // Most rules have few criteria.
    let seldom = prop::sample::select(vec![true, false, false, false]);
    (
        any::<bool>(),
        some_names(),
        list(&networks),
        ports,
        who,
        when,
        [seldom.clone(), seldom.clone(), seldom],
    )
        .prop_map(
            |(
                allow,
                names,
                addresses,
                ports,
                (methods, users, clients),
                (since_s, until_s, hours),
                [who, when, where_],
            )| Rule {
                allow,
                names,
                addresses: if where_ { addresses } else { Vec::new() },
                ports: if where_ { Vec::new() } else { ports },
                methods: if who { methods } else { Vec::new() },
                users: if who { users } else { Vec::new() },
                clients: if who { clients } else { Vec::new() },
                since_s: since_s.filter(|_| when),
                until_s: until_s.filter(|_| when),
                hours: hours
                    .into_iter()
                    .filter(|_| when)
                    .map(|(from_min, length)| Hours {
                        from_min,
                        to_min: (from_min + length) % 1440,
                    })
                    .filter(|hours| hours.from_min != hours.to_min)
                    .collect(),
            },
        )
}

const ADDRESSES: [&str; 10] = [
    "10.1.1.1",
    "8.8.8.8",
    "1.1.1.1",
    "127.0.0.1",
    "fd00::1",
    "2606:4700::1",
    "::1",
    "::ffff:10.1.1.1",
    "0.0.0.0",
    "64:ff9b::8.8.8.8",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn compiled_rules_decide_as_written_ones(
        rules in prop::collection::vec(some_rule(), 0..6),
        host in prop::sample::select(vec!["a", "b", "a.b", "b.a", "c.a.b", "x.b.a", "d"]),
        port in prop::sample::select(vec![22u16, 80, 443, 1024, 1025, 8080, 8443]),
        method in prop::sample::select(vec![&b"GET"[..], b"CONNECT"]),
        user in prop::option::of(prop::sample::select(vec!["ann", "bob"])),
        client in prop::sample::select(vec!["10.0.0.1", "192.168.0.1", "::1"]),
        wall_s in 0i64..200_000,
    ) {
        let policy = Policy::new(rules.clone(), Vec::new());
        let client = address(client);
        let wanted =
            Wanted { host: host.as_bytes(), literal: None, port, method, client, user, wall_s };
        let early = policy.check(&wanted);
        for resolved in ADDRESSES.map(address) {
            let expected = naive(&rules, &wanted, resolved);
            prop_assert_eq!(policy.check_address(&wanted, resolved), expected, "{}", resolved);
            prop_assert!(
                early.is_ok() || expected.is_err(),
                "refused before its look-up: {}",
                resolved
            );
            let literal = Wanted { literal: Some(resolved), host: b"", ..wanted };
            prop_assert_eq!(
                policy.check(&literal),
                naive(&rules, &literal, resolved),
                "{}",
                resolved
            );
        }
        // Without addresses in rules nothing is left open.
        if rules.iter().all(|rule| rule.addresses.is_empty()) {
            prop_assert_eq!(early, naive(&rules, &wanted, address("8.8.8.8")));
        }
    }
}
