//! Rows of `tls` in `listen`, with its `certificate`, and of `tls` in `upstream`. Part of the option table.

use super::{TIMEOUT, row};
use crate::schema::{BLOCK, Block, Default, Kind};
use crate::texts;

pub(super) const TLS: Block = Block {
    name: "tls",
    help: "Clients of this address speak TLS (https). At least one `certificate`. Without this block they don't. One at most.",
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
            "Refuse clients that ask for a name that no certificate has, or for none. Otherwise they get the first certificate.",
        ),
        row(
            "tickets",
            Kind::Flag,
            Default::Is("#true"),
            "Clients may resume a session for 12 hours, which is cheaper. With `client-auth` they never do.",
        ),
        row(
            "ticket-keys",
            Kind::Or("auto", &Kind::Text("a path", texts::forward::file)),
            Default::Is("auto"),
            "Keys that tickets are sealed with, for several weirs whose clients resume sessions with any of them, at listeners of the same port and the same names: a key a line, 80 bytes in base64, the newest last. The last three open tickets, the last but one seals them. Read again when it changes. `auto`: keys of this process alone, new every 6 hours.",
        ),
        row(
            "client-auth",
            Kind::Word(&["off", "optional", "require"]),
            Default::Is("off"),
            "Whether clients show a certificate. What they show must be good; with `require` who shows none is refused, too.",
        ),
        row(
            "client-ca",
            Kind::Text("a path", texts::forward::file),
            Default::Absent,
            "Who may have signed certificates of clients: certificates of CAs in PEM. With `client-auth` it must be there. Read again when it changes.",
        ),
        row(
            "client-crl",
            Kind::Text("a path", texts::forward::file),
            Default::Absent,
            "Which certificates of clients were revoked: lists (CRL) in PEM, or one in DER. Then every CA in a client's chain must have one that is in time. Read again when it changes. Without this option nobody looks.",
        ),
        row(
            "client-cert-field",
            Kind::Flag,
            Default::Is("#false"),
            "Tell servers the certificate that a client has shown, in `Client-Cert` (RFC 9440). What clients of any address say in this field and in `Client-Cert-Chain` is removed then.",
        ),
        row(
            "handshake-timeout",
            TIMEOUT,
            Default::Is("10s"),
            "From the accept to the end of the handshake; over it the connection is closed.",
        ),
    ],
    blocks: &[CERTIFICATE],
    repeats: true,
    ..BLOCK
};

pub(super) const TO_SERVERS: Block = Block {
    name: "tls",
    help: "Connections to these servers speak TLS (https), 1.2 or 1.3. Without this block they don't. One at most. Files are read again when they change.",
    options: &[
        row(
            "verify",
            Kind::Flag,
            Default::Is("#true"),
            "Servers must have a certificate for `name`, signed by one of `ca`. Without this whoever is between reads and changes everything.",
        ),
        row(
            "ca",
            Kind::Or("system", &Kind::Text("a path", texts::forward::file)),
            Default::Is("system"),
            "Who may have signed it: certificates of CAs in PEM, or those that the system trusts, as they are at the start.",
        ),
        row(
            "name",
            Kind::Text("a host name or an address", texts::peer_name),
            Default::Absent,
            "What the certificates of all these servers must be for, and what is asked for (SNI). Without this option it is the host of each `server` as it stands there. An IP address must be in the certificate, and is not asked for.",
        ),
        row(
            "certificate",
            Kind::Text("a path", texts::forward::file),
            Default::Absent,
            "What weir shows to servers that ask who it is: a chain in PEM, the certificate itself first.",
        ),
        row(
            "key",
            Kind::Text("a path", texts::forward::file),
            Default::Absent,
            "Its private key in PEM, not encrypted. Without this option it is in `certificate`.",
        ),
    ],
    repeats: true,
    ..BLOCK
};

const CERTIFICATE: Block = Block {
    name: "certificate",
    help: "A certificate with its key. Its own names say which clients get it; of two with the same names they get the one whose kind of key they understand, ECDSA first. Both files are read again when they change.",
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
            "The private key in PEM, not encrypted. Without this option it is in `file`.",
        ),
        row(
            "ocsp",
            Kind::Text("a path", texts::forward::file),
            Default::Absent,
            "An OCSP response in DER, which clients get with the certificate while it is about it and in time. Read again when it changes; weir fetches none.",
        ),
    ],
    repeats: true,
    ..BLOCK
};
