//! Lists the clients that are close to their limits, or over one, for operators. Never called by
//! workers, and never stops them.
//!
//! An account does not name its client: its tag is a hash. The label beside it holds an address for
//! people, so all tags that this address may have are tried. Bound: two hashes for each account in
//! use and limit; twice `most` rows.

use super::key::{Key, Prefix};
use super::table::Account;
use crate::plan::{LimitPlan, ShieldPlan, Terms};

/// The contents of the table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Survey {
    /// Accounts that there is room for.
    pub accounts: usize,
    /// Accounts that are worth something.
    pub used: usize,
    /// Clients with the most refusals first, then those closest to a limit.
    pub top: Vec<Standing>,
}

/// The standing of a client with a limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    /// The client, or a number in place of the values in requests.
    pub who: String,
    /// The name of the limit.
    pub limit: Box<str>,
    /// The used share of the burst or of the maximum, from 0 to 1; more after a reload.
    pub share: f64,
    /// Connections that are open, or requests in progress.
    pub open: u32,
    /// Refusals since the last minute without one, of all limits that share the account.
    pub refused: u32,
    /// Microseconds since the last one, if there was one.
    pub refused_us: Option<u64>,
}

/// Looks through the accounts: the standing with one limit, or with the worst of all limits of each
/// account.
pub fn survey(plan: &ShieldPlan, limit: Option<&str>, most: usize, now_us: u64) -> Survey {
    let table = plan.seed.table();
    let mut survey = Survey { accounts: table.accounts(), ..Survey::default() };
    let worst = |top: &mut Vec<Standing>| {
        top.sort_by(|a, b| {
            b.refused.cmp(&a.refused).then(b.share.total_cmp(&a.share)).then(a.who.cmp(&b.who))
        });
        top.truncate(most);
    };
    for account in table.in_use(now_us) {
        survey.used += 1;
        let standings = plan
            .limits
            .iter()
            .filter(|one| limit.is_none_or(|name| *one.name == *name))
            .filter_map(|limit| standing(plan, limit, &account, now_us));
        survey.top.extend(standings.max_by(|a, b| a.share.total_cmp(&b.share)));
        if survey.top.len() >= 2 * most.max(64) {
            worst(&mut survey.top);
        }
    }
    worst(&mut survey.top);
    survey
}

/// Returns how an account stands with a limit. None: it belongs to other limits, or owes nothing to
/// this limit.
fn standing(
    plan: &ShieldPlan,
    limit: &LimitPlan,
    account: &Account,
    now_us: u64,
) -> Option<Standing> {
    let share = match limit.terms {
        Terms::Open(max) | Terms::InProgress(max) => f64::from(account.open) / f64::from(max),
        _ => limit.terms.rate()?.share(account.dues[usize::from(limit.seat.slot)], now_us),
    };
    if share <= 0.0 && account.offences == 0 {
        return None;
    }
    let group = limit.seat.group;
    let who = match account.values_of() {
        Some(of) if of == group && !limit.by.is_client() => format!("value {:016x}", account.tag),
        Some(_) => return None,
        None => {
            let table = plan.seed.table();
            let is_his = |key: &Key| table.name(group, *key).is(account.tag);
            keys(account.label, plan.prefix)
                .into_iter()
                .flatten()
                .find(is_his)?
                .block()?
                .to_string()
        }
    };
    Some(Standing {
        who,
        limit: limit.name.clone(),
        share,
        open: account.open,
        refused: account.offences,
        refused_us: (account.offences > 0).then(|| now_us.saturating_sub(account.last_us)),
    })
}

/// Returns the keys that may have this label: a client's, and that of a larger network.
fn keys(label: [u64; 2], prefix: Prefix) -> [Option<Key>; 2] {
    let key = Key::of_label(label, prefix);
    [Some(key), key.aggregate()]
}

#[cfg(test)]
mod tests {
    //! Proves: a client at its limits is named, with what it has used. How: accounts that are
    //! charged by hand.

    use super::*;
    use crate::shield::by::{By, Part};
    use crate::shield::limit::Rate;

    const NOW_US: u64 = 1_000_000_000;

    fn limit(name: &str, terms: Terms) -> LimitPlan {
        LimitPlan::new(name, terms)
    }

    #[test]
    fn who_is_at_his_limits() {
        let rate = Rate::new(1, 3_600_000_000, 4, false);
        let mut of_values = limit("values", Terms::Requests(rate));
        of_values.by = By { parts: vec![Part::Host], falls_back: false };
        let limits =
            vec![limit("rate", Terms::Requests(rate)), limit("open", Terms::Open(2)), of_values];
        let plan = ShieldPlan::new(limits, 1024);
        let table = plan.seed.table();
        let key = |address: &str| Key::of(address.parse().unwrap(), plan.prefix);
        let name = |at: usize, address: &str| table.name(plan.limits[at].seat.group, key(address));
        let charge = |name, at: usize, count| {
            for _ in 0..count {
                table.charge(&name, None, plan.limits[at].seat.slot.into(), &rate, NOW_US);
            }
        };
        charge(name(0, "192.0.2.1"), 0, 3);
        charge(name(0, "2001:db8:1:2::3"), 0, 5);
        charge(table.name_of_values(plan.limits[2].seat.group, b"a"), 2, 2);
        let entered = table.enter(&name(1, "192.0.2.9"), None, 2, NOW_US);
        let crate::shield::table::Entered::At(place, 1) = entered else { panic!("{entered:?}") };
        table.offend(place, key("192.0.2.9"), true, NOW_US);
        let rows = |limit, most| -> Vec<(String, String, f64, u32)> {
            let survey = survey(&plan, limit, most, NOW_US);
            assert_eq!((survey.accounts, survey.used), (1024, 4));
            let row = |row: Standing| {
                (row.who, row.limit.into_string(), (row.share * 100.0).round(), row.refused)
            };
            survey.top.into_iter().map(row).collect()
        };
        let row = |who: &str, limit: &str, percent, refused| {
            (who.to_owned(), limit.to_owned(), percent, refused)
        };
        let all = rows(None, 10);
        assert_eq!(
            all[..3],
            [
                row("192.0.2.9", "open", 50.0, 1),
                row("2001:db8:1:2::/64", "rate", 100.0, 0),
                row("192.0.2.1", "rate", 75.0, 0)
            ]
        );
        assert_eq!((all.len(), &all[3].1[..], all[3].2), (4, "values", 50.0));
        assert!(all[3].0.starts_with("value "), "{all:?}");
        assert_eq!(rows(None, 1).len(), 1);
        assert_eq!(rows(Some("open"), 10), [row("192.0.2.9", "open", 50.0, 1)]);
    }
}
