//! Waits without a clock: how a look at the machine decides; and real sockets, of which one end is
//! silent.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Returns the counts of a machine that is busy for this share of its time, percent, after this
/// many seconds.
fn pressed(seconds: u64, percent: u64) -> Counts {
    Counts {
        pressure_us: Some(seconds * percent * 10_000),
        steal: Some((0, seconds * 200)),
        queue_ns: 0,
    }
}

/// Checks every second; returns when the wait was given up.
fn given_up_after(mut counts: impl FnMut(u64) -> Counts) -> u64 {
    let mut patience = Patience::new(DEADLINE, CAP);
    (0..10_000)
        .find(|&second| !patience.goes_on(SECOND * second as u32, || counts(second)))
        .expect("every wait ends")
}

#[test]
fn a_machine_that_has_time_gets_the_deadline_and_no_more() {
    assert_eq!(given_up_after(|second| pressed(second, 0)), DEADLINE.as_secs());
    assert_eq!(given_up_after(|second| pressed(second, PRESSURE_PERCENT - 1)), DEADLINE.as_secs());
}

#[test]
fn a_busy_machine_is_waited_for_until_the_cap() {
    assert_eq!(given_up_after(|second| pressed(second, PRESSURE_PERCENT)), CAP.as_secs());
    let stolen = |second| Counts {
        steal: Some((second * 200 * STEAL_PERCENT / 100, second * 200)),
        ..pressed(second, 0)
    };
    assert_eq!(given_up_after(stolen), CAP.as_secs());
}

#[test]
fn the_end_of_the_load_ends_the_wait_within_a_slice_or_two() {
    // Busy until second 100, and then not any more.
    let after = given_up_after(|second| pressed(second.min(100), 50));
    assert!((100..=100 + 2 * SLICE.as_secs()).contains(&after), "{after}");
}

#[test]
fn load_that_was_over_before_the_deadline_does_not_count() {
    let over = (DEADLINE - 2 * SLICE).as_secs();
    assert_eq!(given_up_after(|second| pressed(second.min(over), 100)), DEADLINE.as_secs());
}

#[test]
fn the_own_run_queue_counts_where_the_kernel_tells_no_pressure() {
    let queued = |percent: u64| {
        move |second| Counts {
            pressure_us: None,
            steal: None,
            queue_ns: second * percent * 10_000_000,
        }
    };
    assert_eq!(given_up_after(queued(QUEUE_PERCENT)), CAP.as_secs());
    assert_eq!(given_up_after(queued(QUEUE_PERCENT - 1)), DEADLINE.as_secs());
    // Where the kernel reports pressure, that takes precedence: this process may have many threads.
    let both = |second| Counts { queue_ns: second * 1_000_000_000, ..pressed(second, 0) };
    assert_eq!(given_up_after(both), DEADLINE.as_secs());
}

#[test]
fn a_wait_that_is_asked_late_for_the_first_time_looks_before_it_judges() {
    let mut patience = Patience::new(DEADLINE, CAP);
    assert!(
        patience.goes_on(SECOND * 90, || pressed(90, 0)),
        "nothing is known of the machine yet"
    );
    assert!(!patience.goes_on(SECOND * 95, || pressed(95, 0)));
    assert_eq!(
        patience.story(SECOND * 95),
        "waited for 95 s on a machine that had time (pressure on the cores 0 %, stolen 0 %, own \
            run queue 0 %)"
    );
}

#[test]
fn the_kernels_texts_are_read() {
    let pressure = "some avg10=23.87 avg60=11.50 avg300=4.77 total=21688767\n\
        full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
    assert_eq!(pressure_us(pressure), Some(21_688_767));
    assert_eq!((pressure_us(""), tenths("")), (None, None));
    assert_eq!(tenths(pressure), Some(23));
    assert_eq!(steal("cpu  43179 0 5157 18788 550 0 73 35 7 0\ncpu0 1\n"), Some((35, 67_782)));
    assert_eq!(steal("cpu  1 2 3\n"), None);
}

/// More threads than cores compute: whatever the kernel reports of that must count.
#[test]
fn a_machine_that_computes_is_shown_to_be_busy() {
    let over = AtomicBool::new(false);
    let threads = 4 * std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let (begun, before) = (Instant::now(), Counts::now());
        let mut busy = None;
        while begun.elapsed() < DEADLINE && !busy.is_some_and(|busy: Busy| busy.is_shown()) {
            std::thread::park_timeout(Duration::from_millis(100));
            busy = Some(Busy::between(before, Counts::now(), begun.elapsed()));
        }
        over.store(true, Ordering::Relaxed);
        assert!(busy.is_some_and(|busy| busy.is_shown()), "{busy:?}");
    });
}

#[test]
fn a_read_waits_longer_than_a_slice_of_its_socket() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mut client =
        patient(TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens"));
    let (mut server, _) = listener.accept().expect("a client");
    // Several of its calls end without a byte before any arrives.
    client.bound(Duration::from_millis(1), CAP).expect("an option of every socket");
    let reader = std::thread::spawn(move || {
        let mut all = [0; 2];
        client.read_exact(&mut all).map(|()| all)
    });
    server.write_all(b"o").expect("it reads");
    std::thread::park_timeout(Duration::from_millis(20));
    server.write_all(b"k").expect("it reads");
    assert_eq!(reader.join().expect("no panic").expect("two bytes"), *b"ok");
}

#[test]
fn what_the_kernel_knows_of_both_ends_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let (mut server, _) = listener.accept().expect("a client");
    server.write_all(b"four").expect("there is room");
    drop(server);
    let mut told = String::new();
    eventually("the acknowledgement of the FIN is there", || {
        told = client.ends();
        told.contains("FIN wait 2")
    });
    // The FIN counts as a byte as well, once it has come.
    let unread = [
        "close wait, 0 bytes unacknowledged, 5 unread",
        "close wait, 0 bytes unacknowledged, 4 unread",
    ];
    assert!(
        told.contains("own end 127.0.0.1:") && unread.iter().any(|text| told.contains(text)),
        "{told}"
    );
    assert!(told.contains("; other end 127.0.0.1:"), "{told}");
}

#[test]
fn a_channel_is_waited_for() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let sending = std::thread::spawn(move || sender.send(7));
    assert_eq!(received(&receiver), Ok(7));
    sending.join().expect("no panic").expect("it was received");
    assert_eq!(received(&receiver), Err(RecvTimeoutError::Disconnected));
}
