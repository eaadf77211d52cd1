//! The parts of a certificate that weir reads itself: the names that it is valid for, its validity
//! period, and its subject; and of revocation lists, their issuer and their validity period. X.509
//! in DER, RFC 5280 §4.1 and §5.1.
//!
//! Everything else in them is left to the library and the clients. Pure; whatever the bytes are, at
//! worst nothing is found.

use crate::distinguished;

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const OBJECT_IDENTIFIER: u8 = 0x06;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const BOOLEAN: u8 = 0x01;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// `[0]`, the version; `[3]`, the extensions.
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
/// `[2]` of a GeneralName.
const DNS_NAME: u8 = 0x82;
/// 2.5.29.17.
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
/// 2.5.29.15.
const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];
/// keyCertSign in the first byte of the bits of a KeyUsage.
const KEY_CERT_SIGN: u8 = 0x04;
/// 2.5.29.19.
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];

/// The parts of a certificate that were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Certificate {
    /// DNS names of the subject, in lower case, in their order.
    pub(crate) names: Vec<Box<str>>,
    /// First and last moment of its validity, seconds since 1970.
    pub(crate) not_before: i64,
    pub(crate) not_after: i64,
}

/// The parts of a revocation list that were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RevocationList<'a> {
    /// The content of the name of its CA.
    pub(crate) issuer: &'a [u8],
    /// When a newer one is due, seconds since 1970; None: it doesn't say.
    pub(crate) end: Option<i64>,
}

/// Reads elements one after the other.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    /// The next element: its tag and its content.
    pub(crate) fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let mut len = usize::from(first);
        if first >= 0x80 {
            let (digits, behind) = rest.split_at_checked(usize::from(first & 0x7f))?;
            if digits.is_empty() || digits.len() > 4 {
                return None;
            }
            len = digits.iter().fold(0, |len, digit| len << 8 | usize::from(*digit));
            rest = behind;
        }
        let (content, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some((tag, content))
    }

    pub(crate) fn expect(&mut self, tag: u8) -> Option<Reader<'a>> {
        self.next().filter(|(found, _)| *found == tag).map(|(_, content)| Reader(content))
    }
}

/// The part of a certificate that follows the name of its issuer.
fn behind_issuer(der: &[u8]) -> Option<Reader<'_>> {
    let mut body = Reader(der).expect(SEQUENCE)?.expect(SEQUENCE)?;
    if body.0.first() == Some(&VERSION) {
        body.next()?;
    }
    // Serial number, algorithm, issuer.
    for _ in 0..3 {
        body.next()?;
    }
    Some(body)
}

/// Whether these bytes begin as PKCS#12 does (RFC 7292 §4): a sequence with the version 3.
pub(crate) fn is_pkcs12(der: &[u8]) -> bool {
    let version = Reader(der).expect(SEQUENCE).and_then(|mut body| body.expect(INTEGER));
    version.is_some_and(|version| version.0 == [3])
}

/// The subject of a certificate as text (RFC 4514): `CN=partner,O=Example,C=DE`. None: it is no
/// certificate.
pub fn subject_text(der: &[u8]) -> Option<String> {
    let mut body = behind_issuer(der)?;
    body.next()?;
    Some(distinguished::text(body.expect(SEQUENCE)?.0))
}

/// The content of a name.
pub(crate) fn name_of(name: &[u8]) -> &[u8] {
    Reader(name).expect(SEQUENCE).map_or(&[], |content| content.0)
}

/// The text of the content of a name.
pub(crate) fn name_text(name: &[u8]) -> String {
    distinguished::text(name)
}

/// Reads a revocation list (RFC 5280 §5.1); None: the bytes are no revocation list.
pub(crate) fn read_list(der: &[u8]) -> Option<RevocationList<'_>> {
    let mut body = Reader(der).expect(SEQUENCE)?.expect(SEQUENCE)?;
    if body.0.first() == Some(&INTEGER) {
        body.next()?;
    }
    body.expect(SEQUENCE)?;
    let issuer = body.expect(SEQUENCE)?.0;
    time(body.next()?)?;
    Some(RevocationList { issuer, end: body.next().and_then(time) })
}

