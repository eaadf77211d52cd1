//! The output: exact bytes of encoded requests, responses, errors and chunks.

use std::net::IpAddr;

use weir_http::{
    Fields, Forwarded, Framing, Limits, Persistence, ReplyContext, ReplyParts, RequestEdits,
    Trailers, encode_chunk_head, encode_error_reply, encode_last_chunk, encode_reply_head,
    encode_request, finish_reply_head, parse_reply, parse_request, reason,
};

fn edits() -> RequestEdits<'static> {
    RequestEdits {
        path: b"/p",
        host: b"h",
        framing: Framing::None,
        close: false,
        expect: false,
        upgrade: None,
        te_trailers: false,
        via: None,
        cdn_loop: None,
        underscores: false,
        judges_clients: false,
        forwarded: None,
        keeps_forwarding: false,
        extra: &[],
        removed: &[],
        added: &[],
    }
}

fn request(text: &str, edits: &RequestEdits<'_>) -> String {
    let mut fields = Fields::default();
    let head = parse_request(text.as_bytes(), &Limits::default(), &mut fields).unwrap().unwrap();
    let mut out = b"before".to_vec();
    encode_request(&mut out, text.as_bytes(), &head, &fields, edits);
    String::from_utf8(out).unwrap().strip_prefix("before").unwrap().to_owned()
}

fn get(more: &str) -> String {
    format!("GET /x HTTP/1.1\r\nHost: a\r\n{more}\r\n")
}

/// Returns the text between Host and the empty line.
fn fields_of(more: &str, edits: &RequestEdits<'_>) -> String {
    let out = request(&get(more), edits);
    let rest =
        out.strip_prefix("GET /p HTTP/1.1\r\nHost: h\r\n").unwrap_or_else(|| panic!("{out}"));
    rest.strip_suffix("\r\n").unwrap().to_owned()
}

#[test]
fn host_comes_first_and_order_stays() {
    assert_eq!(
        request("POST /x HTTP/1.0\r\nA: 1\r\nhost: a\r\nb:2\r\nC:  3 \r\n\r\n", &edits()),
        "POST /p HTTP/1.1\r\nHost: h\r\nA: 1\r\nb:2\r\nC:  3 \r\n\r\n"
    );
    assert_eq!(
        request(&get(""), &RequestEdits { path: b"", ..edits() }),
        "GET / HTTP/1.1\r\nHost: h\r\n\r\n"
    );
}

#[test]
fn hop_by_hop_fields_stay_behind() {
    let removed = "Connection: x-hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nProxy-Connection: x\r\n\
        Proxy-Authenticate: x\r\n\
        Proxy-Authorization: x\r\nProxy-Authentication-Info: x\r\nProxy: x\r\nTE: trailers\r\n\
        Trailer: x\r\n\
        Upgrade: websocket\r\nExpect: 100-continue\r\nHTTP2-Settings: x\r\nA_b: 1\r\n";
    assert_eq!(fields_of(removed, &edits()), "");
    let between: String =
        removed.split_inclusive("\r\n").map(|line| format!("K: 1\r\n{line}")).collect();
    let count = removed.matches("\r\n").count();
    assert_eq!(fields_of(&between, &edits()), "K: 1\r\n".repeat(count));
    assert_eq!(
        fields_of("A_b: 1\r\n", &RequestEdits { underscores: true, ..edits() }),
        "A_b: 1\r\n"
    );
}

/// Where names with `_` pass, those that a server may take for a field that only weir sets are
/// dropped, whichever client sends them.
#[test]
fn an_underscore_is_no_way_around() {
    let extra: [(&[u8], &[u8]); 1] = [(b"X-Request-Id", b"1")];
    for trusted in [false, true] {
        let client = "192.0.2.1".parse().unwrap();
        let forwarded = Some(Forwarded { client, proto: b"http", host: b"h", trusted });
        let lax = RequestEdits { underscores: true, forwarded, extra: &extra, ..edits() };
        let said = fields_of("", &lax);
        for name in [
            "X_Forwarded_For",
            "x_forwarded-for",
            "X-Forwarded_Port",
            "X_Real_IP",
            "X_FORWARDED_ANYTHING",
            "Content_Length",
            "Transfer_Encoding",
            "Proxy_Authorization",
            "Keep_Alive",
            "X_Request_ID",
            "x-request_id",
        ] {
            assert_eq!(fields_of(&format!("{name}: 6\r\n"), &lax), said, "{name}");
        }
        for name in ["X_Forwarded", "X_Other", "_", "Cookie_2"] {
            assert_eq!(
                fields_of(&format!("{name}: 6\r\n"), &lax),
                format!("{name}: 6\r\n{said}"),
                "{name}"
            );
        }
    }
}

