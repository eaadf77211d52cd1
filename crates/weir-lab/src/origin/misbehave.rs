//! Misbehaviours by name: the table of them, and how a text of the command line becomes rules.
//!
//! Called by `weir origin` before anything listens; `mischief.rs` carries the rules out. A text is
//! `NAME[=ARGUMENT[:ARGUMENT]...][:HOW-OFTEN]`, several with commas; how often is `every=N` or
//! `P%`. Meaningless texts, and rules that would never apply beside the others, are errors that
//! name the remedy.

use std::str::FromStr;

use crate::units::time_us;

/// Longest time that a rule may name: ten minutes.
const TIME_US_MAX: u64 = 600_000_000;
/// Largest count that a rule may name.
const COUNT_MAX: u64 = 1 << 40;
/// A hundred per cent in the unit of [`Often::Share`].
const WHOLE: u64 = 1_000_000;

/// The misbehaviours of the origin, in the order in which they are decided: a request that one of
/// the first four hits meets no other, the rest may come together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Resets a connection as soon as it is accepted.
    Refuse,
    /// Resets the connection upon a request.
    Reset,
    /// Closes the connection upon a request.
    HangUp,
    /// Never responds, and keeps the connection.
    NoAnswer,
    /// Freezes as a whole for a time, once.
    Freeze,
    /// Responds before the body of the request is read.
    AnswerEarly,
    /// Gives another status.
    Status,
    /// Delays one response.
    Stall,
    /// Closes each connection after this many responses; the last one announces it.
    CloseAfter,
    /// Closes each connection after this many responses without an announcement.
    HangUpAfter,
    /// Closes each connection after its first response, which announces it.
    NoKeepAlive,
    /// Gives a body of the right length with a wrong byte.
    Garble,
    /// Resets the connection in the middle of a body.
    ResetMidBody,
    /// Closes the connection in the middle of a body.
    Truncate,
    /// Sends the response twice.
    AnswerTwice,
    /// Sends the response a few bytes at a time.
    SlowDrip,
}

impl Kind {
    /// How many there are.
    pub const COUNT: usize = ROWS.len();

    /// Its name on the command line and in the statistics.
    pub fn name(self) -> &'static str {
        ROWS[self as usize].name
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Kind> {
        ROWS.iter().map(|row| row.kind)
    }

    /// Whether a request that it hits meets no other misbehaviour.
    fn ends_the_matter(self) -> bool {
        matches!(self, Kind::Refuse | Kind::Reset | Kind::HangUp | Kind::NoAnswer)
    }
}

/// The unit of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// At least 1.
    Count,
    /// Milliseconds, or with a unit; at least 1 us.
    Time,
    /// The same, but 0 is allowed.
    Moment,
    /// 200 to 599.
    Status,
}

/// One argument.
struct Argument {
    /// The optional prefix `key=`.
    key: &'static str,
    unit: Unit,
    /// The value when it is not given; None: it is required.
    default: Option<u64>,
}

/// One misbehaviour.
struct Row {
    kind: Kind,
    name: &'static str,
    usage: &'static str,
    help: &'static str,
    arguments: &'static [Argument],
    /// How often by default; None: it can't be specified.
    often: Option<Often>,
}

const fn argument(key: &'static str, unit: Unit) -> Argument {
    Argument { key, unit, default: None }
}

const fn row(
    kind: Kind,
    usage: &'static str,
    help: &'static str,
    arguments: &'static [Argument],
) -> Row {
    Row { kind, name: name_of(usage), usage, help, arguments, often: Some(Often::Always) }
}

impl Row {
    const fn often(mut self, often: Option<Often>) -> Row {
        self.often = often;
        self
    }
}

