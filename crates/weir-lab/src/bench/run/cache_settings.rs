//! How each cache is set, as its own experts would set it, and where it stores.
//!
//! Called by `stage.rs` and `cache.rs`, which start them. What nginx stores, and where Varnish works, is on a file system in memory and is removed at
//! the end.

use std::fmt::Display;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::settings;
use crate::bench::experiment::cache::Cacher;
use crate::bench::experiment::contenders::WEIR;

/// Where a file system in memory is.
const MEMORY: &str = "/dev/shm";
/// Threads of Varnish that wait for work, and most of them, in each of its pools: a request that is being answered has one.
const VARNISH_THREADS: (u32, u32) = (200, 3000);
/// What stands before the room in Varnish's file, for whoever starts it: it is told so on its command line.
const ROOM: &str = "# room in MiB: ";

/// The settings of a cache with so much room, for so many clients, in front of these servers.
///
/// # Errors
/// There is no place for what it stores.
pub(super) fn text(
    cacher: Cacher,
    (directory, cores, descriptors): (&Path, usize, u64),
    (listen, to): (SocketAddr, &[SocketAddr]),
    (room_mib, clients): (u32, u32),
) -> io::Result<String> {
    Ok(match cacher {
        Cacher::Nginx => nginx((directory, &fresh_directory()?), listen, to, (cores as u64, descriptors), room_mib),
        Cacher::Varnish => varnish(to[0], room_mib),
        Cacher::Weir => weir(listen, to[0], cores, (room_mib, clients)),
    })
}

/// What Varnish is told when it is started with this file.
///
/// # Errors
/// There is no place where it could work.
pub(super) fn varnish_words(listen: SocketAddr, (file, text): (&Path, &str), cores: usize) -> io::Result<Vec<String>> {
    let room = text.lines().find_map(|line| line.strip_prefix(ROOM)).unwrap_or("256");
    let (least, most) = VARNISH_THREADS;
    let directory = fresh_directory()?;
    let mut words: Vec<String> = ["-F", "-j", "none", "-n"].map(str::to_owned).into();
    words.extend([directory.to_string_lossy().into_owned(), "-f".to_owned(), file.to_string_lossy().into_owned()]);
    words.extend(["-a".to_owned(), listen.to_string(), "-s".to_owned(), format!("malloc,{room}M")]);
    let parameters = [
        format!("thread_pools={cores}"),
        format!("thread_pool_min={least}"),
        format!("thread_pool_max={most}"),
        "timeout_idle=3600".to_owned(),
    ];
    words.extend(parameters.into_iter().flat_map(|parameter| ["-p".to_owned(), parameter]));
    Ok(words)
}

/// What of this process of ours is in memory.
fn memory() -> PathBuf {
    Path::new(MEMORY).join(format!("weir-bench-{}", std::process::id()))
}

/// Removes what is there.
pub(super) fn clean() {
    let _ = fs::remove_dir_all(memory());
}

/// An empty directory in memory.
fn fresh_directory() -> io::Result<PathBuf> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let directory = memory().join(NUMBER.fetch_add(1, Ordering::Relaxed).to_string());
    fs::create_dir_all(&directory)?;
    // The workers of nginx are another user.
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777))?;
    Ok(directory)
}

/// nginx with its cache in this directory.
fn nginx(
    (directory, cache): (&Path, &Path),
    listen: SocketAddr,
    to: &[impl Display],
    workers: (u64, u64),
    room_mib: u32,
) -> String {
    let path = cache.display();
    let http = format!(
        "    sendfile on;
    open_file_cache max=100000 inactive=1h;
    open_file_cache_valid 1h;
    proxy_cache_path {path} levels=1:2 keys_zone=c:64m max_size={room_mib}m inactive=1d use_temp_path=off manager_files=10000 manager_threshold=1s manager_sleep=50ms;
    upstream app {{
"
    );
    let location = "            proxy_cache c;
            proxy_cache_valid 200 1h;
            proxy_cache_lock on;
            proxy_pass http://app;
";
    settings::nginx_proxy(directory, listen, to, workers)
        .replace("    upstream app {\n", &http)
        // A proxy_cache writes files in any case.
        .replace("    proxy_max_temp_file_size 0;\n", "")
        .replace("            proxy_pass http://app;\n", location)
        .replace("nginx.pid", "nginx-cache.pid")
}

/// Varnish's file; it asks one address.
fn varnish(to: SocketAddr, room_mib: u32) -> String {
    let (host, port) = (to.ip(), to.port());
    format!(
        "vcl 4.1;
{ROOM}{room_mib}
backend default {{
    .host = \"{host}\";
    .port = \"{port}\";
    .max_connections = 4096;
}}
sub vcl_recv {{
    unset req.http.Cookie;
}}
sub vcl_backend_response {{
    set beresp.ttl = 1h;
    set beresp.grace = 0s;
}}
"
    )
}

/// weir's file.
fn weir(listen: SocketAddr, to: impl Display, cores: usize, (room_mib, clients): (u32, u32)) -> String {
    let route = "    proxy \"app\"\n    cache {\n        ttl \"1h\"\n    }\n}\n";
    let text = settings::weir(listen, to, cores, WEIR.for_clients(clients)).replace("    proxy \"app\"\n}\n", route);
    format!("cache {{\n    size \"{room_mib}MiB\"\n    object-limit \"1MiB\"\n}}\n{text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stores_and_says_how_much() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let nginx = nginx((Path::new("/d"), Path::new("/dev/shm/c")), at(1111), &[at(3333)], (2, 20_000), 16);
        for line in ["proxy_cache_path /dev/shm/c levels", "max_size=16m", "proxy_cache c;", "server 127.0.0.1:3333"] {
            assert!(nginx.contains(line), "{line}: {nginx}");
        }
        assert!(!nginx.contains("max_temp_file_size") && nginx.matches("proxy_pass").count() == 1, "{nginx}");
        let varnish = varnish(at(3333), 16);
        assert!(varnish.contains(".port = \"3333\""), "{varnish}");
        let words = varnish_words(at(1111), (Path::new("/d/varnish.conf"), &varnish), 2).unwrap().join(" ");
        clean();
        assert!(words.contains("-a 127.0.0.1:1111 -s malloc,16M") && words.contains("-f /d/varnish.conf"), "{words}");
        let weir = weir(at(1111), at(3333), 2, (16, 1000));
        assert!(weir.starts_with("cache {\n    size \"16MiB\"") && weir.contains("ttl \"1h\""), "{weir}");
    }
}
