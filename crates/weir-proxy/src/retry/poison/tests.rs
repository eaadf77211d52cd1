//! Proves: killers are refused after four deaths, innocents are not, and memory is bounded. How:
//! the rules of the header one by one, and random histories.

use proptest::prelude::*;

use super::*;

fn named(n: usize) -> Vec<u8> {
    of(&format!("GET /v?n={n} HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n"))
}

/// The key of a request.
fn of(text: &str) -> Vec<u8> {
    key(0, text.as_bytes(), true, Varying::default()).expect("a request")
}

/// The same page with this cookie.
fn baked(cookie: &str) -> Vec<u8> {
    of(&format!("GET /v HTTP/1.1\r\nHost: a\r\nCookie: {cookie}\r\n\r\n"))
}

/// A crash of server 0 that had lived, a second after the last one.
fn crash(suspects: &mut Suspects, now_us: &mut u64) -> Crash {
    *now_us += 1_000_000;
    suspects.on_life(0);
    suspects.on_loss(*now_us, 0, false).expect("it lived")
}

/// This many deaths of a key, each in a separate crash.
fn die(
    suspects: &mut Suspects,
    now_us: &mut u64,
    deaths: usize,
    alone: bool,
    key: &[u8],
) -> Verdict {
    let mut verdict = Verdict::Free;
    for _ in 0..deaths {
        let crash = crash(suspects, now_us);
        verdict = suspects.on_death(*now_us, crash, *now_us - 10, alone, key).0;
    }
    verdict
}

#[test]
fn a_key_is_all_that_makes_a_request_what_it_is() {
    let plain = of("GET /a?b HTTP/1.1\r\nHost: c\r\nAccept: d\r\n\r\n");
    assert_eq!(family_of(&plain), b"\x00\x00GET /a?b HTTP/1.1\r\nHost: c\r\n");
    let others = [
        "GET /a?b HTTP/1.1\r\nHost: c\r\nAccept: e\r\n\r\n",
        "GET /a?b HTTP/1.1\r\nHost: c\r\nAccept: d\r\nCookie: x\r\n\r\n",
        "GET /a?b HTTP/1.1\r\nHost: c\r\n\r\nAccept: d\r\n\r\n",
        "GET /a?b HTTP/1.1\r\nHost: c\r\nAccept: d\r\n\r\nbody",
    ];
    for other in others {
        assert_ne!(of(other), plain, "{other}");
        assert_eq!(family_of(&of(other)), family_of(&plain), "{other}");
    }
    let parted = |body: &str| {
        let text = format!("POST / HTTP/1.1\r\nHost: c\r\n\r\n{body}");
        key(0, text.as_bytes(), false, Varying::default())
    };
    assert_eq!(parted("half"), parted("half of it"), "a body that comes in pieces");
    assert_eq!(key(0, b"GET / HTTP/1.1\r\n", true, Varying::default()), None);
}

/// Two keys with a common beginning longer than a key keeps are two, and memory is bounded.
#[test]
fn what_is_long_is_accused_only_as_itself() {
    let long =
        |end: &str| of(&format!("GET /{}{end} HTTP/1.1\r\nHost: c\r\n\r\n", "x".repeat(20_000)));
    assert_eq!(long("a").len(), UPSTREAM_BYTES + TEXT_BYTES_MAX + HASH_BYTES);
    assert_ne!(long("a"), long("b"));
    assert_eq!(long("a"), long("a"));
}

/// The client, the way and the identifier of a request make no difference, unless they make the
/// head long.
#[test]
fn what_weir_varies_does_not_count() {
    let (client, upstream) = (ClientPlan::default(), UpstreamPlan::default());
    let client = ClientPlan { request_id: Some("X-Trace-Me".into()), ..client };
    let upstream = UpstreamPlan { echo: Some("x-echo".into()), ..upstream };
    let key = |fields: &str| {
        let text = format!("GET / HTTP/1.1\r\nHost: c\r\nAccept: d\r\n{fields}\r\n");
        key(0, text.as_bytes(), true, Varying::of(&client, &upstream)).expect("a request")
    };
    let plain = key("");
    for name in VARYING.iter().copied().chain(["X-Trace-Me", "X-Echo", "X-FORWARDED-For"]) {
        assert_eq!(key(&format!("{name}: 192.0.2.7\r\n")), plain, "{name}");
        assert_ne!(key(&format!("{name}: {}\r\n", "y".repeat(20_000))), plain, "a long {name}");
    }
    assert_ne!(key("X-Trace-You: 1\r\n"), plain);
}

