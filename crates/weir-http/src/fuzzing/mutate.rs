//! Changes seeds the way a fuzzer does, from a seed number, for runs without a fuzzer.

/// Texts that parsers trip over.
const TOKENS: &[&[u8]] = &[
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b"\t",
    b":",
    b",",
    b";",
    b"\"",
    b"\\",
    b"#",
    b"%00",
    b"\x7f",
    b"\xff",
    b"_",
    b"0",
    b"chunked",
    b"Content-Length: 1\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Host: b\r\n",
    b"Connection: ",
    b"HTTP/1.0",
    b"HTTP/1.1",
    b"close",
    b"0\r\n\r\n",
    b"{",
    b"}",
    b"9223372036854775808",
];

/// A stream of changed inputs; the same seed gives the same stream.
#[derive(Clone, Debug)]
pub struct Mutator {
    state: u64,
}

impl Mutator {
    /// Any number is a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed ^ 0x9e37_79b9_7f4a_7c15 }
    }

    /// The next number below `bound` (which must not be 0). SplitMix64.
    pub fn below(&mut self, bound: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    /// One to four changes to one of `seeds` (at least one), sometimes with a part of another one.
    pub fn next(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut data = seeds[self.below(seeds.len())].clone();
        for _ in 0..=self.below(4) {
            let other = &seeds[self.below(seeds.len())];
            self.change(&mut data, other);
        }
        data
    }

    fn change(&mut self, data: &mut Vec<u8>, other: &[u8]) {
        let at = self.below(data.len() + 1);
        let end = at + self.below(data.len() - at + 1).min(16);
        match self.below(7) {
            0 => {
                data.drain(at..end);
            }
            1 => {
                let token = TOKENS[self.below(TOKENS.len())];
                data.splice(at..at, token.iter().copied());
            }
            2 => {
                let token = TOKENS[self.below(TOKENS.len())];
                data.splice(at..end, token.iter().copied());
            }
            3 => {
                let again = data[at..end].to_vec();
                data.splice(at..at, again);
            }
            4 => {
                let from = self.below(other.len() + 1);
                let to = from + self.below(other.len() - from + 1).min(64);
                data.splice(at..at, other[from..to].iter().copied());
            }
            5 if at < data.len() => data[at] ^= 1 << self.below(8),
            _ if at < data.len() => data[at] = self.below(256) as u8,
            _ => {}
        }
    }
}
