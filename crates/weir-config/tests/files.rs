//! Files that cannot be read, are not text or are too large: each is one clear error. Also the
//! defaults of the table against those of the plan.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use weir_config::{Experts, FILE_BYTES_MAX, find_path, load, parse};
use weir_http::Fields;
use weir_proxy::plan::{
    CachePlan, CacheRules, ClientPlan, DiscoveryPlan, HealthPlan, ListenerPlan, ServerPlan,
    ShutdownPlan, UpgradePlan, UpstreamPlan,
};
use weir_proxy::request::route::Asked;

fn file(name: &str, content: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("weir-config-{}-{name}", std::process::id()));
    fs::write(&path, content).unwrap();
    path
}

#[test]
fn files_that_are_no_configuration() {
    for (name, content, code) in [
        ("bytes.kdl", &b"listen \"\xff\"\n"[..], "syntax"),
        ("empty.kdl", b"", "nothing-to-do"),
        ("empty.json", b"{}", "nothing-to-do"),
        ("large.kdl", &vec![b'\n'; usize::try_from(FILE_BYTES_MAX).unwrap() + 1], "too-large"),
    ] {
        let path = file(name, content);
        let errors = load(&path, Experts::NOBODY).unwrap_err();
        fs::remove_file(&path).unwrap();
        let codes: Vec<_> = errors.problems().iter().map(|problem| problem.code).collect();
        assert_eq!(codes, [code], "{name}: {errors}");
        assert!(errors.render(false, 100).contains(name));
    }
}

#[test]
fn files_that_can_not_be_read() {
    let missing = std::env::temp_dir().join("weir-config-does-not-exist.kdl");
    let directory = std::env::temp_dir();
    for path in [missing, directory] {
        let errors = load(&path, Experts::NOBODY).unwrap_err();
        assert_eq!(errors.problems()[0].code, "unreadable");
        assert!(errors.to_string().contains(&path.display().to_string()));
    }
}

/// The FIFO of a test, which is removed together with this.
struct Pipe(PathBuf);

impl Pipe {
    fn new(name: &str) -> Pipe {
        let path = std::env::temp_dir().join(format!("weir-config-{}-{name}", std::process::id()));
        let _ = fs::remove_file(&path);
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        Pipe(path)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn a_pipe_without_a_writer_is_not_waited_for() {
    let pipe = Pipe::new("idle.kdl");
    let errors = load(&pipe.0, Experts::NOBODY).unwrap_err();
    assert_eq!(errors.problems()[0].code, "unreadable");
    assert!(errors.to_string().contains("no program writes to this pipe"), "{errors}");
    // Nor is one that the configuration names: it would have to be read again.
    let rest = "listen \"127.0.0.1:80\"; upstream app { server \"10.0.0.1:80\"; }";
    let named = format!("{rest}; route {{ respond 503 file={:?}; }}", pipe.0.display().to_string());
    let errors = parse(&named, "weir.kdl").unwrap_err();
    assert!(errors.to_string().contains("it is a pipe, a socket or a device"), "{errors}");
}

#[test]
fn a_configuration_may_come_through_a_pipe() {
    let (ours, mut end) = std::io::pipe().unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&ours)));
    let reader = std::thread::spawn(move || {
        load(&path, Experts::NOBODY).map(|config| config.plan.listeners.len())
    });
    for part in ["listen \"127.0.0.1:80\"\n", "route { respond 204; }\n"] {
        std::io::Write::write_all(&mut end, part.as_bytes()).unwrap();
        std::thread::yield_now();
    }
    drop(end);
    assert_eq!(reader.join().unwrap().unwrap(), 1);
}

#[test]
fn the_named_file_is_the_one() {
    let path = PathBuf::from("/some/where.kdl");
    assert_eq!(find_path(Some(&path)).unwrap(), path);
}

#[test]
fn defaults_of_the_table_are_those_of_the_plan() {
    let text =
        "listen \"127.0.0.1:80\"; upstream app { server \"10.0.0.1:80\"; }; route { proxy app; }";
    let plan = parse(text, "defaults.kdl").unwrap().plan;
    let server = ServerPlan::new("10.0.0.1:80", "10.0.0.1:80".parse().unwrap());
    let upstream =
        UpstreamPlan { name: "app".to_owned(), servers: vec![server], ..UpstreamPlan::default() };
    assert_eq!(format!("{:?}", plan.client), format!("{:?}", ClientPlan::default()));
    assert_eq!(format!("{:?}", plan.upstreams), format!("{:?}", [upstream]));
    let probed = parse(&text.replace("\"10.0.0.1:80\";", "\"10.0.0.1:80\"; health;"), "health.kdl")
        .unwrap()
        .plan;
    assert_eq!(probed.upstreams[0].health, Some(HealthPlan::default()));
    assert_eq!(plan.shutdown, ShutdownPlan::default());
    assert_eq!(plan.discovery, DiscoveryPlan::default());
    let ends = parse(&format!("{text}; shutdown"), "shutdown.kdl").unwrap().plan;
    assert_eq!(ends.shutdown, ShutdownPlan::default());
    assert_eq!(plan.upgrade, UpgradePlan::default());
    let gives_way = parse(&format!("{text}; upgrade"), "upgrade.kdl").unwrap().plan;
    assert_eq!(gives_way.upgrade, UpgradePlan::default());
    let caches = |text: &str| {
        let plan = parse(text, "cache.kdl").unwrap().plan;
        let asked = Asked {
            listener: None,
            sealed: false,
            host: b"a",
            path: b"/",
            method: b"GET",
            fields: &Fields::default(),
            bytes: b"",
        };
        let rules =
            plan.routes.find(&asked, &mut Vec::new()).unwrap().and_then(|to| to.rules.clone());
        (plan.cache.map(|cache| format!("{cache:?}")), rules.and_then(|rules| rules.cache.clone()))
    };
    let usual =
        (Some(format!("{:?}", CachePlan::default())), Some(Arc::new(CacheRules::default())));
    let cached = text.replace("proxy app;", "proxy app; cache;");
    assert_eq!(caches(&cached), usual);
    assert_eq!(caches(&format!("{cached}; cache")), usual);
    assert_eq!(caches(&format!("{text}; cache")), (None, None));
    assert_eq!(plan.listeners, [ListenerPlan::new("127.0.0.1:80".parse().unwrap())]);
}
