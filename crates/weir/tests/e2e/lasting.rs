//! Proves: if two programs should keep the same file, one does, and the second says which one has
//! it, until the first ends. With an upgrade or a reload the file changes hands correctly, and
//! purges meanwhile are effective. Nothing is left beside it. If more becomes invalid than fits
//! behind the snapshot, another one is written in time. How: the real binary, twice, with files in
//! a separate directory. docs/cache.md.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::cache_restart::{World, kill, restored, says, snapshot, store, stored};
use crate::kit::{Client, Honest, Io, Scratch, Server, Weir, app, eventually, on_both_drivers};

on_both_drivers!(
    one_program_keeps_a_snapshot,
    the_other_one_has_it_when_that_ends,
    it_changes_hands,
    what_is_purged_while_it_changes_hands,
    where_there_are_no_locks,
    one_program_keeps_bans,
    much_becomes_invalid,
    what_purges_do_not_reach_is_removed,
);

/// Returns the names in a directory, sorted.
fn names(scratch: &Scratch) -> Vec<String> {
    let all = fs::read_dir(scratch.path("")).expect("it is there");
    let mut names: Vec<String> =
        all.map(|entry| entry.expect("one").file_name().to_string_lossy().into()).collect();
    names.sort();
    names
}

fn delete(client: &mut Client, target: &str) {
    client.request("DELETE", target, "", b"");
    assert_eq!(client.reply().status, 200);
}

fn one_program_keeps_a_snapshot(io: Io) {
    let world = World::new();
    // A file left by a crash.
    fs::write(world.scratch.path("cache.snapshot.new"), "half").expect("it can be written");
    let first = world.start(io, "");
    store(&first, &["/a"]);
    eventually("there is one", || world.path().exists());
    let second = world.start(io, "snapshot-interval \"1s\"");
    let who = format!(
        "{} is in use by another program, process {} ",
        world.path().display(),
        first.pid()
    );
    says(&second, &who);
    assert!(
        second.said().contains("name another file in `snapshot`, or end that program"),
        "{}",
        second.said()
    );
    assert!(snapshot(&second)["problem"].as_str().is_some_and(|problem| problem.contains(&who)));
    store(&second, &["/b", "/c"]);
    second.answer(&["cache", "purge", "http://a/a"]);
    second.stop();
    first.stop();
    assert_eq!(world.preface().answers, 1);
    let weir = world.start(io, "");
    restored(&weir, 1);
    assert!(stored(&weir, "/a").is_some() && stored(&weir, "/b").is_none());
    weir.stop();
    assert_eq!(names(&world.scratch), ["cache.snapshot"]);
    world.server.finish();
}

fn the_other_one_has_it_when_that_ends(io: Io) {
    let world = World::new();
    let first = world.start(io, "");
    store(&first, &["/a", "/b", "/c"]);
    eventually("it has the file", || world.path().exists());
    let second = world.start(io, "");
    says(&second, "is in use by another program");
    // It applies to entries that are read from the file later.
    second.answer(&["cache", "purge", "http://a/a"]);
    delete(&mut Client::connect(second.address), "/b");
    first.stop();
    restored(&second, 1);
    assert!(
        stored(&second, "/c").is_some()
            && stored(&second, "/a").is_none()
            && stored(&second, "/b").is_none()
    );
    assert_eq!(snapshot(&second)["problem"].as_str().unwrap_or_default(), "");
    // Even when it is killed: the lock disappears with it.
    second.answer(&["cache", "purge", "--tag", "c"]);
    kill(second);
    let third = world.start(io, "");
    says(&third, "3 purged");
    third.stop();
    world.server.finish();
}

fn it_changes_hands(io: Io) {
    let world = World::new();
    let weir = world.start(io, "");
    store(&weir, &["/a"]);
    weir.upgrade();
    restored(&weir, 1);
    let other = world.start(io, "");
    says(&other, &format!("is in use by another program, process {} ", weir.pid()));
    // A reload of something else keeps the file, one that names another file releases it.
    weir.rewrite(&world.text("snapshot-interval \"1h\"", ""));
    weir.answer(&["reload"]);
    store(&other, &["/b"]);
    assert!(
        snapshot(&other)["problem"]
            .as_str()
            .is_some_and(|problem| problem.contains("is in use by"))
    );
    weir.rewrite(&world.text("", "").replace("cache.snapshot", "moved"));
    weir.answer(&["reload"]);
    eventually("the other one has the file", || snapshot(&other)["answers"] == 1);
    eventually("and this one another", || world.scratch.path("moved").exists());
    other.stop();
    weir.stop();
    assert_eq!(names(&world.scratch), ["cache.snapshot", "moved"]);
    let weir = world.start(io, "");
    restored(&weir, 1);
    assert!(stored(&weir, "/b").is_some());
    weir.stop();
    world.server.finish();
}

/// A confirmed purge is effective in both programs, whichever confirmed it.
fn what_is_purged_while_it_changes_hands(io: Io) {
    let world = World::new();
    let weir = world.start(io, "");
    let targets: Vec<String> = (0..100).map(|number| format!("/{number}")).collect();
    store(&weir, &targets.iter().map(String::as_str).collect::<Vec<_>>());
    let is_over = AtomicBool::new(false);
    let purged = thread::scope(|scope| {
        let purges = scope.spawn(|| {
            let more = |target: &&String| {
                let url = format!("http://a{target}");
                eventually("it is purged", || weir.ask(&["cache", "purge", &url]).status.success());
                !is_over.load(Ordering::Relaxed)
            };
            targets.iter().take_while(more).count()
        });
        weir.upgrade();
        is_over.store(true, Ordering::Relaxed);
        purges.join().expect("purges")
    });
    says(&weir, "restored ");
    assert!(
        purged > 0 && targets[..purged].iter().all(|target| stored(&weir, target).is_none()),
        "{purged}"
    );
    weir.stop();
    world.server.finish();
}

