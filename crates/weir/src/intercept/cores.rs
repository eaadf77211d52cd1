//! Checks whether the same core receives both sides of a connection, as far as cards, interrupts
//! and memory reveal it: then data that a core has read is still in its cache when it sends it.
//! Reads /sys and /proc (`machine`), judges, and names commands as a remedy; changes nothing.

mod machine;

use weir_io::Rss;

pub(super) use self::machine::{Machine, read};

/// The key with which Toeplitz gives both directions the same hash: it repeats every two bytes.
const SYMMETRIC: [u8; 2] = [0x6d, 0x5a];
/// The number of Toeplitz among the hash functions.
const TOEPLITZ: u8 = 1;

/// An interface, as far as it decides which core receives a packet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Card {
    name: String,
    /// It is not a card: the core that sends to it also receives.
    is_virtual: bool,
    /// The interfaces that it uses, if it is not a card: of a bond or a VLAN.
    lower: Vec<String>,
    /// Its receive queues.
    queues: usize,
    /// How received packets are spread over them; None: the driver does not say.
    rss: Option<Rss>,
    /// Interrupts of queues.
    interrupts: Vec<Interrupt>,
    /// Queues whose packets are moved to other cores afterwards (RPS).
    moved: Vec<usize>,
    /// Its NUMA node; None: the machine has only one.
    node: Option<u32>,
}

/// An interrupt of a receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interrupt {
    queue: usize,
    number: u32,
    /// Its core; None: it may have several.
    core: Option<u32>,
}

/// A problem, and the commands that solve it, if any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Judgement {
    pub(super) what: String,
    pub(super) mend: Vec<String>,
}

impl Judgement {
    fn new(what: impl Into<String>, mend: Vec<String>) -> Judgement {
        Judgement { what: what.into(), mend }
    }
}

/// Returns everything that keeps the two sides of a connection on different cores; empty: nothing.
pub(super) fn judge(client: &Card, server: &Card, machine: &Machine) -> Vec<Judgement> {
    let both = [client, server];
    let mut found: Vec<Judgement> = both.iter().filter_map(|card| alone(card)).collect();
    if found.is_empty() {
        found.extend(hashes(both));
        found.extend(tables(both));
        found.extend(cores(both, machine));
    }
    found.extend(both.iter().filter_map(|card| moved(card)));
    found.extend(nodes(both, machine));
    found
}

/// Returns why it is useless to compare this interface with another.
fn alone(card: &Card) -> Option<Judgement> {
    let Card { name, is_virtual, lower, queues, rss, .. } = card;
    if *is_virtual && !lower.is_empty() {
        let lower = lower.join(" and ");
        let what = format!(
            "{name} is not a card: its packets arrive through {lower}, whose queues decide; weir \
                cannot judge them"
        );
        return Some(Judgement::new(
            what,
            vec![format!("ethtool -x {}", lower.replace(" and ", " ; ethtool -x "))],
        ));
    }
    if *is_virtual {
        let what = format!(
            "{name} is not a card: the core that sends a packet also receives it there, and no \
                hash (RSS) spreads packets"
        );
        return Some(Judgement::new(what, Vec::new()));
    }
    if *queues <= 1 {
        let what = format!("{name} has one receive queue: one core receives everything");
        return Some(Judgement::new(
            what,
            vec![format!(
                "ethtool -L {name} combined N  # if `ethtool -l {name}` says that it can have more"
            )],
        ));
    }
    let what = format!(
        "the driver of {name} does not report how it chooses among its {queues} queues (RSS), so \
            weir cannot judge that"
    );
    rss.is_none().then(|| Judgement::new(what, Vec::new()))
}

/// Both directions of a connection must have the same hash, on both cards.
fn hashes(both: [&Card; 2]) -> Option<Judgement> {
    let [one, other] = both.map(|card| card.rss.as_ref());
    let (one, other) = (one?, other?);
    let length = one.key.len().min(other.key.len());
    let is_same = one.key[..length] == other.key[..length] && one.function == other.function;
    let unlike = |rss: &Rss| !is_symmetric(rss);
    let what = match (unlike(one), unlike(other)) {
        (false, false) if is_same && one.is_symmetric == other.is_symmetric => return None,
        (false, false) => format!("{} and {} hash differently", both[0].name, both[1].name),
        (true, true) => {
            format!(
                "{} and {} hash the two directions of a connection differently",
                both[0].name, both[1].name
            )
        }
        (first, _) => {
            let name = &both[usize::from(!first)].name;
            format!("{name} hashes the two directions of a connection differently")
        }
    };
    let mend = both.iter().filter_map(|card| {
        let key: Vec<String> = card
            .rss
            .as_ref()?
            .key
            .iter()
            .zip(SYMMETRIC.iter().cycle())
            .map(|(_, byte)| format!("{byte:02x}"))
            .collect();
        Some(format!("ethtool -X {} hfunc toeplitz hkey {}", card.name, key.join(":")))
    });
    Some(Judgement::new(what, mend.collect()))
}

