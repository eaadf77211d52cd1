//! Content codings of HTTP (RFC 9110 §8.4.1) as encoders: bytes go in as they arrive and coded
//! bytes come out. A flush emits everything that went in, so that a decoder can read it without
//! what follows.
//!
//! An encoder can be given up in the middle of its message, which continues uncompressed in the
//! same coding ([`Encoder::store`]). Each crate writes into a vector of its encoder, from which the
//! bytes are taken. Bounds: the window is at most 256 KiB, whatever the level ([`WINDOW_BITS`]),
//! and no larger than the message; [`Shape::bytes`] is what an encoder holds.

mod stored;

use std::io::Write;

use flate2::Crc;
use zstd::zstd_safe::CParameter;

use stored::Stored;

/// Logarithm of the largest window of br and zstd in bytes; that of gzip is 15.
const WINDOW_BITS: u32 = 18;
/// Logarithm of the smallest window; both libraries support it.
const WINDOW_BITS_MIN: u32 = 10;
/// Logarithms of the entries of zstd's tables by level (`chainLog` and `hashLog` of `clevels.h` for
/// messages of unknown length).
const TABLES: [(u32, u32); 9] =
    [(13, 14), (15, 16), (16, 17), (18, 18), (18, 19), (18, 19), (19, 20), (19, 20), (20, 21)];
/// Bytes that an encoder of br emits at a time.
const BR_BUFFER_BYTES: usize = 4096;
/// The header of a gzip message (RFC 1952 §2.3): deflate, no name and no time, unknown system.
const GZIP_HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];

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
    /// All codings; first the one that yields the fewest bytes for the work.
    pub const ALL: [Coding; 3] = [Coding::Zstd, Coding::Br, Coding::Gzip];

    /// The name in Content-Encoding.
    pub fn word(self) -> &'static str {
        match self {
            Coding::Zstd => "zstd",
            Coding::Br => "br",
            Coding::Gzip => "gzip",
        }
    }

    /// The coding with this name, in any case (RFC 9110 §8.4.1; §8.4.1.3: `x-gzip` is gzip).
    pub(crate) fn of(name: &[u8]) -> Option<Coding> {
        let is = |coding: &Coding| name.eq_ignore_ascii_case(coding.word().as_bytes());
        Coding::ALL
            .into_iter()
            .find(is)
            .or_else(|| name.eq_ignore_ascii_case(b"x-gzip").then_some(Coding::Gzip))
    }
}

/// The encoder of one message.
pub(crate) struct Encoder {
    shape: Shape,
    by: By,
}

/// The encoder proper.
enum By {
    Zstd(Box<zstd::stream::write::Encoder<'static, Vec<u8>>>),
    Br(Box<brotli::CompressorWriter<Vec<u8>>>),
    /// With the checksum and length for its trailer.
    Gzip(Box<flate2::write::DeflateEncoder<Vec<u8>>>, Crc),
    /// None any more.
    Stored(Stored),
}

/// The parameters of an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    coding: Coding,
    /// The effort: 1 to 9 for gzip and zstd, 0 to 6 for br.
    level: u32,
    /// For br and zstd.
    window_bits: u32,
}

impl Shape {
    /// The shape for a message of this length in bytes, as far as it is known.
    pub(crate) fn new(coding: Coding, level: u32, length: Option<u64>) -> Shape {
        let needed = length
            .map_or(WINDOW_BITS, |length| u64::BITS - length.saturating_sub(1).leading_zeros());
        let least = match (coding, level) {
            // From this level on a smaller window makes br choose tables of 33 MiB; below it a
            // smaller window makes no table smaller.
            (Coding::Br, 5..) => 17,
            (Coding::Br, 2..) => 16,
            _ => WINDOW_BITS_MIN,
        };
        Shape { coding, level, window_bits: needed.clamp(least, WINDOW_BITS) }
    }

    /// Returns the coding.
    pub(crate) fn coding(self) -> Coding {
        self.coding
    }

