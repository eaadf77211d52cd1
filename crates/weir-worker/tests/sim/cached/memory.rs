//! Remembers what the origin sent, when, and on which terms, and what was purged; and judges the
//! responses that clients get.
//!
//! Each response of the origin is a version: a field and its body carry its number, and the body
//! also its key. Times are world time in microseconds: weir can't have known of a version before it
//! requested it, nor served it before that.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use weir_cache::Store;
use weir_check::{Body, Reply};

/// The memory that all parties share.
pub type Shared = Rc<RefCell<Memory>>;

/// The most bytes that a response takes besides its body: a response that finds no room may exceed
/// the bound by as much.
const OWN_BYTES_MAX: u64 = 4096;

/// The resource behind a URL.
#[derive(Clone, Debug, Default)]
pub struct Resource {
    /// Seconds for which its responses are fresh.
    pub max_age_s: u64,
    /// Seconds of stale-while-revalidate and stale-if-error; 0: it has none.
    pub renewed_s: u64,
    pub on_error_s: u64,
    /// Its responses have an ETag.
    pub has_etag: bool,
    pub no_cache: bool,
    pub must_revalidate: bool,
    /// `X-Way` selects them.
    pub varies: bool,
    /// They are only for the client that asks.
    pub is_private: bool,
    /// Bytes of bodies, besides the key and version at their beginning. Most are much shorter than
    /// the longest.
    pub bytes_min: usize,
    pub bytes_max: usize,
}

impl Resource {
    /// The fields of its responses.
    pub fn lines(&self, key: usize, version: usize) -> String {
        let Resource { max_age_s, renewed_s, on_error_s, .. } = self;
        let mut control = format!("max-age={max_age_s}");
        let mut add = |is_said, text: String| {
            control += &if is_said { format!(", {text}") } else { String::new() }
        };
        add(*renewed_s > 0, format!("stale-while-revalidate={renewed_s}"));
        add(*on_error_s > 0, format!("stale-if-error={on_error_s}"));
        add(self.no_cache, "no-cache".to_owned());
        add(self.must_revalidate, "must-revalidate".to_owned());
        add(self.is_private, "private".to_owned());
        let etag = if self.has_etag { format!("ETag: \"v{version}\"\r\n") } else { String::new() };
        let vary = if self.varies { "Vary: X-Way\r\n" } else { "" };
        let group = tag(key);
        format!("Cache-Control: {control}\r\n{etag}{vary}Cache-Groups: \"{group}\"\r\n")
    }
}

/// The group that a key belongs to.
pub fn tag(key: usize) -> String {
    format!("g{}", key % 3)
}

/// One response with a body.
#[derive(Debug)]
pub struct Version {
    pub key: usize,
    /// The value of `X-Way`.
    pub way: Option<u8>,
    /// When weir requested it, and when it sent each request that a 304 has answered since.
    pub asked_us: Vec<u64>,
    /// When the last 304 for it was sent; 0: there was none.
    pub confirmed_us: u64,
    /// The nonce of the only request that may have it; None: any may.
    pub owner: Option<String>,
    pub bytes: usize,
}

impl Version {
    /// Its whole body.
    pub fn body(&self, number: usize) -> Vec<u8> {
        let way = self.way.unwrap_or_default();
        let mut body = format!("key {} version {number} way {way} ", self.key).into_bytes();
        let step = (number as u8).wrapping_mul(31).wrapping_add(7);
        body.extend((0..self.bytes).map(|at| (at as u8).wrapping_mul(step) ^ (at >> 8) as u8));
        body
    }
}

/// A request of a client.
#[derive(Clone, Debug)]
pub struct Question {
    pub nonce: String,
    pub method: &'static str,
    pub key: usize,
    pub way: Option<u8>,
    /// Fields that request something other than the whole response that all clients get.
    pub lines: String,
    /// The range that it wants.
    pub range: Option<(usize, usize)>,
}

impl Question {
    pub fn is_conditional(&self) -> bool {
        self.lines.contains("If-None-Match")
    }

