//! The experiment `cache`: the caches that take part, and their loads besides hits.
//!
//! Read by `cells.rs`, `contenders.rs` and `cache_cells.rs`, done by `run/cache.rs`,
//! `run/cache_events.rs` and `run/cache_restart.rs`.

/// A cache program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cacher {
    /// nginx with `proxy_cache` on a file system in memory.
    Nginx,
    /// Varnish in memory.
    Varnish,
    /// weir.
    Weir,
}

/// Room of a cache for hits, MiB: more than all requested responses take.
pub(crate) const ROOM_MIB: u32 = 256;

/// What is done to a cache, besides requests for one stored response.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum CacheLoad {
    /// Clients that request the same response at once.
    Herd(Herd),
    /// Clients that request more than the cache has room for.
    Zipf(Zipf),
    /// Hits by the clock, while many other responses are purged by their tag.
    Purge(Purge),
    /// By the clock, while the origin dies.
    Stale(Stale),
    /// By the clock, beside clients that read the same large response slowly.
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

/// Clients that request the same response at once, which no cache has yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Herd {
    /// How many, each with a connection.
    pub(crate) clients: u32,
    /// How long the origin takes for it, milliseconds.
    pub(crate) answer_ms: u32,
    /// The origin says that it is for one client alone.
    pub(crate) is_private: bool,
}

/// Responses with the same tag that are purged while others are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Purge {
    /// Responses with that tag.
    pub(crate) objects: u32,
    /// Room of the cache, MiB: enough for all of them.
    pub(crate) room_mib: u32,
}

impl Purge {
    /// Client connections that request a response with another tag.
    pub(crate) const CONNECTIONS: u32 = 64;
    /// Requests a second on these.
    pub(crate) const RATE: u32 = 5000;
    /// Connections that check whether responses are old ones.
    pub(crate) const LOOKERS: u32 = 2;
}

/// Responses that become stale every second, and an origin that dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stale {
    /// Different responses.
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

/// Clients that all read the same response slowly, which was not stored before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlowReaders {
    /// How many.
    pub(crate) readers: u32,
    /// Length of the response, bytes.
    pub(crate) body: u32,
    /// How long the origin takes for it, milliseconds.
    pub(crate) answer_ms: u32,
}

impl SlowReaders {
    /// Connections of the other clients, whose requests all reach the origin.
    pub(crate) const CONNECTIONS: u32 = 64;
    /// Requests a second of these.
    pub(crate) const RATE: u32 = 1000;
}

/// Responses that are stored, and requested once more after a restart.
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

/// Clients that request more than there is room for, some of it often.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Zipf {
    /// Different responses.
    pub(crate) keys: u32,
    /// Bytes of each.
    pub(crate) body: u32,
    /// Room of the cache, MiB.
    pub(crate) room_mib: u32,
    /// The response of rank r is requested r to the power of minus this times as often as the
    /// first.
    pub(crate) alpha: f64,
}

impl Zipf {
    /// Client connections.
    pub(crate) const CONNECTIONS: u32 = 64;

    /// Returns how often each response is requested compared with the others, by rank from 1.
    pub(crate) fn weights(self) -> impl Iterator<Item = u32> {
        (1..=self.keys)
            .map(move |rank| (f64::from(rank).powf(-self.alpha) * 1e7).round().max(1.0) as u32)
    }

    /// How many bodies have room when nothing else takes a byte.
    pub(crate) fn fit(self) -> usize {
        ((u64::from(self.room_mib) << 20) / u64::from(self.body)) as usize
    }

    /// Returns the share of requests that hit in a cache that always has the most wanted responses,
    /// as many as fit without a byte besides bodies. No cache can do better in the long run.
    /// Percent.
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
        assert_eq!(
            (weights.len(), weights[0], weights[9], weights[999]),
            (1000, 10_000_000, 1_000_000, 10_000)
        );
        // H(250) / H(1000)
        assert!((zipf.best_percent() - 81.5).abs() < 0.1, "{}", zipf.best_percent());
        assert!((Zipf { room_mib: 1000, ..zipf }.best_percent() - 100.0).abs() < 1e-9);
    }
}