    /// Logarithms of the entries of the tables of zstd: no more than its window can use.
    fn tables(self) -> (u32, u32) {
        let (chain, hash) = TABLES[(self.level.clamp(1, 9) - 1) as usize];
        (chain.min(self.window_bits), hash.min(self.window_bits + 1))
    }

    /// The most memory in bytes that an encoder grows to, besides its output. The values for gzip
    /// and br are measured with pieces of 64 KiB.
    pub(crate) fn bytes(self) -> u64 {
        let kib = |bytes: u64| bytes * 1024;
        let window = 1 << self.window_bits;
        match (self.coding, self.level) {
            (Coding::Gzip, _) => kib(404),
            (Coding::Br, 0) => kib(266).min(kib(16) + 4 * window),
            (Coding::Br, 1) => kib(394).min(kib(16) + 6 * window),
            (Coding::Br, 2 | 3) => kib(1202),
            (Coding::Br, 4) if self.window_bits <= 16 => kib(1610),
            (Coding::Br, 4) => kib(1994),
            (Coding::Br, 5) => kib(2538),
            (Coding::Br, _) => kib(3562),
            (Coding::Zstd, _) => {
                // Tables of four bytes an entry, and one more where rows are searched; the window
                // and a block behind it; and the sequences, literals and output of a block.
                let (chain, hash) = self.tables();
                (4 << chain) + (5 << hash) + window + 7 * window.min(kib(128)) + kib(64)
            }
        }
    }

    /// The settings for the context of zstd.
    fn parameters(self) -> [CParameter; 3] {
        let (chain, hash) = self.tables();
        [
            CParameter::WindowLog(self.window_bits),
            CParameter::ChainLog(chain),
            CParameter::HashLog(hash),
        ]
    }
}

impl Encoder {
    /// Creates an encoder of this shape. None: there is not enough memory for it.
    pub(crate) fn new(shape: Shape) -> Option<Encoder> {
        let Shape { coding, level, window_bits } = shape;
        let by = match coding {
            Coding::Zstd => {
                let mut encoder =
                    zstd::stream::write::Encoder::new(Vec::new(), level.cast_signed()).ok()?;
                shape
                    .parameters()
                    .into_iter()
                    .try_for_each(|parameter| encoder.set_parameter(parameter))
                    .ok()?;
                By::Zstd(Box::new(encoder))
            }
            Coding::Br => {
                let writer =
                    brotli::CompressorWriter::new(Vec::new(), BR_BUFFER_BYTES, level, window_bits);
                By::Br(Box::new(writer))
            }
            Coding::Gzip => {
                let level = flate2::Compression::new(level);
                By::Gzip(
                    Box::new(flate2::write::DeflateEncoder::new(GZIP_HEAD.to_vec(), level)),
                    Crc::new(),
                )
            }
        };
        Some(Encoder { shape, by })
    }

    fn take(&mut self) -> Vec<u8> {
        match &mut self.by {
            By::Zstd(encoder) => std::mem::take(encoder.get_mut()),
            By::Br(encoder) => std::mem::take(encoder.get_mut()),
            By::Gzip(encoder, _) => std::mem::take(encoder.get_mut()),
            By::Stored(stored) => stored.take(),
        }
    }

