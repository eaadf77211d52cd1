//! How everything is measured and configured: the last section of each report. Called by
//! `figures.rs`.

/// Paragraphs, with empty lines between them.
pub(super) const METHOD: &str = "Contenders take turns within each round (A B C A B C ..., two
that run side by side A B B A). Ratios are taken within a round; their median is shown, with its
confidence interval by order statistics: the values between which the true median lies with the
stated probability, whatever their distribution, if rounds are independent. It is as narrow as 95
% allow; fewer than six rounds can't be that sure, and all of them are the interval: 75 % with
three, 94 % with five. `weir bomb` makes the load, from a separate process; it connects and warms
up before counting starts. CPU is user and system time of all processes and threads of the
program in the counted time, divided by the answers of that time. Upstream connections are those
that the origin accepted in the run. In a closed loop latency counts from the send, by the clock
from the time a request was due; `p99 from sent` is what a generator shows that waits for its
server. Idle memory is the growth of the proportional set size (PSS); with slow clients it is the
highest resident size above that before the load. A row names its limit when the cores were all
busy, when generator and origin used most of them, and when the generator says that it was the
limit.

Settings. Origin and proxy nginx: a worker a core, pinned, epoll, multi_accept on, accept_mutex
off, reuseport, backlog 65535, logs off, keepalive_requests 10^9; origin with open_file_cache and
sendfile, which is off for files below 16 KiB; proxy with 4,096 kept upstream connections a
worker, HTTP/1.1 upstream, proxy_buffers 16 32k, no temporary files; `nginx-forward` the same
with proxy_pass to what Host says, so without kept upstream connections. HAProxy: a thread a
core, pinned, a listener a thread, http-reuse always, no log. Where no single value is right, a
short sweep before the first cell of a kind (contender, connections, requests, TLS, HTTP/2) tries
two candidates and takes the one that needs less processor time a request; the line below a table
names it and what the other one takes, and the raw data has each run: for HAProxy the share of
descriptors up to which it keeps upstream connections (`tune.pool-low-fd-ratio`), for nginx with
answers of 16 KiB and more its first buffer, for its cache sendfile, for Varnish how long a
thread waits for its client. Envoy, Pingora and weir have none. Envoy: a worker a core, no log,
no request ids, circuit breakers that never open. Pingora: the program of bench/pingora, a thread
a core, no work stealing. weir: default settings (32 connections to the server; from 1,000
clients on `queue-size` is their number) but for `-epoll` (driver), `-1`, `-8`, `-128` and `-256`
(connections to the server), `-off` (pipeline off) and `-stay` (escape=off). Where a process may
not have enough descriptors for its clients (and their servers), there are several: nginx gets
more workers, weir more processes on separate addresses, the others more processes that share the
address (SO_REUSEPORT).
";
