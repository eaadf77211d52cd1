//! The machines of HTTP/2, from outside: bytes of a client, or of a server, are the input; words
//! describe the events and the frames that left.

mod answers;
mod bounds;
mod client;
mod flow;
mod frames;
mod hpack;
mod kit;
mod properties;
mod requests;