/// One client's cookie is no reason to refuse the page to others.
#[test]
fn who_is_answered_with_another_head_is_free() {
    let (mut suspects, mut now_us) = (Suspects::new(1), 0);
    assert!(matches!(
        die(&mut suspects, &mut now_us, 4, true, &baked("long")),
        Verdict::Refused { .. }
    ));
    assert_eq!(
        suspects.verdict(now_us, &baked("short")),
        Verdict::Suspect,
        "alone, it harms nobody"
    );
    assert!(!suspects.on_answer(&baked("short")));
    assert_eq!(suspects.verdict(now_us, &baked("short")), Verdict::Free);
    assert_eq!(suspects.verdict(now_us, &baked("none")), Verdict::Free, "nor any other");
    assert!(matches!(suspects.verdict(now_us, &baked("long")), Verdict::Refused { .. }));
    assert_eq!(
        suspects.verdict(now_us, &of("GET /w HTTP/1.1\r\nHost: a\r\n\r\n")),
        Verdict::Free,
        "another page"
    );
}

/// A killer that ten clients send, each with a different cookie: all but the first kill once.
#[test]
fn a_killer_with_many_heads_is_found() {
    let (mut suspects, mut now_us) = (Suspects::new(1), 0);
    die(&mut suspects, &mut now_us, 4, true, &baked("0"));
    now_us += NOISE_US;
    for client in 1..10 {
        let cookie = baked(&client.to_string());
        assert_eq!(suspects.verdict(now_us, &cookie), Verdict::Suspect);
        let verdict = die(&mut suspects, &mut now_us, 1, true, &cookie);
        assert_eq!(verdict, Verdict::Refused { left_us: REFUSED_US }, "client {client}");
    }
}

#[test]
fn a_killer_is_refused_after_a_death_alone_and_stays_suspect() {
    let (mut suspects, mut now_us) = (Suspects::new(1), 0);
    let key = named(1);
    assert_eq!(die(&mut suspects, &mut now_us, 2, false, &key), Verdict::Free);
    assert_eq!(die(&mut suspects, &mut now_us, 1, true, &key), Verdict::Suspect);
    assert_eq!(
        die(&mut suspects, &mut now_us, 1, true, &key),
        Verdict::Refused { left_us: REFUSED_US }
    );
    assert_eq!(suspects.verdict(now_us + REFUSED_US - 1, &key), Verdict::Refused { left_us: 1 });
    now_us += REFUSED_US;
    assert_eq!(
        suspects.verdict(now_us, &key),
        Verdict::Suspect,
        "one more death is enough from now on"
    );
    assert!(matches!(die(&mut suspects, &mut now_us, 1, true, &key), Verdict::Refused { .. }));
    now_us += REFUSED_US + SUSPECT_US;
    assert_eq!(suspects.verdict(now_us, &key), Verdict::Free);
    suspects.sweep(now_us);
    assert!(suspects.is_empty());
}

#[test]
fn deaths_beside_others_never_refuse() {
    let (mut suspects, mut now_us) = (Suspects::new(1), 0);
    assert_eq!(die(&mut suspects, &mut now_us, 50, false, &named(1)), Verdict::Suspect);
}

#[test]
fn an_answer_clears() {
    let (mut suspects, mut now_us) = (Suspects::new(1), 0);
    let key = named(1);
    die(&mut suspects, &mut now_us, 4, true, &key);
    assert!(suspects.on_answer(&key), "the others should know");
    assert!(suspects.is_empty());
    die(&mut suspects, &mut now_us, 1, false, &key);
    assert!(!suspects.on_answer(&key), "they were never told");
}

/// A crash takes many connections; all requests in flight are accused of it once, however often
/// they were sent.
#[test]
fn a_crash_is_one_death() {
    let mut suspects = Suspects::new(1);
    suspects.on_life(0);
    for connection in 0..32 {
        let now_us = 5_000_000 + connection * 1_000;
        let crash = suspects.on_loss(now_us, 0, true).unwrap();
        suspects.on_life(0);
        assert_eq!(
            suspects.on_death(now_us, crash, 4_000_000, false, &named(1)),
            (Verdict::Free, false)
        );
    }
    assert_eq!(suspects.opinion(&named(1)), Some((1, 0)));
}

/// Servers that are killed one after another: a request that happens to be in flight each time is
/// no killer, as long as they die without it as well.
#[test]
fn servers_that_die_anyway_are_no_evidence() {
    for (noise, refused) in [(true, false), (false, true)] {
        let (mut suspects, mut now_us) = (Suspects::new(2), 0);
        die(&mut suspects, &mut now_us, 3, true, &named(1));
        assert_eq!(suspects.held_until_us(&named(1)), now_us + HOLD_US);
        if noise {
            suspects.on_life(1);
            suspects.on_loss(now_us + HOLD_US, 1, false).unwrap();
        }
        now_us += HOLD_US + NOISE_US / 2;
        suspects.on_life(0);
        let crash = suspects.on_loss(now_us, 0, false).unwrap();
        let verdict = suspects.on_death(now_us, crash, now_us - 1, true, &named(1)).0;
        assert_eq!(matches!(verdict, Verdict::Refused { .. }), refused, "noise: {noise}");
    }
}

