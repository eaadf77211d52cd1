//! Real clients through the forward proxy: a browser, git, and the downloader of apt, in
//! absolute-form and through tunnels. Proves that they work, that they get exactly what the servers
//! have, and that all of it went through weir. How: nginx with and without TLS, git's own server, a
//! scripted name server.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::kit::forward::{allow, start};
use crate::kit::names::{Kind, NameServer, Reply};
use crate::kit::{
    Honest, Io, Nginx, Scratch, Server, Weir, browse, finish, free_port, on_both_drivers, pattern,
    run,
};
use sha2::Digest as _;

on_both_drivers!(
    a_browser_loads_a_page,
    git_clones_and_pushes;
    alone:
    apt_downloads,
);

/// Names that clients use; both resolve to this host.
const NAMES: [&str; 2] = ["page.test", "data.test"];

/// nginx with and without TLS, and a proxy that lets clients go there.
struct Scene {
    nginx: Nginx,
    tls: SocketAddr,
    certificate: String,
    server: Server,
    proxy: SocketAddr,
    weir: Weir,
    scratch: Scratch,
    _dns: NameServer,
}

impl Scene {
    /// nginx serves `files`; clients may also go to port `other`.
    fn new(io: Io, files: &[(&str, &[u8])], more: &str, other: Option<u16>) -> Scene {
        let (scratch, dns, server) = (Scratch::new(), NameServer::start(), Server::start(Honest));
        for name in NAMES {
            dns.script(name, Kind::Aaaa, [Reply::Nothing(60)]);
            dns.script(name, Kind::A, [Reply::of("127.0.0.1", 60)]);
        }
        let (certificate, key) = certificate(&scratch);
        let tls = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let secure =
            format!("listen {tls} ssl; ssl_certificate {certificate}; ssl_certificate_key {key};");
        let nginx = Nginx::start(files, &(secure + more));
        let ports = [nginx.address.port(), tls.port()].into_iter().chain(other);
        let rules: String = ports.map(allow).collect();
        let log = scratch.path("log");
        let format = "$request_method $host $status $upstream_connection $request_uri";
        let log = format!("access-log \"{}\" format=\"{format}\"", log.display());
        let (weir, proxy) =
            start(io, &server, &format!("resolver \"{}\"\n{rules}", dns.address), &log);
        Scene { nginx, tls, certificate, server, proxy, weir, scratch, _dns: dns }
    }

    /// Ends the proxy and returns its log lines, one per request.
    fn end(self) -> Vec<String> {
        self.weir.stop();
        assert!(self.server.finish().requests.is_empty());
        let log = fs::read_to_string(self.scratch.path("log")).expect("a log");
        log.lines().map(str::to_owned).collect()
    }
}

/// A certificate for the names and 127.0.0.1, and its key.
fn certificate(scratch: &Scratch) -> (String, String) {
    let [certificate, key] =
        ["cert.pem", "key.pem"].map(|name| scratch.path(name).display().to_string());
    let alternatives = "subjectAltName=DNS:page.test,DNS:data.test,IP:127.0.0.1";
    let made = run(
        "openssl",
        &[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=test",
            "-addext",
            alternatives,
            "-keyout",
            &key,
            "-out",
            &certificate,
        ],
    );
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    (certificate, key)
}

/// Returns how many lines begin with `start`.
fn count(log: &[String], start: &str) -> usize {
    log.iter().filter(|line| line.starts_with(start)).count()
}

/// What the page's script needs from elsewhere: a word, and bytes whose sum it computes.
const BYTES: usize = 3_000_000;
const IMAGES: usize = 20;

fn page() -> String {
    let images: String = (0..IMAGES).map(|n| format!("<img src=\"/bird.svg?n={n}\">")).collect();
    format!(
        "<!doctype html><title>birds</title><link rel=stylesheet href=/style.css>{images}<p \
         id=out>nothing yet</p>\
         <script src=/page.js></script>"
    )
}

/// The script: fetches JSON from another host and bytes from this one, and writes what it has
/// found.
const SCRIPT: &str = "
async function work() {
  const there = location.protocol + '//data.test:' + location.port;
  const [told, bytes] = await Promise.all([
    fetch(there + '/data.json').then(answer => answer.json()),
    fetch('/bytes').then(answer => answer.arrayBuffer()),
  ]);
  await Promise.all([...document.images].map(image => image.decode()));
  const sum = new Uint8Array(bytes).reduce((sum, byte) => sum + byte, 0);
  const wide = [...document.images].filter(image => image.naturalWidth == 7).length;
  const out = document.getElementById('out');
  out.textContent = `${told.word}, ${wide} images, ${sum}, ${getComputedStyle(out).color}`;
}
work().catch(error => { document.getElementById('out').textContent = error; });
";

