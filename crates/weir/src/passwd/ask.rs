//! Asks for a password: without echo on a terminal, or as a line of standard input. Called by
//! `passwd`.
//!
//! On a terminal keys are read one by one, so that an interruption restores it. Bound:
//! [`BYTES_MAX`].

use std::io::{self, Read as _, Write as _};

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};

/// Longest password, in bytes; the head of a request has not much more.
const BYTES_MAX: usize = 4096;

/// Returns the first line of standard input, without its end.
///
/// # Errors
/// It is missing, or longer than [`BYTES_MAX`].
pub(super) fn line() -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut input = io::stdin().lock();
    loop {
        let mut byte = [0];
        match input.read(&mut byte)? {
            0 if line.is_empty() => return Err(io::Error::other("standard input has no password")),
            0 => return Ok(line),
            _ if byte == *b"\n" => {
                line.pop_if(|last| *last == b'\r');
                return Ok(line);
            }
            _ => push(&mut line, byte[0])?,
        }
    }
}

fn push(line: &mut Vec<u8>, byte: u8) -> io::Result<()> {
    if line.len() >= BYTES_MAX {
        return Err(io::Error::other(format!("the password has more than {BYTES_MAX} bytes")));
    }
    line.push(byte);
    Ok(())
}

/// The earlier mode of the terminal on standard input, restored when this is dropped.
struct Restored(Termios);

impl Restored {
    /// Makes keys arrive one by one, without echo and without effect.
    fn hide() -> io::Result<Restored> {
        let before = tcgetattr(io::stdin())?;
        let mut quiet = before.clone();
        quiet.local_modes -=
            LocalModes::ECHO | LocalModes::ECHONL | LocalModes::ICANON | LocalModes::ISIG;
        quiet.special_codes[SpecialCodeIndex::VMIN] = 1;
        quiet.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(io::stdin(), OptionalActions::Flush, &quiet)?;
        Ok(Restored(before))
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        // If the terminal is gone, no one can read an error.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}

/// Returns what is typed on the terminal of standard input, up to the return key, without echo.
///
/// # Errors
/// It was interrupted (Ctrl-C, Ctrl-D), or the terminal is gone.
pub(super) fn hidden(prompt: &str) -> io::Result<Vec<u8>> {
    let _restored = Restored::hide()?;
    let mut out = io::stderr().lock();
    write!(out, "{prompt}")?;
    let typed = typed(&mut io::stdin().lock());
    writeln!(out)?;
    typed
}

fn typed(keys: &mut impl io::Read) -> io::Result<Vec<u8>> {
    const BREAK: u8 = 3;
    const END: u8 = 4;
    const BACKSPACE: u8 = 8;
    const KILL: u8 = 21;
    const DELETE: u8 = 127;
    let mut line = Vec::new();
    loop {
        let mut key = [0];
        let count = keys.read(&mut key)?;
        match key[0] {
            _ if count == 0 => return Err(io::Error::other("broken off")),
            b'\r' | b'\n' => return Ok(line),
            BREAK | END => return Err(io::Error::other("broken off")),
            BACKSPACE | DELETE => erase(&mut line),
            KILL => line.clear(),
            byte => push(&mut line, byte)?,
        }
    }
}

/// Removes the last character, which may be several bytes of UTF-8.
fn erase(line: &mut Vec<u8>) {
    while line.pop_if(|last| *last & 0xc0 == 0x80).is_some() {}
    line.pop();
}

#[cfg(test)]
mod tests {
    //! Proves: keys do what they do elsewhere. How: keys as bytes.

    use super::*;

    #[test]
    fn keys_are_edited() {
        let of = |keys: &[u8]| typed(&mut &*keys).map_err(|error| error.to_string());
        assert_eq!(of(b"secret\r"), Ok(b"secret".to_vec()));
        assert_eq!(of(b"secx\x7fret\n"), Ok(b"secret".to_vec()));
        assert_eq!(of("s\u{f6}\u{8}ecret\n".as_bytes()), Ok(b"secret".to_vec()));
        assert_eq!(of(b"no\x15\x7fsecret\n"), Ok(b"secret".to_vec()));
        for broken in [&b"sec\x03ret\n"[..], b"sec\x04", b"sec"] {
            assert_eq!(of(broken), Err("broken off".to_owned()));
        }
        assert!(of(&[b'a'; BYTES_MAX + 1]).unwrap_err().contains("more than"));
    }
}
