//! Checks for audits: compares what must hold with what does.

/// Checks that two numbers are equal.
///
/// # Errors
/// They differ: says so in words.
pub(crate) fn equal(what: &str, seen: usize, expected: usize) -> Result<(), String> {
    if seen == expected { Ok(()) } else { Err(format!("{what}: {seen}, should be {expected}")) }
}

/// Checks that a number does not exceed its bound.
///
/// # Errors
/// It does: says so in words.
pub(crate) fn at_most(what: &str, seen: usize, most: usize) -> Result<(), String> {
    if seen <= most { Ok(()) } else { Err(format!("{what}: {seen}, at most {most}")) }
}