/// On the way to the destination that the client itself has chosen, its fields about forwarding
/// pass unchanged.
#[test]
fn what_a_client_says_about_forwarding_may_pass() {
    let said = "X-Forwarded-For: 192.0.2.7\r\nForwarded: for=192.0.2.7\r\n\
        X-Forwarded-Proto: https\r\nX-Real-IP: 1\r\n";
    assert_eq!(fields_of(said, &edits()), "");
    let client = "192.0.2.1".parse().unwrap();
    for forwarded in [None, Some(Forwarded { client, proto: b"http", host: b"h", trusted: true })] {
        let edits = RequestEdits { keeps_forwarding: true, forwarded, ..edits() };
        assert_eq!(fields_of(said, &edits), said);
        assert_eq!(fields_of("", &edits), "");
    }
}

/// RFC 9440 §2.4: where weir verifies certificates of clients, the clients' own fields about them
/// are dropped.
#[test]
fn certificates_are_said_by_whoever_has_judged_them() {
    let said =
        "Client-Cert: :AA==:\r\nclient-cert-chain: :AA==:\r\nX: 1\r\nConnection: Client-Cert\r\n";
    assert_eq!(
        fields_of(said, &edits()),
        "Client-Cert: :AA==:\r\nclient-cert-chain: :AA==:\r\nX: 1\r\n"
    );
    let judging = RequestEdits { judges_clients: true, underscores: true, ..edits() };
    assert_eq!(fields_of(said, &judging), "X: 1\r\n");
    let extra: &[(&[u8], &[u8])] = &[(b"Client-Cert", b":BB==:")];
    assert_eq!(
        fields_of(said, &RequestEdits { extra, ..judging }),
        "X: 1\r\nClient-Cert: :BB==:\r\n"
    );
    assert_eq!(fields_of("Client_Cert: 1\r\nclient_cert-chain: 1\r\n", &judging), "");
}

/// Fields are removed in any case, even where a server would read them out of another name; added
/// fields come after all others.
#[test]
fn fields_that_are_removed_and_added() {
    let removed: &[&[u8]] = &[b"X-Gone", b"cookie"];
    let added: &[(&[u8], &[u8])] = &[(b"X-Gone", b"mine"), (b"A", b"2"), (b"A", b"3")];
    let edits = RequestEdits { removed, added, underscores: true, ..edits() };
    let came = "Cookie: a\r\nA: 1\r\nx-gone: 1\r\nX_Gone: 1\r\nX-Gone2: 1\r\nCOOKIE: b\r\nB: 1\r\n";
    assert_eq!(
        fields_of(came, &edits),
        "A: 1\r\nX-Gone2: 1\r\nB: 1\r\nX-Gone: mine\r\nA: 2\r\nA: 3\r\n"
    );
}

#[test]
fn unreadable_hop_counts_stay_behind() {
    assert_eq!(fields_of("Max-Forwards: 3\r\n", &edits()), "Max-Forwards: 3\r\n");
    assert_eq!(fields_of("Max-Forwards: x\r\n", &edits()), "");
    assert_eq!(fields_of("Max-Forwards: 3\r\nMax-Forwards: 3\r\n", &edits()), "");
}

#[test]
fn one_framing_field() {
    let text = "Content-Length: 005\r\n";
    assert_eq!(
        fields_of(text, &RequestEdits { framing: Framing::Length(5), ..edits() }),
        "Content-Length: 5\r\n"
    );
    let chunked = RequestEdits { framing: Framing::Chunked, ..edits() };
    assert_eq!(fields_of(text, &chunked), "Transfer-Encoding: chunked\r\n");
    assert_eq!(fields_of("Transfer-Encoding: chunked\r\n", &edits()), "");
    let most = RequestEdits { framing: Framing::Length(u64::MAX), ..edits() };
    assert_eq!(fields_of("", &most), "Content-Length: 18446744073709551615\r\n");
}