    pub fn bytes(&self) -> Vec<u8> {
        let Question { nonce, method, key, lines, .. } = self;
        let way = self.way.map(|way| format!("X-Way: {way}\r\n")).unwrap_or_default();
        let range = self
            .range
            .map(|(first, last)| format!("Range: bytes={first}-{last}\r\n"))
            .unwrap_or_default();
        format!(
            "{method} /k{key} HTTP/1.1\r\nHost: weir.test\r\nX-Nonce: {nonce}\r\n\
            {way}{range}{lines}\r\n"
        )
        .into_bytes()
    }
}

/// Responses that may not be served to later requests.
#[derive(Clone, Copy, Debug)]
pub struct Purge {
    /// Requests from this time on must see it.
    pub at_us: u64,
    /// Responses that were requested before this time are purged; those requested between the two
    /// times may be.
    pub of_us: u64,
    pub whose: Whose,
    /// Purged responses may be served stale.
    pub is_soft: bool,
}

/// The keys that a purge covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    All,
    /// The keys of the group of this key.
    Group(usize),
    Key(usize),
}

impl Whose {
    fn has(self, key: usize) -> bool {
        match self {
            Whose::All => true,
            Whose::Group(other) => tag(other) == tag(key),
            Whose::Key(other) => other == key,
        }
    }
}

/// A response of another key.
#[derive(Clone, Debug)]
pub struct Astray {
    /// When its client requested it, and when weir did.
    pub asked_us: u64,
    pub fetched_us: u64,
    /// The fault.
    pub text: String,
}

impl Astray {
    /// For messages.
    pub fn told(&self) -> String {
        format!("{}, asked at {} us, fetched at {} us", self.text, self.asked_us, self.fetched_us)
    }
}

/// How often clients got which kind of response.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Responses that another request had brought.
    pub shared: u64,
    /// Responses that their own request has brought.
    pub own: u64,
    /// Of both, responses that were older than their lifetime.
    pub stale: u64,
    /// Errors of weir, and ends of connections.
    pub failed: u64,
    /// Responses fetched after a purge of their key.
    pub purged: u64,
}

/// Everything about a run.
pub struct Memory {
    pub resources: Vec<Resource>,
    pub versions: Vec<Version>,
    pub purges: Vec<Purge>,
    /// When the origin failed: with 503, or by the end of a connection.
    failures_us: Vec<u64>,
    /// By nonce of an unsafe request: when its origin said that it is done.
    pub changes_us: BTreeMap<String, u64>,
    /// By key and way: how many requests for it are open at origins; and the most that there ever
    /// were.
    open: BTreeMap<(usize, Option<u8>), u32>,
    pub open_max: u32,
    pub counts: Counts,
    /// Responses to the wrong asker are kept in `astray`, and are no violation.
    pub collects_astray: bool,
    pub astray: Vec<Astray>,
    pub violations: Vec<String>,
    pub store: Arc<Store>,
    bytes_max: u64,
    /// How long a response may be under way from the origin to weir, microseconds.
    under_way_us: u64,
}

impl Memory {
    pub fn new(
        resources: Vec<Resource>,
        store: &Arc<Store>,
        bytes_max: u64,
        under_way_us: u64,
    ) -> Shared {
        Rc::new(RefCell::new(Memory {
            resources,
            versions: Vec::new(),
            purges: Vec::new(),
            failures_us: Vec::new(),
            changes_us: BTreeMap::new(),
            open: BTreeMap::new(),
            open_max: 0,
            counts: Counts::default(),
            collects_astray: false,
            astray: Vec::new(),
            violations: Vec::new(),
            store: Arc::clone(store),
            bytes_max,
            under_way_us,
        }))
    }

    pub fn violation(&mut self, text: String) {
        if self.violations.len() < 10 {
            self.violations.push(text);
        }
    }

    pub fn failed(&mut self, now_us: u64) {
        self.failures_us.push(now_us);
    }