/// Returns the text before the first `=` or `[`.
const fn name_of(usage: &'static str) -> &'static str {
    let bytes = usage.as_bytes();
    let mut end = 0;
    while end < bytes.len() && bytes[end] != b'=' && bytes[end] != b'[' {
        end += 1;
    }
    usage.split_at(end).0
}

/// In the order of [`Kind`].
const ROWS: [Row; 16] = [
    row(Kind::Refuse, "refuse[=HOW-OFTEN]", "resets connections as soon as they are accepted", &[]),
    row(Kind::Reset, "reset[=HOW-OFTEN]", "resets the connection when a request arrives", &[]),
    row(Kind::HangUp, "hang-up[=HOW-OFTEN]", "closes the connection when a request arrives", &[]),
    row(
        Kind::NoAnswer,
        "no-answer[=HOW-OFTEN]",
        "never responds, and keeps the connection open",
        &[],
    ),
    row(
        Kind::Freeze,
        "freeze=MS[:at=MS]",
        "stops once for MS, at this time after the first request",
        &[
            argument("for", Unit::Time),
            Argument { key: "at", unit: Unit::Moment, default: Some(0) },
        ],
    )
    .often(None),
    row(
        Kind::AnswerEarly,
        "answer-early[=HOW-OFTEN]",
        "responds before it reads the body of the request",
        &[],
    ),
    row(
        Kind::Status,
        "status=CODE[:HOW-OFTEN]",
        "responds with this status",
        &[argument("code", Unit::Status)],
    ),
    row(
        Kind::Stall,
        "stall=MS[:HOW-OFTEN]",
        "delays a response, only the first one by default",
        &[argument("for", Unit::Time)],
    )
    .often(Some(Often::Once)),
    row(
        Kind::CloseAfter,
        "close-after=N",
        "closes each connection after N responses, with Connection: close",
        &[argument("answers", Unit::Count)],
    )
    .often(None),
    row(
        Kind::HangUpAfter,
        "hang-up-after=N",
        "closes each connection after N responses, without notice",
        &[argument("answers", Unit::Count)],
    )
    .often(None),
    row(
        Kind::NoKeepAlive,
        "no-keep-alive",
        "closes each connection after a response, with Connection: close",
        &[],
    )
    .often(None),
    row(Kind::Garble, "garble[=HOW-OFTEN]", "sends a body with a wrong byte", &[]),
    row(
        Kind::ResetMidBody,
        "reset-mid-body[=HOW-OFTEN]",
        "resets the connection in the middle of a body",
        &[],
    ),
    row(
        Kind::Truncate,
        "truncate[=HOW-OFTEN]",
        "closes the connection in the middle of a body",
        &[],
    ),
    row(Kind::AnswerTwice, "answer-twice[=HOW-OFTEN]", "sends the response twice", &[]),
    row(
        Kind::SlowDrip,
        "slow-drip=BYTES:MS[:HOW-OFTEN]",
        "sends the response BYTES at a time, with pauses of MS",
        &[argument("bytes", Unit::Count), argument("pause", Unit::Time)],
    ),
];

/// Which occasions it hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Often {
    Always,
    Once,
    /// Every nth, from 1.
    Every(u64),
    /// This many of a million, spread without a pattern.
    Share(u64),
}

impl Often {
    /// Whether it hits the `nth`, from 1.
    pub(super) fn hits(self, nth: u64) -> bool {
        match self {
            Often::Always => true,
            Often::Once => nth == 1,
            Often::Every(count) => nth.is_multiple_of(count),
            Often::Share(share) => scattered(nth) % WHOLE < share,
        }
    }

    /// None: the text does not specify how often. Err: it does, but is invalid.
    fn read(text: &str) -> Option<Result<Often, String>> {
        if let Some(count) = text.strip_prefix("every=") {
            return Some(read_number(count, Unit::Count).map(|count| match count {
                1 => Often::Always,
                count => Often::Every(count),
            }));
        }
        let share = text
            .strip_suffix('%')?
            .parse::<f64>()
            .ok()
            .filter(|share| *share > 0.0 && *share <= 100.0);
        Some(match share {
            Some(100.0) => Ok(Often::Always),
            Some(share) => Ok(Often::Share(((share * WHOLE as f64 / 100.0) as u64).max(1))),
            None => Err(format!("`{text}` is not a share; expected more than 0% and at most 100%")),
        })
    }
}