#[test]
fn an_expectation_is_what_the_edits_say() {
    let text = "Expect: 100-continue\r\nContent-Length: 5\r\n";
    let plain = RequestEdits { framing: Framing::Length(5), ..edits() };
    assert_eq!(fields_of(text, &plain), "Content-Length: 5\r\n");
    let expecting = RequestEdits { expect: true, ..plain };
    assert_eq!(fields_of(text, &expecting), "Content-Length: 5\r\nExpect: 100-continue\r\n");
}

#[test]
fn upgrade_and_te() {
    let text = "Connection: upgrade\r\nUpgrade: websocket\r\nTE: gzip, trailers\r\n";
    let upgrade = RequestEdits { upgrade: Some(b"websocket"), ..edits() };
    assert_eq!(fields_of(text, &upgrade), "Connection: upgrade\r\nUpgrade: websocket\r\n");
    let te = RequestEdits { te_trailers: true, ..edits() };
    assert_eq!(fields_of(text, &te), "Connection: TE\r\nTE: trailers\r\n");
    let both = RequestEdits { te_trailers: true, ..upgrade };
    assert_eq!(
        fields_of(text, &both),
        "Connection: upgrade, TE\r\nUpgrade: websocket\r\nTE: trailers\r\n"
    );
}

#[test]
fn via_is_appended_with_the_version_received() {
    let us = Some(weir_http::Pseudonym::default());
    let passed = RequestEdits { cdn_loop: us, ..edits() };
    assert_eq!(fields_of("CDN-Loop: x;v=1\r\n", &passed), "CDN-Loop: x;v=1\r\nCDN-Loop: weir\r\n");
    let listed = "Connection: CDN-Loop\r\nCDN-Loop: x\r\n";
    assert_eq!(
        fields_of(listed, &passed),
        "CDN-Loop: x\r\nCDN-Loop: weir\r\n",
        "no client has it removed"
    );
    let via = RequestEdits { via: us, ..edits() };
    assert_eq!(fields_of("Via: 1.1 x\r\n", &via), "Via: 1.1 x\r\nVia: 1.1 weir\r\n");
    assert!(
        request("GET / HTTP/1.0\r\nHost: a\r\n\r\n", &via).ends_with("\r\nVia: 1.0 weir\r\n\r\n")
    );
}

const CLAIMS: &str = "X-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: , 2.2.2.2 ,3.3.3.3\r\n\
    X-Forwarded-Proto: https\r\n\
    X-Forwarded-Host: evil\r\nX-Forwarded-Port: 1\r\nForwarded: for=1.1.1.1\r\n\
    X-Real-IP: 1.1.1.1\r\nA: 1\r\n";

#[test]
fn claims_of_strangers_are_replaced() {
    assert_eq!(fields_of(CLAIMS, &edits()), "A: 1\r\n");
    let client: IpAddr = "10.20.255.0".parse().unwrap();
    let forwarded = Some(Forwarded { client, proto: b"http", host: b"a", trusted: false });
    assert_eq!(
        fields_of(CLAIMS, &RequestEdits { forwarded, ..edits() }),
        "A: 1\r\nX-Forwarded-For: 10.20.255.0\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: a\r\n"
    );
}

#[test]
fn claims_of_trusted_proxies_stay() {
    let client: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
    let forwarded = Some(Forwarded { client, proto: b"http", host: b"a", trusted: true });
    assert_eq!(
        fields_of(CLAIMS, &RequestEdits { forwarded, ..edits() }),
        "X-Forwarded-Proto: https\r\nX-Forwarded-Host: evil\r\nX-Forwarded-Port: 1\r\n\
         Forwarded: for=1.1.1.1\r\n\
         X-Real-IP: 1.1.1.1\r\nA: 1\r\nX-Forwarded-For: 1.1.1.1, 2.2.2.2, 3.3.3.3, 10.0.0.1\r\n"
    );
    let client: IpAddr = "2001:db8::1".parse().unwrap();
    let forwarded = Some(Forwarded { client, proto: b"http", host: b"a", trusted: true });
    assert_eq!(
        fields_of("", &RequestEdits { forwarded, ..edits() }),
        "X-Forwarded-For: 2001:db8::1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: a\r\n"
    );
}

