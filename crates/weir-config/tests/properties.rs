//! Properties of the whole reader: an accepted text prints text that reads back to the same plan,
//! in KDL and in JSON, and no text makes it panic. Configurations are generated from the grammar,
//! texts from its words.

use proptest::prelude::*;
use weir_config::fuzzing::{assert_reads_back, config, unit_seeds, units};
use weir_config::{Experts, World, parse_in};

fn time() -> impl Strategy<Value = String> {
    (1u64..80_000, prop::sample::select(vec!["ms", "s"]))
        .prop_map(|(number, unit)| format!("\"{number}{unit}\""))
}

/// Some lines out of many, each option at most once.
fn some_of(lines: Vec<BoxedStrategy<String>>) -> BoxedStrategy<String> {
    let lines: Vec<_> = lines.into_iter().map(|line| prop::option::of(line).boxed()).collect();
    lines.prop_map(|lines| lines.into_iter().flatten().collect::<Vec<_>>().join("\n")).boxed()
}

fn option(
    name: &'static str,
    value: impl Strategy<Value = String> + 'static,
) -> BoxedStrategy<String> {
    value.prop_map(move |value| format!("    {name} {value}")).boxed()
}

fn client() -> BoxedStrategy<String> {
    some_of(vec![
        option("head-timeout", time()),
        option("body-timeout", time()),
        option("idle-timeout", time()),
        option("body-limit", (0u64..1 << 40).prop_map(|size| size.to_string())),
        option("head-limit", (8u64..1000).prop_map(|size| format!("\"{size}KiB\""))),
        option("queue", (1u32..10_000).prop_map(|count| count.to_string())),
        option(
            "via",
            prop::sample::select(vec!["#true", "#false", "on", "off"]).prop_map(str::to_owned),
        ),
        option("connections", (1u32..1_000_000).prop_map(|count| count.to_string())),
        option(
            "trusted-proxies",
            (any::<u32>(), 0u8..33).prop_map(|(bits, prefix)| {
                format!("\"{}/{prefix}\"", std::net::Ipv4Addr::from_bits(bits))
            }),
        ),
    ])
}

fn pipeline() -> BoxedStrategy<String> {
    prop_oneof![
        Just("pipeline off".to_owned()),
        Just("pipeline adaptive share=client".to_owned()),
        (1u32..100).prop_map(|depth| format!("pipeline depth={depth} echo=\"x-{depth}\"")),
        Just(String::new()),
    ]
    .boxed()
}

fn balance() -> BoxedStrategy<String> {
    prop_oneof![
        prop::sample::select(vec![
            "",
            "balance",
            "balance ratio",
            "balance least",
            "balance hash key=uri"
        ])
        .prop_map(str::to_owned),
        prop::sample::select(vec!["min", "avg", "p99.9"])
            .prop_map(|by| format!("balance dynamic by={by}")),
        (1u32..3600).prop_map(|past| format!("balance predict past=\"{past}s\"")),
        "[a-zA-Z-]{1,8}".prop_map(|name| format!("balance hash key=\"header:{name}\"")),
        "[a-zA-Z-]{1,8}".prop_map(|name| format!("balance hash key=\"cookie:{name}\"")),
    ]
    .boxed()
}

/// Any text that may be a part of a target, quoted for KDL.
fn target() -> BoxedStrategy<String> {
    "[!-~äöü]{1,12}".prop_map(|text| format!("{:?}", text.replace("${", "$${"))).boxed()
}

fn upstream(index: usize) -> BoxedStrategy<String> {
    let options = some_of(vec![
        option("queue-size", (100u32..1_000_000).prop_map(|size| size.to_string())),
        option("forward-retries", (0u32..100).prop_map(|count| count.to_string())),
        option("forward-timeout", time()),
        option("retry-nonidempotent", Just("#true".to_owned())),
        option("nonidempotent \"GET\"", target().prop_map(|target| format!("prefix={target}"))),
        option("nonidempotent \"HEAD\"", target().prop_map(|target| format!("eq={target}"))),
        option("nonidempotent \"OPTIONS\"", Just("any".to_owned())),
        option(
            "sticky",
            "[a-z]{1,8}".prop_map(|name| format!("cookie={name} secure=on max-age=\"1h\"")),
        ),
    ]);
    let servers = prop::collection::btree_map(1u16..u16::MAX, (1u32..65_535, 1u32..100), 1..4);
    (options, servers, pipeline(), balance())
        .prop_map(move |(options, servers, pipeline, balance)| {
            let line = |(port, (connections, weight)): (u16, (u32, u32))| {
                format!(
                    "    server \"10.0.0.{index}:{port}\" connections={connections} \
                    weight={weight}\n"
                )
            };
            let servers: String = servers.into_iter().map(line).collect();
            format!(
                "upstream \"u{index}\" {{\n\
                {servers}{options}\n    {pipeline}\n    {balance}\n    server \"10.0.1.1:1\" \
                backup=on\n}}\n"
            )
        })
        .boxed()
}

