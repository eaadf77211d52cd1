//! What holds for sealed sockets, with a cipher of paper.

mod conformance;
mod cuts;
mod handshakes;
mod subject;
