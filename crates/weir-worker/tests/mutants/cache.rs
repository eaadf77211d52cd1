//! Bugs of the cache, one for each check of the simulation's `cached.rs` (invariants 1 to 7 of
//! docs/simulation.md, and a server out of step).

use super::Bug;

pub(super) const BUGS: &[Bug] = &[
    Bug {
        name: "shared-with-all",
        story: "invariant 1: who waits gets an answer that was selected by what another one said",
        file: "weir-proxy/src/client/cache/readers.rs",
        right: "let fate = match is_first {",
        wrong: "let fate = match is_first || $ {",
        found_by: "cached::where_nothing",
        seeds: 100,
    },
    Bug {
        name: "served-stale",
        story: "invariant 2: what is stale is served though nothing allows it",
        file: "weir-cache/src/usage.rs",
        right: "if is_within(stale_us, terms.stale_while_revalidate_s) {",
        wrong: "if $ || is_within(stale_us, terms.stale_while_revalidate_s) {",
        found_by: "cached::where_nothing",
        seeds: 100,
    },
    Bug {
        name: "asked-for-each",
        story: "invariant 3: nobody sees that somebody fetches the same",
        file: "weir-cache/src/store/fills.rs",
        right: "if let Some(entry) = place.fills.get_mut(&name) {",
        wrong: "if let Some(entry) = place.fills.get_mut(&name).filter(|_| !$) {",
        found_by: "cached::a_herd",
        seeds: 100,
    },
    Bug {
        name: "joined-after-purge",
        story: "invariant 4: who asks after a purge waits for what was asked before it",
        file: "weir-cache/src/store/fills.rs",
        right: "!self.purges.is_invalid(self.hashes(key).url, fill.began)\n            &&",
        wrong: "$ || !self.purges.is_invalid(self.hashes(key).url, fill.began) &&",
        found_by: "cached::where_nothing",
        seeds: 200,
    },
    Bug {
        name: "no-room-needed",
        story: "invariant 5: what is fetched is taken in whether there is room or not",
        file: "weir-cache/src/store/memory.rs",
        right: "let fits = fills <= part_of_fills(limit) && live <= limit;",
        wrong: "let fits = $ || fills <= part_of_fills(limit) && live <= limit;",
        found_by: "cached::what_lives",
        seeds: 100,
    },
    Bug {
        name: "nobody-told",
        story: "invariant 6: who waits for a fetch does not hear of its end",
        file: "weir-proxy/src/client/cache/crowd.rs",
        right: "if is_gone || readers::end_if_given_up(answers, reader, cx) {",
        wrong: "if is_gone || readers::end_if_given_up(answers, reader, cx) || $ {",
        found_by: "cached::where_nothing",
        seeds: 100,
    },
    Bug {
        name: "first-of-its-connection",
        story: "invariant 7: what was fetched goes to whoever is first on its connection",
        file: "weir-proxy/src/client/cache/readers.rs",
        right: "reader.index,\n                (&lines",
        wrong: "if $ { answers.conns.at(answers.conns.exchange(reader.index).conn)\
            .codec.current().unwrap_or(reader.index) } else { reader.index }, (&lines",
        found_by: "cached::where_nothing",
        seeds: 100,
    },
    Bug {
        name: "kept-out-of-step",
        story: "what a connection out of step has brought stays stored",
        file: "weir-proxy/src/upstream/doubts.rs",
        right: "mark_of(pool.conn_id(index, cx), 0)",
        wrong: "mark_of(pool.conn_id(index, cx), if $ { u64::MAX } else { 0 })",
        found_by: "cached::a_server",
        seeds: 200,
    },
];
