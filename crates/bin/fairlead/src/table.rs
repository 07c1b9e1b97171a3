//! How reads are shown: tables that fit the terminal, or JSON.

use comfy_table::presets::{NOTHING, UTF8_HORIZONTAL_ONLY};
use comfy_table::{Attribute, Cell, Color, ContentArrangement, Table};
use fairlead_model::WallTime;
use serde::Serialize;
use std::io::{IsTerminal, Write};

/// Width where standard output is no terminal: wide enough that nothing is wrapped.
const WIDTH_PLAIN: u16 = 1000;

/// Prints rows under headers. Colours only on a terminal, and not with NO_COLOR (no-color.org).
pub(crate) fn print(headers: &[&str], rows: Vec<Vec<String>>) {
    let terminal = std::io::stdout().is_terminal();
    let mut table = Table::new();
    if terminal {
        table.load_style(UTF8_HORIZONTAL_ONLY);
    } else {
        table.load_style(NOTHING);
        table.set_width(WIDTH_PLAIN);
    }
    table.set_content_arrangement(ContentArrangement::Dynamic);
    let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
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
    line(&table.to_string());
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
        Err(error) => eprintln!("fairlead: the answer cannot be printed: {error}"),
    }
}

/// Prints one line; a closed pipe (`| head`) is no error.
pub(crate) fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
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
