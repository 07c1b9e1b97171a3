//! Checks of one file's text.

use super::Fault;
use crate::source::SourceFile;

/// A comfortable size.
pub(super) const ROOM_LINES: usize = 400;

/// A file of more lines holds a second thing.
const WARNING_LINES: usize = 700;

/// A test module of more lines moves to a `tests.rs` beside.
const INLINE_TEST_LINES: usize = 150;

/// Words that no file holds, and why. Each is written in two parts, so that this file passes.
const STRAY: [(&str, &str, &str); 9] = [
    ("/wo", "rk/", "names the place where the project was written"),
    ("/tmp/pl", "an", "names the place where the project was written"),
    (".lib", "rary/", "names the place where the project was written"),
    ("TO", "DO", "is work that nobody owns: do it, or file an issue"),
    ("FIX", "ME", "is work that nobody owns: do it, or file an issue"),
    ("XX", "X:", "is work that nobody owns: do it, or file an issue"),
    ("#[ign", "ore", "is a test that nobody runs"),
    ("<<<<", "<<< ", "is a merge left half done"),
    ("todo", "!(", "is work that nobody owns: do it, or file an issue"),
];

/// What product code of the crates never calls, and what it does in its place.
const BANNED: [(&str, &str); 5] = [
    (
        "unbounded_channel",
        "a queue without a bound: use a bounded channel with a named constant",
    ),
    (
        "mpsc::channel()",
        "a queue without a bound: use a bounded channel with a named constant",
    ),
    (
        "tokio::spawn(",
        "a task without an owner: use a TaskTracker or a JoinSet",
    ),
    (
        "tokio::task::spawn(",
        "a task without an owner: use a TaskTracker or a JoinSet",
    ),
    ("std::process::exit(", "skips destructors: return an exit code"),
];

/// The one file that ends the process.
const MAY_EXIT: &str = "crates/bin/fairlead/src/main.rs";

/// Kinds of files whose white space is ours.
const TEXT_ENDINGS: [&str; 8] = [".rs", ".toml", ".md", ".proto", ".sh", ".yml", ".yaml", ".json"];

/// Whether a Rust file is beyond a comfortable size.
pub(super) fn is_long(file: &SourceFile) -> bool {
    file.is_rust() && file.text.lines().count() > ROOM_LINES
}

pub(super) fn check(file: &SourceFile) -> Vec<Fault> {
    let mut faults = white_space(file);
    faults.extend(stray_words(file));
    if file.is_rust() {
        faults.extend(size(file));
        faults.extend(module_doc(file));
        faults.extend(banned_calls(file));
    }
    faults
}

fn white_space(file: &SourceFile) -> Vec<Fault> {
    if !TEXT_ENDINGS.iter().any(|ending| file.path.ends_with(ending)) || file.text.is_empty() {
        return Vec::new();
    }
    let mut faults = Vec::new();
    if !file.text.ends_with('\n') {
        faults.push(Fault::of(file, "no newline at the end"));
    }
    if file.text.ends_with("\n\n") {
        faults.push(Fault::of(file, "an empty line at the end"));
    }
    for (at, line) in file.text.lines().enumerate() {
        if line.ends_with(' ') || line.ends_with('\t') {
            faults.push(Fault::at(file, at + 1, "white space at the end of the line"));
        }
    }
    faults
}

fn stray_words(file: &SourceFile) -> Vec<Fault> {
    // Requirements quote words of the world; the lock file is cargo's.
    if file.path == "Cargo.lock" || file.path.ends_with("/Cargo.lock") {
        return Vec::new();
    }
    let mut faults = Vec::new();
    for (first, second, why) in STRAY {
        let word = format!("{first}{second}");
        for (at, _) in file
            .text
            .lines()
            .enumerate()
            .filter(|(_, line)| line.contains(&word))
        {
            faults.push(Fault::at(file, at + 1, format!("`{word}` {why}")));
        }
    }
    faults
}

fn size(file: &SourceFile) -> Vec<Fault> {
    let mut faults = Vec::new();
    let lines = file.text.lines().count();
    if lines > WARNING_LINES {
        let what = format!("{lines} lines, {WARNING_LINES} at most: look for the second thing hiding in it");
        faults.push(Fault::of(file, what));
    }
    let tests = file.halves().1.len();
    if !file.is_test() && tests > INLINE_TEST_LINES {
        let what =
            format!("{tests} lines of tests inside, {INLINE_TEST_LINES} at most: move them to a `tests.rs`");
        faults.push(Fault::of(file, what));
    }
    faults
}

fn module_doc(file: &SourceFile) -> Vec<Fault> {
    let first = file
        .text
        .lines()
        .find(|line| !line.trim().is_empty() && !line.starts_with("#!["));
    match first {
        Some(line) if line.starts_with("//!") => Vec::new(),
        _ => vec![Fault::of(
            file,
            "no module doc: say in `//!` lines what it is for",
        )],
    }
}

fn banned_calls(file: &SourceFile) -> Vec<Fault> {
    if !file.path.starts_with("crates/") || file.path == MAY_EXIT {
        return Vec::new();
    }
    let mut faults = Vec::new();
    for (at, line) in file.halves().0.into_iter().enumerate() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        for (call, why) in BANNED.iter().filter(|(call, _)| line.contains(call)) {
            faults.push(Fault::at(file, at + 1, format!("`{call}`: {why}")));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(path: &str, text: &str) -> String {
        let file = SourceFile {
            path: path.into(),
            text: text.into(),
        };
        check(&file)
            .into_iter()
            .map(|f| format!("{}: {}\n", f.place, f.what))
            .collect()
    }

    #[test]
    fn a_tidy_file_passes() {
        assert_eq!(
            faults("crates/a/src/lib.rs", "//! What it is for.\n\nfn a() {}\n"),
            ""
        );
        assert_eq!(
            faults(
                "crates/a/src/lib.rs",
                "//! What.\n#[cfg(test)]\nmod tests {\n tokio::spawn(x);\n}\n"
            ),
            ""
        );
    }

    #[test]
    fn each_fault_is_found_with_its_place() {
        let doc = "//! What it is for.\n";
        for (text, fault) in [
            ("fn a() {}\n".to_owned(), "no module doc"),
            (format!("{doc}fn a() {{}}"), "no newline"),
            (format!("{doc}fn a() {{}} \n"), "lib.rs:2: white space"),
            (format!("{doc}// {}{}: later\n", "TO", "DO"), "lib.rs:2: `TO"),
            (format!("{doc}tokio::spawn(x);\n"), "a task without an owner"),
            (format!("{doc}{}", "a\n".repeat(WARNING_LINES)), "701 lines"),
            (
                format!("{doc}#[cfg(test)]\nmod tests {{\n{}}}\n", "a\n".repeat(160)),
                "163 lines of tests",
            ),
        ] {
            let found = faults("crates/a/src/lib.rs", &text);
            assert!(found.contains(fault), "wanted `{fault}`, found `{found}`");
        }
    }
}
