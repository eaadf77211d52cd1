//! The scripts themselves, in the order of docs/hostile.md.

use super::{Asker, Closing, Company, Ending, HostileUpstream, STRAY, Step, Trigger, Trust};

/// The honest first line and the nonce, to which a script adds framing and body.
const OK: &str = "HTTP/1.1 200 OK\r\nX-Nonce: {n}\r\n";
/// A complete and valid response to no request.
const SECOND: &str = "HTTP/1.1 200 OK\r\nX-Nonce: SURPLUS\r\nContent-Length: 7\r\n\r\nSURPLUS";

/// All rows.
pub(super) fn all() -> Vec<HostileUpstream> {
    [
        surplus(),
        forbidden_bodies(),
        interim(),
        early_and_late(),
        truncated(),
        framings(),
        grammar(),
        grammar_tolerated(),
        close_delimited(),
    ]
    .concat()
}

/// Returns servers that close after a number of responses.
pub(super) fn closings() -> Vec<Closing> {
    let row = |id, letter, answers, how| Closing { id, letter, answers, how };
    vec![
        row("e18_fin_after_1", "E18", 1, Ending::Fin),
        row("e18_fin_after_7", "E18", 7, Ending::Fin),
        row("e18_fin_after_99", "E18", 99, Ending::Fin),
        row("e18_rst_after_1", "E18", 1, Ending::Rst),
        row("e18_rst_after_7", "E18", 7, Ending::Rst),
        row("e18_rst_after_99", "E18", 99, Ending::Rst),
        row("e18_half_answer_after_7", "E18", 7, Ending::HalfAnswer),
        row("e18_announced_after_7", "E18", 7, Ending::Announced),
        row("e27_unread_after_7", "E27", 7, Ending::Unread),
        row("e27_unread_after_99", "E27", 99, Ending::Unread),
    ]
}

fn get() -> Trigger {
    Trigger { method: "GET", query: "", fields: "", declared: None, body: Vec::new() }
}

fn send(text: &str) -> Step {
    Step::Send(text.as_bytes().to_vec())
}

/// The framing and body of an honest `ok {n}`; nonces are 8 characters long.
fn ok_body() -> String {
    format!("{OK}Content-Length: 11\r\n\r\nok {{n}}")
}

fn answered() -> Asker {
    Asker::Answer(200, "ok {n}".to_owned())
}

/// A row whose fault is noticed in any company, with a GET as trigger.
fn row(id: &'static str, steps: Vec<Step>, asker: Asker, trust: Trust) -> HostileUpstream {
    let letter =
        LETTERS.iter().find(|letter| id.starts_with(&format!("{}_", letter.to_ascii_lowercase())));
    let letter = letter.copied().unwrap_or_default();
    HostileUpstream { id, letter, trigger: get(), steps, asker, trust, company: Company::Pipelined }
}

const LETTERS: [&str; 22] = [
    "E0", "E1", "E2", "E3", "E4", "E5", "E6", "E7", "E8", "E9", "E10", "E11", "E12", "E13", "E14",
    "E15", "E16", "E17", "E18", "E21", "E26", "E28",
];

fn surplus() -> Vec<HostileUpstream> {
    let company = |company, row| HostileUpstream { company, ..row };
    let two = send(&format!("{}{SECOND}", ok_body()));
    // A field that copies the client's input, including line ends, ends its own response and begins
    // another.
    let split = format!("{OK}Content-Length: 11\r\nX-Copied: a\r\n\r\nok {{n}}{SECOND}");
    let split = send(&split);
    // The server has decoded the percent-encoding.
    let encoded = Trigger { query: "&to=%0d%0aContent-Length:%2011%0d%0a%0d%0aok", ..get() };
    let garbage = |text: &str| vec![send(&format!("{}{text}", ok_body()))];
    vec![
        row("e0_honest", vec![send(&ok_body())], answered(), Trust::Kept),
        company(Company::Queued, row("e1_second_answer", vec![two], answered(), Trust::Surplus)),
        row("e1_garbage_behind", garbage("SURPLUS"), answered(), Trust::Doubt),
        row("e1_http_like_garbage", garbage("HTTP/1.1 SURPLUS\r\n\r\n"), answered(), Trust::Doubt),
        company(
            Company::Queued,
            row(
                "e1_half_an_answer_behind",
                garbage("HTTP/1.1 200 OK\r\nX-No"),
                answered(),
                Trust::Doubt,
            ),
        ),
        HostileUpstream {
            trigger: encoded,
            ..row("e21_split_by_the_target", vec![split.clone()], answered(), Trust::Surplus)
        },
        company(Company::Queued, row("e21_split_answer", vec![split], answered(), Trust::Surplus)),
        company(
            Company::Alone,
            row(
                "e2_second_answer_later",
                vec![send(&ok_body()), Step::AwaitDelivered, send(SECOND)],
                answered(),
                Trust::Surplus,
            ),
        ),
        row("e3_crlf_behind", garbage("\r\n"), answered(), Trust::Either),
        row("e3_two_crlf_behind", garbage("\r\n\r\n"), answered(), Trust::Either),
        row("e3_many_crlf_behind", garbage(&"\r\n".repeat(50)), answered(), Trust::Doubt),
    ]
}

