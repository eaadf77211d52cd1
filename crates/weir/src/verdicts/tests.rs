//! Proves: verdicts survive a restart until an operator clears them; an unreadable line costs only
//! that line; an unreadable file is not replaced; servers that have left are forgotten in a week;
//! the list is bounded. How: lists without workers.

use super::*;
use crate::lasting::tests::Directory;

const UNFIT: Verdict = Verdict::Unfit(Doubt::FailsRehearsal);

fn plan(state: &str, servers: &[&str]) -> Arc<Plan> {
    let servers: String = servers.iter().map(|server| format!("server \"{server}\"; ")).collect();
    let text = format!(
        r#"
listen "127.0.0.1:8080"
{state}
upstream "app" {{ {servers} }}
route {{ proxy "app"; }}
"#
    );
    Arc::new(weir_config::parse(&text, "weir.kdl").expect("valid").plan)
}

fn state(directory: &Directory) -> String {
    format!("pipeline-state \"{}\"", directory.path("pipelining").display())
}

fn event(server: u32, what: What) -> Event {
    Event { server, what }
}

/// Returns what workers get, by the names of servers.
fn known(verdicts: &Verdicts) -> Vec<(String, Verdict)> {
    let list = verdicts.lock();
    list.known()
        .into_iter()
        .map(|(slot, verdict)| (key(&list.plan, slot as usize).unwrap().1, verdict))
        .collect()
}

/// Opens the list, and returns it with its messages.
fn opened(plan: &Arc<Plan>, waits: bool) -> (Verdicts, Vec<Line>) {
    let verdicts = Verdicts::default();
    let mut list = verdicts.lock();
    list.kept = Kept::new(Words { what: "verdicts", option: "pipeline-state" }, SAVE_EVERY, waits);
    list.adopt(Arc::clone(plan));
    let said = std::mem::take(&mut list.said);
    drop(list);
    (verdicts, said)
}

fn ends(verdicts: &Verdicts) {
    verdicts.save(true);
    verdicts.lock().kept.hold.let_go();
}

