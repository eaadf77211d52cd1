//! The rest of a coded message without an encoder: bytes leave as they arrive, in the frames that
//! the coding has for uncompressed data.
//!
//! So a message whose encoder is needed elsewhere continues and still decodes as one message. The
//! takeover happens after a flush, where each coding is at a byte boundary: gzip in stored blocks
//! (RFC 1951 §3.2.4), br in uncompressed meta-blocks (RFC 7932 §9.2), zstd in raw blocks
//! (RFC 8878 §3.1.1.2). Bound: it holds nothing; it adds a few bytes for each piece and
//! [`PIECE_BYTES_MAX`].

use flate2::Crc;

use super::Coding;

/// Most bytes in a block: gzip has 16 bits for the length, and br is written with as many.
const PIECE_BYTES_MAX: usize = 0xffff;
/// An empty last block of zstd.
const ZSTD_LAST: [u8; 3] = [1, 0, 0];
/// An empty last meta-block of br.
const BR_LAST: u8 = 0b11;
/// An empty last stored block of deflate.
const DEFLATE_LAST: [u8; 5] = [1, 0, 0, 0xff, 0xff];

/// See the module.
pub(crate) struct Stored {
    coding: Coding,
    /// Checksum of the whole message, for the coding that ends with it.
    crc: Crc,
    block_bytes_max: usize,
    out: Vec<u8>,
}

impl Stored {
    /// Takes over after a flush. `crc`: of all bytes before, for gzip; `window`: how many bytes
    /// back the message may refer, for zstd.
    pub(super) fn new(coding: Coding, crc: Crc, window: usize) -> Stored {
        let block_bytes_max =
            if coding == Coding::Zstd { window.min(PIECE_BYTES_MAX) } else { PIECE_BYTES_MAX };
        Stored { coding, crc, block_bytes_max, out: Vec::new() }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(self.block_bytes_max) {
            // At most 16 bits.
            let length = piece.len() as u32;
            match self.coding {
                // Not the last block, of type 0, then 21 bits of length.
                Coding::Zstd => self.put_24(length << 3),
                // Not the last block, four nibbles of length minus one, uncompressed.
                Coding::Br => self.put_24((length - 1) << 3 | 1 << 19),
                Coding::Gzip => {
                    self.crc.update(piece);
                    let [low, high, ..] = length.to_le_bytes();
                    self.out.extend_from_slice(&[0, low, high, !low, !high]);
                }
            }
            self.out.extend_from_slice(piece);
        }
    }

    fn put_24(&mut self, bits: u32) {
        let [a, b, c, _] = bits.to_le_bytes();
        self.out.extend_from_slice(&[a, b, c]);
    }

    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// The end of the message.
    pub(super) fn finish(mut self) -> Vec<u8> {
        match self.coding {
            Coding::Zstd => self.out.extend_from_slice(&ZSTD_LAST),
            Coding::Br => self.out.push(BR_LAST),
            Coding::Gzip => {
                self.out.extend_from_slice(&DEFLATE_LAST);
                super::put_gzip_end(&mut self.out, &self.crc);
            }
        }
        self.out
    }
}
