//! What others need to measure the same: the environment by name, and how each program was started
//! and configured.
//!
//! Called by `markdown.rs` and `page.rs`.

use super::figures::Report;
use crate::bench::record::setting::Setting;

/// The machine and what runs on it, by name.
pub(super) fn environment(report: &Report<'_>) -> Vec<(String, String)> {
    let it = report.circumstances;
    let own = [
        ("weir", it.weir.clone()),
        ("programs", it.programs.join("; ")),
        ("date", it.date.clone()),
        ("kernel", format!("Linux {}", it.kernel)),
        ("processor", it.processor.clone()),
        ("cores", it.cores.to_string()),
        ("memory", format!("{} MiB", it.memory_mib)),
        ("descriptors a process", it.descriptors.to_string()),
    ];
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
    own.chain(it.environment.iter().cloned()).collect()
}

/// Returns the heading of a setting: `nginx, in c1, c64`.
pub(super) fn heading(setting: &Setting) -> String {
    const NAMED: usize = 6;
    let cells = setting.cells.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    let more = setting.cells.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{}, in {cells}{more}", setting.of)
}

/// Returns command lines and configurations as they were.
pub(super) fn text(setting: &Setting) -> String {
    let commands = setting.commands.iter().map(|command| format!("$ {command}\n"));
    let configurations =
        setting.configurations.iter().map(|text| format!("\n{}\n", text.trim_end()));
    commands.chain(configurations).collect()
}
