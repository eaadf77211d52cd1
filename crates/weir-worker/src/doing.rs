//! What a worker is doing right now, for whoever finds it stuck (docs/hostile.md K3).
//!
//! Written by the worker with a plain store before each step of its turn, read by the main thread when the watchdog barks.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Steps of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// In the driver: waiting, or talking to the kernel.
    Driving,
    /// With something that happened on a client's connection.
    Client,
    /// With something that happened on a connection to a server.
    Server,
    /// With mail of another worker.
    Mail,
    /// With timers and sync points.
    Timers,
    /// With what is to be sent, connected and closed.
    Acting,
}

impl Step {
    const ALL: [Step; 6] = [Step::Driving, Step::Client, Step::Server, Step::Mail, Step::Timers, Step::Acting];

    /// As in "it is ...".
    pub fn words(self) -> &'static str {
        match self {
            Step::Driving => "in the kernel's interface",
            Step::Client => "handling an event of a client's connection",
            Step::Server => "handling an event of a server's connection",
            Step::Mail => "reading mail of another worker",
            Step::Timers => "running timers",
            Step::Acting => "sending, connecting and closing",
        }
    }
}

/// The step that a worker is in.
#[derive(Debug, Default)]
pub struct Doing(AtomicU8);

impl Doing {
    /// The worker begins a step.
    #[inline]
    pub(crate) fn set(&self, step: Step) {
        self.0.store(step as u8, Relaxed);
    }

    /// The step as of some moment ago.
    pub fn step(&self) -> Step {
        Step::ALL.into_iter().find(|step| *step as u8 == self.0.load(Relaxed)).unwrap_or(Step::Driving)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_read_as_it_was_written() {
        let doing = Doing::default();
        assert_eq!(doing.step(), Step::Driving);
        for step in Step::ALL {
            doing.set(step);
            assert_eq!(doing.step(), step);
        }
    }
}
