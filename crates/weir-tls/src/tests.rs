//! Properties of sealed sockets, with a paper cipher and with the library of the product.

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
