//! Which requests may be sent again, and how often: the budget, and requests that make servers die.

pub mod budget;
pub(crate) mod poison;
