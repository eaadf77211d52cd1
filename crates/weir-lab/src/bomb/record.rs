//! Everything that a run leaves: a line of JSON for the run, for each second of each class, and for
//! each thread.
//!
//! Filled by `super::run`; [`super::Summary`] is made of nothing else, so each of its numbers can
//! be made again from the file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::count::{Counts, CountsDocument};
use super::slice::{Slice, Times, from_pairs, pairs};
use super::{Behaviour, Finished, News, Plan, Rate};
use crate::machine::{Machine, shown_url};

/// A run and its results.
#[derive(Debug)]
pub struct Record {
    /// Names of the classes.
    pub(crate) names: Vec<String>,
    /// Requests that each class is expected to offer in the counted time; None in a closed loop.
    pub(crate) expected: Vec<Option<f64>>,
    head: RunLine,
    /// By class, then by second.
    pub(crate) seconds: Vec<BTreeMap<u32, Slice>>,
    pub(crate) threads: Vec<ThreadLine>,
}

/// One line of the raw file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Line {
    /// The parameters of the run.
    Run(RunLine),
    /// A second of a class; an empty second is left out.
    Second(Box<SecondLine>),
    /// A thread of the generator.
    Thread(ThreadLine),
}

/// The parameters of the run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunLine {
    /// Version of this form: 1.
    pub version: u32,
    /// Counted time, seconds; None when the number of requests set the end.
    pub seconds: Option<f64>,
    /// Time before it that is left out, seconds.
    pub warm_up: f64,
    /// Requests of each class, if that set the end.
    pub requests: Option<u64>,
    /// Threads.
    pub threads: usize,
    /// Seed of all random draws; None in files from before this was recorded.
    #[serde(default)]
    pub seed: Option<u64>,
    /// Version, machine, date and command line.
    #[serde(flatten)]
    pub identity: Identity,
    /// Classes.
    pub classes: Vec<ClassLine>,
}

/// What others need to make the same run again. Empty in files from before this was recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Identity {
    /// When it began, as HTTP writes dates.
    pub date: String,
    /// Version and commit of the generator.
    pub weir: String,
    /// Where it ran.
    pub machine: Machine,
    /// The command line, without secrets.
    pub command: String,
}

/// A class of clients.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClassLine {
    /// Its name.
    pub name: String,
    /// Host of its requests.
    pub host: String,
    /// Where it connected to.
    pub address: String,
    /// Connections at a time.
    pub connections: u32,
    /// Its rate; None is a closed loop.
    pub rate: Option<String>,
    /// Random distances between requests.
    pub poisson: bool,
    /// Seed of its clients' draws.
    #[serde(default)]
    pub seed: u64,
    /// Its behaviour.
    pub behaviour: String,
    /// Its local addresses.
    pub source: Option<String>,
    /// Its requests, without queries, which may contain secrets.
    pub requests: Vec<String>,
    /// Its requests are sent by HTTP/2.
    #[serde(default)]
    pub http2: bool,
    /// Unanswered requests at a time.
    pub pipeline: u32,
    /// Requests of a connection.
    pub close_every: Option<u32>,
    /// How the generator ends it without an announcement: `fin` or `rst`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<String>,
}

/// A second of a class. Histograms are pairs of a value and a count: the value is the highest of
/// its bucket, microseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SecondLine {
    /// From 0, after the warm-up.
    pub second: u32,
    /// Name of the class.
    pub class: String,
    /// The outcomes of connections and requests.
    #[serde(flatten)]
    pub counts: CountsDocument,
    /// Times from sent to answered.
    pub raw_us: Vec<(u64, u64)>,
    /// Times from due to answered.
    pub corrected_us: Vec<(u64, u64)>,
    /// Times of connects.
    pub connect_us: Vec<(u64, u64)>,
    /// Times from due to when the generator looked.
    pub lag_us: Vec<(u64, u64)>,
    /// When a client was first blocked, from the beginning of the results.
    pub first_block_us: Option<u64>,
    /// When a client last got no response or one of 500 and more, from the beginning of the
    /// results.
    #[serde(default)]
    pub last_failure_us: Option<u64>,
}

