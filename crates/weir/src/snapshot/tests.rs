//! Proves: confirmed invalidations are in the file even while another process takes it over, and
//! later ones learn that they may be missing; a snapshot during which too much becomes invalid is
//! abandoned; a keeper does not try for another program's file at each call. How: snapshots of an
//! empty store, without the thread.

use std::path::Path;
use std::sync::mpsc::channel;

use weir_cache::{Change, SourceMark, Target, put_change};

use super::*;
use crate::lasting::tests::Directory;

/// Makes the keeper of a file that it does not own yet.
fn snapshots(path: &Path) -> (Snapshots, Arc<Store>) {
    let text = format!(
        "listen \"127.0.0.1:8080\"\ncache {{ snapshot \"{}\"; }}\n\
            upstream \"app\" {{ server \"127.0.0.1:1\"; }}\nroute {{ proxy \"app\"; cache; }}\n",
        path.display()
    );
    let mut plan =
        weir_config::parse(&text, "(test)").unwrap_or_else(|errors| panic!("{errors}")).plan;
    let cache = plan.cache.as_mut().unwrap();
    cache.open([1, 2], 1);
    let store = Arc::clone(cache.store.as_ref().unwrap());
    (Snapshots::open(&plan, false), store)
}

/// The same with a snapshot.
fn written(path: &Path) -> (Snapshots, Arc<Store>) {
    let (snapshots, store) = snapshots(path);
    snapshots.lock().take_file();
    snapshots.read();
    snapshots.write();
    assert!(path.exists());
    (snapshots, store)
}

/// Returns the changes behind the responses.
fn behind(path: &Path) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap();
    let preface = Preface::decode(bytes.first_chunk().unwrap()).unwrap();
    bytes[preface.end as usize..].to_vec()
}

#[test]
fn what_is_confirmed_while_it_goes_over_is_in_it() {
    let directory = Directory::new("snapshot-leave");
    let path = directory.path("cache");
    let (snapshots, store) = written(&path);
    let (told, confirmed) = channel();
    let expected = std::thread::scope(|scope| {
        let purges = scope.spawn(|| {
            let mut expected = Vec::new();
            for connection in 0.. {
                let source = SourceMark { connection, position: 0 };
                store.withdraw(source);
                if !snapshots.settle() {
                    break;
                }
                assert!(put_change(
                    &mut expected,
                    &Change { target: Target::Source(source), is_soft: false }
                ));
                let _ = told.send(());
            }
            expected
        });
        (0..3).for_each(|_| confirmed.recv().unwrap());
        snapshots.leave();
        purges.join().unwrap()
    });
    let bytes = behind(&path);
    assert!(
        !expected.is_empty() && bytes.starts_with(&expected),
        "{} of {}",
        expected.len(),
        bytes.len()
    );
    // By now it belongs to another process.
    let (next, _) = self::snapshots(&path);
    next.lock().take_file();
    assert!(next.lock().has_file() && !snapshots.lock().has_file());
    assert!(next.settle() && !snapshots.settle());
    assert_eq!(behind(&path), bytes);
}

#[test]
fn a_successor_that_comes_to_nothing_changes_nothing() {
    let directory = Directory::new("snapshot-successor");
    let (snapshots, _) = written(&directory.path("cache"));
    assert!(snapshots.settle());
    snapshots.set_successor(true);
    assert!(!snapshots.settle());
    snapshots.set_successor(false);
    assert!(snapshots.settle());
}

#[test]
fn what_too_much_becomes_invalid_for_is_given_up() {
    let directory = Directory::new("snapshot-overrun");
    let path = directory.path("cache");
    let (snapshots, store) = written(&path);
    assert!(snapshots.lock().begin().is_some());
    assert!(snapshots.look().unwrap());
    let url = vec![b'x'; 1 << 16];
    (0..100).for_each(|_| store.invalidate(&url));
    assert_eq!(snapshots.look().unwrap_err().to_string(), overrun().to_string());
    assert!(!path.exists(), "the last one is not up to date either");
    snapshots.write();
    assert!(path.exists() && snapshots.settle());
}

#[test]
fn whose_file_another_program_has() {
    let directory = Directory::new("snapshot-others");
    let path = directory.path("cache");
    let (first, _) = written(&path);
    let (second, _) = snapshots(&path);
    second.lock().take_file();
    assert!(!second.lock().has_file() && second.lock().figures.problem.contains("is in use by"));
    first.lock().let_go();
    let mut book = second.lock();
    book.take_at = Some(Instant::now() + Duration::from_secs(3600));
    book.take_file();
    assert!(!book.has_file(), "it is not time");
    // The file lacks changes from the time when another process owned it, so it is not used.
    (book.take_at, book.is_read, book.is_partly_read) = (None, true, true);
    book.take_file();
    assert!(book.has_file() && !book.is_partly_read && !path.exists());
    assert_eq!(book.figures.problem, "");
}
