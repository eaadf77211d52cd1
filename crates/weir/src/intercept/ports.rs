//! The ports whose connections are taken, as given on the command line.

use crate::failure::Failure;

/// Largest number of ports: the room in the kernel programs.
const MAX: usize = 64;

/// Parses a port.
///
/// # Errors
/// It is not a port; neither is a range.
pub(super) fn port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(0) | Err(_) if text.contains('-') => {
            Err("a range is not a port: list each port, such as 80,81,82".to_owned())
        }
        Ok(0) | Err(_) => Err("a port is a number from 1 to 65535".to_owned()),
        Ok(port) => Ok(port),
    }
}

/// Returns the taken ports in order, and checks that those with HTTP are among them.
///
/// # Errors
/// A port is given twice, there are too many, or HTTP is on a port that is not taken.
pub(super) fn in_order(mut ports: Vec<u16>, http: &[u16]) -> Result<Vec<u16>, Failure> {
    for (flag, named) in [("--ports", &ports[..]), ("--http", http)] {
        if let Some((first, second, port)) = twice(named) {
            return Err(Failure::Usage(format!(
                "weir: {flag}: port {port} is named twice, as number {first} and number {second} \
                    of {}\n  help: name it once\n",
                named.len()
            )));
        }
    }
    if ports.len() > MAX {
        return Err(Failure::Usage(format!(
            "weir: --ports: {} ports, but weir can intercept at most {MAX}\n",
            ports.len()
        )));
    }
    if let Some(port) = http.iter().find(|port| !ports.contains(port)) {
        let text = format!(
            "weir: --http {port}: weir does not intercept that port\n  help: name it in --ports as \
                well\n"
        );
        return Err(Failure::Usage(text));
    }
    ports.sort_unstable();
    Ok(ports)
}

/// Returns the first port that was given before: its two places, counted from one, and the port.
fn twice(ports: &[u16]) -> Option<(usize, usize, u16)> {
    ports.iter().enumerate().find_map(|(at, port)| {
        let before = ports[..at].iter().position(|other| other == port)?;
        Some((before + 1, at + 1, *port))
    })
}

#[cfg(test)]
mod tests {
    //! Proves: ports are sorted; duplicates, too many, HTTP on other ports, and text that is not a
    //! port are rejected by name. How: lists.

    use super::*;

    fn refused(ports: &[u16], http: &[u16]) -> String {
        match in_order(ports.to_vec(), http) {
            Err(Failure::Usage(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_port_is_named_once() {
        assert_eq!(in_order(vec![443, 80], &[80]).ok(), Some(vec![80, 443]));
        let said = refused(&[80, 443, 80], &[]);
        assert!(
            said.contains("--ports: port 80 is named twice, as number 1 and number 3 of 3"),
            "{said}"
        );
        let said = refused(&[80, 443], &[443, 443]);
        assert!(said.contains("--http: port 443 is named twice"), "{said}");
        let said = refused(&[80], &[8080]);
        assert!(said.contains("--http 8080: weir does not intercept that port"), "{said}");
        let many: Vec<u16> = (1..=65).collect();
        assert!(refused(&many, &[]).contains("65 ports, but weir can intercept at most 64"));
        assert_eq!(in_order(many[..64].to_vec(), &[]).ok(), Some(many[..64].to_vec()));
    }

    #[test]
    fn what_is_no_port_is_refused() {
        assert_eq!((port("1"), port("65535")), (Ok(1), Ok(65535)));
        assert!(port("80-90").is_err_and(|why| why.contains("a range is not a port")));
        for wrong in ["0", "65536", "", "http", "-1"] {
            assert!(port(wrong).is_err(), "{wrong}");
        }
    }
}
