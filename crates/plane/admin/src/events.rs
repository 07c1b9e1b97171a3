//! `/v1/events`: everything that is shown, live, as server-sent events.
//!
//! A subscriber is a cursor on the [`Board`]; it gets what changed since, the newest of it, as fast
//! as it reads. One that stops reading is cut off by its connection ([`Endless`]). The board is
//! looked at anew while somebody subscribes, by whoever comes first: no task runs for it.

use crate::access::Credential;
use crate::board::{Batch, Board, Cursor, Key, Kind};
use crate::json::{Link, Node, Relay, Status};
use crate::{Admin, warning};
use axum::body::Body;
use bytes::Bytes;
use fairlead_control::api::Look;
use fairlead_control::{ApiError, Control, Endless};
use fairlead_host::rng;
use fairlead_model::{ApiCode, TokenId, WallTime};
use futures_util::stream;
use serde::Serialize;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Subscribers at once.
pub(crate) const SUBSCRIBERS_MAX: usize = 64;
/// Subscribers of one token.
pub(crate) const SUBSCRIBERS_PER_TOKEN_MAX: usize = 16;
/// How often everything is looked at: what an eye takes for at once.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Of a large pool a look takes long: it is taken this many times its length apart at least, so
/// that it costs a twentieth of a core at most.
const LOOK_COST: u32 = 20;
/// A beat is sent when nothing else was for this long, so that both ends know that they are
/// connected.
const BEAT_EVERY: Duration = Duration::from_secs(10);
/// Text of one event, about: it is what a slow reader costs.
const EVENT_LEN_MAX: usize = 256 << 10;
/// How soon a browser comes back after its stream broke off.
const RETRY: &str = "retry: 2000\n\n";
/// A member that was heard within this time is connected, or was a moment ago.
const HEARD: Duration = fairlead_control::readiness::OFFLINE_AFTER;

/// The board and its subscribers.
#[derive(Debug)]
pub(crate) struct Events {
    /// Tells cursors of this process from others'.
    boot: String,
    live: Mutex<Live>,
    subscribers: Mutex<BTreeMap<TokenId, usize>>,
}

#[derive(Debug, Default)]
struct Live {
    board: Board,
    /// When the next look is due; `None` before the first.
    due: Option<Instant>,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            boot: format!("{:016x}", u64::from_be_bytes(rng::bytes())),
            live: Mutex::default(),
            subscribers: Mutex::default(),
        }
    }
}

impl Events {
    /// A place for a subscriber, given back when dropped.
    pub(crate) fn subscribe(self: &Arc<Self>, token: TokenId) -> Result<Subscriber, ApiError> {
        let mut subscribers = self.subscribers.lock().unwrap_or_else(PoisonError::into_inner);
        let own = subscribers.get(&token).copied().unwrap_or(0);
        let all: usize = subscribers.values().sum();
        if own >= SUBSCRIBERS_PER_TOKEN_MAX || all >= SUBSCRIBERS_MAX {
            return Err(ApiError::new(
                ApiCode::RateLimited,
                format!(
                    "too many pages are open: {all} of {SUBSCRIBERS_MAX}, {own} of \
                     {SUBSCRIBERS_PER_TOKEN_MAX} by this token; close some"
                ),
            ));
        }
        subscribers.insert(token, own + 1);
        Ok(Subscriber {
            events: Arc::clone(self),
            token,
        })
    }

    /// Changes after a cursor, at this moment.
    fn changes(&self, control: &Control, cursor: Option<Cursor>) -> Batch {
        let mut live = self.live();
        let now = Instant::now();
        if live.due.is_none_or(|due| due <= now) {
            live.board.put(everything(&control.look()));
            let took = now.elapsed();
            live.due = Some(now + LOOK_EVERY.max(took * LOOK_COST));
        }
        live.board.after(cursor, EVENT_LEN_MAX)
    }

