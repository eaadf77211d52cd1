//! The contents of packages are correct: pages and completions of each verb, the unit, examples,
//! and names of metrics in the dashboard and the alerts. How: the real binary writes the first,
//! systemd and weir's own checker judge the next, a running weir exports the last.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::kit::tls::certificate;
use crate::kit::{Client, Honest, Io, Scratch, Server, Weir, app, free_port, run};
use weir_config::{Experts, World, parse_in};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns what the binary prints.
fn said(arguments: &[&str]) -> String {
    let output = run(env!("CARGO_BIN_EXE_weir"), arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Returns the verbs that `weir --help` lists.
fn verbs() -> Vec<String> {
    let help = said(&["--help"]);
    let list =
        help.split("Commands:\n").nth(1).expect("verbs").split("\n\n").next().unwrap_or_default();
    let names = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<String> =
        names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
    assert!(names.len() > 10 && names.contains(&"run".to_owned()), "{help}");
    names.into_iter().filter(|name| name != "help").collect()
}

#[test]
fn each_verb_has_a_page_and_is_completed() {
    let scratch = Scratch::new();
    let dir = scratch.path("man");
    said(&["man", "--dir", dir.to_str().expect("UTF-8")]);
    let page = |name: &str| {
        fs::read_to_string(dir.join(format!("{name}.1"))).unwrap_or_else(|_| panic!("no {name}.1"))
    };
    assert!(page("weir").contains(".TH weir 1"));
    let shells = ["bash", "zsh", "fish"].map(|shell| said(&["completion", shell]));
    for verb in verbs() {
        let page = page(&format!("weir-{verb}"));
        assert!(page.contains(&format!(".TH weir-{verb} 1")), "{page}");
        let (_, examples) = page
            .split_once(".SH \"EXAMPLES\"\n.PP\n.nf\nweir ")
            .unwrap_or_else(|| panic!("{page}"));
        assert!(examples.contains("\n.fi\n") && page.contains("\n.nh\n"), "{page}");
        assert!(shells.iter().all(|shell| shell.contains(&verb)), "{verb}");
        assert_eq!(said(&["man", &verb]), page, "{verb}");
    }
    assert!(page("weir-status-server").contains("weir\\-status\\-server"));
    assert!(said(&["man", "server", "drain"]).contains(".TH weir-server-drain 1"));
    let configuration = said(&["man", "weir.kdl"]);
    assert!(
        configuration.starts_with(".TH weir.kdl 5")
            && configuration.contains("\\fBforward\\-timeout\\fR")
    );
    let unknown = run(env!("CARGO_BIN_EXE_weir"), &["man", "server", "dran"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("unknown verb `dran`; known: "));
}

/// The unit is valid for every systemd: if systemd-analyze exists, it has no findings.
/// `systemctl reload` waits for `weir reload`.
#[test]
fn systemd_takes_the_unit() {
    let unit = text("packaging/weir.service");
    let types: Vec<&str> = unit.lines().filter(|line| line.starts_with("Type=")).collect();
    assert_eq!(types, ["Type=notify"], "systemd before 253 knows no `notify-reload`");
    for line in [
        "ExecReload=/usr/bin/weir reload",
        "NotifyAccess=main",
        "AmbientCapabilities=CAP_NET_BIND_SERVICE",
        "User=weir",
    ] {
        assert!(unit.lines().any(|other| other == line), "{line}");
    }
    assert!(unit.contains("RestartPreventExitStatus=2 77 78\n"), "what a restart can't heal");
    // It looks for the program, which is not installed here.
    let scratch = Scratch::new();
    let here = unit.replace("/usr/bin/weir", env!("CARGO_BIN_EXE_weir"));
    let file = scratch.write("weir.service", here.as_bytes());
    let verify = Command::new("systemd-analyze").args(["--man=no", "verify"]).arg(&file).output();
    let Ok(output) = verify else { return };
    let told = String::from_utf8_lossy(&output.stderr);
    let wrong: Vec<&str> = told.lines().filter(|line| line.contains("weir.service")).collect();
    assert!(output.status.success() && wrong.is_empty(), "{told}");
    // Exposed as little as a program that listens on the network can be: 2 of 10, as systemd
    // counts.
    let file = root().join("packaging/weir.service");
    let judged = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--threshold=20"])
        .arg(file)
        .output();
    let told = judged.map(|output| {
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    });
    // It can do that without a running systemd since 250.
    if let Ok((is_good, told)) = told
        && told.contains("Overall exposure")
    {
        assert!(is_good, "{told}");
    }
}

/// The same for the unit of an interception, which is packaged, and whose rights are those in the
/// documents.
#[test]
fn systemd_takes_the_unit_of_an_interception() {
    let (name, unit) = ("weir-intercept@.service", text("packaging/weir-intercept@.service"));
    let rights = "CAP_SYS_ADMIN CAP_NET_ADMIN CAP_NET_RAW CAP_BPF";
    assert!(unit.lines().any(|line| line == format!("CapabilityBoundingSet={rights}")), "{rights}");
    let written = text("docs/intercept.md");
    assert!(
        written.contains(&format!("Needs root ({})", rights.replace(' ', ", "))),
        "docs/intercept.md names them"
    );
    for file in ["scripts/dist", "packaging/weir.spec", "scripts/dist-try"] {
        assert!(text(file).contains(&format!("/usr/lib/systemd/system/{name}")), "{file}");
    }
    let scratch = Scratch::new();
    let here = unit.replace("/usr/bin/weir", env!("CARGO_BIN_EXE_weir"));
    let file = scratch.write("weir-intercept@wan.service", here.as_bytes());
    let verify = Command::new("systemd-analyze").args(["--man=no", "verify"]).arg(&file).output();
    let Ok(output) = verify else { return };
    let told = String::from_utf8_lossy(&output.stderr);
    let wrong = told.lines().any(|line| line.contains("weir-intercept@wan.service"));
    assert!(output.status.success() && !wrong, "{told}");
}

/// The socket unit opens the listeners of the example configuration, and is packaged.
#[test]
fn the_socket_unit_fits_the_example() {
    let (socket, example) = (text("packaging/weir.socket"), text("packaging/weir.kdl"));
    let streams: Vec<&str> =
        socket.lines().filter_map(|line| line.strip_prefix("ListenStream=")).collect();
    let listen = |line: &str| line.strip_prefix("listen \"")?.split('"').next().map(str::to_owned);
    assert_eq!(streams, example.lines().filter_map(listen).collect::<Vec<_>>());
    for file in ["scripts/dist", "packaging/weir.spec"] {
        assert!(text(file).contains("/usr/lib/systemd/system/weir.socket"), "{file}");
    }
    // systemd finds the service by the name.
    assert!(!socket.contains("Service="));
}

/// Returns instructions of the Containerfile with their arguments, without comments and continued
/// lines.
fn instructions(text: &str) -> Vec<(String, String)> {
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect::<Vec<_>>()
        .join("\n")
        .replace("\\\n", " ");
    let split = |line: &str| {
        line.split_once(' ').map(|(word, rest)| (word.to_owned(), rest.trim().to_owned()))
    };
    lines
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| split(line).expect("an instruction and what it is of"))
        .collect()
}

/// No image is built here: the Containerfile copies only what packages contain, and runs only what
/// weir knows.
#[test]
fn the_container_file_copies_what_is_there_and_runs_what_weir_knows() {
    let all = instructions(&text("packaging/Containerfile"));
    let of = |word: &str| {
        all.iter()
            .filter(|(other, _)| other == word)
            .map(|(_, rest)| rest.as_str())
            .collect::<Vec<_>>()
    };
    let known = ["FROM", "COPY", "ENV", "EXPOSE", "HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "CMD"];
    assert!(
        all[0].0 == "FROM" && all.iter().all(|(word, _)| known.contains(&word.as_str())),
        "{all:?}"
    );
    let packed = text("scripts/dist");
    for copy in of("COPY") {
        let (from, to) = copy.split_once(' ').expect("from and to");
        assert_eq!(to, format!("/{from}"));
        assert!(packed.contains(&format!("\"$1/{from}\"\n")), "{from} is not laid out");
    }
    let words = |text: &str| {
        serde_json::from_str::<Vec<String>>(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    };
    let [entry, command, health] = ["ENTRYPOINT", "CMD", "HEALTHCHECK"].map(|word| of(word)[0]);
    let health = words(health.strip_prefix("CMD ").expect("a command"));
    assert_eq!(
        (words(entry), &health[0]),
        (vec!["/usr/bin/weir".to_owned()], &"/usr/bin/weir".to_owned())
    );
    let command = words(command);
    assert_eq!(command[command.len() - 1], "/etc/weir/weir.kdl");
    // With an unknown option there would be no help.
    for words in [&command[..command.len() - 2], &health[1..]] {
        let words: Vec<&str> = words.iter().map(String::as_str).chain(["--help"]).collect();
        assert!(said(&words).contains("Usage: weir "), "{words:?}");
    }
    let ports: Vec<&str> = of("EXPOSE");
    assert!(text("packaging/weir.kdl").contains(&format!("listen \"0.0.0.0:{}\"", ports[0])));
    assert_eq!(of("ENV"), ["WEIR_ADMIN=/tmp/admin.sock"]);
}

/// Returns lines of a text in YAML as indentation and content. This file only needs even
/// indentation without tabs.
fn yaml_lines(text: &str) -> Vec<(usize, &str)> {
    let lines =
        text.lines().filter(|line| !line.trim_start().starts_with('#') && !line.trim().is_empty());
    let lines: Vec<(usize, &str)> =
        lines.map(|line| (line.len() - line.trim_start().len(), line.trim())).collect();
    assert!(
        lines.iter().all(|(indent, line)| indent % 2 == 0 && !line.contains('\t')),
        "{lines:?}"
    );
    lines
}

/// The forge runs the same as developers at home, with the Rust version of the workspace.
#[test]
fn the_forge_runs_make_test() {
    let workflow = text(".github/workflows/test.yml");
    let lines = yaml_lines(&workflow);
    let top: Vec<&str> =
        lines.iter().filter(|(indent, _)| *indent == 0).map(|(_, line)| *line).collect();
    assert_eq!(top, ["name: test", "on:", "permissions:", "concurrency:", "jobs:"]);
    let steps = lines.iter().skip_while(|(_, line)| *line != "steps:").skip(1);
    let steps: Vec<&str> =
        steps.filter(|(indent, _)| *indent == 6).map(|(_, line)| *line).collect();
    assert!(
        steps.iter().all(|step| step.starts_with("- uses: ") || step.starts_with("- run: ")),
        "{steps:?}"
    );
    assert!(
        steps[0].starts_with("- uses: actions/checkout@") && steps.contains(&"- run: make test"),
        "{steps:?}"
    );
    let has = |line: &str| lines.iter().any(|(_, other)| *other == line);
    assert!(
        has("contents: read") && has("runs-on: ubuntu-24.04") && has("pull_request:"),
        "{workflow}"
    );
    let image = lines
        .iter()
        .find_map(|(_, line)| line.strip_prefix("image: docker.io/library/rust:"))
        .expect("Rust");
    let manifest = text("Cargo.toml");
    let wanted = manifest
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = \""))
        .expect("a version");
    assert!(
        image.starts_with(wanted.trim_end_matches('"')),
        "{image}: the workspace asks for {wanted}"
    );
}

/// All examples are valid, and those that need no file of yours are also valid for `weir check`.
#[test]
fn examples_are_valid() {
    let entries = fs::read_dir(root().join("examples"))
        .expect("examples")
        .map(|entry| entry.expect("a file").path());
    let mut examples: Vec<PathBuf> = entries.collect();
    assert!(
        examples.len() >= 6
            && examples.iter().all(|path| path.extension().is_some_and(|end| end == "kdl"))
    );
    examples.push(root().join("packaging/weir.kdl"));
    let world = World { variables: &|_| None, read: &|_| Ok(Vec::new()), experts: Experts::NOBODY };
    for path in examples {
        let text = fs::read_to_string(&path).expect("text");
        assert!(text.starts_with("// "), "{} does not say what it shows", path.display());
        let config = parse_in(&text, "example.kdl", world)
            .unwrap_or_else(|errors| panic!("{}: {errors}", path.display()));
        assert!(
            config.warnings.is_none(),
            "{}: {}",
            path.display(),
            config.warnings.expect("some")
        );
        let in_force: String = text.lines().filter(|line| !line.starts_with("//")).collect();
        if !in_force.contains("\"/etc/") {
            assert_eq!(said(&["check", "-c", path.to_str().expect("UTF-8")]), "");
        }
    }
}

/// Returns the names of all samples and families that a running weir exports. Labels that were
/// never counted are missing: so one request is rejected, and one takes too long.
fn exported() -> BTreeSet<String> {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let [metrics, secure] = [(), ()].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
    let row = certificate(&scratch, "ec", &["localhost"], 30).row();
    let tls = format!("listen \"{secure}\" {{\n tls {{\n{row}}}\n}}\n");
    let more = format!("client {{ head-timeout \"50ms\"; }}\nmetrics \"{metrics}\"\n{tls}");
    let weir = Weir::start(Io::Epoll, 1, &format!("{more}{}", app(&server, 1, "")));
    let mut client = Client::connect(weir.address);
    client.get("/");
    assert_eq!(client.reply().status, 200);
    for (head, status) in [("GET / HTTP/1.1\r\n\r\n", 400), ("GET / HTTP/1.1\r\nHost: a\r\n", 408)]
    {
        let mut client = Client::connect(weir.address);
        client.ask("GET", false);
        client.send(head.as_bytes());
        assert_eq!(client.reply().status, status);
    }
    let mut stream = TcpStream::connect(metrics).expect("it listens");
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n")
        .expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let lines = answer.lines().map(|line| line.trim_start_matches("# TYPE "));
    let lines = lines.filter(|line| line.starts_with("weir_"));
    lines.filter_map(|line| line.split(['{', ' ']).next()).map(str::to_owned).collect()
}

/// Returns words of a text that are names of metrics.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("weir_")).collect()
}

#[test]
fn dashboard_and_alerts_name_what_is_exported() {
    let (dashboard, alerts) =
        (text("packaging/weir-grafana.json"), text("packaging/weir-alerts.yml"));
    let json: serde_json::Value = serde_json::from_str(&dashboard).expect("JSON");
    assert!(json["panels"].as_array().is_some_and(|panels| panels.len() > 15));
    let count = |word: &str| alerts.matches(word).count();
    assert!(
        count("- alert: ") > 9
            && count("- alert: ") == count("expr: ")
            && count("expr: ") == count("summary: ")
    );
    let exported = exported();
    assert!(exported.len() > 100, "{exported:?}");
    let missing: Vec<&str> = named(&dashboard)
        .into_iter()
        .chain(named(&alerts))
        .filter(|name| !exported.contains(*name))
        .collect();
    assert!(missing.is_empty(), "{missing:?} in {exported:?}");
}