/// Maps numbers to numbers without a pattern, the same each time (the finaliser of splitmix64).
fn scattered(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// One misbehaviour as configured. The meaning of the values is in its row; times are microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) first: u64,
    pub(super) second: u64,
    pub(super) often: Often,
}

/// What an origin does wrong; by default nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Misbehaviours {
    rules: [Option<Rule>; Kind::COUNT],
}

impl Misbehaviours {
    /// Reads texts as the command line has them.
    ///
    /// # Errors
    /// The text says what is wrong and what is valid, in one line.
    pub fn parse<S: AsRef<str>>(texts: &[S]) -> Result<Misbehaviours, String> {
        let mut all = Misbehaviours::default();
        for text in texts.iter().flat_map(|text| text.as_ref().split(',')) {
            let (kind, rule) = read_one(text.trim())?;
            if all.rules[kind as usize].replace(rule).is_some() {
                return Err(format!("`{}` is given twice", kind.name()));
            }
        }
        all.check()?;
        Ok(all)
    }

    /// Whether there are no misbehaviours.
    pub fn is_empty(&self) -> bool {
        self.rules.iter().all(Option::is_none)
    }

    /// Returns the configured kinds, in the order of the table.
    pub fn kinds(&self) -> impl Iterator<Item = Kind> {
        Kind::all().filter(|kind| self.rule(*kind).is_some())
    }

    /// Returns the rule for this kind.
    pub(super) fn rule(&self, kind: Kind) -> Option<Rule> {
        self.rules[kind as usize]
    }

    /// Rejects rules that could never apply.
    fn check(&self) -> Result<(), String> {
        let kinds: Vec<Kind> = self.kinds().collect();
        let is_always =
            |kind: &Kind| self.rule(*kind).is_some_and(|rule| rule.often == Often::Always);
        if let Some(at) = kinds.iter().position(|kind| kind.ends_the_matter() && is_always(kind))
            && let Some(other) = kinds[at + 1..].iter().find(|kind| **kind != Kind::Freeze)
        {
            let (first, other) = (kinds[at].name(), other.name());
            return Err(format!(
                "`{first}` leaves nothing for `{other}`; add a frequency, such as `{first}=10%`"
            ));
        }
        let ends = [Kind::CloseAfter, Kind::HangUpAfter, Kind::NoKeepAlive];
        let mut ends = ends.into_iter().filter(|kind| self.rule(*kind).is_some());
        if let (Some(one), Some(other)) = (ends.next(), ends.next()) {
            return Err(format!(
                "`{}` and `{}` cannot both end a connection; choose one",
                one.name(),
                other.name()
            ));
        }
        let cut = [Kind::ResetMidBody, Kind::Truncate].into_iter().find(is_always);
        let behind = [Kind::Truncate, Kind::AnswerTwice];
        if let Some(cut) = cut
            && let Some(other) =
                behind.into_iter().find(|kind| *kind != cut && self.rule(*kind).is_some())
        {
            let (first, other) = (cut.name(), other.name());
            return Err(format!(
                "`{first}` leaves nothing for `{other}`; add a frequency, such as `{first}=10%`"
            ));
        }
        Ok(())
    }
}

impl FromStr for Misbehaviours {
    type Err = String;

    fn from_str(text: &str) -> Result<Misbehaviours, String> {
        Misbehaviours::parse(&[text])
    }
}

/// The table as text, one line each.
pub fn help() -> String {
    let width = ROWS.iter().map(|row| row.usage.len()).max().unwrap_or(0);
    ROWS.iter().map(|row| format!("  {:width$}  {}\n", row.usage, row.help)).collect()
}

