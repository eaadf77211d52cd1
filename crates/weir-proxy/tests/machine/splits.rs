//! Proves: the end of a segment has no meaning. Every two-way split of a small corpus of replies
//! gives the same as the whole, and every truncation is a cut that is never mistaken for an end.

use weir_check::{End, Reply};

use crate::world::{Do, World};

/// Replies, and whether the end of the connection ends them.
const CORPUS: [(&str, bool); 9] = [
    ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", false),
    ("HTTP/1.1 200 \r\nX: a\r\n  b\r\nY : c\r\nContent-Length: 2\r\n\r\nok", false),
    (
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;a=\"b\"\r\n world\r\n\
            0\r\nX-T: u\r\n\r\n",
        false,
    ),
    (
        "HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 102 P\r\n\r\n\
            HTTP/1.1 204 No Content\r\n\r\n",
        false,
    ),
    ("HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 100\r\n\r\n", false),
    ("HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 3\r\n\r\nno!", false),
    ("HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nold", false),
    ("HTTP/1.1 200 OK\r\n\r\nuntil the end", true),
    (
        "HTTP/1.1 500 Internal Server Error\r\nServer: x\r\nTransfer-Encoding: chunked\r\n\
            Connection: close\r\n\r\n0\r\n\r\n",
        false,
    ),
];

/// Returns what a client sees of a reply that is sent as these segments, with or without the end of
/// the connection.
fn seen(segments: &[&[u8]], fin: bool) -> (Vec<Reply>, Option<End>, Vec<(u64, u64)>) {
    let mut world = World::simple(1);
    let mut script: Vec<Do> = Vec::new();
    for (n, segment) in segments.iter().enumerate() {
        let bytes = segment.to_vec();
        script.push(if n == 0 { Do::Answer(bytes) } else { Do::Bytes(bytes) });
        script.push(Do::Delay(1));
    }
    script.extend(fin.then_some(Do::Fin));
    script.push(Do::Silence);
    let mut first = true;
    world.serve(move |_| {
        if std::mem::take(&mut first) { Some(script.clone()) } else { Some(vec![Do::Silence]) }
    });
    let client = world.client();
    // Not to be repeated, so that a cut shows.
    world.ask(
        client,
        "POST",
        "/",
        "If-None-Match: \"x\"\r\nTE: trailers\r\nConnection: TE\r\nContent-Length: 0\r\n",
    );
    world.run_for(10_000);
    let doubts = world.count(|counters| counters.demotions.get());
    let state = &world.clients[client];
    let result = (
        state.replies.clone(),
        state.end.clone(),
        vec![(doubts, u64::from(world.conns[0].closed))],
    );
    world.finish();
    result
}

#[test]
fn every_split_of_replies() {
    for (text, fin) in CORPUS {
        let bytes = text.as_bytes();
        let whole = seen(&[bytes], fin);
        assert_eq!(whole.0.len(), 1, "{text}");
        for at in 1..bytes.len() {
            assert_eq!(seen(&[&bytes[..at], &bytes[at..]], fin), whole, "{text} split at {at}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(seen(&single, fin), whole, "{text} byte by byte");
    }
}

#[test]
fn every_truncation_of_replies() {
    for (text, fin) in CORPUS {
        let bytes = text.as_bytes();
        for at in 0..bytes.len() {
            let head_done = bytes[..at].windows(4).any(|window| window == b"\r\n\r\n")
                && !text.starts_with("HTTP/1.1 103");
            if fin && head_done {
                continue;
            }
            let (replies, end, _) = seen(&[&bytes[..at]], true);
            match head_done {
                // No body was expected, or it is complete.
                true if !replies.is_empty() => {
                    assert!(replies[0].status == 304 || replies[0].status == 502, "{text} at {at}")
                }
                true => {
                    assert!(matches!(end, Some(End::Truncated(_))), "{text} cut at {at}: {end:?}")
                }
                false => {
                    assert_eq!(
                        replies.iter().map(|reply| reply.status).collect::<Vec<_>>(),
                        [502],
                        "{text} at {at}"
                    )
                }
            }
        }
    }
}
