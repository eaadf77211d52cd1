//! `weir shield`: shows what limits of a running weir do, and which clients are close to or over a
//! limit. Uses its admin socket (docs/limits.md).

use std::time::Duration;

use clap::{Args, Subcommand};

use crate::admin::document::{Shield, ShieldClient};
use crate::client::{Client, value};
use crate::failure::Failure;
use crate::status::figures::{count, span};
use crate::status::overview::Look;
use crate::status::table::{Cell, Column, Row, Tone, number, table, text};
use crate::status::{PlaceArgs, limits, look};
use crate::terminal;

/// `weir shield`.
#[derive(Args, Debug)]
#[command(after_help = "\
Limits come from `shield` in the configuration. For banned clients, see `weir ban list`.

Example:
  weir shield top --limit login")]
pub(crate) struct ShieldArgs {
    /// Where the admin socket is.
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// What to show.
    #[command(subcommand)]
    pub(crate) view: View,
}

/// What can be shown.
#[derive(Subcommand, Debug)]
pub(crate) enum View {
    /// Show passes and rejections of each limit, table use, and banned clients
    #[command(after_help = "Example:\n  weir shield status")]
    Status {
        /// Print JSON from the admin socket
        #[arg(long)]
        json: bool,
    },
    /// List clients rejected most, then those closest to a limit
    #[command(after_help = "\
USED is the used share of what a client may send at once, or have open at a time. REFUSED counts \
rejections since the last minute without one, by all limits that share an account with this one. \
With mode \"observe\", weir rejects nothing: then USED shows which clients it would reject.

Example:
  weir shield top -n 20")]
    Top {
        /// Show only clients of this limit
        #[arg(long, value_name = "NAME")]
        limit: Option<String>,
        /// Number of entries, up to 1000
        #[arg(
            short = 'n',
            value_name = "COUNT",
            default_value_t = 10,
            value_parser = clap::value_parser!(u32).range(1..=1000)
        )]
        most: u32,
        /// Print JSON from the admin socket
        #[arg(long)]
        json: bool,
    },
}

/// Runs the verb.
///
/// # Errors
/// weir does not reply, has no limits, or has none of that name.
pub(crate) fn shield(arguments: &ShieldArgs) -> Result<(), Failure> {
    let client = Client::new(arguments.place.admin.as_deref());
    let (path, json) = match &arguments.view {
        View::Status { json } => ("/v1/shield?most=0".to_owned(), *json),
        View::Top { limit, most, json } => {
            let limit =
                limit.as_ref().map_or_else(String::new, |limit| format!("&limit={}", value(limit)));
            (format!("/v1/shield?most={most}{limit}"), *json)
        }
    };
    let (shield, answer) = client.get::<Shield>(&path)?;
    if json {
        terminal::print(&answer);
        return Ok(());
    }
    terminal::print(&match arguments.view {
        View::Status { .. } => status(&shield, look()),
        View::Top { .. } => top(&shield.top, look()),
    });
    Ok(())
}

fn status(shield: &Shield, look: Look) -> String {
    let mode = if shield.observes {
        "observes only and rejects nothing"
    } else {
        "rejects clients over a limit"
    };
    let used = format!(
        "{} of {} places in the table are used",
        count(shield.used),
        count(shield.accounts)
    );
    let bans = match (shield.bans.in_force, shield.bans.in_kernel) {
        (0, _) => "no client is banned".to_owned(),
        (banned, Some(in_kernel)) => {
            format!("{} banned, {} of them in the kernel", count(banned), count(in_kernel))
        }
        (banned, None) => format!("{} banned", count(banned)),
    };
    format!("shield {mode}; {used}; {bans}\n{}", limits::limits(&shield.limits, look))
}

fn top(clients: &[ShieldClient], look: Look) -> String {
    if clients.is_empty() {
        return "no client has used any limit lately\n".to_owned();
    }
    let columns: [Column; 6] = [
        text("WHO"),
        text("LIMIT"),
        number("USED", 0),
        number("OPEN", 1),
        number("REFUSED", 0),
        number("LAST", 2),
    ];
    let row = |client: &ShieldClient| {
        let is_over = client.used >= 0.995;
        let used = Cell {
            text: format!("{:.0}%", client.used * 100.0),
            tone: if is_over { Tone::Odd } else { Tone::Plain },
        };
        let last = client
            .refused_seconds
            .map_or_else(|| "-".to_owned(), |s| span(Duration::from_secs_f64(s)) + " ago");
        let cells = vec![
            terminal::printable(&client.who).into(),
            client.limit.as_str().into(),
            used,
            count(client.open).into(),
            count(client.refused).into(),
            last.into(),
        ];
        Row { cells, below: None }
    };
    table(&columns, &clients.iter().map(row).collect::<Vec<_>>(), 0, look.width, look.colour)
}

#[cfg(test)]
mod tests {
    //! Proves: people see which clients are over a limit. How: a made-up document.

    use super::*;
    use crate::admin::document::Limit;

    const LOOK: Look = Look { width: 100, colour: false };

    #[test]
    fn what_people_see() {
        let client = |who: &str, used, refused, refused_seconds| ShieldClient {
            who: who.to_owned(),
            limit: "rate".to_owned(),
            used,
            open: 2,
            refused,
            refused_seconds,
        };
        let mut shield = Shield {
            accounts: 65_536,
            used: 213,
            top: vec![
                client("192.0.2.1", 1.0, 1200, Some(2.0)),
                client("2001:db8::/64", 0.25, 0, None),
            ],
            limits: vec![Limit {
                name: "rate".to_owned(),
                count: "requests".to_owned(),
                ..Limit::default()
            }],
            ..Shield::default()
        };
        let told = top(&shield.top, LOOK);
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines.len(), 3, "{told}");
        assert!(
            lines[0].starts_with("WHO")
                && lines[1].contains("100%")
                && lines[1].ends_with("2s ago"),
            "{told}"
        );
        assert!(lines[2].contains("25%") && lines[2].ends_with('-'), "{told}");
        assert_eq!(top(&[], LOOK), "no client has used any limit lately\n");
        let told = status(&shield, LOOK);
        assert!(told.starts_with("shield rejects clients over a limit; 213 of "), "{told}");
        assert!(told.contains("; no client is banned\n") && told.contains("LIMIT"), "{told}");
        (shield.observes, shield.bans.in_force, shield.bans.in_kernel) = (true, 3, Some(2));
        let told = status(&shield, LOOK);
        assert!(
            told.contains("observes only") && told.contains("3 banned, 2 of them in the kernel"),
            "{told}"
        );
    }
}
