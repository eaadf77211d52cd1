//! `user` -> the user that weir becomes. The caller's expert checks that this user exists and that
//! weir can become it.

use super::Compiler;
use crate::check::Checked;
use crate::problem::Problem;
use crate::{Account, UserChoice};

/// Returns the user that weir becomes; None: it keeps its own.
pub(super) fn user(compiler: &mut Compiler<'_>, document: &Checked) -> Option<UserChoice> {
    let block = document.all("user").next()?;
    let choice = UserChoice {
        name: block.text("name").to_owned(),
        group: Some(block.text("group")).filter(|group| !group.is_empty()).map(str::to_owned),
        privileged_ports: block.flag("privileged-ports"),
    };
    // A wrong name has been reported.
    if choice.name.is_empty() {
        return None;
    }
    if let Err(Account { word, message, help }) = (compiler.world.experts.account)(&choice) {
        compiler.push(Problem::new("account", &block.place(word), message).help(help));
    }
    Some(choice)
}
