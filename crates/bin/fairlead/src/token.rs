//! Reads a token: from a file, from standard input, or from the terminal.

use crate::prompt;
use fairlead_host::rng::Token;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use zeroize::Zeroizing;

/// At most this much is read of a file or of standard input.
const INPUT_LEN_MAX: u64 = 4096;
/// A token has 43 characters of base64url; longer ones may come.
const TOKEN_LEN_MAX: usize = 256;

/// Why there is no token. What was read is not shown: it may be another secret.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    /// The system said no.
    #[error("{place} cannot be read")]
    Read {
        place: String,
        #[source]
        error: io::Error,
    },
    /// The file has nothing in it.
    #[error("{0} is empty: it should hold a token")]
    Empty(String),
    /// Nothing came on standard input.
    #[error("no token: give it on standard input, or in a file")]
    Missing,
    /// It is something else.
    #[error("{0} does not hold a token")]
    NotToken(String),
}

/// The token in `file`, `-` being standard input; on a terminal it is asked for.
///
/// # Errors
/// It cannot be read, there is none, or it is something else.
pub(crate) fn read(file: &str) -> Result<Token, TokenError> {
    let stdin = file == "-";
    let place = if stdin { "standard input" } else { file };
    let input = input(file).map_err(|error| TokenError::Read {
        place: place.to_owned(),
        error,
    })?;
    let Ok(text) = std::str::from_utf8(&input) else {
        return Err(TokenError::NotToken(place.to_owned()));
    };
    match text.trim() {
        "" if stdin => Err(TokenError::Missing),
        "" => Err(TokenError::Empty(place.to_owned())),
        text if is_token(text) => Ok(Token::from_text(text.to_owned())),
        _ => Err(TokenError::NotToken(place.to_owned())),
    }
}

fn input(file: &str) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut input = Zeroizing::new(Vec::new());
    if file == "-" && io::stdin().is_terminal() {
        input.extend_from_slice(prompt::secret("Token: ")?.as_bytes());
    } else if file == "-" {
        io::stdin().lock().take(INPUT_LEN_MAX).read_to_end(&mut input)?;
    } else {
        File::open(file)?.take(INPUT_LEN_MAX).read_to_end(&mut input)?;
    }
    Ok(input)
}

/// Whether the text can be a token: base64url without padding. Whether it is one, the control plane
/// knows.
fn is_token(text: &str) -> bool {
    let of_token = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    text.len() <= TOKEN_LEN_MAX && text.bytes().all(of_token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_token_is_named_and_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let file = path.to_str().unwrap();
        let read_of = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            read(file)
        };
        assert_eq!(read_of(b" abc-_9\n").unwrap().expose(), "abc-_9");
        assert!(matches!(read_of(b" \n"), Err(TokenError::Empty(_))));
        let long = "x".repeat(TOKEN_LEN_MAX + 1);
        for other in ["# Read me\n\nfirst", "a b", "key=a", long.as_str(), "é"] {
            let error = read_of(other.as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), format!("{file} does not hold a token"));
        }
        assert!(matches!(read_of(b"\xff\xfe"), Err(TokenError::NotToken(_))));
        let error = read("/nonexistent/t").unwrap_err();
        assert!(error.to_string().contains("/nonexistent/t"), "{error}");
    }
}
