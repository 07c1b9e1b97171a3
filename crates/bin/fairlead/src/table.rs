//! How reads are shown: tables that fit the terminal, or JSON.

use fairlead_model::WallTime;
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, OnceLock, PoisonError};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Columns of a terminal that does not say how many it has.
const WIDTH_UNKNOWN: usize = 100;
/// Blanks between columns.
const GAP: usize = 2;
/// A column is not cut below this: a name's beginning, or a word of a reason.
const COLUMN_MIN: usize = 8;

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

/// Prints rows under headers.
pub(crate) fn print(headers: &[&str], rows: Vec<Vec<String>>) {
    line(&text(headers, &rows, Style::of_stdout()));
}

/// Prints a subject and a text about it in each row. Nothing of a text is cut: what to do may stand at its end.
pub(crate) fn prose(headers: [&str; 2], rows: &[(String, String)]) {
    line(&prose_text(headers, rows, Style::of_stdout()));
}

fn prose_text(headers: [&str; 2], rows: &[(String, String)], style: Style) -> String {
    let subjects = rows.iter().map(|(subject, _)| subject.width());
    let widest = subjects.chain([headers[0].width()]).max().unwrap_or(0);
    // A name as long as the terminal is wide leaves the text no room beside it.
    let subject_width = style.fit.map_or(widest, |fit| widest.min(fit / 2));
    let indent = subject_width + GAP;
    let room = style
        .fit
        .map_or(usize::MAX, |fit| fit.saturating_sub(indent).max(COLUMN_MIN));
    let widths = [subject_width, room];
    let head = headers.map(str::to_owned);
    let mut lines = vec![row_text(&head, &widths, |cell| {
        paint(cell, style.colour.then_some("1"))
    })];
    for (subject, text) in rows {
        let mut subject = printable(subject);
        for part in wrap(&printable(text), room) {
            lines.push(row_text(&[subject, part], &widths, str::to_owned));
            subject = String::new();
        }
    }
    lines.join("\n")
}

/// Prints a text over as many lines as the terminal needs for it.
pub(crate) fn paragraph(text: &str) {
    let room = Style::of_stdout().fit.unwrap_or(usize::MAX);
    for part in wrap(&printable(text), room) {
        line(&part);
    }
}

/// Lines of at most `width` columns, broken between words; a word that is longer has a line of its own.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(last) if last.is_empty() => last.push_str(word),
            Some(last) if last.width().saturating_add(1).saturating_add(word.width()) <= width => {
                last.push(' ');
                last.push_str(word);
            }
            Some(_) | None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The table as text: a line for each row. Where it must fit, the widest columns are cut first.
fn text(headers: &[&str], rows: &[Vec<String>], style: Style) -> String {
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(|cell| printable(cell)).collect())
        .collect();
    let mut widths: Vec<usize> = headers.iter().map(|header| header.width()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.width());
        }
    }
    if let Some(fit) = style.fit {
        shrink(&mut widths, fit);
    }
    let head: Vec<String> = headers.iter().map(|h| (*h).to_owned()).collect();
    let mut lines = vec![row_text(&head, &widths, |cell| {
        paint(cell, style.colour.then_some("1"))
    })];
    for row in &rows {
        lines.push(row_text(row, &widths, |cell| state(cell, style.colour)));
    }
    lines.join("\n")
}

/// Takes from the widest column until all fit, or none can give more.
fn shrink(widths: &mut [usize], fit: usize) {
    let gaps = GAP * widths.len().saturating_sub(1);
    loop {
        let sum = widths.iter().sum::<usize>() + gaps;
        let Some(over) = sum.checked_sub(fit).filter(|over| *over > 0) else {
            return;
        };
        let mut sorted = widths.to_vec();
        sorted.sort_unstable();
        let widest = sorted.last().copied().unwrap_or(0);
        let next = sorted.iter().rev().find(|w| **w < widest).copied().unwrap_or(0);
        if widest <= COLUMN_MIN {
            return;
        }
        let takes = over.min(widest - next.max(COLUMN_MIN).min(widest - 1));
        if let Some(width) = widths.iter_mut().rev().find(|w| **w == widest) {
            *width -= takes.max(1);
        }
    }
}

fn row_text(row: &[String], widths: &[usize], paint: impl Fn(&str) -> String) -> String {
    let mut line = String::new();
    let mut pending = 0;
    for (cell, width) in row.iter().zip(widths) {
        let cell = cut(cell, *width);
        line.push_str(&" ".repeat(pending));
        line.push_str(&paint(&cell));
        pending = width.saturating_sub(cell.width()) + GAP;
    }
    line.trim_end().to_owned()
}

