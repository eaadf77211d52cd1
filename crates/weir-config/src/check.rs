//! Tree + option table -> checked tree with all defaults. Called by `lib`; finds every problem that
//! concerns one block only.
//!
//! Bound: each word of the text is looked up once, in a table of fixed size.

use crate::habits;
use crate::problem::{Problem, Span, nearest};
use crate::schema::{Block, Default, Kind, Row, Setting};
use crate::steps;
use crate::tree::{Entry, Scalar, Value};

/// Up to this many blocks are searched linearly.
const FEW: usize = 32;

/// A block in which every value fits its row and every default is filled in.
#[derive(Debug, Clone)]
pub(crate) struct Checked {
    pub(crate) block: &'static Block,
    /// The place of its first word; the start of the text for a default.
    pub(crate) span: Span,
    /// In the order of the table; absent options are missing here.
    pub(crate) options: Vec<Chosen>,
    /// In the order of the table, then of the text.
    pub(crate) blocks: Vec<Checked>,
}

/// The value of an option.
#[derive(Debug, Clone)]
pub(crate) struct Chosen {
    pub(crate) row: &'static Row,
    /// Its place; None for a default.
    pub(crate) span: Option<Span>,
    /// One, or any number for a list; none when the written value was wrong.
    pub(crate) settings: Vec<Setting>,
}

impl Checked {
    /// Returns the option with this name, if it has a value.
    pub(crate) fn chosen(&self, name: &str) -> Option<&Chosen> {
        debug_assert!(
            self.block.row(name).is_some(),
            "the table of `{}` has no `{name}`",
            self.block.name
        );
        self.options.iter().find(|chosen| chosen.row.name == name)
    }

    /// Returns all blocks with this name.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Checked> {
        let near = if self.blocks.len() > FEW { self.run(name) } else { &self.blocks[..] };
        near.iter().inspect(|_| steps::add(1)).filter(move |checked| checked.block.name == name)
    }

    /// Returns the blocks with this name, which are adjacent because blocks have the order of the
    /// table.
    fn run(&self, name: &str) -> &[Checked] {
        let place = |name: &str| self.block.blocks.iter().position(|block| block.name == name);
        let Some(wanted) = place(name) else { return &[] };
        let begins = |after: usize| {
            self.blocks.partition_point(|one| place(one.block.name).is_some_and(|at| at < after))
        };
        &self.blocks[begins(wanted)..begins(wanted + 1)]
    }

    /// Returns the place of the option, or else of the block.
    pub(crate) fn place(&self, name: &str) -> Span {
        self.chosen(name)
            .and_then(|chosen| chosen.span.clone())
            .unwrap_or_else(|| self.span.clone())
    }
}

/// Checks the entries of a block and fills in defaults. Problems are pushed; wrong values are left
/// out.
pub(crate) fn check(block: &'static Block, entry: &Entry, problems: &mut Vec<Problem>) -> Checked {
    let word = if block.by_word { entry.name.as_str() } else { block.name };
    let mut checker = Checker { block, word, written: Vec::new(), blocks: Vec::new(), problems };
    checker.positional(&entry.values);
    let flag = entry.entries.iter().find(|inner| is_tls_flag(block, inner));
    for inner in &entry.entries {
        match flag {
            Some(flag) if std::ptr::eq(flag, inner) => checker.tls_flag(inner),
            // The message covers the entries that belong to it.
            Some(_) if matches!(inner.name.as_str(), "cert" | "certificate" | "key") => {}
            _ => checker.entry(inner),
        }
    }
    checker.finish(&entry.name_span)
}

/// Whether this is `tls=#true` of a listener, as if TLS needed no certificate.
fn is_tls_flag(block: &Block, entry: &Entry) -> bool {
    let is_flag = || matches!(entry.values[..], [Value { scalar: Scalar::Flag(_), .. }]);
    block.name == "listen"
        && entry.name == "tls"
        && !entry.braces
        && entry.entries.is_empty()
        && is_flag()
}

