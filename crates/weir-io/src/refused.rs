//! Listeners that refuse most of their clients by closing them in the turn in which they were
//! accepted. Connections to such a listener are accepted together with those that come within
//! [`PAUSE_US`] after the previous ones. Waking a thread costs more than accepting and resetting,
//! so a flood of refused clients costs half, and a served client meanwhile waits for that time at
//! most. Without a flood no client waits.
//!
//! Used by both real drivers. Bound: their listeners.

/// How long accepting pauses, microseconds.
pub(crate) const PAUSE_US: u64 = 2_000;
/// Connections of a listener after which the refused ones among them are counted. With three
/// quarters it becomes one with pauses, and with half it remains one.
const COUNTED: u16 = 64;

/// The counts of a listener.
#[derive(Debug)]
struct Crowd {
    /// Its slot.
    listener: u32,
    accepted: u16,
    refused: u16,
    pauses: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Refused(Vec<Crowd>);

impl Refused {
    /// A client has come. True: from now on accepting pauses.
    pub(crate) fn came(&mut self, listener: u32) -> bool {
        let Some(crowd) = self.0.iter_mut().find(|crowd| crowd.listener == listener) else {
            self.0.push(Crowd { listener, accepted: 1, refused: 0, pauses: false });
            return false;
        };
        let before = crowd.pauses;
        if crowd.accepted == COUNTED {
            crowd.pauses = crowd.refused >= if before { COUNTED / 2 } else { COUNTED / 4 * 3 };
            (crowd.accepted, crowd.refused) = (0, 0);
        }
        crowd.accepted += 1;
        crowd.pauses && !before
    }

    /// A client that has come is refused.
    pub(crate) fn refused(&mut self, listener: u32) {
        if let Some(crowd) = self.0.iter_mut().find(|crowd| crowd.listener == listener) {
            crowd.refused += 1;
        }
    }

    /// Whether accepting pauses.
    pub(crate) fn pauses(&self, listener: u32) -> bool {
        self.0.iter().any(|crowd| crowd.listener == listener && crowd.pauses)
    }

    /// Another listener may get its slot.
    pub(crate) fn forget(&mut self, listener: u32) {
        self.0.retain(|crowd| crowd.listener != listener);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets `clients` clients come and serves every `served`-th.
    fn come(refused: &mut Refused, listener: u32, clients: u16, served: u16) -> usize {
        let mut begun = 0;
        for client in 1..=clients {
            begun += usize::from(refused.came(listener));
            if client % served != 0 {
                refused.refused(listener);
            }
        }
        begun
    }

    #[test]
    fn who_is_mostly_refused_waits_until_most_are_served() {
        let mut refused = Refused::default();
        // Two of three are not enough, four of five are.
        assert_eq!((come(&mut refused, 7, 6 * COUNTED, 3), refused.pauses(7)), (0, false));
        assert_eq!((come(&mut refused, 7, 6 * COUNTED, 5), refused.pauses(7)), (1, true));
        assert!(!refused.pauses(8));
        // Now two of three are.
        assert_eq!((come(&mut refused, 7, 6 * COUNTED, 3), refused.pauses(7)), (0, true));
        assert_eq!((come(&mut refused, 7, 3 * COUNTED, 1), refused.pauses(7)), (0, false));
        come(&mut refused, 8, 6 * COUNTED, COUNTED);
        refused.forget(8);
        assert!(!refused.pauses(8));
    }
}
