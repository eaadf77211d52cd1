//! How records are shown: figures as text, judged targets, charts, and the files made of them.

pub(super) mod drawing;
pub(super) mod figures;
pub(super) mod method;
pub(super) mod page;
