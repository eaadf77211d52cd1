//! Proves: the simulation finds what it is for. Real bugs, put back one at a time, are each found
//! within a bounded number of seeds, by a broken promise and not by luck. How: a copy of the
//! sources, in which each bug is a branch on a name from the environment, is built once. Its
//! simulation runs under each name until the first seed fails. The product itself has no such
//! branches. Under no name the copy must pass.
//!
//! The simulation does not run the io_uring driver: tests of the suite of all drivers find its
//! bugs. `WEIR_MUTANTS=NAME` looks only for bugs whose names begin with NAME.
//!
//! When the place of a bug has changed, its row in [`BUGS`] has to follow; the message names the
//! row.

mod cache;
mod floods;
mod joins;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// A bug, as a change of one place.
struct Bug {
    name: &'static str,
    /// The mistake that this bug repeats.
    story: &'static str,
    file: &'static str,
    /// The right code, which occurs once. `$` in the wrong code stands for whether the bug is
    /// active.
    right: &'static str,
    wrong: &'static str,
    /// The simulation that finds it, by the beginning of its name, or a test of the drivers
    /// ([`OF_DRIVERS`]).
    found_by: &'static str,
    /// Finds it within this number of seeds.
    seeds: u32,
}

const BUGS: &[Bug] = &[
    Bug {
        name: "generation-of-requests",
        story: "a late answer is given to whoever has the slot of its request now: names are not \
            told apart (and see the next)",
        file: "weir-proxy/src/base/slab.rs",
        right: "slot.generation == generation && slot.occupant.is_some()",
        wrong: "(slot.generation == generation || $ && \
            std::any::type_name::<T>().ends_with(\"Exchange\")) && slot.occupant.is_some()",
        found_by: "two_workers_keep",
        seeds: 300,
    },
    Bug {
        name: "generation-of-requests",
        story: "the same: an answer that nobody wants is passed on (either alone is harmless)",
        file: "weir-proxy/src/upstream/cancel.rs",
        right: "Some(How::Soft) => entry.cancelled = true,",
        wrong: "Some(How::Soft) => entry.cancelled = !$,",
        found_by: "one_worker_keeps",
        seeds: 100,
    },
    Bug {
        name: "not-told",
        story: "a server does not hear that the client has left that waits for its answer",
        file: "weir-proxy/src/upstream/left.rs",
        right: "    Some(Ending::ours(if doubled {",
        wrong: "    if $ {\n        return None;\n    }\n    Some(Ending::ours(if doubled {",
        found_by: "leavers::",
        seeds: 40,
    },
    Bug {
        name: "fin-is-no-departure",
        story: "a client that has ended its direction while its server is silent is taken for one \
            that waits",
        file: "weir-proxy/src/client/patience.rs",
        right: "self.stream.is_none() && !plan.serves_half_closed;",
        wrong: "self.stream.is_none() && !plan.serves_half_closed && !$;",
        found_by: "leavers::",
        seeds: 40,
    },
    Bug {
        name: "generation-of-connections",
        story: "a completion of a connection that is gone is taken for one of its successor",
        file: "weir-proxy/src/upstream/receive.rs",
        right: "self.conns.holds_short(key, generation)",
        wrong: "(self.conns.holds_short(key, generation) || $ && \
            crate::base::keys::Key::index(key) < self.conns.slots() && \
            self.conns.is_occupied(key))",
        found_by: "two_workers_keep",
        seeds: 300,
    },
    Bug {
        name: "unasked-bytes",
        story: "bytes that nobody asked for wait for the next request",
        file: "weir-proxy/src/upstream/connection.rs",
        right: "_ => return Step::Unasked,",
        wrong: "_ => return if $ { Step::More } else { Step::Unasked },",
        found_by: "hostile::no_victim",
        seeds: 100,
    },
    Bug {
        name: "head-with-body",
        story: "the answer to HEAD is read with the body that it announces",
        file: "weir-proxy/src/upstream/connection.rs",
        right: "ReplyContext { head: asked.has(RequestFlags::HEAD) }",
        wrong: "ReplyContext { head: asked.has(RequestFlags::HEAD) && !$ }",
        found_by: "one_worker_keeps",
        seeds: 100,
    },
    Bug {
        name: "followed",
        story: "a request is sent behind one that must not be followed",
        file: "weir-proxy/src/upstream/connection.rs",
        right: "self.gate.hold |= ask.traits.is_unfollowed();",
        wrong: "self.gate.hold |= ask.traits.is_unfollowed() && !$;",
        found_by: "one_worker_keeps",
        seeds: 100,
    },
    Bug {
        name: "behind-others",
        story: "a request that goes alone is put behind others",
        file: "weir-proxy/src/upstream/server.rs",
        right: "        if ask.traits.rides_apart() {\n            return self.positions.empty()",
        wrong: "        if ask.traits.rides_apart() && !$ {\n            return \
            self.positions.empty()",
        found_by: "one_worker_keeps",
        seeds: 100,
    },
    Bug {
        name: "dies-of-company",
        story: "a server that crashes when requests share a connection is pipelined again after \
            each restart",
        file: "weir-proxy/src/upstream/crash.rs",
        right: "    crash == Some(Crash::Shared)\n}",
        wrong: "    crash == Some(Crash::Shared) && !$\n}",
        found_by: "placing::a_server_that_dies",
        seeds: 20,
    },
    Bug {
        name: "uneven",
        story: "requests of a kind of which some are slow share connections",
        file: "weir-proxy/src/upstream/class.rs",
        right: "class.is_even() && (self.alike_us == 0 || class.time_us <= self.alike_us)",
        wrong: "(class.is_even() || $) && (self.alike_us == 0 || class.time_us <= self.alike_us)",
        found_by: "placing::requests_that_may",
        seeds: 20,
    },
    Bug {
        name: "too-few",
        story: "no connection is made for a request that waits",
        file: "weir-proxy/src/upstream/connect.rs",
        right: "while self.servers[server].wants_more() {",
        wrong: "while self.servers[server].wants_more() && !$ {",
        found_by: "one_worker_keeps",
        seeds: 100,
    },
    Bug {
        name: "not-made-up-for",
        story: "a connection whose client does not read counts as one that takes requests",
        file: "weir-proxy/src/upstream/server.rs",
        right: "alone\n            || conn.reply.large\n            || conn.wait.late\n            \
            || conn.reading.paused && conn.reading.yields;",
        wrong: "alone || (conn.reply.large || conn.wait.late || \
            conn.reading.paused && conn.reading.yields) && !$;",
        found_by: "bounds::a_slow_reader",
        seeds: 100,
    },
    Bug {
        name: "followed-last",
        story: "something is sent behind HEAD, a conditional request, or one that may make the \
            server split its answer",
        file: "weir-proxy/src/request/pending_request.rs",
        right: "self.goes_alone() || self.has(RequestFlags::LAST)",
        wrong: "self.goes_alone() || self.has(RequestFlags::LAST) && !$",
        found_by: "one_worker_keeps",
        seeds: 100,
    },
    Bug {
        name: "stray-hints",
        story: "an interim answer behind an answer is passed to whoever asked next",
        file: "weir-proxy/src/upstream/head.rs",
        right: "(entry.behind_strangers",
        wrong: "(entry.behind_strangers && !$",
        found_by: "storm::in_a_storm",
        seeds: 100,
    },
    Bug {
        name: "sent-twice",
        story: "what may not be repeated is sent again after a loss",
        file: "weir-proxy/src/upstream/lost.rs",
        right: "} else if !ask.traits.has(RequestFlags::RETRIABLE) {",
        wrong: "} else if !ask.traits.has(RequestFlags::RETRIABLE) && !$ {",
        found_by: "one_worker_keeps",
        seeds: 100,
    },
    Bug {
        name: "out-of-order",
        story: "an answer leaves before those to the requests in front of it",
        file: "weir-proxy/src/client/http1.rs",
        right: "if self.first == slot { &mut self.output }",
        wrong: "if self.first == slot || $ { &mut self.output }",
        found_by: "one_worker_keeps",
        seeds: 100,
    },
    Bug {
        name: "lost-mail",
        story: "mail that found its box full is forgotten",
        file: "weir-proxy/src/engine.rs",
        right: "        post.append(newer);",
        wrong: "        if $ { post = newer } else { post.append(newer) }",
        found_by: "two_workers_keep",
        seeds: 100,
    },
    Bug {
        name: "lost-buffer",
        story: "a receive buffer is not given back",
        file: "weir-worker/src/worker.rs",
        right: "            self.driver.recycle(buffer);",
        wrong: "            if $ { std::mem::forget(buffer) } else { self.driver.recycle(buffer) }",
        found_by: "one_worker_keeps",
        seeds: 100,
    },
    Bug {
        name: "pool-of-others",
        story: "bytes of uploads stay in the buffers of clients while those of servers are plenty",
        file: "weir-worker/src/worker.rs",
        right: "self.has_plenty(class_of(token))",
        wrong: "self.has_plenty(if $ { OF_SERVERS } else { class_of(token) })",
        found_by: "crowds::",
        seeds: 100,
    },
    Bug {
        name: "left-in-line",
        story: "what waits is not taken back when its client leaves",
        file: "weir-proxy/src/upstream/queue.rs",
        right: "        self.remove(number.wrapping_sub(self.first) as usize)",
        wrong: "        if $ {\n            return None;\n        }\n        \
            self.remove(number.wrapping_sub(self.first) as usize)",
        found_by: "crowds::",
        seeds: 100,
    },
    Bug {
        name: "places-before",
        story: "who waits is not found where he stands after a line was closed up",
        file: "weir-proxy/src/upstream/queue.rs",
        right: "self.places.insert(waiting.ask.id, self.first.wrapping_add(place as u32));",
        wrong: "if !$ { self.places.insert(waiting.ask.id, self.first.wrapping_add(place as \
            u32)); }",
        found_by: "crowds::",
        seeds: 100,
    },
    Bug {
        name: "early-answer",
        story: "a connection is used again although its server has answered before it had the \
            whole request",
        file: "weir-proxy/src/upstream/receive.rs",
        right: "let early = streaming &&",
        wrong: "let early = !$ && streaming &&",
        found_by: "hostile::no_victim",
        seeds: 100,
    },
    Bug {
        name: "overtaken-error",
        story: "a refusal that has overtaken is given to the oldest request",
        file: "weir-proxy/src/upstream/head.rs",
        right: "head.status >= 400 && !head.persist && conn",
        wrong: "!$ && head.status >= 400 && !head.persist && conn",
        found_by: "storm::overtakers",
        seeds: 100,
    },
    Bug {
        name: "idle-between-sends",
        story: "a client is taken for idle between two sends of its answer",
        file: "weir-proxy/src/client/patience.rs",
        right: "Reading::Head if self.has_sent_all() => {",
        wrong: "Reading::Head if self.has_sent_all() || $ && first.is_none() && \
            !self.flags.sending => {",
        found_by: "bounds::answers_outlast",
        seeds: 100,
    },
    Bug {
        name: "suspended-asked",
        story: "a server gets requests although health or an operator has taken it out",
        file: "weir-proxy/src/upstream/choose.rs",
        right: "let takes = machine.standing.takes_new();",
        wrong: "let takes = machine.standing.takes_new() || $;",
        found_by: "one_worker_keeps",
        seeds: 100,
    },
    Bug {
        name: "backups-first",
        story: "backups are servers like the others",
        file: "weir-proxy/src/upstream/choose.rs",
        right: "method.is_backup(at)",
        wrong: "method.is_backup(at) && !$",
        found_by: "one_worker_keeps",
        seeds: 100,
    },
    Bug {
        name: "lost-session",
        story: "the cookie of a session is overlooked",
        file: "weir-proxy/src/upstream/choose.rs",
        right: "if ask.bound != NOBODY {",
        wrong: "if ask.bound != NOBODY && !$ {",
        found_by: "one_worker_keeps",
        seeds: 100,
    },
    Bug {
        name: "window-kept",
        story: "the window of a stream's body is not given back",
        file: "weir-proxy/src/client/http2/write.rs",
        right: "            streams.mux.consumed(id, bytes);",
        wrong: "            if !$ { streams.mux.consumed(id, bytes); }",
        found_by: "streams::clients_of_both",
        seeds: 100,
    },
    Bug {
        name: "given-up-for-ever",
        story: "a stream that its client has reset counts also when its server has answered",
        file: "weir-proxy/src/client/http2/write.rs",
        right: "            streams.mux.gone();",
        wrong: "            if !$ { streams.mux.gone(); }",
        found_by: "streams::who_gives_up",
        seeds: 100,
    },
    Bug {
        name: "taken-in-without-end",
        story: "the rest of an answer is taken in although there is no place for it",
        file: "weir-proxy/src/client/stalls.rs",
        right: "    let fits = absorbed",
        wrong: "    let fits = $ || absorbed",
        found_by: "prompt::nobody_waits_for_streams",
        seeds: 100,
    },
    Bug {
        name: "aside-by-server",
        story: "connections that are held aside are counted for all clients together instead of \
            for each",
        file: "weir-proxy/src/upstream/server.rs",
        right: "        self.holders.is_full(ask.carrier)\n",
        wrong: "        ($ && self.positions.stalled() >= ASIDE_CLIENT_MAX || \
            self.holders.is_full(ask.carrier))\n",
        found_by: "prompt::nobody_waits",
        seeds: 100,
    },
    Bug {
        name: "place-kept",
        story: "what was reserved for a stream is not given back when that is reset",
        file: "weir-proxy/src/client/stalls.rs",
        right: "    give_back(conns, index, usize::MAX, cx);",
        wrong: "    if !$ { give_back(conns, index, usize::MAX, cx); }",
        found_by: "prompt::who_stands_still",
        seeds: 100,
    },
    Bug {
        name: "withdrawn-for-ever",
        story: "a stream that is reset while its request waits counts for ever",
        file: "weir-proxy/src/upstream/cancel.rs",
        right: "        cx.post(id.worker, Mail::Withdrawn { id });",
        wrong: "        if !$ { cx.post(id.worker, Mail::Withdrawn { id }); }",
        found_by: "streams::who_gives_up",
        seeds: 100,
    },
    Bug {
        name: "end-before-connection",
        story: "the end of a stream's body is forgotten while its request has no connection yet",
        file: "weir-proxy/src/client/receive.rs",
        right: "conn.stream.is_some() && self.answers.conns.is_held_back(conn)",
        wrong: "conn.stream.is_some() && self.answers.conns.is_held_back(conn) && !$",
        found_by: "streams::bodies_end",
        seeds: 100,
    },
    Bug {
        name: "last-frame",
        story: "a connection is shut before the frame that says why",
        file: "weir-proxy/src/client/sending.rs",
        right: "Reading::Frames | Reading::Closing)",
        wrong: "Reading::Frames | Reading::Closing) && (!$ || conn.reading() == Reading::Frames)",
        found_by: "streams::who_chatters",
        seeds: 100,
    },
    Bug {
        name: "moved-without-rest",
        story: "what a client has sent while its connection went to another worker is lost",
        file: "weir-worker/src/moves.rs",
        right: "    if !rest.is_empty() {",
        wrong: "    if !rest.is_empty() && !$ {",
        found_by: "two_workers_keep",
        seeds: 100,
    },
    Bug {
        name: "moved-without-name",
        story: "what is told of a connection that came from another worker has the name that it \
            had before",
        file: "weir-worker/src/moves.rs",
        right: "            worker.driver.set_token(socket, token);",
        wrong: "            if !$ { worker.driver.set_token(socket, token); }",
        found_by: "two_workers_keep",
        seeds: 100,
    },
    Bug {
        name: "moved-while-asking",
        story: "a connection goes to another worker while an answer is awaited on it",
        file: "weir-proxy/src/client/moving.rs",
        right: "conn.stash.is_none() && conn.has_sent_all();",
        wrong: "conn.stash.is_none() && ($ || conn.has_sent_all());",
        found_by: "two_workers_keep",
        seeds: 100,
    },
    Bug {
        name: "moved-for-ever",
        story: "nobody looks whether a client that came from another worker stays idle for \
            too long",
        file: "weir-proxy/src/client/moving.rs",
        right: "    conns.arm(index, cx);",
        wrong: "    if !$ { conns.arm(index, cx); }",
        found_by: "two_workers_keep",
        seeds: 100,
    },
    Bug {
        name: "moved-and-kept",
        story: "a connection that comes from another worker, or comes back, is counted twice",
        file: "weir-proxy/src/client/moving.rs",
        right: "    cx.counters.client_connections.add(1);",
        wrong: "    cx.counters.client_connections.add(if $ { 2 } else { 1 });",
        found_by: "two_workers_keep",
        seeds: 100,
    },
    Bug {
        name: "given-up",
        story: "what may be repeated is given up with the worker that had it",
        file: "weir-proxy/src/upstream/lives.rs",
        right: "if ask.traits.has(RequestFlags::WRECKED) {",
        wrong: "if ask.traits.has(RequestFlags::WRECKED) || $ {",
        found_by: "k3_a_panic",
        seeds: 100,
    },
];