#[test]
fn extra_fields_replace_those_of_the_client() {
    let extra: &[(&[u8], &[u8])] = &[(b"x-request-id", b"42"), (b"Max-Forwards", b"2")];
    assert_eq!(
        fields_of(
            "X-Request-ID: 1\r\nA: 1\r\nMax-Forwards: 3\r\nx-request-id: 2\r\n",
            &RequestEdits { extra, ..edits() }
        ),
        "A: 1\r\nx-request-id: 42\r\nMax-Forwards: 2\r\n"
    );
}

fn reply(text: &str, via: bool) -> String {
    let mut fields = Fields::default();
    let context = ReplyContext::default();
    let head =
        parse_reply(text.as_bytes(), &Limits::default(), context, &mut fields).unwrap().unwrap();
    let mut out = Vec::new();
    let parts = ReplyParts::received(text.as_bytes(), &head, &fields);
    encode_reply_head(&mut out, &parts, via.then(weir_http::Pseudonym::default), None);
    String::from_utf8(out).unwrap()
}

#[test]
fn reply_heads() {
    let text = "HTTP/1.0 404 Nope\r\nServer: x\r\nConnection: close, x-hop, Set-Cookie\r\n\
        X-Hop: 1\r\nContent-Length: 3\r\n\
        Set-Cookie: a\r\nKeep-Alive: 1\r\nTrailer: x\r\nTE: x\r\nUpgrade: x\r\n\
        Proxy-Connection: x\r\nA_b: 1\r\nDate: d\r\n\r\n";
    let kept = "Server: x\r\nSet-Cookie: a\r\nA_b: 1\r\nDate: d\r\n";
    assert_eq!(reply(text, false), format!("HTTP/1.1 404 Nope\r\n{kept}"));
    assert_eq!(reply(text, true), format!("HTTP/1.1 404 Nope\r\n{kept}Via: 1.0 weir\r\n"));
    assert_eq!(
        reply("HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n", false),
        "HTTP/1.1 200 \r\n"
    );
}

/// docs/hostile.md E17: faults that the RFC requires a proxy to repair.
#[test]
fn e17_repaired_lines() {
    let text = "HTTP/1.1 200 OK\r\nA: 1\r\nB: x\r\n \t y \r\n  \r\n\tz\r\nC\t : w\r\nD:\r\n\r\n";
    assert_eq!(reply(text, false), "HTTP/1.1 200 OK\r\nA: 1\r\nB: x y z\r\nC: w\r\nD:\r\n");
    let text = "HTTP/1.1 200 OK\r\nA:\r\n x\r\nKeep-Alive : 1\r\nConnection: b,\r\n c\r\nB: 1\r\n\
        C : 1\r\n\r\n";
    assert_eq!(reply(text, false), "HTTP/1.1 200 OK\r\nA: x\r\n");
}

#[test]
fn reply_ends() {
    let finish = |framing, persistence| {
        let mut out = Vec::new();
        finish_reply_head(&mut out, framing, persistence);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(finish(Framing::None, Persistence::Implied), "\r\n");
    assert_eq!(
        finish(Framing::Length(0), Persistence::KeepAlive),
        "Content-Length: 0\r\nConnection: keep-alive\r\n\r\n"
    );
    assert_eq!(
        finish(Framing::Chunked, Persistence::Close),
        "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(
        finish(Framing::None, Persistence::Upgrade(b"websocket")),
        "Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
}

#[test]
fn replies_of_our_own() {
    let mut out = Vec::new();
    encode_error_reply(&mut out, 503, "no-server");
    let body = "503 Service Unavailable: no-server\n";
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\nServer: weir\r\nContent-Type: text/plain\r\n\
            Content-Length: {}\r\n",
        body.len()
    );
    assert_eq!(String::from_utf8(out).unwrap(), format!("{head}Connection: close\r\n\r\n{body}"));
    // Every status that a refusal can have is named.
    for status in [400, 408, 413, 414, 417, 431, 501, 502, 503, 504, 505, 508] {
        assert!(!reason(status).is_empty(), "{status}");
    }
    assert_eq!(reason(299), "");
}

#[test]
fn chunks() {
    for (len, text) in [(1, "1"), (15, "f"), (16, "10"), (65_535, "ffff"), (1 << 20, "100000")] {
        let mut out = Vec::new();
        encode_chunk_head(&mut out, len);
        assert_eq!(out, format!("{text}\r\n").as_bytes());
    }
    let mut out = Vec::new();
    encode_last_chunk(&mut out, Trailers::kept(b"A: b\r\n"));
    assert_eq!(out, b"0\r\nA: b\r\n\r\n");
}
