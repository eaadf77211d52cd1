//! `cache`: how much is stored for all workers, and the rules for the responses of a route.

use std::path::PathBuf;
use std::sync::Arc;

use super::Network;
use weir_cache::{KeyRules, Limits, Options, Store, TagField, Target};

/// Locks of the store for each worker, so that two workers rarely want the same one.
const SHARDS_OF_WORKER: usize = 4;
/// The smallest store.
const SIZE_BYTES_MIN: u64 = 1 << 20;

/// The store that all routes with `cache` share.
#[derive(Debug, Clone)]
pub struct CachePlan {
    /// Bytes of all responses in memory: stored ones, those that are still being sent though no
    /// longer stored, and those that are being fetched. 1 MiB-16 TiB. Default 256 MiB.
    pub size_bytes: u64,
    /// Most bytes of the body of a stored response, up to 1 GiB, and at most a quarter of
    /// [`CachePlan::size_bytes`]. Default 8 MiB.
    pub object_bytes_max: u64,
    /// Most responses under one key, by the fields that their Vary names, 1-1,000; the least
    /// recently used one is evicted. Default 16.
    pub variants_max: u32,
    /// The part that survives a restart, and its file; None, the default: nothing.
    pub snapshot: Option<SnapshotPlan>,
    /// The store, shared by all workers. The program that runs the plan makes it; the plan's
    /// successor keeps it. None: not made yet.
    pub store: Option<Arc<Store>>,
}

/// The file that keeps stored responses over a restart: `snapshot`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotPlan {
    /// Its absolute path.
    pub path: PathBuf,
    /// Its bytes at most, up to [`CachePlan::size_bytes`].
    pub bytes_max: u64,
    /// How often it is written, microseconds, 1 s-1 d. Default 10 min.
    pub every_us: u64,
}

/// How the responses of a route are stored and served: `cache` of the route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheRules {
    /// The rules of whether and for how long. Its `object_bytes_max` is that of the plan.
    pub options: Options,
    /// The parts of their keys.
    pub keys: KeyRules,
    /// The clients that see in Cache-Status what the cache did. Default: none.
    pub told: ToldTo,
    /// Fields of responses that contain their tags, each once. Default: Cache-Groups.
    pub tags: Vec<TagField>,
    /// Clients that may purge responses by PURGE. Default: none, and PURGE is forwarded as any
    /// method.
    pub purge_from: Vec<Network>,
    /// How long requests are forwarded separately after their response turned out not to be
    /// storable, microseconds, up to 1 h. Default 120 s; 0: never.
    pub hit_for_miss_us: u64,
}

/// The clients that see Cache-Status (RFC 9211): `cache-status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToldTo {
    /// No client: the field reveals whether others have requested a page. The default.
    #[default]
    Nobody,
    /// Clients whose connection comes from one of
    /// [`trusted_proxies`](super::ClientPlan::trusted_proxies).
    Trusted,
    /// All clients.
    Everybody,
}

impl ToldTo {
    /// Returns the word of the configuration.
    pub fn word(self) -> &'static str {
        match self {
            ToldTo::Nobody => "off",
            ToldTo::Trusted => "trusted",
            ToldTo::Everybody => "on",
        }
    }
}

impl CachePlan {
    /// Returns the limits of the store.
    pub fn limits(&self) -> Limits {
        let variants_max = usize::try_from(self.variants_max).unwrap_or(usize::MAX);
        Limits { bytes: self.size_bytes, object_bytes_max: self.object_bytes_max, variants_max }
    }

    /// Makes an empty store for this many workers. `secret` keeps attackers from choosing keys that
    /// share a place.
    pub fn open(&mut self, secret: [u64; 2], workers: usize) {
        let shards = workers.max(1).saturating_mul(SHARDS_OF_WORKER);
        self.store = Some(Arc::new(Store::new(self.limits(), secret, shards)));
    }

    /// Applies the limits of this plan, which is in force, to the store.
    pub fn resize(&self) {
        if let Some(store) = &self.store {
            store.set_limits(self.limits());
        }
    }

    /// Forgets all stored responses, and those being fetched: no route stores responses any more.
    pub fn forget(&self) {
        if let Some(store) = &self.store {
            // A ban of everything that is not soft cannot fail.
            let _ = store.ban(Target::All, false);
            store.set_limits(Limits { bytes: SIZE_BYTES_MIN, ..self.limits() });
        }
    }
}

impl Default for CachePlan {
    fn default() -> CachePlan {
        CachePlan {
            size_bytes: 256 << 20,
            object_bytes_max: 8 << 20,
            variants_max: 16,
            snapshot: None,
            store: None,
        }
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