/// A text within `width` columns; one that is cut ends with `…`.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut columns = 1;
    for c in text.chars() {
        columns += c.width().unwrap_or(0);
        if columns > width {
            break;
        }
        kept.push(c);
    }
    kept.push('…');
    kept
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

/// What is printed while a read is repeated.
static HELD: Mutex<Option<String>> = Mutex::new(None);

fn lock() -> std::sync::MutexGuard<'static, Option<String>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a read is repeated for somebody who gets each change of it, not a screen.
pub(crate) fn is_followed() -> bool {
    lock().is_some() && !std::io::stdout().is_terminal()
}

/// Holds back what is printed, until [`release`].
pub(crate) fn hold() {
    *lock() = Some(String::new());
}

/// What was held back.
pub(crate) fn release() -> String {
    lock().take().unwrap_or_default()
}

/// Prints one line. A closed pipe (`| head`) is no error; any other is kept for the exit code.
pub(crate) fn line(text: &str) {
    if let Some(held) = &mut *lock() {
        held.push_str(text);
        held.push('\n');
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

    fn rows() -> Vec<Vec<String>> {
        let long = "the publisher's node has not registered the service on a relay yet ".repeat(3);
        [["db", "127.0.0.1:15432", &long], ["日本", "[::1]:18080", "-"]]
            .iter()
            .map(|row| row.iter().map(|cell| (*cell).to_owned()).collect())
            .collect()
    }

    const HEADERS: &[&str] = &["NAME", "LISTEN", "WAITING FOR"];

    #[test]
    fn prose_is_wrapped_and_nothing_of_it_is_lost() {
        let why = "its supervisor was stopped. Start it: systemctl start fairlead-supervisor, or see its log";
        let rows = [("relay paris-1".to_owned(), why.to_owned())];
        for fit in [Some(40), Some(80), None] {
            let text = prose_text(["NEEDS ATTENTION", "WHY"], &rows, Style { fit, colour: false });
            let fits = |l: &str| fit.is_none_or(|fit| l.width() <= fit) && l.trim_end() == l;
            assert!(text.lines().all(fits), "{fit:?}: {text}");
            let words: Vec<&str> = text.split_whitespace().skip(5).collect();
            assert_eq!(words.join(" "), why, "{fit:?}: {text}");
            assert_eq!(text.lines().count() == 2, fit.is_none(), "{text}");
        }
        assert_eq!(wrap("aaaa bb c", 4), ["aaaa", "bb c"]);
        assert_eq!(wrap("", 4), [""]);
    }

    #[test]
    fn a_table_fits_its_terminal_and_is_whole_elsewhere() {
        for fit in [40, 80, 300] {
            let style = Style {
                fit: Some(fit),
                colour: false,
            };
            let text = text(HEADERS, &rows(), style);
            assert!(
                text.lines().all(|l| l.width() <= fit && l.trim_end() == l),
                "{fit}: {text}"
            );
            assert_eq!(text.lines().count(), 3, "{text}");
            assert_eq!(text.contains('…'), fit < 300, "{text}");
            assert!(text.contains("127.0.0.1:15432"), "{fit}: {text}");
        }
        let piped = text(
            HEADERS,
            &rows(),
            Style {
                fit: None,
                colour: false,
            },
        );
        assert!(!piped.contains('…') && piped.lines().count() == 3, "{piped}");
        // The wide characters take two columns each: what follows stands below its header.
        let columns: Vec<usize> = piped
            .lines()
            .map(|l| l.split("  ").next().unwrap_or_default().width())
            .collect();
        assert_eq!(columns, [4, 2, 4], "{piped}");
    }

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

    #[test]
    fn one_thing_is_not_spoken_of_as_several() {
        let told: Vec<String> = [0u64, 1, 2].map(|n| counted(n, "hop session")).into();
        assert_eq!(told, ["0 hop sessions", "1 hop session", "2 hop sessions"]);
        assert_eq!(counted(1usize, "check"), "1 check");
    }

    /// What a member reports cannot steer the terminal.
    #[test]
    fn control_characters_are_shown_not_obeyed() {
        let row = vec![vec!["a\x1b[2Jb\r\n".to_owned()]];
        let text = text(
            &["X"],
            &row,
            Style {
                fit: None,
                colour: false,
            },
        );
        assert!(!text.contains('\x1b') && !text.contains('\r'), "{text:?}");
        assert_eq!(text.lines().count(), 2);
    }
}
