//! Proves: targets map to classes as documented; overtaken classes stay uneven longer each time and
//! are forgiven; slow classes are not alike even if nothing overtakes them; frequent classes are
//! never replaced; no input breaks the bounds. How: examples, simulated traffic, and random input.

use proptest::prelude::*;

use super::*;

fn name(target: &str) -> ClassName {
    ClassName::of(b"GET", target.as_bytes())
}

/// An answer in order.
fn quick(us: u64) -> Answered {
    slow(4, us)
}

/// An answer during which `others` other requests were answered.
fn slow(others: u64, us: u64) -> Answered {
    Answered {
        since: Mark { answers: 100, in_flight: 3 },
        answers: 101 + others,
        elapsed_us: us,
        first: true,
        bytes: 3,
    }
}

fn learn(classes: &mut Classes, name: ClassName, answered: &Answered) {
    let _ = classes.on_answer(name, answered);
}

fn even(of: &[ClassName]) -> Classes {
    let mut classes = Classes::default();
    for class in of {
        (0..EVEN_ANSWERS).for_each(|_| learn(&mut classes, *class, &quick(200)));
    }
    classes
}

#[test]
fn a_class_is_the_shape_of_a_target() {
    for (one, other) in [
        ("/user/17", "/user/9843"),
        ("/user/17?a=1", "/user/18?b"),
        ("/a/0f8fad5b-d9cb-469f-a165-70867728950e/x", "/a/7c9e6679-7425-40de-944b-e07fc1f90ae7/x"),
        ("/img/12.png", "/img/13.png"),
        ("/a/b/c/d/e", "/a/b/c/d/f/g"),
        ("/a-name-that-is-longer-than-anybody-writes", "/another-name-that-is-as-long-as-that"),
    ] {
        assert_eq!(name(one), name(other), "{one} {other}");
    }
    for (one, other) in [
        ("/", "/a"),
        ("/a", "/b"),
        ("/a", "/a/"),
        ("/a", "/a?x"),
        ("/img/12.png", "/img/12.css"),
        ("/users/17", "/users/all"),
        ("/a/b/c/d", "/a/b/c/d/e"),
        ("/cafe", "/deca"),
    ] {
        assert_ne!(name(one), name(other), "{one} {other}");
    }
    assert_ne!(name("/a"), ClassName::of(b"HEAD", b"/a"));
    assert_ne!(ClassName::of(b"OPTIONS", b"*"), ClassName::default());
}

#[test]
fn a_class_is_even_after_some_answers() {
    let mut classes = Classes::default();
    assert!(!classes.is_alike(name("/a")));
    for _ in 1..EVEN_ANSWERS {
        classes.on_answer(name("/a"), &quick(200));
        assert!(!classes.is_alike(name("/a")));
    }
    classes.on_answer(name("/a"), &quick(200));
    assert!(classes.is_alike(name("/a")) && !classes.is_alike(name("/b")));
    // Requests without a class are never alike.
    (0..100).for_each(|_| learn(&mut classes, ClassName::default(), &quick(200)));
    assert!(!classes.is_alike(ClassName::default()));
}

#[test]
fn who_is_overtaken_rides_alone_for_longer_each_time() {
    let mut classes = even(&[name("/a")]);
    let mut times = Vec::new();
    for _ in 0..8 {
        classes.on_answer(name("/a"), &slow(64, OVERTAKEN_US));
        times.push((0..).find(|_| {
            classes.on_answer(name("/a"), &quick(200));
            classes.is_alike(name("/a"))
        }));
    }
    let times: Vec<u32> = times.into_iter().flatten().map(|n| n + 1).collect();
    assert_eq!(times, [256, 512, 1024, 2048, 4096, 8192, 8192, 8192]);
    (0..FORGIVEN_AFTER * 8192).for_each(|_| learn(&mut classes, name("/a"), &quick(200)));
    classes.on_answer(name("/a"), &slow(64, OVERTAKEN_US));
    (0..256).for_each(|_| learn(&mut classes, name("/a"), &quick(200)));
    assert!(classes.is_alike(name("/a")));
}

