//! Proves: all askers get the replies of name servers, for as long as these are valid, whatever
//! else is slow or broken. How: a scripted name server on loopback; waits end with an event or fail
//! at a deadline.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::LocalSet;
use weir_proxy::forward::lookup::Addresses;

use super::*;

#[allow(unreachable_pub, dead_code)] // tests of the whole binary use it too
#[path = "../../../tests/e2e/kit/names.rs"]
mod kit;

use kit::{Kind as Asked, NameServer, Reply};

/// A result of the service has its own channel, which only allows the longest of all waits.
const DEADLINE: Duration = weir_check::waiting::CAP;

/// The service, and its results.
struct Bench {
    names: Rc<Names>,
    told: UnboundedReceiver<(u16, Box<str>, Answer)>,
}

impl Bench {
    fn new(address: SocketAddr, limits: Limits) -> Bench {
        Bench::with_hosts(address, limits, None)
    }

    fn with_hosts(address: SocketAddr, limits: Limits, hosts: Option<Hosts>) -> Bench {
        let (sender, told) = unbounded_channel();
        let tell: Tell = Rc::new(move |worker, news| {
            if let News::Resolved { name, answer, .. } = news {
                sender.send((worker, name, answer)).expect("the test listens");
            }
        });
        Bench {
            names: Names::new(Dns::new(&[address]).expect("an address"), hosts, limits, tell),
            told,
        }
    }

    fn ask(&self, worker: u16, name: &str) {
        self.ask_for(1, worker, name);
    }

    /// The same for a client.
    fn ask_for(&self, client: u8, worker: u16, name: &str) {
        self.names.ask(worker, asker(client), name.into());
    }

    async fn told(&mut self) -> (u16, Box<str>, Answer) {
        tokio::time::timeout(DEADLINE, self.told.recv())
            .await
            .expect("told in time")
            .expect("the service lives")
    }

    /// Asks and waits for the result.
    async fn answer(&mut self, name: &str) -> Answer {
        self.ask(0, name);
        let (_, of, answer) = self.told().await;
        assert_eq!(&*of, name);
        answer
    }

    async fn list(&mut self, name: &str) -> String {
        told(&self.answer(name).await)
    }
}

fn asker(client: u8) -> Asker {
    Asker::of(None, [192, 0, 2, client].into())
}

fn told(answer: &Answer) -> String {
    let list = &answer.as_ref().expect("addresses").list;
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn ttl_us(answer: &Answer) -> u64 {
    match answer {
        Ok(Addresses { ttl_us, .. }) | Err(Unresolved::NoSuchName { ttl_us }) => *ttl_us,
        Err(other) => panic!("{other:?} has no time"),
    }
}

/// Waits on another thread, so that the service continues.
async fn elsewhere(wait: impl FnOnce() + Send + 'static) {
    tokio::task::spawn_blocking(wait).await.expect("no panic");
}

fn run<F: Future<Output = ()>>(test: impl FnOnce(Arc<NameServer>) -> F) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, test(Arc::new(NameServer::start())));
}

#[test]
fn both_kinds_are_asked_for_and_take_turns() {
    run(|server| async move {
        server.script("two.test", Asked::A, [Reply::of("192.0.2.1 192.0.2.2", 300)]);
        server.script("two.test", Asked::Aaaa, [Reply::of("2001:db8::1 2001:db8::2", 200)]);
        let mut bench = Bench::new(server.address, Limits::default());
        let answer = bench.answer("two.test").await;
        let told = told(&answer);
        let orders = [
            "2001:db8::1 192.0.2.1 2001:db8::2 192.0.2.2",
            "192.0.2.1 2001:db8::1 192.0.2.2 2001:db8::2",
        ];
        assert!(orders.contains(&told.as_str()), "{told}");
        assert_eq!(ttl_us(&answer), 200_000_000);
        assert_eq!(
            (server.asked("two.test", Asked::A), server.asked("two.test", Asked::Aaaa)),
            (1, 1)
        );
    });
}

