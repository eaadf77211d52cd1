//! How each cache is configured, as its own experts would do it, and where it stores.
//!
//! Called by `stage.rs` and `cache.rs`, which start them. nginx's stored files and Varnish's
//! working directory are on a file system in memory, and are removed at the end.

use std::fmt::Display;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::settings;
use crate::bench::experiment::cache::Cacher;
use crate::bench::experiment::contenders::{WEIR, WeirSettings};

/// Where a file system in memory is.
const MEMORY: &str = "/dev/shm";
/// Threads of Varnish that wait for work, and their maximum, in each of its pools: a request in
/// progress occupies one.
const VARNISH_THREADS: (u32, u32) = (200, 3000);
/// The text before the directory in nginx's file.
const PATH: &str = "proxy_cache_path ";
/// When nginx serves stale responses, and what it does meanwhile.
const NGINX_STALE: &str =
    "            proxy_cache_use_stale error timeout updating http_500 http_502 http_503 http_504;
            proxy_cache_background_update on;
";
/// The way to purge by a tag in Varnish: its only one by HTTP is the one in its configuration.
const VARNISH_BAN: &str = "    if (req.method == \"BAN\") {
        ban(\"obj.http.Surrogate-Key == \" + req.http.X-Tag);
        return (synth(200, \"Banned\"));
    }
";
/// The text before the size in Varnish's file, for the caller that starts it: Varnish takes the
/// size on its command line.
const ROOM: &str = "# room in MiB: ";
/// The same for the time for which a thread waits for the next request, seconds.
const LINGER: &str = "# linger in s: ";

/// What a load needs from a cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wishes {
    /// Room, MiB.
    pub(super) room_mib: u32,
    /// Clients that may send requests at the same time.
    pub(super) clients: u32,
    /// How long responses are fresh that don't say so themselves, seconds.
    pub(super) lifetime_s: u32,
    /// Stale responses are served for an hour while the origin fails, and while they are
    /// revalidated.
    pub(super) serves_stale: bool,
    /// Responses are found by the tags in their `Surrogate-Key`.
    pub(super) has_tags: bool,
    /// Each client may wait for a response of the origin that is private to it, all at the same
    /// time.
    pub(super) is_private: bool,
}

impl Wishes {
    /// For hits.
    pub(super) const fn plain(room_mib: u32, clients: u32) -> Wishes {
        Wishes {
            room_mib,
            clients,
            lifetime_s: 3600,
            serves_stale: false,
            has_tags: false,
            is_private: false,
        }
    }
}

/// Returns the settings of a cache in front of these servers.
///
/// # Errors
/// There is no directory for stored responses.
pub(super) fn text(
    cacher: Cacher,
    (directory, cores, descriptors): (&Path, usize, u64),
    (listen, to): (SocketAddr, &[SocketAddr]),
    wishes: Wishes,
) -> io::Result<String> {
    Ok(match cacher {
        Cacher::Nginx => {
            nginx((directory, &fresh_directory()?), listen, to, (cores as u64, descriptors), wishes)
        }
        Cacher::Varnish => varnish(to[0], wishes),
        Cacher::Weir => weir(listen, to[0], cores, wishes),
    })
}

/// Returns the bytes of the files that nginx stores with these settings; 0: they are not nginx's.
pub(super) fn file_bytes(text: &str) -> u64 {
    let path = text.split(PATH).nth(1).and_then(|rest| rest.split(' ').next());
    path.map_or(0, |path| bytes_below(Path::new(path)))
}

/// Files that disappear during the look don't count.
fn bytes_below(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let one = |entry: fs::DirEntry| match entry.metadata() {
        Ok(about) if about.is_dir() => bytes_below(&entry.path()),
        // A block of st_blocks is 512 bytes (stat(2)), whatever the file system's are.
        Ok(about) => about.blocks() * 512,
        Err(_) => 0,
    };
    entries.map(one).sum()
}

/// Returns Varnish's arguments for a start with this file.
///
/// # Errors
/// There is no directory where it could work.
pub(super) fn varnish_words(
    listen: SocketAddr,
    (file, text): (&Path, &str),
    cores: usize,
) -> io::Result<Vec<String>> {
    let told =
        |what: &str, usual| text.lines().find_map(|line| line.strip_prefix(what)).unwrap_or(usual);
    let (room, linger) = (told(ROOM, "256"), told(LINGER, "0.05"));
    let (least, most) = VARNISH_THREADS;
    let directory = fresh_directory()?;
    let mut words: Vec<String> = ["-F", "-j", "none", "-n"].map(str::to_owned).into();
    words.extend([
        directory.to_string_lossy().into_owned(),
        "-f".to_owned(),
        file.to_string_lossy().into_owned(),
    ]);
    words.extend(["-a".to_owned(), listen.to_string(), "-s".to_owned(), format!("malloc,{room}M")]);
    let parameters = [
        format!("thread_pools={cores}"),
        format!("thread_pool_min={least}"),
        format!("thread_pool_max={most}"),
        "timeout_idle=3600".to_owned(),
        format!("timeout_linger={linger}"),
    ];
    words.extend(parameters.into_iter().flat_map(|parameter| ["-p".to_owned(), parameter]));
    Ok(words)
}

/// Returns the directory of this process of ours in memory.
fn memory() -> PathBuf {
    Path::new(MEMORY).join(format!("weir-bench-{}", std::process::id()))
}

/// Removes the contents of that directory.
pub(super) fn clean() {
    let _ = fs::remove_dir_all(memory());
}

/// Creates an empty directory in memory.
fn fresh_directory() -> io::Result<PathBuf> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let directory = memory().join(NUMBER.fetch_add(1, Ordering::Relaxed).to_string());
    fs::create_dir_all(&directory)?;
    // The workers of nginx run as another user.
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777))?;
    Ok(directory)
}

