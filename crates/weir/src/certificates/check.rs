//! Checks the files that TLS needs before they are used. Called by `weir check`, and when a
//! configuration is read to run it.

use std::path::Path;

use weir_config::TlsFiles;
use weir_tls::{
    ClientTrust, Files, Pair, Roots, Staple, TicketKeys, Trust, WantedOfClients, provider,
};

use super::now;

/// Checks files that TLS needs, and returns warnings for the operator. An expired or not yet valid
/// certificate is an error: see [`check_to_run`].
///
/// # Errors
/// What is wrong with them.
pub(crate) fn check(files: TlsFiles<'_>) -> Result<Vec<String>, String> {
    let now = now();
    match files {
        TlsFiles::Certificate { certificate, key } | TlsFiles::Shown { certificate, key } => {
            let pair = read(certificate, key)?;
            pair.out_of_time(now).map_or_else(|| Ok(warnings(files, &pair, now)), Err)
        }
        TlsFiles::Ocsp { response, certificate, key } => {
            let misfit = Staple::read(response)
                .map_err(|bad| bad.to_string())?
                .misfit(&read(certificate, key)?, now);
            misfit.map_or_else(|| Ok(Vec::new()), Err)
        }
        _ => check_to_run(files),
    }
}

/// The same before a run: an expired or not yet valid certificate must not prevent the use of the
/// others.
///
/// # Errors
/// As [`check`].
pub(crate) fn check_to_run(files: TlsFiles<'_>) -> Result<Vec<String>, String> {
    let now = now();
    match files {
        TlsFiles::Certificate { certificate, key } | TlsFiles::Shown { certificate, key } => {
            let pair = read(certificate, key)?;
            Ok(pair.out_of_time(now).into_iter().chain(warnings(files, &pair, now)).collect())
        }
        TlsFiles::Ocsp { response, certificate, key } => {
            let staple = Staple::read(response).map_err(|bad| bad.to_string())?;
            Ok(staple.misfit(&read(certificate, key)?, now).into_iter().collect())
        }
        TlsFiles::Authorities(path) => {
            let trust = path.map_or(Trust::System, |path| Trust::File(path.into()));
            Roots::read(&trust).map(|roots| roots.warnings(now)).map_err(|bad| bad.to_string())
        }
        TlsFiles::Clients { authorities, revocations } => {
            let (authorities, revocations) = (authorities.into(), revocations.map(Into::into));
            let wanted = WantedOfClients { authorities, revocations, required: true };
            let trust = ClientTrust::read(&wanted, &provider()).map_err(|bad| bad.to_string())?;
            Ok(trust.warnings(now))
        }
        TlsFiles::TicketKeys(path) => {
            TicketKeys::read(path).map(|keys| keys.warnings()).map_err(|bad| bad.to_string())
        }
    }
}

/// Returns warnings about a certificate for that use.
fn warnings(files: TlsFiles<'_>, pair: &Pair, now: i64) -> Vec<String> {
    let unnamed = pair.unnamed().filter(|_| matches!(files, TlsFiles::Certificate { .. }));
    pair.warnings(now).into_iter().chain(unnamed).collect()
}

fn read(certificate: &Path, key: &Path) -> Result<Pair, String> {
    let files = Files { certificate: certificate.into(), key: key.into() };
    Pair::read(&files, &provider()).map_err(|bad| bad.to_string())
}
