//! The errands that the machines of one worker have given to the side thread, name resolution and
//! verification, and the jobs that other threads encode for it (`encoding.rs`). The worker never
//! waits for either: errands are handed over at the end of a turn, news are heard before one
//! (`Worker::hear`).
//!
//! Bound: [`ERRANDS_MAX`] errands of each kind and [`JOBS_MAX`] jobs open at once, including those
//! from before the worker's last restart. Further jobs are run by the worker itself. Further
//! errands fail at once, and all errands do so without a runner. Each client, or user that asks for
//! names, may have as many as are free ([`Shares`]). New machines may ask questions under names
//! that former machines used before. So verdicts on credentials that those requested are discarded,
//! and until the last of them has come no others are accepted.

use std::fmt;
use std::sync::Arc;

use weir_proxy::engine::Job;
use weir_proxy::forward::lookup::{Errand, News, Unresolved, Unverified};
use weir_proxy::forward::shares::{Asker, Shares};

use crate::encoding::{Encoders, JOBS_MAX};

/// Errands of one kind that one worker may have open. Kinds are counted separately: guessing
/// passwords blocks no name resolution.
pub const ERRANDS_MAX: usize = 4096;

/// Runs the errands of all workers.
pub trait Errands: fmt::Debug + Send + Sync {
    /// Takes an errand of a worker without waiting. Exactly one [`News`] follows, by
    /// [`crate::Handle::tell`].
    ///
    /// # Errors
    /// The errand, when it is no longer accepted; nothing follows then.
    fn run(&self, worker: u16, errand: Errand) -> Result<(), Errand>;
}

/// The errands of one worker.
#[derive(Debug)]
pub(crate) struct Open {
    worker: u16,
    runner: Option<Arc<dyn Errands>>,
    /// Names handed over but not answered.
    names: Shares,
    /// Credentials handed over but not answered.
    credentials: Shares,
    /// How many credentials those are.
    verifying: usize,
    /// Those of them from before the worker's last restart. While any remain, none are handed over:
    /// so the next verdicts are theirs.
    orphans: usize,
    /// Results of those that were not handed over.
    failed: Vec<News>,
    /// Runs jobs; None: the worker does.
    encoders: Option<Encoders>,
    /// Jobs that are being run there, including those from before a restart.
    encoding: usize,
}

impl Open {
    /// None are open.
    pub(crate) fn new(worker: u16, runner: Option<Arc<dyn Errands>>) -> Open {
        let [names, credentials] = [(); 2].map(|()| Shares::new(ERRANDS_MAX));
        Open {
            worker,
            runner,
            names,
            credentials,
            verifying: 0,
            orphans: 0,
            failed: Vec::new(),
            encoders: None,
            encoding: 0,
        }
    }

    /// Sets the runner of errands.
    pub(crate) fn set_runner(&mut self, runner: Option<Arc<dyn Errands>>) {
        self.runner = runner;
    }

    /// Sets the runner of jobs.
    pub(crate) fn set_encoders(&mut self, encoders: Encoders) {
        self.encoders = Some(encoders);
    }

    /// Hands over a job.
    ///
    /// # Errors
    /// The job: it has to be run here.
    pub(crate) fn encode(&mut self, job: Box<Job>) -> Result<(), Box<Job>> {
        match &self.encoders {
            Some(encoders) if self.encoding < JOBS_MAX => encoders.run(self.worker, job)?,
            _ => return Err(job),
        }
        self.encoding += 1;
        Ok(())
    }

    /// The machines that have given the errands so far no longer exist.
    pub(crate) fn begin_anew(&mut self) {
        self.orphans = self.verifying;
        self.failed.clear();
    }

    /// Hands over an errand. False: it has failed, as the next news report.
    pub(crate) fn run(&mut self, errand: Errand) -> bool {
        let has_room = match &errand {
            Errand::Resolve { asker, .. } => self.names.enter(asker),
            Errand::Verify { client, .. } => {
                self.orphans == 0 && self.credentials.enter(&Asker::Client(*client))
            }
        };
        self.verifying += usize::from(has_room && matches!(errand, Errand::Verify { .. }));
        let refused = match &self.runner {
            Some(runner) if has_room => runner.run(self.worker, errand).err(),
            _ => Some(errand),
        };
        let Some(refused) = refused else { return true };
        let news = match refused {
            Errand::Resolve { name, asker } => {
                let why = if has_room { Unresolved::Failed } else { Unresolved::NoRoom };
                News::Resolved { name, asker, answer: Err(why) }
            }
            Errand::Verify { question, client, .. } => {
                News::Verified { question, client, user: Err(Unverified::NoRoom) }
            }
        };
        if has_room {
            self.forget(&news);
        }
        self.failed.push(news);
        false
    }

    /// Closes the errands of the delivered news. Returns those news, and the failures that were
    /// never delivered.
    pub(crate) fn close(&mut self, mut told: Vec<News>) -> Vec<News> {
        told.retain(|news| {
            self.forget(news);
            let is_orphan = self.orphans > 0 && matches!(news, News::Verified { .. });
            self.orphans -= usize::from(is_orphan);
            !is_orphan
        });
        told.append(&mut self.failed);
        told
    }

    /// Closes an errand that was open.
    fn forget(&mut self, news: &News) {
        match news {
            News::Encoded(_) => self.encoding = self.encoding.saturating_sub(1),
            News::Resolved { asker, .. } => self.names.leave(asker),
            News::Verified { client, .. } => {
                self.credentials.leave(&Asker::Client(*client));
                self.verifying = self.verifying.saturating_sub(1);
            }
        }
    }

