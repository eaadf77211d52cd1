//! `weir completion` and `weir man`: what shells and man(1) know of the command line, made from its own description. Packages are built with
//! them. Touches no socket.

use std::io;
use std::path::PathBuf;

use clap::{Args, Command, CommandFactory as _};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::failure::Failure;
use crate::terminal;

/// `weir completion`.
#[derive(Args, Debug)]
#[command(after_help = "\
Packages bring those of bash, zsh and fish along.

Example:
  weir completion bash >/etc/bash_completion.d/weir")]
pub(crate) struct CompletionArgs {
    /// Whose
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// `weir man`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  weir man status server | man -l -
  weir man --dir /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// The verb whose page is printed, as it is typed [default: weir itself]
    #[arg(value_name = "VERB", conflicts_with = "dir")]
    verb: Vec<String>,
    /// Write the pages of all verbs into this directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints the completions of a shell.
///
/// # Errors
/// None; it has the shape of a verb.
pub(crate) fn completion(arguments: &CompletionArgs) -> Result<(), Failure> {
    let mut out = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "weir", &mut out);
    terminal::print(&String::from_utf8_lossy(&out));
    Ok(())
}

/// Prints a page, or writes all of them.
///
/// # Errors
/// There is no such verb, or a page can't be written.
pub(crate) fn man(arguments: &ManArgs) -> Result<(), Failure> {
    match &arguments.dir {
        Some(dir) => std::fs::create_dir_all(dir)
            .and_then(|()| clap_mangen::generate_to(Cli::command(), dir))
            .map_err(|error| Failure::Running(format!("weir: {}: {error}\n", dir.display()))),
        None => {
            let page = page(&arguments.verb)?.map_err(|error| Failure::Running(format!("weir: {error}\n")))?;
            terminal::print(&String::from_utf8_lossy(&page));
            Ok(())
        }
    }
}

/// The page of a verb.
fn page(verb: &[String]) -> Result<io::Result<Vec<u8>>, Failure> {
    let mut whole = Cli::command().disable_help_subcommand(true);
    whole.build();
    let mut command: &Command = &whole;
    for word in verb {
        command = command.find_subcommand(word).ok_or_else(|| {
            let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
            Failure::Usage(format!("weir: there is no verb `{word}` here, but {}\n", names.join(", ")))
        })?;
    }
    let mut page = Vec::new();
    Ok(clap_mangen::Man::new(command.clone()).render(&mut page).map(|()| page))
}
