//! `weir ban`: lists bans of a running weir with their reasons, adds bans and ends them. Uses its
//! admin socket (docs/bans.md).

use std::net::IpAddr;
use std::time::Duration;

use clap::{Args, Subcommand};
use weir_config::parse_time;
use weir_proxy::shield::bans::Block;

use crate::admin::document::{Ban, BanList};
use crate::client::{Client, Unanswered, bans_path, value};
use crate::failure::Failure;
use crate::status::figures::span;
use crate::status::table::{Column, Row, number, table, text};
use crate::status::{PlaceArgs, look};
use crate::terminal;

/// The longest ban, microseconds: ten years.
const FOR_US_MAX: u64 = 3650 * 86_400 * 1_000_000;

/// `weir ban`.
#[derive(Args, Debug)]
#[command(after_help = "\
weir resets new and open connections of a banned client. An address means the client that limits \
see: for IPv6 its /64, unless `prefix` of `shield` says otherwise. For automatic bans by limits, \
see `ban` of `shield` in the configuration.

Example:
  weir ban list && weir ban add 192.0.2.0/24 --for 1h --reason scraping")]
pub(crate) struct BanArgs {
    /// Where the admin socket is.
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// What to do.
    #[command(subcommand)]
    pub(crate) order: Order,
}

/// What can be done.
#[derive(Subcommand, Debug)]
pub(crate) enum Order {
    /// List banned clients, with remaining time and reason
    #[command(after_help = "Example:\n  weir ban list --json | jq -r '.bans[].network'")]
    List {
        /// Show only bans that cover this address
        address: Option<IpAddr>,
        /// Print JSON from the admin socket
        #[arg(long)]
        json: bool,
    },
    /// Ban an address or a network for a time
    #[command(after_help = "\
weir bans exempt addresses only with --force. They are loopback, addresses and gateways of this \
machine, servers of upstreams, `allow` of `shield`, `trusted-proxies`, and the address that this \
ssh session comes from.

Example:
  weir ban add 192.0.2.7 --for 1h --reason scraping")]
    Add {
        /// Address, or range such as 192.0.2.0/24
        #[arg(value_parser = whom)]
        whom: String,
        /// Duration, such as 10m, 1h or 7d; at most ten years
        #[arg(long = "for", value_name = "TIME", value_parser = time)]
        time: u64,
        /// Reason, shown in the list of bans
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
        /// Ban even exempt addresses
        #[arg(long)]
        force: bool,
    },
    /// End bans of an address or a network, and forgive its offenses
    #[command(after_help = "Example:\n  weir ban remove 192.0.2.7")]
    Remove {
        /// Address, or range such as 192.0.2.0/24 with all bans inside it
        #[arg(value_parser = whom, required_unless_present = "all")]
        whom: Option<String>,
        /// End all bans
        #[arg(long, conflicts_with = "whom")]
        all: bool,
    },
    /// Show all bans of an address, including past ones that still count
    #[command(after_help = "Example:\n  weir ban why 192.0.2.7")]
    Why {
        /// Address of the client
        address: IpAddr,
    },
}

/// Runs the verb.
///
/// # Errors
/// weir does not reply, the address is exempt from bans, or it is not banned.
pub(crate) fn ban(arguments: &BanArgs) -> Result<(), Failure> {
    let client = Client::new(arguments.place.admin.as_deref());
    match &arguments.order {
        Order::List { address, json } => list(&client, *address, *json),
        Order::Add { whom, time, reason, force } => {
            let ssh = std::env::var("SSH_CONNECTION").unwrap_or_default();
            let mine = ssh.split(' ').next().filter(|mine| !mine.is_empty());
            let mine = mine.map_or_else(String::new, |mine| format!("&mine={}", value(mine)));
            let force = if *force { "&force=on" } else { "" };
            let seconds = time.div_ceil(1_000_000);
            let path = format!(
                "{}/add?for={seconds}&reason={}{mine}{force}",
                bans_path(whom),
                value(reason)
            );
            client.post::<BanList>(&path).map_err(in_words_of_the_command)?;
            Ok(())
        }
        Order::Remove { whom, .. } => {
            let path = whom.as_ref().map_or_else(|| "/v1/bans".to_owned(), |whom| bans_path(whom));
            client.post::<BanList>(&format!("{path}/remove"))?;
            Ok(())
        }
        Order::Why { address } => {
            let (list, _) = client.get::<BanList>(&bans_path(&address.to_string()))?;
            terminal::print(&why(*address, &list));
            Ok(())
        }
    }
}

/// Replaces the option of the admin API in an error with that of `weir ban add`.
fn in_words_of_the_command(unanswered: Unanswered) -> Unanswered {
    match unanswered {
        Unanswered::Refused(text) => Unanswered::Refused(text.replace("; force=on ", "; --force ")),
        away @ Unanswered::Away(_) => away,
    }
}