    /// Whether failures are waiting that no runner delivers.
    pub(crate) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    //! Proves: each errand has one answer, with or without a runner, and no more than the bound are
    //! open. How: a runner that only counts.

    use super::*;
    use std::path::Path;
    use std::sync::Mutex;
    use weir_proxy::forward::lookup::{Credentials, Question};
    use weir_proxy::forward::shares::Lane;

    #[derive(Debug, Default)]
    struct Counts {
        taken: Mutex<Vec<(u16, Errand)>>,
        is_gone: bool,
    }

    impl Errands for Counts {
        fn run(&self, worker: u16, errand: Errand) -> Result<(), Errand> {
            if self.is_gone {
                return Err(errand);
            }
            self.taken.lock().unwrap().push((worker, errand));
            Ok(())
        }
    }

    fn asker(last: u8) -> Asker {
        Asker::of(None, [192, 0, 2, last].into())
    }

    fn resolve(name: &str, last: u8) -> Errand {
        Errand::Resolve { name: name.into(), asker: asker(last) }
    }

    fn verify(token: u64, last: u8) -> Errand {
        let credentials = Credentials { name: "ann".into(), password: Box::default() };
        let (client, users) = (Lane::of([192, 0, 2, last].into()), Path::new("users").into());
        Errand::Verify { question: Question { token, serial: 0 }, client, users, credentials }
    }

    fn failed(news: &[News], why: Unresolved) -> usize {
        news.iter()
            .filter(|news| matches!(news, News::Resolved { answer: Err(is), .. } if *is == why))
            .count()
    }

    #[test]
    fn without_a_runner_everything_fails() {
        for runner in [
            None,
            Some(Arc::new(Counts { is_gone: true, ..Counts::default() }) as Arc<dyn Errands>),
        ] {
            let mut open = Open::new(0, runner);
            assert!(!open.has_failed() && !open.run(resolve("a", 1)) && open.has_failed());
            let news = open.close(Vec::new());
            assert_eq!((failed(&news, Unresolved::Failed), news.len()), (1, 1));
            assert!(!open.has_failed() && open.close(Vec::new()).is_empty());
        }
    }

    /// A verdict names its question by a token, which other machines may use again.
    #[test]
    fn verdicts_of_an_earlier_life_are_for_nobody() {
        let counts = Arc::new(Counts::default());
        let mut open = Open::new(0, Some(Arc::clone(&counts) as Arc<dyn Errands>));
        let client = Lane::of([192, 0, 2, 1].into());
        let told =
            |user| News::Verified { question: Question { token: 7, serial: 0 }, client, user };
        let ann = || Ok(Arc::new(weir_proxy::forward::lookup::User::new("ann")));
        assert!(open.run(verify(7, 1)) && open.run(verify(7, 1)));
        assert_eq!(open.close(vec![told(ann())]).len(), 1);
        assert!(open.run(verify(7, 1)) && open.run(resolve("a", 1)));
        open.begin_anew();
        for left in [2, 1] {
            assert!(!open.run(verify(7, 1)), "{left} are open");
            let news = open.close(vec![told(ann())]);
            assert!(
                matches!(&news[..], [News::Verified { user: Err(Unverified::NoRoom), .. }]),
                "{news:?}"
            );
        }
        assert!(open.run(verify(7, 1)));
        let name =
            News::Resolved { name: "a".into(), asker: asker(1), answer: Err(Unresolved::TimedOut) };
        assert_eq!(open.close(vec![name, told(ann())]).len(), 2);
        // Nor are refusals that were never delivered.
        assert!(open.run(verify(7, 1)));
        open.begin_anew();
        assert!(!open.run(verify(7, 1)));
        open.begin_anew();
        assert!(open.close(vec![told(ann())]).is_empty());
        assert_eq!(counts.taken.lock().unwrap().len(), 6);
    }

    #[test]
    fn so_many_are_open_and_an_answer_makes_room() {
        let counts = Arc::new(Counts::default());
        let mut open = Open::new(3, Some(Arc::clone(&counts) as Arc<dyn Errands>));
        // One client leaves room for others, and all others for one more.
        let had = (1..=8).map(|last| {
            (0..ERRANDS_MAX).take_while(|n| open.run(resolve(&n.to_string(), last))).count()
        });
        assert_eq!(had.collect::<Vec<_>>(), [2048, 1024, 512, 256, 128, 64, 32, 16]);
        let told =
            News::Resolved { name: "0".into(), asker: asker(1), answer: Err(Unresolved::TimedOut) };
        let news = open.close(vec![told]);
        assert_eq!((failed(&news, Unresolved::NoRoom), news.len()), (8, 9));
        assert!(!open.run(resolve("more", 1)) && open.run(resolve("more", 9)));
        // Names leave room for credentials, which are shared as well.
        let had = (1..=2)
            .map(|last| (0..ERRANDS_MAX as u64).take_while(|n| open.run(verify(*n, last))).count());
        assert_eq!(had.collect::<Vec<_>>(), [2048, 1024]);
        let client = Lane::of([192, 0, 2, 1].into());
        let news = open.close(vec![News::Verified {
            question: Question { token: 0, serial: 0 },
            client,
            user: Err(Unverified::Wrong),
        }]);
        assert_eq!(news.len(), 4);
        assert!(!open.run(verify(1, 1)) && open.run(verify(1, 3)));
        let taken = counts.taken.lock().unwrap();
        assert_eq!(taken.len(), 4080 + 1 + 2048 + 1024 + 1);
        assert!(taken.iter().all(|(worker, _)| *worker == 3));
    }
}