    /// Takes bytes in and gives out the output of earlier ones. None: memory ran out; the message
    /// is broken.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.push(bytes)?;
        Some(self.take())
    }

    /// Takes bytes in; their output is given out with the next ones. None as with
    /// [`Encoder::write`].
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Option<()> {
        match &mut self.by {
            By::Zstd(encoder) => encoder.write_all(bytes).ok(),
            By::Br(encoder) => encoder.write_all(bytes).ok(),
            By::Gzip(encoder, crc) => {
                crc.update(bytes);
                encoder.write_all(bytes).ok()
            }
            By::Stored(stored) => {
                stored.push(bytes);
                Some(())
            }
        }
    }

    /// Gives out the remaining output of everything taken in. None as with [`Encoder::write`].
    pub(crate) fn flush(&mut self) -> Option<Vec<u8>> {
        match &mut self.by {
            By::Zstd(encoder) => encoder.flush().ok()?,
            By::Br(encoder) => encoder.flush().ok()?,
            By::Gzip(encoder, _) => encoder.flush().ok()?,
            By::Stored(_) => {}
        }
        Some(self.take())
    }

    /// Gives out the remaining output of everything taken in, which must not be empty, and frees
    /// the encoder's memory: later bytes leave uncompressed. None as with [`Encoder::write`].
    pub(crate) fn store(mut self) -> Option<(Encoder, Vec<u8>)> {
        let out = self.flush()?;
        let crc = match self.by {
            By::Gzip(_, crc) => crc,
            By::Zstd(_) | By::Br(_) => Crc::new(),
            By::Stored(_) => return Some((self, out)),
        };
        let stored = Stored::new(self.shape.coding, crc, 1 << self.shape.window_bits);
        Some((Encoder { shape: self.shape, by: By::Stored(stored) }, out))
    }

    /// Whether its memory has been freed.
    pub(crate) fn is_stored(&self) -> bool {
        matches!(self.by, By::Stored(_))
    }

    /// Completes the message and emits its end. None as with [`Encoder::write`].
    pub(crate) fn finish(self) -> Option<Vec<u8>> {
        match self.by {
            By::Zstd(encoder) => encoder.finish().ok(),
            By::Br(encoder) => Some(encoder.into_inner()),
            By::Gzip(encoder, crc) => {
                let mut out = encoder.finish().ok()?;
                put_gzip_end(&mut out, &crc);
                Some(out)
            }
            By::Stored(stored) => Some(stored.finish()),
        }
    }
}

/// The trailer of a gzip message (RFC 1952 §2.3.1).
fn put_gzip_end(out: &mut Vec<u8>, crc: &Crc) {
    out.extend_from_slice(&crc.sum().to_le_bytes());
    out.extend_from_slice(&crc.amount().to_le_bytes());
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stored = if self.is_stored() { " (stored)" } else { "" };
        write!(to, "{}{stored}", self.shape.coding.word())
    }
}

#[cfg(test)]
mod tests {
    //! Proves: the decoded bytes are the bytes that went in, wherever they are cut and flushed; a
    //! flush leaves nothing behind; a message without its end is recognised. How: properties, with
    //! the decoders of the same crates.

    use std::io::Read;

    use proptest::prelude::*;

    use super::*;

