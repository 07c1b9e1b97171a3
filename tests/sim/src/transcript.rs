//! What happened in a run, as a digest and as lines.

use fairlead_model::MonoTime;
use std::fmt::Write as _;

/// Most lines that are kept to be printed: the last ones.
const LINES_MAX: usize = 2000;

/// Takes a line per event. Two runs of one seed have the same digest.
#[derive(Debug)]
pub struct Transcript {
    digest: u64,
    events: u64,
    keep: bool,
    line: String,
    lines: std::collections::VecDeque<String>,
}

impl Transcript {
    /// An empty one; `keep` says whether its last lines are kept.
    #[must_use]
    pub fn new(keep: bool) -> Self {
        Self {
            // FNV-1a, 64 bits.
            digest: 0xcbf2_9ce4_8422_2325,
            events: 0,
            keep,
            line: String::new(),
            lines: std::collections::VecDeque::new(),
        }
    }

    /// Adds an event.
    pub fn add(&mut self, now: MonoTime, event: std::fmt::Arguments<'_>) {
        self.events += 1;
        self.line.clear();
        let _ = write!(self.line, "{:>9.3} ms  {event}", now.0 as f64 / 1e6);
        let line = std::mem::take(&mut self.line);
        self.bytes(line.as_bytes());
        if self.keep {
            if self.lines.len() == LINES_MAX {
                self.lines.pop_front();
            }
            self.lines.push_back(line);
        } else {
            self.line = line;
        }
    }

    /// Adds what a leg carried. A record's last bytes are its tag, which covers all of it.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let ends = bytes.iter().take(48).chain(bytes.iter().rev().take(16));
        for byte in ends.chain(&bytes.len().to_be_bytes()) {
            self.digest = (self.digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// The digest of everything so far.
    #[must_use]
    pub const fn digest(&self) -> u64 {
        self.digest
    }

    /// How many events there were.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// The last lines, where they were kept.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}
