//! Certificates of tests, made by `openssl` on the spot.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::pairs::{Files, Pair};
use crate::terms::provider;

/// A directory that goes with the test.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Scratch {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("weir-tls-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A certificate for these names, signed by itself, with a key of this kind: `rsa` or `ec`.
    pub(super) fn files(&self, kind: &str, names: &[&str]) -> Files {
        let file = format!("{kind}-{}", names.join("-").replace('*', "any"));
        let (certificate, key) = (self.path(&format!("{file}.pem")), self.path(&format!("{file}.key")));
        let curve = ["-pkeyopt", "ec_paramgen_curve:P-256"];
        let list: Vec<String> = names.iter().map(|name| format!("DNS:{name}")).collect();
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=weir", "-newkey"]);
        command.arg(if kind == "rsa" { "rsa:2048" } else { "ec" }).args(curve.iter().filter(|_| kind == "ec"));
        if !list.is_empty() {
            command.arg("-addext").arg(format!("subjectAltName={}", list.join(",")));
        }
        openssl(command.arg("-keyout").arg(&key).arg("-out").arg(&certificate));
        Files { certificate, key }
    }

    pub(super) fn pair(&self, kind: &str, names: &[&str]) -> Pair {
        Pair::read(&self.files(kind, names), &provider()).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn openssl(command: &mut Command) {
    let output = command.output().expect("openssl is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Writes a text there.
pub(super) fn write(path: &Path, text: &str) -> PathBuf {
    std::fs::write(path, text).unwrap();
    path.to_path_buf()
}
