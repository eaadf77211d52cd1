//! Names that people type, and suggestions for wrong ones. Called by the verbs and by the admin
//! socket.

/// Names that a message lists if none is similar.
const LISTED_MAX: usize = 8;

/// Returns a message for a name `written` that is not in `known`.
pub(crate) fn meant<'a>(what: &str, written: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    let hint = match weir_config::closest(written, known.iter().copied()) {
        Some(name) => format!("did you mean `{name}`?"),
        None if known.len() > LISTED_MAX => {
            format!("{} are known, such as {}", known.len(), known[..LISTED_MAX].join(", "))
        }
        None => format!("there is: {}", known.join(", ")),
    };
    format!("no {what} `{written}`; {hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_is_proposed_and_a_short_list_otherwise() {
        let known = ["10.0.0.1:9090", "10.0.0.2:9090"];
        let say = |written| meant("server", written, known.into_iter());
        assert_eq!(
            say("10.0.0.1:9091"),
            "no server `10.0.0.1:9091`; did you mean `10.0.0.1:9090`?"
        );
        assert_eq!(say("web"), "no server `web`; there is: 10.0.0.1:9090, 10.0.0.2:9090");
    }
}
