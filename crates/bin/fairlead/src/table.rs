//! How reads are shown: tables that fit the terminal, or JSON.

use fairlead_model::WallTime;
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, OnceLock, PoisonError};
use unicode_width::UnicodeWidthStr;

mod layout;

/// Columns of a terminal that does not say how many it has.
const WIDTH_UNKNOWN: usize = 100;

/// Columns of the terminal.
pub(crate) fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let terminal = rustix::termios::tcgetwinsize(std::io::stdout()).map(|size| usize::from(size.ws_col));
    terminal
        .ok()
        .filter(|n| *n > 0)
        .or(columns)
        .filter(|n| *n > 0)
        .unwrap_or(WIDTH_UNKNOWN)
}

/// How standard output takes text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Style {
    /// The width to fit; `None` where it is no terminal: then nothing is cut.
    fit: Option<usize>,
    colour: bool,
}

impl Style {
    /// By the terminal, NO_COLOR (no-color.org), CLICOLOR and CLICOLOR_FORCE (bixense.com/clicolors).
    pub(crate) fn of_stdout() -> Self {
        let terminal = std::io::stdout().is_terminal();
        Self {
            fit: terminal.then(width),
            colour: colour(terminal, |name| {
                std::env::var(name).ok().filter(|value| !value.is_empty())
            }),
        }
    }
}

fn colour(terminal: bool, variable: impl Fn(&str) -> Option<String>) -> bool {
    let is = |name: &str, value: &str| variable(name).is_some_and(|v| v == value);
    if variable("NO_COLOR").is_some() {
        return false;
    }
    if variable("CLICOLOR_FORCE").is_some_and(|v| v != "0") {
        return true;
    }
    terminal && !is("CLICOLOR", "0") && !is("TERM", "dumb")
}

/// So many of a thing: `1 check`, `2 checks`. The plural is made with an s.
pub(crate) fn counted<N: std::fmt::Display + PartialEq + From<u8>>(count: N, what: &str) -> String {
    let s = if count == N::from(1) { "" } else { "s" };
    format!("{count} {what}{s}")
}

/// Prints rows under headers; without any, `none`: headers alone say nothing.
pub(crate) fn print(headers: &[&str], rows: &[Vec<String>], none: &str) {
    match rows {
        [] => line(none),
        rows => line(&layout::grid(headers, rows, Style::of_stdout())),
    }
}

/// Prints a subject and a text about it in each row. Nothing of a text is cut: what to do may stand at its end.
pub(crate) fn prose(headers: [&str; 2], rows: &[(String, String)]) {
    line(&layout::prose(Some(headers), rows, Style::of_stdout()));
}

/// Prints a name and its value in each row.
pub(crate) fn facts(rows: &[(String, String)]) {
    line(&layout::prose(None, rows, Style::of_stdout()));
}

/// Prints a text behind `head`; the further lines that the terminal needs for it stand below its first.
/// `columns` are those that `head` takes.
pub(crate) fn hanging(head: &str, columns: usize, text: &str) {
    line(&layout::hanging(head, columns, text, Style::of_stdout()));
}

/// Prints a text over as many lines as the terminal needs for it.
pub(crate) fn paragraph(text: &str) {
    hanging("", 0, text);
}

/// Control characters would move the cursor or recolour the terminal: what members report is shown,
/// not obeyed.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

fn paint(text: &str, code: Option<&str>) -> String {
    match code {
        Some(code) if !text.is_empty() => format!("\x1b[{code}m{text}\x1b[0m"),
        Some(_) | None => text.to_owned(),
    }
}

/// States are coloured by their word; everything else is plain.
pub(crate) fn state(text: &str, colour: bool) -> String {
    let code = match text {
        "ready" | "ok" => Some("32"),
        "pending" | "not-ready" | "warning" | "not measured" => Some("33"),
        "offline" | "failed" => Some("31"),
        // Any other text is no state.
        _ => None,
    };
    paint(text, code.filter(|_| colour))
}

/// A state's word for standard output, padded to `width`.
pub(crate) fn state_padded(text: &str, width: usize) -> String {
    let padding = " ".repeat(width.saturating_sub(text.width()));
    state(text, Style::of_stdout().colour) + &padding
}

/// Prints a value as JSON: indented, or on one line where reads are repeated.
pub(crate) fn json<T: Serialize>(value: &T) {
    let compact = lock().is_some();
    let text = if compact {
        serde_json::to_string(value)
    } else {
        serde_json::to_string_pretty(value)
    };
    match text {
        Ok(text) => line(&text),
        Err(error) => note(Err(error.into())),
    }
}