fn read_one(text: &str) -> Result<(Kind, Rule), String> {
    let split = text.find(['=', ':']).unwrap_or(text.len());
    let (name, rest) = (&text[..split], text.get(split + 1..));
    let Some(row) = ROWS.iter().find(|row| row.name == name) else { return Err(unknown(name)) };
    let wrong = |why: &str| format!("`{text}`: {why}; expected {}", row.usage);
    let mut values = [None; 2];
    let mut often = None;
    for part in rest.into_iter().flat_map(|rest| rest.split(':')) {
        if let Some(read) = Often::read(part) {
            row.often.ok_or_else(|| wrong("HOW-OFTEN is not allowed"))?;
            if often.replace(read.map_err(|why| wrong(&why))?).is_some() {
                return Err(wrong("HOW-OFTEN is given twice"));
            }
            continue;
        }
        let (at, value) = row
            .place(part, &values)
            .ok_or_else(|| wrong(&format!("`{part}` is one value too many")))?;
        values[at] = Some(read_number(value, row.arguments[at].unit).map_err(|why| wrong(&why))?);
    }
    let mut filled = [0; 2];
    for (at, argument) in row.arguments.iter().enumerate() {
        filled[at] =
            values[at].or(argument.default).ok_or_else(|| wrong("something is missing"))?;
    }
    let often = often.or(row.often).unwrap_or(Often::Always);
    Ok((row.kind, Rule { first: filled[0], second: filled[1], often }))
}

impl Row {
    /// Returns which argument a part gives, and the value in it: the named argument, or the first
    /// that has no value yet.
    fn place<'a>(&self, part: &'a str, values: &[Option<u64>]) -> Option<(usize, &'a str)> {
        let named = part.split_once('=').filter(|(key, _)| !key.is_empty());
        let free = |at: &usize| values[*at].is_none();
        let mut places = 0..self.arguments.len();
        match named {
            Some((key, value)) => {
                places.find(|at| self.arguments[*at].key == key).filter(free).map(|at| (at, value))
            }
            None => places.find(free).map(|at| (at, part)),
        }
    }
}

fn unknown(name: &str) -> String {
    let near = ROWS.iter().map(|row| (strsim::jaro_winkler(name, row.name), row.name));
    let near = near.filter(|(score, _)| *score > 0.8).max_by(|a, b| a.0.total_cmp(&b.0));
    let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
    let hint = near.map_or_else(String::new, |(_, name)| format!("did you mean `{name}`? "));
    format!("no misbehaviour `{name}`; {hint}Known: {}", names.join(", "))
}

/// A number in the base unit of its kind.
fn read_number(text: &str, unit: Unit) -> Result<u64, String> {
    let (range, what) = match unit {
        Unit::Count => (1..=COUNT_MAX, "a number from 1"),
        Unit::Time => (1..=TIME_US_MAX, "a time such as 50, 50ms or 2s, at most 600s"),
        Unit::Moment => (0..=TIME_US_MAX, "a time such as 0, 50ms or 2s, at most 600s"),
        Unit::Status => (200..=599, "a status from 200 to 599"),
    };
    let read = match unit {
        Unit::Count | Unit::Status => text.parse().ok(),
        Unit::Time | Unit::Moment => time_us(text),
    };
    read.filter(|value| range.contains(value)).ok_or_else(|| format!("`{text}` is not {what}"))
}

#[cfg(test)]
mod tests {
    //! Proves: each row is where its kind says, each text is read as the help describes it, and
    //! invalid or impossible rules are rejected with the remedy. How: tables of texts.

    use super::*;

    fn rule(text: &str, kind: Kind) -> Rule {
        text.parse::<Misbehaviours>().unwrap().rule(kind).unwrap()
    }

    #[test]
    fn rows_are_in_the_order_of_kinds_and_fit_a_terminal() {
        for (at, row) in ROWS.iter().enumerate() {
            assert_eq!(row.kind as usize, at, "{}", row.name);
            assert!(row.arguments.len() <= 2);
        }
        assert!(help().lines().all(|line| line.len() <= 100), "{}", help());
    }

