//! Makes the driver that the user chose and runs something generic on it. Called by each thread of
//! the laboratory.

use std::io;

use weir_io::{Driver, Epoll, IoChoice, Options, Uring};

/// Something that runs on whichever driver it gets: a closure can't be generic over its argument's
/// type.
pub(crate) trait UseDriver {
    /// The result.
    type Output;

    /// Runs on the driver.
    fn run<D: Driver>(self, driver: D) -> Self::Output;

    /// No driver could be made.
    fn failed(self, error: io::Error) -> Self::Output;
}

/// Makes a driver on this thread (a ring belongs to the thread that made it) and runs `user` on it.
pub(crate) fn with_driver<U: UseDriver>(choice: IoChoice, options: Options, user: U) -> U::Output {
    if choice != IoChoice::Epoll {
        match Uring::new(options) {
            Ok(driver) => return user.run(driver),
            Err(error) if choice == IoChoice::Uring => return user.failed(error),
            Err(_) => {}
        }
    }
    match Epoll::new(options) {
        Ok(driver) => user.run(driver),
        Err(error) => user.failed(error),
    }
}
