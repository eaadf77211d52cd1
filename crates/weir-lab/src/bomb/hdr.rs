//! The latencies of a run in the log format of HdrHistogram (version 1.3), which other tools read
//! and draw.
//!
//! Called by the verb. One line for each second of each class, with the class as its tag: from due
//! to answered where there is a rate, else from sent; microseconds.

use std::io;
use std::time::{Duration, SystemTime};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use super::record::Record;

impl Record {
    /// Writes the log. `began` is when the counted time began.
    ///
    /// # Errors
    /// Those of writing.
    pub fn write_hdr_log(&self, out: &mut impl io::Write, began: SystemTime) -> io::Result<()> {
        let mut serializer = V2DeflateSerializer::new();
        let mut log = IntervalLogWriterBuilder::new()
            .add_comment(
                "weir bomb: microseconds; from the due time to the response with a rate, \
                else from sending",
            )
            .with_start_time(began)
            .with_base_time(began)
            .begin_log_with(out, &mut serializer)?;
        let classes = self.seconds.iter().zip(&self.names);
        let lines = classes.flat_map(|(seconds, name)| {
            seconds
                .iter()
                .filter_map(move |(second, slice)| Some((*second, name, slice.times()?.latency())))
        });
        let mut all: Vec<_> = lines.collect();
        all.sort_by_key(|(second, ..)| *second);
        for (second, name, latency) in all.into_iter().filter(|(.., latency)| !latency.is_empty()) {
            let from = Duration::from_secs(u64::from(second));
            let written =
                log.write_histogram(latency, from, Duration::from_secs(1), Tag::new(name));
            written.map_err(|error| io::Error::other(format!("{error:?}")))?;
        }
        Ok(())
    }
}