/// A thread of the generator.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ThreadLine {
    /// Its number.
    pub thread: u32,
    /// Processor time that it used, without the warm-up.
    pub busy_us: u64,
    /// From the end of the warm-up to its end.
    pub wall_us: u64,
    /// The part of it in which results were counted, until nothing became due any more.
    pub counted_us: u64,
    /// Its driver.
    pub driver: String,
}

impl Record {
    pub(crate) fn new(plan: &Plan) -> Record {
        let head = RunLine {
            version: 1,
            seconds: plan.duration_us.map(|us| us as f64 / 1e6),
            warm_up: plan.warm_up_us as f64 / 1e6,
            requests: plan.requests,
            threads: plan.threads,
            seed: Some(plan.seed),
            identity: Identity::default(),
            classes: plan.classes.iter().map(class_line).collect(),
        };
        Record::of(head, plan.classes.iter().map(|class| class.rate.clone()))
    }

    /// Notes the version, machine, date and command line of this run.
    pub fn identify(&mut self, identity: Identity) {
        self.head.identity = identity;
    }

    /// An empty record of a run, with the rates of its classes.
    fn of(head: RunLine, rates: impl Iterator<Item = Option<Rate>>) -> Record {
        let counted = |rate: Rate| {
            head.seconds
                .map(|seconds| rate.expected(head.warm_up + seconds) - rate.expected(head.warm_up))
        };
        Record {
            names: head.classes.iter().map(|class| class.name.clone()).collect(),
            expected: rates.map(|rate| rate.and_then(counted)).collect(),
            seconds: vec![BTreeMap::new(); head.classes.len()],
            threads: Vec::new(),
            head,
        }
    }

    /// Reads the output of [`Record::lines`], an object of JSON a line.
    ///
    /// # Errors
    /// The text is not such an output, or lacks its first line.
    pub fn read(text: &str) -> Result<Record, String> {
        let mut lines = text
            .lines()
            .map(|line| serde_json::from_str::<Line>(line).map_err(|error| error.to_string()));
        let Some(Line::Run(head)) = lines.next().transpose()? else {
            return Err("the first line is not that of a run".to_owned());
        };
        let rates =
            head.classes.iter().map(|class| class.rate.as_deref().map(Rate::parse).transpose());
        let rates = rates.collect::<Result<Vec<_>, _>>()?;
        let mut record = Record::of(head, rates.into_iter());
        lines.try_for_each(|line| record.add_line(line?))?;
        Ok(record)
    }

    pub(crate) fn add(&mut self, second: u32, class: usize, slice: &Slice) {
        self.seconds[class].entry(second).or_default().add(slice);
    }

    /// Adds a line of another record of the same run.
    ///
    /// # Errors
    /// It names a class or a kind that this run does not have.
    pub(crate) fn add_line(&mut self, line: Line) -> Result<(), String> {
        match line {
            Line::Run(_) => {}
            Line::Thread(thread) => self.threads.push(thread),
            Line::Second(line) => {
                let class = self.names.iter().position(|name| *name == line.class);
                let class = class.ok_or_else(|| format!("no class `{}`", line.class))?;
                self.add(line.second, class, &slice_of(&line)?);
            }
        }
        Ok(())
    }

    pub(crate) fn finished(&mut self, finished: Finished) {
        self.threads.push(thread_line(finished));
    }

