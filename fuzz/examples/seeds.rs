//! Writes the corpora of the tests as seeds for the fuzzer: `fuzz/corpus/TARGET/seed-N`. Called by
//! `scripts/fuzz`.

use std::path::Path;
use std::{fs, io};

use weir_http::fuzzing::{corpus, h2};

fn main() -> io::Result<()> {
    let heads = corpus::requests().into_iter().chain(corpus::replies()).map(|case| case.input);
    write("head", heads.filter(|input| input.len() <= 4096))?;
    let bodies = corpus::chunked().into_iter().map(|case| case.input);
    write("chunked", bodies.filter(|input| input.len() <= 4096))?;
    write("h2", h2::seeds().into_iter())?;
    write("h2_answers", h2::answer_seeds().into_iter())?;
    write("h2_request", h2::list_seeds().into_iter())?;
    write("hpack", h2::block_seeds().into_iter())?;
    write("units", weir_config::fuzzing::unit_seeds().into_iter())?;
    write("proxy_header", weir_io::proxy_header_fuzzing::seeds().into_iter())?;
    write("cache", weir_cache::fuzzing::seeds().into_iter())?;
    write("cache_snapshot", weir_cache::fuzzing::snapshot_seeds().into_iter())?;
    write("shield_by", weir_proxy::shield::by::fuzzing::seeds().into_iter())?;
    write("config", configurations()?.into_iter())
}

fn write(target: &str, seeds: impl Iterator<Item = Vec<u8>>) -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    fs::create_dir_all(&folder)?;
    for (number, seed) in seeds.enumerate() {
        fs::write(folder.join(format!("seed-{number}")), seed)?;
    }
    Ok(())
}

/// Returns the files that weir-config's own tests read.
fn configurations() -> io::Result<Vec<Vec<u8>>> {
    let mut seeds = Vec::new();
    for folder in ["good", "bad"] {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = own.join("../crates/weir-config/tests/corpus").join(folder);
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_file() {
                seeds.push(fs::read(path)?);
            }
        }
    }
    Ok(seeds)
}
