//! The machine of HTTP/2, from outside: bytes of a client go in, words say what came of them and which frames left.

mod answers;
mod bounds;
mod flow;
mod frames;
mod hpack;
mod kit;
mod properties;
mod requests;
