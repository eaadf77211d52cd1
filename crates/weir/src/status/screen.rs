//! The screen of `weir status --watch`, and its keys: a fixed head, rows that can be sorted and
//! scrolled, a line with help. Pure: document, view and size -> lines. Called by `watch`.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::table::Tone;

/// The watched data, as lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Page {
    /// Always visible.
    pub(crate) head: Vec<String>,
    /// The part that scrolls.
    pub(crate) body: Vec<String>,
    /// Whether the order of the body can be chosen.
    pub(crate) sorted: bool,
}

/// The order of servers that are equally sick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Sort {
    /// As in the configuration.
    #[default]
    Configured,
    /// Most requests a second.
    Rate,
    /// Most requests in flight.
    Busy,
    /// Most requests without a connection.
    Waiting,
    /// Slowest at the 99th percentile.
    Slow,
    /// Most 5xx responses.
    Failures,
}

impl Sort {
    /// With their keys and names.
    pub(crate) const ALL: [(char, Sort, &'static str); 6] = [
        ('c', Sort::Configured, "config"),
        ('r', Sort::Rate, "req/s"),
        ('b', Sort::Busy, "busy"),
        ('w', Sort::Waiting, "wait"),
        ('p', Sort::Slow, "p99"),
        ('e', Sort::Failures, "5xx"),
    ];
}

/// The user's view of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct View {
    pub(crate) sort: Sort,
    /// Lines of the body above the first visible one; may be too many until [`View::frame`] has
    /// seen the body.
    top: usize,
    /// Visible lines of the body in the last frame.
    shown: usize,
}

/// The effect of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Another view.
    Look,
    /// The end.
    End,
    /// Stop as with Ctrl-Z.
    Stop,
    /// Nothing.
    Nothing,
}

impl View {
    /// Handles a key.
    pub(crate) fn press(&mut self, key: KeyEvent) -> Wish {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c' | 'd') => Wish::End,
                KeyCode::Char('z') => Wish::Stop,
                _ => Wish::Nothing,
            };
        }
        let page = self.shown.max(2) - 1;
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Wish::End,
            KeyCode::Up | KeyCode::Char('k') => self.top = self.top.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.top += 1,
            KeyCode::PageUp => self.top = self.top.saturating_sub(page),
            KeyCode::PageDown | KeyCode::Char(' ') => self.top += page,
            KeyCode::Home | KeyCode::Char('g') => self.top = 0,
            KeyCode::End | KeyCode::Char('G') => self.top = usize::MAX / 2,
            KeyCode::Char(typed) => match Sort::ALL.iter().find(|(key, ..)| *key == typed) {
                Some((_, sort, _)) => (self.sort, self.top) = (*sort, 0),
                None => return Wish::Nothing,
            },
            _ => return Wish::Nothing,
        }
        Wish::Look
    }

    /// Returns the lines for a terminal of this size, none wider, and no more than fit. `away`: why
    /// the data is old.
    pub(crate) fn frame(
        &mut self,
        page: &Page,
        size: (usize, usize),
        away: Option<&str>,
        colour: bool,
    ) -> Vec<String> {
        let (columns, rows) = size;
        let mut lines = Vec::new();
        if let Some(why) = away {
            lines.push(Tone::Bad.paint(&clip(why, columns), colour));
        }
        // On a low terminal the rows are more important than the head.
        let for_head = rows.saturating_sub(lines.len() + 1 + page.body.len().min(3));
        let skipped = page.head.len().saturating_sub(for_head);
        lines.extend(page.head.iter().skip(skipped).map(|line| clip(line, columns)));
        self.shown = rows.saturating_sub(lines.len() + 1);
        self.top = self.top.min(page.body.len().saturating_sub(self.shown));
        lines.extend(
            page.body.iter().skip(self.top).take(self.shown).map(|line| clip(line, columns)),
        );
        while lines.len() + 1 < rows {
            lines.push(String::new());
        }
        lines.truncate(rows.saturating_sub(1));
        lines.push(clip(&self.bar(page), columns));
        lines
    }

    /// Returns the last line.
    fn bar(&self, page: &Page) -> String {
        let last = (self.top + self.shown).min(page.body.len());
        let place = match page.body.len() {
            all if all > self.shown => format!("{}-{last} of {all}  ", self.top + 1),
            _ => String::new(),
        };
        let sorts = Sort::ALL.map(|(key, sort, name)| {
            if sort == self.sort { format!("[{key} {name}]") } else { format!("{key} {name}") }
        });
        let sorts = if page.sorted { format!("sort {}  ", sorts.join(" ")) } else { String::new() };
        format!("{place}q quits  {sorts}arrows scroll")
    }
}