fn list(client: &Client, address: Option<IpAddr>, json: bool) -> Result<(), Failure> {
    let path =
        address.map_or_else(|| "/v1/bans".to_owned(), |address| bans_path(&address.to_string()));
    let (mut list, answer) = client.get::<BanList>(&path)?;
    if json {
        terminal::print(&answer);
        return Ok(());
    }
    list.bans.retain(|ban| ban.left_seconds > 0);
    if list.bans.is_empty() {
        terminal::print("no client is banned\n");
        return Ok(());
    }
    let columns: [Column; 4] = [text("WHO"), number("LEFT", 0), number("BANS", 0), text("WHY")];
    let row = |ban: &Ban| Row {
        cells: [ban.network.clone(), left(ban), ban.count.to_string(), reason(ban)]
            .map(Into::into)
            .into(),
        below: None,
    };
    let look = look();
    terminal::print(&table(
        &columns,
        &list.bans.iter().map(row).collect::<Vec<_>>(),
        0,
        look.width,
        look.colour,
    ));
    Ok(())
}

/// Returns everything about an address, for people.
fn why(address: IpAddr, list: &BanList) -> String {
    let mut out = String::new();
    for ban in &list.bans {
        let is_in_force = if ban.left_seconds > 0 { "is banned" } else { "was banned" };
        let left =
            if ban.left_seconds > 0 { format!(", {} left", left(ban)) } else { String::new() };
        let for_s = Duration::from_secs(ban.until_seconds.saturating_sub(ban.since_seconds));
        let (network, why) = (&ban.network, reason(ban));
        out += &format!(
            "{network} {is_in_force} for {}{left}: {why} (ban {} of it)\n",
            span(for_s),
            ban.count
        );
    }
    if let Some(never) = &list.never {
        out += &format!("{address} is never banned by limits: it is {never}\n");
    }
    if out.is_empty() {
        format!("{address} is not banned, and no past ban of it counts\n")
    } else {
        out
    }
}

fn left(ban: &Ban) -> String {
    span(Duration::from_secs(ban.left_seconds))
}

fn reason(ban: &Ban) -> String {
    let reason = terminal::printable(&ban.reason);
    match (reason.is_empty(), ban.forced) {
        (true, false) => "by command".to_owned(),
        (true, true) => "by command, forced".to_owned(),
        (false, false) => reason,
        (false, true) => format!("{reason} (forced)"),
    }
}

/// Parses an address or a range.
fn whom(text: &str) -> Result<String, String> {
    match Block::read(text, 32, 64) {
        Some(_) => Ok(text.to_owned()),
        None => {
            Err("expected an address, or a range such as 192.0.2.0/24 or 2001:db8::/48".to_owned())
        }
    }
}

/// Parses the length of a ban, in microseconds.
fn time(text: &str) -> Result<u64, String> {
    match parse_time(text)? {
        us @ 1_000_000..=FOR_US_MAX => Ok(us),
        _ => Err("from 1s to 3650d".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    //! Proves: the report on an address for people, and the words of a ban. How: tables.

    use super::*;

    #[test]
    fn what_is_told_of_an_address() {
        let address = IpAddr::from([192, 0, 2, 7]);
        let mut list = BanList::default();
        assert_eq!(why(address, &list), "192.0.2.7 is not banned, and no past ban of it counts\n");
        let ban = |left_seconds, forced| Ban {
            network: "192.0.2.7".to_owned(),
            since_seconds: 1000,
            until_seconds: 1600,
            left_seconds,
            count: 2,
            reason: "limit rate".to_owned(),
            forced,
        };
        list.bans = vec![ban(0, false), ban(90, true)];
        list.never = Some("loopback".to_owned());
        let told = why(address, &list);
        let lines: Vec<&str> = told.lines().collect();
        assert!(
            lines[0].starts_with("192.0.2.7 was banned for ")
                && lines[0].ends_with(": limit rate (ban 2 of it)"),
            "{told}"
        );
        assert!(lines[1].contains(" left: limit rate (forced) (ban 2 of it)"), "{told}");
        assert_eq!(lines[2], "192.0.2.7 is never banned by limits: it is loopback");
    }

    #[test]
    fn an_error_names_the_flag() {
        let said = |text: &str| {
            Failure::from(in_words_of_the_command(Unanswered::Refused(text.to_owned()))).to_string()
        };
        assert_eq!(
            said("::1 is loopback; force=on bans it"),
            "weir: ::1 is loopback; --force bans it\n"
        );
        assert_eq!(said("no bans within ::1"), "weir: no bans within ::1\n");
    }

    #[test]
    fn words_of_a_ban() {
        for (text, is_it) in
            [("192.0.2.7", true), ("2001:db8::/48", true), ("192.0.2.0/0", false), ("host", false)]
        {
            assert_eq!(whom(text).is_ok(), is_it, "{text}");
        }
        for (text, us) in [
            ("1h", Some(3_600_000_000)),
            ("1s", Some(1_000_000)),
            ("10ms", None),
            ("4000d", None),
            ("7", None),
        ] {
            assert_eq!(time(text).ok(), us, "{text}");
        }
    }
}