/// The number of a certificate, and the name of its CA as it is encoded.
pub(crate) fn identity(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut body = Reader(der).expect(SEQUENCE)?.expect(SEQUENCE)?;
    if body.0.first() == Some(&VERSION) {
        body.next()?;
    }
    let serial = body.expect(INTEGER)?.0;
    body.expect(SEQUENCE)?;
    let before = body.0;
    body.expect(SEQUENCE)?;
    Some((serial, &before[..before.len() - body.0.len()]))
}

/// Reads a certificate; None: the bytes are no certificate.
pub(crate) fn read(der: &[u8]) -> Option<Certificate> {
    let mut body = behind_issuer(der)?;
    let mut validity = body.expect(SEQUENCE)?;
    let (not_before, not_after) = (time(validity.next()?)?, time(validity.next()?)?);
    let names = extension(der, SUBJECT_ALT_NAME).map(dns_names).unwrap_or_default();
    Some(Certificate { names, not_before, not_after })
}

/// The value of an extension of a certificate, by its object identifier; None: the certificate does
/// not have it.
pub(crate) fn extension<'a>(der: &'a [u8], identifier: &[u8]) -> Option<&'a [u8]> {
    let mut body = behind_issuer(der)?;
    let (_, content) = std::iter::from_fn(|| body.next()).find(|(tag, _)| *tag == EXTENSIONS)?;
    let mut extensions = Reader(content).expect(SEQUENCE)?;
    while let Some((SEQUENCE, extension)) = extensions.next() {
        let mut extension = Reader(extension);
        if extension.expect(OBJECT_IDENTIFIER)?.0 == identifier {
            // The flag `critical` may come in between.
            return std::iter::from_fn(|| extension.next())
                .find(|(tag, _)| *tag == OCTET_STRING)
                .map(|(_, value)| value);
        }
    }
    None
}

/// DNS names of a subjectAltName, in lower case.
fn dns_names(value: &[u8]) -> Vec<Box<str>> {
    let Some(mut list) = Reader(value).expect(SEQUENCE) else { return Vec::new() };
    let mut names = Vec::new();
    while let Some((tag, name)) = list.next() {
        if tag == DNS_NAME && name.is_ascii() && !name.is_empty() {
            names.push(String::from_utf8_lossy(name).to_ascii_lowercase().into());
        }
    }
    names
}

/// Whether a certificate is for any name or address at all (subjectAltName). A common name does not
/// count (RFC 9525 §2).
pub(crate) fn has_names(der: &[u8]) -> bool {
    let list = extension(der, SUBJECT_ALT_NAME).and_then(|value| Reader(value).expect(SEQUENCE));
    list.is_some_and(|list| !list.0.is_empty())
}

/// Whether a certificate is that of a CA (RFC 5280 §4.2.1.9).
pub(crate) fn is_authority(der: &[u8]) -> bool {
    let value = extension(der, BASIC_CONSTRAINTS).and_then(|value| Reader(value).expect(SEQUENCE));
    value
        .and_then(|mut value| value.next())
        .is_some_and(|(tag, content)| tag == BOOLEAN && content != [0])
}

/// Whether a certificate may sign others (RFC 5280 §4.2.1.3 and §4.2.1.9): it says that it is a CA
/// or that its key signs certificates, and nothing to the contrary. A certificate of version 1 has
/// no way to say so, and may.
pub(crate) fn may_sign(der: &[u8]) -> bool {
    let usage = extension(der, KEY_USAGE).map(|value| {
        let bits = Reader(value).expect(BIT_STRING);
        // The first byte counts unused bits.
        bits.and_then(|bits| bits.0.get(1).copied()).is_some_and(|first| first & KEY_CERT_SIGN != 0)
    });
    match (usage, extension(der, BASIC_CONSTRAINTS)) {
        (Some(false), _) => false,
        (_, Some(_)) => is_authority(der),
        (Some(true), None) => true,
        (None, None) => {
            let body = Reader(der).expect(SEQUENCE).and_then(|mut whole| whole.expect(SEQUENCE));
            body.is_some_and(|body| body.0.first() != Some(&VERSION))
        }
    }
}

/// Issuer and subject of a certificate, as text.
pub(crate) fn parties(der: &[u8]) -> Option<(String, String)> {
    let (_, issuer) = identity(der)?;
    Some((distinguished::text(name_of(issuer)), subject_text(der)?))
}

