//! A corpus of configurations, each with the expected result beside it: the effective configuration
//! and the plan for `good`, the report for `bad`. `UPDATE=1 cargo test -p weir-config` writes the
//! expected files; read the difference.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use weir_config::fuzzing::assert_reads_back;
use weir_config::{Account, Arrival, Experts, TlsFiles, UserChoice, World, parse_in};
use weir_proxy::plan::DiscoveryPlan;

fn variables(name: &str) -> Option<String> {
    match name {
        "PORT" => Some("9090".to_owned()),
        "NETWORKS" => Some("10.0.0.0/8, 192.168.0.0/16".to_owned()),
        "TRICK" => Some("${PORT}".to_owned()),
        _ => None,
    }
}

/// Names below `.test` exist.
fn names(_: &DiscoveryPlan, names: &[&str]) -> Vec<Option<String>> {
    names
        .iter()
        .map(|name| (!name.contains(".test:")).then(|| "there is no such name".to_owned()))
        .collect()
}

/// Reads the files that exist in the tests.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    match path.to_str() {
        Some("/etc/weir/blocked.txt") => {
            Ok(b"# names\nblocked.test # one of them\n\n*.Below.test\r\n".to_vec())
        }
        Some("/etc/weir/wrong.txt") => {
            Ok(b"fine.test\n0.0.0.0 ads.test\n10.0.0.1\n*\na..b\nb\xfc.test\n".to_vec())
        }
        Some("/etc/weir/users") => Ok(b"ann:$argon2id$...\n".to_vec()),
        Some("/etc/weir/wrong-users") => Ok(b"ann:$argon2id$...\nbob\n\n".to_vec()),
        Some("/etc/weir/nobody") => Ok(Vec::new()),
        Some("/etc/weir/own.pac") => {
            Ok(b"function FindProxyForURL(url, host) { return \"PROXY a:1\"; }\n".to_vec())
        }
        Some("/etc/weir/sorry.html") => Ok("<p>We are b\u{e4}ck soon.</p>".into()),
        Some("/etc/weir/large.html") => Ok(vec![b'x'; (1 << 20) + 1]),
        Some("/etc/weir/servers.json") => {
            Ok(b"[{\"address\": \"10.0.0.7:80\", \"weight\": 1}]".to_vec())
        }
        Some("/etc/weir/wrong-servers.kdl") => Ok(b"server \"10.0.0.7\"\n".to_vec()),
        Some("/var/log/weir") => Err(io::ErrorKind::IsADirectory.into()),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Replaces the expert on passwords: each line without a colon is wrong.
fn users(path: &Path, bytes: &[u8]) -> Result<usize, Vec<String>> {
    let text = String::from_utf8_lossy(bytes);
    let wrong = text.lines().enumerate().filter(|(_, line)| !line.contains(':'));
    let wrong: Vec<String> =
        wrong.map(|(at, _)| format!("{}:{}: there is no colon", path.display(), at + 1)).collect();
    if wrong.is_empty() { Ok(text.lines().count()) } else { Err(wrong) }
}

/// Replaces the expert on TLS.
fn tls(files: TlsFiles<'_>) -> Result<Vec<String>, String> {
    let is = |path: &Path, name: &str| path == Path::new("/etc/weir").join(name);
    match files {
        TlsFiles::Certificate { certificate, .. } | TlsFiles::Shown { certificate, .. }
            if is(certificate, "wrong.pem") =>
        {
            Err("cannot read the certificate in /etc/weir/wrong.pem".to_owned())
        }
        TlsFiles::Certificate { key, .. } | TlsFiles::Shown { key, .. } if is(key, "wrong.key") => {
            Err("the key in /etc/weir/wrong.key is another's".to_owned())
        }
        TlsFiles::Certificate { certificate, .. } | TlsFiles::Shown { certificate, .. }
            if is(certificate, "soon.pem") =>
        {
            Ok(vec!["the certificate in /etc/weir/soon.pem expires".to_owned()])
        }
        TlsFiles::Authorities(Some(path)) | TlsFiles::Clients { authorities: path, .. }
            if is(path, "wrong.pem") =>
        {
            Err("cannot read the certificates of CAs in /etc/weir/wrong.pem".to_owned())
        }
        TlsFiles::Ocsp { response, .. } if is(response, "wrong.ocsp") => {
            Err("/etc/weir/wrong.ocsp has no OCSP response".to_owned())
        }
        TlsFiles::Ocsp { response, .. } if is(response, "old.ocsp") => {
            Ok(vec!["the OCSP response in /etc/weir/old.ocsp has expired".to_owned()])
        }
        TlsFiles::TicketKeys(path) if is(path, "wrong.keys") => {
            Err("line 1 of /etc/weir/wrong.keys is not a key".to_owned())
        }
        TlsFiles::Clients { revocations: Some(path), .. } if is(path, "wrong.crl") => {
            Err("cannot read the revocation lists in /etc/weir/wrong.crl".to_owned())
        }
        TlsFiles::Clients { revocations: Some(path), .. } if is(path, "old.crl") => {
            Ok(vec!["a revocation list in /etc/weir/old.crl has expired".to_owned()])
        }
        _ => Ok(Vec::new()),
    }
}

