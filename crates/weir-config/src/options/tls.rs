//! Rows of `tls` in `listen`, with its `certificate`, and of `tls` in `upstream`. Part of the
//! option table.

use super::{TIMEOUT, row};
use crate::schema::{BLOCK, Block, Default, Kind};
use crate::texts;

pub(super) const TLS: Block = Block {
    name: "tls",
    help: "Clients of this address speak TLS (https). At least one `certificate`. Without this \
        block they do not speak TLS. At most one.",
    options: &[
        row(
            "min-version",
            Kind::Word(&["1.2", "1.3"]),
            Default::Is("1.2"),
            "The oldest version of TLS that clients may speak.",
        ),
        row(
            "strict-sni",
            Kind::Flag,
            Default::Is("#false"),
            "Reject clients that request a name (SNI) that no certificate has, or no name. \
                Otherwise such clients get the first certificate.",
        ),
        row(
            "tickets",
            Kind::Flag,
            Default::Is("#true"),
            "Clients may resume a session for 12 hours, which is cheaper. With `client-auth` \
                clients may never resume one.",
        ),
        row(
            "ticket-keys",
            Kind::Or("auto", &Kind::Text("a path", texts::forward::file)),
            Default::Is("auto"),
            "File with the keys that seal tickets, for several weirs whose clients resume sessions \
                with any of them, at listeners with the same port and the same names. The file has \
                one key per line, 80 bytes in base64, the newest last. The last three keys open \
                tickets; the last but one seals them. Read again when it changes. `auto`: keys of \
                this process alone, new every 6 hours.",
        ),
        row(
            "client-auth",
            Kind::Word(&["off", "optional", "require"]),
            Default::Is("off"),
            "Whether clients show a certificate. A certificate that a client shows must be valid. \
                `require` also rejects clients that show none.",
        ),
        row(
            "client-ca",
            Kind::Text("a path", texts::forward::file),
            Default::Absent,
            "CA certificates in PEM that may have signed client certificates. Required with \
                `client-auth`. Read again when it changes.",
        ),
        row(
            "client-crl",
            Kind::Text("a path", texts::forward::file),
            Default::Absent,
            "Which client certificates were revoked: lists (CRL) in PEM, or one in DER. With this \
                option every CA in a client's chain must have a list that is in date. Read again \
                when it changes. Without this option weir does not check revocation.",
        ),
        row(
            "client-cert-field",
            Kind::Flag,
            Default::Is("#false"),
            "Send servers the certificate that a client has shown, in `Client-Cert` (RFC 9440). \
                With this option weir removes this field and `Client-Cert-Chain` from requests of \
                clients of every address.",
        ),
        row(
            "handshake-timeout",
            TIMEOUT,
            Default::Is("10s"),
            "Longest time from the accept to the end of the handshake; then weir closes the \
                connection.",
        ),
    ],
    blocks: &[CERTIFICATE],
    repeats: true,
    ..BLOCK
};

pub(super) const TO_SERVERS: Block = Block {
    name: "tls",
    help: "Connections to these servers use TLS (https), 1.2 or 1.3. Without this block they do \
        not. At most one. Files are read again when they change.",
    options: &[
        row(
            "verify",
            Kind::Flag,
            Default::Is("#true"),
            "Servers must have a certificate for `name`, signed by one of `ca`. Otherwise any \
                machine on the path can read and change everything.",
        ),
        row(
            "ca",
            Kind::Or("system", &Kind::Text("a path", texts::forward::file)),
            Default::Is("system"),
            "CAs that may have signed the servers' certificates: certificates of CAs in PEM, or \
                those that the system trusts, as they are at the start.",
        ),
        row(
            "name",
            Kind::Text("a host name or an address", texts::peer_name),
            Default::Absent,
            "The name that the certificates of all these servers must have, and that weir requests \
                (SNI). Without this option it is the host of each `server` as written. An IP \
                address must be in the certificate, and weir does not request it.",
        ),
        row(
            "certificate",
            Kind::Text("a path", texts::forward::file),
            Default::Absent,
            "The chain that weir shows to servers that request a client certificate, in PEM, the \
                certificate itself first.",
        ),
        row(
            "key",
            Kind::Text("a path", texts::forward::file),
            Default::Absent,
            "The private key of that certificate in PEM, not encrypted. Without this option it is \
                in `certificate`.",
        ),
    ],
    repeats: true,
    ..BLOCK
};

const CERTIFICATE: Block = Block {
    name: "certificate",
    help: "A certificate with its key. Clients get it by the names in it. Of two certificates with \
        the same names, a client gets the one whose kind of key it understands, ECDSA first. Both \
        files are read again when they change.",
    positional: &[row(
        "file",
        Kind::Text("a path", texts::forward::file),
        Default::Required,
        "The chain in PEM, the certificate itself first.",
    )],
    options: &[
        row(
            "key",
            Kind::Text("a path", texts::forward::file),
            Default::Absent,
            "The private key in PEM, not encrypted. Without this option the key is in `file`.",
        ),
        row(
            "ocsp",
            Kind::Text("a path", texts::forward::file),
            Default::Absent,
            "An OCSP response in DER, which clients get with the certificate while it is about \
                that certificate and in date. Read again when it changes; weir fetches none.",
        ),
    ],
    repeats: true,
    ..BLOCK
};
