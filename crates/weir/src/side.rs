//! What workers must not wait for: names are resolved and passwords verified on a thread beside them. semantics.md §9.
//!
//! Bounds: each service has its own.

pub(crate) mod hash;
pub(crate) mod users;

mod cache;
mod dns;
mod hosts;
mod lanes;
mod names;
mod order;
mod stamp;
mod verify;

use std::rc::Rc;

use weir_proxy::errand::News;

/// Tells a worker what it asked for.
pub(crate) type Tell = Rc<dyn Fn(u16, News)>;
