//! Steps with progress: what runs, how long it took, and all that failed at the end.

use anyhow::{Context, Result, bail};
use std::io::{BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// One step of a run.
pub(crate) struct Step {
    /// The name that `--only` and `--skip` take.
    pub(crate) name: &'static str,
    /// What it does, for people.
    pub(crate) what: &'static str,
    /// Whether a failure makes the steps behind it pointless.
    pub(crate) essential: bool,
    /// Does it.
    pub(crate) run: fn() -> Result<Tests>,
}

/// How many tests a step ran; none for a step that runs no tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tests {
    /// Those that passed.
    pub(crate) passed: u64,
    /// Those that failed.
    pub(crate) failed: u64,
    /// Those of the passed that did so at another try only.
    pub(crate) flaky: u64,
    /// Those that were not run.
    pub(crate) skipped: u64,
}

impl std::ops::AddAssign for Tests {
    fn add_assign(&mut self, more: Self) {
        self.passed += more.passed;
        self.failed += more.failed;
        self.flaky += more.flaky;
        self.skipped += more.skipped;
    }
}

/// A test runner that did not end well, with what it had counted.
#[derive(Debug)]
struct Unwell {
    what: String,
    tests: Tests,
}

impl std::fmt::Display for Unwell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Tests { passed, failed, .. } = self.tests;
        write!(f, "{} ({passed} passed, {failed} failed)", self.what)
    }
}

impl std::error::Error for Unwell {}

/// Runs all steps and reports; the last line counts the tests of all of them.
pub(crate) fn run_all(steps: &[&Step]) -> Result<()> {
    let start = Instant::now();
    let mut tests = Tests::default();
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    for (place, step) in steps.iter().enumerate() {
        say(&format!(
            "[{:>2}/{}] {}: {}",
            place + 1,
            steps.len(),
            step.name,
            step.what
        ));
        let began = Instant::now();
        let result = (step.run)();
        let took = began.elapsed();
        let word = match &result {
            Ok(count) => {
                tests += *count;
                "ok"
            }
            Err(error) => {
                say(&format!("{}: {error:#}", step.name));
                // A step without tests counts as one.
                let one = Tests {
                    failed: 1,
                    ..Tests::default()
                };
                let counted = error.downcast_ref::<Unwell>().map(|unwell| unwell.tests);
                tests += counted.filter(|tests| tests.failed > 0).unwrap_or(one);
                failed.push(step.name);
                "FAILED"
            }
        };
        say(&format!(
            "[{:>2}/{}] {} {word} in {}",
            place + 1,
            steps.len(),
            step.name,
            seconds(took)
        ));
        rows.push((step.name, word, took));
        if result.is_err() && step.essential {
            say("the steps behind it need this one: stopping here");
            break;
        }
    }
    println!();
    for (name, word, took) in rows {
        println!("{name:<10} {word:<6} {:>9}", seconds(took));
    }
    println!("{:<10} {:<6} {:>9}", "all", "", seconds(start.elapsed()));
    println!(
        "\n{} passed ({} flaky), {} failed, {} skipped",
        tests.passed, tests.flaky, tests.failed, tests.skipped
    );
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn say(line: &str) {
    println!("{line}");
    let _ = std::io::stdout().flush();
}

fn seconds(took: Duration) -> String {
    format!("{:.1} s", took.as_secs_f64())
}

/// Runs a program with its output shown.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<()> {
    run_command(Command::new(program).args(arguments))
}

/// Runs a prepared program with its output shown.
pub(crate) fn run_command(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot run {command:?}"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}

/// Whether a program answers `--version` (or whatever `arguments` ask).
pub(crate) fn answers(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs a test runner with its output shown, and counts the tests by its closing lines.
pub(crate) fn run_tests(command: &mut Command) -> Result<Tests> {
    // Both streams by one pipe would lose their order: runners close on the stream they report on.
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {command:?}"))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let counts = std::thread::scope(|scope| {
        let err = scope.spawn(|| err.map_or_else(Tests::default, |e| show(BufReader::new(e))));
        let out = out.map_or_else(Tests::default, |o| show(BufReader::new(o)));
        let mut counts = err.join().unwrap_or_default();
        counts += out;
        counts
    });
    let status = child.wait()?;
    if !status.success() {
        let what = format!("{command:?}: {status}");
        return Err(Unwell { what, tests: counts }.into());
    }
    if counts.passed == 0 {
        bail!("{command:?} ran no test");
    }
    Ok(counts)
}

fn show(lines: impl std::io::BufRead) -> Tests {
    let mut tests = Tests::default();
    for line in lines.lines().map_while(Result::ok) {
        eprintln!("{line}");
        match summary(&line) {
            // nextest shows what a failed test printed, the closing line of its own runner too: its own counts.
            Some(count) if line.trim_start().starts_with("Summary [") => tests = count,
            Some(count) => tests += count,
            None => {}
        }
    }
    tests
}

/// Reads the closing line of nextest (`Summary [ 1 s] 3 tests run: 2 passed (1 flaky), 1 failed, 0
/// skipped`) or of libtest (`test result: ok. 3 passed; 0 failed; 1 ignored; …`).
fn summary(line: &str) -> Option<Tests> {
    let line = line.trim();
    let rest = match line.strip_prefix("test result:") {
        Some(rest) => rest.split_once(". ")?.1,
        None => line.strip_prefix("Summary [")?.split_once("run: ")?.1,
    };
    let mut tests = Tests::default();
    let words: Vec<&str> = rest
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .collect();
    for pair in words.windows(2) {
        let [count, word] = *pair else { continue };
        let Ok(count) = count.parse() else { continue };
        match word {
            "passed" => tests.passed = count,
            "failed" => tests.failed = count,
            "flaky" => tests.flaky = count,
            "skipped" | "ignored" => tests.skipped = count,
            _ => {}
        }
    }
    Some(tests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_of_both_runners_are_counted() {
        let nextest =
            "     Summary [  13.3s] 29 tests run: 27 passed (3 flaky, 1 leaky), 2 failed, 4 skipped";
        assert_eq!(
            summary(nextest),
            Some(Tests {
                passed: 27,
                failed: 2,
                flaky: 3,
                skipped: 4
            })
        );
        let libtest = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out";
        assert_eq!(
            summary(libtest),
            Some(Tests {
                passed: 3,
                failed: 0,
                flaky: 0,
                skipped: 1
            })
        );
        assert_eq!(summary("        PASS [   0.029s] memory::tests::a_marker"), None);
        let both = format!("{libtest}\n{nextest}\n");
        assert_eq!(show(both.as_bytes()), summary(nextest).unwrap());
        let twice = format!("{libtest}\n{libtest}\n");
        assert_eq!(show(twice.as_bytes()).passed, 6);
    }
}