struct Checker<'a> {
    block: &'static Block,
    /// The word that begins it, as typed.
    word: &'a str,
    /// The written options, right or wrong; no settings for a wrong one.
    written: Vec<(&'static Row, Span, Vec<Setting>)>,
    blocks: Vec<Checked>,
    problems: &'a mut Vec<Problem>,
}

impl Checker<'_> {
    /// Assigns values without a name, in the order of the table.
    fn positional(&mut self, values: &[Value]) {
        let mut left = values;
        if let [status, to] = values
            && self.block.name == "redirect"
            && is_number(&status.scalar)
            && let Scalar::Text(url) = &to.scalar
        {
            let status_text = text_of(&status.scalar);
            let problem = Problem::new(
                "bad-value",
                &status.span,
                "`redirect` takes the URL first; its status is an option",
            );
            self.problems
                .push(problem.help(format!("write `redirect \"{url}\" status={status_text}`")));
            left = &values[1..];
        }
        for row in self.block.positional {
            let [value, ..] = left else { return };
            let (mine, others) = left.split_at(if row.kind.is_list() { left.len() } else { 1 });
            self.option(row, &value.span, mine);
            left = others;
        }
        let before = &values[..values.len() - left.len()];
        left.iter().for_each(|value| self.surplus(value, before));
    }

    fn surplus(&mut self, value: &Value, before: &[Value]) {
        // The first one of a block that begins by its word is that word.
        let names: Vec<_> = self
            .block
            .positional
            .iter()
            .skip(usize::from(self.block.by_word))
            .map(|row| row.name)
            .collect();
        let message = match names[..] {
            [] => format!("`{}` takes no value here", self.word),
            _ => format!("`{}` takes no more values than: {}", self.word, names.join(", ")),
        };
        let problem = Problem::new("surplus-value", &value.span, message);
        let name = before.get(1).map(|value| text_of(&value.scalar));
        let help =
            habits::named(self.block.name, self.word, &text_of(&value.scalar), name.as_deref());
        self.problems.push(match help {
            Some(help) => problem.help(help),
            None => problem,
        });
    }

    fn tls_flag(&mut self, entry: &Entry) {
        let problem = Problem::new(
            "surplus-value",
            &entry.name_span,
            "`tls` in `listen` takes no value and needs a certificate",
        );
        let help = "write `listen \"ADDRESS:PORT\" { tls { certificate \"FILE\" key=\"FILE\"; } }`";
        self.problems.push(problem.help(help));
    }

    fn entry(&mut self, entry: &Entry) {
        if let Some(row) = self.block.row(&entry.name) {
            if entry.braces || !entry.entries.is_empty() {
                let message =
                    format!("`{}` is an option: it takes a value, not a block", entry.name);
                self.problems.push(Problem::new("not-a-block", &entry.name_span, message));
            }
            self.option(row, &entry.name_span, &entry.values);
        } else if let Some(block) = self.block.blocks.iter().find(|block| block.name == entry.name)
        {
            if !entry.nothing {
                self.inner(block, entry);
            }
        } else if let Some(block) =
            self.block.blocks.iter().find(|block| block.beginnings().contains(&entry.name.as_str()))
        {
            if !entry.nothing {
                let word = Value {
                    scalar: Scalar::Text(entry.name.clone()),
                    span: entry.name_span.clone(),
                };
                let values = std::iter::once(word).chain(entry.values.iter().cloned()).collect();
                self.inner(block, &Entry { values, ..entry.clone() });
            }
        } else {
            self.unknown(entry);
        }
    }

    fn inner(&mut self, block: &'static Block, entry: &Entry) {
        let is_it = |other: &&Checked| other.block.name == block.name;
        if !block.repeats
            && let Some(earlier) = self.blocks.iter().find(is_it)
        {
            let problem = Problem::new(
                "duplicate",
                &entry.name_span,
                format!("`{}` may occur only once", block.name),
            );
            self.problems.push(problem.related(&earlier.span, "first here"));
        }
        self.blocks.push(check(block, entry, self.problems));
    }

    fn unknown(&mut self, entry: &Entry) {
        let place = match self.block.name {
            "" => "at the top of the file".to_owned(),
            name => format!("in `{name}`"),
        };
        let problem = Problem::new(
            "unknown-option",
            &entry.name_span,
            format!("`{}` is not known {place}", entry.name),
        );
        let owners = owners(&entry.name);
        let habit = habits::help(&entry.name, self.block.name, !owners.is_empty());
        let help = match (habit, nearest(&entry.name, self.block.words())) {
            (Some(say), _) => say,
            (None, Some(word)) if owners.is_empty() => format!("did you mean `{word}`?"),
            (None, None) if owners.is_empty() => {
                format!("known here: {}", self.block.words().collect::<Vec<_>>().join(", "))
            }
            _ => format!("`{}` belongs {}", entry.name, owners.join(" or ")),
        };
        self.problems.push(problem.help(help));
    }

    fn option(&mut self, row: &'static Row, span: &Span, values: &[Value]) {
        if let Some((_, earlier, _)) =
            self.written.iter().find(|(other, ..)| other.name == row.name)
        {
            let problem = Problem::new("duplicate", span, format!("`{}` is given twice", row.name));
            self.problems.push(problem.related(earlier, "first here"));
            return;
        }
        let settings = self.settings(row, span, values);
        let place = values.first().map_or(span, |value| &value.span).clone();
        self.written.push((row, place, settings));
    }

    /// Returns the values of one option; none when it is wrong.
    fn settings(&mut self, row: &'static Row, span: &Span, values: &[Value]) -> Vec<Setting> {
        match (row.kind.is_list(), values) {
            (true, _) => values.iter().flat_map(|value| self.items(row, value)).collect(),
            (false, [value]) => self.setting(row, value).into_iter().collect(),
            (false, []) => {
                let message = format!("`{}` needs a value: {}", row.name, row.kind);
                self.problems.push(Problem::new("missing-value", span, message));
                Vec::new()
            }
            (false, [_, surplus, ..]) => {
                let message = format!("`{}` takes one value", row.name);
                self.problems.push(Problem::new("surplus-value", &surplus.span, message));
                Vec::new()
            }
        }
    }

    /// Returns the items of a list: several values, or one text with commas.
    fn items(&mut self, row: &'static Row, value: &Value) -> Vec<Setting> {
        let Scalar::Text(text) = &value.scalar else {
            return self.setting(row, value).into_iter().collect();
        };
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        let values = items
            .map(|item| Value { scalar: Scalar::Text(item.to_owned()), span: value.span.clone() });
        values.collect::<Vec<_>>().iter().filter_map(|item| self.setting(row, item)).collect()
    }

    fn setting(&mut self, row: &'static Row, value: &Value) -> Option<Setting> {
        if value.scalar == Scalar::Broken {
            return None;
        }
        match row.kind.check(&value.scalar) {
            Ok(setting) => Some(setting),
            Err(message) => {
                let problem =
                    Problem::new("bad-value", &value.span, format!("`{}`: {message}", row.name));
                self.problems.push(match habits::instead(row.name, &text_of(&value.scalar)) {
                    Some(help) => problem.help(help),
                    None => problem,
                });
                None
            }
        }
    }

    /// Puts everything into the order of the table, with defaults; reports missing required
    /// options.
    fn finish(mut self, span: &Span) -> Checked {
        let mut options = Vec::new();
        for row in self.block.rows() {
            options.extend(self.chosen(row, span));
        }
        let mut blocks = Vec::new();
        for block in self.block.blocks {
            let (mine, others) = std::mem::take(&mut self.blocks)
                .into_iter()
                .partition(|inner| inner.block.name == block.name);
            self.blocks = others;
            let mine: Vec<Checked> = mine;
            if let (Some((option, words)), Some(first)) = (block.with, mine.first())
                && self.is_one_of(option, words) == Some(false)
            {
                self.without_effect(block.name, "", option, words, &first.span);
            }
            let fits = block
                .with
                .is_none_or(|(option, words)| self.is_one_of(option, words) == Some(true));
            if mine.is_empty() && fits && !block.repeats && !block.needs_something() {
                let entry = Entry { name_span: span.clone(), ..Entry::default() };
                blocks.push(check(block, &entry, self.problems));
            }
            blocks.extend(mine);
        }
        Checked { block: self.block, span: span.clone(), options, blocks }
    }

    fn chosen(&mut self, row: &'static Row, span: &Span) -> Option<Chosen> {
        let is_written = |name: &str| self.written.iter().find(|(other, ..)| other.name == name);
        if let Some((_, place, settings)) = is_written(row.name) {
            let (place, settings) = (place.clone(), settings.clone());
            if let Default::Unless(_, other) = row.default
                && let Some((_, earlier, _)) = is_written(other)
            {
                let problem = Problem::new(
                    "conflict",
                    &place,
                    format!("`{}` and `{other}` exclude each other", row.name),
                );
                let problem = problem.related(&earlier.clone(), "the other is here");
                self.problems.push(problem);
            }
            if let Default::With(other, words, _) = row.default
                && self.is_one_of(other, words) == Some(false)
            {
                self.without_effect(row.name, "", other, words, &place);
            }
            if let Default::Without(other, words, _) = row.default
                && self.is_one_of(other, words) == Some(true)
            {
                self.without_effect(row.name, "not ", other, words, &place);
            }
            if let Default::Given(other, _) = row.default
                && !self.is_written(other)
            {
                let message = format!("`{}` has an effect only with `{other}`", row.name);
                self.problems.push(Problem::new("conflict", &place, message).help("leave it out"));
            }
            return Some(Chosen { row, span: Some(place), settings });
        }
        self.chosen_by_default(row, row.default, span)
    }

    fn without_effect(&mut self, name: &str, not: &str, other: &str, words: &[&str], place: &Span) {
        let wanted = words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or ");
        let message = format!("`{name}` has an effect only when `{other}` is {not}{wanted}");
        self.problems.push(Problem::new("conflict", place, message));
    }

    fn chosen_by_default(
        &mut self,
        row: &'static Row,
        default: Default,
        span: &Span,
    ) -> Option<Chosen> {
        match default {
            Default::With(other, words, default) if self.is_one_of(other, words) == Some(true) => {
                self.chosen_by_default(row, *default, span)
            }
            Default::Without(other, words, default)
                if self.is_one_of(other, words) == Some(false) =>
            {
                self.chosen_by_default(row, *default, span)
            }
            Default::Given(other, default) if self.is_written(other) => {
                self.chosen_by_default(row, *default, span)
            }
            Default::With(..) | Default::Without(..) | Default::Given(..) => None,
            Default::Required => {
                let message = format!("`{}` needs `{}`: {}", self.block.name, row.name, row.kind);
                self.problems.push(Problem::new("missing-value", span, message));
                None
            }
            Default::Unless(_, other) if self.is_written(other) => None,
            Default::Absent => None,
            Default::Beside(text, others, beside) => {
                Some(default_of(row, if self.is_any_written(others) { beside } else { text }))
            }
            Default::Is(text) | Default::Unless(text, _) => Some(default_of(row, text)),
            Default::AtLeast(text, other) => {
                let mut chosen = default_of(row, text);
                let other = self.written.iter().find(|(row, ..)| row.name == other);
                if let (Some(Setting::Count(number)), Some((_, _, settings))) =
                    (chosen.settings.first_mut(), other)
                    && let Some(Setting::Count(written)) = settings.first()
                {
                    *number = (*number).max(*written);
                }
                Some(chosen)
            }
        }
    }
}

