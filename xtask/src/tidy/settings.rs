//! Every setting stands in the reference page, with the meaning that its table gives.

use super::Fault;
use crate::source::SourceFile;

/// The page that holds every setting.
const PAGE: &str = "docs/reference/settings.md";

/// The tables: the pool's settings in the store, and the daemons' own.
const TABLES: [&str; 2] = [
    "crates/plane/control/src/setting.rs",
    "crates/bin/fairlead/src/settings.rs",
];

pub(super) fn check(files: &[SourceFile]) -> Vec<Fault> {
    let page = files
        .iter()
        .find(|f| f.path == PAGE)
        .map_or("", |f| f.text.as_str());
    let mut faults = Vec::new();
    for path in TABLES {
        let Some(table) = files.iter().find(|f| f.path == path) else {
            faults.push(Fault {
                place: path.into(),
                what: "the table of settings is not there".into(),
            });
            continue;
        };
        let settings = settings(table);
        if settings.is_empty() {
            faults.push(Fault::of(table, "holds no setting that this check can read"));
        }
        for setting in settings {
            if setting.meaning.is_empty() {
                faults.push(Fault::at(
                    table,
                    setting.line,
                    format!("`{}` has no meaning", setting.key),
                ));
            } else if !documented(page, &setting) {
                let what = format!(
                    "`{}` is not in {PAGE} (`cargo xtask docs` writes it) with the meaning: {}",
                    setting.key, setting.meaning
                );
                faults.push(Fault::at(table, setting.line, what));
            }
        }
    }
    faults
}

/// One line of the page names the key and tells the table's meaning.
fn documented(page: &str, setting: &Setting) -> bool {
    let key = format!("`{}`", setting.key);
    page.lines()
        .any(|line| line.contains(&key) && line.contains(&setting.meaning))
}

#[derive(Debug, PartialEq, Eq)]
struct Setting {
    key: String,
    meaning: String,
    line: usize,
}

/// Reads a table: `key: "…" … meaning: "…"`, or `text("key", …, "meaning")` and `switch(…)` alike.
fn settings(table: &SourceFile) -> Vec<Setting> {
    let product = table.halves().0.join("\n");
    let mut found = Vec::new();
    for (at, entry) in entries(&product) {
        let line = product.get(..at).unwrap_or_default().lines().count() + 1;
        let strings = strings(entry);
        let named = |name: &str| entry.split_once(name).and_then(|(_, rest)| strings_first(rest));
        let (key, meaning) = match entry.starts_with("text(") || entry.starts_with("switch(") {
            true => (
                strings.first().cloned(),
                strings.last().cloned().filter(|_| strings.len() > 1),
            ),
            false => (named("key:"), named("meaning:")),
        };
        if let Some(key) = key {
            found.push(Setting {
                key,
                meaning: meaning.unwrap_or_default(),
                line,
            });
        }
    }
    found
}

/// The entries of a table, each from its opening to the bracket that closes it.
fn entries(product: &str) -> Vec<(usize, &str)> {
    let openings = ["text(", "switch(", "Definition {", "Setting {"];
    let mut found = Vec::new();
    for opening in openings {
        for (at, _) in product.match_indices(opening) {
            // A definition or a type is no entry.
            let before = product.get(..at).unwrap_or_default();
            if ["fn ", "struct ", "impl ", "-> "]
                .iter()
                .any(|word| before.ends_with(word))
            {
                continue;
            }
            let rest = product.get(at..).unwrap_or_default();
            if let Some(entry) = balanced(rest).filter(|e| e.contains('"')) {
                found.push((at, entry));
            }
        }
    }
    found.sort_unstable();
    found
}

/// The text up to the bracket that closes its first one; brackets in strings do not count.
fn balanced(text: &str) -> Option<&str> {
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '(' | '{' | '[' if !quoted => depth += 1,
            ')' | '}' | ']' if !quoted => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return text.get(..=at);
                }
            }
            _ => {}
        }
    }
    None
}

fn strings_first(text: &str) -> Option<String> {
    strings(text).into_iter().next()
}

/// The string literals of a text, continued lines joined.
fn strings(text: &str) -> Vec<String> {
    let parts = text.split('"').skip(1).step_by(2);
    parts
        .map(|s| s.split("\\\n").map(str::trim_start).collect::<Vec<_>>().concat())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile {
            path: path.into(),
            text: text.into(),
        }
    }

    #[test]
    fn both_kinds_of_tables_are_read() {
        let text = "const A: Setting = text(\"dir\", None, true, \"Folder (of all).\");\n\
                    const fn text(key: &'static str) -> Setting { Setting { key } }\n\
                    &[Definition { key: \"policy.lease\", kind: K { a: 1 }, meaning: \"how long\", source: \"R\" }]";
        let read = settings(&file("x.rs", text));
        assert_eq!(
            read.iter().map(|s| s.key.as_str()).collect::<Vec<_>>(),
            ["dir", "policy.lease"]
        );
        assert_eq!(
            read.iter().map(|s| s.meaning.as_str()).collect::<Vec<_>>(),
            ["Folder (of all).", "how long"]
        );
    }

    #[test]
    fn a_setting_that_the_page_lacks_is_named() {
        let table = |path| {
            file(
                path,
                "const A: Setting = text(\"dir\", None, true, \"Folder.\");\n",
            )
        };
        let mut files = vec![
            table(TABLES[0]),
            table(TABLES[1]),
            file(PAGE, "| `dir` | Folder. |\n"),
        ];
        assert_eq!(check(&files), []);
        files[2] = file(PAGE, "| `dir` | Something else. |\n");
        assert_eq!(check(&files).len(), 2);
        assert!(
            check(&files)[0]
                .what
                .contains("`dir` is not in docs/reference/settings.md")
        );
    }
}
