//! HTTP/1.1 without sockets: heads, framing, chunked coding, field edits, encoding (RFC 9110, RFC 9112).
//!
//! One strictness for all, no lenient mode: what is not exactly the grammar is refused, because what two programs
//! read differently is how requests are smuggled. Input is a byte slice, output is spans into it.
#![forbid(unsafe_code)]
