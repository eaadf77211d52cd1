//! Proves: a reader gets exactly the sections that a text has, however lines end and whatever
//! surrounds them, or an error. How: each change that files go through on their way, alone and
//! together, on sections whose content is known; and any damage to a marker.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use proptest::prelude::*;

use super::*;

/// A section whose content is these bytes.
fn section(label: &str, content: &[u8], line_bytes: usize) -> String {
    let text = BASE64_STANDARD.encode(content);
    let lines: Vec<_> = text.as_bytes().chunks(line_bytes).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

fn read(text: &str) -> Result<Vec<Vec<u8>>, Damage> {
    Ok(certificates(text.as_bytes())?.into_iter().map(|certificate| certificate.to_vec()).collect())
}

type Change = fn(&str) -> String;

/// Changes to files on their way.
const CHANGES: [(&str, Change); 12] = [
    ("nothing", str::to_owned),
    ("the last line end is missing", |text| text.trim_end().to_owned()),
    ("CRLF", |text| text.replace('\n', "\r\n")),
    ("CR", |text| text.replace('\n', "\r")),
    ("a byte order mark", |text| format!("\u{feff}{text}")),
    ("spaces at line ends", |text| text.replace('\n', " \t\n")),
    ("indented", |text| text.replace('\n', "\n    ")),
    ("blank lines", |text| text.replace('\n', "\n\n")),
    ("all on one line", |text| text.replace('\n', " ")),
    ("text around", |text| {
        format!("Bag Attributes\n    friendlyName: END of a chain\nsubject=CN = a\n{text}# END\n")
    }),
    ("ornaments", |text| {
        format!(
            "# ---- BEGIN CHAIN ----\n#-----BEGIN SERVER-----\n{text}\n#-----END SERVER-----\n\
                # --- END OF FILE ---\n"
        )
    }),
    ("small letters", |text| text.replace("CERTIFICATE", "Certificate")),
];

#[test]
fn each_section_is_read_however_it_came() {
    let all = [
        b"first".as_slice(),
        b"a second one, which is longer than one line has place for in PEM",
        b"3",
    ];
    for (one, first) in CHANGES {
        for (other, second) in CHANGES {
            let parts = all.map(|content| second(&first(&section("CERTIFICATE", content, 64))));
            let got = read(&parts.concat());
            assert_eq!(
                got,
                Ok(all.map(<[u8]>::to_vec).to_vec()),
                "{one}, {other}: {}",
                parts.concat()
            );
        }
    }
}

#[test]
fn ornaments_are_no_sections() {
    let good = section("CERTIFICATE", b"one", 64);
    for ornament in [
        "# ---- BEGIN CHAIN ----",
        "# --- END OF FILE ---",
        "--- END OF FILE ---",
        "#-----BEGIN SERVER-----",
        "# -----END SERVER-----",
        "# -----BEGIN SERVER-----\n# -----END SERVER-----",
        "----------BEGIN CHAIN----------",
        "#-----BEGIN CHAIN--",
        "\u{2014}\u{2014} END OF CHAIN \u{2014}\u{2014}",
        "# -----BEGIN -----",
    ] {
        for text in [
            format!("{ornament}\n{good}"),
            format!("{good}{ornament}"),
            format!("{good}{ornament}\n{good}"),
        ] {
            let count = text.matches("-----BEGIN CERTIFICATE").count();
            assert_eq!(read(&text), Ok(vec![b"one".to_vec(); count]), "{text}");
        }
    }
    // Readers of PEM would not ignore these.
    for (marker, why) in [
        ("# ----BEGIN CERTIFICATE-----", MARKER),
        ("# -----BEGIN PRIVATE KEY----", MARKER),
        ("# -----BEGIN CERTIFICATE-----", UNENDED),
        ("text -----END X509 CRL-----", UNBEGUN),
        ("-----BEGIN SERVER-----", UNENDED),
        (" \t-----END SERVER-----", UNBEGUN),
        ("-----BEGIN SERVER---", MARKER),
        ("-----BEGIN -----", MARKER),
    ] {
        assert_eq!(read(&format!("{good}{marker}\n")), Err(Damage { line: 4, why }), "{marker}");
        let first = read(&format!("\u{feff}{marker}\n{good}"));
        assert_eq!(first, Err(Damage { line: 1, why }), "{marker}");
    }
}

/// Each section knows the byte at which it begins. Its line is counted only for an error: with many
/// sections the work would grow with their square.
#[test]
fn lines_are_counted_for_errors_only() {
    const MANY: usize = 30_000;
    let unit = "-----BEGIN X-----\n-----END X-----\n";
    let text = unit.repeat(MANY);
    let all = sections(text.as_bytes()).unwrap();
    assert!(all.iter().map(|section| section.from).eq((0..MANY).map(|at| at * unit.len())));
    let cut = format!("{text}-----BEGIN X-----\n");
    assert_eq!(read(&cut), Err(Damage { line: 2 * MANY + 1, why: UNENDED }));
}

#[test]
fn sections_of_other_kinds_are_left_alone() {
    let text = [
        section("EC PARAMETERS", b"curve", 64),
        section("CERTIFICATE", b"one", 64),
        section("EC PRIVATE KEY", b"key", 64),
        section("X509 CRL", b"list", 64),
        section("X509 CERTIFICATE", b"two", 64),
        section("DH PARAMETERS", b"group", 64),
    ]
    .concat();
    assert_eq!(read(&text), Ok(vec![b"one".to_vec(), b"two".to_vec()]));
    assert_eq!(
        lists(text.as_bytes()).unwrap().iter().map(|list| list.to_vec()).collect::<Vec<_>>(),
        [b"list"]
    );
    assert_eq!(key(text.as_bytes()).unwrap().unwrap().secret_der(), b"key");
    assert!(!has_encrypted_key(text.as_bytes()));
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    let good = section("CERTIFICATE", b"one", 64);
    let key = section("PRIVATE KEY", b"secret bytes", 64);
    for (text, line, why) in [
        (good.replace("-----END CERTIFICATE-----", ""), 1, UNENDED),
        (good[..good.len() - 8].to_owned(), 3, MARKER),
        (good.replace("-----BEGIN CERTIFICATE-----", ""), 3, UNBEGUN),
        (good.replace("-----BEGIN", "----BEGIN"), 1, MARKER),
        (good.replace("CERTIFICATE-----\n", "CERTIFICATE----\n"), 1, MARKER),
        (good.replace("-----", "\u{2014}\u{2013}"), 1, MARKER),
        (good.replace("-----B", "----- B"), 1, MARKER),
        (good.replace("END CERTIFICATE", "END PRIVATE KEY"), 1, UNENDED),
        (format!("{good}{}", good.replace("-----BEGIN CERTIFICATE-----\n", "")), 5, UNBEGUN),
        (format!("{good}\n{}", good.replace('\n', "\\n")), 5, ESCAPED),
        (format!("{good}{}", good.replace("b25l", "b2*l")), 4, NOT_BASE64),
        (good.replace("CERTIFICATE", "TRUSTED CERTIFICATE"), 1, TRUSTED),
        (good.replace("CERTIFICATE", "PKCS7"), 1, PKCS_7),
        (format!("{key}{}", key.replace("-----END", "-----BEGIN")), 4, UNENDED),
    ] {
        assert_eq!(read(&text), Err(Damage { line, why }), "{text}");
    }
    let wide: Vec<u8> =
        format!("\u{feff}{good}").encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(certificates(&wide), Err(Damage { line: 1, why: UTF_16 }));
}

#[test]
fn encrypted_keys_are_told_from_others() {
    let new = section("ENCRYPTED PRIVATE KEY", b"locked", 64);
    let old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\
               \nAAAA\n\
               -----END RSA PRIVATE KEY-----\n";
    for text in [new.as_str(), old] {
        assert!(key(text.as_bytes()).unwrap().is_none() && has_encrypted_key(text.as_bytes()));
    }
    // An unencrypted key may follow it.
    let both = format!("{old}{}", section("PRIVATE KEY", b"open", 64));
    assert_eq!(key(both.as_bytes()).unwrap().unwrap().secret_der(), b"open");
}

#[test]
fn what_a_file_is_instead_is_said() {
    let request = section("CERTIFICATE REQUEST", b"x", 64);
    assert!(instead(request.as_bytes()).contains("certificate request"));
    assert!(instead(section("EC PRIVATE KEY", b"x", 64).as_bytes()).contains("swapped"));
    assert_eq!(instead(b"nothing"), "");
}

proptest! {
    /// Whichever byte of a chain is changed or lost: all of its certificates are read, or an error
    /// says that they are not.
    #[test]
    fn no_damage_makes_a_certificate_disappear(
        count in 1usize..4,
        at in any::<prop::sample::Index>(),
        byte in prop::option::of(any::<u8>()),
        end in "\n|\r\n|",
    ) {
        let parts = (0..count)
            .map(|at| section("CERTIFICATE", &[at as u8; 60], 64).trim_end().to_owned() + &end);
        let mut text = parts.collect::<String>().into_bytes();
        let at = at.index(text.len());
        match byte {
            Some(byte) => text[at] = byte,
            None => drop(text.remove(at)),
        }
        if let Ok(found) = certificates(&text) {
            prop_assert_eq!(found.len(), count);
        }
    }
}
