//! Where text stands on a terminal. Nothing is cut: what has no room in its column is wrapped, and columns that
//! have no room beside the others stand below their row. Elsewhere each row is one line. Pure.

use super::{Style, paint, printable, state};
use unicode_width::UnicodeWidthStr;

/// Blanks between columns.
const GAP: usize = 2;
/// A text of several words has at least this many columns; narrower, most lines would hold a word.
const PROSE_MIN: usize = 24;
/// What stands below its row is this far in, and its further lines twice as far.
const BELOW_INDENT: usize = 2;

/// The columns that one column of a table takes.
#[derive(Debug, Clone, Copy)]
struct Width {
    /// Where nothing is wrapped.
    whole: usize,
    /// Less would break a word, or leave prose no room.
    least: usize,
}

impl Width {
    fn of<'a>(header: &str, cells: impl Iterator<Item = &'a String>) -> Self {
        let word = |text: &str| text.split(' ').map(UnicodeWidthStr::width).max().unwrap_or(0);
        let mut width = Self {
            whole: header.width(),
            least: word(header),
        };
        for cell in cells {
            width.whole = width.whole.max(cell.width());
            width.least = width.least.max(word(cell)).max(cell.width().min(PROSE_MIN));
        }
        width
    }
}

/// The table as text.
pub(super) fn grid(headers: &[&str], rows: &[Vec<String>], style: Style) -> String {
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(|cell| printable(cell)).collect())
        .collect();
    let columns: Vec<Width> = headers
        .iter()
        .enumerate()
        .map(|(n, header)| Width::of(header, rows.iter().filter_map(|row| row.get(n))))
        .collect();
    let widths = style.fit.map_or_else(
        || columns.iter().map(|column| column.whole).collect(),
        |fit| fitted(&columns, fit),
    );
    let head: Vec<String> = headers.iter().map(|h| (*h).to_owned()).collect();
    let mut lines = row_lines(&head, &widths, |cell| paint(cell, style.colour.then_some("1")));
    for row in &rows {
        lines.extend(row_lines(row, &widths, |cell| state(cell, style.colour)));
        if let Some(fit) = style.fit {
            let left = headers.iter().zip(row).skip(widths.len());
            lines.extend(below(left, fit));
        }
    }
    lines.join("\n")
}

/// The widths of those columns, from the first on, that have room beside each other; of one at least.
fn fitted(columns: &[Width], fit: usize) -> Vec<usize> {
    let mut taken = 0;
    let has_room = |column: &&Width| {
        taken += column.least + if taken == 0 { 0 } else { GAP };
        taken <= fit
    };
    let count = columns.iter().take_while(has_room).count().max(1);
    let beside = columns.get(..count).unwrap_or(columns);
    let mut widths: Vec<usize> = beside.iter().map(|column| column.whole).collect();
    let gaps = GAP * count.saturating_sub(1);
    let mut over = (widths.iter().sum::<usize>() + gaps).saturating_sub(fit);
    while over > 0 {
        let gives = widths
            .iter_mut()
            .zip(beside)
            .filter(|(w, column)| **w > column.least);
        let Some((widest, _)) = gives.max_by_key(|(w, _)| **w) else {
            break;
        };
        *widest -= 1;
        over -= 1;
    }
    widths
}

/// What had no room in a row, under its headers' names.
fn below<'a>(cells: impl Iterator<Item = (&'a &'a str, &'a String)>, fit: usize) -> Vec<String> {
    let said: Vec<String> = cells
        .filter(|(_, cell)| !matches!(cell.as_str(), "-" | ""))
        .map(|(header, cell)| format!("{}: {cell}", header.to_lowercase()))
        .collect();
    if said.is_empty() {
        return Vec::new();
    }
    let parts = wrap(&said.join("; "), fit.saturating_sub(2 * BELOW_INDENT));
    let indented = parts.iter().enumerate().map(|(n, part)| {
        let indent = if n == 0 { BELOW_INDENT } else { 2 * BELOW_INDENT };
        " ".repeat(indent) + part
    });
    indented.collect()
}

/// A row over as many lines as its longest cell needs.
fn row_lines(row: &[String], widths: &[usize], paint: impl Fn(&str) -> String) -> Vec<String> {
    let cells: Vec<Vec<String>> = row
        .iter()
        .zip(widths)
        .map(|(cell, width)| wrap(cell, *width))
        .collect();
    let height = cells.iter().map(Vec::len).max().unwrap_or(0);
    let line = |n: usize| {
        let (mut line, mut pending) = (String::new(), 0);
        for (parts, width) in cells.iter().zip(widths) {
            let part = parts.get(n).map_or("", String::as_str);
            if !part.is_empty() {
                line.push_str(&" ".repeat(pending));
                line.push_str(&paint(part));
                pending = 0;
            }
            pending += width.saturating_sub(part.width()) + GAP;
        }
        line
    };
    (0..height).map(line).collect()
}

/// Subjects, and a text about each beside it.
pub(super) fn prose(headers: Option<[&str; 2]>, rows: &[(String, String)], style: Style) -> String {
    let subjects = rows.iter().map(|(subject, _)| subject.width());
    let widest = subjects.chain(headers.map(|h| h[0].width())).max().unwrap_or(0);
    // A name as long as the terminal is wide leaves the text no room beside it.
    let subject_width = style.fit.map_or(widest, |fit| widest.min(fit / 2));
    let indent = subject_width + GAP;
    let mut lines = Vec::new();
    if let Some(headers) = headers {
        let widths = [subject_width, usize::MAX];
        let bold = |cell: &str| paint(cell, style.colour.then_some("1"));
        lines.extend(row_lines(&headers.map(str::to_owned), &widths, bold));
    }
    for (subject, text) in rows {
        let subject = printable(subject);
        let blanks = " ".repeat(indent.saturating_sub(subject.width()).max(GAP));
        let columns = subject.width() + blanks.len();
        let head = format!("{subject}{blanks}");
        if columns > indent {
            lines.push(subject);
            lines.push(hanging(&" ".repeat(indent), indent, text, style));
        } else {
            lines.push(hanging(&head, columns, text, style));
        }
    }
    lines.join("\n")
}

/// A text behind `head`, which takes so many `columns`; its further lines stand below its first.
pub(super) fn hanging(head: &str, columns: usize, text: &str, style: Style) -> String {
    let room = style.fit.map_or(usize::MAX, |fit| {
        fit.saturating_sub(columns).max(PROSE_MIN.min(fit))
    });
    let parts = wrap(&printable(text), room);
    let apart = format!("\n{}", " ".repeat(columns));
    format!("{head}{}", parts.join(&apart)).trim_end().to_owned()
}

/// Lines of at most `width` columns, broken between words; a word that is longer has a line of its own.
fn wrap(text: &str, width: usize) -> Vec<String> {
    if text.width() <= width {
        return vec![text.to_owned()];
    }
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

#[cfg(test)]
mod tests;
