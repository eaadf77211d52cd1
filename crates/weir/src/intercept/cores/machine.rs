//! Reads what /sys and /proc say of an interface and of the machine, for [`super::judge`].

use std::fs;
use std::path::{Path, PathBuf};

use super::{Card, Interrupt};

/// The cores of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct Machine {
    /// NUMA nodes with their cores.
    pub(super) nodes: Vec<(u32, Vec<u32>)>,
    /// Cores that this process may use.
    pub(super) allowed: Vec<u32>,
}

impl Machine {
    /// Reads those of this machine.
    pub(in super::super) fn here() -> Machine {
        let folders = fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
        let node = |folder: fs::DirEntry| {
            let number = folder.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            Some((number, list(&text(&folder.path().join("cpulist")))))
        };
        let mut nodes: Vec<(u32, Vec<u32>)> = folders.filter_map(node).collect();
        nodes.sort_unstable();
        let allowed = weir_io::available_cores()
            .into_iter()
            .filter_map(|core| u32::try_from(core).ok())
            .collect();
        Machine { nodes, allowed }
    }

    /// Returns the cores of a NUMA node, or all allowed cores if the node is unknown.
    pub(super) fn near(&self, node: Option<u32>) -> &[u32] {
        let known = self.nodes.iter().find(|(number, _)| Some(*number) == node);
        known.map_or(&self.allowed, |(_, cores)| cores)
    }
}

/// Reads what is known of an interface here.
pub(in super::super) fn read(name: &str) -> Card {
    let folder = Path::new("/sys/class/net").join(name);
    let device = folder.join("device");
    let queues = receive_queues(&folder);
    let moved = |queue: &usize| {
        let cores = text(&folder.join(format!("queues/rx-{queue}/rps_cpus")));
        cores.chars().any(|digit| !matches!(digit, '0' | ',' | '\n'))
    };
    Card {
        name: name.to_owned(),
        is_virtual: !device.exists(),
        lower: lower(&folder),
        queues,
        // A missing interface is reported elsewhere.
        rss: weir_io::rss(name).ok().flatten(),
        interrupts: interrupts(&text(Path::new("/proc/interrupts")), &numbers(&device), core_of),
        moved: (0..queues).filter(moved).collect(),
        node: text(&device.join("numa_node")).trim().parse().ok(),
    }
}

/// Returns the interfaces that a virtual one uses: those of a bond, or that of a VLAN.
fn lower(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = files
        .filter_map(|file| Some(file.file_name().to_str()?.strip_prefix("lower_")?.to_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn receive_queues(folder: &Path) -> usize {
    let all = fs::read_dir(folder.join("queues")).into_iter().flatten().flatten();
    all.filter(|queue| queue.file_name().to_string_lossy().starts_with("rx-")).count()
}

/// Returns the interrupts of a device, or of the device that it is a part of (virtio).
fn numbers(device: &Path) -> Vec<u32> {
    let folders: [PathBuf; 2] = [device.join("msi_irqs"), device.join("../msi_irqs")];
    let Some(files) = folders.into_iter().find_map(|folder| fs::read_dir(folder).ok()) else {
        return Vec::new();
    };
    files.flatten().filter_map(|file| file.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the core of an interrupt, if it has only one.
fn core_of(number: u32) -> Option<u32> {
    let folder = Path::new("/proc/irq").join(number.to_string());
    let effective = list(&text(&folder.join("effective_affinity_list")));
    let cores = if effective.is_empty() {
        list(&text(&folder.join("smp_affinity_list")))
    } else {
        effective
    };
    if let [core] = cores[..] { Some(core) } else { None }
}

/// Returns the interrupts of receive queues with these numbers, from a text like /proc/interrupts.
fn interrupts(text: &str, numbers: &[u32], core: impl Fn(u32) -> Option<u32>) -> Vec<Interrupt> {
    let of_line = |line: &str| {
        let (number, rest) = line.trim_start().split_once(':')?;
        let number = number.parse().ok().filter(|number| numbers.contains(number))?;
        let queue = queue_of(rest.split_whitespace().next_back()?)?;
        Some(Interrupt { queue, number, core: core(number) })
    };
    let mut all: Vec<Interrupt> = text.lines().filter_map(of_line).collect();
    all.sort_unstable_by_key(|interrupt| interrupt.queue);
    all
}

/// Returns the receive queue of an interrupt, by its name, such as `eth0-TxRx-3`, `virtio0-input.1`
/// or `mlx5_comp2@pci:0000:01:00.0`.
fn queue_of(name: &str) -> Option<usize> {
    let name = name.split('@').next()?.to_ascii_lowercase();
    let receives =
        ["rx", "input", "comp", "queue", "-q", "fp"].iter().any(|word| name.contains(word));
    let digits = name.rsplit(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok().filter(|_| receives)
}

/// Parses numbers such as `0-2,5`.
fn list(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    };
    // No machine has more cores than that.
    text.trim().split(',').filter_map(range).flatten().take(8192).collect()
}

#[cfg(test)]
mod tests {
    //! Proves: names and lists of the kernel are parsed. How: examples of several drivers; loopback
    //! has none of these.

    use super::*;

    #[test]
    fn interrupts_are_found_by_queue() {
        let text = "           CPU0       CPU1\n  1:   9   0  IO-APIC  1-edge      i8042\n\
             31:  10   0  PCI-MSIX-0000:01:00.0  2-edge      eth0-TxRx-1\n 30:  10   0  \
             PCI-MSIX-0000:01:00.0  1-edge   eth0-TxRx-0\n\
             32:   0   0  PCI-MSIX-0000:01:00.0  0-edge   eth0\n 40:   0   0  \
             PCI-MSIX-0000:02:00.0  0-edge   eth1-TxRx-0\nNMI:  0  0  Non-maskable\n";
        let found = interrupts(text, &[30, 31, 32], |number| (number == 31).then_some(5));
        let wanted = [(0, 30, None), (1, 31, Some(5))];
        assert_eq!(found, wanted.map(|(queue, number, core)| Interrupt { queue, number, core }));
    }

    #[test]
    fn names_of_queues() {
        for (name, queue) in [
            ("i40e-eth0-TxRx-12", Some(12)),
            ("virtio0-input.1", Some(1)),
            ("virtio0-output.1", None),
            ("mlx5_comp2@pci:0000:01:00.0", Some(2)),
            ("mlx5_async0@pci:0000:01:00.0", None),
            ("eth0-rx-3", Some(3)),
            ("eth0-tx-3", None),
            ("virtio0-config", None),
            ("eth0", None),
            ("", None),
        ] {
            assert_eq!(queue_of(name), queue, "{name}");
        }
    }

    #[test]
    fn lists() {
        assert_eq!(list("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(list("7"), [7]);
        assert_eq!(list("\n"), [0; 0]);
        assert_eq!(list("a-b,3"), [3]);
    }

    #[test]
    fn loopback_is_no_card() {
        let card = read("lo");
        assert!(card.is_virtual && card.rss.is_none() && card.interrupts.is_empty(), "{card:?}");
        let machine = Machine::here();
        assert!(!machine.allowed.is_empty() && !machine.near(Some(99)).is_empty());
    }
}