/// The content of the SubjectPublicKeyInfo of a certificate (RFC 5280 §4.1.2.7).
pub(crate) fn public_key(der: &[u8]) -> Option<Reader<'_>> {
    let mut body = behind_issuer(der)?;
    // Validity, subject.
    body.next()?;
    body.next()?;
    body.expect(SEQUENCE)
}

/// Converts a time (RFC 5280 §4.1.2.5) to seconds since 1970: always UTC, always with seconds.
pub(crate) fn time((tag, text): (u8, &[u8])) -> Option<i64> {
    let (year_digits, rest) = text.split_at_checked(if tag == GENERALIZED_TIME { 4 } else { 2 })?;
    let year = match tag {
        GENERALIZED_TIME => number(year_digits)?,
        UTC_TIME => match number(year_digits)? {
            year @ ..50 => 2000 + year,
            year => 1900 + year,
        },
        _ => return None,
    };
    let [digits @ .., b'Z'] = rest else { return None };
    let mut fields = [0; 5];
    if digits.len() != 10 {
        return None;
    }
    for (field, pair) in fields.iter_mut().zip(digits.chunks(2)) {
        *field = number(pair)?;
    }
    let [month, day, hour, minute, second] = fields;
    let is_time = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61;
    is_time.then(|| days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second)
}

fn number(digits: &[u8]) -> Option<i64> {
    digits.iter().try_fold(0, |number, digit| {
        digit.is_ascii_digit().then(|| number * 10 + i64::from(digit - b'0'))
    })
}

/// Days from 1970-01-01 to this day: years begin in March, so that the leap day is the last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// A day as `2026-11-21`, of seconds since 1970.
pub fn day_text(seconds: i64) -> String {
    let days = seconds.div_euclid(86_400) + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (day, month) = (
        day_of_year - (153 * shifted + 2) / 5 + 1,
        if shifted < 10 { shifted + 3 } else { shifted - 9 },
    );
    format!("{:04}-{month:02}-{day:02}", year_of_era + era * 400 + i64::from(month <= 2))
}

#[cfg(test)]
mod tests {
    //! Proves: names and times are those that were written, and no truncation of a certificate does
    //! harm. How: a certificate written here, real ones in the tests of `pairs`.