    /// The cursor of a `Last-Event-ID`; `None` for one of another process.
    pub(crate) fn cursor(&self, id: &str) -> Option<Cursor> {
        let (place, since) = id.strip_prefix(&self.boot)?.strip_prefix('-')?.split_once('-')?;
        Some(Cursor {
            place: place.parse().ok()?,
            since: since.parse().ok()?,
        })
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A batch as the text of one event.
    fn text(&self, batch: &Batch) -> String {
        let items: Vec<String> = batch.items.iter().map(item).collect();
        let Cursor { place, since } = batch.cursor;
        format!(
            "id: {}-{place}-{since}\nevent: change\ndata: {{\"anew\":{},\"complete\":{},\"items\":[{}]}}\n\n",
            self.boot,
            batch.anew,
            batch.is_last,
            items.join(",")
        )
    }
}

/// One object of an event: kinds and ids hold nothing that JSON writes otherwise, and texts are JSON
/// in one line.
fn item(((kind, id), text): &(Key, Option<Arc<str>>)) -> String {
    let (kind, value) = (kind.as_str(), text.as_deref().unwrap_or("null"));
    format!(r#"{{"kind":"{kind}","id":"{id}","value":{value}}}"#)
}

/// A place among the subscribers.
#[derive(Debug)]
pub(crate) struct Subscriber {
    events: Arc<Events>,
    token: TokenId,
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let mut subscribers = self
            .events
            .subscribers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = subscribers.get_mut(&self.token) {
            *own -= 1;
            if *own == 0 {
                subscribers.remove(&self.token);
            }
        }
    }
}

/// The stream of one subscriber. It ends when its token or session does, and when the control plane
/// stops.
pub(crate) fn stream(
    admin: Admin,
    subscriber: Subscriber,
    credential: Credential,
    cursor: Option<Cursor>,
    endless: Option<Endless>,
) -> Body {
    let feed = Feed {
        admin,
        credential,
        cursor,
        endless,
        is_first: true,
        is_over: false,
        _subscriber: subscriber,
    };
    Body::from_stream(stream::unfold(feed, |mut feed| async move {
        let piece = feed.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(piece)), feed))
    }))
}

struct Feed {
    admin: Admin,
    credential: Credential,
    cursor: Option<Cursor>,
    endless: Option<Endless>,
    is_first: bool,
    is_over: bool,
    _subscriber: Subscriber,
}

impl Feed {
    /// The next piece of text; `None` at the end.
    async fn next(&mut self) -> Option<String> {
        if let Some(endless) = &self.endless {
            endless.taken();
        }
        let piece = self.piece().await?;
        if let Some(endless) = &self.endless {
            endless.offered();
        }
        Some(piece)
    }

    async fn piece(&mut self) -> Option<String> {
        if self.is_over {
            return None;
        }
        let began = tokio::time::Instant::now();
        loop {
            let principal = self.credential.principal(&self.admin);
            if principal.is_none_or(|principal| !principal.may_read()) {
                self.is_over = true;
                return Some("event: end\ndata: {}\n\n".to_owned());
            }
            let events = &self.admin.events;
            let batch = events.changes(&self.admin.control, self.cursor);
            self.cursor = Some(batch.cursor);
            if self.is_first || !batch.items.is_empty() {
                let retry = if self.is_first { RETRY } else { "" };
                self.is_first = false;
                return Some(format!("{retry}{}", events.text(&batch)));
            }
            if began.elapsed() >= BEAT_EVERY {
                return Some("event: beat\ndata: {}\n\n".to_owned());
            }
            tokio::select! {
                () = self.admin.control.stopping() => return None,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }
}

/// Every object as text. What moves by itself with each second, the browser counts by itself: the
/// run time is in whole minutes, and a member that was heard just now has no time at all.
fn everything(look: &Look) -> BTreeMap<Key, String> {
    let mut all = BTreeMap::new();
    let mut status = Status::from(look);
    let minutes = Duration::from_secs(look.status.uptime.as_secs() / 60 * 60);
    status.uptime = fairlead_model::duration::format(minutes);
    status.uptime_s = minutes.as_secs();
    put(&mut all, Kind::Status, String::new(), &status);
    for (place, warning) in warning::warnings(look).iter().enumerate() {
        let id = format!("{}/{}/{}", warning.code, warning.kind, warning.id);
        // Its place is part of the value: most urgent first.
        put(&mut all, Kind::Warning, id, &Placed { place, warning });
    }
    for view in &look.relays {
        let mut relay: Relay = view.clone().into();
        relay.last_seen = relay.last_seen.filter(|_| !is_heard(view.last_seen, look.at));
        put(&mut all, Kind::Relay, relay.id.clone(), &relay);
    }
    for view in &look.nodes {
        let mut node: Node = view.clone().into();
        node.last_seen = node.last_seen.filter(|_| !is_heard(view.last_seen, look.at));
        put(&mut all, Kind::Node, node.id.clone(), &node);
    }
    for view in &look.links {
        let link: Link = view.clone().into();
        put(&mut all, Kind::Link, link.id.clone(), &link);
    }
    all
}

#[derive(Debug, Serialize)]
struct Placed<'a> {
    place: usize,
    #[serde(flatten)]
    warning: &'a crate::json::Warning,
}

fn is_heard(last_seen: Option<WallTime>, now: WallTime) -> bool {
    last_seen.is_some_and(|at| now.since(at) < HEARD)
}

fn put(all: &mut BTreeMap<Key, String>, kind: Kind, id: String, value: &impl Serialize) {
    match serde_json::to_string(value) {
        Ok(text) => {
            all.insert((kind, id), text);
        }
        Err(error) => tracing::error!(%error, kind = kind.as_str(), "an object cannot be shown"),
    }
}