/// A forward proxy with some rules, or none at all.
fn forward() -> BoxedStrategy<String> {
    let name = "(=|\\*\\.|)[a-z]{1,5}\\.example".prop_map(|name| format!(" \"{name}\"")).boxed();
    let criterion = prop_oneof![
        (any::<u32>(), 0u8..33).prop_map(|(bits, prefix)| format!(
            " address=\"{}/{prefix}\"",
            std::net::Ipv4Addr::from_bits(bits)
        )),
        (1u16..9000, 0u16..99).prop_map(|(port, more)| format!(" port=\"{port}-{}\"", port + more)),
        (0u32..24, 0u32..60)
            .prop_map(|(hour, minute)| format!(" hours=\"{hour:02}:{minute:02}-24:00\"")),
        Just(" names-file=\"names.txt\"".to_owned()),
        Just(" until=\"2026-12-31\" method=CONNECT".to_owned()),
        Just(" user=\"ann\"".to_owned()),
    ];
    let rule =
        (prop::sample::select(vec!["allow", "deny"]), prop::collection::vec(name, 0..3), criterion);
    let rule = rule.prop_map(|(verdict, names, criterion)| {
        format!("    {verdict}{}{criterion}\n", names.concat())
    });
    let pool = prop::sample::select(vec![
        "pool pinned; destinations 3",
        "pool per-request",
        "pac auto",
        "realm \"r\"",
    ]);
    let forward = (prop::collection::vec(rule, 0..6), pool).prop_map(|(rules, pool)| {
        format!(
            "forward {{\n    listen \"127.0.0.2:1\"\n    users \"users\"\n    {pool}\n{}}}\n",
            rules.concat()
        )
    });
    prop_oneof![Just(String::new()), forward].boxed()
}

const METHODS: &str = " methods=\"GET,PUT\"";

fn configuration() -> BoxedStrategy<String> {
    let listeners = prop::collection::btree_set(1u16..u16::MAX, 1..4);
    // Without methods, with them, and both at the same place: those with methods are also reached
    // behind the others.
    let methods: Vec<&[&str]> = vec![&[""], &[METHODS], &["", METHODS], &[METHODS, ""]];
    let methods = prop::sample::select(methods);
    let routes =
        prop::collection::btree_map("[a-z]{1,8}", (0usize..2, "[a-zä]{0,4}", methods), 0..6);
    (listeners, client(), upstream(0), upstream(1), routes, forward())
        .prop_map(|(listeners, client, first, second, routes, forward)| {
            let listeners: String = listeners
                .into_iter()
                .map(|port| format!("listen \"127.0.0.1:{port}\"\n"))
                .collect();
            let route =
                |(host, (target, path, methods)): (String, (usize, String, &[&str]))| -> String {
                    let line = |methods: &&str| {
                        format!(
                            "route host=\"*.{host}.org\" path=\"/{path}\"{methods} \
                        proxy=\"u{target}\"\n"
                        )
                    };
                    methods.iter().map(line).collect()
                };
            let routes: String = routes.into_iter().map(route).collect();
            format!(
                "{listeners}client {{\n{client}\n}}\n{first}{second}{routes}route proxy=u0\n\
                route path=\"/own\" proxy=u0 pool=pinned\n{forward}"
            )
        })
        .boxed()
}

/// Words and signs of the grammar in any order: much deeper in the reader than random characters
/// get.
fn word_salad() -> BoxedStrategy<String> {
    let words = vec![
        "listen",
        "client",
        "upstream",
        "route",
        "server",
        "pipeline",
        "balance",
        "hash",
        "key",
        "nonidempotent",
        "forward",
        "allow",
        "deny",
        "rule",
        "port",
        "address",
        "names-file",
        "pool",
        "proxy",
        "depth",
        "workers",
        "io",
        "\"127.0.0.1:1\"",
        "\"app\"",
        "app",
        "\"10s\"",
        "10",
        "-5",
        "1.5",
        "#true",
        "#null",
        "off",
        "any",
        "\"GET\"",
        "regex",
        "\"(\"",
        "eq",
        "=",
        "{",
        "}",
        ";",
        "\n",
        " ",
        "/-",
        "/*",
        "*/",
        "//",
        "\"",
        "\\",
        "#\"",
        "\"#",
        "\"\"\"",
        "(",
        ")",
        "\"${V}\"",
        "\"${\"",
        "$",
        "ä",
        "\u{2028}",
        "\u{feff}",
        "\0",
        ":",
        ",",
        "[",
        "]",
        "0x",
        "path",
        "\"/\"",
        "name",
    ];
    prop::collection::vec(prop::sample::select(words), 0..60)
        .prop_map(|words| words.join(" ").replace(" = ", "="))
        .boxed()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn printed_configurations_read_back(text in configuration()) {
        let read = |_: &std::path::Path| Ok(b"# names\nblocked.example\n".to_vec());
        let world = World { variables: &|_| None, read: &read, experts: Experts::NOBODY };
        let parsed = parse_in(&text, "generated.kdl", world)
            .map_err(|errors| TestCaseError::fail(format!("{errors}\n{text}")))?;
        assert_reads_back(&parsed);
    }

    #[test]
    fn word_salad_never_panics(text in word_salad()) {
        config(text.as_bytes());
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        config(&bytes);
    }

    #[test]
    fn a_damaged_configuration_is_an_answer(
        text in configuration(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = text.into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        config(&bytes);
    }
}

#[test]
fn units_to_begin_with() {
    unit_seeds().iter().for_each(|seed| units(seed));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn any_units(
        text in "(([0-9]{0,3}|0{1,30}[0-9]|[0-9]{15,21})(us|ms|s|m|h|d|B|KiB|MiB|TiB|/s|/ min|/h| \
            |,|x|client|host|query:a|all){0,2}){0,3}",
    ) {
        units(text.as_bytes());
    }
}
