//! What experiments compare: figures of a run, and ratios of them between contenders.
//!
//! Named by `catalogue.rs`, `targets.rs` and `tunnel.rs`; `Record::figure` gives the values.

/// What can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Metric {
    /// Replies a second.
    Rate,
    /// Proxy CPU for each request.
    Cpu,
    /// Additional processor time of the machine for each connection, compared with no program in
    /// the middle, microseconds.
    AddedCpu,
    /// The same for each gigabyte, seconds.
    AddedCpuGigabyte,
    /// Proxy CPU for each gigabyte, seconds.
    CpuGigabyte,
    /// Generator CPU for each request.
    GeneratorCpu,
    /// Median of latency, microseconds.
    P50,
    /// 99th percentile of latency, microseconds.
    P99,
    /// 99.9th percentile of latency, microseconds.
    P999,
    /// 99th percentile of latency, milliseconds.
    P99Ms,
    /// By the clock: the same, counted from when requests were sent, milliseconds.
    SentP99Ms,
    /// Bytes for each idle connection.
    IdleBytes,
    /// Megabytes above idle.
    MemoryMb,
    /// Connections that the origin accepted.
    Upstream,
    /// Requests that reached the origin behind a cache.
    Fetches,
    /// 99th percentile of latency beyond the origin's own time, milliseconds.
    BeyondOriginMs,
    /// Hits of a cache as a multiple of those of a cache that evicts the least recently requested
    /// entry, of as many responses.
    HitsOfLru,
    /// Memory that a cache has taken, relative to the size it was configured with.
    TakenOfRoom,
    /// From the order of a purge to the last old response that a client got, milliseconds.
    GoneMs,
    /// Requests that failed.
    Failures,
    /// What an attacker's attempt costs the proxy's core, microseconds.
    AttemptCpu,
    /// Users' 99th percentile beside attackers as a multiple of that without them.
    UsersP99,
    /// Users' requests that were refused.
    FalseBlocks,
    /// What attackers got beyond the limit, percent of what it lets through.
    OverService,
    /// From the first attempt beyond the limit to the first refused one, ms, 99th percentile over
    /// attackers.
    TimeToBlock,
    /// Additional memory of weir with the maximum number of bans compared with none, MB.
    BanMb,
    /// Client connections of the worker that has most as a multiple of those of the worker that has
    /// least.
    ConnectionsLadder,
    /// The same of processor time.
    CpuLadder,
    /// Clients' connections that were refused, reset or not answered during a reload.
    CutOff,
    /// Measured responses that took more than 8 ms, percent.
    LatePercent,
    /// Requests that the server got once more although no connection was lost.
    Twice,
    /// Connections to the server for each 1,000 requests.
    ConnectsPerThousand,
    /// From the end of a ban to the first response, ms, the slowest client.
    RecoveryMs,
}

/// A column of ratios: its header, the figure, and the contender whose figure it is divided by.
pub(crate) type Compared = (&'static str, Metric, &'static str);
