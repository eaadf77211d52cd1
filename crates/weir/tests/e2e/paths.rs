//! Rules of a path with the real binary: no spelling of a path evades them, whatever the server is,
//! and paths that are not UTF-8 arrive as they came (docs/hostile-requests.md C4). How: a closed
//! prefix before a server that records its requests.

use crate::kit::{Client, Honest, Io, Scratch, Server, Weir, on_both_drivers, passwd};

on_both_drivers!(rules_of_a_path_hold, paths_need_not_be_utf8);

fn rules_of_a_path_hold(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let users = scratch.path("users");
    passwd(&users, "ann", "secret");
    let config = format!(
        "upstream \"app\" {{ server \"{}\"; }}\nroute {{ proxy \"app\"; }}\n\
         route path=\"/admin\" {{ deny \"all\"; proxy \"app\"; }}\n\
         route host=\"users.test\" {{ proxy \"app\"; }}\n\
         route host=\"users.test\" path=\"/admin\" {{ users \"{}\"; proxy \"app\"; }}\n\
         route host=\"rewritten.test\" {{ rewrite \"^/\" \"/\"; proxy \"app\"; }}\n\
         route host=\"rewritten.test\" path=\"/admin\" {{ deny \"all\"; proxy \"app\"; }}\n",
        server.address,
        users.display()
    );
    let weir = Weir::start(io, 1, &config);
    let mut asked = 0;
    for (host, closed) in [("a.test", 403), ("users.test", 401), ("rewritten.test", 403)] {
        for (path, status) in [
            ("/admin/x", closed),
            ("/x/../admin/x", closed),
            ("//admin/x", closed),
            ("/%61dmin/x", closed),
            ("/admin%2fx", closed),
            ("/admin;a=1/x", closed),
            ("/admin/.;/../x", 400),
            ("/admin/%2e;/../x", 400),
            ("/admin/.;x=1/../x", 400),
            ("/admin/..;/x", 400),
            ("/admin/%2E%2e;a/x", 400),
            ("/admin/;a/b/../../x", 400),
            ("/admin//b/../../x", 400),
            ("/admin/.%2f../x", 400),
            ("/admin/%c0%ae%c0%ae/x", 400),
            ("/admin/../x", 200),
            ("//x/admin/y", 200),
        ] {
            let mut client = Client::connect(weir.address);
            client.ask("GET", false);
            client.send(
                format!("GET {path}?n={asked:08} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes(),
            );
            assert_eq!(client.reply().status, status, "{host} {path}");
            asked += 1;
        }
    }
    weir.stop();
    let log = server.finish();
    let paths: Vec<_> =
        log.requests.iter().filter_map(|(_, request)| request.target.split('?').next()).collect();
    assert_eq!(paths, ["/x", "/x/admin/y"].repeat(3), "what is sent is what was decided by");
}

fn paths_need_not_be_utf8(io: Io) {
    let server = Server::start(Honest);
    let route = "route path=\"/admin\" { deny \"all\"; proxy \"app\"; }\n";
    let weir = Weir::start(io, 1, &format!("{}{route}", crate::kit::app(&server, 1, "")));
    let mut client = Client::connect(weir.address);
    // ISO 8859-1, cp1251, GBK, and a stray byte.
    let paths = ["/%E4pfel", "/%CF%F0%E8%E2%E5%F2/%C0%B4", "/%C0%B4%C1%B7", "/a%80b", "/%e4/admin"];
    for (number, path) in paths.iter().enumerate() {
        client.request("GET", &format!("{path}?n=0000000{number}"), "", b"");
        assert_eq!(client.reply().status, 200, "{path}");
    }
    client.request("GET", "/%61dmin/%E4?n=00000009", "", b"");
    assert_eq!(client.reply().status, 403);
    drop(client);
    weir.stop();
    let log = server.finish();
    let seen: Vec<_> =
        log.requests.iter().filter_map(|(_, request)| request.target.split('?').next()).collect();
    assert_eq!(seen, paths);
}
