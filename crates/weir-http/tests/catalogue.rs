//! Hostile requests (docs/hostile-requests.md, and docs/hostile.md K5) against parser, decoder and
//! encoder alone: a connection of a dozen lines reads each row, forwards accepted requests and
//! rejects the rest; weir-check judges the output. The engine's part (routing, order, timing) is
//! tested with the engine.

use weir_check::requests::{HostileRequest, Observed, catalogue};
use weir_check::{Body, Reply, Request, Rules, StrictRequests};
use weir_http::{
    Chunk, ChunkedDecoder, Fields, Forwarded, Framing, HeadScan, Limits, Method, RequestBody,
    RequestEdits, RequestHead, TargetForm, Trailers, encode_chunk_head, encode_last_chunk,
    encode_request, parse_request,
};

/// A client connection that responds to everything with 200 and forwards to a judge.
#[derive(Default)]
struct Connection {
    upstream: StrictRequests,
    left: Vec<Request>,
    statuses: Vec<u16>,
    closed: bool,
}

impl Connection {
    /// Reads all of `input`, looking at it in pieces of `piece` bytes until each head is complete.
    fn read(&mut self, mut input: &[u8], piece: usize) {
        while !self.closed && !input.is_empty() {
            match wait_for_head(input, piece) {
                Err(status) => self.refuse(status),
                Ok(None) => return,
                Ok(Some((head, fields))) => match self.exchange(&head, &fields, input) {
                    Err(status) => self.refuse(status),
                    Ok(consumed) => input = &input[consumed..],
                },
            }
        }
    }

    fn refuse(&mut self, status: u16) {
        self.statuses.push(status);
        self.closed = true;
    }

    /// Forwards one request and returns what it took from the input.
    fn exchange(
        &mut self,
        head: &RequestHead,
        fields: &Fields,
        input: &[u8],
    ) -> Result<usize, u16> {
        if head.method == Method::Connect {
            return Err(405);
        }
        let (body, bytes) = read_body(head, &input[head.bytes..])?;
        let consumed = head.bytes + bytes;
        if head.is_loop {
            self.statuses.push(508);
            return Ok(consumed);
        }
        if matches!(head.method, Method::Trace | Method::Options) && head.max_forwards == Some(0) {
            self.statuses.push(405);
            return Ok(consumed);
        }
        let mut out = Vec::new();
        encode(&mut out, head, fields, input, &body);
        self.upstream
            .feed(&out)
            .unwrap_or_else(|fault| panic!("{fault:?}: {}", out.escape_ascii()));
        self.upstream.answered();
        self.left.push(self.upstream.poll_request().expect("a complete request left"));
        self.statuses.push(200);
        self.closed |= !head.persist;
        Ok(consumed)
    }
}

fn wait_for_head(input: &[u8], piece: usize) -> Result<Option<(RequestHead, Fields)>, u16> {
    let (limits, mut fields, mut scan) =
        (Limits::default(), Fields::default(), HeadScan::default());
    let mut end = piece.min(input.len());
    let found = loop {
        let found = scan.find(&input[..end], &limits).map_err(|fault| fault.status())?;
        if found.is_some() || end == input.len() {
            break found;
        }
        end = (end + piece).min(input.len());
    };
    let head =
        parse_request(&input[..end], &limits, &mut fields).map_err(|fault| fault.status())?;
    assert_eq!(head.as_ref().map(|head| head.bytes), found);
    Ok(head.map(|head| (head, fields)))
}

/// The decoded body and its bytes in the input. An incomplete one is an error here: rows are
/// complete.
fn read_body(head: &RequestHead, input: &[u8]) -> Result<(Vec<u8>, usize), u16> {
    match head.body {
        RequestBody::None => Ok((Vec::new(), 0)),
        RequestBody::Length(length) => {
            match usize::try_from(length).ok().and_then(|length| input.get(..length)) {
                Some(body) => Ok((body.to_vec(), body.len())),
                None => Err(408),
            }
        }
        RequestBody::Chunked | RequestBody::Open => read_chunks(input),
    }
}

