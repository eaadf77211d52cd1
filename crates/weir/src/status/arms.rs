//! Congestion controls that share connections of `tcp`, and the cores of both sides, for people.
//! Pure: document -> text. Called by `overview`.

use super::figures::{count, rate, time};
use super::overview::Look;
use super::table::{Column, Row, number, table, text};
use crate::admin::document::{Arm, Status};

/// Returns the table; empty without a comparison.
pub(crate) fn arms(arms: &[Arm], look: Look) -> String {
    if arms.is_empty() {
        return String::new();
    }
    // Left out first on a narrow terminal: the less important times.
    let columns: [Column; 9] = [
        text("CONGESTION"),
        text("SIDE"),
        number("ENDED", 0),
        number("BYTES", 1),
        number("AGAIN", 0),
        number("MIN RTT", 3),
        number("RTT", 0),
        number("BIT/S", 0),
        number("LASTED", 2),
    ];
    let rows: Vec<Row> = arms.iter().map(row).collect();
    format!("\n{}", table(&columns, &rows, 2, look.width, look.colour))
}

fn row(arm: &Arm) -> Row {
    let percent = match arm.bytes_sent {
        0 => "-".to_owned(),
        sent => format!("{:.2}%", arm.bytes_sent_again as f64 * 100.0 / sent as f64),
    };
    let cells = vec![
        arm.name.as_str().into(),
        arm.side.as_str().into(),
        count(arm.connections).into(),
        count(arm.bytes_sent).into(),
        percent.into(),
        time(arm.min_rtt.p50_us).into(),
        time(arm.rtt.p50_us).into(),
        arm.rate_p50.map_or_else(|| "-".to_owned(), |bytes| rate(bytes as f64 * 8.0)).into(),
        time(arm.duration.p50_us).into(),
    ];
    Row { cells, below: None }
}

/// Returns the line about cores; empty if no connection was checked.
pub(crate) fn cores(status: &Status) -> String {
    let total =
        |name: &str| status.totals.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0);
    let (compared, same) = (total("tcp_cores_compared"), total("tcp_cores_same"));
    if compared == 0 {
        return String::new();
    }
    let percent = same as f64 * 100.0 / compared as f64;
    format!(
        "tcp      one core receives both sides of {percent:.0} % ({} checked, one in 64)\n",
        count(compared)
    )
}

#[cfg(test)]
mod tests {
    //! Proves: the table and the line are short and show the measurements. How: a made-up document.

    use super::*;
    use crate::admin::document::Latency;

    #[test]
    fn the_table_and_the_line() {
        let p50 = |us| Latency { count: 1, p50_us: Some(us), ..Latency::default() };
        let arm = Arm {
            side: "client".to_owned(),
            name: "bbr".to_owned(),
            connections: 1234,
            bytes_sent: 2_000_000,
            bytes_sent_again: 5_000,
            duration: p50(12_000_000),
            rtt: p50(42_000),
            min_rtt: p50(40_000),
            rate_p50: Some(2_312_500),
            ..Arm::default()
        };
        let bare = Arm { side: "server".to_owned(), name: "cubic".to_owned(), ..Arm::default() };
        let look = Look { width: 80, colour: false };
        assert_eq!(
            arms(&[arm, bare], look),
            "
  CONGESTION  SIDE    ENDED  BYTES  AGAIN  MIN RTT   RTT  BIT/S  LASTED
  bbr         client   1234   2.0M  0.25%     40ms  42ms  18.5M   12.0s
  cubic       server      0      0      -        -     -      -       -
"
        );
        assert_eq!(arms(&[], look), "");
        let mut status = Status::default();
        assert_eq!(cores(&status), "");
        status.totals.insert("tcp_cores_compared".to_owned(), 50.into());
        status.totals.insert("tcp_cores_same".to_owned(), 49.into());
        assert_eq!(
            cores(&status),
            "tcp      one core receives both sides of 98 % (50 checked, one in 64)\n"
        );
    }
}
