//! Proves: orders that cannot be carried out are rejected with a remedy, and others are in force
//! then, once. How: a configuration with servers of every origin, and `messages.txt` beside this
//! file (`UPDATE=1` writes it).

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use weir_proxy::plan::Known;

use super::*;

const CONFIGURATION: &str = r#"
listen "127.0.0.1:8080"
upstream "app" { server "10.0.0.1:80"; server "app.test:80"; servers-from "/etc/weir/list.kdl"; }
upstream "bound" { pool "pinned"; server "10.0.0.1:80"; }
forward { listen "127.0.0.1:3128"; }
route { proxy "app"; }
route path="/own" pool="pinned" { proxy "app"; }
route path="/bound" { proxy "bound"; }
"#;

fn written() -> Plan {
    weir_config::parse(CONFIGURATION, "weir.kdl").expect("valid").plan
}

/// Returns what is known of names and files, with these temporary servers.
fn known(temporary: Temporary) -> Known {
    let place = SocketAddr::from(([10, 0, 0, 5], 80)).into();
    let listed = parse_server("10.0.0.6:80", &[]).expect("valid");
    Known {
        names: [("app.test:80".to_owned(), vec![place])].into(),
        files: [(PathBuf::from("/etc/weir/list.kdl"), vec![listed])].into(),
        temporary,
    }
}

/// Returns a plan in force, with one temporary server.
fn plan() -> Plan {
    let plan = written().located(&known(Temporary::new()));
    written()
        .located(&known(with(&plan, "app", &added("10.0.0.9:80", &[])).expect("it can be added")))
}

fn added(address: &str, options: &[(&str, &str)]) -> Added {
    read(address, options).expect("valid")
}

fn read(address: &str, options: &[(&str, &str)]) -> Result<Added, String> {
    let options: Vec<_> =
        options.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    Added::read(address, &options)
}

fn names(temporary: &Temporary, upstream: &str) -> Vec<String> {
    temporary.get(upstream).into_iter().flatten().map(|server| server.name.clone()).collect()
}

#[test]
fn what_can_not_be_done_is_said() {
    let plan = plan();
    let mut said = String::new();
    let mut note = |asked: String, why: Result<Temporary, String>| {
        let why = why.expect_err(&asked);
        writeln!(said, "{asked}\nweir: {why}\n").expect("memory");
    };
    for (upstream, address) in [
        ("app", "10.0.0.1:80"),
        ("app", "10.0.0.6:80"),
        ("app", "10.0.0.9:80"),
        ("ap", "10.0.0.8:80"),
        ("web", "10.0.0.8:80"),
        ("app (pinned)", "10.0.0.8:80"),
        ("forward", "10.0.0.8:80"),
    ] {
        note(format!("add {upstream} {address}"), with(&plan, upstream, &added(address, &[])));
    }
    let asked = "add bound 10.0.0.8:80 connections=4".to_owned();
    note(
        asked,
        with(&plan, "bound", &added("10.0.0.8:80", &[("weight", "3"), ("connections", "4")])),
    );
    for (upstream, server) in [
        ("app", "10.0.0.1:80"),
        ("app", "app.test@10.0.0.5:80"),
        ("app", "10.0.0.6:80"),
        ("app", "10.0.0.7:80"),
        ("bound", "10.0.0.9:80"),
        ("ap", "10.0.0.9:80"),
        ("app (pinned)", "10.0.0.9:80"),
        ("forward", "forward"),
    ] {
        note(format!("remove {upstream} {server}"), without([&plan; 2], upstream, server));
    }
    let nobody = weir_config::parse(
        &CONFIGURATION.replace("server \"10.0.0.1:80\"; server", "server"),
        "weir.kdl",
    );
    let nobody = nobody.expect("valid").plan.located(&Known::default());
    note(
        "remove app 10.0.0.9:80, of nobody".to_owned(),
        without([&nobody; 2], "app", "10.0.0.9:80"),
    );
    for address in
        ["app.test:80", "_http._tcp.app.test", "10.0.0.8", "/run/app.sock", "unix:app.sock"]
    {
        note(format!("add app {address}"), read(address, &[]).map(|_| Temporary::new()));
    }
    let asked = "add app 10.0.0.8:80 wieght=0 connections=0".to_owned();
    note(
        asked,
        read("10.0.0.8:80", &[("wieght", "0"), ("connections", "0")]).map(|_| Temporary::new()),
    );
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/reload/temporary/messages.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, &said).expect("it can be written");
    }
    assert_eq!(said, std::fs::read_to_string(&file).unwrap_or_default());
}

