//! Converts the socket options of a plan to those of the driver. Called for listeners and for
//! connects.

use weir_io::Knob;
use weir_proxy::plan::{Keepalive, Tunable, Tuning};

/// Converts the plan's choice to the driver's type.
pub fn tuning(chosen: Option<&Tuning>) -> weir_io::Tuning<'_> {
    let Some(chosen) = chosen else { return weir_io::Tuning::default() };
    let mut usual = weir_io::Tuning::by(chosen.device.as_deref());
    usual.keepalive = chosen.keepalive.map(keepalive);
    let values =
        Tunable::ALL.into_iter().filter_map(|option| Some((knob(option), chosen.get(option)?)));
    values.fold(usual, |tuning, (knob, value)| tuning.with(knob, value))
}

fn keepalive(chosen: Keepalive) -> weir_io::Keepalive {
    match chosen {
        Keepalive::Off => weir_io::Keepalive::Off,
        Keepalive::Ask { idle_s, interval_s, probes } => {
            weir_io::Keepalive::Ask { idle_s, interval_s, probes }
        }
    }
}

fn knob(option: Tunable) -> Knob {
    match option {
        Tunable::Mark => Knob::Mark,
        Tunable::Dscp => Knob::Dscp,
        Tunable::Mss => Knob::Mss,
        Tunable::SendBuffer => Knob::SendBuffer,
        Tunable::ReceiveBuffer => Knob::ReceiveBuffer,
        Tunable::UserTimeout => Knob::UserTimeout,
        Tunable::NotSentLowWater => Knob::NotSentLowWater,
        Tunable::MaxRate => Knob::MaxRate,
    }
}

#[cfg(test)]
mod tests {
    //! Proves: each option is the one of the same name, and has its value. How: all of them.

    use super::*;

    #[test]
    fn names_are_the_same() {
        for (at, option) in Tunable::ALL.into_iter().enumerate() {
            assert_eq!(option as usize, at);
            assert_eq!(knob(option).word(), option.word());
            let mut chosen = Tuning::by(Some("eth1"));
            chosen.set(option, Some(17));
            let wanted = weir_io::Tuning::by(Some("eth1"));
            assert_eq!(tuning(Some(&chosen)), wanted.with(knob(option), 17));
        }
        assert_eq!(tuning(None), weir_io::Tuning::default());
        let ask = Keepalive::Ask { idle_s: 1, interval_s: 2, probes: 3 };
        for (chosen, wanted) in [
            (Keepalive::Off, weir_io::Keepalive::Off),
            (ask, weir_io::Keepalive::Ask { idle_s: 1, interval_s: 2, probes: 3 }),
        ] {
            let mut asked = Tuning::by(None);
            asked.keepalive = Some(chosen);
            assert_eq!(tuning(Some(&asked)).keepalive, Some(wanted));
        }
    }
}
