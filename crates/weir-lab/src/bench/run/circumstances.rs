//! Looks at the machine and at the programs that take part.
//!
//! Called by `bench/mod.rs` once a run.

use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use super::process::descriptors;
use super::stage::program_path;
use crate::bench::record::circumstances::Circumstances;

/// Looks at the machine, and asks the programs that take part for their versions.
pub(crate) fn look(programs: &[&str]) -> Circumstances {
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
        let here = look(&["no-such-program"]);
        assert_eq!(here.programs, ["no-such-program: not installed"]);
        assert!(here.cores > 0 && here.memory_mib > 0 && !here.kernel.is_empty() && !here.date.is_empty(), "{here:?}");
    }
}
