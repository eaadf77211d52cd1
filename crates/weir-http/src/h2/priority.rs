//! Priorities of responses: the field `priority` and PRIORITY_UPDATE (RFC 9218 §4, §7). The trees
//! of RFC 7540 are ignored.

/// How urgent a response is, and whether parts of it are of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Priority {
    /// 0 (first) to 7.
    pub urgency: u8,
    /// It may share the connection with others of its urgency.
    pub incremental: bool,
}

impl Default for Priority {
    fn default() -> Priority {
        Priority { urgency: 3, incremental: false }
    }
}

impl Priority {
    pub(super) const URGENCIES: usize = 8;

    /// Parses the value of the field, a dictionary of RFC 9651. Unknown or out-of-range members are
    /// ignored (RFC 9218 §4).
    pub fn parse(value: &[u8]) -> Priority {
        let mut priority = Priority::default();
        for member in value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
            let end = member.iter().position(|&byte| byte == b';').unwrap_or(member.len());
            match member[..end].trim_ascii() {
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                b"i" | b"i=?1" => priority.incremental = true,
                b"i=?0" => priority.incremental = false,
                _ => {}
            }
        }
        priority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_field() {
        for (value, urgency, incremental) in [
            ("", 3, false),
            ("u=0", 0, false),
            ("u=7, i", 7, true),
            ("i=?1,u=5", 5, true),
            ("i, i=?0", 3, false),
            ("u=8, i", 3, true),
            ("u=-1,, u, i=1, u=10", 3, false),
            ("u=2;x=1, foo=\"bar\", i;y", 2, true),
        ] {
            assert_eq!(
                Priority::parse(value.as_bytes()),
                Priority { urgency, incremental },
                "{value}"
            );
        }
    }
}