fn read_chunks(input: &[u8]) -> Result<(Vec<u8>, usize), u16> {
    let mut decoder = ChunkedDecoder::new(false);
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        match decoder.decode(&input[at..]).map_err(|_| 400u16)? {
            Chunk::More => return Err(408),
            Chunk::Data { start, end } => {
                body.extend_from_slice(&input[at + start..at + end]);
                at += end;
            }
            Chunk::End { consumed } => return Ok((body, at + consumed)),
        }
    }
}

fn encode(out: &mut Vec<u8>, head: &RequestHead, fields: &Fields, input: &[u8], body: &[u8]) {
    let host = if head.authority.is_empty() { b"none" } else { head.authority.of(input) };
    let hops = head.max_forwards.map(|hops| hops.saturating_sub(1).to_string());
    let extra: Vec<(&[u8], &[u8])> =
        hops.iter().map(|hops| (&b"Max-Forwards"[..], hops.as_bytes())).collect();
    let path = match (head.form, head.path.of(input)) {
        (TargetForm::Absolute, b"") if head.method == Method::Options => b"*",
        (_, path) => path,
    };
    let framing = match head.body {
        RequestBody::None => Framing::None,
        RequestBody::Length(length) => Framing::Length(length),
        RequestBody::Chunked | RequestBody::Open => Framing::Chunked,
    };
    let client = "192.0.2.1".parse().unwrap();
    let forwarded = Some(Forwarded { client, proto: b"http", host, trusted: false });
    let upgrade = head.upgrade.map(|span| span.of(input));
    let te_trailers = head.te_trailers;
    let edits = RequestEdits {
        path,
        host,
        framing,
        close: false,
        expect: false,
        upgrade,
        te_trailers,
        via: None,
        cdn_loop: Some(weir_http::Pseudonym::default()),
        underscores: false,
        judges_clients: false,
        forwarded,
        keeps_forwarding: false,
        extra: &extra,
        removed: &[],
        added: &[],
    };
    encode_request(out, input, head, fields, &edits);
    if head.body != RequestBody::Chunked {
        out.extend_from_slice(body);
        return;
    }
    if !body.is_empty() {
        encode_chunk_head(out, body.len());
        out.extend_from_slice(body);
        out.extend_from_slice(weir_http::CHUNK_TAIL);
    }
    encode_last_chunk(out, Trailers::default());
}

fn judge(row: &HostileRequest, piece: usize) -> Result<(), String> {
    let mut connection =
        Connection { upstream: StrictRequests::new(Rules::default()), ..Connection::default() };
    connection.read(&row.bytes, piece);
    let last = connection.statuses.len();
    let reply = |(at, &status): (usize, &u16)| Reply {
        offset: 0,
        status,
        interim: Vec::new(),
        fields: weir_check::Fields::default(),
        body: Body::default(),
        trailers: weir_check::Fields::default(),
        closes: connection.closed && at + 1 == last,
    };
    let replies: Vec<Reply> = connection.statuses.iter().enumerate().map(reply).collect();
    let observed =
        Observed { left: &connection.left, replies: &replies, closed: connection.closed };
    row.expect.check(observed).map_err(|fault| format!("{}: {fault}", row.id))
}

/// Rows that are rejected by the routes of the engine, which read dot segments; the parser lets
/// them pass.
const OF_ROUTES: [&str; 2] = ["c4_parameter", "c4_dot_with_parameter"];

fn rows() -> Vec<HostileRequest> {
    let (routes, rows): (Vec<_>, Vec<_>) =
        catalogue().into_iter().partition(|row| OF_ROUTES.contains(&row.id.as_str()));
    assert_eq!(routes.len(), OF_ROUTES.len());
    rows
}

#[test]
fn rows_a_b_c_at_once() {
    let faults: Vec<String> =
        rows().iter().filter_map(|row| judge(row, usize::MAX).err()).collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn rows_a_b_c_in_pieces() {
    for piece in [1, 7, 64] {
        let rows = rows().into_iter().filter(|row| row.bytes.len() < 100_000);
        let faults: Vec<String> = rows.filter_map(|row| judge(&row, piece).err()).collect();
        assert!(faults.is_empty(), "{piece}: {faults:#?}");
    }
}
