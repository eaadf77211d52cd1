//! Proves, for any terms and any packets: none vanishes or appears; none leaves before its delay is
//! over; they stay in order unless some are reordered; the line never sends more than its rate; the
//! queue keeps its limit; a seed determines the fate, which is each packet's own. How: properties,
//! with time as a number.

use proptest::prelude::*;

use super::super::terms::{Queue, Terms};
use super::*;

const PLAIN: Terms = Terms {
    rate: None,
    queue: Queue::Time(100_000_000),
    loss: 0.0,
    burst: None,
    delay_ns: 0,
    jitter_ns: 0,
    reorder: 0.0,
    reorder_ns: 5_000_000,
};

/// A packet that left: when, and which one.
#[derive(Debug, PartialEq)]
struct Left {
    at_ns: u64,
    number: usize,
    bytes: usize,
}

/// Plays packets, each given by the time since the previous one and its length, and takes each at
/// the moment when it is due.
fn play(terms: Terms, seed: u64, packets: &[(u64, usize)]) -> (Vec<Left>, Figures) {
    let mut way = Way::new(terms, &Random::new(seed));
    let mut left = Vec::new();
    let mut now_ns = 0;
    let take_until = |way: &mut Way, until_ns: u64, left: &mut Vec<Left>| {
        while let Some(due_ns) = way.next_due_ns().filter(|due_ns| *due_ns <= until_ns) {
            assert!(due_ns == 0 || way.take(due_ns - 1).is_none(), "it leaves early");
            let packet = way.take(due_ns).expect("it is due");
            let number = u32::from_le_bytes(*packet.first_chunk().expect("four bytes")) as usize;
            left.push(Left { at_ns: due_ns, number, bytes: packet.len() });
            balanced(way);
        }
    };
    for (number, (after_ns, bytes)) in packets.iter().enumerate() {
        now_ns += after_ns;
        take_until(&mut way, now_ns, &mut left);
        let mut packet = vec![0; *bytes];
        packet[..4].copy_from_slice(&(number as u32).to_le_bytes());
        way.offer(now_ns, &packet);
        balanced(&way);
    }
    take_until(&mut way, u64::MAX, &mut left);
    assert_eq!((way.figures.held, way.held_bytes), (0, 0));
    (left, way.figures())
}

fn balanced(way: &Way) {
    let Figures { packets_in, packets_out, lost, dropped, refused, held, .. } = way.figures;
    assert_eq!(packets_in, packets_out + lost + dropped + refused + held);
    assert_eq!(held as usize, way.held.len());
}

/// When each came.
fn came(packets: &[(u64, usize)]) -> Vec<u64> {
    let mut now_ns = 0;
    let come = |(after_ns, _): &(u64, usize)| {
        now_ns += after_ns;
        now_ns
    };
    packets.iter().map(come).collect()
}

fn packets() -> impl Strategy<Value = Vec<(u64, usize)>> {
    let gap = prop_oneof![Just(0), 0..2_000_u64, 0..3_000_000_u64, 0..200_000_000_u64];
    prop::collection::vec((gap, 20..1500_usize), 1..300)
}

fn terms() -> impl Strategy<Value = Terms> {
    let rate = prop::option::of(prop_oneof![
        1_000..100_000_u64,
        100_000..1_000_000_000_u64,
        Just(100_000_000_000)
    ]);
    let queue = prop_oneof![
        (0..1_000_000_000_u64).prop_map(Queue::Time),
        (0..200_000_u64).prop_map(Queue::Bytes)
    ];
    let loss = (prop_oneof![Just(0.0), 0.0..0.5_f64, Just(1.0)], prop::option::of(1.0..10.0_f64));
    let reorder = prop_oneof![Just(0.0), 0.0..1.0_f64];
    (rate, queue, loss, 0..500_000_000_u64, prop_oneof![Just(0), 0..50_000_000_u64], reorder)
        .prop_map(|(rate, queue, (loss, burst), delay_ns, jitter_ns, reorder)| Terms {
            rate,
            queue,
            loss,
            burst,
            delay_ns,
            jitter_ns,
            reorder,
            ..PLAIN
        })
}

