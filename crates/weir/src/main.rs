//! weir: the command.

fn main() {}
