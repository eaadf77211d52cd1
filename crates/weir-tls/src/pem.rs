//! PEM (RFC 7468) as it occurs in real files: text around and between sections, Windows line ends,
//! a byte order mark, spaces at line ends. Sections may follow each other on one line, because a
//! file without a last line end was put in front of another one.
//!
//! Called by every reader of certificates, keys and revocation lists. Text that looks like the
//! beginning or the end of a section but is neither is an error, unless it can only be an ornament
//! of a comment. So a reader never gets fewer sections than a file has. Errors name a line and
//! never show its content, which may be a key. The base64 is decoded by rustls-pki-types. Bound:
//! one pass over the text.

use std::fmt;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

use crate::der;

/// The hyphens before and after the name of a section.
const HYPHENS: &[u8] = b"-----";
/// Names of sections that readers of PEM know, whether or not weir uses them.
const KNOWN: [&[u8]; 24] = [
    b"CERTIFICATE",
    b"X509 CERTIFICATE",
    b"TRUSTED CERTIFICATE",
    b"ATTRIBUTE CERTIFICATE",
    b"CERTIFICATE REQUEST",
    b"NEW CERTIFICATE REQUEST",
    b"X509 CRL",
    b"PRIVATE KEY",
    b"ENCRYPTED PRIVATE KEY",
    b"ANY PRIVATE KEY",
    b"RSA PRIVATE KEY",
    b"EC PRIVATE KEY",
    b"DSA PRIVATE KEY",
    b"OPENSSH PRIVATE KEY",
    b"PUBLIC KEY",
    b"RSA PUBLIC KEY",
    b"EC PARAMETERS",
    b"DH PARAMETERS",
    b"X9.42 DH PARAMETERS",
    b"DSA PARAMETERS",
    b"SSL SESSION PARAMETERS",
    b"PKCS7",
    b"PKCS #7 SIGNED DATA",
    b"CMS",
];
/// Longest name of a section that is looked for, bytes.
const LABEL_BYTES_MAX: usize = 64;

const MARKER: &str = "a section begins with exactly `-----BEGIN NAME-----` and ends with exactly \
    `-----END NAME-----`";
const UNENDED: &str =
    "this section has no `-----END …-----`: it is cut off, or a part of it is missing";
const UNBEGUN: &str = "this `-----END …-----` has no `-----BEGIN …-----` before it";
const NOT_BASE64: &str = "the text between `BEGIN` and `END` is not base64";
const ESCAPED: &str = "it has `\\n` as text in place of line ends";
const UTF_16: &str = "it is UTF-16 text: save it as UTF-8";
const TRUSTED: &str = "a TRUSTED CERTIFICATE has rules that only OpenSSL applies: `openssl x509 \
                       -in FILE -out NEW` \
                       writes it without them";
const PKCS_7: &str = "PKCS#7 is not supported: `openssl pkcs7 -print_certs -in FILE -out NEW` \
    writes its certificates";

/// Why a text in PEM can't be read, and in which line, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Damage {
    line: usize,
    why: &'static str,
}

impl Damage {
    /// Damage at this byte of a text.
    fn at(text: &[u8], at: usize, why: &'static str) -> Damage {
        Damage { line: 1 + text[..at].iter().filter(|byte| **byte == b'\n').count(), why }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

/// A `BEGIN` or an `END` with its hyphens.
struct Marker<'a> {
    begins: bool,
    label: &'a [u8],
    /// Its first byte, and the one behind its last hyphen.
    from: usize,
    to: usize,
    /// It belongs to a section: readers know its name, or it begins its line. Any other marker may
    /// be an ornament.
    is_sure: bool,
}

/// The text between two markers.
struct Section<'a> {
    /// The whole text, and where in it the section begins. Lines are counted for errors only.
    text: &'a [u8],
    from: usize,
    label: &'a [u8],
    body: &'a [u8],
}

/// The certificates of a text, in its order.
///
/// # Errors
/// A section is damaged, or holds certificates in a form that weir does not read.
pub(crate) fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, Damage> {
    let mut found = Vec::new();
    for section in sections(text)? {
        match section.label.to_ascii_uppercase().as_slice() {
            b"CERTIFICATE" | b"X509 CERTIFICATE" => found.push(section.read("CERTIFICATE")?),
            b"TRUSTED CERTIFICATE" => return Err(section.damage(TRUSTED)),
            b"PKCS7" | b"PKCS #7 SIGNED DATA" | b"CMS" => return Err(section.damage(PKCS_7)),
            _ => {}
        }
    }
    Ok(found)
}

/// The revocation lists of a text, in its order.
///
/// # Errors
/// A section is damaged.
pub(crate) fn lists(text: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, Damage> {
    let lists = sections(text)?.into_iter().filter(|section| section.is(b"X509 CRL"));
    lists.map(|section| section.read("X509 CRL")).collect()
}

/// The first private key of a text that is not encrypted, if it has one.
///
/// # Errors
/// A section is damaged.
pub(crate) fn key(text: &[u8]) -> Result<Option<PrivateKeyDer<'static>>, Damage> {
    for section in sections(text)? {
        let label = ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"];
        if let Some(label) = label.into_iter().find(|label| section.is(label.as_bytes()))
            && !is_encrypted(section.body)
        {
            return section.read(label).map(Some);
        }
    }
    Ok(None)
}

/// Whether a text has a private key that a password protects.
pub(crate) fn has_encrypted_key(text: &[u8]) -> bool {
    let is_one =
        |section: &Section<'_>| section.is(b"ENCRYPTED PRIVATE KEY") || is_encrypted(section.body);
    sections(text).is_ok_and(|sections| sections.iter().any(is_one))
}

