//! Asks for a secret on the terminal, without echo.

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use std::io::{self, Read, Write};
use zeroize::Zeroizing;

/// A secret's greatest length; a token has 43 characters.
const SECRET_LEN_MAX: usize = 4096;

/// The terminal as it was, put back when dropped.
struct Quiet(Termios);

impl Quiet {
    /// Byte by byte, without echo, and Ctrl-C as a byte: a process that a signal ends would leave
    /// the terminal without echo.
    fn begin() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut quiet = before.clone();
        quiet
            .local_modes
            .remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        quiet.special_codes[SpecialCodeIndex::VMIN] = 1;
        quiet.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(io::stdin(), OptionalActions::Flush, &quiet)?;
        Ok(Self(before))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Asks on standard error, and reads one line of standard input, which is a terminal.
pub(crate) fn secret(question: &str) -> io::Result<Zeroizing<String>> {
    let mut error = io::stderr();
    write!(error, "{question}")?;
    error.flush()?;
    let quiet = Quiet::begin()?;
    let line = read_line(&mut io::stdin().lock());
    drop(quiet);
    writeln!(error)?;
    line
}

/// Reads one line as a terminal would edit it: Backspace, Ctrl-U, Ctrl-D; Ctrl-C interrupts.
fn read_line(input: &mut impl Read) -> io::Result<Zeroizing<String>> {
    const CTRL_C: u8 = 3;
    const CTRL_D: u8 = 4;
    const BACKSPACE: u8 = 8;
    const CTRL_U: u8 = 21;
    const DELETE: u8 = 127;
    let mut text = Zeroizing::new(Vec::with_capacity(SECRET_LEN_MAX));
    let mut byte = [0];
    while input.read(&mut byte)? == 1 {
        match byte[0] {
            b'\n' | b'\r' | CTRL_D => break,
            CTRL_C => return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted")),
            BACKSPACE | DELETE => {
                text.pop();
            }
            CTRL_U => text.clear(),
            other if text.len() < SECRET_LEN_MAX => text.push(other),
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "the line is too long")),
        }
    }
    let text = std::str::from_utf8(&text).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    Ok(Zeroizing::new(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_edited_and_ctrl_c_interrupts() {
        let line = |keys: &[u8]| read_line(&mut &keys[..]).map(|text| text.to_string());
        assert_eq!(line(b"abc\r rest").unwrap(), "abc");
        assert_eq!(line(b"xx\x15ab\x7fc\n").unwrap(), "ac");
        assert_eq!(line(b"ab\x04").unwrap(), "ab");
        assert_eq!(line(b"").unwrap(), "");
        assert_eq!(line(b"ab\x03").unwrap_err().kind(), io::ErrorKind::Interrupted);
    }
}