/// What a read prints while it is repeated.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) text: String,
    compared: Option<String>,
}

impl Held {
    /// What tells this read from the one before: its text, unless it said otherwise.
    pub(crate) fn compared(&self) -> &str {
        self.compared.as_deref().unwrap_or(&self.text)
    }
}

static HELD: Mutex<Option<Held>> = Mutex::new(None);

fn lock() -> std::sync::MutexGuard<'static, Option<Held>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where a read is repeated, this tells it from the one before, not its text: that has something which
/// differs each time.
pub(crate) fn compare_by(what: String) {
    if let Some(held) = &mut *lock() {
        held.compared = Some(what);
    }
}

/// Holds back what is printed, until [`release`].
pub(crate) fn hold() {
    *lock() = Some(Held::default());
}

/// What was held back.
pub(crate) fn release() -> Held {
    lock().take().unwrap_or_default()
}

/// Prints one line. A closed pipe (`| head`) is no error; any other is kept for the exit code.
pub(crate) fn line(text: &str) {
    if let Some(held) = &mut *lock() {
        held.text.push_str(text);
        held.text.push('\n');
        return;
    }
    raw(&format!("{text}\n"));
}

/// Prints text as it is.
pub(crate) fn raw(text: &str) {
    let mut out = std::io::stdout().lock();
    note(write!(out, "{text}").and_then(|()| out.flush()));
}

/// Prints one line to standard error; where that is full or closed, there is nobody to tell.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// The first failure to print, for `main`: what was asked for has not reached its reader.
static FAILED: OnceLock<io::Error> = OnceLock::new();
/// Whether the reader has gone.
static CLOSED: OnceLock<()> = OnceLock::new();

pub(crate) fn note(result: io::Result<()>) {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let _ = FAILED.set(error);
        }
        Err(_) => {
            let _ = CLOSED.set(());
        }
        Ok(()) => {}
    }
}

/// Why something could not be printed.
pub(crate) fn failure() -> Option<&'static io::Error> {
    FAILED.get()
}

/// Whether nobody reads standard output any more.
pub(crate) fn is_closed() -> bool {
    CLOSED.get().is_some() || FAILED.get().is_some()
}

/// A point in time as RFC 3339, in UTC, to the second.
pub(crate) fn time(at: WallTime) -> String {
    let at = at.0.div_euclid(1000);
    jiff::Timestamp::from_second(at).map_or_else(|_| format!("{at} s"), |t| t.to_string())
}

/// A point in time as RFC 3339, in UTC, to the millisecond.
pub(crate) fn time_exact(at: WallTime) -> String {
    jiff::Timestamp::from_millisecond(at.0).map_or_else(|_| format!("{} ms", at.0), |t| t.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_and_can_be_refused_or_forced() {
        let with = |terminal: bool, set: &[(&str, &str)]| {
            colour(terminal, |name| {
                let found = set.iter().find(|(n, _)| *n == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        assert!(with(true, &[]) && !with(false, &[]));
        assert!(!with(true, &[("NO_COLOR", "1")]) && !with(true, &[("CLICOLOR", "0")]));
        assert!(!with(true, &[("TERM", "dumb")]) && with(true, &[("CLICOLOR", "1")]));
        assert!(with(false, &[("CLICOLOR_FORCE", "1")]) && !with(false, &[("CLICOLOR_FORCE", "0")]));
        assert!(!with(true, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
        assert_eq!(state("ready", true), "\x1b[32mready\x1b[0m");
        assert_eq!(state("ready", false), "ready");
    }

    /// A time that runs makes no change of its own.
    #[test]
    fn a_read_is_told_from_the_one_before_by_its_text_or_what_it_says() {
        let held = |text: &str, compared: Option<&str>| Held {
            text: text.to_owned(),
            compared: compared.map(str::to_owned),
        };
        assert_eq!(held("up 1s", None).compared(), "up 1s");
        let later = held("up 2s", Some("ready"));
        assert_eq!(held("up 1s", Some("ready")).compared(), later.compared());
    }

    #[test]
    fn one_thing_is_not_spoken_of_as_several() {
        let told: Vec<String> = [0u64, 1, 2].map(|n| counted(n, "hop session")).into();
        assert_eq!(told, ["0 hop sessions", "1 hop session", "2 hop sessions"]);
        assert_eq!(counted(1usize, "check"), "1 check");
    }
}
