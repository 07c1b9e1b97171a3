//! Dependencies that a crate lists and does not use.

use super::Fault;
use crate::arrows::Package;
use crate::source::{self, SourceFile};
use anyhow::{Context, Result};

/// Crates that only generated code names.
const GENERATED: [&str; 3] = ["prost", "prost-types", "tonic-prost"];

pub(super) fn check(files: &[SourceFile], packages: &[Package]) -> Result<Vec<Fault>> {
    let root = source::root()?;
    let mut faults = Vec::new();
    for package in packages {
        let manifest = std::path::Path::new(&package.manifest_path);
        let manifest = manifest
            .strip_prefix(&root)
            .context("a manifest outside the workspace")?;
        let folder = manifest
            .parent()
            .map(|p| p.to_string_lossy().into_owned())
            .unwrap_or_default();
        let own: Vec<&SourceFile> = files
            .iter()
            .filter(|f| f.is_rust() && f.path.starts_with(&format!("{folder}/")))
            .collect();
        for dependency in &package.dependencies {
            let word = dependency.name.replace('-', "_");
            let generated = GENERATED.contains(&dependency.name.as_str());
            if !generated && !own.iter().any(|f| names(&f.text, &word)) {
                let what = format!("lists `{}` and does not use it", dependency.name);
                faults.push(Fault {
                    place: manifest.display().to_string(),
                    what,
                });
            }
        }
    }
    Ok(faults)
}

/// Whether a text holds the word as a word.
fn names(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text.get(..at).and_then(|t| t.chars().next_back());
        let after = text.get(at + word.len()..).and_then(|t| t.chars().next());
        !before.is_some_and(part) && !after.is_some_and(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_not_part_of_another() {
        assert!(names("use serde::Deserialize;", "serde"));
        assert!(!names("use serde_json::Value;", "serde"));
    }
}
