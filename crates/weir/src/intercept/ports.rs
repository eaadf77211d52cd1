//! The ports whose connections are taken, as the command line names them.

use crate::failure::Failure;

/// Ports that may be named: what the programs of the kernel have room for.
const MAX: usize = 64;

/// One of them.
///
/// # Errors
/// It is no port, as a range is none.
pub(super) fn port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(0) | Err(_) if text.contains('-') => Err("a range is no port: name each, as in 80,81,82".to_owned()),
        Ok(0) | Err(_) => Err("a port is a number from 1 to 65535".to_owned()),
        Ok(port) => Ok(port),
    }
}

/// The ports that are taken, in order, and that those with HTTP are among them.
///
/// # Errors
/// One is named twice, there are too many, or HTTP is spoken where nothing is taken.
pub(super) fn in_order(mut ports: Vec<u16>, http: &[u16]) -> Result<Vec<u16>, Failure> {
    for (flag, named) in [("--ports", &ports[..]), ("--http", http)] {
        if let Some((first, second, port)) = twice(named) {
            return Err(Failure::Usage(format!(
                "weir: {flag}: port {port} is named twice, as number {first} and number {second} of {}\n  help: name it once\n",
                named.len()
            )));
        }
    }
    if ports.len() > MAX {
        return Err(Failure::Usage(format!("weir: --ports: {} ports, and at most {MAX} can be taken\n", ports.len())));
    }
    if let Some(port) = http.iter().find(|port| !ports.contains(port)) {
        let text =
            format!("weir: --http {port}: connections to that port are not taken\n  help: name it in --ports, too\n");
        return Err(Failure::Usage(text));
    }
    ports.sort_unstable();
    Ok(ports)
}

/// The first port that was named before: where it was, counted from one, where it is again, and which it is.
fn twice(ports: &[u16]) -> Option<(usize, usize, u16)> {
    ports.iter().enumerate().find_map(|(at, port)| {
        let before = ports[..at].iter().position(|other| other == port)?;
        Some((before + 1, at + 1, *port))
    })
}

#[cfg(test)]
mod tests {
    //! Proves: ports are put in order; one that is named twice, too many, and HTTP on others are refused by name; so is what is no port. How: lists.

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
        assert!(said.contains("--ports: port 80 is named twice, as number 1 and number 3 of 3"), "{said}");
        let said = refused(&[80, 443], &[443, 443]);
        assert!(said.contains("--http: port 443 is named twice"), "{said}");
        let said = refused(&[80], &[8080]);
        assert!(said.contains("--http 8080: connections to that port are not taken"), "{said}");
        let many: Vec<u16> = (1..=65).collect();
        assert!(refused(&many, &[]).contains("65 ports, and at most 64"));
        assert_eq!(in_order(many[..64].to_vec(), &[]).ok(), Some(many[..64].to_vec()));
    }

    #[test]
    fn what_is_no_port_is_refused() {
        assert_eq!((port("1"), port("65535")), (Ok(1), Ok(65535)));
        assert!(port("80-90").is_err_and(|why| why.contains("a range is no port")));
        for wrong in ["0", "65536", "", "http", "-1"] {
            assert!(port(wrong).is_err(), "{wrong}");
        }
    }
}
