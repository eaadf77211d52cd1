//! For audits: what must be, and what is.

/// That two numbers are the same.
///
/// # Errors
/// They are not, in words.
pub(crate) fn equal(what: &str, seen: usize, expected: usize) -> Result<(), String> {
    if seen == expected { Ok(()) } else { Err(format!("{what}: {seen}, should be {expected}")) }
}

/// That a number is not above its bound.
///
/// # Errors
/// It is, in words.
pub(crate) fn at_most(what: &str, seen: usize, most: usize) -> Result<(), String> {
    if seen <= most { Ok(()) } else { Err(format!("{what}: {seen}, at most {most}")) }
}
