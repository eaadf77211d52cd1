//! Differences between two checked trees, a line for each block or option in the words of the
//! configuration. `weir reload` logs them, and `weir reload --dry-run` prints them.
//!
//! A block that may repeat is also identified by the value directly behind its word
//! (`server "10.0.0.1:9090"`). If a key occurs more than once (routes), equal blocks are paired,
//! and a changed block counts as one removed and one added. Defaults are compared as if they were
//! written. Bound: each block is looked at a fixed number of times for each level of nesting,
//! however many others are beside it; a test counts.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::check::{Checked, Chosen};
use crate::print::values;
use crate::steps;

/// Values that must not leave the file.
const SECRETS: [&str; 1] = ["secret"];

/// Returns the differences from the first to the second.
pub(crate) fn lines(old: &Checked, new: &Checked) -> Vec<String> {
    let mut lines = Vec::new();
    blocks(old, new, "", "", &mut lines);
    lines
}

/// `outside` names the blocks around, `here` this one.
fn blocks(old: &Checked, new: &Checked, outside: &str, here: &str, lines: &mut Vec<String>) {
    steps::add(1);
    options(old, new, &format!("{outside}~ {here}"), lines);
    let inside = format!(
        "{outside}{}",
        here.trim_end().to_owned() + if here.is_empty() { "" } else { ": " }
    );
    for block in old.block.blocks {
        let [before, after] = [old, new].map(|checked| checked.all(block.name).collect::<Vec<_>>());
        let Mates { of_new, gone } = Mates::new(&before, &after);
        lines.extend(gone.iter().map(|at| format!("{inside}- {}", written(before[*at]))));
        for (one, mate) in after.iter().zip(of_new) {
            match mate {
                Mate::Known(at) => {
                    blocks(before[at], one, &inside, &format!("{} ", key(one)), lines)
                }
                Mate::Same => {}
                Mate::Missing => lines.push(format!("{inside}+ {}", written(one))),
            }
        }
    }
}

/// Lists options with changed values; `begin` is the start of their lines.
fn options(old: &Checked, new: &Checked, begin: &str, lines: &mut Vec<String>) {
    for row in old.block.rows() {
        let [before, after] = [old, new]
            .map(|checked| checked.options.iter().find(|chosen| chosen.row.name == row.name));
        if before.map(values) != after.map(values) {
            let [before, after] =
                [before, after].map(|chosen| chosen.map_or_else(|| "none".to_owned(), shown));
            lines.push(format!("{begin}{} {before} -> {after}", row.name));
        }
    }
}

/// The counterpart in the old tree of a block of the new one.
#[derive(Clone, Copy)]
enum Mate {
    /// The block of this index, the only one of its key on both sides.
    Known(usize),
    /// An equal block.
    Same,
    /// None.
    Missing,
}

/// The pairs of blocks with one name.
struct Mates {
    /// By block of the new tree.
    of_new: Vec<Mate>,
    /// Indices of old blocks that the new tree does not have, ascending.
    gone: Vec<usize>,
}

impl Mates {
    fn new(before: &[&Checked], after: &[&Checked]) -> Mates {
        let mut mates = Mates { of_new: vec![Mate::Missing; after.len()], gone: Vec::new() };
        let mut keys: HashMap<String, [Vec<usize>; 2]> = HashMap::new();
        for (side, blocks) in [before, after].into_iter().enumerate() {
            blocks
                .iter()
                .enumerate()
                .for_each(|(at, one)| keys.entry(key(one)).or_default()[side].push(at));
        }
        for [old, new] in keys.into_values() {
            match (&old[..], &new[..]) {
                ([old], [new]) => mates.of_new[*new] = Mate::Known(*old),
                (_, []) => mates.gone.extend(old),
                ([], _) => {}
                _ => mates.pair_same(before, after, [old, new]),
            }
        }
        mates.gone.sort_unstable();
        mates
    }

    /// Pairs equal blocks of one key, each with one.
    fn pair_same(&mut self, before: &[&Checked], after: &[&Checked], [old, new]: [Vec<usize>; 2]) {
        let mut wholes: HashMap<String, Vec<usize>> = HashMap::new();
        old.into_iter().for_each(|at| wholes.entry(whole(before[at])).or_default().push(at));
        for at in new {
            if wholes.get_mut(&whole(after[at])).and_then(Vec::pop).is_some() {
                self.of_new[at] = Mate::Same;
            }
        }
        self.gone.extend(wholes.into_values().flatten());
    }
}

/// Returns the whole content of a block, including the blocks inside: the same for two equal
/// blocks.
fn whole(checked: &Checked) -> String {
    steps::add(1);
    let mut text = heading(checked);
    checked
        .options
        .iter()
        .for_each(|chosen| text.extend(["\n", chosen.row.name, "\n", &values(chosen)]));
    checked.blocks.iter().for_each(|block| text.extend(["\n{", &whole(block), "\n}"]));
    text
}

/// Whether anything of a block was written.
fn is_written(checked: &Checked) -> bool {
    checked.options.iter().any(|chosen| chosen.span.is_some())
        || checked.blocks.iter().any(is_written)
}

/// Returns the key of a block: its word, and the value directly behind it if the block may repeat.
fn key(checked: &Checked) -> String {
    steps::add(1);
    if checked.block.repeats { heading(checked) } else { checked.block.name.to_owned() }
}