impl Checker<'_> {
    fn is_written(&self, name: &str) -> bool {
        self.written.iter().any(|(row, ..)| row.name == name)
    }

    /// Whether one of these options is written; for those with a word, with that value.
    fn is_any_written(&self, others: &[(&str, Option<&str>)]) -> bool {
        others.iter().any(|(name, word)| match word {
            None => self.is_written(name),
            Some(word) => self.is_written(name) && self.is_one_of(name, &[word]) == Some(true),
        })
    }

    /// Whether an option has one of these words, written or by default; None when the written value
    /// is wrong.
    fn is_one_of(&self, name: &str, words: &[&str]) -> Option<bool> {
        let written = self.written.iter().find(|(row, ..)| row.name == name);
        match (written, self.block.row(name).map(|row| row.default)) {
            (Some((_, _, settings)), _) => match settings.first()? {
                Setting::Word(word) => Some(words.contains(word)),
                Setting::Text(text) => Some(words.contains(&text.as_str())),
                _ => Some(false),
            },
            (None, Some(Default::Is(word))) => Some(words.contains(&word)),
            (None, Some(Default::Beside(word, others, beside))) => {
                Some(words.contains(if self.is_any_written(others) { &beside } else { &word }))
            }
            (None, _) => Some(false),
        }
    }
}