/// Whether both directions have the same hash.
fn is_symmetric(rss: &Rss) -> bool {
    let repeats = rss.key.len() >= 4
        && rss.key.iter().zip(rss.key.iter().skip(2)).all(|(one, other)| one == other);
    rss.function == TOEPLITZ && (repeats || rss.is_symmetric)
}

/// Returns the queue for a hash.
fn queue(table: &[u32], hash: usize) -> Option<u32> {
    table.get(hash.checked_rem(table.len())?).copied()
}

/// The same hash must lead to the same queue.
fn tables(both: [&Card; 2]) -> Option<Judgement> {
    let [one, other] = both.map(|card| card.rss.as_ref().map(|rss| &rss.table[..]));
    let (one, other) = (one?, other?);
    let most = one.len().max(other.len());
    if (0..most).all(|hash| queue(one, hash) == queue(other, hash)) {
        return None;
    }
    let queues = both[0].queues.min(both[1].queues);
    let what =
        format!("{} and {} map the same hash to different queues", both[0].name, both[1].name);
    let mend = both.iter().map(|card| format!("ethtool -X {} equal {queues}", card.name));
    Some(Judgement::new(what, mend.collect()))
}

/// The same queue must lead to the same core.
fn cores(both: [&Card; 2], machine: &Machine) -> Option<Judgement> {
    let of = |card: &Card, queue| {
        card.interrupts.iter().find(|interrupt| interrupt.queue == queue).copied()
    };
    let used = both[0].queues.min(both[1].queues);
    let differs = |queue: &usize| {
        let [one, other] = both.map(|card| of(card, *queue));
        match (one, other) {
            (Some(one), Some(other)) => one.core.is_none() || one.core != other.core,
            // Unknown.
            _ => false,
        }
    };
    let wrong: Vec<usize> = (0..used).filter(differs).collect();
    if both.iter().any(|card| card.interrupts.is_empty()) {
        let what = format!(
            "which core has the interrupts of {} and {} is not known",
            both[0].name, both[1].name
        );
        return Some(Judgement::new(what, Vec::new()));
    }
    let first = *wrong.first()?;
    let what = format!(
        "interrupts of queue {first} of {} and {} go to different cores, or to several ({} of \
            {used} queues are so)",
        both[0].name,
        both[1].name,
        wrong.len()
    );
    let near = machine.near(both[0].node);
    let mut mend =
        vec!["systemctl stop irqbalance  # if it runs: it would change this again".to_owned()];
    for queue in wrong {
        let core = near.get(queue % near.len().max(1)).copied().unwrap_or(0);
        let interrupts = both.into_iter().filter_map(|card| of(card, queue));
        mend.extend(
            interrupts
                .map(|one| format!("echo {core} > /proc/irq/{}/smp_affinity_list", one.number)),
        );
    }
    Some(Judgement::new(what, mend))
}

/// Returns whether the kernel moves packets to other cores after the card has chosen one.
fn moved(card: &Card) -> Option<Judgement> {
    let first = card.moved.first()?;
    let what = format!("packets of queue {first} of {} are moved to other cores (RPS)", card.name);
    let mend = card
        .moved
        .iter()
        .map(|queue| format!("echo 0 > /sys/class/net/{}/queues/rx-{queue}/rps_cpus", card.name));
    Some(Judgement::new(what, mend.collect()))
}

/// Cards and workers must be on the same NUMA node.
fn nodes(both: [&Card; 2], machine: &Machine) -> Option<Judgement> {
    if machine.nodes.len() < 2 {
        return None;
    }
    let (one, other) = (both[0].node?, both[1].node?);
    if one != other {
        let what = format!(
            "{} is at node {one} of the memory, and {} at node {other}: what passes crosses \
                between them",
            both[0].name, both[1].name
        );
        return Some(Judgement::new(what, Vec::new()));
    }
    let near = machine.near(Some(one));
    let far = machine.allowed.iter().find(|core| !near.contains(core))?;
    let what = format!(
        "weir may use core {far}, which is not at node {one} of the memory, where both cards are"
    );
    let list: Vec<String> = near.iter().map(u32::to_string).collect();
    Some(Judgement::new(what, vec![format!("taskset -c {} weir intercept ...", list.join(","))]))
}

#[cfg(test)]
mod tests {
    //! Proves: each cause that keeps the sides apart is found and named with commands that solve
    //! it, and cards that agree have no finding. How: cards as they are found, one change each.

    use super::*;

    fn card(name: &str) -> Card {
        let key = SYMMETRIC.iter().copied().cycle().take(40).collect();
        let interrupt = |queue: usize| Interrupt {
            queue,
            number: 100 + queue as u32,
            core: Some(queue as u32),
        };
        Card {
            name: name.to_owned(),
            queues: 4,
            rss: Some(Rss {
                table: (0..128).map(|at| at % 4).collect(),
                key,
                function: 1,
                is_symmetric: false,
            }),
            interrupts: (0..4).map(interrupt).collect(),
            node: Some(0),
            ..Card::default()
        }
    }

