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
    reason: String,
}

/// A name's greatest length in bytes: that of one DNS label (RFC 1035 section 2.3.4).
pub const NAME_LEN_MAX: usize = 63;

impl Name {
    /// Reads a name that somebody asks for. One in the form of an id would stand for two objects
    /// wherever either is taken. What is stored already is read by [`FromStr`], and stays readable.
    ///
    /// # Errors
    /// The text is no name, or has the form in which ids are written.
    pub fn requested(text: &str) -> Result<Self, NameError> {
        let name: Self = text.parse()?;
        // Ids are taken in their hyphenated form alone: 32 digits, such as a machine id, are a name.
        if text.contains('-') && uuid::Uuid::parse_str(text).is_ok() {
            return Err(NameError::new(text, "it has the form of an id"));
        }
        Ok(name)
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl NameError {
    fn new(text: &str, reason: impl Into<String>) -> Self {
        Self {
            text: text.chars().take(80).collect(),
            reason: reason.into(),
        }
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        let allowed = |c: &char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        let foreign = text.chars().find(|c| !allowed(c));
        let reason = if text.is_empty() {
            "it is empty"
        } else if text.len() > NAME_LEN_MAX {
            "it is too long"
        } else if let Some(foreign) = foreign {
            return Err(NameError::new(
                text,
                format!("it has the character {foreign:?}, which is not allowed"),
            ));
        } else if !edge(text.chars().next()) || !edge(text.chars().next_back()) {
            "it does not begin and end with a letter or digit"
        } else {
            return Ok(Self(text.to_owned()));
        };
        Err(NameError::new(text, reason))
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
            ("Db", "character 'D'"),
            ("a b", "character"),
            ("<b>", "character"),
            ("-a", "begin"),
            ("a.", "begin"),
        ] {
            let error = bad.parse::<Name>().unwrap_err().to_string();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    /// Whoever takes a name or an id is never given a text that is both; what is stored stays readable.
    #[test]
    fn nobody_is_given_an_id_for_a_name() {
        let id = "0192f0c1-7d3a-7c55-9d0e-6b2f1f0a9c11";
        let error = Name::requested(id).unwrap_err().to_string();
        assert!(error.contains("form of an id"), "{error}");
        assert!(id.parse::<Name>().is_ok());
        for good in ["db", "0192f0c17d3a7c559d0e6b2f1f0a9c11", "0192f0c1-7d3a"] {
            assert_eq!(Name::requested(good).unwrap().as_str(), good);
        }
        assert!(Name::requested("Db").is_err());
    }
}
