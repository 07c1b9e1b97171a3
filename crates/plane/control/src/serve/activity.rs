//! Whether anything happens on a connection. A peer that answers pings and asks for nothing, sends
//! half a request, or reads no answer, is closed; its place is somebody else's.

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// How long a connection may have no request. Programs and browsers open another when they need it.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// How long a request may make no progress: no part of its answer is taken. Longer than the deadline
/// of a request (30 s), so that a slow body is answered; a stream of events says something more often.
const STALLED_MAX: Duration = Duration::from_secs(60);

/// What happens on one connection. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Activity {
    seen: Arc<Mutex<Seen>>,
    stalled_max: Option<Duration>,
}

#[derive(Debug)]
struct Seen {
    in_progress: usize,
    last: Instant,
}

/// One request, until its answer is sent or given up.
#[derive(Debug)]
struct InProgress(Activity);

impl Activity {
    /// For somebody who has proven nothing.
    pub(super) fn of_stranger() -> Self {
        Self::new(Some(STALLED_MAX))
    }

    /// For a member: its session may be silent downwards for as long as it lives, and has time limits
    /// of its own.
    pub(super) fn of_member() -> Self {
        Self::new(None)
    }

    fn new(stalled_max: Option<Duration>) -> Self {
        let seen = Seen {
            in_progress: 0,
            last: Instant::now(),
        };
        Self {
            seen: Arc::new(Mutex::new(seen)),
            stalled_max,
        }
    }

    /// The same routes, watched.
    pub(super) fn watch(&self, router: Router) -> Router {
        router.layer(from_fn_with_state(self.clone(), watched))
    }

    /// Waits until nothing has happened for too long. Cancel-safe.
    pub(super) async fn over(&self) {
        loop {
            let (in_progress, last) = {
                let seen = self.lock();
                (seen.in_progress, seen.last)
            };
            let until = match (in_progress, self.stalled_max) {
                (0, _) => last + IDLE_MAX,
                (_, Some(stalled_max)) => last + stalled_max,
                (_, None) => Instant::now() + IDLE_MAX,
            };
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> InProgress {
        let mut seen = self.lock();
        seen.in_progress += 1;
        seen.last = Instant::now();
        InProgress(self.clone())
    }
}

impl InProgress {
    fn progress(&self) {
        self.0.lock().last = Instant::now();
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        let mut seen = self.0.lock();
        seen.in_progress = seen.in_progress.saturating_sub(1);
        seen.last = Instant::now();
    }
}

async fn watched(State(activity): State<Activity>, request: Request, next: Next) -> Response {
    let request_of = activity.begin();
    let (head, body) = next.run(request).await.into_parts();
    request_of.progress();
    let body = Watched {
        body,
        request: request_of,
    };
    Response::from_parts(head, Body::new(body))
}

/// The answer's body. The request is over when the last of it was taken, or the peer has gone.
#[derive(Debug)]
struct Watched {
    body: Body,
    request: InProgress,
}

impl hyper::body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if polled.is_ready() {
            self.request.progress();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn over_after(activity: &Activity) -> Duration {
        let began = Instant::now();
        activity.over().await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_idle_or_stalled_ends_and_what_moves_does_not() {
        let stranger = Activity::of_stranger();
        assert_eq!(over_after(&stranger).await, IDLE_MAX);

        let stranger = Activity::of_stranger();
        let request = stranger.begin();
        tokio::time::sleep(STALLED_MAX / 2).await;
        request.progress();
        assert_eq!(over_after(&stranger).await, STALLED_MAX);

        let stranger = Activity::of_stranger();
        let request = stranger.begin();
        tokio::time::sleep(IDLE_MAX / 2).await;
        drop(request);
        assert_eq!(over_after(&stranger).await, IDLE_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_members_session_may_be_silent_and_a_member_without_one_may_not() {
        let member = Activity::of_member();
        let session = member.begin();
        assert!(
            tokio::time::timeout(Duration::from_secs(86_400), member.over())
                .await
                .is_err()
        );
        drop(session);
        assert_eq!(over_after(&member).await, IDLE_MAX);
    }
}
