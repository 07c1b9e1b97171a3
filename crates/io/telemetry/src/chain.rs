//! An error and its sources in one line, printed once at the edge.

use std::error::Error;

/// More sources than any chain of ours has; a bound for errors that name themselves as source.
const DEPTH_MAX: usize = 16;

/// The error and its sources, outermost first, joined by `: `. A source whose text the part
/// before already ends with is left out, since some libraries repeat it.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut last = text.clone();
    let mut source = error.source();
    for _ in 0..DEPTH_MAX {
        let Some(cause) = source else { break };
        let part = cause.to_string();
        if !part.is_empty() && !last.ends_with(&part) {
            text.push_str(": ");
            text.push_str(&part);
            last = part;
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Part {
        text: &'static str,
        #[source]
        source: Option<Box<Part>>,
    }

    fn part(text: &'static str, source: Option<Part>) -> Part {
        Part {
            text,
            source: source.map(Box::new),
        }
    }

    #[test]
    fn each_part_once() {
        let error = part(
            "cannot open link",
            Some(part("dial failed", Some(part("refused", None)))),
        );
        assert_eq!(chain(&error), "cannot open link: dial failed: refused");
        let error = part("tls: bad pin", Some(part("bad pin", Some(part("pin", None)))));
        assert_eq!(chain(&error), "tls: bad pin");
        assert_eq!(chain(&part("alone", None)), "alone");
    }
}
