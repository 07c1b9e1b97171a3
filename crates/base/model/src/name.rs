//! Display names of members and links.

use std::fmt;
use std::str::FromStr;

/// A name that an admin gives to a relay, node or link: 1 to 63 characters of `a-z`, `0-9`, `-`
/// and `.`, beginning and ending with a letter or digit. Safe in a shell, a URL, a file name and a
/// metrics label without escaping.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// Text that is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a name: {reason} (allowed: 1 to 63 characters of a-z, 0-9, `-` and `.`, \
     beginning and ending with a letter or digit)"
)]
pub struct NameError {
    text: String,
    reason: &'static str,
}

/// A name's greatest length in bytes: that of one DNS label (RFC 1035 section 2.3.4).
pub const NAME_LEN_MAX: usize = 63;

impl Name {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        let reason = if text.is_empty() {
            "it is empty"
        } else if text.len() > NAME_LEN_MAX {
            "it is too long"
        } else if !text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.'))
        {
            "it has a character that is not allowed"
        } else if !edge(text.chars().next()) || !edge(text.chars().next_back()) {
            "it does not begin and end with a letter or digit"
        } else {
            return Ok(Self(text.to_owned()));
        };
        Err(NameError {
            text: text.chars().take(80).collect(),
            reason,
        })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "db", "paris-1", "10.example", &"a".repeat(63)] {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
        }
        for (bad, why) in [
            ("", "empty"),
            (&*"a".repeat(64), "too long"),
            ("Db", "character"),
            ("a b", "character"),
            ("<b>", "character"),
            ("-a", "begin"),
            ("a.", "begin"),
        ] {
            let error = bad.parse::<Name>().unwrap_err().to_string();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }
}