/// RFC 1421 §4.6.1.1, as OpenSSL writes it.
fn is_encrypted(body: &[u8]) -> bool {
    let head = &body[..body.len().min(128)];
    String::from_utf8_lossy(head).contains("Proc-Type: 4,ENCRYPTED")
}

/// What a file without any certificate contains instead, and what to do about it; empty: nothing is
/// known.
pub(crate) fn instead(text: &[u8]) -> &'static str {
    let has = |part: &[u8]| {
        sections(text).is_ok_and(|all| {
            all.iter().any(|section| section.label.to_ascii_uppercase().ends_with(part))
        })
    };
    if der::read(text).is_some() {
        "; it is in DER: `openssl x509 -inform DER -in FILE -out NEW` writes PEM"
    } else if der::is_pkcs12(text) {
        "; it is PKCS#12: `openssl pkcs12 -nodes -in FILE -out NEW` writes PEM"
    } else if has(b"CERTIFICATE REQUEST") {
        "; it has a certificate request (CSR), for which a CA makes the certificate"
    } else if has(b"PRIVATE KEY") {
        "; it has a private key: are the two files swapped?"
    } else {
        ""
    }
}

impl<'a> Section<'a> {
    fn is(&self, label: &[u8]) -> bool {
        self.label.eq_ignore_ascii_case(label)
    }

    fn damage(&self, why: &'static str) -> Damage {
        Damage::at(self.text, self.from, why)
    }

    /// Its content, read as a section of this name.
    fn read<T: PemObject>(&self, label: &str) -> Result<T, Damage> {
        if self.body.windows(2).any(|pair| pair == b"\\n") {
            return Err(self.damage(ESCAPED));
        }
        let content = self.body.iter().filter(|byte| !byte.is_ascii_whitespace() && **byte != 0x0b);
        let mut plain = format!("-----BEGIN {label}-----\n").into_bytes();
        plain.extend(content);
        plain.extend_from_slice(format!("\n-----END {label}-----\n").as_bytes());
        T::from_pem_slice(&plain).map_err(|_| self.damage(NOT_BASE64))
    }
}

/// All sections of a text.
fn sections(text: &[u8]) -> Result<Vec<Section<'_>>, Damage> {
    if text.starts_with(&[0xff, 0xfe]) || text.starts_with(&[0xfe, 0xff]) {
        return Err(Damage { line: 1, why: UTF_16 });
    }
    let markers = markers(text)?;
    let mut sections = Vec::with_capacity(markers.len() / 2);
    let mut markers = markers.into_iter().peekable();
    while let Some(Marker { begins, label, from, to, is_sure }) = markers.next() {
        let ends_it =
            |next: &Marker<'_>| begins && !next.begins && next.label.eq_ignore_ascii_case(label);
        if let Some(end) = markers.next_if(ends_it) {
            // Two markers that share hyphens have nothing between them.
            let body = text.get(to..end.from).unwrap_or_default();
            sections.push(Section { text, from, label, body });
        } else if is_sure {
            return Err(Damage::at(text, from, if begins { UNENDED } else { UNBEGUN }));
        }
    }
    Ok(sections)
}

/// All markers of a text, in its order.
fn markers(text: &[u8]) -> Result<Vec<Marker<'_>>, Damage> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let word: &[u8] = match text[at] {
            b'B' if text[at..].starts_with(b"BEGIN ") => b"BEGIN ",
            b'E' if text[at..].starts_with(b"END ") => b"END ",
            _ => {
                at += 1;
                continue;
            }
        };
        match marker(text, at, word) {
            Ok(Some(marker)) => {
                at = marker.to;
                found.push(marker);
            }
            Ok(None) => at += word.len(),
            Err(why) => return Err(Damage::at(text, at, why)),
        }
    }
    Ok(found)
}

/// The marker around this word; None: it is prose.
///
/// # Errors
/// It is a marker of a section, but malformed: hyphens are missing or replaced by something else.
fn marker<'a>(text: &'a [u8], at: usize, word: &[u8]) -> Result<Option<Marker<'a>>, &'static str> {
    let label_start = at + word.len();
    let is_label = |byte: &u8| (b' '..0x7f).contains(byte) && *byte != b'-';
    let len =
        text[label_start..].iter().take(LABEL_BYTES_MAX).take_while(|byte| is_label(byte)).count();
    let (before, behind) = (&text[..at], &text[label_start + len..]);
    let (is_opened, is_closed) = (before.ends_with(HYPHENS), behind.starts_with(HYPHENS));
    let label = text[label_start..label_start + len].trim_ascii();
    let is_sure =
        KNOWN.iter().any(|known| known.eq_ignore_ascii_case(label)) || begins_line(before);
    if is_opened && is_closed && !label.is_empty() {
        let (from, to) = (at - HYPHENS.len(), label_start + len + HYPHENS.len());
        return Ok(Some(Marker { begins: word == b"BEGIN ", label, from, to, is_sure }));
    }
    // Dashes of text editors are not ASCII.
    let is_dash = |byte: Option<&u8>| byte.is_some_and(|byte| *byte == b'-' || !byte.is_ascii());
    let is_framed = is_closed || is_dash(before.trim_ascii_end().last()) && is_dash(behind.first());
    if is_sure && (is_opened || is_framed) { Err(MARKER) } else { Ok(None) }
}

/// Whether a text ends with five hyphens that are the first of their line.
fn begins_line(text: &[u8]) -> bool {
    let Some(before) = text.strip_suffix(HYPHENS) else { return false };
    let blanks = before.iter().rev().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    // At the beginning of the text, maybe behind a byte order mark, or of a line.
    matches!(&before[..before.len() - blanks], [] | [0xef, 0xbb, 0xbf] | [.., b'\n' | b'\r'])
}

#[cfg(test)]
mod tests;