#[test]
fn an_answer_is_kept_for_its_time_and_then_asked_for_again() {
    run(|server| async move {
        server.script(
            "rebind.test",
            Asked::A,
            [Reply::of("192.0.2.1", 1), Reply::of("127.0.0.1", 300)],
        );
        let mut bench = Bench::new(server.address, Limits::default());
        let start = Instant::now();
        assert_eq!(bench.list("rebind.test").await, "192.0.2.1");
        let again = bench.answer("rebind.test").await;
        if start.elapsed() < Duration::from_millis(900) {
            assert_eq!(
                (told(&again).as_str(), server.asked("rebind.test", Asked::A)),
                ("192.0.2.1", 1)
            );
            assert!(ttl_us(&again) <= 1_000_000);
        }
        while bench.list("rebind.test").await != "127.0.0.1" {
            assert!(start.elapsed() < DEADLINE, "kept for ever");
            tokio::task::yield_now().await;
        }
        assert!(start.elapsed() >= Duration::from_secs(1), "not kept");
        assert_eq!(server.asked("rebind.test", Asked::A), 2);
    });
}

#[test]
fn who_asks_for_the_same_name_waits_for_the_same_question() {
    run(|server| async move {
        server.script("same.test", Asked::A, [Reply::of("192.0.2.1", 60).held()]);
        let mut bench = Bench::new(server.address, Limits::default());
        for worker in 0..4 {
            bench.ask(worker, "same.test");
        }
        let waiting = Arc::clone(&server);
        elsewhere(move || waiting.wait_for("same.test", Asked::A, 1)).await;
        bench.ask(4, "same.test");
        server.release("same.test");
        let mut workers = Vec::new();
        for _ in 0..5 {
            let (worker, _, answer) = bench.told().await;
            assert_eq!(told(&answer), "192.0.2.1");
            workers.push(worker);
        }
        assert_eq!(workers, [0, 1, 2, 3, 4]);
        assert_eq!(server.asked("same.test", Asked::A), 1);
    });
}

#[test]
fn that_there_is_no_such_name_is_kept_as_long_as_it_holds() {
    run(|server| async move {
        server.script("no.test", Asked::A, [Reply::NoSuchName(20)]);
        server.script("no.test", Asked::Aaaa, [Reply::NoSuchName(20)]);
        server.script("mail.test", Asked::A, [Reply::Nothing(900)]);
        let mut bench = Bench::new(server.address, Limits::default());
        assert_eq!(
            bench.answer("no.test").await,
            Err(Unresolved::NoSuchName { ttl_us: 20_000_000 })
        );
        assert!(ttl_us(&bench.answer("no.test").await) < 20_000_000);
        assert_eq!(server.asked("no.test", Asked::A), 1);
        assert_eq!(
            bench.answer("mail.test").await,
            Err(Unresolved::NoSuchName { ttl_us: 60_000_000 })
        );
    });
}

#[test]
fn a_failure_is_told_as_one_and_not_kept() {
    run(|server| async move {
        for kind in [Asked::A, Asked::Aaaa] {
            server.script("broken.test", kind, [Reply::Failure]);
        }
        let mut bench = Bench::new(server.address, Limits::default());
        assert_eq!(bench.answer("broken.test").await, Err(Unresolved::Failed));
        server.script("broken.test", Asked::A, [Reply::of("192.0.2.1", 300)]);
        let mended = bench.answer("broken.test").await;
        assert_eq!(
            (told(&mended).as_str(), ttl_us(&mended)),
            ("192.0.2.1", 30_000_000),
            "the other kind is not known"
        );
    });
}

#[test]
fn a_silent_name_server_ends_at_the_deadline() {
    run(|server| async move {
        for kind in [Asked::A, Asked::Aaaa] {
            server.script("silent.test", kind, [Reply::Silence]);
        }
        let limits = Limits { deadline: Duration::from_millis(400), ..Limits::default() };
        let mut bench = Bench::new(server.address, limits);
        let start = Instant::now();
        assert_eq!(bench.answer("silent.test").await, Err(Unresolved::TimedOut));
        assert!(start.elapsed() >= limits.deadline && start.elapsed() < Duration::from_secs(5));
    });
}

#[test]
fn a_slow_name_delays_no_other() {
    run(|server| async move {
        server.script("slow.test", Asked::A, [Reply::of("192.0.2.1", 60).held()]);
        server.script("fast.test", Asked::A, [Reply::of("192.0.2.2", 60)]);
        let mut bench = Bench::new(server.address, Limits::default());
        bench.ask(0, "slow.test");
        let waiting = Arc::clone(&server);
        elsewhere(move || waiting.wait_for("slow.test", Asked::A, 1)).await;
        assert_eq!(bench.list("fast.test").await, "192.0.2.2");
        server.release("slow.test");
        assert_eq!(told(&bench.told().await.2), "192.0.2.1");
    });
}

