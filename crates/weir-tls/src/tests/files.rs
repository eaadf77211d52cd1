//! Test certificates, made by `openssl` on the spot.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::pairs::{Files, Pair};
use crate::terms::provider;

/// Arguments that make the usual key.
pub(super) const EC: [&str; 4] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];

/// A directory that is removed with the test.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Scratch {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name =
            format!("weir-tls-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A self-signed certificate for these names, with a key of this kind: `rsa` or `ec`.
    pub(super) fn files(&self, kind: &str, names: &[&str]) -> Files {
        let file = format!("{kind}-{}", names.join("-").replace('*', "any"));
        let (certificate, key) =
            (self.path(&format!("{file}.pem")), self.path(&format!("{file}.key")));
        let curve = ["-pkeyopt", "ec_paramgen_curve:P-256"];
        let list: Vec<String> = names.iter().map(|name| format!("DNS:{name}")).collect();
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=weir", "-newkey"]);
        command
            .arg(if kind == "rsa" { "rsa:2048" } else { "ec" })
            .args(curve.iter().filter(|_| kind == "ec"));
        if !list.is_empty() {
            command.arg("-addext").arg(format!("subjectAltName={}", list.join(",")));
        }
        openssl(command.arg("-keyout").arg(&key).arg("-out").arg(&certificate));
        Files { certificate, key }
    }

    /// A CA of this name.
    pub(super) fn ca(&self, name: &str) -> Files {
        let (certificate, key) =
            (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        let mut command = Command::new("openssl");
        command.args([
            "req",
            "-x509",
            "-nodes",
            "-days",
            "30",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
        ]);
        openssl(
            command
                .args(["-subj", &format!("/CN={name}"), "-keyout"])
                .arg(&key)
                .arg("-out")
                .arg(&certificate),
        );
        Files { certificate, key }
    }

    /// A certificate signed by a CA, with these extensions, valid for this number of days: below 0
    /// it has already expired.
    pub(super) fn signed(&self, ca: &Files, stem: &str, extensions: &str, days: i32) -> Files {
        self.signed_as(ca, stem, "leaf", &EC, extensions, days)
    }

    /// The same for this common name, with a key that `openssl req` makes with these arguments.
    pub(super) fn signed_as(
        &self,
        ca: &Files,
        stem: &str,
        name: &str,
        key_kind: &[&str],
        extensions: &str,
        days: i32,
    ) -> Files {
        let path = |end: &str| self.path(&format!("{stem}.{end}"));
        let (certificate, key, request) = (path("pem"), path("key"), path("csr"));
        let extensions = write(&path("ext"), extensions);
        let mut command = Command::new("openssl");
        command.args(["req", "-new", "-nodes"]).args(key_kind);
        openssl(
            command
                .args(["-subj", &format!("/CN={name}"), "-keyout"])
                .arg(&key)
                .arg("-out")
                .arg(&request),
        );
        let mut command = Command::new("openssl");
        command
            .args(["x509", "-req", "-CAcreateserial", "-days", &days.to_string(), "-in"])
            .arg(&request);
        command
            .arg("-CA")
            .arg(&ca.certificate)
            .arg("-CAkey")
            .arg(&ca.key)
            .arg("-extfile")
            .arg(&extensions);
        openssl(command.arg("-out").arg(&certificate));
        Files { certificate, key }
    }

    /// A revocation list of a CA with these certificates in it, valid until then
    /// (`20260101000000Z`).
    pub(super) fn list(&self, ca: &Files, stem: &str, revoked: &[&Files], until: &str) -> PathBuf {
        let path = |end: &str| self.path(&format!("{stem}.{end}"));
        let (index, number, out) =
            (write(&path("index"), ""), write(&path("number"), "01\n"), path("crl"));
        let config = write(
            &path("conf"),
            &format!(
                "[ca]\ndefault_ca=a\n[a]\ndatabase={}\ncrlnumber={}\ndefault_md=sha256\n\
                 crl_extensions=e\n\
                 [e]\nauthorityKeyIdentifier=keyid\n",
                index.display(),
                number.display()
            ),
        );
        let ca_command = || {
            let mut command = Command::new("openssl");
            command
                .args(["ca", "-config"])
                .arg(&config)
                .arg("-cert")
                .arg(&ca.certificate)
                .arg("-keyfile")
                .arg(&ca.key);
            command
        };
        for files in revoked {
            openssl(ca_command().arg("-revoke").arg(&files.certificate));
        }
        openssl(
            ca_command()
                .args([
                    "-gencrl",
                    "-crl_lastupdate",
                    "20200101000000Z",
                    "-crl_nextupdate",
                    until,
                    "-out",
                ])
                .arg(&out),
        );
        out
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
