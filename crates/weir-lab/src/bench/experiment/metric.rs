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
    /// What the machine was busier for each connection than without anybody in the middle, microseconds.
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
    /// By the clock: the same from when requests were sent, milliseconds.
    SentP99Ms,
    /// Bytes for each idle connection.
    IdleBytes,
    /// Megabytes above idle.
    MemoryMb,
    /// Connections that the origin accepted.
    Upstream,
    /// Requests that the origin got behind a cache.
    Fetches,
    /// 99th percentile of latency beyond what the origin takes, milliseconds.
    BeyondOriginMs,
    /// Hits of a cache as a multiple of those of one that forgets what was asked for longest ago, of as many answers.
    HitsOfLru,
    /// What a cache has taken, of what it was told that it has.
    TakenOfRoom,
    /// From the order of a purge to the last old answer that a client got, milliseconds.
    GoneMs,
    /// Requests that failed.
    Failures,
    /// What an attacker's attempt costs the proxy's core, microseconds.
    AttemptCpu,
    /// Users' 99th percentile beside attackers as a multiple of that without them.
    UsersP99,
    /// Users' requests that were turned away.
    FalseBlocks,
    /// What attackers got beyond the limit, percent of what it lets through.
    OverService,
    /// From one attempt too many to the first that was turned away, ms, 99th percentile over attackers.
    TimeToBlock,
    /// What weir has more with as many bans as there may be than with none, MB.
    BanMb,
    /// Client connections of the worker that has most as a multiple of those of the one that has least.
    ConnectionsLadder,
    /// The same of processor time.
    CpuLadder,
    /// Clients' connections that were refused, reset or not answered while a configuration was taken into force.
    CutOff,
    /// Measured answers that took more than 8 ms, percent.
    LatePercent,
    /// Requests that the server got once more although no connection was lost.
    Twice,
    /// Connections to the server for each 1,000 requests.
    ConnectsPerThousand,
    /// From the end of a ban to the first answer, ms, the slowest client.
    RecoveryMs,
}

/// A column of ratios: its head, what is divided, and by whose.
pub(crate) type Compared = (&'static str, Metric, &'static str);
