//! Configurations of other programs in the style of their documentation, each with weir's and the
//! notes beside it; and texts that are none. `UPDATE=1 cargo test -p weir-config --test import`
//! writes the expected files; read the difference.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use weir_config::{Dialect, Experts, Imported, Outside, World, import, import_in, parse_in};

const DIALECTS: [Dialect; 3] = [Dialect::Nginx, Dialect::Haproxy, Dialect::Caddy];

fn variables(name: &str) -> Option<String> {
    (name == "DIR").then(|| "/etc/haproxy".to_owned())
}

/// A file of the corpus is read by its relative name, so that no path of this machine occurs in the
/// output.
fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import")
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let name = path.display().to_string();
    fs::read(corpus().join(path))
        .map_err(|_| io::Error::other(format!("there is no {}", name.rsplit('/').next().unwrap())))
}

fn matching(pattern: &Path) -> io::Result<Vec<PathBuf>> {
    let (folder, name) =
        (pattern.parent().unwrap(), pattern.file_name().unwrap().to_str().unwrap());
    let Some(end) = name.strip_prefix('*') else { return Ok(vec![pattern.to_owned()]) };
    let Ok(entries) = fs::read_dir(corpus().join(folder)) else { return Ok(Vec::new()) };
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.ends_with(end));
    names.sort();
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

const OUTSIDE: Outside<'static> =
    Outside { variables: &variables, matching: &matching, read: &read };

fn files(folder: &str) -> Vec<PathBuf> {
    let mut names: Vec<PathBuf> =
        fs::read_dir(corpus().join(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.is_file() && path.extension().is_some_and(|end| end != "expected"));
    names.retain(|path| !path.ends_with("proxy_headers.conf"));
    names.sort();
    assert!(!names.is_empty());
    names.into_iter().map(|path| path.strip_prefix(corpus()).unwrap().to_owned()).collect()
}

/// Compares with the file beside it, or writes that.
fn compare(path: &Path, actual: &str, failures: &mut Vec<String>) {
    let expected = corpus().join(format!("{}.expected", path.display()));
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&expected, actual).unwrap();
    }
    let expected = fs::read_to_string(&expected).unwrap_or_default();
    if expected != actual {
        failures
            .push(format!("{}\n--- expected\n{expected}\n--- actual\n{actual}", path.display()));
    }
}

fn shown(imported: &Imported) -> String {
    let mut out = format!("{}\n----\n", imported.text);
    for note in &imported.notes {
        let _ = writeln!(out, "{note}");
    }
    let _ = writeln!(out, "not needed: {}", imported.unneeded.join(", "));
    out
}

/// Fails unless weir's own checker accepts a text.
fn assert_valid(text: &str, name: &Path) {
    let world = World { variables: &|_| None, read: &|_| Ok(Vec::new()), experts: Experts::NOBODY };
    let config = parse_in(text, "imported.kdl", world)
        .unwrap_or_else(|errors| panic!("{}: {errors}\n{text}", name.display()));
    assert!(!config.plan.listeners.is_empty());
    assert!(!config.plan.routes.is_empty() || !config.plan.tcp.is_empty());
}

