//! A verdict: this server is not pipelined until an operator clears it.
//!
//! The worker that finds a reason informs the others, and a restarted worker finds the verdict in
//! its [`Hints`](super::hints::Hints). The program keeps verdicts in a file, so that a restart of
//! weir harms neither the server again nor the clients of a server that mixes answers up.
//! docs/pipelining-trust.md#verdicts

use crate::cross::doubt::Doubt;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It may have given answers to the wrong clients: because of this doubt, or of an answer too
    /// many.
    Surplus(Option<Doubt>),
    /// It cannot handle several requests at once; the doubt is that of the second time.
    Unfit(Doubt),
}

impl Verdict {
    /// The word in the state file; the same as that of the trust which follows from it.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Surplus(_) => "surplus",
            Verdict::Unfit(_) => "unfit",
        }
    }

    /// What the server did; None: it sent a surplus response.
    pub fn doubt(self) -> Option<Doubt> {
        match self {
            Verdict::Surplus(doubt) => doubt,
            Verdict::Unfit(doubt) => Some(doubt),
        }
    }

    /// The verdict of these words. A doubt that this version does not know is left out; None: the
    /// word is none of [`Verdict::word`].
    pub fn read(word: &str, doubt: Option<&str>) -> Option<Verdict> {
        let doubt =
            doubt.and_then(|word| Doubt::ALL.into_iter().find(|doubt| doubt.word() == word));
        match word {
            "surplus" => Some(Verdict::Surplus(doubt)),
            "unfit" => Some(Verdict::Unfit(doubt.unwrap_or(Doubt::FailsRehearsal))),
            _ => None,
        }
    }

    /// As a number other than 0.
    pub(super) fn code(self) -> u8 {
        match self {
            Verdict::Surplus(None) => 1,
            Verdict::Surplus(Some(doubt)) => 2 + 2 * doubt as u8,
            Verdict::Unfit(doubt) => 3 + 2 * doubt as u8,
        }
    }

    /// The verdict of a number.
    pub(super) fn of(code: u8) -> Option<Verdict> {
        let doubt = || Doubt::ALL.get(usize::from(code / 2).checked_sub(1)?).copied();
        match code {
            0 => None,
            1 => Some(Verdict::Surplus(None)),
            code if code % 2 == 0 => doubt().map(|doubt| Verdict::Surplus(Some(doubt))),
            _ => doubt().map(Verdict::Unfit),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a verdict is the same again after it was a number, or words. How: all of them.

    use super::*;

    #[test]
    fn numbers_and_words_are_read_again() {
        let doubts = Doubt::ALL.into_iter();
        let doubted =
            doubts.flat_map(|doubt| [Verdict::Surplus(Some(doubt)), Verdict::Unfit(doubt)]);
        for verdict in doubted.chain([Verdict::Surplus(None)]) {
            assert_eq!(Verdict::of(verdict.code()), Some(verdict));
            assert_eq!(
                Verdict::read(verdict.word(), verdict.doubt().map(Doubt::word)),
                Some(verdict)
            );
        }
        assert_eq!((Verdict::of(0), Verdict::of(255)), (None, None));
        assert_eq!(
            Verdict::read("unfit", Some("of-a-later-version")),
            Some(Verdict::Unfit(Doubt::FailsRehearsal))
        );
        assert_eq!(
            Verdict::read("surplus", Some("of-a-later-version")),
            Some(Verdict::Surplus(None))
        );
        assert_eq!(Verdict::read("fit", None), None);
    }
}
