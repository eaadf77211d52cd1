//! JSON text -> tree. Called by `lib` for files that end in `.json`.
//!
//! The tree is that of `check --print --json`. A member is a node, an array of objects repeats the
//! node, and an array of values is a node with several values. Values without a name in KDL have
//! the name of the option table. serde_json parses; raw values, which borrow from the text, give
//! each value its place. Bound: [`NESTING_MAX`].

use std::fmt;

use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::expand::{Lookup, expand};
use crate::problem::{Problem, Span};
use crate::tree::{Entry, Scalar, Value};

/// Deepest nesting that is read; each level parses its inside again, so the work is this times the
/// text.
const NESTING_MAX: usize = 8;

/// Reads a document, which must be one object.
pub(crate) fn read(text: &str, lookup: Lookup<'_>, problems: &mut Vec<Problem>) -> Vec<Entry> {
    let mut reader = Reader { text, lookup, problems };
    let start = text.len() - text.trim_start().len();
    let whole = start..text.trim_end().len().max(start);
    if !text[whole.clone()].starts_with('{') {
        reader.push(&whole, "a configuration in JSON is one object");
        return Vec::new();
    }
    reader.object(&text[whole], 0)
}

/// Reads an array of objects: an entry with this name for each.
pub(crate) fn read_list(
    text: &str,
    name: &str,
    lookup: Lookup<'_>,
    problems: &mut Vec<Problem>,
) -> Vec<Entry> {
    let mut reader = Reader { text, lookup, problems };
    let whole = text.trim();
    match serde_json::from_str::<&RawValue>(whole) {
        Ok(_) if whole.starts_with('[') => reader.array(name, whole, 0),
        Ok(_) => {
            reader.push(&reader.span(whole), "a list in JSON is an array of objects");
            Vec::new()
        }
        Err(error) => {
            reader.syntax_error(whole, &error);
            Vec::new()
        }
    }
}

struct Reader<'a> {
    text: &'a str,
    lookup: Lookup<'a>,
    problems: &'a mut Vec<Problem>,
}