/// Returns nginx's configuration with its cache in this directory.
fn nginx(
    (directory, cache): (&Path, &Path),
    listen: SocketAddr,
    to: &[impl Display],
    workers: (u64, u64),
    Wishes { room_mib, lifetime_s, serves_stale, .. }: Wishes,
) -> String {
    let path = cache.display();
    let http = format!(
        "    sendfile on;
    open_file_cache max=100000 inactive=1h;
    open_file_cache_valid 1h;
    {PATH}{path} levels=1:2 keys_zone=c:64m max_size={room_mib}m inactive=1d \
    use_temp_path=off manager_files=10000 manager_threshold=1s manager_sleep=50ms;
    upstream app {{
"
    );
    let stale = if serves_stale { NGINX_STALE } else { "" };
    let location = format!(
        "            proxy_cache c;
            proxy_cache_valid 200 {lifetime_s}s;
            proxy_cache_lock on;
{stale}            proxy_pass http://app;
"
    );
    settings::nginx_proxy(directory, listen, to, workers)
        .replace("    upstream app {\n", &http)
        // A proxy_cache writes files in any case.
        .replace("    proxy_max_temp_file_size 0;\n", "")
        .replace("            proxy_pass http://app;\n", &location)
        .replace("nginx.pid", "nginx-cache.pid")
}

/// Returns Varnish's file; it requests from one address.
fn varnish(
    to: SocketAddr,
    Wishes { room_mib, lifetime_s, serves_stale, has_tags, .. }: Wishes,
) -> String {
    let (host, port) = (to.ip(), to.port());
    let (ban, grace) =
        (if has_tags { VARNISH_BAN } else { "" }, if serves_stale { "1h" } else { "0s" });
    format!(
        "vcl 4.1;
{ROOM}{room_mib}
{LINGER}0.05
backend default {{
    .host = \"{host}\";
    .port = \"{port}\";
    .max_connections = 4096;
}}
sub vcl_recv {{
{ban}    unset req.http.Cookie;
}}
sub vcl_backend_response {{
    set beresp.ttl = {lifetime_s}s;
    set beresp.grace = {grace};
}}
"
    )
}

/// Returns weir's file.
fn weir(listen: SocketAddr, to: impl Display, cores: usize, wishes: Wishes) -> String {
    let Wishes { room_mib, clients, lifetime_s, .. } = wishes;
    let mut cache = format!("        ttl \"{lifetime_s}s\"\n");
    if wishes.serves_stale {
        cache += "        stale-while-revalidate \"1h\"\n        stale-if-error \"1h\"\n";
    }
    if wishes.has_tags {
        cache += "        tags \"Surrogate-Key\"\n";
    }
    // The others have no limit of connections to a server that they would reach. Each worker has
    // its share of them, and it is unknown how many clients each worker has.
    let connections = if wishes.is_private { clients * cores as u32 } else { WEIR.connections };
    let settings = WeirSettings { connections, ..WEIR.for_clients(clients) };
    let route = format!("    proxy \"app\"\n    cache {{\n{cache}    }}\n}}\n");
    let text =
        settings::weir(listen, to, cores, settings).replace("    proxy \"app\"\n}\n", &route);
    format!("cache {{\n    size \"{room_mib}MiB\"\n    object-limit \"1MiB\"\n}}\n{text}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::experiment::cells::{Closed, RequestKind};
    use crate::bench::experiment::contenders::contender;
    use crate::bench::experiment::tuning::candidates;

    #[test]
    fn each_stores_and_says_how_much() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let nginx = nginx(
            (Path::new("/d"), Path::new("/dev/shm/c")),
            at(1111),
            &[at(3333)],
            (2, 20_000),
            Wishes::plain(16, 1000),
        );
        for line in [
            "proxy_cache_path /dev/shm/c levels",
            "max_size=16m",
            "proxy_cache c;",
            "server 127.0.0.1:3333",
        ] {
            assert!(nginx.contains(line), "{line}: {nginx}");
        }
        assert!(
            !nginx.contains("max_temp_file_size") && nginx.matches("proxy_pass").count() == 1,
            "{nginx}"
        );
        let varnish = varnish(at(3333), Wishes::plain(16, 1000));
        assert!(varnish.contains(".port = \"3333\""), "{varnish}");
        let words =
            varnish_words(at(1111), (Path::new("/d/varnish.conf"), &varnish), 2).unwrap().join(" ");
        clean();
        assert!(words.contains("-p timeout_linger=0.05"), "{words}");
        assert!(
            words.contains("-a 127.0.0.1:1111 -s malloc,16M")
                && words.contains("-f /d/varnish.conf"),
            "{words}"
        );
        let weir = weir(at(1111), at(3333), 2, Wishes::plain(16, 1000));
        assert!(
            weir.starts_with("cache {\n    size \"16MiB\"") && weir.contains("ttl \"3600s\""),
            "{weir}"
        );
        for (text, absent) in
            [(&nginx, "use_stale"), (&varnish, "BAN"), (&weir, "stale"), (&weir, "tags")]
        {
            assert!(!text.contains(absent), "{absent}: {text}");
        }
    }

    #[test]
    fn each_candidate_changes_the_settings_of_its_cache() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let load = Closed { connections: 64, body: 16, kind: RequestKind::Minimal };
        let of = |name: &str| candidates(contender(name).unwrap(), load)[1];
        let wishes = Wishes::plain(16, 64);
        let nginx =
            nginx((Path::new("/d"), Path::new("/dev/shm/c")), at(1), &[at(2)], (2, 20_000), wishes);
        let tuned_nginx = settings::tuned(nginx.clone(), of("nginx-cache"));
        assert!(
            nginx.contains("    sendfile on;\n") && tuned_nginx.contains("    sendfile off;\n"),
            "{tuned_nginx}"
        );
        let varnish = settings::tuned(varnish(at(2), wishes), of("varnish"));
        let words =
            varnish_words(at(1), (Path::new("/d/varnish.conf"), &varnish), 2).unwrap().join(" ");
        clean();
        assert!(words.contains("-p timeout_linger=0"), "{words}");
        assert!(!words.contains("-p timeout_linger=0.05"), "{words}");
    }

    #[test]
    fn each_does_what_a_load_wants() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let plain = Wishes::plain(16, 1000);
        let stale = Wishes { serves_stale: true, lifetime_s: 1, ..plain };
        let place = (Path::new("/d"), Path::new("/dev/shm/c"));
        let nginx = nginx(place, at(1111), &[at(3333)], (2, 20_000), stale);
        assert!(
            nginx.contains("proxy_cache_use_stale error timeout updating")
                && nginx.contains("200 1s;"),
            "{nginx}"
        );
        let text = varnish(at(3333), stale);
        assert!(
            text.contains("set beresp.ttl = 1s;") && text.contains("set beresp.grace = 1h;"),
            "{text}"
        );
        assert!(
            varnish(at(3333), Wishes { has_tags: true, ..plain })
                .contains("ban(\"obj.http.Surrogate-Key == \"")
        );
        let wishes = Wishes { has_tags: true, is_private: true, ..stale };
        let config = weir_config::parse(&weir(at(1111), at(3333), 2, wishes), "cache.kdl").unwrap();
        assert!(config.plan.cache.is_some());
        assert_eq!(weir(at(1111), at(3333), 2, wishes).matches("connections=2000").count(), 1);
    }

    #[test]
    fn files_are_found_by_the_settings() {
        let directory = std::env::temp_dir().join(format!("weir-lab-files-{}", std::process::id()));
        fs::create_dir_all(directory.join("a/b")).unwrap();
        fs::write(directory.join("a/b/c"), [1; 9000]).unwrap();
        fs::write(directory.join("d"), [1; 1]).unwrap();
        let bytes = file_bytes(&format!("    {PATH}{} levels=1:2;\n", directory.display()));
        fs::remove_dir_all(&directory).unwrap();
        assert!((9_001..=64 << 10).contains(&bytes), "{bytes}");
        assert_eq!(file_bytes("cache { size \"1GiB\"; }"), 0);
    }
}
