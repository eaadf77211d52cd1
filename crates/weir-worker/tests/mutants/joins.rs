//! Bugs of connections that begin before their clients are accepted, for `joins.rs` of the
//! simulation.

use super::Bug;

pub(super) const BUGS: &[Bug] = &[
    Bug {
        name: "never-abandoned",
        story: "a connection waits for a client who does not come",
        file: "weir-worker/src/prepared.rs",
        right: "extract_if(|_, ready| ready.until_us <= now_us)",
        wrong: "extract_if(|_, ready| ready.until_us <= now_us && !$)",
        found_by: "joins::parties",
        seeds: 100,
    },
    Bug {
        name: "joined-with-the-past",
        story: "a client whose first packet was lost is joined with what was begun for it, and \
            is over",
        file: "weir-worker/src/prepared.rs",
        right: "!self.is_early\n                || now_us",
        wrong: "$ || !self.is_early || now_us",
        found_by: "joins::a_client",
        seeds: 200,
    },
    Bug {
        name: "late-for-the-past",
        story: "the same where whoever saw the packet the first time was late",
        file: "weir-worker/src/prepared.rs",
        right: ".saturating_sub(ready.since_us) < FRESH_US",
        wrong: ".saturating_sub(ready.since_us) < FRESH_US + if $ { 100_000 } else { 0 }",
        found_by: "joins::a_client",
        seeds: 400,
    },
    Bug {
        name: "waits-for-nobody",
        story: "what was joined counts as waiting",
        file: "weir-worker/src/prepared.rs",
        right: "if ready.is_some() {\n",
        wrong: "if ready.is_some() && !$ {\n",
        found_by: "joins::parties",
        seeds: 100,
    },
    Bug {
        name: "refused-in-order",
        story: "whoever's server refuses or resets hears an end in order",
        file: "weir-proxy/src/tcp.rs",
        right: "let reset = why != FlowEnd::Done;",
        wrong: "let reset = why != FlowEnd::Done && !$;",
        found_by: "joins::a_client",
        seeds: 100,
    },
];
