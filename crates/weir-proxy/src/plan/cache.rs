//! `cache`: how much is stored for all workers, and by which rules the answers of a route are.

use std::path::PathBuf;
use std::sync::Arc;

use super::Network;
use weir_cache::{KeyRules, Limits, Options, Store, TagField, Target};

/// Locks of the store for each worker, so that two rarely want the same one.
const SHARDS_OF_WORKER: usize = 4;
/// The smallest store.
const SIZE_BYTES_MIN: u64 = 1 << 20;

/// The store that all routes with `cache` share.
#[derive(Debug, Clone)]
pub struct CachePlan {
    /// Bytes of everything that lives of answers: stored ones, such as are still being sent though they are not stored any more, and those
    /// that are being fetched. 1 MiB-16 TiB. Default 256 MiB.
    pub size_bytes: u64,
    /// Most bytes of the body of a stored answer, up to 1 GiB, and at most a quarter of [`CachePlan::size_bytes`]. Default 8 MiB.
    pub object_bytes_max: u64,
    /// Most answers under one key, by what their Vary names, 1-1,000; the one that was used least recently goes. Default 16.
    pub variants_max: u32,
    /// What outlives the process, and where; None, the default: nothing.
    pub snapshot: Option<SnapshotPlan>,
    /// What is stored, shared by all workers. To be made by whoever runs the plan; its successor keeps it. None: nowhere yet.
    pub store: Option<Arc<Store>>,
}

/// The file that keeps what is stored over a restart: `snapshot`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotPlan {
    /// Its path, an absolute one.
    pub path: PathBuf,
    /// Its bytes at most, up to [`CachePlan::size_bytes`].
    pub bytes_max: u64,
    /// How often it is written, microseconds, 1 s-1 d. Default 10 min.
    pub every_us: u64,
}

/// How the answers of a route are stored and served: `cache` of the route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheRules {
    /// What decides whether and for how long. Its `object_bytes_max` is that of the plan.
    pub options: Options,
    /// What their keys are made of.
    pub keys: KeyRules,
    /// Who is told in Cache-Status what the cache did. Default: nobody.
    pub told: ToldTo,
    /// Fields of answers in which their tags are, each once. Default: Cache-Groups.
    pub tags: Vec<TagField>,
    /// Clients who may have answers purged by PURGE. Default: nobody, and PURGE is forwarded as any method.
    pub purge_from: Vec<Network>,
    /// For how long the requests for what turned out not to be for the store are forwarded each by itself, microseconds, up to 1 h. Default
    /// 120 s; 0: they are never.
    pub hit_for_miss_us: u64,
}

/// Who sees Cache-Status (RFC 9211): `cache-status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToldTo {
    /// Nobody: it says who else has asked for a page. The default.
    #[default]
    Nobody,
    /// Clients whose connection comes from one of [`trusted_proxies`](super::ClientPlan::trusted_proxies).
    Trusted,
    /// Everybody.
    Everybody,
}

impl ToldTo {
    /// The word of the configuration.
    pub fn word(self) -> &'static str {
        match self {
            ToldTo::Nobody => "off",
            ToldTo::Trusted => "trusted",
            ToldTo::Everybody => "on",
        }
    }
}

impl CachePlan {
    /// The limits of the store.
    pub fn limits(&self) -> Limits {
        let variants_max = usize::try_from(self.variants_max).unwrap_or(usize::MAX);
        Limits { bytes: self.size_bytes, object_bytes_max: self.object_bytes_max, variants_max }
    }

    /// Makes an empty store for so many workers. `secret` keeps strangers from choosing keys that share a place.
    pub fn open(&mut self, secret: [u64; 2], workers: usize) {
        let shards = workers.max(1).saturating_mul(SHARDS_OF_WORKER);
        self.store = Some(Arc::new(Store::new(self.limits(), secret, shards)));
    }

    /// Gives the store the limits of this plan, which is in force.
    pub fn resize(&self) {
        if let Some(store) = &self.store {
            store.set_limits(self.limits());
        }
    }

    /// Forgets all that is stored, and what is being fetched: no route stores anything any more.
    pub fn forget(&self) {
        if let Some(store) = &self.store {
            // All that is not soft always works.
            let _ = store.ban(Target::All, false);
            store.set_limits(Limits { bytes: SIZE_BYTES_MIN, ..self.limits() });
        }
    }
}

impl Default for CachePlan {
    fn default() -> CachePlan {
        CachePlan { size_bytes: 256 << 20, object_bytes_max: 8 << 20, variants_max: 16, snapshot: None, store: None }
    }
}

impl Default for CacheRules {
    fn default() -> CacheRules {
        CacheRules {
            options: Options::default(),
            keys: KeyRules::default(),
            told: ToldTo::default(),
            tags: vec![TagField::CacheGroups],
            purge_from: Vec::new(),
            hit_for_miss_us: 120 * super::SECOND_US,
        }
    }
}