/// The effect of a killer on another worker's connections is no reason to doubt, whether the mail
/// or the loss is faster.
#[test]
fn what_another_worker_tells_of_explains_deaths() {
    for told_first in [false, true] {
        let (mut suspects, mut now_us) = (Suspects::new(1), 0);
        die(&mut suspects, &mut now_us, 3, false, &named(1));
        now_us += NOISE_US;
        if told_first {
            suspects.learn(now_us, &named(1), 4, 0);
        }
        suspects.on_life(0);
        suspects.on_loss(now_us, 0, false).unwrap();
        if !told_first {
            suspects.learn(now_us + CRASH_US / 2, &named(1), 4, 0);
        }
        now_us += 2 * CRASH_US;
        suspects.on_life(0);
        let crash = suspects.on_loss(now_us, 0, false).unwrap();
        let verdict = suspects.on_death(now_us, crash, now_us - 1, true, &named(1)).0;
        assert_eq!(verdict, Verdict::Refused { left_us: REFUSED_US }, "told first: {told_first}");
    }
}

/// Two killers do not cover each other.
#[test]
fn two_killers_are_both_refused() {
    let (mut suspects, mut now_us) = (Suspects::new(1), 0);
    for killer in [named(1), named(2)] {
        die(&mut suspects, &mut now_us, 3, false, &killer);
    }
    now_us += NOISE_US;
    let verdicts = [named(1), named(2)].map(|killer| {
        now_us += HOLD_US;
        suspects.on_life(0);
        let crash = suspects.on_loss(now_us, 0, false).unwrap();
        suspects.on_death(now_us, crash, now_us - 1, true, &killer).0
    });
    assert_eq!(verdicts, [Verdict::Refused { left_us: REFUSED_US }; 2]);
}

/// A request that is sent again during a crash and kills once more has killed twice, if the server
/// had lived in between.
#[test]
fn a_repetition_within_a_crash_is_another_death() {
    let mut suspects = Suspects::new(1);
    let mut verdicts = Vec::new();
    for n in 0..4 {
        let now_us = 5_000_000 + n * 1_000;
        suspects.on_life(0);
        let crash = suspects.on_loss(now_us, 0, false).unwrap();
        verdicts.push(suspects.on_death(now_us, crash, now_us - 1, n > 1, &named(1)).0);
    }
    let refused = Verdict::Refused { left_us: REFUSED_US };
    assert_eq!(verdicts, [Verdict::Free, Verdict::Free, Verdict::Suspect, refused]);
}

/// A server that is down behind something that accepts and closes.
#[test]
fn a_server_that_does_not_live_accuses_nobody() {
    let mut suspects = Suspects::new(1);
    assert_eq!(suspects.on_loss(5_000_000, 0, false), None, "it never did");
    suspects.on_life(0);
    for n in 0..100 {
        let now_us = 6_000_000 + n * 50_000;
        if let Some(crash) = suspects.on_loss(now_us, 0, false) {
            suspects.on_death(now_us, crash, now_us - 1, true, &named(1));
        }
    }
    assert_eq!(suspects.opinion(&named(1)), Some((1, 0)));
}

#[test]
fn workers_share_opinions() {
    let (mut one, mut other, mut now_us) = (Suspects::new(1), Suspects::new(1), 0);
    let key = named(1);
    die(&mut one, &mut now_us, 4, true, &key);
    let (deaths, until_us) = one.opinion(&key).unwrap();
    other.learn(now_us, &key, deaths, until_us);
    assert_eq!(other.verdict(now_us, &key), one.verdict(now_us, &key));
    other.learn(now_us, &key, 2, 0);
    assert_eq!(other.opinion(&key), Some((deaths, until_us)), "what is worse holds");
}

#[test]
fn status_names_them_without_their_query() {
    let (mut suspects, mut now_us) = (Suspects::new(1), 0);
    die(&mut suspects, &mut now_us, 4, true, &named(1));
    let list: Vec<Suspect> = suspects.list(now_us + 1).collect();
    let [only] = &list[..] else { panic!("{list:?}") };
    assert_eq!((&only.method[..], &only.path[..], &only.host[..]), ("GET", "/v", "a"));
    assert_eq!((only.deaths, only.state, only.left_us), (4, "refused", REFUSED_US - 1));
    suspects.forgive();
    assert_eq!(suspects.list(now_us).count(), 0);
}

proptest! {
    /// However many die, memory is bounded, and a suspect is not pushed out by those that died
    /// once.
    #[test]
    fn memory_is_bounded(deaths in prop::collection::vec((0usize..2_000, any::<bool>()), 1..600)) {
        let (mut suspects, mut now_us) = (Suspects::new(1), 0);
        let killer = named(99_999);
        die(&mut suspects, &mut now_us, 4, true, &killer);
        suspects.on_life(0);
        let crash = suspects.on_loss(now_us + CRASH_US, 0, true).unwrap();
        for (n, alone) in deaths {
            suspects.on_death(now_us + CRASH_US, crash, 0, alone, &named(n));
            prop_assert!(suspects.keys.len() <= KEYS_MAX);
        }
        let refused = matches!(suspects.verdict(now_us, &killer), Verdict::Refused { .. });
        prop_assert!(refused);
    }
}
