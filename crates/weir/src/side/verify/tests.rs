//! Proves: good credentials pass and others do not, each gets a reply, cost is paid once and within
//! bounds, and a changed file counts. How: cheap hashes in a real file, and short times.

use std::path::PathBuf;

use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::LocalSet;

use super::*;

/// A result of the service has its own channel, which only allows the longest of all waits.
const DEADLINE: Duration = weir_check::waiting::CAP;
/// Refusals are not delayed, and the file is checked each time.
const AT_ONCE: Times = Times { look_every: Duration::ZERO, refused_after: Duration::ZERO };

/// A file of users with the cheapest hashes, the service, and its results.
struct Bench {
    verifier: Rc<Verifier>,
    told: UnboundedReceiver<(u16, u64, Result<Arc<User>, Unverified>)>,
    file: PathBuf,
}

fn line(name: &str, password: &str) -> String {
    let parts = bcrypt::hash_with_salt(password, 4, [9; 16]).expect("a cost that exists");
    format!("{name}:{}\n", parts.format_for_version(bcrypt::Version::TwoY))
}

impl Bench {
    fn new(test: &str, users: &[(&str, &str)], times: Times) -> Bench {
        let file = std::env::temp_dir().join(format!("weir-verify-{}-{test}", std::process::id()));
        let (sender, told) = unbounded_channel();
        let tell: Tell = Rc::new(move |worker, news| {
            if let News::Verified { question, user, .. } = news {
                sender.send((worker, question.token, user)).expect("the test listens");
            }
        });
        write(&file, users);
        let source = Source::open(&file).expect("a good file");
        Bench { verifier: Verifier::new(source, [1; 32], Room::new(1), times, tell), told, file }
    }

    fn ask(&self, token: u64, name: &str, password: &str) {
        self.ask_from([192, 0, 2, 1], token, name, password);
    }

    fn ask_from(&self, client: [u8; 4], token: u64, name: &str, password: &str) {
        let credentials = Credentials { name: name.into(), password: password.as_bytes().into() };
        self.verifier.ask(3, Question { token, serial: 0 }, Lane::of(client.into()), credentials);
    }

    async fn told(&mut self) -> (u64, Result<Arc<User>, Unverified>) {
        let told = tokio::time::timeout(DEADLINE, self.told.recv()).await.expect("told in time");
        let (worker, token, user) = told.expect("the service lives");
        assert_eq!(worker, 3);
        (token, user)
    }

    async fn passes(&mut self, name: &str, password: &str) -> Option<Arc<User>> {
        self.ask(99, name, password);
        let (token, user) = self.told().await;
        assert_eq!(token, 99);
        user.ok()
    }
}

fn write(file: &PathBuf, users: &[(&str, &str)]) {
    let lines: String = users.iter().map(|(name, password)| line(name, password)).collect();
    std::fs::write(file, lines).expect("a file");
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

fn run<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, async { test().await });
}

#[test]
fn who_is_in_the_file_passes_with_his_password_only() {
    run(|| async {
        let mut bench = Bench::new("pass", &[("ann", "secret"), ("bob", "other")], AT_ONCE);
        let ann = bench.passes("ann", "secret").await.expect("good");
        assert_eq!(&*ann.name, "ann");
        for (name, password) in
            [("ann", "other"), ("bob", "secret"), ("ann", ""), ("eve", "secret"), ("", "secret")]
        {
            assert!(bench.passes(name, password).await.is_none(), "{name} {password}");
        }
    });
}

#[test]
fn good_credentials_are_compared_once() {
    run(|| async {
        let mut bench = Bench::new("once", &[("ann", "secret")], AT_ONCE);
        for token in 0..20 {
            bench.ask(token, "ann", "secret");
        }
        let mut users = Vec::new();
        for _ in 0..20 {
            users.push(bench.told().await.1.expect("good"));
        }
        assert!(users.iter().all(|user| Arc::ptr_eq(user, &users[0])));
        assert_eq!(bench.verifier.compared(), 1);
        bench.passes("ann", "secret").await.expect("good");
        assert_eq!(bench.verifier.compared(), 1);
        assert!(bench.passes("ann", "wrong").await.is_none());
        assert!(bench.passes("ann", "wrong").await.is_none());
        assert_eq!(bench.verifier.compared(), 3, "what is wrong is not kept");
    });
}

