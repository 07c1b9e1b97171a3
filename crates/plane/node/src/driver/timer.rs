//! One lazily armed timer per stream.

use fairlead_model::MonoTime;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::time::{Instant, Sleep};

/// A timer that is moved only to an earlier deadline; one that fires too early is armed again.
/// Acknowledgement deadlines come and go with every burst, and moving a timer each time would cost
/// more than a late check.
#[derive(Debug, Default)]
pub(super) struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
    armed: Option<MonoTime>,
}

impl Timer {
    /// Whether `deadline` has come; otherwise the task is woken when it does.
    pub(super) fn poll_due(
        &mut self,
        cx: &mut Context<'_>,
        deadline: Option<MonoTime>,
        now: MonoTime,
    ) -> bool {
        let Some(deadline) = deadline else {
            return false;
        };
        if deadline <= now {
            return true;
        }
        // Twice at most: a timer armed for an earlier deadline may have fired.
        for _ in 0..2 {
            let at = Instant::now() + deadline.since(now);
            let earlier = self.armed.is_none_or(|armed| deadline < armed);
            let sleep = self
                .sleep
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
            if earlier {
                sleep.as_mut().reset(at);
                self.armed = Some(deadline);
            }
            match sleep.as_mut().poll(cx) {
                Poll::Pending => return false,
                Poll::Ready(()) => self.armed = None,
            }
        }
        true
    }
}