/// A page with a style, images, a script, and what the script gets from this host and another.
fn a_browser_loads_a_page(io: Io) {
    let (page, bytes) = (page(), pattern(BYTES));
    let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
    let files: [(&str, &[u8]); 6] = [
        ("index.html", page.as_bytes()),
        ("style.css", b"p { color: rgb(1, 2, 3) }"),
        ("page.js", SCRIPT.as_bytes()),
        ("bird.svg", b"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"7\" height=\"5\"/>"),
        ("data.json", b"{\"word\": \"heron\"}"),
        ("bytes", &bytes),
    ];
    let more = "types { text/html html; text/css css; text/javascript js; image/svg+xml svg; \
                application/json json; }\n\
                add_header Access-Control-Allow-Origin *; add_header Cache-Control no-store;";
    let scene = Scene::new(io, &files, more, None);
    let expected = format!("<p id=\"out\">heron, {IMAGES} images, {sum}, rgb(1, 2, 3)</p>");
    for (scheme, port) in [("http", scene.nginx.address.port()), ("https", scene.tls.port())] {
        let proxy = format!("--proxy-server=http://{}", scene.proxy);
        let dom = browse(&scene.scratch, &[&proxy], &format!("{scheme}://page.test:{port}/"));
        assert!(dom.contains(&expected), "{expected} in {dom}");
    }
    let log = scene.end();
    for path in ["/index.html", "/style.css", "/page.js", "/bytes"] {
        let path = path.replace("index.html", "");
        let port = |line: &String| line.ends_with(&path);
        assert_eq!(
            log.iter().filter(|line| line.starts_with("GET page.test 200 ") && port(line)).count(),
            1,
            "{log:?}"
        );
    }
    assert_eq!(
        (count(&log, "GET page.test 200 "), count(&log, "GET data.test 200 ")),
        (4 + IMAGES, 1),
        "{log:?}"
    );
    assert!(
        count(&log, "CONNECT page.test 200 ") >= 1 && count(&log, "CONNECT data.test 200 ") == 1,
        "{log:?}"
    );
}

/// git's own server behind a few lines of Python.
struct GitServer {
    address: SocketAddr,
    child: Child,
}