#[test]
fn unknown_names_cost_what_known_ones_cost() {
    run(|| async {
        let mut bench = Bench::new("unknown", &[("ann", "secret")], AT_ONCE);
        assert!(bench.passes("eve", "secret").await.is_none());
        assert_eq!(bench.verifier.compared(), 1);
    });
}

#[test]
fn who_guesses_locks_nobody_out() {
    run(|| async {
        let times = Times { look_every: Duration::from_secs(3600), refused_after: Duration::ZERO };
        let mut bench = Bench::new("guess", &[("ann", "secret"), ("bob", "other")], times);
        for token in 0..200 {
            bench.ask(token, "ann", &format!("guess {token}"));
            bench.ask(1000 + token, &format!("nobody {token}"), "guess");
        }
        bench.ask_from([192, 0, 2, 2], 5000, "ann", "secret");
        let mut told = Vec::new();
        for _ in 0..401 {
            told.push(bench.told().await);
        }
        let (good, bad): (Vec<_>, Vec<_>) = told.into_iter().partition(|(_, user)| user.is_ok());
        assert!(good.len() == 1 && good[0].0 == 5000, "{good:?}");
        let count = |why| bad.iter().filter(|(_, user)| user.as_ref().err() == Some(&why)).count();
        // Credentials that found a place which had become free are compared as well.
        assert_eq!(count(Unverified::Wrong) as u64 + 1, bench.verifier.compared());
        assert!(count(Unverified::Wrong) >= 16 && count(Unverified::NoRoom) > 0);
    });
}

#[test]
fn a_full_lane_tells_nothing_of_names_and_passwords() {
    run(|| async {
        let times = Times { look_every: Duration::from_secs(3600), refused_after: Duration::ZERO };
        for guessed in ["ann", "nobody"] {
            let mut bench = Bench::new("full", &[("ann", "secret")], times);
            let verifier = Rc::clone(&bench.verifier);
            // No comparison begins before all have asked.
            let threads = verifier.room.free.replace(0);
            for token in 0..16 {
                bench.ask(token, guessed, &format!("guess {token}"));
            }
            for (token, (name, password)) in
                [("ann", "secret"), ("ann", "wrong"), ("eve", "wrong")].iter().enumerate()
            {
                bench.ask(100 + token as u64, name, password);
            }
            for _ in 0..3 {
                let (token, user) = bench.told().await;
                assert!(
                    token >= 100 && user.err() == Some(Unverified::NoRoom),
                    "{token} with guesses at {guessed}"
                );
            }
            verifier.room.free.set(threads);
            verifier.room.give();
            for _ in 0..16 {
                let (token, user) = bench.told().await;
                assert!(
                    token < 100 && user.err() == Some(Unverified::Wrong),
                    "{token} with guesses at {guessed}"
                );
            }
            assert!(bench.passes("ann", "secret").await.is_some(), "there is room again");
        }
    });
}

#[test]
fn a_refusal_takes_its_time_whatever_its_reason() {
    run(|| async {
        let times =
            Times { look_every: Duration::from_secs(9), refused_after: Duration::from_millis(300) };
        let mut bench = Bench::new("late", &[("ann", "secret")], times);
        let start = Instant::now();
        for token in 0..20 {
            bench.ask(token, "ann", &format!("guess {token}"));
            bench.ask(token, &format!("nobody {token}"), "guess");
        }
        bench.ask(77, "ann", "secret");
        for _ in 0..40 {
            assert!(bench.told().await.1.is_err());
            assert!(start.elapsed() >= times.refused_after, "told early");
        }
        assert!(start.elapsed() < Duration::from_secs(5));
        // There was no room to compare it; now there is.
        assert!(bench.told().await.1.is_err());
        assert!(bench.passes("ann", "secret").await.is_some());
    });
}