/// E4, E5, E6: bytes where no body may be.
fn forbidden_bodies() -> Vec<HostileUpstream> {
    let head = Trigger { method: "HEAD", ..get() };
    let conditional = Trigger { fields: "If-None-Match: \"x\"\r\n", ..get() };
    let empty = |status| Asker::Answer(status, String::new());
    let bodiless = || Asker::AnswerOr502(204, String::new());
    let with = |trigger: &Trigger, row: HostileUpstream| HostileUpstream {
        trigger: trigger.clone(),
        ..row
    };
    let queued = |row: HostileUpstream| HostileUpstream { company: Company::Queued, ..row };
    let length = SECOND.len();
    let as_body = |line: &str| {
        vec![send(&format!("{line}X-Nonce: {{n}}\r\nContent-Length: {length}\r\n\r\n{SECOND}"))]
    };
    let plain = |line: &str| {
        vec![send(&format!("{line}X-Nonce: {{n}}\r\nContent-Length: 7\r\n\r\nSURPLUS"))]
    };
    let (ok, no_content) = ("HTTP/1.1 200 OK\r\n", "HTTP/1.1 204 No Content\r\n");
    let not_modified = "HTTP/1.1 304 Not Modified\r\n";
    vec![
        with(&head, row("e4_head_with_body", plain(ok), empty(200), Trust::Doubt)),
        with(&head, row("e4_head_with_an_answer_as_body", as_body(ok), empty(200), Trust::Surplus)),
        row("e5_204_with_body", plain(no_content), bodiless(), Trust::Doubt),
        queued(row(
            "e5_204_with_an_answer_as_body",
            as_body(no_content),
            bodiless(),
            Trust::Surplus,
        )),
        row(
            "e5_204_with_chunks",
            vec![send(&format!(
                "{no_content}X-Nonce: {{n}}\r\nTransfer-Encoding: chunked\r\n\r\n7\r\nSURPLUS\r\n\
                    0\r\n\r\n"
            ))],
            bodiless(),
            Trust::Doubt,
        ),
        with(&conditional, row("e6_304_with_body", plain(not_modified), empty(304), Trust::Doubt)),
        with(
            &conditional,
            row("e6_304_with_an_answer_as_body", as_body(not_modified), empty(304), Trust::Surplus),
        ),
    ]
}

/// E7, E8.
fn interim() -> Vec<HostileUpstream> {
    let hints = |count: usize| "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(count);
    let all = |count: usize| vec![send(&format!("{}{}", hints(count), ok_body()))];
    let mixed = format!("{}HTTP/1.1 102 Processing\r\n\r\n{}", hints(3), ok_body());
    let unasked = format!("HTTP/1.1 100 Continue\r\n\r\n{}", ok_body());
    let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
        \r\nSURPLUS";
    let bad_gateway = || Asker::Status(&[502]);
    let behind = format!("{}HTTP/1.1 {STRAY} Stray\r\n\r\n", ok_body());
    vec![
        row("e7_hints_behind", vec![send(&behind)], answered(), Trust::Any),
        row("e7_hints_and_processing", vec![send(&mixed)], answered(), Trust::Kept),
        row("e7_continue_unasked", vec![send(&unasked)], answered(), Trust::Kept),
        row("e7_32_hints", all(32), answered(), Trust::Kept),
        row("e7_33_hints", all(33), bad_gateway(), Trust::Doubt),
        row("e7_2000_hints", all(2000), bad_gateway(), Trust::Doubt),
        row("e8_101_unasked", vec![send(switch)], bad_gateway(), Trust::Doubt),
        row(
            "e8_101_and_an_answer",
            vec![send(&format!("{switch}{SECOND}"))],
            bad_gateway(),
            Trust::Doubt,
        ),
    ]
}

