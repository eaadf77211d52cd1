//! The step that a worker is in right now, for the main thread, which checks that the worker makes
//! progress (docs/hostile.md K3).
//!
//! Written by the worker with plain stores before each step of its turn. The main thread reads it
//! some times a second, and blames a step that takes too long ([`Doing::blame`]). The worker checks
//! for blame after each event of a client, and ends the client whose event it was.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// Steps of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// In the driver: waiting, or talking to the kernel.
    Driving,
    /// With an event of a client's connection.
    Client,
    /// With an event of a connection to a server.
    Server,
    /// With mail of another worker.
    Mail,
    /// With timers and sync points.
    Timers,
    /// With sends, connects and closes.
    Acting,
}

impl Step {
    const ALL: [Step; 6] =
        [Step::Driving, Step::Client, Step::Server, Step::Mail, Step::Timers, Step::Acting];

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
pub struct Doing {
    step: AtomicU8,
    /// Steps begun.
    steps: AtomicU64,
    /// The step that takes too long, as a count of steps begun; 0: none.
    blamed: AtomicU64,
}

impl Doing {
    /// The worker begins a step.
    #[inline]
    pub(crate) fn set(&self, step: Step) {
        self.step.store(step as u8, Relaxed);
        // Only this worker writes it.
        self.steps.store(self.steps.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// The step as of some moment ago.
    pub fn step(&self) -> Step {
        Step::ALL
            .into_iter()
            .find(|step| *step as u8 == self.step.load(Relaxed))
            .unwrap_or(Step::Driving)
    }

    /// The number of steps begun, including the one under way.
    pub fn steps(&self) -> u64 {
        self.steps.load(Relaxed)
    }

    /// Blames the step with this count for taking too long.
    pub fn blame(&self, step: u64) {
        self.blamed.store(step, Relaxed);
    }

    /// Whether the step under way was found to take too long. Called by the worker.
    #[inline]
    pub(crate) fn is_blamed(&self) -> bool {
        self.blamed.load(Relaxed) == self.steps.load(Relaxed)
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
        assert_eq!(doing.steps(), 6);
    }

    #[test]
    fn the_step_is_blamed_and_not_the_next_one() {
        let doing = Doing::default();
        doing.set(Step::Client);
        assert!(!doing.is_blamed());
        doing.blame(doing.steps());
        assert!(doing.is_blamed());
        doing.set(Step::Client);
        assert!(!doing.is_blamed());
    }
}