/// How the names of the drivers' tests begin.
const OF_DRIVERS: &str = "drivers::";

/// All bugs.
fn bugs() -> impl Iterator<Item = &'static Bug> {
    BUGS.iter().chain(cache::BUGS).chain(floods::BUGS).chain(joins::BUGS)
}

/// The bugs to look for. A kernel without io_uring has none of that driver's bugs.
fn wanted() -> impl Iterator<Item = &'static Bug> {
    let begin = std::env::var("WEIR_MUTANTS").unwrap_or_default();
    let has_uring = weir_io::probe().driver == weir_io::DriverKind::Uring;
    bugs().filter(move |bug| {
        bug.name.starts_with(&begin) && (has_uring || !bug.found_by.starts_with(OF_DRIVERS))
    })
}

/// Crates with their own switch. The others use that of weir-proxy.
const SWITCHED: [&str; 3] = ["weir-proxy/", "weir-cache/", "weir-io/"];

const SWITCH: &str = "
/// Bugs that are put back.
pub mod mutants {
    use std::sync::OnceLock;
    /// Whether this one is.
    pub fn on(name: &str) -> bool {
        static NAME: OnceLock<String> = OnceLock::new();
        NAME.get_or_init(|| std::env::var(\"WEIR_MUTANT\").unwrap_or_default()) == name
    }
}
";

/// Returns the text of a file with its bugs.
fn mutate(file: &str, mut text: String) -> String {
    for bug in bugs().filter(|bug| bug.file == file) {
        let places = text.matches(bug.right).count();
        assert_eq!(
            places, 1,
            "the place of the bug {} in {file} has changed: {:?}",
            bug.name, bug.right
        );
        let path =
            if SWITCHED.iter().any(|root| file.starts_with(root)) { "crate" } else { "weir_proxy" };
        let wrong = bug.wrong.replace('$', &format!("{path}::mutants::on(\"{}\")", bug.name));
        text = text.replacen(bug.right, &wrong, 1);
    }
    let is_root = |root: &&str| file.strip_prefix(*root) == Some("src/lib.rs");
    if SWITCHED.iter().any(is_root) { text + SWITCH } else { text }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// Copies files that differ, so that only changed code is built again.
fn copy(from: &Path, to: &Path, file: &str) {
    if from.is_dir() {
        fs::create_dir_all(to).expect("a directory for the copy");
        for entry in fs::read_dir(from).expect("a readable directory") {
            let name = entry.expect("an entry").file_name().into_string().expect("a name in UTF-8");
            let file = if file.is_empty() { name.clone() } else { format!("{file}/{name}") };
            copy(&from.join(&name), &to.join(&name), &file);
        }
        return;
    }
    let bytes = fs::read(from).expect("a readable file");
    let bytes = match String::from_utf8(bytes) {
        Ok(text) => mutate(file, text).into_bytes(),
        Err(error) => error.into_bytes(),
    };
    if fs::read(to).ok().as_ref() != Some(&bytes) {
        fs::write(to, bytes).expect("a writable copy");
    }
}

/// Shares compiled code from outside the workspace with the copy, which saves minutes the first
/// time. Code that can't be shared is compiled again.
fn share(from: &Path, to: &Path) {
    let Ok(entries) = fs::read_dir(from) else { return };
    for entry in entries.flatten() {
        let (name, place) = (entry.file_name(), to.join(entry.file_name()));
        let name = name.to_string_lossy();
        let is_test = from.ends_with("deps") && !(name.starts_with("lib") && name.contains('.'));
        if is_test || name.trim_start_matches("lib").starts_with("weir") {
            continue;
        }
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => share(&entry.path(), &place),
            // Existing files are kept: cargo checks whether they fit. cargo writes its notes in
            // place, but libraries as new files.
            _ if place.exists() => {}
            _ if from.ends_with("deps") => {
                drop(fs::create_dir_all(to).and_then(|()| fs::hard_link(entry.path(), place)))
            }
            _ => drop(fs::create_dir_all(to).and_then(|()| copy_as_old(&entry.path(), &place))),
        }
    }
}

/// Keeps the modification time, by which cargo knows the order in which files were made.
fn copy_as_old(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to)?;
    File::options().write(true).open(to)?.set_modified(fs::metadata(from)?.modified()?)
}

/// Builds the simulation of the copy and returns its path. It has a separate target directory:
/// cargo names libraries by their place in the workspace, so those of the copy would replace the
/// real ones.
fn build() -> PathBuf {
    let copied = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutants");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutants-target");
    fs::create_dir_all(&copied).expect("a directory for the copy");
    for name in ["Cargo.toml", "Cargo.lock", "crates"] {
        copy(&root().join(name), &copied.join(name), "");
    }
    for part in ["deps", "build", ".fingerprint"] {
        let compiled = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../debug").join(part);
        share(&compiled, &target.join("debug").join(part));
    }
    let cargo = std::env::var_os("CARGO").expect("run by cargo");
    // Builds the whole workspace, so that dependencies have the features with which they were
    // compiled for the other tests.
    let output = Command::new(cargo)
        .args(["test", "--locked", "--offline", "--no-run", "--workspace", "--test", "sim"])
        .current_dir(&copied)
        .env("CARGO_TARGET_DIR", target)
        .output()
        .expect("cargo");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let line =
        text.lines().find(|line| line.contains("Executable")).expect("the name of the binary");
    let path = line.split(['(', ')']).nth(1).expect("its path");
    copied.join(path)
}