    #[test]
    fn every_form_is_read() {
        let one = |first, second, often| Rule { first, second, often };
        for (text, kind, expected) in [
            ("close-after=100", Kind::CloseAfter, one(100, 0, Often::Always)),
            ("no-keep-alive", Kind::NoKeepAlive, one(0, 0, Often::Always)),
            ("stall=300", Kind::Stall, one(300_000, 0, Often::Once)),
            ("stall=2s:every=50", Kind::Stall, one(2_000_000, 0, Often::Every(50))),
            ("stall=every=50:2s", Kind::Stall, one(2_000_000, 0, Often::Every(50))),
            ("freeze=1s:at=5s", Kind::Freeze, one(1_000_000, 5_000_000, Often::Always)),
            ("freeze=1000:5000", Kind::Freeze, one(1_000_000, 5_000_000, Often::Always)),
            ("freeze=for=1000", Kind::Freeze, one(1_000_000, 0, Often::Always)),
            ("slow-drip=1:10", Kind::SlowDrip, one(1, 10_000, Often::Always)),
            ("slow-drip=7:500us:5%", Kind::SlowDrip, one(7, 500, Often::Share(50_000))),
            ("reset=33%", Kind::Reset, one(0, 0, Often::Share(330_000))),
            ("reset-mid-body:every=3", Kind::ResetMidBody, one(0, 0, Often::Every(3))),
            ("reset-mid-body=every=1", Kind::ResetMidBody, one(0, 0, Often::Always)),
            ("status=503:0.5%", Kind::Status, one(503, 0, Often::Share(5_000))),
            ("refuse=100%", Kind::Refuse, one(0, 0, Often::Always)),
        ] {
            assert_eq!(rule(text, kind), expected, "{text}");
        }
        let several = Misbehaviours::parse(&["close-after=9, stall=5", "truncate=10%"]).unwrap();
        assert_eq!(
            several.kinds().collect::<Vec<_>>(),
            [Kind::Stall, Kind::CloseAfter, Kind::Truncate]
        );
        assert!(Misbehaviours::default().is_empty() && !several.is_empty());
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_the_way_out() {
        for (text, why) in [
            ("reste=5%", "did you mean `reset`? Known: refuse, reset,"),
            ("", "no misbehaviour ``; Known: refuse,"),
            ("close-after", "something is missing; expected close-after=N"),
            ("close-after=", "`` is not a number from 1"),
            ("close-after=0", "`0` is not a number from 1"),
            ("close-after=1:2", "`2` is one value too many"),
            ("close-after=1:5%", "HOW-OFTEN is not allowed"),
            ("slow-drip=1", "something is missing; expected slow-drip=BYTES:MS"),
            ("stall=5m", "`5m` is not a time"),
            ("stall=601s", "at most 600s"),
            ("stall=5:every=0", "`0` is not a number from 1"),
            ("stall=5:1%:2%", "HOW-OFTEN is given twice"),
            ("reset=0%", "`0%` is not a share"),
            ("reset=101%", "`101%` is not a share"),
            ("reset=5", "`5` is one value too many"),
            ("status=100", "`100` is not a status"),
            ("no-keep-alive=1", "`1` is one value too many"),
            ("freeze=1:at=2:at=3", "`at=3` is one value too many"),
            ("reset=5%,reset=6%", "`reset` is given twice"),
            ("reset,stall=5", "`reset` leaves nothing for `stall`"),
            ("close-after=5,no-keep-alive", "choose one"),
            ("truncate,answer-twice", "`truncate` leaves nothing for `answer-twice`"),
        ] {
            let error = text.parse::<Misbehaviours>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn shares_are_what_they_say_and_have_no_pattern() {
        for share in [10_000, 330_000, 500_000] {
            let hits = (1..=100_000).filter(|nth| Often::Share(share).hits(*nth)).count() as f64;
            let expected = share as f64 / 10.0;
            assert!((hits - expected).abs() < 4.0 * expected.sqrt(), "{share}: {hits}");
        }
        let twice = (1..=10_000)
            .filter(|nth| Often::Share(500_000).hits(*nth) && Often::Share(500_000).hits(nth + 1));
        assert!((2_200..2_800).contains(&twice.count()));
        assert_eq!((1..=7).filter(|nth| Often::Every(3).hits(*nth)).collect::<Vec<_>>(), [3, 6]);
        assert_eq!((1..=7).filter(|nth| Often::Once.hits(*nth)).collect::<Vec<_>>(), [1]);
    }
}