/// E9, E10, E11.
fn early_and_late() -> Vec<HostileUpstream> {
    let half = Trigger {
        method: "POST",
        query: "",
        fields: "",
        declared: Some(1_000_000),
        body: vec![b'x'; 100_000],
    };
    let refusal = "HTTP/1.1 413 Too Large\r\nX-Nonce: {n}\r\nContent-Length: 11\r\n\r\nok {n}";
    let beginning = send(&format!("{OK}Content-Length: 1048576\r\n\r\n{}", "y".repeat(1024)));
    let rest = Step::Send(vec![b'y'; (1 << 20) - 1024]);
    vec![
        HostileUpstream {
            trigger: half.clone(),
            ..row("e9_early_answer", vec![send(&ok_body())], answered(), Trust::Closed)
        },
        HostileUpstream {
            trigger: half,
            ..row(
                "e9_early_refusal",
                vec![send(refusal)],
                Asker::Answer(413, "ok {n}".to_owned()),
                Trust::Closed,
            )
        },
        // Alone: a client that waits after it for as long has a late response as well.
        HostileUpstream {
            company: Company::Alone,
            ..row(
                "e10_late_answer",
                vec![Step::AwaitDelivered, send(SECOND)],
                Asker::Status(&[504]),
                Trust::Closed,
            )
        },
        row(
            "e11_client_leaves",
            vec![beginning, Step::AwaitDelivered, rest],
            Asker::Leaves,
            Trust::Either,
        ),
    ]
}

/// E12 and E16: the reply has begun when the fault shows.
fn truncated() -> Vec<HostileUpstream> {
    let length = send(&format!("{OK}Content-Length: 100\r\n\r\nSHORT"));
    // The response to another client's later request, in the fields of this server, where the body
    // should be.
    let stranger = format!("{OK}Content-Length: 100\r\n\r\nok {{n}}{SECOND}");
    let chunked = |chunks: &str| send(&format!("{OK}Transfer-Encoding: chunked\r\n\r\n{chunks}"));
    let cut = |id, first, last| row(id, vec![first, last], Asker::Truncated, Trust::Closed);
    let bad_chunk = |id, chunks| row(id, vec![chunked(chunks)], Asker::Truncated, Trust::Doubt);
    vec![
        cut("e12_length_fin", length.clone(), Step::Fin),
        HostileUpstream { trust: Trust::Rude, ..cut("e12_length_rst", length, Step::Rst) },
        HostileUpstream {
            trust: Trust::Any,
            ..cut("e12_stranger_in_body", send(&stranger), Step::Fin)
        },
        cut("e12_chunk_fin", chunked("a\r\nSHORT"), Step::Fin),
        cut("e12_chunks_without_last", chunked("5\r\nSHORT\r\n"), Step::Fin),
        cut("e12_last_chunk_cut", chunked("5\r\nSHORT\r\n0\r\n"), Step::Fin),
        bad_chunk("e16_chunk_two_to_64_plus_2", "10000000000000002\r\nSURPLUS\r\n0\r\n\r\n"),
        bad_chunk("e16_chunk_sign", "+2\r\nok\r\n0\r\n\r\n"),
        bad_chunk("e16_chunk_data_too_long", "2\r\nokSURPLUS\r\n0\r\n\r\n"),
        bad_chunk("e16_chunk_line_by_lf", "2\nok\n0\n\n"),
        bad_chunk("e16_chunk_size_empty", "\r\nok\r\n0\r\n\r\n"),
    ]
}