const GIT_SERVER: &str = r#"
import http.server, os, subprocess, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def body(self):
        if self.headers.get('Transfer-Encoding') != 'chunked':
            return self.rfile.read(int(self.headers.get('Content-Length', 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b''.join(parts)
    def do_GET(self):
        path, _, query = self.path.partition('?')
        given, body = self.headers, self.body()
        new = {'PATH_INFO': path, 'QUERY_STRING': query, 'REQUEST_METHOD': self.command,
            'CONTENT_LENGTH': str(len(body)), 'CONTENT_TYPE': given.get('Content-Type', ''),
            'HTTP_CONTENT_ENCODING': given.get('Content-Encoding', ''),
            'GIT_PROTOCOL': given.get('Git-Protocol', ''), 'GIT_PROJECT_ROOT': sys.argv[1],
            'GIT_HTTP_EXPORT_ALL': '1'}
        done = subprocess.run(['git', 'http-backend'], input=body, stdout=subprocess.PIPE,
            env=dict(os.environ, **new))
        head, _, rest = done.stdout.partition(b'\r\n\r\n')
        fields = [line.split(': ', 1) for line in head.decode().split('\r\n')]
        status = [value for name, value in fields if name == 'Status']
        self.send_response(int(status[0].split()[0]) if status else 200)
        for name, value in fields:
            self.send_header(name, value)
        self.send_header('Content-Length', str(len(rest)))
        self.end_headers()
        self.wfile.write(rest)
    do_POST = do_GET
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"#;

impl GitServer {
    /// Serves the repositories below a directory.
    fn start(root: &Path) -> GitServer {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", GIT_SERVER]).arg(root).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3 is installed (make setup)");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let port: u16 = line.trim().parse().expect("a port");
        GitServer { address: SocketAddr::from(([127, 0, 0, 1], port)), child }
    }
}

impl Drop for GitServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs git with these settings only and returns its output.
fn git(directory: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args([
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@t.test",
        "-c",
        "init.defaultBranch=main",
    ]);
    command.args(arguments).current_dir(directory);
    let nowhere = [
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_SYSTEM", "/dev/null"),
        ("GIT_TERMINAL_PROMPT", "0"),
    ];
    let output = finish(command.envs(nowhere).env_remove("GIT_SSL_CAINFO"));
    assert!(
        output.status.success(),
        "git {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Makes a repository with a few commits and 20 MB that can't be compressed; its bare copy is for
/// servers.
fn repository(scratch: &Scratch) -> (PathBuf, PathBuf) {
    let (work, bare) = (scratch.path("work"), scratch.path("birds.git"));
    fs::create_dir(&work).expect("a directory");
    git(&work, &["init", "-q"]);
    for n in 0..5 {
        let mut state: u64 = n;
        let bytes = std::iter::repeat_with(|| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        });
        let bytes: Vec<u8> = bytes.take(4_000_000).collect();
        fs::write(work.join(format!("file{n}")), bytes).expect("written");
        git(&work, &["add", "."]);
        git(&work, &["commit", "-q", "-m", "a file"]);
    }
    let (from, to) = (work.display().to_string(), bare.display().to_string());
    git(&work, &["clone", "-q", "--bare", &from, &to]);
    git(&bare, &["update-server-info"]);
    git(&bare, &["config", "http.receivepack", "true"]);
    (work, bare)
}

/// Clones from git's own server in absolute-form and pushes there; clones plain files over TLS
/// through a tunnel.
fn git_clones_and_pushes(io: Io) {
    let scratch = Scratch::new();
    let (work, bare) = repository(&scratch);
    let head = git(&work, &["rev-parse", "HEAD"]);
    let smart = GitServer::start(scratch.path("").as_path());
    let files = format!("location /birds.git/ {{ root {}; }}", scratch.path("").display());
    let scene = Scene::new(io, &[], &files, Some(smart.address.port()));
    let (proxy, trusted) = (
        format!("http.proxy=http://{}", scene.proxy),
        format!("http.sslCAInfo={}", scene.certificate),
    );
    let with = |directory: &Path, more: &[&str]| {
        git(directory, &[&["-c", &proxy, "-c", &trusted], more].concat())
    };
    let urls =
        [format!("http://{}/birds.git", smart.address), format!("https://{}/birds.git", scene.tls)];
    for (name, url) in ["smart", "plain"].iter().zip(&urls) {
        let copy = scratch.path(name);
        with(&work, &["clone", "-q", url, &copy.display().to_string()]);
        assert_eq!(git(&copy, &["rev-parse", "HEAD"]), head, "{url}");
        git(&copy, &["fsck", "--full", "--strict"]);
    }
    let copy = scratch.path("smart");
    fs::write(copy.join("more"), pattern(3_000_000)).expect("written");
    git(&copy, &["add", "."]);
    git(&copy, &["commit", "-q", "-m", "more"]);
    with(&copy, &["push", "-q", "origin", "HEAD"]);
    assert_eq!(git(&bare, &["rev-parse", "HEAD"]), git(&copy, &["rev-parse", "HEAD"]));
    git(&bare, &["fsck", "--full", "--strict"]);
    let log = scene.end();
    assert!(
        count(&log, "GET 127.0.0.1 200 ") >= 2 && count(&log, "POST 127.0.0.1 200 ") >= 2,
        "{log:?}"
    );
    assert!(count(&log, "CONNECT 127.0.0.1 200 ") >= 1, "{log:?}");
}

fn sha256(bytes: &[u8]) -> String {
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A large file and small ones in one call. apt requests them one after the other on one connection
/// and checks their hashes.
fn apt_downloads(io: Io) {
    let large = pattern(100_000_000);
    let small: Vec<(String, Vec<u8>)> =
        (0..30).map(|n| (format!("small{n}"), pattern(1000 + n * 777))).collect();
    let mut files: Vec<(&str, &[u8])> =
        small.iter().map(|(name, bytes)| (&**name, &**bytes)).collect();
    files.insert(10, ("large", &large));
    let sums: Vec<String> =
        files.iter().map(|(_, bytes)| format!("SHA256:{}", sha256(bytes))).collect();
    let scene = Scene::new(io, &files, "", None);
    for url in [format!("http://{}", scene.nginx.address), format!("https://{}", scene.tls)] {
        let mut command = Command::new("/usr/lib/apt/apt-helper");
        for scheme in ["http", "https"] {
            command.arg("-o").arg(format!("Acquire::{scheme}::Proxy=http://{}", scene.proxy));
        }
        command.arg("-o").arg(format!("Acquire::https::CaInfo={}", scene.certificate));
        command.args(["-o", "APT::Sandbox::User=root", "download-file"]);
        for ((name, _), sum) in files.iter().zip(&sums) {
            let got = scene.scratch.path(name);
            let _ = fs::remove_file(&got);
            command.arg(format!("{url}/{name}")).arg(got).arg(sum);
        }
        let output = finish(&mut command);
        assert!(output.status.success(), "{url}: {}", String::from_utf8_lossy(&output.stderr));
        for (name, bytes) in &files {
            assert!(
                fs::read(scene.scratch.path(name)).expect("apt wrote it") == *bytes,
                "{url}/{name}"
            );
        }
    }
    let log = scene.end();
    assert_eq!(count(&log, "GET 127.0.0.1 200 "), files.len(), "{log:?}");
    let connections =
        log.iter().filter(|line| line.starts_with("GET ")).map(|line| line.split(' ').nth(3));
    assert_eq!(connections.collect::<HashSet<_>>().len(), 1, "{log:?}");
    assert!(count(&log, "CONNECT 127.0.0.1 200 ") >= 1, "{log:?}");
}
