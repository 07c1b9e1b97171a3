//! The bound of a log: what a peer can make a daemon say again and again does not fill its disk.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Lines of one place in the code within [`WINDOW`]: a hundred tunnels that end at once are told
/// one by one, a thousand refused ones are not (F-09).
const LINES_MAX: u32 = 100;
/// The time over which they are counted.
const WINDOW: Duration = Duration::from_secs(10);

/// Lines that were held back.
static HELD_BACK: AtomicU64 = AtomicU64::new(0);

/// How many log lines of this process were held back because their like came too often.
#[must_use]
pub fn lines_held_back() -> u64 {
    HELD_BACK.load(Ordering::Relaxed)
}

/// Makes writers, and none for a place in the code that has said enough. Debug and trace lines are
/// what somebody asked for, and are not counted.
#[derive(Debug)]
pub(crate) struct Bounded<Make> {
    make: Make,
    /// As many entries as the program has places that log.
    said: Mutex<HashMap<Identifier, Said>>,
}

#[derive(Debug, Clone, Copy)]
struct Said {
    since: Instant,
    lines: u32,
}

/// A writer, or nothing.
#[derive(Debug)]
pub(crate) struct Perhaps<W>(Option<W>);

impl<Make> Bounded<Make> {
    pub(crate) fn new(make: Make) -> Self {
        Self {
            make,
            said: Mutex::default(),
        }
    }

    fn may_say(&self, who: Identifier, now: Instant) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let said = said.entry(who).or_insert(Said { since: now, lines: 0 });
        if now.saturating_duration_since(said.since) >= WINDOW {
            *said = Said { since: now, lines: 0 };
        }
        said.lines = said.lines.saturating_add(1);
        said.lines <= LINES_MAX
    }
}

impl<'a, Make: MakeWriter<'a>> MakeWriter<'a> for Bounded<Make> {
    type Writer = Perhaps<Make::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        Perhaps(Some(self.make.make_writer()))
    }

    fn make_writer_for(&'a self, of: &Metadata<'_>) -> Self::Writer {
        if *of.level() <= Level::INFO && !self.may_say(of.callsite(), Instant::now()) {
            HELD_BACK.fetch_add(1, Ordering::Relaxed);
            return Perhaps(None);
        }
        Perhaps(Some(self.make.make_writer_for(of)))
    }
}

impl<W: Write> Write for Perhaps<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Some(writer) => writer.write(bytes),
            None => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.as_mut().map_or(Ok(()), Write::flush)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[derive(Debug, Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// F-09: the log is bounded, place by place.
    #[test]
    fn one_place_does_not_drown_another() {
        let kept = Kept::default();
        let writer = kept.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(Level::DEBUG)
            .with_writer(Bounded::new(move || writer.clone()))
            .finish();
        let before = lines_held_back();
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..LINES_MAX + 50 {
                tracing::info!("loud");
                tracing::debug!("asked for");
            }
            tracing::warn!("rare");
        });
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        let count = |word: &str| text.lines().filter(|line| line.contains(word)).count();
        assert_eq!(count("loud"), LINES_MAX as usize);
        assert_eq!((count("asked for"), count("rare")), (LINES_MAX as usize + 50, 1));
        assert_eq!(lines_held_back() - before, 50);
    }
}
