//! Another connection to a relay that lives, beside a session whose datagrams do not pass.
//!
//! QUIC's own probes come ever more rarely: their timeout doubles with each that is lost (RFC 9002, section
//! 6.2.1), so that after half a minute without UDP the next one is half a minute away. A new handshake's do not.

use fairlead_model::MonoTime;
use std::time::Duration;

/// Silence of QUIC, either way, from which on the session's datagrams are taken not to pass.
pub(super) const LOST_AFTER: Duration = Duration::from_secs(3);
/// Between two dials: each tries for some time, unless it fails at once.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What is known of the session's relay at a moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Path {
    /// Its process answers, as far as anything but QUIC tells.
    pub(super) alive: bool,
    /// Nothing comes from it, or nothing arrives there.
    pub(super) silent: bool,
}

/// What is to be done about the connection beside the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    Dial,
    GiveUp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dial {
    /// Not under way, and not before this.
    From(MonoTime),
    Running,
}

/// Whether another connection is tried, and whether it takes the session's place.
#[derive(Debug)]
pub(super) struct Beside {
    dial: Dial,
    /// The relay's process itself stood still during this silence: it goes on with what it has (F-06).
    froze: bool,
}

impl Beside {
    pub(super) const fn new(now: MonoTime) -> Self {
        Self {
            dial: Dial::From(now),
            froze: false,
        }
    }

    /// What follows from what is known now.
    pub(super) fn look(&mut self, path: Path, now: MonoTime) -> Option<Wish> {
        match self.dial {
            Dial::Running if !path.alive => {
                (self.dial, self.froze) = (Dial::From(now), true);
                Some(Wish::GiveUp)
            }
            Dial::Running => None,
            Dial::From(_) if !path.alive => {
                self.froze = true;
                None
            }
            Dial::From(_) if !path.silent => {
                self.froze = false;
                None
            }
            Dial::From(at) if now >= at => {
                self.dial = Dial::Running;
                Some(Wish::Dial)
            }
            Dial::From(_) => None,
        }
    }

    /// The dial came to nothing.
    pub(super) fn failed(&mut self, now: MonoTime) {
        self.dial = Dial::From(now.plus(AGAIN_AFTER));
    }

    /// The connection stands. Whether it takes the session's place: also where something comes again, since
    /// what the relay sends waits for its own probes, which this end does not see; but not from a session
    /// whose process stood still and that is heard again.
    pub(super) fn up(&mut self, path: Path, now: MonoTime) -> bool {
        let ran = std::mem::replace(&mut self.dial, Dial::From(now.plus(AGAIN_AFTER))) == Dial::Running;
        ran && path.alive && (!self.froze || path.silent)
    }
}