proptest! {
    #[test]
    fn none_is_early_and_none_vanishes(terms in terms(), packets in packets(), seed: u64) {
        let (left, figures) = play(terms, seed, &packets);
        let came = came(&packets);
        prop_assert_eq!(left.len() as u64, figures.packets_out);
        prop_assert_eq!(left.iter().map(|left| left.bytes as u64).sum::<u64>(), figures.bytes_out);
        prop_assert_eq!((figures.packets_in, figures.late_ns), (packets.len() as u64, 0));
        let mut numbers: Vec<usize> = left.iter().map(|left| left.number).collect();
        for left in &left {
            prop_assert_eq!(left.bytes, packets[left.number].1);
            let sending_ns =
                terms.rate.map_or(0, |rate| (left.bytes as u64 * 8_000_000_000).div_ceil(rate));
            prop_assert!(left.at_ns >= came[left.number] + sending_ns + terms.delay_ns);
        }
        if terms.reorder == 0.0 {
            prop_assert!(numbers.is_sorted());
            prop_assert_eq!(figures.reordered, 0);
        }
        numbers.sort_unstable();
        numbers.dedup();
        prop_assert_eq!(numbers.len(), left.len(), "one has left twice");
    }

    #[test]
    fn the_rate_is_never_exceeded(terms in terms(), packets in packets(), seed: u64) {
        let rate = terms.rate.unwrap_or(20_000_000);
        let (left, _) =
            play(Terms { rate: Some(rate), jitter_ns: 0, reorder: 0.0, ..terms }, seed, &packets);
        // Over every window that begins where a packet has left.
        for (first, from) in left.iter().enumerate() {
            let mut bits = 0;
            for to in &left[first + 1..] {
                bits += to.bytes as u128 * 8;
                let most = u128::from(to.at_ns - from.at_ns) * u128::from(rate) / 1_000_000_000;
                prop_assert!(bits <= most, "{} bits where {} fit", bits, most);
            }
        }
    }

    #[test]
    fn the_queue_keeps_its_limit(terms in terms(), packets in packets(), seed: u64) {
        let rate = terms.rate.unwrap_or(1_000_000);
        let terms = Terms { rate: Some(rate), jitter_ns: 0, reorder: 0.0, ..terms };
        let (left, figures) = play(terms, seed, &packets);
        let came = came(&packets);
        for left in &left {
            let own_ns = (left.bytes as u64 * 8_000_000_000).div_ceil(rate);
            let wait_ns = left.at_ns - terms.delay_ns - own_ns - came[left.number];
            match terms.queue {
                Queue::Time(most_ns) => prop_assert!(wait_ns <= most_ns),
                // The bytes that wait in front of it, including its own; nothing waits in front of
                // a packet that finds the line idle.
                Queue::Bytes(most) => {
                    let waiting = (u128::from(wait_ns) * u128::from(rate)).div_ceil(8_000_000_000);
                    prop_assert!(waiting == 0 || waiting + left.bytes as u128 <= u128::from(most));
                }
            }
        }
        if terms.loss == 0.0 {
            prop_assert!(
                left.first().is_some_and(|left| left.number == 0),
                "an idle line takes any packet"
            );
            prop_assert_eq!(figures.dropped + left.len() as u64, packets.len() as u64);
        }
    }

    #[test]
    fn the_fate_of_a_packet_is_its_own(terms in terms(), packets in packets(), seed: u64) {
        // Without a limit none is dropped, so that those which do not leave are lost.
        let terms = Terms { rate: None, ..terms };
        let numbers = |terms, packets: &[(u64, usize)]| {
            let mut left: Vec<usize> =
                play(terms, seed, packets).0.iter().map(|left| left.number).collect();
            left.sort_unstable();
            left
        };
        let once = numbers(terms, &packets);
        prop_assert_eq!(&once, &numbers(terms, &packets));
        let other: Vec<(u64, usize)> =
            packets.iter().map(|(after_ns, bytes)| (after_ns / 2 + 1, bytes / 2 + 20)).collect();
        let calm = Terms { jitter_ns: 0, reorder: 0.0, delay_ns: 0, ..terms };
        prop_assert_eq!(
            &once,
            &numbers(calm, &other),
            "times, sizes and other options change \
            nothing"
        );
    }
}

