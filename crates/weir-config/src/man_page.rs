//! The option table as a page for man(5), `weir.kdl(5)`: the content of docs/configuration.md, for
//! a terminal. Called by `weir man`, which package builds use. Pure; the language is that of
//! man(7).

use std::fmt::Write as _;

use crate::options::DOCUMENT;
use crate::reference::default;
use crate::schema::{Block, Row};

/// The example on the page; a test reads it as a configuration.
const EXAMPLE: &str = r#"listen "0.0.0.0:8080"
upstream "app" {
    server "10.0.0.1:9090" weight=50
    server "10.0.0.2:9090"
    health path="/health"
}
route { proxy "app"; }
route host="old.example.org" { redirect "https://www.example.org$request_uri"; }
"#;

/// The language of the configuration, a paragraph each.
const LANGUAGE: &[&str] = &[
    "A configuration is one document in KDL 2 (https://kdl.dev). `weir check` reports all errors \
     in it, with line and column. `weir check --print` shows it with every default.",
    "Write an option on the line of its block (`connections=32`) or inside its braces \
     (`connections 32`). Both mean the same.",
    "Times have a unit (`\"10s\"`, `\"250ms\"`, `\"1h30m\"`), and so do sizes (`\"64KiB\"`, \
     `\"10MiB\"`). KDL requires quotes around a value that begins with a digit, unless it is a \
     number. A number without a unit is bytes as a size and an error as a time.",
    "Write several values of one option one after the other (`methods \"GET\" \"HEAD\"`) or in one \
     text with commas.",
    "weir replaces `${NAME}` in a value by the environment variable, and `${NAME:-default}` has a \
     default. `$${` is a literal `${`. `$name` in values of rules and of the access log is a \
     variable of each request.",
    "An unknown word is an error, and so is an option that would have no effect. A comment begins \
     with `//`.",
    "A file whose name ends in `.json` contains the same tree as JSON. Options and blocks are \
     members, and a block that may occur several times is an array of objects. A value without a \
     name in KDL has the name that is marked with * here.",
];

/// Returns the page.
pub fn manual() -> String {
    let mut out = String::from(".TH weir.kdl 5 \"\" \"weir\" \"Configuration\"\n.nh\n.ad l\n");
    out.push_str(".SH NAME\nweir.kdl \\- configuration of the proxy weir\n");
    out.push_str(
        ".SH SYNOPSIS\n.B weir run \\-c\n.I FILE\n.br\n.I ./weir.kdl\n.br\n.I /etc/weir/weir.kdl\n\
            .SH DESCRIPTION\n",
    );
    LANGUAGE.iter().for_each(|text| paragraph(&mut out, text));
    out.push_str(".SH EXAMPLE\n.nf\n");
    EXAMPLE.lines().for_each(|line| _ = writeln!(out, "{}", escaped(line)));
    out.push_str(
        ".fi\n.SH OPTIONS\nA value without a name, behind the word of its block, is marked with \
            *.\n",
    );
    write_block(&mut out, &DOCUMENT, "", &mut Vec::new());
    out.push_str(
        ".SH FILES\n.I /etc/weir/weir.kdl\n.SH SEE ALSO\n.BR weir (1),\n.BR weir\\-check (1),\n\
            .BR weir\\-run (1)\n",
    );
    out
}

/// `written`: nested blocks that are on the page already, with the blocks around them.
fn write_block(
    out: &mut String,
    block: &'static Block,
    path: &'static str,
    written: &mut Vec<[&'static str; 2]>,
) {
    let place = [block.name, path];
    if !path.is_empty() && written.contains(&place) {
        return;
    }
    written.push(place);
    let heading = match (block.name, path) {
        ("", _) => "At the top of the file".to_owned(),
        (_, "") => block.beginnings().join(", "),
        _ => format!("{} in {path}", block.beginnings().join(", ")),
    };
    let _ = writeln!(out, ".SS {}", escaped(&heading));
    let times = if block.repeats || block.name.is_empty() { "" } else { " At most one." };
    paragraph(out, &format!("{}{times}", block.help));
    block.rows().for_each(|row| write_row(out, block, row));
    block.blocks.iter().for_each(|inner| write_block(out, inner, block.name, written));
}

fn write_row(out: &mut String, block: &Block, row: &Row) {
    let mark = if block.positional.iter().any(|other| other.name == row.name) { "*" } else { "" };
    let kind = marked(&row.kind.to_string());
    let _ = writeln!(
        out,
        ".TP\n\\fB{}\\fR{mark}: {kind} [{}]",
        escaped(row.name),
        marked(&default(row))
    );
    let _ = writeln!(out, "{}", guarded(&marked(row.help)));
}

fn paragraph(out: &mut String, text: &str) {
    let _ = writeln!(out, ".PP\n{}", guarded(&marked(text)));
}

/// Makes text in backticks bold.
fn marked(text: &str) -> String {
    let mut out = String::new();
    for (at, part) in text.split('`').enumerate() {
        if at > 0 {
            out.push_str(if at % 2 == 1 { "\\fB" } else { "\\fR" });
        }
        out.push_str(&escaped_inside(part));
    }
    out
}

/// Escapes a line so that it is printed literally.
fn escaped(line: &str) -> String {
    guarded(&escaped_inside(line))
}

fn escaped_inside(text: &str) -> String {
    text.replace('\\', "\\e")
        .replace('-', "\\-")
        .replace('~', "\\(ti")
        .replace('^', "\\(ha")
        .replace('\'', "\\(aq")
}

/// Guards a line that would begin like a roff request.
fn guarded(line: &str) -> String {
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line.to_owned() }
}

#[cfg(test)]
mod tests {
    //! Proves: the page has every option once where it belongs, its example is a configuration, and
    //! no line is mistaken for a roff request. How: the option table beside the page.

    use super::*;

    #[test]
    fn every_option_is_in_the_page() {
        fn rows(block: &'static Block, all: &mut Vec<&'static Row>) {
            all.extend(block.rows());
            block.blocks.iter().for_each(|inner| rows(inner, all));
        }
        let (page, mut all) = (manual(), Vec::new());
        rows(&DOCUMENT, &mut all);
        for row in all {
            let lines = page
                .lines()
                .filter(|line| line.starts_with(&format!("\\fB{}\\fR", escaped(row.name))));
            assert!(lines.count() > 0, "{}", row.name);
            assert!(page.contains(&marked(row.help)), "{}", row.name);
        }
        let requests = ["TH", "nh", "ad", "SH", "SS", "PP", "TP", "nf", "fi", "B", "BR", "I", "br"];
        for line in page.lines().filter_map(|line| line.strip_prefix('.')) {
            let request = line.split(' ').next().unwrap_or_default();
            assert!(requests.contains(&request), "{line}");
        }
    }

    #[test]
    fn the_example_is_a_configuration() {
        crate::parse(EXAMPLE, "example.kdl").unwrap_or_else(|errors| panic!("{errors}"));
        assert!(manual().contains("health path=\"/health\""));
    }

    #[test]
    fn text_is_not_taken_for_roff() {
        assert_eq!(marked("`a-b` or '\\x'"), "\\fBa\\-b\\fR or \\(aq\\ex\\(aq");
        assert_eq!(escaped(".TH"), "\\&.TH");
    }
}