/// Replaces the expert on the groups of the machine.
fn group(name: &str) -> Result<u32, Account> {
    let unknown = || {
        let (message, help) =
            (format!("no group `{name}` in /etc/group"), "did you mean `tls`?".to_owned());
        Account { word: "group", message, help }
    };
    if name == "tlsx" { Err(unknown()) } else { Ok(33) }
}

/// Replaces the expert on the users of the machine.
fn account(choice: &UserChoice) -> Result<(), Account> {
    let unknown = |word, what: &str, near: &str| {
        let (message, help) =
            (format!("no {what} `{near}x` in /etc/{what}"), format!("did you mean `{near}`?"));
        Err(Account { word, message, help })
    };
    match (choice.name.as_str(), choice.group.as_deref()) {
        ("weirx", _) => unknown("name", "user", "weir"),
        (_, Some("tlsx")) => unknown("group", "group", "tls"),
        _ => Ok(()),
    }
}

/// Replaces the expert on the directories of the machine.
fn keeps(path: &Path) -> Result<(), String> {
    if path.starts_with("/nowhere") {
        Err("there is no directory /nowhere".to_owned())
    } else {
        Ok(())
    }
}

/// Replaces the expert on the routes of the machine: those of IPv4 lead here, others do not.
fn arrival(arrival: Arrival) -> Option<(String, String)> {
    let wrong = match arrival {
        Arrival::ToSockets { is_ipv6: false } => return None,
        Arrival::ToSockets { is_ipv6: true } => {
            ("nothing leads packets for others here", "ip -6 rule")
        }
        Arrival::WithKeptPorts => ("both sides are one connection to conntrack", "notrack"),
    };
    Some((wrong.0.to_owned(), wrong.1.to_owned()))
}

const WORLD: World<'static> = World {
    variables: &variables,
    read: &read,
    experts: Experts {
        users: &users,
        tls: &tls,
        names: &names,
        account: &account,
        group: &group,
        keeps: &keeps,
        arrival: &arrival,
    },
};

fn files(kind: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(kind);
    let mut files: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| {
        path.extension().is_some_and(|extension| extension == "kdl" || extension == "json")
    });
    files.sort();
    assert!(!files.is_empty());
    files
}

