//! Proves: an offered client is banned once, and longer the next time, unless it is exempt;
//! operators may insist; bans survive a restart. How: lists without workers, of clients with
//! addresses that no machine has.

use weir_proxy::shield::key::{Key, Prefix};
use weir_proxy::shield::limit::Verdict;
use weir_proxy::shield::table::Charged;

use super::*;
use crate::lasting::tests::Directory;

fn plan(ban: &str) -> Arc<Plan> {
    let text = format!(
        r#"
listen "127.0.0.1:8080"
client {{ trusted-proxies "10.1.0.1"; }}
upstream "app" {{ server "10.3.0.1:80"; }}
route {{ proxy "app"; }}
shield {{ allow "10.9.0.0/16"; limit "rate" count="requests" rate="1/s"; ban {ban}; }}
"#
    );
    Arc::new(weir_config::parse(&text, "weir.kdl").expect("valid").plan)
}

fn bans(ban: &str) -> Bans {
    let plan = plan(ban);
    let bans = Bans::open(&plan, false);
    bans.begin(Handle::of_views(&plan, 0));
    bans
}

fn client(address: &str) -> Block {
    Key::of(address.parse().expect("an address"), Prefix::default()).block().expect("not everybody")
}

fn offer(bans: &Bans, address: &str) {
    bans.lock().take(&Offence {
        block: client(address),
        limit: "rate".into(),
        by_proxy: false,
        forwards: false,
    });
}

fn listed(bans: &Bans) -> Vec<String> {
    let mut all: Vec<String> =
        bans.list(None, false).iter().map(|ban| ban.block.to_string()).collect();
    all.sort_unstable();
    all
}

#[test]
fn whoever_may_be_a_load_balancer_is_pointed_at() {
    let bans = bans("for=\"1h\"");
    for forwards in [false, true] {
        let block = client(if forwards { "247.0.2.1" } else { "247.0.2.2" });
        bans.lock().take(&Offence { block, limit: "rate".into(), by_proxy: false, forwards });
        let said = bans.lock().voice.take_said();
        let hints = said[0].to_string().contains("add it to `trusted-proxies`");
        assert_eq!(hints, forwards, "{said:?}");
    }
}

#[test]
fn who_is_offered_is_banned_unless_nobody_bans_him() {
    let bans = bans("for=\"1h\"");
    for address in [
        "247.0.2.1",
        "247.0.2.1",
        "127.0.0.9",
        "10.1.0.1",
        "10.3.0.1",
        "10.9.1.1",
        "4001:db8:1:2:3::4",
    ] {
        offer(&bans, address);
    }
    assert_eq!(listed(&bans), ["247.0.2.1", "4001:db8:1:2::/64"]);
    let ban = &bans.list(Some(client("247.0.2.1")), false)[0];
    assert_eq!(
        (ban.count, ban.until_s - ban.since_s, &ban.reason[..], ban.forced),
        (1, 3600, "limit rate", false)
    );
    assert!((3599..=3600).contains(&ban.left_s), "{ban:?}");
    let figures = bans.figures();
    assert_eq!((figures.in_force, figures.total, figures.displaced, figures.file), (2, 2, 0, None));
    assert_eq!(bans.remove(bans.block("247.0.2.0/24")), [client("247.0.2.1")]);
    offer(&bans, "247.0.2.1");
    let ban = &bans.list(Some(client("247.0.2.1")), false)[0];
    assert_eq!(ban.count, 1, "he was forgiven");
    assert_eq!((bans.remove(None).len(), listed(&bans).len(), bans.remove(None).len()), (2, 0, 0));
}

/// A ban applies to a range if it has any of its addresses.
#[test]
fn bans_of_a_range() {
    let bans = bans("for=\"1h\"");
    for address in ["247.0.2.1", "247.0.3.1", "4001:db8:1:2:3::4"] {
        offer(&bans, address);
    }
    let of = |written: &str| -> Vec<String> {
        let block = Block::read(written, 32, 128).expect("an address or a range");
        bans.list(Some(block), false).iter().map(|ban| ban.block.to_string()).collect()
    };
    for (written, expected) in [
        ("247.0.2.0/24", &["247.0.2.1"][..]),
        ("247.0.2.2", &[]),
        ("248.0.0.0/8", &[]),
        ("4001:db8:1:2::9", &["4001:db8:1:2::/64"]),
        ("4001:db8::/32", &["4001:db8:1:2::/64"]),
    ] {
        assert_eq!(of(written), expected, "{written}");
    }
    assert_eq!(of("247.0.0.0/8").len(), 2);
}

