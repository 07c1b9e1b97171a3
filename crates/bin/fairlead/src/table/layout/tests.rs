//! Tables and texts at several widths: nothing is wider than the terminal, and nothing is lost.

use super::*;
use crate::verbs::RELAYS;

fn style(fit: Option<usize>) -> Style {
    Style { fit, colour: false }
}

fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
    let owned = |row: &&[&str]| row.iter().map(|cell| (*cell).to_owned()).collect();
    rows.iter().map(owned).collect()
}

/// Each cell that says something, word by word.
fn words(rows: &[Vec<String>]) -> Vec<&str> {
    let cells = rows.iter().flatten().filter(|cell| *cell != "-");
    cells.flat_map(|cell| cell.split(' ')).collect()
}

const WHY: &str = "its port did not answer relay tokyo-2: no answer to the handshake within 10 s";

/// What `relay ls` shows of two.
fn relays() -> Vec<Vec<String>> {
    rows(&[
        &[
            "paris-1",
            "not-ready",
            "198.51.100.207:9443",
            "paris",
            "no",
            "0.1.0",
            "12",
            "3",
            WHY,
        ],
        &[
            "local",
            "ready",
            "192.0.2.7:9443",
            "host-1",
            "yes",
            "0.1.0",
            "12",
            "-",
            "-",
        ],
    ])
}

#[test]
fn prose_is_wrapped_and_nothing_of_it_is_lost() {
    let why = "its supervisor was stopped. Start it: systemctl start fairlead-supervisor, or see its log";
    let rows = [("relay paris-1".to_owned(), why.to_owned())];
    for fit in [Some(40), Some(80), None] {
        let text = prose(Some(["NEEDS ATTENTION", "WHY"]), &rows, style(fit));
        let fits = |l: &str| fit.is_none_or(|fit| l.width() <= fit) && l.trim_end() == l;
        assert!(text.lines().all(fits), "{fit:?}: {text}");
        let words: Vec<&str> = text.split_whitespace().skip(5).collect();
        assert_eq!(words.join(" "), why, "{fit:?}: {text}");
        assert_eq!(text.lines().count() == 2, fit.is_none(), "{text}");
    }
    assert_eq!(wrap("aaaa bb c", 4), ["aaaa", "bb c"]);
    assert_eq!(wrap("", 4), [""]);
    // Facts have no headers; a name without room beside it has a line of its own.
    let facts = [
        ("reason".to_owned(), "a b".to_owned()),
        ("x".repeat(30), "c".to_owned()),
    ];
    assert_eq!(prose(None, &facts[..1], style(None)), "reason  a b");
    let narrow = prose(None, &facts, style(Some(40)));
    let expected = format!(
        "reason{0}a b\n{1}\n{2}c",
        " ".repeat(16),
        "x".repeat(30),
        " ".repeat(22)
    );
    assert_eq!(narrow, expected);
}

/// Every list at every width: no line is wider than the terminal, and no word is missing.
#[test]
fn a_table_fits_its_terminal_and_loses_nothing() {
    let relays = relays();
    for fit in [30, 40, 60, 80, 100, 120, 200, 400] {
        let text = grid(RELAYS, &relays, style(Some(fit)));
        let fits = text.lines().all(|l| l.width() <= fit && l.trim_end() == l);
        assert!(fits, "{fit}:\n{text}");
        for word in words(&relays) {
            assert!(text.contains(word), "{fit}: {word}:\n{text}");
        }
        assert!(!text.contains('…'), "{fit}:\n{text}");
    }
    let piped = grid(RELAYS, &relays, style(None));
    assert!(piped.lines().count() == 3 && piped.contains(WHY), "{piped}");
}

/// How it reads at 80 columns.
#[test]
fn columns_without_room_stand_below_their_row_and_prose_is_wrapped_in_its_column() {
    let relays = relays();
    let expected = "\
NAME     STATE      ADDRESS              FAILURE       LOCAL  VERSION  ENDPOINTS
                                         DOMAIN
paris-1  not-ready  198.51.100.207:9443  paris         no     0.1.0    12
  tunnels: 3; reason: its port did not answer relay tokyo-2: no answer to the
    handshake within 10 s
local    ready      192.0.2.7:9443       host-1        yes    0.1.0    12";
    assert_eq!(grid(RELAYS, &relays, style(Some(80))), expected);
    let nodes = rows(&[&["alpha", "not-ready", "1 of 2", WHY]]);
    let expected = "\
NAME   STATE      RELAYS  REASON
alpha  not-ready  1 of 2  its port did not answer
                          relay tokyo-2: no answer to
                          the handshake within 10 s";
    let headers = &["NAME", "STATE", "RELAYS", "REASON"];
    assert_eq!(grid(headers, &nodes, style(Some(54))), expected);
}

#[test]
fn wide_characters_take_two_columns() {
    let rows = rows(&[&["db", "127.0.0.1:15432"], &["日本", "[::1]:18080"]]);
    let text = grid(&["NAME", "LISTEN"], &rows, style(None));
    let first = |l: &str| l.split("  ").next().unwrap_or_default().width();
    let columns: Vec<usize> = text.lines().map(first).collect();
    assert_eq!(columns, [4, 2, 4], "{text}");
}

/// What a member reports cannot steer the terminal.
#[test]
fn control_characters_are_shown_not_obeyed() {
    let text = grid(&["X"], &rows(&[&["a\x1b[2Jb\r\n"]]), style(None));
    assert!(!text.contains('\x1b') && !text.contains('\r'), "{text:?}");
    assert_eq!(text.lines().count(), 2);
    let text = hanging("", 0, "a\x1b[2Jb", style(Some(80)));
    assert!(!text.contains('\x1b'), "{text:?}");
}