/// As on some network file systems.
fn where_there_are_no_locks(io: Io) {
    let world = World::new();
    fs::create_dir(world.scratch.path("cache.snapshot.lock")).expect("it is new");
    let weir = world.start(io, "");
    says(&weir, "cannot lock it");
    store(&weir, &["/a"]);
    weir.stop();
    let weir = world.start(io, "");
    restored(&weir, 1);
    assert_eq!(weir.said().matches("cannot lock it").count(), 1, "{}", weir.said());
    weir.stop();
    world.server.finish();
}

fn one_program_keeps_bans(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let path = scratch.path("bans");
    let limits = "limit \"some\" count=\"requests\" rate=\"1000/s\"";
    let text = format!(
        "shield {{ {limits}; ban state=\"{}\"; }}\n{}",
        path.display(),
        app(&server, 2, "")
    );
    let first = Weir::start(io, 1, &text);
    // weir accepts clients before that.
    let (lock, pid) = (scratch.path("bans.lock"), format!("{}\n", first.pid()));
    eventually("it has the file", || fs::read_to_string(&lock).is_ok_and(|text| text == pid));
    let second = Weir::start(io, 1, &text);
    let who = format!(
        "bans are neither read nor stored: {} is in use by another program, process {} ",
        path.display(),
        first.pid()
    );
    says(&second, &who);
    for (weir, whom) in [(&first, "247.0.2.1"), (&second, "247.0.2.2")] {
        weir.answer(&["ban", "add", whom, "--for", "1h"]);
        let list = weir.answer(&["ban", "list"]);
        assert!(list.contains(whom) && list.matches("247.0.2.").count() == 1, "{list}");
    }
    first.stop();
    eventually("it has what the other one has left", || {
        second.answer(&["ban", "list"]).matches("247.0.2.").count() == 2
    });
    second.stop();
    assert_eq!(fs::read_to_string(&path).expect("it is there").lines().count(), 2);
    assert_eq!(names(&scratch), ["bans"]);
    server.finish();
}

/// Long before the next one is due.
fn much_becomes_invalid(io: Io) {
    let world = World::new();
    let weir = world.start(io, "");
    let targets: Vec<String> = (0..300).map(|number| format!("/{number:0>7500}")).collect();
    store(&weir, &targets.iter().map(String::as_str).collect::<Vec<_>>());
    weir.stop();
    let end = world.preface().end;
    let weir = world.start(io, "");
    restored(&weir, 300);
    let mut client = Client::connect(weir.address);
    for target in &targets {
        delete(&mut client, target);
        assert!(world.path().exists());
    }
    eventually("another one is written", || world.preface().end < end);
    let settle = |weir: &Weir| weir.answer(&["cache", "purge", "--host", "nowhere"]);
    settle(&weir);
    kill(weir);
    let weir = world.start(io, "snapshot-interval \"1s\"");
    let before_us = world.preface().written_us;
    store(&weir, &["/a"]);
    assert!(targets.iter().all(|target| stored(&weir, target).is_none()));
    // Changes without a stored response need not be noted behind it.
    eventually("another one is written", || {
        let preface = world.preface();
        preface.written_us > before_us && preface.answers == 1
    });
    let bytes = || fs::metadata(world.path()).expect("it is there").len();
    let before = bytes();
    let mut client = Client::connect(weir.address);
    targets.iter().take(20).for_each(|target| delete(&mut client, target));
    settle(&weir);
    assert!(bytes() < before + 100, "{before} {}", bytes());
    delete(&mut client, "/a");
    settle(&weir);
    kill(weir);
    let weir = world.start(io, "");
    says(&weir, "1 purged");
    weir.stop();
    world.server.finish();
}

/// Even if no other snapshot can replace it: otherwise it would be read at the next start.
fn what_purges_do_not_reach_is_removed(io: Io) {
    let world = World::new();
    let weir = world.start(io, "");
    store(&weir, &["/a"]);
    weir.stop();
    fs::create_dir(world.scratch.path("cache.snapshot.new")).expect("it is new");
    // This weir does not keep the file.
    let option = format!("snapshot \"{}\";", world.path().display());
    let weir = Weir::start(io, 1, &world.text("", "").replace(&option, ""));
    weir.answer(&["cache", "purge", "--all"]);
    assert!(world.path().exists());
    weir.rewrite(&world.text("", ""));
    weir.answer(&["reload"]);
    eventually("it is gone", || !world.path().exists());
    weir.stop();
    // A file that others may have written is not used, so nothing is noted in it.
    fs::remove_dir(world.scratch.path("cache.snapshot.new")).expect("it is empty");
    let weir = world.start(io, "");
    store(&weir, &["/b"]);
    weir.stop();
    fs::set_permissions(world.path(), fs::Permissions::from_mode(0o666)).expect("it is ours");
    fs::create_dir(world.scratch.path("cache.snapshot.new")).expect("it is new");
    let weir = world.start(io, "");
    says(&weir, "is not used: others may write it");
    eventually("it is gone", || !world.path().exists());
    weir.stop();
    world.server.finish();
}
