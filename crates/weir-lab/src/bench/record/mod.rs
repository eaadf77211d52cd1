//! What a run leaves behind: its figures, as they stand in the raw file, and the arithmetic over several runs.

pub(super) mod outcome;
