//! Content codings of HTTP (RFC 9110 §8.4.1) as encoders: bytes go in as they come, coded bytes come out, and a flush gives out all that went
//! in, decodable by itself.
//!
//! Each crate writes into a vector of its encoder, from which the bytes are taken. Bound: the window is 256 KiB at most, whatever the level
//! ([`WINDOW_BITS`]); what an encoder has besides grows with its level, docs/semantics.md §18 has figures.

use std::io::Write;

/// Logarithm of the bytes that br and zstd look back; gzip has 15.
const WINDOW_BITS: u32 = 18;
/// Bytes that an encoder of br gives out at a time.
const BR_BUFFER_BYTES: usize = 4096;

/// A content coding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// RFC 8878.
    Zstd,
    /// RFC 7932.
    Br,
    /// RFC 1952.
    Gzip,
}

impl Coding {
    /// All, the one first that comes to the fewest bytes for the work.
    pub const ALL: [Coding; 3] = [Coding::Zstd, Coding::Br, Coding::Gzip];

    /// As it is called in Content-Encoding.
    pub fn word(self) -> &'static str {
        match self {
            Coding::Zstd => "zstd",
            Coding::Br => "br",
            Coding::Gzip => "gzip",
        }
    }

    /// That of this name, in any case (RFC 9110 §8.4.1; §8.4.1.3: `x-gzip` is gzip).
    pub(crate) fn of(name: &[u8]) -> Option<Coding> {
        let is = |coding: &Coding| name.eq_ignore_ascii_case(coding.word().as_bytes());
        Coding::ALL.into_iter().find(is).or_else(|| name.eq_ignore_ascii_case(b"x-gzip").then_some(Coding::Gzip))
    }
}

/// The encoder of one message.
pub(crate) enum Encoder {
    Zstd(Box<zstd::stream::write::Encoder<'static, Vec<u8>>>),
    Br(Box<brotli::CompressorWriter<Vec<u8>>>),
    Gzip(Box<flate2::write::GzEncoder<Vec<u8>>>),
}

impl Encoder {
    /// One that works so hard: 1 to 9 for gzip, 1 to 19 for zstd, 0 to 11 for br. None: there is no memory for it.
    pub(crate) fn new(coding: Coding, level: u32) -> Option<Encoder> {
        Some(match coding {
            Coding::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), level.cast_signed()).ok()?;
                encoder.window_log(WINDOW_BITS).ok()?;
                Encoder::Zstd(Box::new(encoder))
            }
            Coding::Br => {
                let writer = brotli::CompressorWriter::new(Vec::new(), BR_BUFFER_BYTES, level, WINDOW_BITS);
                Encoder::Br(Box::new(writer))
            }
            Coding::Gzip => {
                let level = flate2::Compression::new(level);
                Encoder::Gzip(Box::new(flate2::write::GzEncoder::new(Vec::new(), level)))
            }
        })
    }

    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Encoder::Zstd(encoder) => encoder,
            Encoder::Br(encoder) => encoder,
            Encoder::Gzip(encoder) => encoder,
        }
    }

    fn take(&mut self) -> Vec<u8> {
        std::mem::take(match self {
            Encoder::Zstd(encoder) => encoder.get_mut(),
            Encoder::Br(encoder) => encoder.get_mut(),
            Encoder::Gzip(encoder) => encoder.get_mut(),
        })
    }

    /// Takes bytes in, and gives out what has become of those before. None: there was no memory; the message is broken.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.writer().write_all(bytes).ok()?;
        Some(self.take())
    }

    /// Gives out the rest of all that it has taken in. None as with [`Encoder::write`].
    pub(crate) fn flush(&mut self) -> Option<Vec<u8>> {
        self.writer().flush().ok()?;
        Some(self.take())
    }

    /// The message is complete: gives out its end. None as with [`Encoder::write`].
    pub(crate) fn finish(self) -> Option<Vec<u8>> {
        match self {
            Encoder::Zstd(encoder) => encoder.finish().ok(),
            Encoder::Br(encoder) => Some(encoder.into_inner()),
            Encoder::Gzip(encoder) => encoder.finish().ok(),
        }
    }
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(match self {
            Encoder::Zstd(_) => "zstd",
            Encoder::Br(_) => "br",
            Encoder::Gzip(_) => "gzip",
        })
    }
}

#[cfg(test)]
mod tests {
    //! Proves: what is decoded is what went in, wherever it is cut and flushed, and a flush leaves nothing behind; a message without its end
    //! can be told. How: properties, with the decoders of the same crates.

    use std::io::Read;

    use proptest::prelude::*;

    use super::*;

    /// What can be decoded of these bytes, and whether that is all of a message.
    fn decode(coding: Coding, bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut reader: Box<dyn Read + '_> = match coding {
            Coding::Zstd => Box::new(zstd::stream::read::Decoder::new(bytes).unwrap()),
            Coding::Br => Box::new(brotli::Decompressor::new(bytes, 4096)),
            Coding::Gzip => Box::new(flate2::read::GzDecoder::new(bytes)),
        };
        let (mut out, mut part) = (Vec::new(), [0; 777]);
        loop {
            match reader.read(&mut part) {
                Ok(0) => return (out, true),
                Ok(bytes) => out.extend_from_slice(&part[..bytes]),
                Err(_) => return (out, false),
            }
        }
    }

    /// Text that can be compressed in part.
    fn content() -> impl Strategy<Value = Vec<u8>> {
        let part = prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..400),
            (any::<u8>(), 0..3000_usize).prop_map(|(byte, times)| vec![byte; times]),
            (0..200_usize).prop_map(|times| b"the same words again ".repeat(times)),
        ];
        proptest::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn every_split_is_decoded_to_the_same(
            content in content(),
            cuts in proptest::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..12),
            level in 1..=6_u32,
        ) {
            let mut cuts: Vec<_> = cuts.iter().map(|(at, flush)| (at.index(content.len() + 1), *flush)).collect();
            cuts.sort_unstable();
            for coding in Coding::ALL {
                let (mut encoder, mut out, mut from) = (Encoder::new(coding, level).unwrap(), Vec::new(), 0);
                for (to, flush) in &cuts {
                    out.extend(encoder.write(&content[from..*to]).unwrap());
                    from = *to;
                    if *flush {
                        out.extend(encoder.flush().unwrap());
                        prop_assert_eq!(&decode(coding, &out).0, &content[..from], "{:?}", coding);
                    }
                }
                out.extend(encoder.write(&content[from..]).unwrap());
                let whole = out.len();
                out.extend(encoder.finish().unwrap());
                prop_assert_eq!(decode(coding, &out), (content.clone(), true), "{:?}", coding);
                prop_assert!(whole < out.len(), "the end is something");
                prop_assert!(!decode(coding, &out[..out.len() - 1]).1, "{:?}: without its end it is not whole", coding);
            }
        }
    }

    #[test]
    fn names() {
        for coding in Coding::ALL {
            assert_eq!(Coding::of(coding.word().to_ascii_uppercase().as_bytes()), Some(coding));
        }
        assert_eq!((Coding::of(b"X-GZip"), Coding::of(b"deflate"), Coding::of(b"")), (Some(Coding::Gzip), None, None));
    }
}
