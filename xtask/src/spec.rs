//! Requirements without a test, by area: `docs/spec` against what test code cites.

use crate::source::{self, SourceFile};
use anyhow::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};

/// Arguments of `cargo xtask spec`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct SpecArguments {
    /// Fail if one of these ids has no test (repeatable).
    #[arg(long = "require", value_name = "ID")]
    required: Vec<String>,
}

/// Prints, area by area, how many requirements a test cites and which none does.
pub(crate) fn run(arguments: &SpecArguments) -> Result<()> {
    let files = source::files()?;
    let wanted = requirements(&files);
    let cited = citations(&files);
    if wanted.is_empty() {
        bail!("docs/spec holds no requirement");
    }
    for (area, ids) in &wanted {
        let missing: Vec<&str> = ids
            .iter()
            .filter(|id| !cited.contains(*id))
            .map(String::as_str)
            .collect();
        println!(
            "{area:<6} {:>3} of {:>3} cited by a test",
            ids.len() - missing.len(),
            ids.len()
        );
        for line in missing.chunks(8) {
            println!("         no test: {}", line.join(" "));
        }
    }
    let known: BTreeSet<&String> = wanted.values().flatten().collect();
    let unknown: Vec<&str> = cited
        .iter()
        .filter(|id| !known.contains(id))
        .map(String::as_str)
        .collect();
    if !unknown.is_empty() {
        bail!("tests cite ids that no requirement has: {}", unknown.join(" "));
    }
    let missing: Vec<&str> = arguments
        .required
        .iter()
        .filter(|id| !cited.contains(*id))
        .map(String::as_str)
        .collect();
    if !missing.is_empty() {
        bail!("no test cites {}", missing.join(" "));
    }
    Ok(())
}

/// The ids that `docs/spec` defines: those in bold.
fn requirements(files: &[SourceFile]) -> BTreeMap<String, BTreeSet<String>> {
    let mut areas: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in files.iter().filter(|f| f.path.starts_with("docs/spec/")) {
        for bold in file.text.split("**").skip(1).step_by(2) {
            for id in ids(bold)
                .into_iter()
                .take(1)
                .filter(|id| bold.starts_with(id.as_str()))
            {
                areas.entry(area(&id).to_owned()).or_default().insert(id);
            }
        }
    }
    areas
}

/// The ids that test code names.
fn citations(files: &[SourceFile]) -> BTreeSet<String> {
    let rust = files
        .iter()
        .filter(|f| f.is_rust() && !f.path.starts_with("xtask/"));
    rust.flat_map(|f| f.halves().1.into_iter().flat_map(ids))
        .collect()
}

/// `R-STR-02` and `F-02` in a text.
fn ids(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for word in text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')) {
        let parts: Vec<&str> = word.split('-').collect();
        let number = |n: &str| n.len() == 2 && n.bytes().all(|b| b.is_ascii_digit());
        let letters = |a: &str| (2..=4).contains(&a.len()) && a.bytes().all(|b| b.is_ascii_uppercase());
        match parts.as_slice() {
            ["F", n] if number(n) => found.push(word.to_owned()),
            ["R", a, n] if letters(a) && number(n) => found.push(word.to_owned()),
            _ => {}
        }
    }
    found
}

fn area(id: &str) -> &str {
    id.rsplit_once('-').map_or(id, |(area, _)| area)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_in_specs_and_in_test_code_only() {
        let spec = "- **R-ABC-01** text, see R-ABC-09.\n- **F-02 endings** more **bold R-XX-01**\n";
        let code = "/// R-ABC-01 in a product comment\n#[cfg(test)]\nmod tests {\n// F-02, R-ABC-1\n}\n";
        let files = [
            SourceFile {
                path: "docs/spec/a.md".into(),
                text: spec.into(),
            },
            SourceFile {
                path: "crates/a/src/lib.rs".into(),
                text: code.into(),
            },
        ];
        let wanted = requirements(&files);
        assert_eq!(wanted["R-ABC"], BTreeSet::from(["R-ABC-01".to_owned()]));
        assert_eq!(wanted["F"], BTreeSet::from(["F-02".to_owned()]));
        assert!(!wanted.contains_key("R-XX"));
        assert_eq!(citations(&files), BTreeSet::from(["F-02".to_owned()]));
    }
}