    /// Counts one more request for a key at origins.
    pub fn opened(&mut self, key: usize, way: Option<u8>) {
        let open = self.open.entry((key, way)).or_default();
        *open += 1;
        self.open_max = self.open_max.max(*open);
    }

    /// Counts one fewer.
    pub fn closed(&mut self, key: usize, way: Option<u8>) {
        self.open.entry((key, way)).and_modify(|open| *open -= 1);
    }

    /// invariant 5: live bytes are within the bound, apart from parts of responses without room
    /// that are being sent, each of which has a client.
    pub fn look_at_bytes(&mut self, clients: usize) {
        let live = self.store.report().live_bytes;
        if live > self.bytes_max + clients as u64 * OWN_BYTES_MAX {
            self.violation(format!(
                "invariant 5: {live} bytes live, {} are allowed",
                self.bytes_max
            ));
        }
    }

    /// Judges a reply to a request that the client had sent at `asked_us`.
    pub fn replied(&mut self, asked: &Question, asked_us: u64, reply: &Reply, now_us: u64) {
        match self.judge(asked, asked_us, reply, now_us) {
            Ok(()) => {}
            Err(text) => {
                let Question { nonce, method, key, way, .. } = asked;
                let status = reply.status;
                self.violation(format!(
                    "{nonce} {method} /k{key} by {way:?}, asked at {asked_us}, got {status}: {text}"
                ));
            }
        }
    }

    fn judge(
        &mut self,
        asked: &Question,
        asked_us: u64,
        reply: &Reply,
        now_us: u64,
    ) -> Result<(), String> {
        let by = reply.fields.first("x-nonce").map(str::to_owned);
        let Some(by) = by else {
            self.counts.failed += 1;
            return judge_own_error(asked, reply);
        };
        let is_own = by == asked.nonce;
        if reply.status == 503 {
            self.counts.failed += 1;
            // A server's failure is only for the client that gets it.
            return if is_own || self.collects_astray {
                Ok(())
            } else {
                Err(format!("invariant 1: the failure of {by}"))
            };
        }
        if asked.method == "DELETE" {
            self.counts.own += 1;
            if let (200, Some(of_us)) = (reply.status, self.changes_us.get(&asked.nonce)) {
                self.purges.push(Purge {
                    at_us: now_us,
                    of_us: *of_us,
                    whose: Whose::Key(asked.key),
                    is_soft: false,
                });
            }
            return if is_own || self.collects_astray {
                Ok(())
            } else {
                Err(format!("invariant 1: the answer to {by}"))
            };
        }
        if is_own && reply.status == 304 && asked.is_conditional() {
            // The client has set conditions itself.
            self.counts.own += 1;
            return Ok(());
        }
        let Some(number) = version_of(reply) else {
            return Err(format!("no version: {:?}", reply.fields));
        };
        let Some(version) = self.versions.get(number) else {
            return Err(format!("no such version: {number}"));
        };
        if let Err(text) = judge_body(asked, number, version, reply, is_own) {
            if self.collects_astray {
                let fetched_us = version.asked_us[0];
                self.astray.push(Astray { asked_us, fetched_us, text });
                return Ok(());
            }
            return Err(text);
        }
        if is_own {
            self.counts.own += 1;
            return Ok(());
        }
        self.counts.shared += 1;
        self.judge_purges(asked_us, number)?;
        self.judge_age(asked_us, number)
    }

    /// invariant 4: a request after a purge gets nothing that was fetched before.
    fn judge_purges(&mut self, asked_us: u64, number: usize) -> Result<(), String> {
        let Memory { purges, versions, resources, counts, .. } = self;
        let version = &versions[number];
        let resource = &resources[version.key];
        for purge in
            purges.iter().filter(|purge| purge.at_us <= asked_us && purge.whose.has(version.key))
        {
            let is_newer = match purge.is_soft {
                // A server that confirms a response makes it fresh again.
                true => version.asked_us.iter().any(|at_us| *at_us >= purge.of_us),
                false => version.asked_us[0] >= purge.of_us,
            };
            let may_be_stale = purge.is_soft && resource.renewed_s + resource.on_error_s > 0;
            if !is_newer && !may_be_stale {
                return Err(format!(
                    "invariant 4: version {number} of {:?}, after {purge:?}",
                    version.asked_us
                ));
            }
            counts.purged += u64::from(is_newer);
        }
        Ok(())
    }