#[test]
fn a_changed_file_counts_for_the_next_who_asks() {
    run(|| async {
        let mut bench = Bench::new("change", &[("ann", "secret"), ("bob", "other")], AT_ONCE);
        let ann = bench.passes("ann", "secret").await.expect("good");
        assert!(bench.passes("bob", "other").await.is_some());
        write(&bench.file, &[("ann", "new one")]);
        assert!(
            bench.passes("ann", "secret").await.is_none()
                && bench.passes("bob", "other").await.is_none()
        );
        let again = bench.passes("ann", "new one").await.expect("good");
        assert!(ann.is_revoked() && !again.is_revoked());
        std::fs::write(&bench.file, "ann:plain\n").expect("a file");
        assert!(bench.passes("ann", "new one").await.is_some(), "a bad file changes nothing");
    });
}

#[test]
fn a_check_that_panics_is_not_the_last() {
    run(|| async {
        let mut bench = Bench::new("panic", &[("ann", "secret")], AT_ONCE);
        let ann = bench.passes("ann", "secret").await.expect("good");
        let verifier = Rc::clone(&bench.verifier);
        let turn = verifier.looking.lock().await;
        verifier.read(&turn, |_| panic!("the check of the test")).await;
        drop(turn);
        assert!(bench.passes("ann", "secret").await.is_some() && !ann.is_revoked());
        write(&bench.file, &[("ann", "new one")]);
        assert!(bench.passes("ann", "new one").await.is_some() && ann.is_revoked());
        assert!(bench.passes("ann", "secret").await.is_none());
    });
}

#[test]
fn a_user_who_is_deleted_is_revoked_without_a_question() {
    run(|| async {
        let times = Times { look_every: Duration::from_millis(10), refused_after: Duration::ZERO };
        let mut bench = Bench::new("watch", &[("ann", "secret"), ("bob", "other")], times);
        let [ann, bob] = [bench.passes("ann", "secret").await, bench.passes("bob", "other").await];
        let (ann, bob) = (ann.expect("good"), bob.expect("good"));
        tokio::task::spawn_local(Verifier::watch(Rc::downgrade(&bench.verifier), times.look_every));
        write(&bench.file, &[("bob", "other")]);
        let revoked = async {
            while !ann.is_revoked() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(DEADLINE, revoked).await.expect("seen in time");
        assert!(!bob.is_revoked() && bench.passes("ann", "secret").await.is_none());
    });
}

#[test]
fn a_password_that_comes_back_while_it_is_compared_is_good_again() {
    run(|| async {
        let mut bench = Bench::new("back", &[("ann", "secret")], AT_ONCE);
        let first = bench.passes("ann", "secret").await.expect("good");
        // As after a comparison that ends when the file has changed twice.
        let mark = {
            let users = Arc::clone(&bench.verifier.users.borrow());
            let credentials = Credentials { name: "ann".into(), password: (*b"secret").into() };
            bench.verifier.mark(&credentials, users.find("ann"))
        };
        write(&bench.file, &[("ann", "another"), ("bob", "other")]);
        assert!(bench.passes("ann", "secret").await.is_none());
        write(&bench.file, &[("ann", "secret")]);
        drop(Ending { verifier: Rc::clone(&bench.verifier), mark, user: Ok(Arc::clone(&first)) });
        let again = bench.passes("ann", "secret").await.expect("good");
        assert!(first.is_revoked() && !again.is_revoked());
    });
}

#[test]
fn the_file_is_not_looked_at_more_often_than_said() {
    run(|| async {
        let times = Times { look_every: Duration::from_secs(3600), refused_after: Duration::ZERO };
        let mut bench = Bench::new("seldom", &[("ann", "secret")], times);
        std::fs::remove_file(&bench.file).expect("it was there");
        write(&bench.file, &[("ann", "other")]);
        assert!(bench.passes("ann", "secret").await.is_some());
    });
}

#[test]
fn a_question_that_is_dropped_is_answered() {
    run(|| async {
        let mut bench = Bench::new("drop", &[("ann", "secret")], AT_ONCE);
        let inner = LocalSet::new();
        inner.run_until(async { bench.ask(1, "ann", "secret") }).await;
        drop(inner);
        assert!(bench.told().await.1.is_err());
    });
}
