//! `tls` of a listener, compiled. What is in the files is looked at now, by whoever knows certificates, and again when they are used.

use weir_proxy::plan::{CertificatePlan, TlsPlan};

use super::{BLOCKS_MAX, Compiler};
use crate::check::Checked;
use crate::problem::Problem;

impl Compiler<'_> {
    /// How the clients of a listener speak TLS.
    pub(super) fn tls(&mut self, listen: &Checked) -> Option<TlsPlan> {
        let block = listen.all("tls").next()?;
        if let Some(second) = listen.all("tls").nth(1) {
            let problem = Problem::new("conflict", &second.span, "there is more than one `tls` in this `listen`");
            self.push(problem.related(&block.span, "first here").help("one `tls` may have several certificates"));
        }
        let mut certificates: Vec<CertificatePlan> = Vec::new();
        for certificate in block.all("certificate").take(BLOCKS_MAX) {
            let plan = self.certificate(certificate);
            if certificates.contains(&plan) && !plan.certificate.as_os_str().is_empty() {
                let message = format!("`{}` is there twice", plan.certificate.display());
                self.push(Problem::new("conflict", &certificate.place("file"), message));
            }
            certificates.push(plan);
        }
        if certificates.is_empty() {
            let problem = Problem::new("missing-value", &block.span, "`tls` has no `certificate`");
            self.push(problem.help("certificate \"/etc/weir/example.pem\" key=\"/etc/weir/example.key\""));
        }
        Some(TlsPlan {
            certificates,
            only_tls13: block.word("min-version") == "1.3",
            strict_sni: block.flag("strict-sni"),
            tickets: block.flag("tickets"),
            handshake_timeout_us: block.number("handshake-timeout"),
        })
    }

    fn certificate(&mut self, block: &Checked) -> CertificatePlan {
        let file = block.text("file");
        let key = Some(block.text("key")).filter(|key| !key.is_empty()).unwrap_or(file);
        let plan = CertificatePlan { certificate: file.into(), key: key.into() };
        // A path that was wrong has been reported.
        if !file.is_empty() {
            let place = block.place("file");
            match (self.world.certificates)(&plan.certificate, &plan.key) {
                Ok(warnings) => {
                    self.warnings.extend(warnings.into_iter().map(|text| Problem::new("certificate", &place, text)));
                }
                Err(text) => self.push(Problem::new("bad-certificate", &place, text)),
            }
        }
        plan
    }
}