/// Returns the default of a row, read like any value; a test reads them all.
pub(crate) fn default_of(row: &'static Row, text: &str) -> Chosen {
    let scalar = match (&row.kind, text) {
        (Kind::Flag, _) => Scalar::Flag(text == "#true"),
        _ => Scalar::Text(text.to_owned()),
    };
    let settings = row.kind.check(&scalar).into_iter().collect();
    Chosen { row, span: None, settings }
}

fn is_number(scalar: &Scalar) -> bool {
    match scalar {
        Scalar::Integer(_) => true,
        Scalar::Text(text) => !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()),
        _ => false,
    }
}

/// Returns a value as text for a message.
fn text_of(scalar: &Scalar) -> String {
    match scalar {
        Scalar::Text(text) => text.clone(),
        Scalar::Integer(number) => number.to_string(),
        Scalar::Float(number) => number.to_string(),
        Scalar::Flag(flag) => format!("#{flag}"),
        _ => String::new(),
    }
}

/// Most blocks that a hint names.
const OWNERS_MAX: usize = 3;

/// Returns the places where a word is known, for a hint: "at the top of the file", "in `listen`".
fn owners(word: &str) -> Vec<String> {
    fn search(block: &'static Block, word: &str, depth: usize, found: &mut Vec<String>) {
        if block.words().any(|known| known == word) {
            let place = match (block.name, block.by_word) {
                ("", _) => "at the top of the file".to_owned(),
                (_, true) => format!("in `{}`", block.beginnings().join("`, `")),
                (name, false) => format!("in `{name}`"),
            };
            if found.len() < OWNERS_MAX && !found.contains(&place) {
                found.push(place);
            }
        }
        // The table is two levels deep; the count only makes that plain.
        block
            .blocks
            .iter()
            .filter(|_| depth < 4)
            .for_each(|inner| search(inner, word, depth + 1, found));
    }
    let mut found = Vec::new();
    search(&crate::options::DOCUMENT, word, 0, &mut found);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::DOCUMENT;

    fn every_row(block: &'static Block, seen: &mut Vec<&'static Row>) {
        seen.extend(block.rows());
        block.blocks.iter().for_each(|inner| every_row(inner, seen));
    }

    #[test]
    fn every_default_is_a_valid_value_and_every_row_has_help() {
        let mut rows = Vec::new();
        every_row(&DOCUMENT, &mut rows);
        assert!(rows.len() > 40);
        for row in rows {
            assert!(row.help.ends_with('.'), "{}", row.name);
            let default = match row.default {
                Default::With(_, _, default)
                | Default::Without(_, _, default)
                | Default::Given(_, default) => *default,
                default => default,
            };
            if let Default::Is(text) | Default::Unless(text, _) | Default::AtLeast(text, _) =
                default
            {
                assert_eq!(default_of(row, text).settings.len(), 1, "{}", row.name);
            }
            if let Default::Beside(text, _, beside) = default {
                assert!(
                    [text, beside].iter().all(|text| default_of(row, text).settings.len() == 1),
                    "{}",
                    row.name
                );
            }
        }
    }

    #[test]
    fn no_word_means_two_things_in_one_block() {
        fn unique(block: &'static Block) {
            let mut words: Vec<_> = block.words().collect();
            words.sort_unstable();
            let count = words.len();
            words.dedup();
            assert_eq!(words.len(), count, "{}", block.name);
            block.blocks.iter().for_each(unique);
        }
        unique(&DOCUMENT);
    }
}
