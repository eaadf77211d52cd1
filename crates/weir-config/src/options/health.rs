//! The rows of `health`. Part of the option table.

use super::{DAY, TIMEOUT, row};
use crate::schema::{BLOCK, Block, Default, Kind};
use crate::texts;

pub(super) const HEALTH: Block = Block {
    name: "health",
    help: "Probes of each server, by one worker, on separate connections. Without this block weir \
        makes none. At most one. For an upstream of `tcp` a probe is a connect, and only its times \
        can be chosen.",
    positional: &[],
    options: &[
        row(
            "path",
            Kind::Text("a path", texts::probe_path),
            Default::Is("/"),
            "The path that probes request. weir makes no probe while clients get good responses to \
                exactly that request.",
        ),
        row(
            "method",
            Kind::Word(&["GET", "HEAD", "OPTIONS"]),
            Default::Is("GET"),
            "The method of probes.",
        ),
        row(
            "host",
            Kind::Or("server", &Kind::Text("a host, perhaps with a port", texts::probe_host)),
            Default::Is("server"),
            "The Host field of the probe. `server`: the address of the server, as written; for a \
                unix socket `localhost`.",
        ),
        row(
            "expect-status",
            Kind::Text(
                "a status such as 204, a class such as 2xx, or a range such as 200-299",
                texts::codes,
            ),
            Default::Is("200-399"),
            "Statuses of good responses.",
        ),
        row(
            "expect-body",
            Kind::Or("any", &Kind::Text("a text, or sha256:DIGEST", texts::probe_text)),
            Default::Is("any"),
            "What a good response contains within its first 64 KiB, or `sha256:` and 64 \
                hexadecimal digits: what `sha256sum` says of its body. With a text or a digest, \
                weir makes every probe.",
        ),
        row(
            "interval",
            Kind::Time(100_000, DAY),
            Default::Is("10s"),
            "Time between two probes, a tenth less or more.",
        ),
        row(
            "timeout",
            TIMEOUT,
            Default::Is("5s"),
            "How long a probe may take, including its connect.",
        ),
        row(
            "rise",
            Kind::Count(1, 100),
            Default::Is("2"),
            "Good probes in a row that bring a suspended server back.",
        ),
        row(
            "fall",
            Kind::Count(1, 100),
            Default::Is("3"),
            "Failed probes in a row that suspend a server. From the first failed one on, weir \
                probes every second.",
        ),
    ],
    blocks: &[],
    repeats: true,
    ..BLOCK
};
