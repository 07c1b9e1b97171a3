//! `fairlead --token-file F relay ls` is the same as `fairlead relay ls --token-file F`.
//!
//! The flags that say how to reach the control plane belong to the verbs that do; written before the
//! verb, they are moved behind it, so that `up` and `run` neither list nor take them.

use std::ffi::OsString;

/// Flags with a value.
const VALUED: [&str; 3] = ["--control", "--ca-file", "--token-file"];
/// The flag without.
const JSON: &str = "--json";

/// The arguments, with connection flags that stand before the verb moved to the end.
pub(crate) fn connection_flags(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args = args.peekable();
    let mut ordered: Vec<OsString> = args.next().into_iter().collect();
    let mut hoisted = Vec::new();
    while let Some(arg) = args.next_if(is_connection_flag) {
        let takes_next = VALUED.iter().any(|flag| arg == *flag);
        hoisted.push(arg);
        if takes_next {
            hoisted.extend(args.next());
        }
    }
    // Behind `--` everything is a value.
    let rest: Vec<OsString> = args.collect();
    let end = rest.iter().position(|arg| arg == "--").unwrap_or(rest.len());
    let (verb, values) = rest.split_at(end);
    if verb.is_empty() {
        // No verb: the complaint is to name what was written.
        ordered.extend(hoisted);
        ordered.extend(rest);
        return ordered;
    }
    ordered.extend(verb.iter().cloned());
    ordered.extend(hoisted);
    ordered.extend(values.iter().cloned());
    ordered
}

fn is_connection_flag(arg: &OsString) -> bool {
    let Some(text) = arg.to_str() else {
        return false;
    };
    let name = text.split_once('=').map_or(text, |(name, _)| name);
    VALUED.contains(&name) || text == JSON
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_before_the_verb_go_behind_it() {
        for (written, read) in [
            ("f --token-file x relay ls", "f relay ls --token-file x"),
            ("f --json --control=c:1 status", "f status --json --control=c:1"),
            ("f relay ls --json", "f relay ls --json"),
            ("f --json link show -- -x", "f link show --json -- -x"),
            ("f --token-file x", "f --token-file x"),
            ("f --version", "f --version"),
            ("f --unknown relay ls", "f --unknown relay ls"),
            ("f", "f"),
        ] {
            let args = written.split(' ').map(OsString::from);
            let expected: Vec<OsString> = read.split(' ').map(OsString::from).collect();
            assert_eq!(connection_flags(args), expected, "{written}");
        }
    }
}
