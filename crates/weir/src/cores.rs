//! Watches the cores of the workers while weir runs, and warns the operator of workers that had to
//! leave theirs. Called by `run::supervise`.

use std::time::{Duration, Instant};

use weir_config::PinningChoice;
use weir_worker::{Change, Cores, Pinning, Running};

use crate::log::Event;

/// Shortest time between two warnings; status and metrics count every such change.
const TELL_EVERY: Duration = Duration::from_secs(600);

/// Watches the cores.
pub(crate) struct Caretaker {
    cores: Cores,
    told: Option<Instant>,
}

impl Caretaker {
    /// For running workers.
    pub(crate) fn new(running: &Running, pinning: PinningChoice) -> Caretaker {
        Caretaker { cores: running.cores(self::pinning(pinning)), told: None }
    }

    /// Checks them. Call it a few times a second.
    pub(crate) fn look(&mut self) {
        let changes = self.cores.look();
        let Some(Change { worker, core, .. }) = changes.iter().find(|change| change.is_free) else {
            return;
        };
        if is_due(&mut self.told, Instant::now()) {
            let sentence = "other programs use the core of a worker: it may run on all cores \
                            until that ends (`pinning`; `weir status` shows other cases)";
            Event::CoreBusy.says(sentence).with("worker", worker).with("core", core).log();
        }
    }
}

/// Whether a warning is due, given its last time.
fn is_due(told: &mut Option<Instant>, now: Instant) -> bool {
    let is_due = told.is_none_or(|told| now.saturating_duration_since(told) >= TELL_EVERY);
    if is_due {
        *told = Some(now);
    }
    is_due
}

/// Translates the configured pinning.
pub(crate) fn pinning(choice: PinningChoice) -> Pinning {
    match choice {
        PinningChoice::Soft => Pinning::Soft,
        PinningChoice::Hard => Pinning::Hard,
        PinningChoice::None => Pinning::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_now_and_then() {
        let (mut told, begin) = (None, Instant::now());
        let due = [0, 1, 599, 600, 601, 1200]
            .map(|second| is_due(&mut told, begin + Duration::from_secs(second)));
        assert_eq!(due, [true, false, false, true, false, true]);
    }
}