    /// The bytes that can be decoded, and whether they are a complete message.
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
            is_announced in any::<bool>(),
        ) {
            let mut cuts: Vec<_> =
                cuts.iter().map(|(at, flush)| (at.index(content.len() + 1), *flush)).collect();
            cuts.sort_unstable();
            let length = is_announced.then_some(content.len() as u64);
            for coding in Coding::ALL {
                let (mut encoder, mut out, mut from) =
                    (Encoder::new(Shape::new(coding, level, length)).unwrap(), Vec::new(), 0);
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
                prop_assert!(
                    !decode(coding, &out[..out.len() - 1]).1,
                    "{:?}: without its end it is not whole",
                    coding
                );
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        /// Whatever comes before and after, in whatever pieces.
        #[test]
        fn a_message_goes_on_without_its_encoder(
            before in content(),
            behind in content(),
            pieces in 1..5_usize,
            level in 1..=6_u32,
            length in prop_oneof![Just(None), (0..5000_u64).prop_map(Some)],
        ) {
            // Only a message that has begun is given up.
            let before = [b"begun ", &before[..]].concat();
            for coding in Coding::ALL {
                let mut encoder = Encoder::new(Shape::new(coding, level, length)).unwrap();
                let mut out = encoder.write(&before).unwrap();
                let (mut stored, rest) = encoder.store().unwrap();
                prop_assert!(stored.is_stored());
                out.extend(rest);
                prop_assert_eq!(&decode(coding, &out).0, &before, "{:?}", coding);
                for piece in behind.chunks(behind.len() / pieces + 1) {
                    out.extend(stored.write(piece).unwrap());
                }
                out.extend(stored.flush().unwrap());
                let whole = [&before[..], &behind].concat();
                prop_assert_eq!(&decode(coding, &out).0, &whole, "{:?}", coding);
                out.extend(stored.finish().unwrap());
                prop_assert_eq!(decode(coding, &out), (whole, true), "{:?}", coding);
                prop_assert!(
                    !decode(coding, &out[..out.len() - 1]).1,
                    "{:?}: without its end it is not whole",
                    coding
                );
            }
        }
    }

    /// More than fits into one block of any coding.
    #[test]
    fn much_goes_on_without_its_encoder() {
        let content: Vec<u8> =
            (0..300_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for coding in Coding::ALL {
            for length in [None, Some(1000)] {
                let mut encoder = Encoder::new(Shape::new(coding, 3, length)).unwrap();
                let mut out = encoder.write(b"first").unwrap();
                let (mut stored, rest) = encoder.store().unwrap();
                out.extend(rest);
                out.extend(stored.write(&content).unwrap());
                out.extend(stored.finish().unwrap());
                assert_eq!(
                    decode(coding, &out),
                    ([b"first", &content[..]].concat(), true),
                    "{coding:?}"
                );
            }
        }
    }

    /// The library reports what a context holds while it works.
    #[test]
    fn an_encoder_of_zstd_holds_what_is_said() {
        let content = b"the same words again, and others ".repeat(20_000);
        for level in 1..=9_u32 {
            for length in [Some(1000), Some(10_000), Some(100_000), None] {
                let shape = Shape::new(Coding::Zstd, level, length);
                let mut context = zstd::zstd_safe::CCtx::create();
                context.set_parameter(CParameter::CompressionLevel(level.cast_signed())).unwrap();
                for parameter in shape.parameters() {
                    context.set_parameter(parameter).unwrap();
                }
                let mut out = vec![0; content.len()];
                let mut to = zstd::zstd_safe::OutBuffer::around(&mut out[..]);
                let length = length.map_or(content.len(), |length| length as usize);
                context
                    .compress_stream(
                        &mut to,
                        &mut zstd::zstd_safe::InBuffer::around(&content[..length]),
                    )
                    .unwrap();
                let (held, said) = (context.sizeof() as u64, shape.bytes());
                assert!(
                    held <= said && said <= held * 2 + (64 << 10),
                    "{shape:?}: {said} are said, {held} held"
                );
            }
        }
    }

    #[test]
    fn windows_are_as_large_as_messages() {
        for (coding, level, length, bits) in [
            (Coding::Zstd, 3, Some(1000), 10),
            (Coding::Zstd, 3, Some(4096), 12),
            (Coding::Zstd, 3, Some(4097), 13),
            (Coding::Zstd, 3, Some(0), 10),
            (Coding::Zstd, 3, Some(u64::MAX), 18),
            (Coding::Zstd, 3, None, 18),
            (Coding::Br, 0, Some(1000), 10),
            (Coding::Br, 4, Some(1000), 16),
            (Coding::Br, 6, Some(1000), 17),
            (Coding::Br, 6, None, 18),
        ] {
            assert_eq!(
                Shape::new(coding, level, length).window_bits,
                bits,
                "{coding:?} {level} {length:?}"
            );
        }
        let bytes = |coding, level, length| Shape::new(coding, level, length).bytes();
        assert!(
            bytes(Coding::Zstd, 9, None) < 5 << 20
                && bytes(Coding::Zstd, 9, Some(2000)) < 128 << 10
        );
        assert!(
            bytes(Coding::Br, 6, None) < 4 << 20 && bytes(Coding::Br, 0, Some(2000)) < 30 << 10
        );
    }

    #[test]
    fn names() {
        for coding in Coding::ALL {
            assert_eq!(Coding::of(coding.word().to_ascii_uppercase().as_bytes()), Some(coding));
        }
        assert_eq!(
            (Coding::of(b"X-GZip"), Coding::of(b"deflate"), Coding::of(b"")),
            (Some(Coding::Gzip), None, None)
        );
    }
}
