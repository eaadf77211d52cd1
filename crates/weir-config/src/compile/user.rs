//! `user` -> who weir is to be. Whether there is such a user, and weir can become him, the caller's expert says.

use super::Compiler;
use crate::check::Checked;
use crate::problem::Problem;
use crate::{Account, UserChoice};

/// Who weir is to be; None: it stays who it is.
pub(super) fn user(compiler: &mut Compiler<'_>, document: &Checked) -> Option<UserChoice> {
    let block = document.all("user").next()?;
    let choice = UserChoice {
        name: block.text("name").to_owned(),
        group: Some(block.text("group")).filter(|group| !group.is_empty()).map(str::to_owned),
        privileged_ports: block.flag("privileged-ports"),
    };
    // A name that was wrong has been reported.
    if choice.name.is_empty() {
        return None;
    }
    if let Err(Account { word, message, help }) = (compiler.world.experts.account)(&choice) {
        compiler.push(Problem::new("account", &block.place(word), message).help(help));
    }
    Some(choice)
}
