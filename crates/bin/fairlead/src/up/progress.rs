//! What `up` tells the person in front of it.

use std::cell::RefCell;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// A line that repeats is said again after this long where it cannot be overwritten.
const REPEAT: Duration = Duration::from_secs(10);

/// Standard output: lines that stay, and one that is overwritten on a terminal.
#[derive(Debug)]
pub(super) struct Progress {
    terminal: bool,
    live: RefCell<Live>,
}

#[derive(Debug, Default)]
struct Live {
    /// Whether an overwritable line stands at the cursor.
    shown: bool,
    last: Option<Instant>,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self {
            terminal: std::io::stdout().is_terminal(),
            live: RefCell::default(),
        }
    }

    /// A line that stays.
    pub(super) fn say(&self, text: &str) {
        let mut live = self.live.borrow_mut();
        let clear = if live.shown { "\r\x1b[K" } else { "" };
        live.shown = false;
        write(&format!("{clear}{text}\n"));
    }

    /// A line that the next one replaces; off a terminal it is said now and then.
    pub(super) fn live(&self, text: &str) {
        let mut live = self.live.borrow_mut();
        if self.terminal {
            live.shown = true;
            // A line that wraps could not be overwritten.
            let fits: String = text
                .chars()
                .take(crate::table::width().saturating_sub(1))
                .collect();
            write(&format!("\r\x1b[K{fits}"));
        } else if live.last.is_none_or(|last| last.elapsed() >= REPEAT) {
            live.last = Some(Instant::now());
            write(&format!("{text}\n"));
        }
    }
}

/// A closed pipe is no reason to stop a pool.
fn write(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