/// A long queue delays all requests alike, so no class becomes uneven.
#[test]
fn a_full_server_makes_nobody_uneven() {
    let mut classes = even(&[name("/a")]);
    for answers in 0..1_000 {
        let since = Mark { answers, in_flight: 500 };
        let late =
            Answered { since, answers: answers + 1_500, elapsed_us: 40_000, first: true, bytes: 3 };
        classes.on_answer(name("/a"), &late);
    }
    assert!(classes.is_alike(name("/a")));
    classes.on_answer(name("/a"), &slow(4, 1_000_000));
    classes.on_answer(name("/a"), &slow(1_000, OVERTAKEN_US - 1));
    assert!(classes.is_alike(name("/a")));
}

#[test]
fn what_is_slow_is_not_alike_though_nobody_overtakes_it() {
    let mut classes = Classes::default();
    for _ in 0..REVIEW_ANSWERS {
        classes.on_answer(name("/page"), &quick(200));
        classes.on_answer(name("/report"), &quick(25_000));
    }
    assert!(classes.is_alike(name("/page")) && !classes.is_alike(name("/report")));
    // If all classes are slow, they are alike.
    for _ in 0..4 * REVIEW_ANSWERS {
        classes.on_answer(name("/page"), &quick(20_000));
        classes.on_answer(name("/report"), &quick(25_000));
    }
    assert!(classes.is_alike(name("/page")) && classes.is_alike(name("/report")));
    // Requests sent behind others do not change the time of a class.
    let behind = Answered { first: false, ..quick(300_000) };
    (0..REVIEW_ANSWERS).for_each(|_| learn(&mut classes, name("/page"), &behind));
    assert!(classes.is_alike(name("/page")));
}

#[test]
fn a_flood_of_classes_drives_out_none_that_is_asked_for() {
    let mut classes = even(&[name("/a"), name("/b")]);
    for number in 0..20_000 {
        classes.on_answer(name(&format!("/x{number}x/y")), &quick(200));
        classes.on_answer(name("/a"), &quick(200));
        classes.on_answer(name("/b"), &quick(200));
    }
    assert!(classes.is_alike(name("/a")) && classes.is_alike(name("/b")));
    assert_eq!(classes.table.len(), CLASSES_MAX);
    assert!(size_of::<Class>() <= 20, "{}", size_of::<Class>());
    // Later classes can still be learned.
    let others: Vec<_> = (0..64).map(|number| name(&format!("/z{number}z"))).collect();
    for _ in 0..20 * EVEN_ANSWERS {
        others.iter().for_each(|class| learn(&mut classes, *class, &quick(200)));
    }
    let known = others.iter().filter(|class| classes.is_alike(**class)).count();
    assert!(known >= 48, "{known}");
}

/// Half of the requests to one target take 25 ms, depending on the query, and traffic is too low
/// for much overtaking.
#[test]
fn what_is_slow_by_its_query_is_uneven_at_little_traffic() {
    let mut classes = Classes::default();
    let mut shared = 0;
    for number in 0..2_000u64 {
        let (answers, us) =
            if number % 2 == 0 { (1 + number % 4 / 3, 200) } else { (7 + number % 6, 25_000) };
        let since = Mark { answers: 0, in_flight: 3 + (number % 3) as u32 };
        classes.on_answer(
            name("/a?x"),
            &Answered { since, answers, elapsed_us: us, first: true, bytes: 3 },
        );
        shared += u32::from(classes.is_alike(name("/a?x")));
    }
    assert!(shared < 40, "{shared}");
}

