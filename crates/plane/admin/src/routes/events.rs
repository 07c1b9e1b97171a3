//! The event stream.

use crate::Admin;
use crate::access::Credential;
use crate::events;
use crate::json::ErrorBody;
use crate::refused::Refused;
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use fairlead_control::Stalls;
use fairlead_control::api::Principal;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const EVENT_STREAM: &str = "text/event-stream";

/// Everything that is shown, live: first all of it, then what changes, as events `change` whose data is `{"anew":…,"complete":…,"items":[{"kind":…,"id":…,"value":…}]}`. Kinds: status, warning, relay, node, link; values as the reads of each have them (null: removed), without the time of members that were heard just now. `anew`: forget what came before. A stream that comes back with `Last-Event-ID` goes on where it broke off. A reader that has stopped reading is cut off within a minute; `beat` comes when nothing changes, `end` when token or session has ended.
#[utoipa::path(
    get, path = "/v1/events", tag = "system", operation_id = "events", security(("bearer" = [])),
    responses(
        (status = 200, description = "Server-sent events", body = String, content_type = "text/event-stream"),
        (status = "default", body = ErrorBody),
    )
)]
pub(super) async fn events(
    State(admin): State<Admin>,
    Extension(principal): Extension<Principal>,
    Extension(credential): Extension<Credential>,
    stalls: Option<Extension<Stalls>>,
    headers: HeaderMap,
) -> Result<([(HeaderName, &'static str); 1], Body), Refused> {
    let subscriber = admin.events.subscribe(principal.token)?;
    let last = headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok());
    let cursor = last.and_then(|id| admin.events.cursor(id));
    let endless = stalls.map(|Extension(stalls)| stalls.endless());
    let body = events::stream(admin, subscriber, credential, cursor, endless);
    Ok(([(CONTENT_TYPE, EVENT_STREAM)], body))
}
