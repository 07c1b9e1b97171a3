//! How reads are shown: tables that fit the terminal, or JSON.

use comfy_table::presets::{NOTHING, UTF8_HORIZONTAL_ONLY};
use comfy_table::{Attribute, Cell, Color, ColumnConstraint, ContentArrangement, Table, Width};
use fairlead_model::WallTime;
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

/// Width where standard output is no terminal and COLUMNS does not say.
const WIDTH_PLAIN: usize = 100;
/// The last column, which holds prose, is not made narrower than this.
const LAST_WIDTH_MIN: u16 = 24;

/// Columns of the terminal.
pub(crate) fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let terminal = rustix::termios::tcgetwinsize(std::io::stdout()).map(|size| usize::from(size.ws_col));
    terminal
        .ok()
        .or(columns)
        .filter(|n| *n > 0)
        .unwrap_or(WIDTH_PLAIN)
}

/// Prints rows under headers. Colours only on a terminal, and not with NO_COLOR (no-color.org).
pub(crate) fn print(headers: &[&str], rows: Vec<Vec<String>>) {
    let terminal = std::io::stdout().is_terminal();
    let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    line(&text(headers, rows, width(), (terminal, colour)));
}

/// The table as text: names, states and addresses whole, the last column wrapped to what is left.
fn text(headers: &[&str], rows: Vec<Vec<String>>, width: usize, (terminal, colour): (bool, bool)) -> String {
    let mut table = Table::new();
    table.load_style(if terminal { UTF8_HORIZONTAL_ONLY } else { NOTHING });
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(u16::try_from(width).unwrap_or(u16::MAX));
    table.set_header(headers.iter().map(|h| {
        let cell = Cell::new(h);
        if colour {
            cell.add_attribute(Attribute::Bold)
        } else {
            cell
        }
    }));
    for row in rows {
        table.add_row(row.into_iter().map(|text| state_cell(text, colour)));
    }
    let last = headers.len().saturating_sub(1);
    for (place, column) in table.column_iter_mut().enumerate() {
        if place < last {
            column.set_constraint(ColumnConstraint::ContentWidth);
        } else {
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(LAST_WIDTH_MIN)));
        }
    }
    let text = table.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n")
}

/// States are coloured by their word; everything else is plain.
fn state_cell(text: String, colour: bool) -> Cell {
    let shade = match text.as_str() {
        "ready" => Some(Color::Green),
        "pending" | "not-ready" => Some(Color::Yellow),
        "offline" => Some(Color::Red),
        // Any other text is no state.
        _ => None,
    };
    match shade.filter(|_| colour) {
        Some(shade) => Cell::new(text).fg(shade),
        None => Cell::new(text),
    }
}

/// Prints a value as JSON.
pub(crate) fn json<T: Serialize>(value: &T) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => line(&text),
        Err(error) => note(Err(error.into())),
    }
}

/// Prints one line. A closed pipe (`| head`) is no error; any other is kept for the exit code.
pub(crate) fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    note(writeln!(out, "{text}").and_then(|()| out.flush()));
}

/// Prints one line to standard error; where that is full or closed, there is nobody to tell.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// The first failure to print, for `main`: what was asked for has not reached its reader.
static FAILED: OnceLock<io::Error> = OnceLock::new();

pub(crate) fn note(result: io::Result<()>) {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let _ = FAILED.set(error);
        }
        Ok(()) | Err(_) => {}
    }
}

/// Why something could not be printed.
pub(crate) fn failure() -> Option<&'static io::Error> {
    FAILED.get()
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
    fn a_table_fits_its_width_and_has_no_trailing_blanks() {
        let long = "the publisher's node has not registered the service on a relay yet ".repeat(3);
        let rows = vec![
            vec!["db".to_owned(), "127.0.0.1:15432".to_owned(), long],
            vec!["web".to_owned(), "[::1]:18080".to_owned(), "-".to_owned()],
        ];
        let text = text(&["NAME", "LISTEN", "WAITING FOR"], rows, 80, (false, false));
        assert!(
            text.lines().all(|l| l.chars().count() <= 80 && l.trim_end() == l),
            "{text}"
        );
        assert!(
            text.contains("127.0.0.1:15432") && text.lines().count() > 3,
            "{text}"
        );
    }
}
