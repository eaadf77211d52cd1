//! What holds for sealed sockets, with a cipher of paper and with the library of the product.

mod clients;
mod conformance;
mod cuts;
mod damage;
mod files;
mod gates;
mod handshakes;
mod pairs;
mod rustls;
mod servers;
mod serving;
mod staple;
mod steps;
mod subject;
mod wire;