    use super::*;

    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        assert!(content.len() < 65_536);
        let [high, low] = (content.len() as u16).to_be_bytes();
        let head = if content.len() < 128 { vec![tag, low] } else { vec![tag, 0x82, high, low] };
        [head, content.to_vec()].concat()
    }

    fn certificate() -> Vec<u8> {
        let names = [
            element(0x82, b"A.Example"),
            element(0x87, &[10, 0, 0, 1]),
            element(0x82, b"*.b.example"),
        ]
        .concat();
        let names = critical(SUBJECT_ALT_NAME, &element(SEQUENCE, &names));
        let other =
            element(SEQUENCE, &[element(OBJECT_IDENTIFIER, KEY_USAGE), vec![4, 0]].concat());
        of_version_3(&[other, names])
    }

    /// An extension that software which does not know it must not ignore.
    fn critical(identifier: &[u8], value: &[u8]) -> Vec<u8> {
        let parts = [
            element(OBJECT_IDENTIFIER, identifier),
            vec![1, 1, 0xff],
            element(OCTET_STRING, value),
        ];
        element(SEQUENCE, &parts.concat())
    }

    fn of_version_3(extensions: &[Vec<u8>]) -> Vec<u8> {
        let extensions = element(EXTENSIONS, &element(SEQUENCE, &extensions.concat()));
        made_of(&element(VERSION, &[2, 1, 2]), &extensions)
    }

    fn made_of(version: &[u8], extensions: &[u8]) -> Vec<u8> {
        let validity =
            [element(UTC_TIME, b"700101000000Z"), element(GENERALIZED_TIME, b"20500229235960Z")]
                .concat();
        let body = [
            version,
            &element(2, &[1]),
            &element(SEQUENCE, b""),
            &element(SEQUENCE, b""),
            &element(SEQUENCE, &validity),
            &element(SEQUENCE, b""),
            &element(SEQUENCE, &[0; 300]),
            extensions,
        ];
        element(SEQUENCE, &[element(SEQUENCE, &body.concat()), element(SEQUENCE, b"")].concat())
    }

    #[test]
    fn names_and_times() {
        let read = read(&certificate()).unwrap();
        assert_eq!(read.names, ["a.example".into(), "*.b.example".into()]);
        // A day that does not exist counts as the day after.
        assert_eq!((read.not_before, read.not_after), (0, 2_529_792_000));
    }

    #[test]
    fn who_may_sign_says_so() {
        let ca = |is_one: bool| {
            let flag: &[u8] = if is_one { &[1, 1, 0xff] } else { &[] };
            critical(BASIC_CONSTRAINTS, &element(SEQUENCE, flag))
        };
        let usage = |bits: u8| critical(KEY_USAGE, &element(BIT_STRING, &[0, bits]));
        let other = || critical(SUBJECT_ALT_NAME, &element(SEQUENCE, b""));
        // keyCertSign with cRLSign, and digitalSignature with keyEncipherment.
        let (signs, speaks) = (0x06, 0xa0);
        for (extensions, may) in [
            (vec![ca(true)], true),
            (vec![ca(true), usage(signs)], true),
            (vec![usage(signs), other()], true),
            (vec![ca(false)], false),
            (vec![ca(false), usage(signs)], false),
            (vec![ca(true), usage(speaks)], false),
            (vec![usage(speaks)], false),
            (vec![critical(KEY_USAGE, b""), ca(true)], false),
            (vec![critical(KEY_USAGE, &element(BIT_STRING, &[0]))], false),
            (vec![critical(BASIC_CONSTRAINTS, b"")], false),
            // Most certificates of tutorials say nothing about it.
            (vec![other()], false),
            (vec![], false),
        ] {
            assert_eq!(may_sign(&of_version_3(&extensions)), may, "{extensions:x?}");
        }
        assert!(may_sign(&made_of(&[], &[])), "version 1");
        assert!(!may_sign(b"nothing"));
    }

    #[test]
    fn lists_say_of_whom_and_until_when() {
        let list = |version: &[u8], end: &[u8]| {
            let issuer = element(SEQUENCE, b"whose");
            let parts = [
                version,
                &element(SEQUENCE, b""),
                &issuer,
                &element(UTC_TIME, b"700101000000Z"),
                end,
            ]
            .concat();
            element(SEQUENCE, &[element(SEQUENCE, &parts), element(SEQUENCE, b"")].concat())
        };
        let end = element(UTC_TIME, b"700102000000Z");
        let (second, first) =
            (list(&element(INTEGER, &[1]), &end), list(&[], &element(SEQUENCE, b"")));
        assert_eq!(
            read_list(&second),
            Some(RevocationList { issuer: b"whose", end: Some(86_400) })
        );
        assert_eq!(read_list(&first), Some(RevocationList { issuer: b"whose", end: None }));
        assert_eq!(
            (read_list(&certificate()), subject_text(&certificate())),
            (None, Some(String::new()))
        );
    }

    #[test]
    fn no_cut_and_no_changed_byte_does_harm() {
        let whole = certificate();
        for cut in 0..whole.len() {
            let _ = (
                read(&whole[..cut]),
                subject_text(&whole[..cut]),
                read_list(&whole[..cut]),
                may_sign(&whole[..cut]),
            );
            for byte in [0, 0x7f, 0x80, 0x84, 0xff] {
                let mut changed = whole.clone();
                changed[cut] = byte;
                let _ = (
                    read(&changed),
                    subject_text(&changed),
                    read_list(&changed),
                    may_sign(&changed),
                );
            }
        }
    }

    #[test]
    fn days_go_there_and_back() {
        for (seconds, text) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_795_219_200, "2026-11-21"),
            (4_102_444_799, "2099-12-31"),
        ] {
            assert_eq!(day_text(seconds), text);
            let written = format!("{}000000Z", text.replace('-', ""));
            assert_eq!(
                time((GENERALIZED_TIME, written.as_bytes())),
                Some(seconds - seconds % 86_400)
            );
        }
        assert_eq!(time((UTC_TIME, b"20010100000Z")), None);
        assert_eq!(time((UTC_TIME, b"200101000000")), None);
        assert_eq!(time((GENERALIZED_TIME, b"20261321000000Z")), None);
    }
}