    fn machine() -> Machine {
        Machine {
            nodes: vec![(0, vec![0, 1, 2, 3]), (1, vec![4, 5, 6, 7])],
            allowed: vec![0, 1, 2, 3],
        }
    }

    /// Returns the only finding after this change of the servers' card.
    fn found(change: impl FnOnce(&mut Card)) -> Judgement {
        let mut server = card("eth2");
        change(&mut server);
        let mut all = judge(&card("eth1"), &server, &machine());
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    #[test]
    fn cards_that_agree_are_left_in_peace() {
        assert_eq!(judge(&card("eth1"), &card("eth2"), &machine()), []);
        // Other lengths of tables and keys with the same effect.
        let mut server = card("eth2");
        let rss = server.rss.as_mut().expect("it tells");
        (rss.table, rss.key) = (
            (0..64).map(|at| at % 4).collect(),
            SYMMETRIC.iter().copied().cycle().take(52).collect(),
        );
        assert_eq!(judge(&card("eth1"), &server, &machine()), []);
        // Any key if the card makes directions the same first.
        let by_xor = |name| {
            let mut card = card(name);
            let rss = card.rss.as_mut().expect("it tells");
            (rss.key, rss.is_symmetric) = ((0..40).collect(), true);
            card
        };
        assert_eq!(judge(&by_xor("eth1"), &by_xor("eth2"), &machine()), []);
    }

    #[test]
    fn a_hash_of_one_direction_is_mended_by_its_key() {
        let judged = found(|card| card.rss.as_mut().expect("it tells").key = (0..40).collect());
        assert_eq!(judged.what, "eth2 hashes the two directions of a connection differently");
        assert!(
            judged.mend[0].starts_with("ethtool -X eth1 hfunc toeplitz hkey 6d:5a:6d:5a:"),
            "{judged:?}"
        );
        assert!(
            judged.mend[1].starts_with("ethtool -X eth2 ")
                && judged.mend[1].matches(':').count() == 39
        );
        let judged = found(|card| card.rss.as_mut().expect("it tells").key = vec![0x6d; 40]);
        assert_eq!(judged.what, "eth1 and eth2 hash differently");
        let judged = found(|card| card.rss.as_mut().expect("it tells").function = 4);
        assert!(judged.what.starts_with("eth2 hashes"), "{judged:?}");
    }

    #[test]
    fn queues_and_cores_are_made_the_same() {
        let judged = found(|card| card.rss.as_mut().expect("it tells").table.reverse());
        assert_eq!(judged.mend, ["ethtool -X eth1 equal 4", "ethtool -X eth2 equal 4"]);
        for core in [Some(7), None] {
            let judged =
                found(|card| card.interrupts[2] = Interrupt { queue: 2, number: 202, core });
            assert!(
                judged.what.contains("queue 2 of eth1 and eth2")
                    && judged.what.contains("1 of 4 queues"),
                "{judged:?}"
            );
            assert_eq!(
                judged.mend[1..],
                [
                    "echo 2 > /proc/irq/102/smp_affinity_list",
                    "echo 2 > /proc/irq/202/smp_affinity_list"
                ]
            );
        }
        let judged = found(|card| card.interrupts.clear());
        assert!(judged.what.contains("is not known") && judged.mend.is_empty());
        let judged = found(|card| card.moved = vec![1]);
        assert_eq!(judged.mend, ["echo 0 > /sys/class/net/eth2/queues/rx-1/rps_cpus"]);
    }

    #[test]
    fn who_has_no_hash_is_told_so() {
        let judged = found(|card| card.is_virtual = true);
        assert!(judged.what.starts_with("eth2 is not a card") && judged.mend.is_empty());
        let judged = found(|card| card.queues = 1);
        assert!(
            judged.what.contains("one receive queue")
                && judged.mend[0].starts_with("ethtool -L eth2 combined N")
        );
        let judged = found(|card| card.rss = None);
        assert!(
            judged.what.contains("does not report how it chooses among its 4 queues"),
            "{judged:?}"
        );
    }

    #[test]
    fn memory_is_judged_where_there_is_more_than_one() {
        let judged = found(|card| card.node = Some(1));
        assert!(
            judged.what.contains("eth1 is at node 0 of the memory, and eth2 at node 1"),
            "{judged:?}"
        );
        let all = judge(
            &card("eth1"),
            &card("eth2"),
            &Machine { allowed: (0..8).collect(), ..machine() },
        );
        assert_eq!(all[0].mend, ["taskset -c 0,1,2,3 weir intercept ..."]);
        let one = Machine { nodes: vec![(0, (0..8).collect())], allowed: (0..8).collect() };
        assert_eq!(judge(&card("eth1"), &card("eth2"), &one), []);
    }
}