#[test]
fn one_kind_is_told_alone_when_the_other_is_slow() {
    run(|server| async move {
        server.script("half.test", Asked::A, [Reply::of("192.0.2.1", 300)]);
        server.script("half.test", Asked::Aaaa, [Reply::of("2001:db8::1", 300).held()]);
        let mut bench = Bench::new(server.address, Limits::default());
        let half = bench.answer("half.test").await;
        assert_eq!((told(&half).as_str(), ttl_us(&half)), ("192.0.2.1", 1_000_000));
        assert_eq!(bench.list("half.test").await, "192.0.2.1");
        server.release("half.test");
        let start = Instant::now();
        while bench.answer("half.test").await.expect("addresses").list.len() != 2 {
            assert!(start.elapsed() < DEADLINE, "the other kind is never told");
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn aliases_are_followed_and_the_shortest_time_counts() {
    run(|server| async move {
        let inside = Reply::of("192.0.2.1", 300);
        server.script(
            "www.test",
            Asked::A,
            [Reply::Alias("edge.test", 40, Some(Box::new(inside)))],
        );
        server.script("far.test", Asked::A, [Reply::Alias("farther.test", 50, None)]);
        server.script("farther.test", Asked::A, [Reply::Alias("farthest.test", 300, None)]);
        server.script("farthest.test", Asked::A, [Reply::of("192.0.2.2", 300)]);
        server.script("circle.test", Asked::A, [Reply::Alias("circle.test", 300, None)]);
        server.script("circle.test", Asked::Aaaa, [Reply::Alias("circle.test", 300, None)]);
        let mut bench = Bench::new(server.address, Limits::default());
        for (name, list, ttl) in
            [("www.test", "192.0.2.1", 40_000_000), ("far.test", "192.0.2.2", 50_000_000)]
        {
            let answer = bench.answer(name).await;
            assert_eq!((told(&answer).as_str(), ttl_us(&answer)), (list, ttl), "{name}");
        }
        assert!(bench.answer("circle.test").await.is_err());
    });
}

#[test]
fn what_is_no_answer_to_the_question_is_ignored() {
    run(|server| async move {
        server.script(
            "noise.test",
            Asked::A,
            [Reply::Garbage(Box::new(Reply::of("192.0.2.1", 60)))],
        );
        let mut bench = Bench::new(server.address, Limits::default());
        assert_eq!(bench.list("noise.test").await, "192.0.2.1");
    });
}

#[test]
fn so_many_are_asked_at_once_and_so_many_wait() {
    run(|server| async move {
        for name in ["one.test", "two.test"] {
            server.script(name, Asked::A, [Reply::of("192.0.2.1", 60).held()]);
        }
        let mut bench =
            Bench::new(server.address, Limits { asked_max: 1, open_max: 4, ..Limits::default() });
        bench.ask(0, "one.test");
        let waiting = Arc::clone(&server);
        elsewhere(move || waiting.wait_for("one.test", Asked::A, 1)).await;
        bench.ask(0, "two.test");
        assert_eq!(bench.answer("three.test").await, Err(Unresolved::NoRoom));
        assert_eq!(server.asked("two.test", Asked::A) + server.asked("three.test", Asked::A), 0);
        server.release("one.test");
        assert_eq!(&*bench.told().await.1, "one.test");
        let waiting = Arc::clone(&server);
        elsewhere(move || waiting.wait_for("two.test", Asked::A, 1)).await;
        server.release("two.test");
        assert_eq!(&*bench.told().await.1, "two.test");
    });
}

/// Makes a service where `client` has one name that is never answered, and one that waits for its
/// turn.
async fn line(server: &Arc<NameServer>, limits: Limits) -> Bench {
    server.script("silent.test", Asked::A, [Reply::Silence]);
    server.script("silent.test", Asked::Aaaa, [Reply::Silence]);
    server.script("waits.test", Asked::A, [Reply::of("192.0.2.1", 60)]);
    let bench = Bench::new(server.address, Limits { asked_max: 2, ..limits });
    bench.ask(0, "silent.test");
    let waiting = Arc::clone(server);
    elsewhere(move || waiting.wait_for("silent.test", Asked::A, 1)).await;
    bench.ask(0, "waits.test");
    bench
}

#[test]
fn silent_names_of_one_client_keep_no_other_up() {
    run(|server| async move {
        let names: Vec<String> = (0..20).map(|n| format!("silent{n}.test")).collect();
        for (name, kind) in names.iter().flat_map(|name| [(name, Asked::A), (name, Asked::Aaaa)]) {
            server.script(name, kind, [Reply::Silence]);
        }
        server.script("good.test", Asked::A, [Reply::of("192.0.2.1", 60)]);
        let mut bench =
            Bench::new(server.address, Limits { asked_max: 8, open_max: 32, ..Limits::default() });
        names.iter().for_each(|name| bench.ask(0, name));
        let asked = Arc::clone(&server);
        let fourth = names[3].clone();
        elsewhere(move || asked.wait_for(&fourth, Asked::A, 1)).await;
        // Four of them have no room, which is known at once.
        for name in &names[16..] {
            assert_eq!(bench.told().await, (0, name.as_str().into(), Err(Unresolved::NoRoom)));
        }
        bench.ask_for(2, 1, "good.test");
        let (worker, name, answer) = bench.told().await;
        assert_eq!((worker, &*name, told(&answer).as_str()), (1, "good.test", "192.0.2.1"));
        assert_eq!(
            names[4..].iter().map(|name| server.asked(name, Asked::A)).sum::<usize>(),
            0,
            "half of the turns"
        );
    });
}

#[test]
fn nobody_waits_for_a_name_in_the_line_of_another() {
    run(|server| async move {
        let mut bench = line(&server, Limits::default()).await;
        bench.ask_for(2, 1, "waits.test");
        let mut workers = Vec::new();
        for _ in 0..2 {
            let (worker, name, answer) = bench.told().await;
            assert_eq!((&*name, told(&answer).as_str()), ("waits.test", "192.0.2.1"));
            workers.push(worker);
        }
        assert_eq!(
            (workers, server.asked("waits.test", Asked::A)),
            (vec![0, 1], 1),
            "resolved once, for both"
        );
    });
}

#[test]
fn a_name_that_has_no_turn_in_time_found_no_room() {
    run(|server| async move {
        let mut bench =
            line(&server, Limits { turn: Duration::from_millis(100), ..Limits::default() }).await;
        assert_eq!(bench.told().await, (0, "waits.test".into(), Err(Unresolved::NoRoom)));
        assert_eq!(server.asked("waits.test", Asked::A), 0);
        // Nothing of it is left: another client gets it resolved.
        bench.ask_for(2, 0, "waits.test");
        assert_eq!(told(&bench.told().await.2), "192.0.2.1");
    });
}

#[test]
fn what_is_no_name_is_not_asked_for() {
    run(|server| async move {
        let mut bench = Bench::new(server.address, Limits::default());
        for name in ["127.1", "0x7f.0.0.1", "a..b", ""] {
            assert_eq!(bench.answer(name).await, NO_NAME, "{name}");
        }
        assert_eq!(server.asked("127.1", Asked::A), 0);
    });
}

#[test]
fn the_table_of_the_system_comes_first() {
    run(|server| async move {
        for name in ["db.test", "other.test"] {
            server.script(name, Asked::A, [Reply::of("192.0.2.9", 60)]);
            server.script(name, Asked::Aaaa, [Reply::of("2001:db8::9", 60)]);
        }
        let path = std::env::temp_dir().join(format!("weir-names-{}", std::process::id()));
        std::fs::write(&path, "10.0.0.1 db.test\n").expect("a file");
        let hosts = Hosts::new(path.to_str().expect("text"));
        let mut bench = Bench::with_hosts(server.address, Limits::default(), Some(hosts));
        assert_eq!(bench.list("db.test").await, "10.0.0.1", "nor is the other kind asked for");
        assert_eq!(bench.answer("other.test").await.expect("addresses").list.len(), 2);
        std::fs::remove_file(&path).expect("it was there");
    });
}

#[test]
fn a_question_that_is_dropped_is_answered() {
    run(|server| async move {
        server.script("slow.test", Asked::A, [Reply::of("192.0.2.1", 60).held()]);
        let mut bench = Bench::new(server.address, Limits::default());
        let inner = LocalSet::new();
        inner.run_until(async { bench.ask(7, "slow.test") }).await;
        drop(inner);
        let (worker, _, answer) = bench.told().await;
        assert_eq!((worker, answer), (7, Err(Unresolved::Failed)));
    });
}
