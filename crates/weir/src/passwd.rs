//! `weir passwd`: writes, deletes and checks users in the file that a forward proxy reads
//! (`side/users.rs`).
//!
//! The password is typed on a terminal, or is one line of standard input. It is never in the
//! command line, where other users could see it.

mod ask;
mod edit;

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;

use clap::Args;

use crate::failure::Failure;
use crate::side::hash::{self, Scheme};
use crate::side::users::name_error;

/// `weir passwd`.
#[derive(Args, Debug)]
#[command(after_help = "\
Without a terminal, the password is the first line of standard input. A running weir rereads the \
changed file automatically.
Hashes are argon2id; weir also reads those of `htpasswd -B` (bcrypt).

Example:
  weir passwd /etc/weir/users ann
  pwgen 20 1 | tee ann.txt | weir passwd /etc/weir/users ann --stdin")]
pub(crate) struct PasswdArgs {
    /// File of users; if missing, it is created, readable only by its owner
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Name of the user, without a colon
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Write a bcrypt hash, for other programs that read the file
    #[arg(long, conflicts_with_all = ["delete", "check"])]
    pub(crate) bcrypt: bool,
    /// Delete the user
    #[arg(long, conflicts_with_all = ["check", "stdin"])]
    pub(crate) delete: bool,
    /// Only check the password: code 0 if it is correct, 1 if not
    #[arg(long)]
    pub(crate) check: bool,
    /// Read the password from standard input even if that is a terminal
    #[arg(long)]
    pub(crate) stdin: bool,
}

/// Runs the verb.
///
/// # Errors
/// An invalid name or password, a file that cannot be read or written, an unknown user, a wrong
/// password.
pub(crate) fn passwd(arguments: &PasswdArgs) -> Result<(), Failure> {
    let PasswdArgs { file, name, .. } = arguments;
    if let Some(error) = name_error(name) {
        return Err(Failure::Usage(format!("weir: {error}\n")));
    }
    let missing = || Failure::Running(format!("weir: {} has no user `{name}`\n", file.display()));
    if arguments.delete {
        let change = |text: &str| edit::without(text, name);
        return edit::change(file, false, change)?.then_some(()).ok_or_else(missing);
    }
    if arguments.check {
        let text = edit::read(file)?;
        let hash = edit::hash_of(&text, name).ok_or_else(missing)?;
        hash::scheme_of(hash).map_err(|what| failed(&format!("the hash of `{name}` {what}")))?;
        let password = password(arguments)?;
        return if hash::matches(&password, hash) {
            Ok(())
        } else {
            Err(failed(&format!("wrong password for `{name}`")))
        };
    }
    let password = password(arguments)?;
    let scheme = if arguments.bcrypt { Scheme::Bcrypt } else { Scheme::Argon2id };
    let salt = salt().map_err(|error| failed(&format!("no randomness: {error}")))?;
    let hash = hash::make(scheme, &password, salt)
        .map_err(|error| Failure::Usage(format!("weir: {error}\n")))?;
    edit::change(file, true, |text| Some(edit::with(text, name, &hash))).map(|_| ())
}

/// Returns the password, typed or piped.
fn password(arguments: &PasswdArgs) -> Result<Vec<u8>, Failure> {
    let PasswdArgs { name, check, .. } = arguments;
    let asked = if arguments.stdin || !io::stdin().is_terminal() {
        ask::line()
    } else if *check {
        ask::hidden(&format!("Password of {name}: "))
    } else {
        ask::hidden(&format!("New password of {name}: ")).and_then(|first| {
            let second = ask::hidden("Repeat the password: ")?;
            if first == second {
                Ok(first)
            } else {
                Err(io::Error::other("the two passwords differ; nothing was changed"))
            }
        })
    };
    let password = asked.map_err(|error| failed(&error.to_string()))?;
    let refused = |text: &str| Err(Failure::Usage(format!("weir: {text}\n")));
    match password.as_slice() {
        [] => refused("the password is empty"),
        bytes if bytes.iter().any(u8::is_ascii_control) => {
            refused("a password has no control characters")
        }
        _ => Ok(password),
    }
}

fn salt() -> io::Result<[u8; 16]> {
    let mut salt = [0; 16];
    let filled = rustix::rand::getrandom(&mut salt, rustix::rand::GetRandomFlags::empty())?;
    if filled < salt.len() {
        return Err(io::Error::other("the operating system has not enough of it"));
    }
    Ok(salt)
}

fn failed(text: &str) -> Failure {
    Failure::Running(format!("weir: {text}\n"))
}