/// Returns the word of a block and the value directly behind it.
fn heading(checked: &Checked) -> String {
    let named_by = if checked.block.by_word { "" } else { checked.block.name };
    let positional =
        |chosen: &&Chosen| checked.block.positional.iter().any(|row| row.name == chosen.row.name);
    let words = checked.options.iter().filter(positional).map(values);
    std::iter::once(named_by.to_owned())
        .chain(words)
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Returns a block on one line, as far as it was written.
fn written(checked: &Checked) -> String {
    let mut out = heading(checked);
    let positional =
        |chosen: &Chosen| checked.block.positional.iter().any(|row| row.name == chosen.row.name);
    let named =
        checked.options.iter().filter(|chosen| chosen.span.is_some() && !positional(chosen));
    let (mut inside, is_short) = (Vec::new(), checked.blocks.is_empty());
    for chosen in named {
        if is_short && chosen.settings.len() == 1 {
            let _ = write!(out, " {}={}", chosen.row.name, shown(chosen));
        } else {
            inside.push(format!("{} {}", chosen.row.name, shown(chosen)));
        }
    }
    inside.extend(checked.blocks.iter().filter(|block| is_written(block)).map(written));
    if !inside.is_empty() {
        let _ = write!(out, " {{ {} }}", inside.join("; "));
    }
    out
}

fn shown(chosen: &Chosen) -> String {
    if SECRETS.contains(&chosen.row.name) { "***".to_owned() } else { values(chosen) }
}

#[cfg(test)]
mod tests {
    //! Proves: each kind of change is one line that says what and where, and without a change the
    //! list is empty. How: pairs of texts. Amount of work: `steps`.

    use crate::parse;

    /// Returns the lines between two texts that both have this beginning.
    fn between(old: &str, new: &str) -> Vec<String> {
        let [old, new] = [old, new]
            .map(|text| parse(text, "weir.kdl").unwrap_or_else(|errors| panic!("{errors}")).tree);
        old.difference(&new)
    }

    #[test]
    fn each_change_is_a_line() {
        let text = |more: &str, servers: &str, routes: &str| {
            format!(
                "listen \"127.0.0.1:8080\"\n{more}\nupstream \"app\" {{ {servers} }}\n{routes}\n"
            )
        };
        let (a, b, all) = (
            "server \"127.0.0.1:1\"",
            "server \"127.0.0.1:2\" weight=80",
            "route { proxy \"app\" }",
        );
        let base = text("", a, all);
        assert_eq!(between(&base, &base), Vec::<String>::new());
        for (new, expected) in [
            (text("workers 3", a, all), "~ workers auto -> 3"),
            (
                text("", &format!("{a}; {b}"), all),
                "upstream \"app\": + server \"127.0.0.1:2\" weight=80",
            ),
            (
                text("", "server \"127.0.0.1:1\" weight=80", all),
                "upstream \"app\": ~ server \"127.0.0.1:1\" weight 50 -> 80",
            ),
            (text("client { head-timeout \"1s\" }", a, all), "~ client head-timeout 10s -> 1s"),
            (
                text("", &format!("{a}; queue-size 7"), all),
                "~ upstream \"app\" queue-size 1000 -> 7",
            ),
            (text("listen \"127.0.0.1:8081\"", a, all), "+ listen \"127.0.0.1:8081\""),
            (
                text("upstream \"b\" { server \"127.0.0.1:3\"; }", a, all),
                "+ upstream \"b\" { server \"127.0.0.1:3\" }",
            ),
        ] {
            assert_eq!(
                between(&base, &new).iter().map(|line| line.replace('"', "")).collect::<Vec<_>>(),
                [expected.replace('"', "")]
            );
            let back = between(&new, &base);
            assert_eq!(back.len(), 1, "{back:?}");
        }
    }

    #[test]
    fn routes_come_and_go_and_secrets_stay() {
        let text = |route: &str, secret: &str| {
            format!(
                "listen \"127.0.0.1:8080\"\n\
                 upstream \"app\" {{ server \"127.0.0.1:1\"; server \"127.0.0.1:2\"; sticky \
                 cookie=\"c\" secret=\"{secret}\" }}\n\
                 route path=\"/a\" {{ proxy \"app\" }}\n{route}\n"
            )
        };
        let secrets = ["the-first-of-them-is-long", "the-second-of-them-is-long"];
        let lines = between(
            &text("route { proxy \"app\" }", secrets[0]),
            &text("route host=\"b\" { proxy \"app\" }", secrets[1]),
        );
        assert!(lines.iter().any(|line| line.starts_with("- route")), "{lines:?}");
        assert!(
            lines.iter().any(|line| line.starts_with("+ route") && line.contains("host=\"b\"")),
            "{lines:?}"
        );
        assert!(lines.iter().any(|line| line.ends_with("secret *** -> ***")), "{lines:?}");
        assert!(
            !lines.iter().any(|line| secrets.iter().any(|secret| line.contains(secret))),
            "{lines:?}"
        );
    }

    #[test]
    fn blocks_that_are_there_twice_are_counted() {
        // Routes with conditions may occur twice.
        let route = "route { header \"x-a\" eq=\"1\"; proxy \"app\" }\n";
        let text = |count: usize| {
            let rest = "listen \"127.0.0.1:8080\"\nupstream \"app\" { server \"127.0.0.1:1\" }\n\
                route { proxy \"app\" }\n";
            format!("{rest}{}", route.repeat(count))
        };
        for (before, after, sign) in [(2, 1, '-'), (1, 3, '+'), (0, 2, '+')] {
            let lines = between(&text(before), &text(after));
            assert_eq!(lines.len(), before.abs_diff(after), "{lines:?}");
            assert!(lines.iter().all(|line| line.starts_with(sign)), "{lines:?}");
        }
        assert_eq!(between(&text(3), &text(3)), Vec::<String>::new());
    }
}