#[test]
fn a_line_of_20_mbit_takes_600_us_for_1500_bytes() {
    let terms = Terms { rate: Some(20_000_000), delay_ns: 10_000_000, ..PLAIN };
    let (left, _) = play(terms, 1, &[(0, 1500), (0, 1500), (1_200_000, 750)]);
    assert_eq!(
        left.iter().map(|left| left.at_ns).collect::<Vec<_>>(),
        [10_600_000, 11_200_000, 11_500_000]
    );
}

#[test]
fn a_queue_of_two_packets_drops_the_fourth() {
    let queue = Queue::Bytes(3_000);
    let (left, figures) = play(Terms { rate: Some(1_000_000), queue, ..PLAIN }, 1, &[(0, 1500); 4]);
    // A packet counts until it has been sent completely.
    assert_eq!((left.len(), figures.dropped), (2, 2));
    let (left, figures) = play(
        Terms { rate: Some(1_000_000), queue: Queue::Time(24_000_000), ..PLAIN },
        1,
        &[(0, 1500); 4],
    );
    assert_eq!((left.len(), figures.dropped), (3, 1), "each takes 12 ms");
}

#[test]
fn those_that_come_late_are_overtaken() {
    let terms = Terms { reorder: 0.2, ..PLAIN };
    let (left, figures) = play(terms, 3, &[(1_000_000, 100); 1000]);
    assert!((120..280).contains(&figures.reordered), "{figures:?}");
    let overtaken = left.windows(2).filter(|pair| pair[0].number > pair[1].number).count();
    assert!(overtaken > 100, "{overtaken}");
    let late = left
        .iter()
        .filter(|left| left.at_ns == (left.number as u64 + 1) * 1_000_000 + terms.reorder_ns);
    assert_eq!(late.count() as u64, figures.reordered);
}

#[test]
fn jitter_is_spread_evenly() {
    let terms = Terms { jitter_ns: 1_000_000, ..PLAIN };
    let (left, _) = play(terms, 3, &vec![(2_000_000, 100); 10_000]);
    let more: Vec<f64> = left.iter().map(|left| (left.at_ns % 2_000_000) as f64).collect();
    let mean = more.iter().sum::<f64>() / more.len() as f64;
    assert!((480_000.0..520_000.0).contains(&mean), "{mean}");
    assert!(more.iter().all(|more| *more < 1_000_000.0));
}

#[test]
fn memory_is_bounded() {
    let mut way = Way::new(Terms { delay_ns: 60_000_000_000, ..PLAIN }, &Random::new(1));
    let (packet, fit) = (vec![0; 65_000], HELD_BYTES_MAX / (65_000 + PACKET_OVERHEAD_BYTES));
    for _ in 0..fit + 10 {
        way.offer(0, &packet);
    }
    assert_eq!((way.figures.held, way.figures.dropped), (fit, 10));
    balanced(&way);
}

#[test]
fn what_leaves_late_or_is_refused_is_told() {
    let mut way = Way::new(PLAIN, &Random::new(1));
    way.offer(1_000, &[0; 100]);
    way.offer(1_000, &[0; 60]);
    let packet = way.take(4_000).unwrap();
    way.refuse(&packet);
    assert_eq!(way.take(2_000).map(|packet| packet.len()), Some(60));
    let figures = way.figures();
    assert_eq!((figures.packets_out, figures.bytes_out, figures.refused), (1, 60, 1));
    assert_eq!((figures.late_max_ns, figures.late_mean_ns()), (3_000, 2_000));
    balanced(&way);
}
