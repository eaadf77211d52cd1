//! A reverse proxy of Pingora for `weir bench proxying`: `weir-bench-pingora LISTEN THREADS TO...`,
//! set as its experts would.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use pingora_core::Result;
use pingora_core::server::Server;
use pingora_core::server::configuration::ServerConf;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};

struct Proxy {
    to: Vec<String>,
    next: AtomicUsize,
}

#[async_trait]
impl ProxyHttp for Proxy {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _: &mut Session, _: &mut ()) -> Result<Box<HttpPeer>> {
        let nth = self.next.fetch_add(1, Ordering::Relaxed) % self.to.len();
        Ok(Box::new(HttpPeer::new(self.to[nth].as_str(), false, String::new())))
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words == ["-v"] {
        println!("Pingora 0.9");
        return;
    }
    let [listen, threads, to @ ..] = &words[..] else { usage() };
    let threads = threads.parse().unwrap_or_else(|_| usage());
    if to.is_empty() {
        usage();
    }
    let conf = ServerConf {
        threads,
        upstream_keepalive_pool_size: 65_536,
        work_stealing: false,
        grace_period_seconds: Some(0),
        graceful_shutdown_timeout_seconds: Some(0),
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let proxy = Proxy { to: to.to_vec(), next: AtomicUsize::new(0) };
    let mut service = http_proxy_service(&Arc::clone(&server.configuration), proxy);
    service.add_tcp(listen);
    server.add_service(service);
    server.run_forever();
}

fn usage() -> ! {
    eprintln!("usage: weir-bench-pingora LISTEN THREADS TO...");
    std::process::exit(2)
}
