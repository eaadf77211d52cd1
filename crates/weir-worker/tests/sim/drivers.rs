//! Two tests of the suite of all drivers, on io_uring: `tests/mutants` also puts bugs into that
//! driver, and looks for all bugs with one program. Where the kernel has no io_uring they test
//! nothing.

use weir_io::DriverKind;
use weir_io::conformance::{TinyUringSubject, UringSubject, faults, flow};

fn has_uring() -> bool {
    let has = weir_io::probe().driver == DriverKind::Uring;
    if !has {
        eprintln!("not tested: there is no io_uring");
    }
    has
}

#[test]
fn only_the_last_change_counts() {
    if has_uring() {
        flow::only_the_last_change_counts(&UringSubject);
    }
}

#[test]
fn scarce_buffers_go_round() {
    if has_uring() {
        faults::scarce_buffers_go_round(&TinyUringSubject);
    }
}
