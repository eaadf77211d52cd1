//! How everything is measured and configured: the last section of each report. Called by
//! `figures.rs`.

/// Paragraphs, with empty lines between them.
pub(super) const METHOD: &str = "Contenders take turns within each round (A B C A B C ..., two
that run side by side A B B A). Ratios are taken within a round, and the report shows their
median. Its confidence interval comes from order statistics, and holds for any distribution if
rounds are independent. The true median lies between its two values with the stated probability.
The interval is as narrow as 95 % allow. Fewer than six rounds cannot reach that, and then the
interval covers all of them: 75 % with three, 94 % with five.

`weir bomb` makes the load in a separate process. It connects and warms up before counting
starts. CPU is the user and system time of all processes and threads of the program in the
counted time, divided by the responses of that time. Upstream connections are those that the
origin accepted in the run. In a closed loop, latency counts from the send. By the clock, it
counts from the time a request was due; `p99 from sent` is what a generator shows that waits for
its server.

Idle memory is the growth of the proportional set size (PSS). With slow clients, memory is the
highest resident size, minus that before the load. A row names its limit if all cores were busy,
or if generator and origin used most of them. It also does if the generator reports that it was
the limit.

Settings of nginx, as origin and as proxy: one worker per core, pinned, epoll, multi_accept on,
accept_mutex off, reuseport, backlog 65535, logs off, keepalive_requests 10^9. The origin has
open_file_cache and sendfile, which is off for files below 16 KiB. The proxy has 4,096 kept
upstream connections per worker, HTTP/1.1 upstream, proxy_buffers 16 32k, and no temporary files.
`nginx-forward` is the same with proxy_pass to the value of Host, so it keeps no upstream
connections. Settings of HAProxy: one thread per core, pinned, one listener per thread,
http-reuse always, no log.

Where no single value is right, a short sweep tries two candidates before the first cell of a
kind (contender, connections, requests, TLS, HTTP/2). It takes the candidate that needs less CPU
time per request. The line below a table names it and the cost of the other candidate, and the
raw data has each run. For HAProxy, the sweep sets the share of descriptors up to which it keeps
upstream connections (`tune.pool-low-fd-ratio`). For nginx, it sets the first buffer with
responses of 16 KiB and more, and sendfile of its cache. For Varnish, it sets how long a thread
waits for its client. Envoy, Pingora and weir have no sweep.

Settings of Envoy: one worker per core, no log, no request ids, circuit breakers that never open.
Settings of Pingora: the program of bench/pingora, one thread per core, no work stealing. weir
has its default settings, with 32 connections to the server; from 1,000 clients on, `queue-size`
is their number. The exceptions are `-epoll` (driver), `-1`, `-8`, `-128` and `-256` (connections
to the server), `-off` (pipeline off) and `-stay` (escape=off).

A process may not have enough descriptors for its clients (and their servers). Then nginx gets
more workers, and weir gets more processes on separate addresses. The others get more processes
that share the address (SO_REUSEPORT).
";
