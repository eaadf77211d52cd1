//! A page as a list of blocks.

use std::collections::BTreeMap;

use super::running::free_port;

/// What a block is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A configuration that is written to this file and checked.
    Config(String),
    /// Commands that are run.
    Run,
    /// Commands that are only parsed.
    Parse,
    /// What the commands in front of it print.
    Output,
    /// A file that is only written.
    File(String),
    /// Something that is only shown.
    Shown,
    /// A block that is not as it should be, and why.
    Wrong(&'static str),
}

/// One fenced block.
#[derive(Debug)]
pub(crate) struct Block {
    /// The line of the page on which its text begins, from 1.
    pub(crate) line: usize,
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

/// A page of docs/howto.
#[derive(Debug)]
pub(crate) struct Page {
    /// From the top of the repository.
    pub(crate) path: String,
    pub(crate) blocks: Vec<Block>,
}

impl Page {
    /// Reads a page and replaces its ports.
    pub(crate) fn of(path: &str, text: &str) -> Page {
        let mut ports = BTreeMap::new();
        let mut blocks = Vec::new();
        let mut lines = text.lines().enumerate();
        while let Some((at, line)) = lines.next() {
            let Some(words) = line.strip_prefix("```") else { continue };
            let mut block = Block { line: at + 2, kind: kind(words), text: String::new() };
            let mut is_closed = false;
            for (_, line) in lines.by_ref() {
                is_closed = line == "```";
                if is_closed {
                    break;
                }
                block.text += &with_free_ports(line, &mut ports);
                block.text.push('\n');
            }
            if !is_closed {
                block = Block {
                    line: at + 1,
                    kind: Kind::Wrong("this block has no end"),
                    text: String::new(),
                };
            }
            blocks.push(block);
        }
        Page { path: path.to_owned(), blocks }
    }
}

/// What the words behind three backticks mean.
fn kind(words: &str) -> Kind {
    let words: Vec<&str> = words.split_ascii_whitespace().collect();
    match words[..] {
        ["kdl", file] => Kind::Config(file.to_owned()),
        ["kdl"] => Kind::Wrong("this configuration has no name: write `kdl FILE`"),
        ["sh"] => Kind::Run,
        ["sh", "no-run"] => Kind::Parse,
        ["text"] => Kind::Output,
        [_, file] => Kind::File(file.to_owned()),
        [_] => Kind::Shown,
        _ => Kind::Wrong("this block does not say what it is"),
    }
}

/// Replaces each port of 127.0.0.1 by a free port, the same one on the whole page.
fn with_free_ports(line: &str, ports: &mut BTreeMap<String, u16>) -> String {
    const BEFORE: &str = "127.0.0.1:";
    let mut parts = line.split(BEFORE);
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.len() - part.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (port, rest) = part.split_at(digits);
        whole += BEFORE;
        if !port.is_empty() {
            let port = *ports.entry(port.to_owned()).or_insert_with(free_port);
            whole += &port.to_string();
        }
        whole += rest;
    }
    whole
}

#[test]
fn blocks_and_their_lines_are_read() {
    let text = "a\n```kdl a.kdl\nb\n```\n```sh\nc\nd\n```\n```sh no-run\n```\n```text\ne\n```\n\
        ```ini f\n```\n```yaml\n```\n";
    let page = Page::of("p", text);
    let found: Vec<(usize, &Kind, &str)> =
        page.blocks.iter().map(|block| (block.line, &block.kind, block.text.as_str())).collect();
    let (config, file) = (Kind::Config("a.kdl".to_owned()), Kind::File("f".to_owned()));
    let expected = [
        (3, &config, "b\n"),
        (6, &Kind::Run, "c\nd\n"),
        (10, &Kind::Parse, ""),
        (12, &Kind::Output, "e\n"),
        (15, &file, ""),
        (17, &Kind::Shown, ""),
    ];
    assert_eq!(found, expected);
}

#[test]
fn each_port_has_one_that_is_free() {
    let mut ports = BTreeMap::new();
    let line =
        with_free_ports("a 127.0.0.1:1 127.0.0.1:2/ 127.0.0.1: 127.0.0.1:1 10.0.0.1:1", &mut ports);
    let (one, two) = (ports["1"], ports["2"]);
    assert_ne!(one, two);
    assert_eq!(
        line,
        format!("a 127.0.0.1:{one} 127.0.0.1:{two}/ 127.0.0.1: 127.0.0.1:{one} 10.0.0.1:1")
    );
}
