//! `tls` of a listener and of an upstream, compiled. Files are checked now, by the caller's expert
//! for certificates, and again when they are used.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use weir_proxy::plan::{
    CertificatePlan, ClientCertificatesPlan, ServerTlsPlan, Serves, TlsPlan, TrustPlan,
};

use super::{BLOCKS_MAX, Compiler};
use crate::TlsFiles;
use crate::check::Checked;
use crate::problem::{Problem, Span};

impl Compiler<'_> {
    /// Returns the TLS of a listener.
    pub(super) fn tls(&mut self, listen: &Checked, serves: Serves) -> Option<TlsPlan> {
        let block = listen.all("tls").next()?;
        if let Some(second) = listen.all("tls").nth(1) {
            let problem = Problem::new(
                "conflict",
                &second.span,
                "there is more than one `tls` in this `listen`",
            );
            self.push(
                problem
                    .related(&block.span, "first here")
                    .help("one `tls` may have several certificates"),
            );
        }
        self.at_most(block, "certificate", BLOCKS_MAX);
        let (mut certificates, mut seen) = (Vec::new(), HashSet::new());
        for certificate in block.all("certificate").take(BLOCKS_MAX) {
            let plan = self.certificate(certificate);
            let is_first =
                seen.insert((plan.certificate.clone(), plan.key.clone(), plan.ocsp.clone()));
            if !is_first && !plan.certificate.as_os_str().is_empty() {
                let message = format!("`{}` is listed twice", plan.certificate.display());
                self.push(Problem::new("conflict", &certificate.place("file"), message));
            }
            certificates.push(plan);
        }
        if certificates.is_empty() {
            let problem = Problem::new("missing-value", &block.span, "`tls` has no `certificate`");
            self.push(
                problem.help("certificate \"/etc/weir/example.pem\" key=\"/etc/weir/example.key\""),
            );
        }
        let clients = self.client_certificates(block, serves);
        Some(TlsPlan {
            certificates,
            only_tls13: block.word("min-version") == "1.3",
            strict_sni: block.flag("strict-sni"),
            tickets: clients.is_none() && block.flag("tickets"),
            ticket_keys: self.ticket_keys(block),
            clients,
            handshake_timeout_us: block.number("handshake-timeout"),
        })
    }

    /// Returns the file with the keys of tickets, if configured.
    fn ticket_keys(&mut self, block: &Checked) -> Option<PathBuf> {
        let place = block.place("ticket-keys");
        let path = Some(block.text_or_word("ticket-keys"))
            .filter(|path| !matches!(*path, "auto" | ""))
            .map(Path::new)?;
        let why = [
            (!block.flag("tickets"), "with `tickets=#false`"),
            (block.word("client-auth") != "off", "when clients show certificates"),
        ];
        if let Some((_, why)) = why.into_iter().find(|(is_so, _)| *is_so) {
            let message = format!("`ticket-keys` has no effect: weir issues no tickets {why}");
            self.warnings.push(Problem::new("no-effect", &place, message));
            return None;
        }
        let verdict = (self.world.experts.tls)(TlsFiles::TicketKeys(path));
        self.judged(verdict, &place);
        Some(path.into())
    }

    /// Returns whether the clients of a listener show certificates, and how these are used.
    fn client_certificates(
        &mut self,
        block: &Checked,
        serves: Serves,
    ) -> Option<ClientCertificatesPlan> {
        let given = |name: &str| Some(block.text(name)).filter(|text| !text.is_empty());
        let (authorities, revocations) = (given("client-ca"), given("client-crl").map(Path::new));
        let told = block.flag("client-cert-field");
        if block.word("client-auth") == "off" {
            let idle =
                [("client-ca", authorities.is_some()), ("client-crl", revocations.is_some())];
            for (name, _) in idle
                .into_iter()
                .chain([("client-cert-field", told)])
                .filter(|(_, is_there)| *is_there)
            {
                let message =
                    format!("`{name}` has no effect: weir asks clients for no certificates");
                let help = "write client-auth \"require\" or client-auth \"optional\"";
                self.warnings
                    .push(Problem::new("no-effect", &block.place(name), message).help(help));
            }
            return None;
        }
        if told && serves == Serves::Forward {
            let message = "`client-cert-field` cannot be used in `forward`: destinations learn \
                nothing about its clients";
            self.push(
                Problem::new("conflict", &block.place("client-cert-field"), message)
                    .help("leave it out"),
            );
        }
        let Some(authorities) = authorities.map(Path::new) else {
            // A wrong path has been reported.
            if block.chosen("client-ca").is_none() {
                let message =
                    "`client-auth` needs `client-ca`, the CAs that may sign client certificates";
                let problem = Problem::new("missing-value", &block.place("client-auth"), message);
                self.push(problem.help("client-ca \"/etc/weir/partners.pem\""));
            }
            return None;
        };
        let verdict = (self.world.experts.tls)(TlsFiles::Clients { authorities, revocations });
        self.judged(verdict, &block.place("client-ca"));
        Some(ClientCertificatesPlan {
            authorities: authorities.into(),
            revocations: revocations.map(Into::into),
            required: block.word("client-auth") == "require",
            told,
        })
    }

    fn certificate(&mut self, block: &Checked) -> CertificatePlan {
        let file = block.text("file");
        let mut plan =
            self.pair(file, block.text("key"), &block.place("file"), |certificate, key| {
                TlsFiles::Certificate { certificate, key }
            });
        let ocsp = Some(block.text("ocsp")).filter(|path| !path.is_empty()).map(Path::new);
        if let (Some(response), CertificatePlan { certificate, key, .. }) = (ocsp, &plan) {
            let verdict = (self.world.experts.tls)(TlsFiles::Ocsp { response, certificate, key });
            self.judged(verdict, &block.place("ocsp"));
        }
        plan.ocsp = ocsp.map(Into::into);
        plan
    }

    /// Returns a certificate with its key, which is in the same file unless another is named.
    fn pair(
        &mut self,
        file: &str,
        key: &str,
        place: &Span,
        files: for<'a> fn(&'a Path, &'a Path) -> TlsFiles<'a>,
    ) -> CertificatePlan {
        let key = if key.is_empty() { file } else { key };
        let plan = CertificatePlan { certificate: file.into(), key: key.into(), ocsp: None };
        // A wrong path has been reported.
        if !file.is_empty() {
            let CertificatePlan { certificate, key, .. } = &plan;
            let verdict = (self.world.experts.tls)(files(certificate, key));
            self.judged(verdict, place);
        }
        plan
    }

    /// Reports an expert's verdict on a file.
    fn judged(&mut self, verdict: Result<Vec<String>, String>, place: &Span) {
        match verdict {
            Ok(warnings) => {
                self.warnings.extend(
                    warnings.into_iter().map(|text| Problem::new("certificate", place, text)),
                );
            }
            Err(text) => self.push(Problem::new("bad-certificate", place, text)),
        }
    }

    /// Returns the TLS of connections to the servers of an upstream.
    pub(super) fn server_tls(&mut self, upstream: &Checked) -> Option<ServerTlsPlan> {
        let block = upstream.all("tls").next()?;
        if let Some(second) = upstream.all("tls").nth(1) {
            let problem = Problem::new(
                "conflict",
                &second.span,
                "there is more than one `tls` in this `upstream`",
            );
            self.push(problem.related(&block.span, "first here"));
        }
        let given = |name: &str| Some(block.text(name)).filter(|text| !text.is_empty());
        if let (Some(_), None) = (given("key"), given("certificate")) {
            let problem = Problem::new(
                "conflict",
                &block.place("key"),
                "`key` has no effect without `certificate`",
            );
            self.push(problem.help("name the certificate, or leave `key` out"));
        }
        let certificate = given("certificate").map(|file| {
            let key = given("key").unwrap_or_default();
            self.pair(file, key, &block.place("certificate"), |certificate, key| TlsFiles::Shown {
                certificate,
                key,
            })
        });
        let name = given("name").map(str::to_owned);
        Some(ServerTlsPlan { trust: self.trust(block, upstream), name, certificate })
    }

    /// Returns the issuers that are trusted to sign the certificates of servers.
    fn trust(&mut self, block: &Checked, upstream: &Checked) -> TrustPlan {
        let file = block.text("ca");
        if !block.flag("verify") {
            if !file.is_empty() {
                let problem = Problem::new(
                    "conflict",
                    &block.place("ca"),
                    "`ca` has no effect with `verify=#false`",
                );
                self.push(problem.help(
                    "leave `verify` out to require certificates that one of these CAs signed",
                ));
            }
            let message = format!(
                "`verify=#false`: an attacker between weir and the servers of `{}` can read and \
                    change everything",
                upstream.text("name")
            );
            let help = "name the CA of their certificates with `ca`; it also takes a self-signed \
                certificate";
            self.warnings
                .push(Problem::new("unverified", &block.place("verify"), message).help(help));
            return TrustPlan::Anybody;
        }
        let (trust, path) = match file {
            "" => (TrustPlan::System, None),
            path => (TrustPlan::File(path.into()), Some(Path::new(path))),
        };
        // A wrong path has been reported.
        if path.is_some() || block.text_or_word("ca") == "system" {
            let verdict = (self.world.experts.tls)(TlsFiles::Authorities(path));
            self.judged(verdict, &block.place("ca"));
        }
        trust
    }
}