fn run(binary: &Path, mutant: &str, test: &str, seeds: u32) -> Output {
    // A bug may never come to an end.
    Command::new("timeout")
        .arg("600")
        .arg(binary)
        .args([test, "--test-threads", "1"])
        .env("WEIR_MUTANT", mutant)
        .env("WEIR_SIM_SEEDS", seeds.to_string())
        .env("WEIR_SIM_STOP", "1")
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .output()
        .expect("the simulation runs")
}

/// Returns the broken promise, and the seed that broke it.
fn finding(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let broken = text.lines().position(|line| line.starts_with("simulation with seed"));
    let lines: Vec<&str> =
        text.lines().skip(broken.unwrap_or_default()).take(2).map(str::trim).collect();
    lines.join(" ").chars().take(220).collect()
}

/// Called by `scripts/test` before any test runs, so that the compiler does not run beside the
/// tests.
#[test]
#[ignore = "it proves nothing and only builds"]
fn the_copy_is_built() {
    build();
}

#[test]
fn the_simulation_finds_each_bug() {
    let binary = build();
    let tests: BTreeSet<&str> = wanted().map(|bug| bug.found_by).collect();
    for test in tests {
        let clean = run(&binary, "", test, 20);
        assert!(clean.status.success(), "the copy fails without a bug: {}", finding(&clean));
    }
    // Each bug takes one thread of the simulation: as many bugs are tried at a time as there are
    // cores.
    let all: Vec<&Bug> = wanted().collect();
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let look = || {
        while let Some(bug) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let output = run(&binary, bug.name, bug.found_by, bug.seeds);
            match output.status.success() {
                true => missed.lock().unwrap().push(bug.name),
                false => println!("{}: {}\n  {}", bug.name, bug.story, finding(&output)),
            }
        }
    };
    thread::scope(|scope| {
        (0..thread::available_parallelism().map_or(1, usize::from))
            .for_each(|_| drop(scope.spawn(look)))
    });
    let missed = missed.into_inner().unwrap();
    assert_eq!(missed, Vec::<&str>::new(), "bugs that the simulation does not find");
}
