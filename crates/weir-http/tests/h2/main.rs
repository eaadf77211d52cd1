//! The machines of HTTP/2, from outside: bytes of a client, or of a server, go in, words say what came of them and which frames left.

mod answers;
mod bounds;
mod client;
mod flow;
mod frames;
mod hpack;
mod kit;
mod properties;
mod requests;
