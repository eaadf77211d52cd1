//! Proves: stored responses survive a restart, an upgrade and a crash, aged by the time between.
//! Purged or invalid ones remain gone, even when weir is killed a moment later. Stale or damaged
//! responses, those stored by other rules, and files that others may have written are not used, and
//! operators are informed. If weir cannot write, it serves clients all the same. How: the real
//! binary with a snapshot in a separate directory, whose time of writing is moved back in the file.
//! docs/cache-rules.md.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use weir_cache::{PREFACE_BYTES, Preface};
use weir_check::Request;

use crate::kit::{Client, Io, Link, Scratch, Server, Weir, eventually, finish, on_both_drivers};

on_both_drivers!(
    it_is_there_after_a_restart,
    it_grows_older_meanwhile,
    what_was_purged_stays_gone,
    what_is_purged_before_a_crash_stays_gone,
    another_program_has_it,
    a_damaged_one_is_used_up_to_the_damage,
    who_else_could_have_written_it,
    rules_that_changed,
    nowhere_to_write,
    a_reload_moves_it,
);

/// A server, and the place of the snapshot.
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) scratch: Scratch,
}

impl World {
    pub(crate) fn new() -> World {
        let server = Server::start(|link: &mut Link, request: &Request| {
            let control =
                if request.target.contains("brief") { "max-age=60" } else { "max-age=6000" };
            let body = if request.target.contains("large") {
                "x".repeat(300_000)
            } else {
                request.target.clone()
            };
            let lines = format!(
                "Cache-Control: {control}\r\nCache-Groups: \"{}\"\r\n",
                &request.target[1..2]
            );
            let length = body.len();
            link.answer(
                format!("HTTP/1.1 200 OK\r\n{lines}Content-Length: {length}\r\n\r\n{body}")
                    .as_bytes(),
            )
        });
        World { server, scratch: Scratch::new() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.scratch.path("cache.snapshot")
    }

    pub(crate) fn text(&self, store: &str, route: &str) -> String {
        let (path, address) = (self.path(), self.server.address);
        format!(
            "cache {{ snapshot \"{}\"; {store} }}\nupstream \"app\" {{ server \"{address}\"; }}\n\
                route {{ proxy \"app\"; cache {{ cache-status on; {route} }} }}\n",
            path.display()
        )
    }

    pub(crate) fn start(&self, io: Io, store: &str) -> Weir {
        Weir::start(io, 2, &self.text(store, ""))
    }

    /// Returns the number of requests to the server with this target.
    fn asked(&self, target: &str) -> usize {
        self.server.log().requests.iter().filter(|(_, request)| request.target == target).count()
    }

    pub(crate) fn preface(&self) -> Preface {
        Preface::decode(fs::read(self.path()).expect("a file").first_chunk().expect("a preface"))
            .expect("whole")
    }

    /// Makes it look this many seconds older.
    fn grow_older(&self, seconds: u64) {
        let mut bytes = fs::read(self.path()).expect("a file");
        let preface = self.preface();
        let older = Preface { written_us: preface.written_us - seconds * 1_000_000, ..preface };
        bytes[..PREFACE_BYTES].copy_from_slice(&older.encode());
        fs::write(self.path(), bytes).expect("it can be written");
    }
}

/// Returns the stored content for this target and its Age. None: nothing usable.
pub(crate) fn stored(weir: &Weir, target: &str) -> Option<(Vec<u8>, u64)> {
    let mut client = Client::connect(weir.address);
    client.request("GET", target, "Cache-Control: only-if-cached\r\n", b"");
    let reply = client.reply();
    let age = reply.fields.all("age").first().and_then(|age| age.parse().ok()).unwrap_or(0);
    (reply.status == 200).then_some((reply.body.bytes, age))
}

/// Has responses for these targets stored.
pub(crate) fn store(weir: &Weir, targets: &[&str]) {
    for target in targets {
        let mut client = Client::connect(weir.address);
        client.get(target);
        client.reply();
        eventually("it is stored", || stored(weir, target).is_some());
    }
}

pub(crate) fn snapshot(weir: &Weir) -> Value {
    let stats: Value =
        serde_json::from_str(&weir.answer(&["cache", "stats", "--json"])).expect("JSON");
    stats["snapshot"].clone()
}

/// Waits until all of a snapshot has been read.
pub(crate) fn restored(weir: &Weir, count: u64) {
    eventually("it is read", || snapshot(weir)["restored"] == count);
}

/// Waits until weir prints this.
pub(crate) fn says(weir: &Weir, what: &str) {
    eventually(what, || weir.said().contains(what));
}

pub(crate) fn kill(mut weir: Weir) {
    weir.signal("KILL");
    weir.wait();
}

fn it_is_there_after_a_restart(io: Io) {
    let world = World::new();
    let weir = world.start(io, "");
    let all = ["/a", "/b", "/large"];
    store(&weir, &all);
    weir.stop();
    assert_eq!(fs::metadata(world.path()).expect("a file").permissions().mode() & 0o777, 0o600);
    assert_eq!(world.preface().answers, 3);
    let weir = world.start(io, "");
    restored(&weir, 3);
    for target in all {
        let (body, _) = stored(&weir, target).expect("it is stored");
        assert!(if target == "/large" { body.len() == 300_000 } else { body == target.as_bytes() });
        assert_eq!(world.asked(target), 1);
    }
    let told = weir.answer(&["cache", "stats"]);
    assert!(told.contains("snapshot   ") && told.contains("3 were restored"), "{told}");
    weir.stop();
    world.server.finish();
}

fn it_grows_older_meanwhile(io: Io) {
    let world = World::new();
    let weir = world.start(io, "");
    store(&weir, &["/a", "/brief"]);
    weir.stop();
    world.grow_older(100);
    let weir = world.start(io, "");
    restored(&weir, 1);
    let (_, age) = stored(&weir, "/a").expect("it is stored");
    assert!(age >= 100, "{age}");
    assert!(stored(&weir, "/brief").is_none());
    weir.says("others skipped: 1 stale");
    weir.stop();
    world.server.finish();
}

fn what_was_purged_stays_gone(io: Io) {
    let world = World::new();
    let weir = world.start(io, "");
    store(&weir, &["/a", "/b", "/c", "/d"]);
    weir.answer(&["cache", "purge", "http://a/a"]);
    weir.answer(&["cache", "purge", "--tag", "b"]);
    let mut client = Client::connect(weir.address);
    client.request("DELETE", "/c", "", b"");
    assert_eq!(client.reply().status, 200);
    weir.stop();
    let weir = world.start(io, "");
    restored(&weir, 1);
    assert!(["/a", "/b", "/c"].iter().all(|target| stored(&weir, target).is_none()));
    assert!(stored(&weir, "/d").is_some());
    weir.stop();
    world.server.finish();
}

fn what_is_purged_before_a_crash_stays_gone(io: Io) {
    let world = World::new();
    let weir = world.start(io, "snapshot-interval \"1s\"");
    store(&weir, &["/a", "/b", "/c", "/d"]);
    eventually("it is written", || snapshot(&weir)["answers"] == 4);
    let end = world.preface().end;
    let mut client = Client::connect(weir.address);
    client.request("DELETE", "/c", "", b"");
    assert_eq!(client.reply().status, 200);
    eventually("it is said behind the answers", || {
        fs::metadata(world.path()).expect("a file").len() > end
    });
    weir.answer(&["cache", "purge", "http://a/a"]);
    weir.answer(&["cache", "purge", "--prefix", "http://a/b"]);
    // When the command has returned it applies to the file.
    kill(weir);
    assert_eq!(world.preface().answers, 4);
    let weir = world.start(io, "");
    restored(&weir, 1);
    assert!(["/a", "/b", "/c"].iter().all(|target| stored(&weir, target).is_none()));
    assert!(stored(&weir, "/d").is_some());
    // The same for a purge after the start, when the file is not written again before the next
    // crash.
    weir.answer(&["cache", "purge", "--all"]);
    kill(weir);
    let weir = world.start(io, "");
    says(&weir, "4 purged");
    assert!(stored(&weir, "/d").is_none());
    weir.stop();
    world.server.finish();
}

fn another_program_has_it(io: Io) {
    let world = World::new();
    let weir = world.start(io, "");
    store(&weir, &["/a", "/b"]);
    weir.upgrade();
    restored(&weir, 2);
    assert!(stored(&weir, "/a").is_some() && stored(&weir, "/b").is_some());
    assert_eq!(world.asked("/a"), 1);
    weir.answer(&["cache", "purge", "http://a/a"]);
    eventually("the one before has ended", || weir.processes().len() == 1);
    weir.stop();
    let weir = world.start(io, "");
    restored(&weir, 1);
    assert!(stored(&weir, "/a").is_none() && stored(&weir, "/b").is_some());
    weir.stop();
    world.server.finish();
}

fn a_damaged_one_is_used_up_to_the_damage(io: Io) {
    let world = World::new();
    let weir = world.start(io, "");
    store(&weir, &["/a", "/b", "/c"]);
    // The most requested response is in front.
    (0..20).for_each(|_| assert!(stored(&weir, "/b").is_some()));
    weir.stop();
    let mut bytes = fs::read(world.path()).expect("a file");
    let last = bytes.len() - 10;
    bytes[last] ^= 1;
    fs::write(world.path(), &bytes).expect("it can be written");
    let weir = world.start(io, "");
    restored(&weir, 2);
    says(&weir, "it is damaged: a response, at byte ");
    assert!(stored(&weir, "/b").is_some());
    assert!(
        snapshot(&weir)["problem"]
            .as_str()
            .is_some_and(|problem| problem.contains("skipped 1 responses from there on"))
    );
    weir.stop();
    for junk in [&b"none"[..], &[0; 5000], &bytes[..60]] {
        fs::write(world.path(), junk).expect("it can be written");
        let weir = world.start(io, "");
        says(&weir, "is not used: it is ");
        store(&weir, &["/a"]);
        weir.stop();
        let is_ours = junk.starts_with(b"weirsnap");
        assert_eq!(
            fs::read(world.path()).expect("a file") == junk,
            !is_ours,
            "what is no snapshot is left alone"
        );
    }
    world.server.finish();
}

fn who_else_could_have_written_it(io: Io) {
    let world = World::new();
    let weir = world.start(io, "");
    store(&weir, &["/a"]);
    weir.stop();
    fs::set_permissions(world.path(), fs::Permissions::from_mode(0o666)).expect("it is ours");
    let weir = world.start(io, "");
    says(&weir, "is not used: others may write it (mode 666)");
    assert!(stored(&weir, "/a").is_none());
    weir.stop();
    assert_eq!(
        fs::metadata(world.path()).expect("another one").permissions().mode() & 0o777,
        0o600
    );
    world.server.finish();
}

fn rules_that_changed(io: Io) {
    let world = World::new();
    let weir = world.start(io, "");
    store(&weir, &["/a"]);
    weir.stop();
    let weir = Weir::start(io, 2, &world.text("", "key cookie=\"lang\";"));
    says(&weir, "is not used: `cache` of a route");
    assert!(stored(&weir, "/a").is_none());
    weir.stop();
    world.server.finish();
}

fn nowhere_to_write(io: Io) {
    let world = World::new();
    let text =
        world.text("snapshot-interval \"1s\"", "").replace("cache.snapshot", "no/cache.snapshot");
    let weir = Weir::start(io, 2, &text);
    store(&weir, &["/a"]);
    says(&weir, "no snapshot of the cache: ");
    assert!(
        snapshot(&weir)["problem"].as_str().is_some_and(|problem| problem.contains("No such file"))
    );
    weir.stop();
    world.server.finish();
}

/// A file that is no longer kept up to date is removed.
fn a_reload_moves_it(io: Io) {
    let world = World::new();
    let weir = world.start(io, "");
    store(&weir, &["/a"]);
    let other = world.scratch.path("other");
    let moved = world.text("", "").replace("cache.snapshot", "other");
    eventually("there is one", || world.path().exists());
    weir.rewrite(&moved);
    weir.answer(&["reload"]);
    eventually("it is elsewhere", || other.exists() && !world.path().exists());
    weir.stop();
    let bytes = fs::read(other).expect("a file");
    assert_eq!(Preface::decode(bytes.first_chunk().expect("a preface")).expect("whole").answers, 1);
    world.server.finish();
}

/// Checked before weir runs, for every caller.
#[test]
fn a_place_that_is_none_is_told() {
    let scratch = Scratch::new();
    let check = |path: &Path| {
        let text = format!(
            "listen \"127.0.0.1:1\"\ncache {{ snapshot \"{}\"; }}\n\
                upstream \"a\" {{ server \"127.0.0.1:2\"; }}\nroute {{ proxy \"a\"; cache; }}\n",
            path.display()
        );
        let file = scratch.write("weir.kdl", text.as_bytes());
        let output =
            finish(Command::new(env!("CARGO_BIN_EXE_weir")).args(["check", "-c"]).arg(&file));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert_eq!(check(&scratch.path("cache")), "");
    let told = check(&scratch.path("none/cache"));
    assert!(told.contains("weir cannot keep the cache across restarts: no directory"), "{told}");
}
