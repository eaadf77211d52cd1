//! Balancing data that workers share: load and response time of each server, without locks or
//! messages.
//!
//! A worker writes only its own cells, which are adjacent; reading values that are a turn old does
//! no harm.

use crate::base::keys::{Key, ServerIndex};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::Statistic;

/// A response time that was not renewed for this long no longer counts: the worker had no traffic.
const STALE_US: u64 = 5_000_000;

#[derive(Debug, Default)]
struct Cell {
    /// Requests waiting or in flight.
    load: AtomicU32,
    /// Response time, and of how many responses; 0 without any.
    response_us: AtomicU32,
    samples: AtomicU32,
    measured_us: AtomicU64,
}

/// A cell for each server and worker.
#[derive(Debug)]
pub struct Shared {
    cells: Vec<Cell>,
    /// By server: when it last recovered; 0: it never failed.
    recovered_us: Vec<AtomicU64>,
    servers: usize,
}

impl Shared {
    /// Returns cells for this many servers (of all upstreams together) and workers.
    pub fn new(servers: usize, workers: usize) -> Shared {
        let cells = (0..servers * workers).map(|_| Cell::default()).collect();
        Shared { cells, recovered_us: (0..servers).map(|_| AtomicU64::new(0)).collect(), servers }
    }

    fn cell(&self, server: ServerIndex, worker: usize) -> &Cell {
        &self.cells[worker * self.servers + server.index()]
    }

    /// Returns the load of all other workers at a server.
    pub fn load_of_others(&self, server: ServerIndex, worker: usize) -> u32 {
        let workers = self.cells.len().checked_div(self.servers).unwrap_or(0);
        let others = (0..workers).filter(|other| *other != worker);
        others.map(|other| self.cell(server, other).load.load(Relaxed)).sum()
    }

    /// Sets the load of a worker at a server.
    pub fn set_load(&self, server: ServerIndex, worker: usize, load: u32) {
        let cell = &self.cell(server, worker).load;
        if cell.load(Relaxed) != load {
            cell.store(load, Relaxed);
        }
    }

    /// Resets the cells of a slot that has another server now.
    pub(crate) fn forget(&self, server: ServerIndex) {
        for cell in self.cells.iter().skip(server.index()).step_by(self.servers.max(1)) {
            cell.load.store(0, Relaxed);
            cell.samples.store(0, Relaxed);
        }
        self.set_recovered(server, 0);
    }

    /// Returns when a server last recovered, as any worker found; 0: it never failed.
    pub fn recovered_us(&self, server: ServerIndex) -> u64 {
        self.recovered_us[server.index()].load(Relaxed)
    }

    /// Notes that a server has recovered.
    pub fn set_recovered(&self, server: ServerIndex, now_us: u64) {
        self.recovered_us[server.index()].store(now_us, Relaxed);
    }

    /// Sets the response time of a server for a worker's requests.
    pub fn set_response(
        &self,
        server: ServerIndex,
        worker: usize,
        response_us: u32,
        samples: u32,
        now_us: u64,
    ) {
        let cell = self.cell(server, worker);
        cell.response_us.store(response_us, Relaxed);
        cell.samples.store(samples, Relaxed);
        cell.measured_us.store(now_us, Relaxed);
    }

    /// Returns the response time of a server over all workers; None when no worker knows one. The
    /// percentile of all requests is not known exactly: the mean of the workers' percentiles,
    /// weighted by number of responses, approximates it.
    pub fn response_us(&self, server: ServerIndex, by: Statistic, now_us: u64) -> Option<u64> {
        let (mut sum, mut samples) = (0u64, 0u64);
        let (mut least, mut most) = (u32::MAX, 0);
        for cell in self.cells.iter().skip(server.index()).step_by(self.servers.max(1)) {
            let (response_us, count) = (cell.response_us.load(Relaxed), cell.samples.load(Relaxed));
            if count == 0 || now_us.saturating_sub(cell.measured_us.load(Relaxed)) > STALE_US {
                continue;
            }
            sum += u64::from(response_us) * u64::from(count);
            samples += u64::from(count);
            (least, most) = (least.min(response_us), most.max(response_us));
        }
        let mean = sum.checked_div(samples)?;
        Some(match by {
            Statistic::Min => u64::from(least),
            Statistic::Max => u64::from(most),
            Statistic::Avg | Statistic::Percentile(_) => mean,
        })
    }
}

#[cfg(test)]
mod tests {
    //! Proves: loads of the other workers add up, response times are merged as their kind asks, old
    //! ones are forgotten.

    use super::*;

    fn server(number: u32) -> ServerIndex {
        ServerIndex::new(number)
    }

    #[test]
    fn loads_of_the_others() {
        let shared = Shared::new(2, 3);
        (0..3).for_each(|worker| shared.set_load(server(1), worker, 1 << worker));
        assert_eq!([0, 1, 2].map(|worker| shared.load_of_others(server(1), worker)), [6, 5, 3]);
        assert_eq!(shared.load_of_others(server(0), 0), 0);
    }

    #[test]
    fn response_times_of_all() {
        let shared = Shared::new(2, 2);
        assert_eq!(shared.response_us(server(1), Statistic::Avg, 0), None);
        shared.set_response(server(1), 0, 100, 30, 1_000_000);
        shared.set_response(server(1), 1, 500, 10, 3_000_000);
        shared.set_response(server(0), 1, 9, 10, 3_000_000);
        let read = |by, now_us| shared.response_us(server(1), by, now_us);
        assert_eq!(read(Statistic::Avg, 3_000_000), Some(200));
        assert_eq!(read(Statistic::Percentile(9000), 3_000_000), Some(200));
        assert_eq!(
            (read(Statistic::Min, 3_000_000), read(Statistic::Max, 3_000_000)),
            (Some(100), Some(500))
        );
        assert_eq!(read(Statistic::Avg, 7_000_000), Some(500));
        assert_eq!(read(Statistic::Avg, 9_000_000), None);
    }
}
