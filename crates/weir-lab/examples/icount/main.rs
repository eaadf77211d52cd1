//! Workloads whose instructions are counted: `icount WORKLOAD OPERATIONS` does that many operations
//! and ends.
//!
//! scripts/icount runs it under callgrind, each workload with two numbers of operations. The
//! difference of the instructions, divided by the difference of the operations, contains neither
//! start-up nor warm-up. The figures are steady on a machine that others use; they say nothing
//! about system calls and memory latency.

mod engine;
mod messages;
mod sim;

use std::hint::black_box;
use std::process::ExitCode;

use weir_http::{
    ChunkedDecoder, Fields, HeadScan, Limits, ReplyContext, parse_reply, parse_request,
};

/// The allocator of the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A name, what one operation is, and the work.
struct Workload {
    name: &'static str,
    title: &'static str,
    work: fn(u64),
}

const WORKLOADS: &[Workload] = &[
    Workload {
        name: "head-minimal",
        title: "parse a minimal request head",
        work: |n| head(&messages::minimal(), n),
    },
    Workload {
        name: "head-browser",
        title: "parse a browser's request head",
        work: |n| head(&messages::browser(), n),
    },
    Workload { name: "head-scan", title: "find the end of a browser's head", work: scan },
    Workload { name: "reply-head", title: "parse a reply head", work: reply },
    Workload { name: "chunk", title: "decode a chunk of 1 KB", work: chunk },
    Workload {
        name: "engine-1",
        title: "a request through the machines, one at a time",
        work: |n| engine::run(1, 1, &messages::minimal(), "off", n),
    },
    Workload {
        name: "engine-64",
        title: "a request through the machines, 64 clients in each turn",
        work: |n| engine::run(64, 1, &messages::minimal(), "off", n),
    },
    Workload {
        name: "engine-servers-64",
        title: "the same with four servers to choose from",
        work: |n| engine::run(64, 4, &messages::minimal(), "off", n),
    },
    Workload {
        name: "engine-browser-64",
        title: "a browser's request, 64 clients in each turn",
        work: |n| engine::run(64, 1, &messages::browser(), "off", n),
    },
    Workload {
        name: "engine-browser-64-combined",
        title: "the same with a line in the access log",
        work: |n| engine::run(64, 1, &messages::browser(), "combined", n),
    },
    Workload {
        name: "engine-browser-64-json",
        title: "the same with a line of JSON",
        work: |n| engine::run(64, 1, &messages::browser(), "json", n),
    },
    Workload {
        name: "sim-direct",
        title: "a request over the simulated network, no proxy",
        work: |n| sim::run(false, n),
    },
    Workload {
        name: "sim-proxied",
        title: "a request over the simulated network, proxied by a whole worker",
        work: |n| sim::run(true, n),
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [list] if list == "--list" => {
            for workload in WORKLOADS {
                println!("{} {}", workload.name, workload.title);
            }
            ExitCode::SUCCESS
        }
        [name, count] => {
            let workload = WORKLOADS.iter().find(|workload| workload.name == name);
            match (workload, count.parse()) {
                (Some(workload), Ok(count)) => {
                    (workload.work)(count);
                    ExitCode::SUCCESS
                }
                _ => usage(),
            }
        }
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: icount --list | icount WORKLOAD OPERATIONS");
    ExitCode::from(2)
}

fn head(input: &[u8], count: u64) {
    let (limits, mut fields) = (Limits::default(), Fields::default());
    for _ in 0..count {
        let head = parse_request(black_box(input), &limits, &mut fields).expect("a good head");
        black_box(head.expect("a complete head"));
    }
}

fn scan(count: u64) {
    let (limits, input) = (Limits::default(), messages::browser());
    for _ in 0..count {
        black_box(HeadScan::default().find(black_box(&input), &limits).expect("a good head"));
    }
}

fn reply(count: u64) {
    let (limits, mut fields, input) = (Limits::default(), Fields::default(), messages::reply());
    for _ in 0..count {
        let head =
            parse_reply(black_box(&input), &limits, ReplyContext { head: false }, &mut fields);
        black_box(head.expect("a good reply").expect("a complete reply"));
    }
}

fn chunk(count: u64) {
    let mut decoder = ChunkedDecoder::new(false);
    let mut input = b"400\r\n".to_vec();
    input.resize(input.len() + 1024, b'x');
    input.extend_from_slice(b"\r\n");
    for _ in 0..count {
        let mut rest = black_box(&input[..]);
        while !rest.is_empty() {
            match decoder.decode(rest).expect("a good chunk") {
                weir_http::Chunk::Data { end, .. } => rest = &rest[end..],
                weir_http::Chunk::More => rest = &[],
                weir_http::Chunk::End { .. } => unreachable!("there is no last chunk"),
            }
        }
    }
}