/// In the first second, which is only partly its own, a ban has its length left; then less and
/// less, and 0 only when it is over.
#[test]
fn no_more_is_left_than_was_ordered() {
    let ban = Ban::new(1001, 1061, "");
    let left_s = |now_s| orders::shown(client("247.0.2.1"), &ban, now_s).left_s;
    assert_eq!([1000, 1001, 1002, 1060, 1061, 1062].map(left_s), [60, 60, 59, 1, 0, 0]);
    // The clock was set back: the ban ends at the same time of day.
    assert_eq!(left_s(901), 160);
}

#[test]
fn operators_may_insist() {
    let bans = bans("");
    let trusted = bans.block("10.1.0.0/16").unwrap();
    assert_eq!(bans.add(trusted, 60, "", None, false), Err(NeverBanned("in `trusted-proxies`")));
    let ban = bans.add(trusted, 60, &"a\n".repeat(200), None, true).unwrap();
    assert!(
        ban.forced && ban.reason.len() == REASON_BYTES_MAX && !ban.reason.contains('\n'),
        "{ban:?}"
    );
    bans.lock().exempt.clear();
    bans.lock().look_whom_to_spare();
    assert_eq!(listed(&bans), ["10.1.0.0/16"], "it holds when whom to spare is looked at again");
    let (network, mine) = (bans.block("4001:db8::7").unwrap(), "4001:db8::9".parse().ok());
    assert_eq!(
        bans.add(network, 60, "", mine, false),
        Err(NeverBanned("the other end of this ssh session"))
    );
    let ban = bans.add(network, 60, "by hand", None, false).unwrap();
    assert_eq!((ban.block.to_string(), ban.forced), ("4001:db8::/64".to_owned(), false));
    assert_eq!((ban.left_s, ban.until_s - ban.since_s), (60, 60), "what was ordered");
}