impl Reader<'_> {
    fn push(&mut self, span: &Span, message: impl Into<String>) {
        self.problems.push(Problem::new("syntax", span, message));
    }

    /// Returns the place of a slice of the text.
    fn span(&self, part: &str) -> Span {
        let start = (part.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        start..start + part.len()
    }

    fn object(&mut self, part: &str, depth: usize) -> Vec<Entry> {
        let mut parser = serde_json::Deserializer::from_str(part);
        let members =
            parser.deserialize_map(Members).and_then(|members| parser.end().map(|()| members));
        match members {
            Ok(members) => members
                .into_iter()
                .flat_map(|(name, value)| self.member(&name, value.get(), depth))
                .collect(),
            Err(error) => {
                self.syntax_error(part, &error);
                Vec::new()
            }
        }
    }

    /// Returns one entry, or one for each object of an array.
    fn member(&mut self, name: &str, part: &str, depth: usize) -> Vec<Entry> {
        let span = self.span(part);
        if depth >= NESTING_MAX {
            self.push(&span, format!("nested deeper than {NESTING_MAX}"));
            return Vec::new();
        }
        match part.as_bytes().first() {
            Some(b'{') => vec![self.block(name, part, depth)],
            Some(b'[') => self.array(name, part, depth),
            _ => {
                let values = self.scalar(part, name).into_iter().collect();
                vec![self.entry(name, &span, values)]
            }
        }
    }

    fn array(&mut self, name: &str, part: &str, depth: usize) -> Vec<Entry> {
        let span = self.span(part);
        let mut parser = serde_json::Deserializer::from_str(part);
        let items = match parser.deserialize_seq(Items) {
            Ok(items) => items,
            Err(error) => {
                self.syntax_error(part, &error);
                return Vec::new();
            }
        };
        let objects = items.iter().filter(|item| item.get().starts_with('{')).count();
        if objects == items.len() && objects > 0 {
            return items.iter().map(|item| self.block(name, item.get(), depth)).collect();
        }
        if objects > 0 {
            let message = "an array holds either objects or values, not both";
            self.problems.push(Problem::new("bad-value", &span, message));
            return Vec::new();
        }
        let values = items.iter().filter_map(|item| self.scalar(item.get(), name)).collect();
        vec![Entry { nothing: items.is_empty(), ..self.entry(name, &span, values) }]
    }

    fn block(&mut self, name: &str, part: &str, depth: usize) -> Entry {
        let span = self.span(part);
        let mut entry = self.entry(name, &(span.start..span.start + 1), Vec::new());
        entry.braces = true;
        entry.entries = self.object(part, depth + 1);
        entry
    }

    /// The name of a member precedes its value: it is at the last `"name"` before it.
    fn entry(&self, name: &str, value: &Span, values: Vec<Value>) -> Entry {
        let quoted = format!("\"{name}\"");
        let name_span = match self.text[..value.start].rfind(&quoted) {
            Some(at) => at..at + quoted.len(),
            None => value.clone(),
        };
        Entry { name: name.to_owned(), name_span, values, ..Entry::default() }
    }

    fn scalar(&mut self, part: &str, option: &str) -> Option<Value> {
        let span = self.span(part);
        let scalar = match serde_json::from_str::<serde_json::Value>(part) {
            Ok(serde_json::Value::Null) => Scalar::Null,
            Ok(serde_json::Value::Bool(flag)) => Scalar::Flag(flag),
            Ok(serde_json::Value::Number(number)) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => Scalar::Integer(number.into()),
                (None, Some(number)) => Scalar::Integer(number.into()),
                (None, None) => Scalar::Float(number.as_f64().unwrap_or(f64::MAX)),
            },
            Ok(serde_json::Value::String(text)) => self.expanded(&text, option, &span),
            Ok(_) => {
                self.push(&span, "a value is missing here");
                return None;
            }
            Err(error) => {
                self.syntax_error(part, &error);
                return None;
            }
        };
        Some(Value { scalar, span })
    }

    fn expanded(&mut self, text: &str, option: &str, span: &Span) -> Scalar {
        match expand(text, option, self.lookup) {
            Ok(text) => Scalar::Text(text),
            Err(message) => {
                self.problems.push(Problem::new("variable", span, message));
                Scalar::Broken
            }
        }
    }

    /// serde_json reports line and column (bytes) inside the part that it parsed.
    fn syntax_error(&mut self, part: &str, error: &serde_json::Error) {
        let line_start: usize =
            part.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
        let at = (line_start + error.column().saturating_sub(1)).min(part.len());
        let start = self.span(part).start + at;
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default().to_owned();
        self.push(&(start..start + 1), message);
    }
}

/// Members in order, duplicates kept: the checker reports them.
struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(members)
    }
}

/// Items in order.
struct Items;

impl<'de> Visitor<'de> for Items {
    type Value = Vec<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(text: &str) -> (Vec<Entry>, Vec<Problem>) {
        let mut problems = Vec::new();
        let entries = read(text, &|_| None, &mut problems);
        (entries, problems)
    }

    #[test]
    fn members_arrays_and_places() {
        let text = "{\n \"listen\": [{\"address\": \"a:1\"}, {\"address\": \"b:1\"}],\n \
            \"methods\": [\"GET\", \"PUT\"],\n \"n\": -5\n}\n";
        let (entries, problems) = entries(text);
        assert_eq!(problems, []);
        let names: Vec<_> = entries.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["listen", "listen", "methods", "n"]);
        assert_eq!(&text[entries[1].entries[0].values[0].span.clone()], "\"b:1\"");
        assert_eq!(&text[entries[2].name_span.clone()], "\"methods\"");
        assert_eq!(entries[2].values.len(), 2);
        assert_eq!(entries[3].values[0].scalar, Scalar::Integer(-5));
    }

    #[test]
    fn broken_json_names_the_place() {
        let text = "{\n \"a\": [1,\n 2\n";
        let (_, problems) = entries(text);
        assert_eq!(problems.len(), 1);
        for text in [
            "",
            "[]",
            "{",
            "{\"a\":}",
            "{\"a\":1}}",
            "{\"a\":{\"b\":[{]}}",
            "nul",
            "{\"a\":[[1]]}",
            "{\"a\":[1,{}]}",
        ] {
            assert!(!entries(text).1.is_empty(), "{text}");
        }
        let deep = format!("{}1{}", "{\"a\":".repeat(100), "}".repeat(100));
        assert!(!entries(&deep).1.is_empty());
        assert!(!entries(&"{\"a\":".repeat(100_000)).1.is_empty());
    }
}
