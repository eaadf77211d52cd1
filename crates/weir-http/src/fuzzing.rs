//! Properties of the parsers as plain functions over bytes: run by the fuzz targets and by `cargo test` alike.
//!
//! Test support, not part of the proxy.