#[test]
fn a_restart_keeps_them_until_they_are_cleared() {
    let directory = Directory::new("verdicts");
    let plan = plan(&state(&directory), &["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]);
    let (first, said) = opened(&plan, false);
    assert_eq!(said, []);
    first.note(&plan, &[event(0, What::Judged(UNFIT)), event(1, What::Recovered)]);
    first.note(
        &plan,
        &[
            event(2, What::Judged(Verdict::Surplus(None))),
            event(2, What::Judged(Verdict::Surplus(None))),
        ],
    );
    let expected =
        [("10.0.0.1:80".to_owned(), UNFIT), ("10.0.0.3:80".to_owned(), Verdict::Surplus(None))];
    assert_eq!(known(&first), expected);
    ends(&first);
    let (second, said) = opened(&plan, false);
    assert_eq!(known(&second), expected);
    assert_eq!(
        said[0].to_string(),
        "verdict-restored: not pipelined: it failed two rehearsals before weir was restarted or \
            reloaded; `weir server clear app 10.0.0.1:80` allows it again upstream=app \
            server=10.0.0.1:80"
    );
    let second_line = said[1].to_string();
    assert!(second_line.contains("not pipelined: it sent a surplus response"), "{second_line}");
    assert!(second_line.ends_with("server=10.0.0.3:80"), "{second_line}");
    assert_eq!(said.len(), 2);
    second.clear("app", "10.0.0.1:80");
    second.note(&plan, &[event(2, What::Cleared)]);
    assert_eq!(known(&second), []);
    ends(&second);
    let (third, said) = opened(&plan, false);
    assert_eq!((known(&third), said), (vec![], vec![]));
}

/// A server that returns with a reload has its verdict from the first moment, whatever its slot.
#[test]
fn a_server_that_comes_back_has_its_verdict() {
    let directory = Directory::new("verdicts-back");
    let (both, one) = (
        plan(&state(&directory), &["10.0.0.1:80", "10.0.0.2:80"]),
        plan(&state(&directory), &["10.0.0.2:80"]),
    );
    let (verdicts, _) = opened(&one, false);
    verdicts.note(&one, &[event(0, What::Judged(UNFIT))]);
    assert_eq!(verdicts.of(&both, |slot| slot == 0), []);
    assert_eq!(verdicts.of(&both, |_| true), [(1, UNFIT)]);
    assert_eq!(verdicts.lock().known(), [(0, UNFIT)]);
    verdicts.lock().adopt(both);
    assert_eq!(verdicts.lock().known(), [(1, UNFIT)]);
}

#[test]
fn a_broken_line_costs_that_line_and_a_broken_file_is_left_alone() {
    let directory = Directory::new("verdicts-broken");
    let plan = plan(&state(&directory), &["10.0.0.1:80"]);
    let line = "{\"upstream\":\"app\",\"server\":\"10.0.0.1:80\",\"verdict\":\"unfit\",\
        \"doubt\":\"fails-rehearsal\",\"since\":7}";
    std::fs::write(directory.path("pipelining"), format!("{{\n\n{line}\n{}", &line[..30])).unwrap();
    let (verdicts, said) = opened(&plan, false);
    assert_eq!(known(&verdicts), [("10.0.0.1:80".to_owned(), UNFIT)]);
    let is_broken = |line: &str| {
        line.ends_with("2 verdicts on servers are unreadable and skipped, the first in line 1")
    };
    assert!(said.len() == 2 && is_broken(&said[0].to_string()), "{said:?}");
    ends(&verdicts);
    assert_eq!(std::fs::read_to_string(directory.path("pipelining")).unwrap(), format!("{line}\n"));
    // A file that others may have written is not trusted, and remains as it is.
    std::fs::set_permissions(
        directory.path("pipelining"),
        std::os::unix::fs::PermissionsExt::from_mode(0o666),
    )
    .unwrap();
    let (verdicts, said) = opened(&plan, false);
    assert_eq!(known(&verdicts), []);
    assert!(said.len() == 1 && said[0].to_string().contains("neither read nor stored"), "{said:?}");
    verdicts.note(&plan, &[event(0, What::Judged(Verdict::Surplus(None)))]);
    ends(&verdicts);
    assert_eq!(std::fs::read_to_string(directory.path("pipelining")).unwrap(), format!("{line}\n"));
}

#[test]
fn who_is_gone_is_forgotten_in_a_week() {
    let directory = Directory::new("verdicts-gone");
    let (with, without) =
        (plan(&state(&directory), &["10.0.0.1:80"]), plan(&state(&directory), &["10.0.0.2:80"]));
    let (verdicts, _) = opened(&with, false);
    verdicts.note(&with, &[event(0, What::Judged(UNFIT))]);
    let ages = |verdicts: &Verdicts, by_s: u64| {
        let mut list = verdicts.lock();
        list.entries
            .values_mut()
            .for_each(|entry| entry.gone_s = entry.gone_s.map(|gone_s| gone_s - by_s));
        list.look_who_is_gone();
        list.entries.len()
    };
    assert_eq!(ages(&verdicts, 10 * GONE_MAX_S), 1, "it is there");
    verdicts.lock().adopt(Arc::clone(&without));
    assert_eq!(ages(&verdicts, GONE_MAX_S - 60), 1);
    ends(&verdicts);
    let (verdicts, said) = opened(&without, false);
    assert_eq!((verdicts.lock().entries.len(), said), (1, vec![]), "it may come back");
    verdicts.lock().adopt(Arc::clone(&with));
    assert_eq!(known(&verdicts).len(), 1);
    verdicts.lock().adopt(without);
    assert_eq!(ages(&verdicts, GONE_MAX_S - 60), 1, "the week begins anew");
    assert_eq!(ages(&verdicts, 60), 0);
}

/// During an upgrade the new process begins with the present file, and finally has what its
/// predecessor left.
#[test]
fn who_takes_over_has_what_the_one_before_left() {
    let directory = Directory::new("verdicts-upgrade");
    let plan = plan(&state(&directory), &["10.0.0.1:80", "10.0.0.2:80"]);
    let (before, _) = opened(&plan, false);
    before.note(&plan, &[event(0, What::Judged(UNFIT))]);
    before.save(true);
    let (after, said) = opened(&plan, true);
    assert_eq!((known(&after).len(), said.len()), (1, 1));
    after.clear("app", "10.0.0.1:80");
    after.save(true);
    before.note(&plan, &[event(1, What::Judged(UNFIT))]);
    before.leave();
    after.enter();
    assert_eq!(known(&after), known(&before), "it has written nothing before");
    before.clear("app", "10.0.0.1:80");
    before.save(true);
    ends(&after);
    assert_eq!(known(&opened(&plan, false).0).len(), 2, "the file is not the first one's any more");
}

#[test]
fn there_is_a_bound_and_who_is_gone_gives_way_first() {
    let directory = Directory::new("verdicts-bound");
    let plan = plan(&state(&directory), &["10.0.0.1:80"]);
    let (verdicts, _) = opened(&plan, false);
    let mut list = verdicts.lock();
    let entry = |gone_s| Entry { verdict: UNFIT, since_s: 1, gone_s };
    for n in 0..VERDICTS_MAX {
        list.entries.insert(("other".to_owned(), n.to_string()), entry((n == 77).then_some(5)));
    }
    list.judged(key(&plan, 0).unwrap(), UNFIT);
    assert!(
        list.entries.len() == VERDICTS_MAX
            && !list.entries.contains_key(&("other".to_owned(), "77".to_owned()))
    );
    assert_eq!(list.known(), [(0, UNFIT)]);
}

#[test]
fn an_operator_knows_when_there_is_no_file() {
    for (state, expected) in [("pipeline-state \"off\"", 0), ("pipeline-state \"auto\"", 1)] {
        let plan = plan(state, &["10.0.0.1:80"]);
        let (verdicts, _) = opened(&plan, false);
        let mut list = verdicts.lock();
        // The user that runs the tests may have a state directory.
        list.kept.want(None);
        list.judged(key(&plan, 0).unwrap(), UNFIT);
        list.judged(key(&plan, 0).unwrap(), Verdict::Surplus(None));
        assert_eq!(list.said.len(), expected, "{state}: {:?}", list.said);
    }
}
