//! The experiment `cache`: who stores answers, and what is asked of them besides hits.
//!
//! Read by `cells.rs`, `contenders.rs` and `cache_cells.rs`, done by `run/cache.rs`, `run/cache_events.rs` and `run/cache_restart.rs`.

/// A program that stores answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cacher {
    /// nginx with `proxy_cache` on a file system in memory.
    Nginx,
    /// Varnish in memory.
    Varnish,
    /// weir.
    Weir,
}

/// Bytes that a cache has for hits, MiB: more than all that is asked for.
pub(crate) const ROOM_MIB: u32 = 256;

/// What is done to a cache, besides asking for one stored answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum CacheLoad {
    /// Clients that want the same at once.
    Herd(Herd),
    /// Clients that ask for more than it has room for.
    Zipf(Zipf),
    /// Hits by the clock, while much else is purged by its tag.
    Purge(Purge),
    /// By the clock, while the origin dies.
    Stale(Stale),
    /// By the clock, beside clients that read the same large answer slowly.
    Slow(SlowReaders),
    /// Everything once more after a restart.
    Restart(Restart),
}

impl CacheLoad {
    /// Client connections.
    pub(crate) fn connections(self) -> u32 {
        match self {
            CacheLoad::Herd(herd) => herd.clients,
            CacheLoad::Zipf(_) => Zipf::CONNECTIONS,
            CacheLoad::Purge(_) => Purge::CONNECTIONS + Purge::LOOKERS,
            CacheLoad::Stale(_) => Stale::CONNECTIONS,
            CacheLoad::Slow(slow) => SlowReaders::CONNECTIONS + slow.readers,
            CacheLoad::Restart(_) => Restart::CONNECTIONS,
        }
    }
}

/// Clients that want the same at once, which nobody has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Herd {
    /// How many, each with a connection.
    pub(crate) clients: u32,
    /// How long the origin takes for it, milliseconds.
    pub(crate) answer_ms: u32,
    /// The origin says that it is for one client alone.
    pub(crate) is_private: bool,
}

/// Answers with the same tag that are purged while others are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Purge {
    /// Answers with that tag.
    pub(crate) objects: u32,
    /// Room of the cache, MiB: enough for all of them.
    pub(crate) room_mib: u32,
}

impl Purge {
    /// Client connections that ask for an answer with another tag.
    pub(crate) const CONNECTIONS: u32 = 64;
    /// Requests a second on these.
    pub(crate) const RATE: u32 = 5000;
    /// Connections on which is looked whether answers are old ones.
    pub(crate) const LOOKERS: u32 = 2;
}

/// Answers that become stale every second, and an origin that dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stale {
    /// Different answers.
    pub(crate) keys: u32,
    /// How long they are fresh, seconds.
    pub(crate) lifetime_s: u32,
}

impl Stale {
    /// Client connections.
    pub(crate) const CONNECTIONS: u32 = 64;
    /// Requests a second.
    pub(crate) const RATE: u32 = 2000;
}

/// Clients that all read the same answer slowly, which nobody had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlowReaders {
    /// How many.
    pub(crate) readers: u32,
    /// Length of the answer, bytes.
    pub(crate) body: u32,
    /// How long the origin takes for it, milliseconds.
    pub(crate) answer_ms: u32,
}

impl SlowReaders {
    /// Connections of the others, whose requests all reach the origin.
    pub(crate) const CONNECTIONS: u32 = 64;
    /// Requests a second of these.
    pub(crate) const RATE: u32 = 1000;
}

/// Answers that are stored, and asked for once more after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Restart {
    /// How many.
    pub(crate) objects: u32,
    /// Bytes of each.
    pub(crate) body: u32,
}

impl Restart {
    /// Client connections.
    pub(crate) const CONNECTIONS: u32 = 64;
}

/// Clients that ask for more than there is room for, some of it often.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Zipf {
    /// Different answers.
    pub(crate) keys: u32,
    /// Bytes of each.
    pub(crate) body: u32,
    /// Room of the cache, MiB.
    pub(crate) room_mib: u32,
    /// The one of rank r is asked for r to the power of minus this times as often as the first.
    pub(crate) alpha: f64,
}

impl Zipf {
    /// Client connections.
    pub(crate) const CONNECTIONS: u32 = 64;

    /// How often each is asked for compared with the others, by rank from 1.
    pub(crate) fn weights(self) -> impl Iterator<Item = u32> {
        (1..=self.keys).map(move |rank| (f64::from(rank).powf(-self.alpha) * 1e7).round().max(1.0) as u32)
    }

    /// How many bodies have room when nothing else takes a byte.
    pub(crate) fn fit(self) -> usize {
        ((u64::from(self.room_mib) << 20) / u64::from(self.body)) as usize
    }

    /// The share of requests that a cache would answer which always has the most wanted ones, as many as fit without a byte besides
    /// bodies: nobody can do better in the long run. Percent.
    pub(crate) fn best_percent(self) -> f64 {
        let all: f64 = self.weights().map(f64::from).sum();
        self.weights().take(self.fit()).map(f64::from).sum::<f64>() / all * 100.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_asked_for_most_and_the_best_cache_has_those_first() {
        let zipf = Zipf { keys: 1000, body: 1 << 20, room_mib: 250, alpha: 1.0 };
        let weights: Vec<u32> = zipf.weights().collect();
        assert_eq!((weights.len(), weights[0], weights[9], weights[999]), (1000, 10_000_000, 1_000_000, 10_000));
        // H(250) / H(1000)
        assert!((zipf.best_percent() - 81.5).abs() < 0.1, "{}", zipf.best_percent());
        assert!((Zipf { room_mib: 1000, ..zipf }.best_percent() - 100.0).abs() < 1e-9);
    }
}
