//! The project's own files, as git lists them, and what of a Rust file is test code.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A text file of the project.
pub(crate) struct SourceFile {
    /// Its path below the root.
    pub(crate) path: String,
    /// Its content.
    pub(crate) text: String,
}

/// The root of the workspace.
pub(crate) fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(here.parent().context("the workspace has no root")?.to_owned())
}

/// All text files that git tracks, or would.
pub(crate) fn files() -> Result<Vec<SourceFile>> {
    let root = root()?;
    let mut command = Command::new("git");
    command
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(&root);
    let output = command.output().context("cannot run git")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let list = String::from_utf8(output.stdout).context("a path that is no UTF-8")?;
    let mut files = Vec::new();
    for path in list.split('\0').filter(|path| !path.is_empty()) {
        // A file may be listed and gone; one that is no text (a fuzz seed) has no lines to check.
        if let Ok(text) = std::fs::read_to_string(root.join(path)) {
            files.push(SourceFile {
                path: path.to_owned(),
                text,
            });
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files.dedup_by(|a, b| a.path == b.path);
    Ok(files)
}

impl SourceFile {
    /// Whether it is Rust.
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether all of it is test code.
    pub(crate) fn is_test(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        let test_crate = self.path.starts_with("tests/e2e/") || self.path.starts_with("fuzz/");
        test_crate || name == "tests.rs" || self.path.contains("/tests/")
    }

    /// The lines before the test module at the file's end, and those of the module.
    pub(crate) fn halves(&self) -> (Vec<&str>, Vec<&str>) {
        let lines: Vec<&str> = self.text.lines().collect();
        if self.is_test() {
            return (Vec::new(), lines);
        }
        let opens = |at: usize| {
            let next = lines
                .get(at + 1..)
                .unwrap_or_default()
                .iter()
                .find(|l| !l.starts_with("#["));
            next.is_some_and(|l| l.contains("mod ") && l.trim_end().ends_with('{'))
        };
        let seam =
            (0..lines.len()).find(|&at| lines.get(at).is_some_and(|l| *l == "#[cfg(test)]") && opens(at));
        let seam = seam.unwrap_or(lines.len());
        let (product, tests) = lines.split_at(seam);
        (product.to_vec(), tests.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn a_file_is_split_at_its_test_module() {
        let text = "a\n#[cfg(test)]\nmod tests {\n    b\n}\n";
        let split = file("crates/x/src/lib.rs", text);
        assert_eq!(split.halves().0, ["a"]);
        assert_eq!(split.halves().1.len(), 4);
        let elsewhere = file("crates/x/src/lib.rs", "a\n#[cfg(test)]\nmod tests;\n");
        assert_eq!(elsewhere.halves().1.len(), 0);
        assert!(
            file("crates/x/src/y/tests.rs", "").is_test()
                && file("tests/e2e/a.rs", "").is_test()
                && !file("tests/testkit/src/a.rs", "").is_test()
        );
    }
}