/// Compares with the file beside it, or writes that.
fn compare(path: &Path, actual: &str, failures: &mut Vec<String>) {
    let expected = PathBuf::from(format!("{}.expected", path.display()));
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&expected, actual).unwrap();
    }
    let expected = fs::read_to_string(&expected).unwrap_or_default();
    if expected != actual {
        failures
            .push(format!("{}\n--- expected\n{expected}\n--- actual\n{actual}", path.display()));
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn good_configurations_print_what_they_mean() {
    let mut failures = Vec::new();
    for path in files("good") {
        let text = fs::read_to_string(&path).unwrap();
        let config =
            parse_in(&text, &name(&path), WORLD).unwrap_or_else(|errors| panic!("{errors}"));
        assert_reads_back_here(&config, &path);
        let warnings =
            config.warnings.map(|warnings| warnings.render(false, 100)).unwrap_or_default();
        compare(&path, &(config.tree.to_kdl() + &warnings), &mut failures);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Names in the corpus resolve only in its world.
fn assert_reads_back_here(config: &weir_config::Config, path: &Path) {
    for (name, text) in [("p.kdl", config.tree.to_kdl()), ("p.json", config.tree.to_json())] {
        let again = parse_in(&text, name, WORLD)
            .unwrap_or_else(|errors| panic!("{}: {errors}", path.display()));
        assert_eq!(format!("{:?}", config.plan), format!("{:?}", again.plan));
        assert_eq!((&config.admin, config.metrics), (&again.admin, again.metrics));
    }
}

#[test]
fn bad_configurations_say_what_is_wrong() {
    let mut failures = Vec::new();
    for path in files("bad") {
        let text = fs::read_to_string(&path).unwrap();
        match parse_in(&text, &name(&path), WORLD) {
            Ok(config) => failures.push(format!("{} was accepted: {config:?}", path.display())),
            Err(errors) => compare(&path, &errors.render(false, 100), &mut failures),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_truncation_of_the_corpus_is_an_answer() {
    for path in files("good").into_iter().chain(files("bad")) {
        let text = fs::read_to_string(&path).unwrap();
        for end in (0..text.len()).step_by(7).filter(|end| text.is_char_boundary(*end)) {
            match parse_in(&text[..end], &name(&path), WORLD) {
                Ok(config) => assert_reads_back_here(&config, &path),
                Err(errors) => assert!(!errors.render(false, 80).is_empty()),
            }
        }
    }
}

#[test]
fn json_and_kdl_of_the_same_configuration_give_the_same_plan() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/good");
    let plan = |file: &str| {
        let text = fs::read_to_string(directory.join(file)).unwrap();
        format!("{:?}", parse_in(&text, file, WORLD).unwrap().plan)
    };
    assert_eq!(plan("issue.kdl"), plan("issue.json"));
    assert_eq!(plan("forward.kdl"), plan("forward.json"));
    assert_eq!(plan("connections.kdl"), plan("connections.json"));
}

#[test]
fn errors_for_programs_have_places() {
    let errors = parse_in("listen \"127.0.0.1:1\"\n  lissten 2\n", "x.kdl", WORLD).unwrap_err();
    let json = errors.to_json();
    assert_eq!(json["file"], "x.kdl");
    let unknown = &json["errors"]
        .as_array()
        .unwrap()
        .iter()
        .find(|error| error["code"] == "unknown-option")
        .unwrap();
    assert_eq!((&unknown["line"], &unknown["column"]), (&2.into(), &3.into()));
    assert_eq!(unknown["help"], "did you mean `listen`?");
}

/// The pages with the option table, each with some of its blocks.
const OPTION_PAGES: [&str; 9] = [
    "docs/configuration-listen.md",
    "docs/configuration-clients.md",
    "docs/configuration-upstream.md",
    "docs/configuration-servers.md",
    "docs/configuration-routes.md",
    "docs/configuration-cache.md",
    "docs/configuration-forward.md",
    "docs/configuration-shield.md",
    "docs/configuration-process.md",
];

/// Pages whose examples must be valid, besides those with options.
const PAGES_WITH_EXAMPLES: [&str; 9] = [
    "docs/cache-decisions.md",
    "docs/configuration.md",
    "docs/balancing.md",
    "docs/forward.md",
    "docs/start.md",
    "docs/examples.md",
    "docs/http2.md",
    "docs/shield.md",
    "README.md",
];

/// Each block is on exactly one page, by its heading. To add a block, put its heading between the
/// marks of a page and run this with `UPDATE=1`.
#[test]
fn the_option_pages_are_the_option_table() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let reference = weir_config::reference();
    let mut left: Vec<&str> = reference.split("### ").skip(1).collect();
    for page in OPTION_PAGES {
        let path = root.join(page);
        let text = fs::read_to_string(&path).unwrap();
        let (head, rest) = text.split_once("<!-- options -->\n").unwrap();
        let (own, tail) = rest.split_once("<!-- end of options -->").unwrap();
        let mut wanted = format!("{head}<!-- options -->\n");
        for heading in own.lines().filter_map(|line| line.strip_prefix("### ")) {
            let at = left.iter().position(|section| section.lines().next() == Some(heading));
            let at =
                at.unwrap_or_else(|| panic!("{page}: {heading} is no block, or is on two pages"));
            wanted.push_str("### ");
            wanted.push_str(left.remove(at));
        }
        wanted.push_str("<!-- end of options -->");
        wanted.push_str(tail);
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&path, &wanted).unwrap();
        }
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, wanted, "run UPDATE=1 cargo test -p weir-config");
    }
    let left: Vec<_> = left.iter().filter_map(|section| section.lines().next()).collect();
    assert!(left.is_empty(), "these blocks are on no page: {left:?}");
}

#[test]
fn examples_of_the_pages_are_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pages = OPTION_PAGES.iter().chain(&PAGES_WITH_EXAMPLES);
    let page: String = pages.map(|page| fs::read_to_string(root.join(page)).unwrap()).collect();
    let examples: Vec<_> =
        page.split("```kdl\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(!examples.is_empty());
    for example in examples {
        let world = World {
            variables: &|_| Some("8080".to_owned()),
            read: &|_| Ok(b"# names\nblocked.example\n".to_vec()),
            experts: Experts {
                users: &|_, _| Ok(1),
                tls: &tls,
                names: &|_, _| Vec::new(),
                account: &|_| Ok(()),
                group: &|_| Ok(0),
                keeps: &|_| Ok(()),
                arrival: &|_| None,
            },
        };
        let config = parse_in(example, "example.kdl", world)
            .unwrap_or_else(|errors| panic!("{errors}\n{example}"));
        assert_reads_back(&config);
    }
}

/// The table of the README: block, option, default. It must agree with the option table.
#[test]
fn common_options_are_those_of_the_option_table() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/common-options.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once("| block | option | default |").unwrap();
    let rows: Vec<Vec<&str>> =
        section.lines().skip(2).take_while(|line| line.starts_with("| `")).map(cells).collect();
    assert!(rows.len() > 5);
    let reference = weir_config::reference();
    for row in rows {
        let (block, option, default) = (row[0], row[1], row[2]);
        let of_block = reference.split("### ").find(|part| part.starts_with(block)).unwrap();
        let line = of_block.lines().map(cells).find(|line| line.first() == Some(&option));
        match line {
            Some(line) => assert_eq!(line[2], default, "{option} in {block}"),
            // A block inside the block, such as `pipeline`.
            None => assert!(
                reference.contains(&format!("### {option} in {block}\n")),
                "{option} in {block}"
            ),
        }
    }
}

/// The cells of a line of a table.
fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split(" | ").map(str::trim).collect()
}
