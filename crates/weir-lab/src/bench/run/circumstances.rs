//! Where a benchmark was run and with which programs: the head of each report and the first line of the raw file.
//!
//! Called by `mod.rs` once a run.

use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::process::descriptors;
use super::stage::program_path;

/// The machine and the programs on it.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Circumstances {
    /// When it began, RFC 9110 form.
    pub(crate) date: String,
    /// Cores that generator, proxy and origin share.
    pub(crate) cores: usize,
    /// What they are.
    pub(crate) processor: String,
    /// Memory of the machine, MiB.
    pub(crate) memory_mib: u64,
    /// Release of the kernel.
    pub(crate) kernel: String,
    /// Descriptors that a process may have.
    pub(crate) descriptors: u64,
    /// What each program says of itself.
    pub(crate) programs: Vec<String>,
    /// What each weir says when it starts: which driver runs and why. By contender.
    pub(crate) said: Vec<(String, String)>,
}

impl Circumstances {
    /// Looks at the machine, and asks the programs that take part for their versions.
    pub(crate) fn now(programs: &[&str]) -> Circumstances {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (cpu, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
        let kib = memory.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
        Circumstances {
            date: String::from_utf8_lossy(&weir_http::http_date(seconds)).into_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: model.trim_start_matches([' ', '\t', ':']).trim().to_owned(),
            memory_mib: kib / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            descriptors: descriptors(),
            programs: programs.iter().map(|program| version(program)).collect(),
            said: Vec::new(),
        }
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        format!(
            "{}. {} cores ({}), {} MiB, Linux {}, {} descriptors a process; generator, proxy and origin share them. {}.",
            self.date,
            self.cores,
            self.processor,
            self.memory_mib,
            self.kernel,
            self.descriptors,
            self.programs.join("; "),
        )
    }
}

/// The first line of what a program says about itself.
fn version(program: &str) -> String {
    let flag = if program == "envoy" { "--version" } else { "-v" };
    let Some(path) = program_path(program) else { return format!("{program}: not installed") };
    let Ok(output) = Command::new(&path).arg(flag).output() else { return format!("{program}: can't be run") };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let line = line.replace(&*path.to_string_lossy(), program);
    line.split(" - ").next().unwrap_or_default().split(" Copyright").next().unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_described_and_what_is_missing_is_said() {
        let text = Circumstances::now(&["no-such-program"]).text();
        assert!(text.contains("no-such-program: not installed"), "{text}");
        assert!(!text.contains(" 0 cores") && !text.contains(" 0 MiB") && text.contains("Linux "), "{text}");
    }
}