/// Cuts a line to the width; colours in it take no space.
fn clip(line: &str, columns: usize) -> String {
    let mut out = String::new();
    let (mut wide, mut rest) = (0, line);
    while let Some(first) = rest.chars().next() {
        let end = match rest.find('m').filter(|_| first == '\x1b') {
            Some(end) => end + 1,
            None if wide == columns => {
                return out + if line.contains('\x1b') { "\x1b[0m" } else { "" };
            }
            None => {
                wide += 1;
                first.len_utf8()
            }
        };
        out.push_str(&rest[..end]);
        rest = &rest[end..];
    }
    out
}

#[cfg(test)]
mod tests {
    //! Proves: a frame fits its terminal whatever its size, all of the body can be reached, keys do
    //! what the last line says. How: made-up pages in terminals of all small sizes.

    use super::*;

    fn page(lines: usize) -> Page {
        let body =
            (0..lines).map(|n| format!("row {n} \x1b[31m{}\x1b[0m", "x".repeat(90))).collect();
        Page { head: vec!["head".to_owned(), "COLUMN".to_owned()], body, sorted: true }
    }

    fn press(view: &mut View, code: KeyCode) -> Wish {
        view.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn plain(line: &str) -> String {
        line.replace("\x1b[31m", "").replace("\x1b[0m", "")
    }

    #[test]
    fn a_frame_fits() {
        for (columns, rows, lines) in
            (1..40).flat_map(|n| [(n, 24, 50), (80, n, 50), (80, n, 2), (80, n, 0)])
        {
            let mut view = View::default();
            let frame = view.frame(&page(lines), (columns, rows), Some("away"), true);
            assert_eq!(frame.len(), rows);
            assert!(frame.iter().all(|line| plain(line).chars().count() <= columns), "{frame:?}");
        }
    }

    #[test]
    fn everything_can_be_reached() {
        let (page, mut view) = (page(50), View::default());
        let first = |view: &mut View| {
            plain(&view.frame(&page, (80, 24), None, true)[2])[..7].trim().to_owned()
        };
        let bar = |view: &mut View| view.frame(&page, (80, 24), None, true)[23].clone();
        assert_eq!(
            (first(&mut view), &bar(&mut view)[..12]),
            ("row 0 x".to_owned(), "1-21 of 50  ")
        );
        for (key, expected) in [
            (KeyCode::Up, "row 0 x"),
            (KeyCode::Down, "row 1 x"),
            (KeyCode::PageDown, "row 21"),
            (KeyCode::PageDown, "row 29"),
            (KeyCode::PageUp, "row 9 x"),
            (KeyCode::End, "row 29"),
            (KeyCode::Up, "row 28"),
            (KeyCode::Home, "row 0 x"),
        ] {
            assert_eq!(press(&mut view, key), Wish::Look);
            assert_eq!(first(&mut view), expected, "{key:?}");
        }
        assert_eq!(press(&mut view, KeyCode::End), Wish::Look);
        assert!(bar(&mut view).starts_with("30-50 of 50"));
        // Fewer rows than before.
        assert_eq!(view.frame(&super::tests::page(2), (80, 24), None, true)[2][..5], *"row 0");
    }

    #[test]
    fn keys_choose_the_order_and_the_end() {
        let mut view = View::default();
        for (key, sort, name) in Sort::ALL {
            assert_eq!(press(&mut view, KeyCode::Char(key)), Wish::Look);
            assert_eq!(view.sort, sort);
            let bar = view.frame(&page(1), (80, 24), None, false).pop().unwrap();
            assert!(bar.contains(&format!("[{key} {name}]")), "{bar}");
        }
        assert_eq!(press(&mut view, KeyCode::Char('q')), Wish::End);
        assert_eq!(press(&mut view, KeyCode::Char('x')), Wish::Nothing);
        let control = |key| KeyEvent::new(KeyCode::Char(key), KeyModifiers::CONTROL);
        assert_eq!((view.press(control('c')), view.press(control('z'))), (Wish::End, Wish::Stop));
    }

    #[test]
    fn the_line_of_keys_says_how_to_end_and_to_sort_in_80_columns() {
        let bar = View::default().frame(&page(1000), (80, 23), None, false).pop().unwrap();
        assert!(
            bar.starts_with(
                "1-20 of 1000  q quits  sort [c config] r req/s b busy w wait p p99 e 5xx  "
            ),
            "{bar}"
        );
    }
}
