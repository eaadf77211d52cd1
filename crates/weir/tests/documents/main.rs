//! Checks that the documents are true, and that the sources follow the rules that reviewers are
//! tired of repeating.
//!
//! Reads text only: Markdown tables, Rust sources, manifests, stored help texts. It looks up what a
//! document names (files, symbols, values of constants, defaults of options), and builds and runs
//! nothing.

mod admin_api;
mod bench;
mod causes;
mod english;
mod glitches;
mod imports;
mod items;
mod log;
mod markdown;
mod names;
mod options;
mod pictures;
mod ratchets;
mod references;
mod sources;
mod summary;
mod tables;
mod tidy;

use std::path::{Path, PathBuf};

/// Documents for people who change weir: everything that they name must exist.
const DOCUMENTS: &[&str] = &[
    "ARCHITECTURE.md",
    "docs/internals/machines.md",
    "docs/internals/stages.md",
    "docs/internals/workers.md",
    "docs/internals/connections.md",
    "docs/internals/tcp.md",
    "docs/internals/tls.md",
    "docs/internals/control.md",
    "docs/internals/threads.md",
    "docs/internals/adding.md",
    "docs/internals/tests.md",
    "THREAT_MODEL.md",
    "docs/pipelining.md",
    "docs/pipelining-stalls.md",
    "docs/pipelining-trust.md",
    "docs/pipelining-loss.md",
    "docs/buffers.md",
    "docs/buffers-bounds.md",
    "docs/buffers-workers.md",
    "docs/simulation.md",
    "docs/simulation-checks.md",
    "docs/access-log.md",
    "docs/hostile.md",
    "docs/hostile-requests.md",
];

/// Pages that promise something to users, with the defaults of options.
/// Everything that they name must exist as well.
const PROMISES: &[&str] = &[
    "docs/admin-api.md",
    "docs/bans.md",
    "docs/basic-auth.md",
    "docs/cache-decisions.md",
    "docs/cache-rules.md",
    "docs/cache-snapshot.md",
    "docs/causes.md",
    "docs/client-address.md",
    "docs/compression.md",
    "docs/congestion.md",
    "docs/connections.md",
    "docs/discovery.md",
    "docs/ends.md",
    "docs/failover.md",
    "docs/forward.md",
    "docs/headers.md",
    "docs/http1.md",
    "docs/http2.md",
    "docs/intercept.md",
    "docs/limits.md",
    "docs/placement.md",
    "docs/pools.md",
    "docs/privileges.md",
    "docs/proxy-protocol.md",
    "docs/reload.md",
    "docs/request-ids.md",
    "docs/retries.md",
    "docs/routes.md",
    "docs/running.md",
    "docs/semantics.md",
    "docs/shield.md",
    "docs/sockets.md",
    "docs/tcp.md",
    "docs/temporary-servers.md",
    "docs/tls-to-servers.md",
    "docs/tls.md",
    "docs/traffic-splitting.md",
    "docs/transparent.md",
    "docs/unix-sockets.md",
    "docs/upgrade.md",
    "docs/workers.md",
];

/// Returns the top directory of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the text of a file of the repository.
fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Fails with all findings at once, if there are any.
fn nothing_found(findings: &[String]) {
    assert!(findings.is_empty(), "\n  {}\n", findings.join("\n  "));
}