    /// Returns the behaviour of each class; None: the word is from another version.
    pub(crate) fn behaviours(&self) -> impl Iterator<Item = Option<Behaviour>> + '_ {
        self.head.classes.iter().map(|class| {
            super::BEHAVIOURS
                .iter()
                .find(|(word, ..)| *word == class.behaviour)
                .map(|(_, behaviour, _)| *behaviour)
        })
    }

    /// Returns what each class saw in each second, in no particular order.
    pub(crate) fn slices(&self) -> impl Iterator<Item = (u32, &Slice)> {
        self.seconds.iter().flatten().map(|(second, slice)| (*second, slice))
    }

    /// Returns what a class saw in each second; None: the class does not exist.
    pub(crate) fn class(&self, name: &str) -> Option<&BTreeMap<u32, Slice>> {
        self.seconds.get(self.names.iter().position(|its| its == name)?)
    }

    /// Returns the time that was to be counted, seconds; None when the number of requests set the
    /// end.
    pub(crate) fn head_seconds(&self) -> Option<f64> {
        self.head.seconds
    }

    /// Counted time, seconds: as long as requests became due, or until the last was done.
    pub fn duration_s(&self) -> f64 {
        self.threads.iter().map(|thread| thread.counted_us).max().unwrap_or(0) as f64 / 1e6
    }

    /// Returns the results of a second in all classes: complete responses, blocked attempts, and
    /// the 99th percentile of the times from sent to answered, microseconds.
    pub fn glance(&self, second: u32) -> (u64, u64, Option<u64>) {
        let mut sum = Slice::default();
        self.seconds
            .iter()
            .filter_map(|seconds| seconds.get(&second))
            .for_each(|slice| sum.add(slice));
        let p99_us = sum
            .times()
            .filter(|times| !times.raw.is_empty())
            .map(|times| times.raw.value_at_quantile(0.99));
        (sum.counts.answered(), sum.counts.blocked(), p99_us)
    }

    /// All seconds of a class together.
    pub fn total(&self, class: usize) -> Slice {
        let mut sum = Slice::default();
        self.seconds[class].values().for_each(|slice| sum.add(slice));
        sum
    }

    /// All lines of the raw file, in order.
    pub fn lines(&self) -> impl Iterator<Item = Line> + '_ {
        let seconds = self.seconds.iter().zip(&self.names).flat_map(|(seconds, name)| {
            seconds
                .iter()
                .map(|(second, slice)| Line::Second(Box::new(second_line(*second, name, slice))))
        });
        let threads = self.threads.iter().cloned().map(Line::Thread);
        std::iter::once(Line::Run(self.head.clone())).chain(seconds).chain(threads)
    }
}

impl Line {
    /// Converts what a thread reports into a line of this run.
    pub(super) fn of(plan: &Plan, news: News) -> Line {
        match news {
            News::Second { second, class, slice } => Line::Second(Box::new(second_line(
                second,
                &plan.classes[usize::from(class)].name,
                &slice,
            ))),
            News::Finished(finished) => Line::Thread(thread_line(finished)),
        }
    }
}

fn thread_line(finished: Finished) -> ThreadLine {
    let Finished { thread, busy_us, wall_us, counted_us, driver } = finished;
    ThreadLine { thread, busy_us, wall_us, counted_us, driver: driver.to_owned() }
}

fn class_line(class: &super::Class) -> ClassLine {
    let behaviour =
        super::BEHAVIOURS.iter().find(|row| row.1 == class.behaviour).map_or("", |row| row.0);
    ClassLine {
        name: class.name.clone(),
        host: class.target.host.clone(),
        address: class.target.address.to_string(),
        connections: class.connections,
        rate: class.rate.as_ref().map(ToString::to_string),
        poisson: class.poisson,
        seed: class.seed,
        behaviour: behaviour.to_owned(),
        source: class.sources.map(|sources| sources.to_string()),
        requests: class.mix.requests().iter().map(|request| shown_url(&request.name)).collect(),
        http2: class.http2,
        pipeline: class.depth,
        close_every: class.close_every,
        end: match class.ending {
            super::Ending::Announced => None,
            super::Ending::Fin => Some("fin".to_owned()),
            super::Ending::Rst => Some("rst".to_owned()),
        },
    }
}

fn slice_of(line: &SecondLine) -> Result<Slice, String> {
    let times = Times {
        raw: from_pairs(&line.raw_us)?,
        corrected: from_pairs(&line.corrected_us)?,
        connect: from_pairs(&line.connect_us)?,
        lag: from_pairs(&line.lag_us)?,
    };
    let mut slice = Slice::new(Counts::of(&line.counts)?, times);
    (slice.first_block_us, slice.last_failure_us) = (line.first_block_us, line.last_failure_us);
    Ok(slice)
}

fn second_line(second: u32, class: &str, slice: &Slice) -> SecondLine {
    let of = |which: fn(&Times) -> &hdrhistogram::Histogram<u64>| {
        slice.times().map_or(Vec::new(), |times| pairs(which(times)))
    };
    SecondLine {
        second,
        class: class.to_owned(),
        counts: slice.counts.document(),
        raw_us: of(|times| &times.raw),
        corrected_us: of(|times| &times.corrected),
        connect_us: of(|times| &times.connect),
        lag_us: of(|times| &times.lag),
        first_block_us: slice.first_block_us,
        last_failure_us: slice.last_failure_us,
    }
}