proptest! {
    /// Growing the table keeps every class that fits.
    #[test]
    fn growing_loses_nothing(names in prop::collection::hash_set(1u32.., 1..60)) {
        let mut classes = Classes::default();
        let names: Vec<_> = names.into_iter().map(ClassName).collect();
        for class in &names {
            (0..EVEN_ANSWERS).for_each(|_| learn(&mut classes, *class, &quick(200)));
        }
        let sets = classes.table.len() / WAYS;
        for class in &names {
            let at = classes.ways(*class).start;
            let crowd = names.iter().filter(|other| classes.ways(**other).start == at).count();
            prop_assert!(classes.is_alike(*class) || sets * WAYS == CLASSES_MAX && crowd > WAYS);
        }
    }

    #[test]
    fn no_input_breaks_it(
        targets in prop::collection::vec(
            (
                prop::collection::vec(any::<u8>(), 0..40),
                any::<u64>(),
                any::<u64>(),
                any::<u32>(),
                any::<u64>()
            ),
            0..600
        ),
    ) {
        let mut classes = Classes::default();
        for (target, before, answers, in_flight, elapsed_us) in targets {
            let class = ClassName::of(b"GET", &target);
            let since = Mark { answers: before, in_flight };
            classes.on_answer(
                class,
                &Answered {
                    since,
                    answers,
                    elapsed_us,
                    first: answers % 2 == 0,
                    bytes: elapsed_us,
                },
            );
            classes.is_alike(class);
            prop_assert!(
                classes.table.len() <= CLASSES_MAX && classes.table.len().is_power_of_two()
            );
        }
    }
}

#[test]
fn people_see_shapes_and_why() {
    for (target, expected) in [
        ("/", "GET /"),
        ("/user/17?a=1", "GET /user/*?"),
        ("/img/12.png", "GET /img/*.png"),
        ("/a/b/c/d/e/f", "GET /a/b/c/d/…"),
        ("/a/0f8fad5b-d9cb-469f-a165-70867728950e/x", "GET /a/*/x"),
        ("*", "GET "),
    ] {
        assert_eq!(shape(b"GET", target.as_bytes()), expected);
    }
    let long = shape(b"GET", "/twenty-characters-000".repeat(4).as_bytes());
    assert_eq!((long.chars().count(), long.ends_with('…')), (60, true));

    let mut classes = Classes::default();
    let [alike, slower, fresh, passed] = ["/a", "/b", "/c", "/d"].map(name);
    for _ in 0..200 {
        for (class, target, answered) in [(alike, "/a", quick(200)), (slower, "/b", quick(20_000))]
        {
            if classes.on_answer(class, &answered) {
                classes.on_new(class, format!("GET {target} HTTP/1.1\r\n\r\n").as_bytes());
            }
        }
    }
    for (class, head, answered) in
        [(fresh, "GET /c HTTP/1.1", quick(200)), (passed, "HEAD /d x", slow(90, 60_000))]
    {
        assert!(classes.on_answer(class, &answered));
        classes.on_new(class, head.as_bytes());
    }
    let mut known: Vec<_> =
        classes.report().into_iter().map(|class| (class.shape, class.sharing)).collect();
    known.sort_by(|one, other| one.0.cmp(&other.0));
    let expected = [
        ("GET /a", Sharing::Alike),
        ("GET /b", Sharing::Slower),
        ("GET /c", Sharing::New { answers: 31 }),
        ("HEAD /d", Sharing::Overtaken { answers: 256 }),
    ];
    assert_eq!(known, expected.map(|(shape, sharing)| (shape.to_owned(), sharing)));
    // A bounded number of them.
    for n in 0..100 {
        let class = name(&format!("/class{n}"));
        if classes.on_answer(class, &quick(200)) {
            classes.on_new(class, format!("GET /class{n} HTTP/1.1").as_bytes());
        }
    }
    assert_eq!(classes.report().len(), SHAPES_MAX);
}

#[test]
fn long_answers_ride_apart() {
    let class = name("/file");
    let mut classes = even(&[class]);
    learn(&mut classes, class, &Answered { bytes: SHARED_BYTES_MAX, ..quick(200) });
    assert!(classes.is_alike(class));
    learn(&mut classes, class, &Answered { bytes: SHARED_BYTES_MAX + 1, ..quick(200) });
    for _ in 0..LONG_ANSWERS {
        assert!(!classes.is_alike(class));
        learn(&mut classes, class, &quick(200));
    }
    assert!(classes.is_alike(class));
}
