//! Bugs that make one client that sends without end harm the others, for `floods.rs` of the
//! simulation and the suite of all drivers.

use super::Bug;

pub(super) const BUGS: &[Bug] = &[
    Bug {
        name: "input-overlooked",
        story: "input that is being parsed is overlooked, so that a client is read although more \
            waits than may (and see the next)",
        file: "weir-proxy/src/client/input.rs",
        right: "self.lent + self.bytes.len() - self.start",
        wrong: "(if $ { 0 } else { self.lent }) + self.bytes.len() - self.start",
        found_by: "floods::",
        seeds: 100,
    },
    Bug {
        name: "input-overlooked",
        story: "the same: each change of how a socket is read is carried out at once, not the last \
            of a turn (either alone is harmless)",
        file: "weir-io/src/sim/commands.rs",
        right: "        if state.wanted.replace(how).is_none() {\n            \
            self.drivers[driver].changed.push(socket);\n        }\n",
        wrong: "        if state.wanted.replace(how).is_none() {\n            \
            self.drivers[driver].changed.push(socket);\n        }\n        if $ { \
            super::completions::carry_out_changes(self, driver); }\n",
        found_by: "floods::",
        seeds: 100,
    },
    Bug {
        name: "every-wish",
        story: "a socket that is switched on and off again in one turn is received",
        file: "weir-io/src/uring/mod.rs",
        right: "        self.change(socket);\n    }\n\n    fn defer(",
        wrong: "        if $ { self.reconcile(socket); }\n        self.change(socket);\n    }\n\
            \n    fn defer(",
        found_by: "drivers::only_the_last_change_counts",
        seeds: 1,
    },
    Bug {
        name: "behind-the-greedy",
        story: "a socket that waits for a buffer is served behind those that are switched on",
        file: "weir-io/src/uring/mod.rs",
        right: "        self.feed(Class::Small);\n        self.feed(Class::Large);\n",
        wrong: "        if $ { self.carry_out_changes(); }\n        \
            self.feed(Class::Small);\n        self.feed(Class::Large);\n",
        found_by: "drivers::scarce_buffers_go_round",
        seeds: 1,
    },
    Bug {
        name: "behind-the-greedy",
        story: "the same: what is switched on takes buffers that others wait for",
        file: "weir-io/src/uring/operations.rs",
        right: "others_wait && !slot.has(DRAINED)",
        wrong: "others_wait && !slot.has(DRAINED) && !$",
        found_by: "drivers::scarce_buffers_go_round",
        seeds: 1,
    },
];