#[test]
fn a_restart_keeps_them() {
    let directory = std::env::temp_dir().join(format!("weir-keeper-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("bans");
    let ban = format!("state=\"{}\" bans-max=16", path.display());
    let first = bans(&ban);
    offer(&first, "247.0.2.1");
    first.add(client("247.0.2.2"), 1000, "by hand", None, false).unwrap();
    first.save(true);
    first.lock().kept.hold.let_go();
    let second = bans(&ban);
    assert_eq!(second.list(None, false), first.list(None, false));
    second.leave();
    second.remove(None);
    second.save(true);
    assert_eq!(listed(&bans(&ban)).len(), 2, "the file is another process's");
    // A successor has what its predecessor left, and until then writes nothing.
    let third = Bans::open(&plan(&ban), true);
    third.remove(None);
    third.save(true);
    first.lock().take_file(false);
    first.add(client("247.0.2.40"), 1000, "late", None, false).unwrap();
    first.leave();
    third.enter();
    assert_eq!(third.list(None, false), first.list(None, false));
    third.remove(bans(&ban).block("247.0.2.40"));
    third.save(true);
    drop(third);
    let first = bans(&ban);
    assert_eq!(listed(&first).len(), 2);
    for last in 3..30 {
        offer(&first, &format!("247.0.2.{last}"));
    }
    assert_eq!((listed(&first).len(), first.figures().displaced), (16, 13));
    std::fs::remove_dir_all(&directory).unwrap();
    first.save(true);
    assert!(first.figures().problem.is_some());
}

/// Each of them would overwrite the bans of the other.
#[test]
fn two_do_not_have_the_same_file() {
    let directory = Directory::new("keeper-two");
    let ban = format!("state=\"{}\"", directory.path("bans").display());
    let first = bans(&ban);
    first.add(client("247.0.2.1"), 1000, "", None, false).unwrap();
    first.save(true);
    let second = bans(&ban);
    second.add(client("247.0.2.2"), 1000, "", None, false).unwrap();
    second.save(true);
    assert_eq!(listed(&second), ["247.0.2.2"]);
    let said = second.lock().kept.problem.clone();
    assert!(
        said.as_ref().is_some_and(|why| why.contains("bans is in use by weir itself")),
        "{said:?}"
    );
    second.lock().look();
    assert!(second.lock().voice.take_said().is_empty(), "it is told once");
    // The first list ends.
    first.save(true);
    drop(first);
    second.lock().look();
    assert_eq!(
        (listed(&second), second.figures().problem),
        (vec!["247.0.2.1".into(), "247.0.2.2".into()], None)
    );
    second.save(true);
    drop(second);
    assert_eq!(listed(&bans(&ban)).len(), 2);
    assert_eq!(directory.names(), ["bans"]);
    // A list with another file releases the old one, and keeps its bans.
    let moved = bans(&ban);
    let other = format!("state=\"{}\"", directory.path("other").display());
    moved.with(|list| list.adopt(plan(&other)));
    let third = bans(&ban);
    assert_eq!((listed(&moved).len(), listed(&third).len(), third.figures().problem), (2, 2, None));
    moved.save(true);
    assert!(directory.path("other").exists());
}

/// An upgrade while a third program has the file: bans made before that program ends remain.
#[test]
fn who_takes_over_without_the_file_keeps_its_own() {
    let directory = Directory::new("keeper-third");
    let ban = format!("state=\"{}\"", directory.path("bans").display());
    let other = bans(&ban);
    other.add(client("247.0.2.1"), 1000, "", None, false).unwrap();
    other.save(true);
    let successor = Bans::open(&plan(&ban), true);
    assert_eq!(listed(&successor), ["247.0.2.1"], "it begins with what there is");
    successor.enter();
    assert!(successor.figures().problem.is_some_and(|why| why.contains("is in use by")));
    successor.add(client("247.0.2.2"), 1000, "", None, false).unwrap();
    drop(other);
    successor.lock().look();
    assert_eq!(
        (listed(&successor), successor.figures().problem),
        (vec!["247.0.2.1".into(), "247.0.2.2".into()], None)
    );
    successor.save(true);
    drop(successor);
    assert_eq!(listed(&bans(&ban)).len(), 2);
}

#[test]
fn a_file_that_cannot_be_read_is_not_replaced() {
    let directory = std::env::temp_dir().join(format!("weir-keeper-odd-{}", std::process::id()));
    std::fs::create_dir_all(directory.join("bans")).unwrap();
    let bans = bans(&format!("state=\"{}\"", directory.join("bans").display()));
    bans.add(client("247.0.2.2"), 1000, "", None, false).unwrap();
    bans.save(true);
    let figures = bans.figures();
    assert!(figures.file.is_none() && figures.problem.is_some(), "{figures:?}");
    assert!(directory.join("bans").is_dir());
    std::fs::remove_dir_all(&directory).unwrap();
}

/// A client without a known ban may still have used up part of its limit.
#[test]
fn who_is_removed_owes_nothing_more() {
    let bans = bans("for=\"1h\"");
    let plan = Arc::clone(&bans.lock().plan);
    let shield = plan.shield.as_ref().unwrap();
    let (table, one) =
        (shield.seed.table(), Key::of("247.0.2.1".parse().unwrap(), Prefix::default()));
    let name = table.name(u32::MAX, one);
    let rate = shield.ban.as_ref().unwrap().offences;
    let owes = || table.charge(&name, None, 0, &rate, 1_000_000);
    (0..20).for_each(|_| assert!(matches!(owes(), Charged::At(_, Verdict::Passed))));
    let last = owes();
    assert!(matches!(last, Charged::At(_, Verdict::Over { .. })), "{last:?}");
    assert_eq!(bans.remove(Some(client("247.0.2.1"))), []);
    assert!(matches!(owes(), Charged::At(_, Verdict::Passed)));
}