/// E13, E14, E15.
fn framings() -> Vec<HostileUpstream> {
    let framed = |id, fields: &str| {
        let text = format!("{OK}{fields}\r\n2\r\nok\r\n0\r\n\r\n");
        row(id, vec![send(&text)], Asker::Status(&[502]), Trust::Doubt)
    };
    vec![
        framed("e13_length_and_chunked", "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n"),
        framed("e13_chunked_and_length", "Transfer-Encoding: chunked\r\nContent-Length: 12\r\n"),
        framed("e14_two_different", "Content-Length: 2\r\nContent-Length: 12\r\n"),
        framed("e14_list", "Content-Length: 2, 12\r\n"),
        framed("e14_minus", "Content-Length: -1\r\n"),
        framed("e14_plus", "Content-Length: +2\r\n"),
        framed("e14_empty", "Content-Length:\r\n"),
        framed("e14_two_to_64", "Content-Length: 18446744073709551618\r\n"),
        framed("e15_gzip", "Transfer-Encoding: gzip\r\n"),
        framed("e15_unknown_and_length", "Transfer-Encoding: cow\r\nContent-Length: 2\r\n"),
        framed("e15_chunked_then_gzip", "Transfer-Encoding: chunked, gzip\r\n"),
        framed("e15_two_lines", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
    ]
}

/// E17: not a reply at all.
fn grammar() -> Vec<HostileUpstream> {
    let bad = |id, text: &str| row(id, vec![send(text)], Asker::Status(&[502]), Trust::Doubt);
    let line = |line: &str| format!("{line}\r\nX-Nonce: {{n}}\r\nContent-Length: 2\r\n\r\nok");
    let large = format!(
        "{OK}{}Content-Length: 0\r\n\r\n",
        "X: yyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n".repeat(32 << 10)
    );
    vec![
        bad("e17_bare_lf", "HTTP/1.1 200 OK\nContent-Length: 2\n\nok"),
        bad("e17_lf_in_head", "HTTP/1.1 200 OK\r\nX: a\nContent-Length: 2\r\n\r\nok"),
        bad("e17_bare_cr", "HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 2\r\n\r\nok"),
        bad("e17_nul_in_value", "HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 2\r\n\r\nok"),
        bad("e17_status_2000", &line("HTTP/1.1 2000 OK")),
        bad("e17_status_20", &line("HTTP/1.1 20")),
        bad("e17_status_099", &line("HTTP/1.1 099 OK")),
        bad("e17_version_2", &line("HTTP/2.0 200 OK")),
        bad("e17_lower_case_version", &line("http/1.1 200 OK")),
        bad("e17_no_status_line", "<html>SURPLUS</html>\r\n\r\n"),
        bad("e17_empty_name", &line("HTTP/1.1 200 OK\r\n: x")),
        bad("e17_no_colon", &line("HTTP/1.1 200 OK\r\nnocolon")),
        bad("e17_field_before_status_line", &line(" X: y\r\nHTTP/1.1 200 OK")),
        bad("e17_head_of_1_mib", &large),
    ]
}

/// E17: faults that a proxy repairs, as the RFC requires (RFC 9112 §5.1, §5.2).
fn grammar_tolerated() -> Vec<HostileUpstream> {
    let repaired = |id, field: &str| {
        row(
            id,
            vec![send(&format!("{OK}{field}Content-Length: 11\r\n\r\nok {{n}}"))],
            answered(),
            Trust::Kept,
        )
    };
    vec![
        repaired("e17_fold_becomes_space", "X-Fold: a\r\n  b\r\n"),
        repaired("e17_space_before_colon_is_removed", "X-Space : a\r\n"),
    ]
}

fn close_delimited() -> Vec<HostileUpstream> {
    let whole = send(&format!("{OK}\r\nok {{n}}"));
    let old = send("HTTP/1.0 200 OK\r\nX-Nonce: {n}\r\nContent-Length: 11\r\n\r\nok {n}");
    let announced = send(&format!("{OK}Connection: close\r\nContent-Length: 11\r\n\r\nok {{n}}"));
    // The connection is authenticated from now on: any other client's requests on it would count as
    // this client's.
    let bound = send(
        "HTTP/1.1 401 Unauthorized\r\nX-Nonce: {n}\r\nWWW-Authenticate: NTLM\r\n\
            Content-Length: 11\r\n\r\nok {n}",
    );
    vec![
        row("e28_ends_by_close", vec![whole, Step::Fin], answered(), Trust::Closed),
        row("e28_http_10", vec![old, Step::Fin], answered(), Trust::Closed),
        row(
            "e26_connection_bound_auth",
            vec![bound],
            Asker::Answer(401, "ok {n}".to_owned()),
            Trust::Closed,
        ),
        row("e28_connection_close", vec![announced, Step::Fin], answered(), Trust::Closed),
    ]
}
