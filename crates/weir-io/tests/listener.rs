//! Errors of start-up that a user can do something about, in words.

use std::net::TcpListener;

use weir_io::bind_listener;

/// The two usual reasons why a listener can't be made are reported in words.
#[test]
fn a_taken_port_is_told_in_words() {
    // Without SO_REUSEPORT, so no other socket can share it.
    let taken = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = taken.local_addr().expect("an address");
    let error = bind_listener(address, 16).expect_err("it is taken");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert_eq!(
        error.to_string(),
        format!("cannot listen on {address}: another program uses this port")
    );
    let error =
        bind_listener("192.0.2.1:0".parse().expect("an address"), 16).expect_err("not ours");
    assert!(error.to_string().contains("this machine has no such address"), "{error}");
}
