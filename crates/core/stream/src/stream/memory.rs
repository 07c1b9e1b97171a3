//! What a stream holds of its daemon's memory, and what it would hold (I9).

use super::{Phase, Stream};

impl Stream {
    /// Bytes of the daemon's memory budget that this end holds: the credit that the peer may still
    /// use, received bytes that wait, and the send buffer with its overhead (I9).
    #[must_use]
    pub fn charge(&self) -> u64 {
        self.credit() + self.send_held()
    }

    /// Bytes that wait for the application or may still come: no later decision takes them back (I3).
    #[must_use]
    pub const fn credit(&self) -> u64 {
        let end = match (self.phase, self.recv.final_offset()) {
            (Phase::Over, _) => self.recv.next(),
            (_, Some(end)) => end,
            (_, None) => self.window.limit(),
        };
        end.saturating_sub(self.recv.consumed())
    }

    /// Memory of the send buffer, in bytes.
    #[must_use]
    pub const fn send_held(&self) -> u64 {
        self.send.charge()
    }

    /// The window in bytes that the path could use, as far as it is known.
    #[must_use]
    pub const fn window_wanted(&self) -> u64 {
        self.window.wanted()
    }

    /// Whether the application could write more if the send buffer had more room.
    #[must_use]
    pub fn send_wanted(&self) -> bool {
        self.phase == Phase::Open && self.send.is_short()
    }

    /// Changes how far the window may grow, in bytes: at least [`INITIAL_WINDOW`](crate::INITIAL_WINDOW),
    /// at most what the settings allow. A limit that was given stands (I3).
    pub fn set_window_max(&mut self, bytes: u64) {
        self.window.set_max(bytes);
    }

    /// Changes how much memory the send buffer may take, in bytes. What it holds stays.
    pub const fn set_send_max(&mut self, bytes: u64) {
        self.send.set_max(bytes);
    }
}
