//! Counts steps of work in tests, which bound them where a time would depend on the machine.
//! Otherwise it does nothing.
//!
//! A step is a look at a block or a comparison of two names. Called by `difference`, `check` and
//! `compile`.

#[cfg(test)]
thread_local! {
    static COUNTED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts this many steps of this thread.
#[inline]
pub(crate) fn add(count: usize) {
    #[cfg(test)]
    COUNTED.with(|counted| counted.set(counted.get() + count));
    #[cfg(not(test))]
    let _ = count;
}

/// Returns the steps of this thread so far.
#[cfg(test)]
pub(crate) fn counted() -> usize {
    COUNTED.with(std::cell::Cell::get)
}

#[cfg(test)]
mod tests {
    //! Proves: the work to read a configuration and to compare two grows with the number of blocks,
    //! not with its square, whichever list is long and whatever differs in it. How: each list with
    //! thousands of blocks; steps are counted.

    use super::counted;
    use crate::{Tree, parse};

    /// Blocks of each list.
    const MANY: usize = 5_000;

    /// A list: a document from its lines, and line number `at` in one of two forms.
    struct List {
        document: fn(&[String]) -> String,
        line: fn(usize, u8) -> String,
        /// Lines of a difference when each has the other form: a changed block without a key is
        /// removed and added.
        changes: usize,
    }

    fn routes(lines: &[String]) -> String {
        format!(
            "listen \"127.0.0.1:1\"\nupstream \"app\" {{ server \"127.0.0.1:1\"; }}\n{}\n",
            lines.join("\n")
        )
    }

    const LISTS: [List; 6] = [
        List {
            document: |lines| format!("{}\nroute {{ respond 204; }}\n", lines.join("\n")),
            line: |at, form| {
                format!(
                    "listen \"127.0.{}.{}:80\" backlog={}",
                    at / 250,
                    at % 250,
                    100 + u32::from(form)
                )
            },
            changes: MANY,
        },
        List {
            document: |lines| {
                format!("listen \"127.0.0.1:1\"\n{}\nroute {{ respond 204; }}\n", lines.join("\n"))
            },
            line: |at, form| {
                format!(
                    "upstream \"u{at}\" {{ server \"127.0.0.1:1\" weight={}; server \
                        \"127.0.0.1:2\"; }}",
                    10 + form
                )
            },
            changes: MANY,
        },
        List {
            document: |lines| {
                let lines = lines.join("\n");
                format!(
                    "listen \"127.0.0.1:1\"\nupstream \"app\" {{\n{lines}\n}}\n\
                        route {{ proxy \"app\"; }}\n"
                )
            },
            line: |at, form| {
                format!("server \"127.0.{}.{}:80\" weight={}", at / 250, at % 250, 10 + form)
            },
            changes: MANY,
        },
        List {
            document: routes,
            line: |at, form| {
                format!(
                    "route path=\"/{at}\" pool=\"shared\" {{ proxy \"app\"; request {{ set \"X-A\" \
                        \"{form}\"; }}; }}"
                )
            },
            changes: 2 * MANY,
        },
        // All at one place, distinguished by their methods.
        List {
            document: routes,
            line: |at, form| {
                format!(
                    "route methods=\"M{at}\" {{ proxy \"app\"; request {{ set \"X-A\" \"{form}\"; \
                        }}; }}"
                )
            },
            changes: 2 * MANY,
        },
        // Each with its own upstream, which is a fallback of others.
        List {
            document: |lines| format!("listen \"127.0.0.1:1\"\n{}\n", lines.join("\n")),
            line: |at, form| {
                let end = at / 8 * 8;
                let fallback =
                    if at == end { String::new() } else { format!("fallback \"u{end}\"; ") };
                format!(
                    "upstream \"u{at}\" {{ {fallback}server \"127.0.0.1:1\" weight={}; server \
                     \"127.0.0.1:2\"; }}\n\
                     route host=\"h{at}.test\" {{ proxy \"u{at}\"; }}",
                    10 + form
                )
            },
            changes: MANY,
        },
    ];

    /// Reads a document; returns the number of steps as well.
    fn read(list: &List, lines: &[String]) -> (Tree, usize) {
        let (text, before) = ((list.document)(lines), counted());
        let config = parse(&text, "weir.kdl").unwrap_or_else(|errors| panic!("{errors}"));
        (config.tree, counted() - before)
    }

    fn assert_few(done: usize, what: &str) {
        assert!(done <= 100 * MANY, "{what}: {done} steps for {MANY} blocks");
    }

    #[test]
    fn work_grows_with_the_number_of_blocks() {
        for (number, list) in LISTS.into_iter().enumerate() {
            let base: Vec<String> = (0..MANY).map(|at| (list.line)(at, 0)).collect();
            let (old, done) = read(&list, &base);
            assert_few(done, &format!("reading list {number}"));
            let reversed: Vec<String> = base.iter().rev().cloned().collect();
            let in_front =
                std::iter::once((list.line)(MANY, 0)).chain(base.iter().cloned()).collect();
            let changed = (0..MANY).map(|at| (list.line)(at, 1)).collect();
            let per_line = if number == 5 { 2 } else { 1 };
            let all = [(reversed, 0), (in_front, per_line), (changed, list.changes)];
            for (lines, changes) in all {
                let (new, _) = read(&list, &lines);
                let before = counted();
                let found = old.difference(&new);
                assert_few(counted() - before, &format!("comparing list {number}"));
                assert_eq!(
                    found.len(),
                    changes,
                    "list {number}: {:?}",
                    &found[..found.len().min(3)]
                );
            }
        }
    }

    /// A problem in each block costs no more.
    #[test]
    fn unknown_names_are_few_steps() {
        let text: Vec<String> = (0..MANY)
            .map(|at| {
                format!(
                    "upstream \"u{at}\" {{ server \"127.0.0.1:1\"; }}\n\
                    route path=\"/{at}\" {{ proxy \"x{at}\"; }}"
                )
            })
            .collect();
        let before = counted();
        let errors = parse(&format!("listen \"127.0.0.1:1\"\n{}\n", text.join("\n")), "weir.kdl")
            .unwrap_err();
        assert_eq!(errors.count(), MANY);
        let done = counted() - before;
        assert!(done <= (100 + crate::PROBLEMS_MAX) * MANY, "{done} steps");
    }
}
