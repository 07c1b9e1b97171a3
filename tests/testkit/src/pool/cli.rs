//! The command line as a test runs it.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::process::{Command, Output, Stdio};

/// What a command said and how it ended.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Answer {
    pub(super) fn of(output: &Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The answer itself if the command ended with 0.
    ///
    /// # Errors
    /// When it did not, with what it said.
    pub fn ok(self) -> Result<Self> {
        if self.code == Some(0) {
            return Ok(self);
        }
        bail!("exit {:?}\n{}\n{}", self.code, self.stdout, self.stderr)
    }

    /// Standard output as JSON, of a command that ended with 0.
    ///
    /// # Errors
    /// When it failed, or printed no JSON.
    pub fn json(self) -> Result<Value> {
        let answer = self.ok()?;
        serde_json::from_str(&answer.stdout).with_context(|| format!("no JSON: {}", answer.stdout))
    }
}

/// Runs the binary under test with `arguments`, `input` on its standard input, outside of any pool.
///
/// # Errors
/// When it cannot be started.
pub fn run(arguments: &[&str], input: &str, environment: &[(&str, &str)]) -> Result<Answer> {
    let mut command = Command::new(crate::binary::fairlead()?);
    command.args(arguments).envs(environment.iter().copied());
    run_command(command, input)
}

/// Runs an install command in a shell as it is printed, with the token on its standard input.
///
/// # Errors
/// When it cannot be started.
pub fn run_printed(command: &str, token: &str) -> Result<Answer> {
    let programs = crate::binary::fairlead()?
        .parent()
        .context("no folder")?
        .to_owned();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    shell
        .args(["-c", command])
        .env("PATH", format!("{}:{path}", programs.display()));
    run_command(shell, token)
}

/// Runs a command with `input` on its standard input.
///
/// # Errors
/// When it cannot be started.
pub fn run_command(mut command: Command, input: &str) -> Result<Answer> {
    use std::io::Write as _;
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("{command:?}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command that does not read its input closes the pipe: its own answer tells more.
        let _ = stdin.write_all(input.as_bytes());
    }
    Ok(Answer::of(&child.wait_with_output()?))
}
