//! Facts that make a machine faster or slower besides its kind: its mitigations, its clock, and its
//! host.
//!
//! Called by `circumstances.rs`. Reads /proc, /sys and the marks of containers; unreadable facts
//! are `unknown`.

use std::fs;
use std::path::Path;

/// Returns them by name, in the order in which they are shown.
pub(super) fn look() -> Vec<(String, String)> {
    let all = [
        ("load before", load()),
        ("frequency governor", governors("/sys/devices/system/cpu")),
        ("clock", read("/sys/devices/system/clocksource/clocksource0/current_clocksource")),
        ("threads of a core", read("/sys/devices/system/cpu/smt/control")),
        ("huge pages", read("/sys/kernel/mm/transparent_hugepage/enabled")),
        ("container", container("")),
        (
            "virtual machine",
            virtual_machine(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
        ),
        ("mitigations", mitigations("/sys/devices/system/cpu/vulnerabilities")),
    ];
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// Returns the number of processes that ran or wanted to over the last 1, 5 and 15 minutes.
fn load() -> String {
    read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// Returns each governor that a core has, once.
fn governors(cores: &str) -> String {
    let entries = fs::read_dir(cores).into_iter().flatten().flatten();
    let read = |entry: fs::DirEntry| {
        fs::read_to_string(entry.path().join("cpufreq/scaling_governor")).ok()
    };
    let mut all: Vec<String> =
        entries.filter_map(read).map(|text| text.trim().to_owned()).collect();
    all.sort();
    all.dedup();
    if all.is_empty() { "none to be seen".to_owned() } else { all.join(", ") }
}

/// Returns what the tools that make containers leave in them, below this root.
fn container(root: &str) -> String {
    let is_there = |path: &str| Path::new(&format!("{root}{path}")).exists();
    let of_systemd =
        fs::read_to_string(format!("{root}/run/systemd/container")).unwrap_or_default();
    let groups = fs::read_to_string(format!("{root}/proc/1/cgroup")).unwrap_or_default();
    let named =
        ["kubepods", "docker", "lxc", "podman"].into_iter().find(|name| groups.contains(name));
    match (is_there("/.dockerenv"), is_there("/run/.containerenv")) {
        (true, _) => "docker".to_owned(),
        (_, true) => "podman".to_owned(),
        _ if !of_systemd.trim().is_empty() => of_systemd.trim().to_owned(),
        _ => named.unwrap_or("none").to_owned(),
    }
}

/// What /proc/cpuinfo and the firmware say of a host.
fn virtual_machine(processors: &str) -> String {
    let mut flags =
        processors.lines().filter(|line| line.starts_with("flags")).flat_map(str::split_whitespace);
    if !flags.any(|flag| flag == "hypervisor") {
        return "none to be seen".to_owned();
    }
    let maker = fs::read_to_string("/sys/class/dmi/id/sys_vendor").unwrap_or_default();
    if maker.trim().is_empty() { "yes".to_owned() } else { format!("yes, {}", maker.trim()) }
}

/// Returns the kernel's mitigation of each weakness that the processor has.
fn mitigations(weaknesses: &str) -> String {
    let entries = fs::read_dir(weaknesses).into_iter().flatten().flatten();
    let read = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path()).ok()?;
        let text = text.trim();
        (text != "Not affected").then(|| format!("{}: {text}", entry.file_name().to_string_lossy()))
    };
    let mut all: Vec<String> = entries.filter_map(read).collect();
    all.sort();
    if all.is_empty() { "none to be seen".to_owned() } else { all.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with these files, removed on drop.
    struct Tree(std::path::PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Tree {
            let root = std::env::temp_dir().join(format!("weir-lab-{name}-{}", std::process::id()));
            for (file, text) in files {
                let file = root.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
            Tree(root)
        }

        fn path(&self) -> &str {
            self.0.to_str().unwrap()
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn weaknesses_that_a_processor_has_not_are_left_out() {
        let tree = Tree::new(
            "weak",
            &[
                ("mds", "Not affected\n"),
                ("srso", "Mitigation: Safe RET\n"),
                ("retbleed", "Vulnerable\n"),
            ],
        );
        assert_eq!(mitigations(tree.path()), "retbleed: Vulnerable; srso: Mitigation: Safe RET");
        assert_eq!(mitigations("/nowhere"), "none to be seen");
    }

    #[test]
    fn cores_that_are_governed_alike_are_named_once() {
        let cores = ["cpu0", "cpu1", "cpu2"].map(|core| format!("{core}/cpufreq/scaling_governor"));
        let tree = Tree::new(
            "governor",
            &[
                (&cores[0], "powersave\n"),
                (&cores[1], "performance\n"),
                (&cores[2], "performance\n"),
            ],
        );
        assert_eq!(governors(tree.path()), "performance, powersave");
        assert_eq!(governors("/nowhere"), "none to be seen");
    }

    #[test]
    fn containers_and_virtual_machines_are_known_by_their_marks() {
        let bare = Tree::new("bare", &[("proc/1/cgroup", "0::/init.scope\n")]);
        let docker = Tree::new("docker", &[(".dockerenv", "")]);
        let podman = Tree::new("podman", &[("run/.containerenv", "")]);
        let nspawn = Tree::new("nspawn", &[("run/systemd/container", "systemd-nspawn\n")]);
        let pod = Tree::new("pod", &[("proc/1/cgroup", "0::/kubepods/besteffort/x\n")]);
        let all = [bare, docker, podman, nspawn, pod];
        let said = all.iter().map(|tree| container(tree.path())).collect::<Vec<_>>();
        assert_eq!(said, ["none", "docker", "podman", "systemd-nspawn", "kubepods"]);
        assert!(virtual_machine("flags\t\t: fpu hypervisor\n").starts_with("yes"));
        assert_eq!(virtual_machine("flags\t\t: fpu\n"), "none to be seen");
    }

    #[test]
    fn something_is_known_of_this_machine() {
        let here = look();
        assert!(here.iter().all(|(name, value)| !name.is_empty() && !value.is_empty()), "{here:?}");
        assert_eq!(here[0].1.split(' ').count(), 3, "{here:?}");
    }
}