#[test]
fn what_others_write_becomes_weirs() {
    let mut failures = Vec::new();
    for dialect in DIALECTS {
        for path in files(dialect.word()) {
            let imported =
                import_in(dialect, &path, OUTSIDE).unwrap_or_else(|errors| panic!("{errors}"));
            assert!(
                imported.faults.is_none(),
                "{}: {}\n{}",
                path.display(),
                imported.faults.unwrap(),
                imported.text
            );
            assert_valid(&imported.text, &path);
            compare(&path, &shown(&imported), &mut failures);
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Names of broken files begin with their dialect.
#[test]
fn what_is_broken_is_refused_with_its_line() {
    let mut failures = Vec::new();
    for path in files("bad") {
        let name = path.file_name().unwrap().to_str().unwrap();
        let dialect =
            DIALECTS.into_iter().find(|dialect| name.starts_with(dialect.word())).unwrap();
        match import_in(dialect, &path, OUTSIDE) {
            Ok(imported) => failures.push(format!("{name} was taken: {}", shown(&imported))),
            Err(errors) => {
                assert!(errors.problems()[0].help.is_some(), "{errors}");
                compare(&path, &errors.render(false, 100), &mut failures);
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A text in place of a file.
fn import_text(dialect: Dialect, text: &[u8]) -> Result<Imported, String> {
    let read = |path: &Path| {
        if path == Path::new("x") { Ok(text.to_vec()) } else { Err(io::Error::other("not there")) }
    };
    let outside =
        Outside { variables: &variables, matching: &|path| Ok(vec![path.to_owned()]), read: &read };
    let imported =
        import_in(dialect, Path::new("x"), outside).map_err(|errors| errors.to_string())?;
    assert!(imported.faults.is_none(), "{}\n{}", imported.faults.unwrap(), imported.text);
    Ok(imported)
}

/// What hostile texts have in common: a quick error that names line and solution.
#[test]
fn hostile_texts_have_an_answer() {
    let deep =
        |open: &str, close: &str| format!("{}{}", open.repeat(100_000), close.repeat(100_000));
    for (dialect, text, line, message) in [
        (Dialect::Nginx, "a {\n".repeat(100_000), 33, "nested too deep"),
        (Dialect::Nginx, deep("a{", "}"), 1, "nested too deep"),
        (Dialect::Nginx, "a b;\n".repeat(200_000), 100_001, "more than 100000 directives"),
        (Dialect::Nginx, format!("a {};", "b ".repeat(1_000_000)), 0, ""),
        (
            Dialect::Nginx,
            "\n\na \"b".to_owned() + &"\n".repeat(1_000_000),
            3,
            "quote is never closed",
        ),
        (Dialect::Nginx, "x\n{".to_owned(), 2, "never closed"),
        (Dialect::Nginx, "a\n\n".to_owned(), 1, "does not end"),
        (Dialect::Nginx, "\n}".to_owned(), 2, "matches no opening brace"),
        (Dialect::Nginx, "\n{".to_owned(), 2, "no directive in front"),
        (Dialect::Nginx, "\nx_by_lua_block {{}".to_owned(), 2, "never closed"),
        (Dialect::Nginx, "server { listen 80;\0 }".to_owned(), 1, "NUL"),
        (Dialect::Nginx, "include x;\n".to_owned(), 1, "include each other too deep"),
        (Dialect::Nginx, "a".repeat(5_000_000), 0, "larger than 4194304 bytes"),
        (Dialect::Haproxy, "defaults\n  a \"b\n c\"\n".to_owned(), 2, "quote that is never closed"),
        (
            Dialect::Haproxy,
            "defaults\n".to_owned() + &" mode http\n".repeat(200_000),
            100_001,
            "more than 100000",
        ),
        (Dialect::Haproxy, "\nserver a\n".to_owned(), 2, "in no section"),
        (Dialect::Haproxy, "listen a\n\0".to_owned(), 2, "NUL"),
        (Dialect::Caddy, "a {\n".repeat(100_000), 34, "nested too deep"),
        (Dialect::Caddy, "\na {\n".to_owned(), 2, "never closed"),
        (Dialect::Caddy, "\n}\n".to_owned(), 2, "matches no opening brace"),
        (Dialect::Caddy, "a {\n respond }\n}".to_owned(), 2, "alone on its line"),
        (Dialect::Caddy, "a {\n \"b\n\n}".to_owned(), 2, "quote of this line"),
        (Dialect::Caddy, "a {\n x <<E\n\n}".to_owned(), 2, "never ends"),
        (
            Dialect::Caddy,
            "(a) {\nimport a\nimport a\n}\nimport a\n".to_owned(),
            2,
            "imports are nested too deep",
        ),
        (Dialect::Caddy, "(a) {\n".to_owned(), 1, "never closed"),
        (Dialect::Caddy, "a,\n".to_owned(), 1, "after the comma"),
        (Dialect::Caddy, "import x\n".to_owned(), 1, "imports are nested too deep"),
    ] {
        match import_text(dialect, text.as_bytes()) {
            Ok(_) => assert_eq!(line, 0, "{message}"),
            Err(said) => {
                assert!(
                    said.contains(message) && !message.is_empty(),
                    "{message}: {}",
                    &said[..said.len().min(300)]
                );
                let place = if line == 0 { "x: ".to_owned() } else { format!("x:{line}:") };
                assert!(said.starts_with(&place), "{message}: {}", &said[..said.len().min(300)]);
            }
        }
    }
    let latin1 = import_text(Dialect::Nginx, b"# caf\xe9\nserver {}").unwrap_err();
    assert!(latin1.starts_with("x:1:6: this is not UTF-8"), "{latin1}");
}

/// The largest allowed number of rules does not take long.
#[test]
fn large_configurations_come_to_an_end() {
    let mut nginx = "server { listen 80; server_name ".to_owned();
    for n in 0..3000 {
        let _ = write!(nginx, "h{n}.test ");
    }
    nginx.push(';');
    for n in 0..3000 {
        let _ = writeln!(
            nginx,
            "location /p{n} {{ proxy_pass http://10.0.0.1:{}; deny all; limit_req zone=z \
                burst={n}; }}",
            n + 1
        );
    }
    nginx.push_str(
        "} limit_req_zone $remote_addr zone=z:1m rate=1r/s; server { listen 80 \
        default_server; location / { proxy_pass http://10.0.0.1:81; } }",
    );
    let mut haproxy = "frontend f\n mode http\n bind :80\n".to_owned();
    for n in 0..3000 {
        let _ = writeln!(
            haproxy,
            " use_backend b if {{ path_beg /{n} /x{n} }} {{ hdr(host) {} }} or !{{ hdr(x) {n} }}",
            n % 7
        );
    }
    haproxy.push_str("backend b\n mode http\n server s 10.0.0.1:80\n");
    let mut caddy = ":80 {\n".to_owned();
    for n in 0..3000 {
        let _ =
            writeln!(caddy, "@m{n} path /{n}/* /x{n}/*\nreverse_proxy @m{n} 10.0.0.1:{}", n + 1);
    }
    caddy.push('}');
    let mut stream = "stream { map $ssl_preread_server_name $n { hostnames; ".to_owned();
    for n in 0..3_000 {
        let _ = write!(stream, ".h{n}.test 10.0.0.1:{}; ", n + 1);
    }
    stream.push_str("} ");
    for n in 0..3_000 {
        let _ = writeln!(
            stream,
            "server {{ listen {}; ssl_preread on; proxy_pass $n; deny 10.0.0.1; }}",
            n + 1
        );
    }
    stream.push('}');
    let names: String = (0..4_000).map(|n| format!(" h{n}.test")).collect();
    let mut tls = format!("frontend f\n bind :443\n acl a req.ssl_sni{names}\n");
    for n in 0..5_000 {
        let _ = writeln!(tls, " use_backend b if a or {{ req.ssl_sni -m end .x{n}.test }}");
    }
    tls.push_str("backend b\n server s 10.0.0.1:443\n");
    let mut addresses = String::new();
    for n in 0..3_000 {
        let _ =
            writeln!(addresses, "server {{ listen 10.0.{}.{}:80; return 204; }}", n / 250, n % 250);
    }
    let imported = import_text(Dialect::Nginx, addresses.as_bytes()).unwrap();
    assert!(imported.text.contains("name=\"http-3000\""));
    for (dialect, text) in [(Dialect::Nginx, stream), (Dialect::Haproxy, tls)] {
        let imported = import_text(dialect, text.as_bytes()).unwrap();
        assert!(
            imported.text.contains("sni \"h0.test\"") && !imported.notes.is_empty(),
            "{}",
            dialect.word()
        );
    }
    for (dialect, text) in
        [(Dialect::Nginx, nginx), (Dialect::Haproxy, haproxy), (Dialect::Caddy, caddy)]
    {
        let imported = import_text(dialect, text.as_bytes()).unwrap();
        assert!(
            imported.notes.iter().any(|note| note.why.contains("too many")),
            "{}",
            dialect.word()
        );
    }
}

/// Where the address of a client differs from that of its connection, no client is admitted by the
/// latter.
#[test]
fn addresses_of_connections_alone_let_in() {
    let import = |line: &str| {
        let rules =
            "http-request deny if { path_beg /in/ } !{ src 10.0.0.0/8 }\n default_backend b";
        let backend = "backend b\n mode http\n server s 10.0.0.1:80\n";
        let text = format!("frontend f\n mode http\n bind :80\n {line}\n {rules}\n{backend}");
        import_text(Dialect::Haproxy, text.as_bytes()).unwrap().text
    };
    assert!(import("").contains("allow \"10.0.0.0/8\""));
    for line in [
        "http-request set-src hdr(x-client)",
        "bind :81 accept-proxy",
        "bind :81 accept-netscaler-cip 1",
        "tcp-request connection expect-proxy layer4",
        "tcp-request connection expect-netscaler-cip layer4 if { src 10.0.0.1 }",
    ] {
        let text = import(line);
        assert!(!text.contains("allow") && text.contains("respond 403"), "{line}: {text}");
    }
}

/// A rule that refuses and has too many cases to express refuses everything that it could be about.
#[test]
fn refusals_of_too_many_cases_close() {
    let values = |of: &dyn Fn(usize) -> String| (0..15).map(of).collect::<Vec<_>>().join(" ");
    let paths = values(&|n| format!("/b/{n}/"));
    let names = values(&|n| format!("h{n}.test"));
    let condition = format!("{{ path_beg {paths} }} {{ hdr(host) {names} }}");
    for rule in ["http-request deny if", "http-request deny deny_status 404 if", "block if"] {
        let front = "frontend f\n mode http\n bind :80\n use_backend b if { path_beg /b/ }\n \
            default_backend c";
        let server = "mode http\n server s 10.0.0.1:80";
        let text =
            format!("{front}\nbackend b\n {rule} {condition}\n {server}\nbackend c\n {server}\n");
        let text = import_text(Dialect::Haproxy, text.as_bytes()).unwrap().text;
        let is_closed = text.contains("route path=\"/b/\" {\n    respond 403\n")
            && text.contains("proxy \"c\"");
        assert!(is_closed && !text.contains("proxy \"b\""), "{rule}: {text}");
    }
    let (paths, pairs) = (values(&|n| format!("/b/{n}/*")), values(&|n| format!("x={n}")));
    let matcher = format!("@m {{\n path {paths}\n query {pairs}\n }}");
    for rule in ["abort @m", "respond @m 403", "handle @m {\n respond 403\n }"] {
        let site = format!("http://a.test {{\n {matcher}\n {rule}\n reverse_proxy 10.0.0.1:80\n}}");
        let text = format!("{site}\nhttp://b.test {{\n reverse_proxy 10.0.0.2:80\n}}");
        let text = import_text(Dialect::Caddy, text.as_bytes()).unwrap().text;
        assert!(!text.contains("10.0.0.1") && text.contains("respond 403"), "{rule}: {text}");
    }
}

/// Reads from the file system: a path, and a pattern with files beside it.
#[test]
fn files_are_read_from_the_folder() {
    let imported = import(Dialect::Nginx, &corpus().join("nginx/sites.conf")).unwrap();
    assert!(imported.text.contains("// conf.d/blog.conf:"), "{}", imported.text);
    let missing = import(Dialect::Caddy, Path::new("/nowhere/Caddyfile")).unwrap_err();
    assert!(missing.to_string().starts_with("/nowhere/Caddyfile: can't be read"), "{missing}");
}

/// Words of all dialects, and separators.
fn pieces() -> impl Strategy<Value = String> {
    let words = [
        "server",
        "listen",
        "80",
        "limit_req",
        "limit_req_zone",
        "$binary_remote_addr",
        "zone=a:1m",
        "rate=1r/s",
        "limit_conn",
        "track-sc0",
        "sc_http_req_rate(0)",
        "443 ssl",
        "server_name",
        "a.test",
        "*.b.test",
        "_",
        "location",
        "/",
        "/a/",
        "= /x",
        "~ x",
        "@n",
        "proxy_pass",
        "http://u",
        "https://10.0.0.1:8443/y",
        "$host",
        "upstream u",
        "10.0.0.1:80",
        "weight=0",
        "backup",
        "deny all",
        "ssl_certificate c.pem",
        "if ($a)",
        "return 403",
        "rewrite ^(.*)$ $1 break",
        "add_header X-A",
        "\"b c\"",
        "frontend f",
        "backend u",
        "mode http",
        "bind :81",
        "bind :82 ssl crt c.pem",
        "default_backend u",
        "use_backend u if",
        "{ path_beg /a }",
        "!{ src 1 }",
        "or",
        "acl x",
        "hdr(host)",
        "-i",
        "-m reg",
        "http-request",
        "set-header",
        "del-header",
        "%[src]",
        "server s 10.0.0.2:81",
        "option httpchk",
        "check",
        "cookie C insert",
        "a.test",
        ":8080",
        "reverse_proxy",
        "handle",
        "handle_path /p/*",
        "@m path /q*",
        "@m",
        "header",
        "+X-B",
        "-X-C",
        "{uri}",
        "{$V}",
        "tls",
        "basic_auth",
        "respond 403",
        "import s",
        "(s)",
        "route",
        "to",
        "lb_policy ip_hash",
        "transport http",
        "return 301 $scheme://a.test$request_uri",
        "return 200 \"x\"",
        "if ($host = a.test)",
        "if ($scheme = http)",
        "if ($http_user_agent ~* bot) { return 403; }",
        "if ($http_referer = \"\") { return 301 $scheme://a.test/; }",
        "if ($request_method ~ ^(PUT|TRACE)$) { return 405; }",
        "allow 10.0.0.0/8",
        "deny 10.0.0.1",
        "gzip on",
        "gzip_types text/css",
        "deny if",
        "redirect scheme https",
        "return status 200 string a",
        "{ src 10.0.0.0/8 }",
        "{ ssl_fc }",
        "unless",
        "compression algo gzip",
        "redir /a https://b.test{uri}",
        "respond \"x\" 200",
        "encode gzip",
        "remote_ip 10.0.0.0/8",
        "abort @m",
        "stream",
        "proxy_pass u",
        "proxy_pass $n",
        "proxy_pass 10.0.0.3:82",
        "map $ssl_preread_server_name $n",
        "ssl_preread on",
        "hostnames",
        "default u",
        ".c.test u",
        "*.d.test 10.0.0.4:83",
        "proxy_protocol on",
        "listen 5000-5003 proxy_protocol",
        "set_real_ip_from unix:",
        "limit_conn_zone $remote_addr zone=a:1m",
        "limit_conn a 5",
        "proxy_timeout 1m",
        "listen l",
        "mode tcp",
        "use_backend t if { req.ssl_sni -i",
        "-m end",
        "backend t\n mode tcp\n server s 10.0.0.5:84",
        "tcp-request inspect-delay 5s",
        "tcp-request content reject if",
        "{ req.ssl_hello_type 1 }",
        "accept-proxy",
        "send-proxy-v2",
        "timeout client 1m",
        "timeout server 0",
        "default_backend t",
        "rate_limit {\n zone z {\n key {remote_host}\n window 1s\n events 5\n",
        "rate_limit /r/* {\n zone y {\n key {header.X}\n window 1m\n events 7\n }\n }\n",
    ];
    let marks = [
        " {\n", "\n}\n", ";\n", "\n", " ", " ", "\t", "#", "\\", "'", "\"", "`", "$", "é",
        "\u{2028}",
    ];
    let word = prop::sample::select(words.to_vec()).prop_map(|word| format!("{word} "));
    let mark = prop::sample::select(marks.to_vec()).prop_map(str::to_owned);
    prop::collection::vec(prop_oneof![5 => word, 3 => mark], 0..60).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn any_text_has_an_answer_and_what_is_written_is_valid(
        text in pieces(),
        dialect in prop::sample::select(DIALECTS.to_vec()),
    ) {
        let start = match dialect {
            Dialect::Nginx => {
                "stream { upstream u { server 10.0.0.8:1; } server { listen 90; \
                proxy_pass u; } } upstream u { server 10.0.0.9; } server { location / { proxy_pass \
                http://u; } "
            }
            Dialect::Haproxy => {
                "listen t\n mode tcp\n bind :90\n server s 10.0.0.8:1\n\
                backend u\n mode http\n server s 10.0.0.9:80\nfrontend f\n mode http\n bind :80\n"
            }
            Dialect::Caddy => ":80 {\n reverse_proxy 10.0.0.9\n",
        };
        let end = if dialect == Dialect::Haproxy { "" } else { "\n}" };
        for text in [text.clone(), format!("{start}{text}{end}")] {
            if let Ok(imported) = import_text(dialect, text.as_bytes())
                && !imported.text.is_empty()
            {
                assert_valid(&imported.text, Path::new("x"));
            }
        }
    }
}