#[test]
fn what_is_added_is_in_all_pools_and_goes_again() {
    let plan = plan();
    let of = |plan: &Plan, name: &str| {
        let upstream =
            plan.upstreams.iter().find(|upstream| upstream.name == name).expect("it is there");
        upstream.present().filter(|server| server.temporary).count()
    };
    assert_eq!([of(&plan, "app"), of(&plan, "app (pinned)"), of(&plan, "bound")], [1, 1, 0]);
    let two =
        with(&plan, "app", &added("unix:/run/a.sock", &[("backup", "on")])).expect("another one");
    assert_eq!(names(&two, "app"), ["10.0.0.9:80", "unix:/run/a.sock"]);
    let plan = written().located(&known(two));
    assert_eq!(plan.temporary(), known(plan.temporary()).temporary);
    let one = without([&plan; 2], "app", "10.0.0.9:80").expect("it was added");
    assert_eq!(names(&one, "app"), ["unix:/run/a.sock"]);
    let plan = written().located(&known(one));
    assert_eq!([of(&plan, "app"), of(&plan, "app (pinned)")], [1, 1]);
    // Connections of clients are for all servers there.
    assert!(with(&plan, "app", &added("10.0.0.8:80", &[("connections", "4")])).is_ok());
    assert!(with(&plan, "bound", &added("10.0.0.8:80", &[("weight", "4")])).is_ok());
}

/// Some workers may have a plan that a job could not complete: it can be repeated, or undone.
#[test]
fn what_has_failed_may_be_tried_again() {
    let (with_it, without_it) = (plan(), written().located(&known(Temporary::new())));
    let again =
        with(&without_it, "app", &added("10.0.0.9:80", &[])).expect("it is not there for good");
    assert_eq!(names(&again, "app"), ["10.0.0.9:80"]);
    for plans in [[&with_it, &without_it], [&without_it, &with_it]] {
        let none = without(plans, "app", "10.0.0.9:80").expect("it is there still");
        assert_eq!(names(&none, "app"), [""; 0]);
    }
    assert!(without([&without_it; 2], "app", "10.0.0.9:80").is_err());
}

#[test]
fn what_becomes_of_them_is_told() {
    let (plan, temporary) = (plan(), plan().temporary());
    assert!(lines(&plan, &plan).is_empty());
    let removed = written().located(&known(Temporary::new()));
    assert!(lines(&plan, &removed).is_empty());
    let next = |from: &str, to: &str| {
        let text = CONFIGURATION.replace(from, to);
        weir_config::parse(&text, "weir.kdl")
            .expect("valid")
            .plan
            .located(&known(temporary.clone()))
    };
    let line = "upstream \"app\": temporary server \"10.0.0.9:80\"";
    assert_eq!(lines(&plan, &next("\"app\"", "\"new\"")), [format!("{line} is removed with it")]);
    let written_down =
        next("server \"10.0.0.1:80\"; server \"app", "server \"10.0.0.9:80\"; server \"app");
    assert_eq!(lines(&plan, &written_down), [format!("{line} is in the configuration now")]);
    let listed = vec![parse_server("10.0.0.9:80", &[]).expect("valid")];
    let known = Known {
        files: [(PathBuf::from("/etc/weir/list.kdl"), listed)].into(),
        ..known(temporary.clone())
    };
    let listed = written().located(&known);
    assert_eq!(lines(&plan, &listed), [format!("{line} is in `/etc/weir/list.kdl` now")]);
    assert!(listed.temporary().is_empty());
    let why = without([&plan, &listed], "app", "10.0.0.9:80").expect_err("it would be there still");
    assert!(
        why.contains("it is in `/etc/weir/list.kdl`\n  help: remove it from `/etc/weir/list.kdl`"),
        "{why}"
    );
}

#[test]
fn there_is_an_end_to_it() {
    let mut plan = plan();
    // That upstream has two slots already.
    for number in 2..TEMPORARY_MAX {
        let address =
            SocketAddr::from(([10, 1, (number >> 8) as u8, number as u8], 80)).to_string();
        plan = written()
            .located(&known(with(&plan, "bound", &added(&address, &[])).expect("there is room")));
    }
    let why = with(&plan, "bound", &added("10.0.0.8:80", &[])).expect_err("there is no room");
    assert!(why.starts_with("no room for another temporary server: the limit is 256"), "{why}");
    let fewer =
        written().located(&known(without([&plan; 2], "app", "10.0.0.9:80").expect("it is there")));
    let two = with(&fewer, "bound", &added("10.0.0.8:80", &[]))
        .expect("there is room for two in one pool");
    assert!(with(&fewer, "app", &added("10.0.0.8:80", &[])).is_ok(), "or one in two");
    assert!(
        with(&written().located(&known(two)), "app", &added("10.0.0.8:80", &[])).is_err(),
        "not for three"
    );
}
