//! `weir completion` and `weir man`: the command line for shells and man(1), made from its own
//! description. Packages are built with them. Opens no socket.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory as _};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::failure::Failure;
use crate::terminal;

/// The argument for the page of the configuration, which is not a verb.
const CONFIGURATION: &str = "weir.kdl";

/// `weir completion`.
#[derive(Args, Debug)]
#[command(after_help = "\
Packages include the scripts for bash, zsh and fish.

Example:
  weir completion bash >/etc/bash_completion.d/weir")]
pub(crate) struct CompletionArgs {
    /// Shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// `weir man`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  weir man status server | man -l -
  weir man weir.kdl | man -l -
  weir man --dir /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Print the page of this verb, or weir.kdl for the configuration [default: weir itself]
    #[arg(value_name = "VERB", conflicts_with = "dir")]
    verb: Vec<String>,
    /// Write the pages of all verbs into this directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints the completions of a shell.
///
/// # Errors
/// None; it has the signature of a verb.
pub(crate) fn completion(arguments: &CompletionArgs) -> Result<(), Failure> {
    let mut out = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "weir", &mut out);
    terminal::print(&String::from_utf8_lossy(&out));
    Ok(())
}

/// Prints a page, or writes all of them.
///
/// # Errors
/// The verb does not exist, or a page cannot be written.
pub(crate) fn man(arguments: &ManArgs) -> Result<(), Failure> {
    match &arguments.dir {
        Some(dir) => std::fs::create_dir_all(dir)
            .and_then(|()| write_all(&whole(), dir))
            .map_err(|error| Failure::Running(format!("weir: {}: {error}\n", dir.display()))),
        None if arguments.verb.len() == 1 && arguments.verb[0] == CONFIGURATION => {
            terminal::print(&weir_config::manual());
            Ok(())
        }
        None => {
            let page = page(&arguments.verb)?
                .map_err(|error| Failure::Running(format!("weir: {error}\n")))?;
            terminal::print(&String::from_utf8_lossy(&page));
            Ok(())
        }
    }
}

/// Returns the command line as in the pages.
fn whole() -> Command {
    let mut whole = Cli::command().disable_help_subcommand(true);
    whole.build();
    whole
}

/// Writes the page of a verb, and those of its sub-verbs.
fn write_all(command: &Command, dir: &Path) -> io::Result<()> {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        write_all(inner, dir)?;
    }
    std::fs::write(
        dir.join(clap_mangen::Man::new(command.clone()).get_filename()),
        rendered(command)?,
    )
}

/// Returns the page of a verb.
fn page(verb: &[String]) -> Result<io::Result<Vec<u8>>, Failure> {
    let whole = whole();
    let mut command: &Command = &whole;
    for word in verb {
        command = command.find_subcommand(word).ok_or_else(|| {
            let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
            Failure::Usage(format!("weir: unknown verb `{word}`; known: {}\n", names.join(", ")))
        })?;
    }
    Ok(rendered(command))
}

/// Returns a page in the language of man(7). Hyphenation is off, because users copy options and
/// file names from pages, and examples keep their lines.
fn rendered(command: &Command) -> io::Result<Vec<u8>> {
    let man = clap_mangen::Man::new(command.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    page.extend_from_slice(b".nh\n.ad l\n");
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.get_subcommands().any(|inner| !inner.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    let extra = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    page.extend_from_slice(sections(&extra).as_bytes());
    if command.get_name() == "weir" {
        page.extend_from_slice(b".SH SEE ALSO\n.BR weir.kdl (5)\n");
    }
    if command.get_version().is_some() {
        man.render_version_section(&mut page)?;
    }
    Ok(page)
}

/// Formats the text behind the options of a verb: prose is filled, indented lines remain as they
/// are.
fn sections(text: &str) -> String {
    let mut out = String::new();
    let (mut section, mut is_example) = ("", false);
    for line in text.lines() {
        let heading = match line {
            "Example:" | "Examples:" => "EXAMPLES",
            _ if line.starts_with("Exit codes:") => "EXIT STATUS",
            _ if section.is_empty() && !line.is_empty() => "NOTES",
            _ => section,
        };
        if heading != section {
            end_example(&mut out, &mut is_example);
            let _ = writeln!(out, ".SH \"{heading}\"");
            section = heading;
        }
        match line.strip_prefix("  ") {
            Some(example) => {
                if !std::mem::replace(&mut is_example, true) {
                    out.push_str(".PP\n.nf\n");
                }
                let _ = writeln!(out, "{}", plain(example));
            }
            None if heading == "EXAMPLES" && line.ends_with(':') => {}
            None => {
                end_example(&mut out, &mut is_example);
                let _ = writeln!(
                    out,
                    "{}",
                    if line.is_empty() { ".PP".to_owned() } else { plain(line) }
                );
            }
        }
    }
    end_example(&mut out, &mut is_example);
    out
}

fn end_example(out: &mut String, is_example: &mut bool) {
    if std::mem::take(is_example) {
        out.push_str(".fi\n");
    }
}

/// Escapes a line of text: hyphens can be copied, and a leading dot is not a request.
fn plain(line: &str) -> String {
    let text = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_keep_their_lines() {
        let text = "Prose that is\nfilled.\n\nExit codes: 0 fine.\n\n\
            Example:\n  weir run -c 'a' \\\n    --io uring\n  .hidden\n";
        let expected = ".SH \"NOTES\"\nProse that is\nfilled.\n.PP\n.SH \"EXIT STATUS\"\n\
                        Exit codes: 0 fine.\n.PP\n.SH \"EXAMPLES\"\n\
                        .PP\n.nf\nweir run \\-c \\(aqa\\(aq \\e\n  \\-\\-io uring\n\\&.hidden\n\
                        .fi\n";
        assert_eq!(sections(text), expected);
    }
}