    /// invariant 2: stale responses are served only with a licence.
    fn judge_age(&mut self, asked_us: u64, number: usize) -> Result<(), String> {
        let version = &self.versions[number];
        let resource = &self.resources[version.key];
        let last_us = *version.asked_us.last().expect("it was asked for");
        let lifetime_us = if resource.no_cache { 0 } else { resource.max_age_s * 1_000_000 };
        // The lifetime counts from the request: weir can't have asked later. A response that came
        // after its client asked is good as it is.
        let over_us = asked_us.saturating_sub(last_us + lifetime_us);
        if over_us == 0 {
            return Ok(());
        }
        self.counts.stale += 1;
        let is_within = |seconds: u64| seconds > 0 && over_us <= seconds * 1_000_000;
        // A client that waits when a 304 comes gets the response as well.
        if version.confirmed_us > 0 && version.confirmed_us + self.under_way_us >= asked_us {
            return Ok(());
        }
        let fails = || self.failures_us.iter().any(|at_us| *at_us + self.under_way_us >= asked_us);
        let may_be = !resource.must_revalidate && !resource.no_cache;
        if may_be && (is_within(resource.renewed_s) || is_within(resource.on_error_s) && fails()) {
            return Ok(());
        }
        Err(format!("invariant 2: version {number} is stale for {over_us} us: {resource:?}"))
    }
}

/// The number of the version that a reply carries or confirms.
fn version_of(reply: &Reply) -> Option<usize> {
    let by_field = reply.fields.first("x-version").and_then(|text| text.parse().ok());
    by_field.or_else(|| {
        reply.fields.first("etag")?.strip_prefix("\"v")?.strip_suffix('"')?.parse().ok()
    })
}

/// Judges an error of weir: the run decides whether it is allowed.
fn judge_own_error(asked: &Question, reply: &Reply) -> Result<(), String> {
    match reply.status {
        // It accepts nothing but a stored response.
        504 if asked.lines.contains("only-if-cached") => Ok(()),
        416 if asked.range.is_some() => Ok(()),
        502..=504 => Ok(()),
        _ => Err("an error that nobody says".to_owned()),
    }
}

/// invariant 1: a reply is of the key that was asked for: all of it, or the requested range.
fn judge_body(
    asked: &Question,
    number: usize,
    version: &Version,
    reply: &Reply,
    is_own: bool,
) -> Result<(), String> {
    let Version { key, way, .. } = version;
    if *key != asked.key || way.is_some() && *way != asked.way {
        return Err(format!("invariant 1: version {number} of key {key} by {way:?}"));
    }
    if version.owner.as_ref().is_some_and(|owner| *owner != asked.nonce) {
        return Err(format!(
            "invariant 1: version {number}, which is for {:?} alone",
            version.owner
        ));
    }
    let whole = version.body(number);
    let expected = match (reply.status, asked.range) {
        _ if asked.method == "HEAD" => Body::default(),
        (304, _) if asked.is_conditional() => Body::default(),
        (416, Some((first, _))) if first >= whole.len() => return Ok(()),
        (200, _) => Body::of(&whole),
        (206, Some((first, last))) if first < whole.len() => {
            Body::of(&whole[first..whole.len().min(last + 1)])
        }
        _ => return Err("not what was asked for".to_owned()),
    };
    match reply.body.length == expected.length && reply.body.sum == expected.sum {
        true => Ok(()),
        false => {
            let (length, begin) =
                (reply.body.length, reply.body.text().chars().take(30).collect::<String>());
            Err(format!(
                "invariant 1: {length} bytes that begin with {begin:?} instead of {}, own: \
                    {is_own}",
                expected.length
            ))
        }
    }
}
