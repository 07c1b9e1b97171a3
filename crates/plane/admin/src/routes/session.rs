//! Login and logout of browsers.

use crate::access::{address_of, login as whose};
use crate::body::{Body, check_content_type};
use crate::json::{ErrorBody, Login, WhoAmI};
use crate::refused::Refused;
use crate::session::{SessionKey, no_cookie};
use crate::{Admin, origin};
use axum::extract::State;
use axum::{Extension, Json};
use fairlead_control::PeerAddress;
use http::header::SET_COOKIE;
use http::{HeaderMap, StatusCode, Uri};
use std::time::Instant;

/// Exchanges an admin token for a session, in a cookie that no script reads (`__Host-fairlead`). From the pages of this control plane only; a session that the request came with ends.
#[utoipa::path(
    post, path = "/v1/session", tag = "system", operation_id = "login",
    request_body = Login,
    responses((status = 201, body = WhoAmI), (status = "default", body = ErrorBody))
)]
pub(super) async fn login(
    State(admin): State<Admin>,
    peer: Option<Extension<PeerAddress>>,
    OwnPage(old): OwnPage,
    Body(body): Body<Login>,
) -> Result<(StatusCode, [(http::HeaderName, String); 1], Json<WhoAmI>), Refused> {
    let principal = whose(&admin, &body.token, address_of(peer)).await?;
    if let Some(old) = old {
        admin.access.sessions.close(old);
    }
    let cookie = admin.access.sessions.open(principal.token, Instant::now());
    tracing::info!(token = principal.name, "a browser logged in");
    let who = Json(WhoAmI {
        name: principal.name,
        scopes: principal.scopes.iter().map(ToString::to_string).collect(),
    });
    Ok((StatusCode::CREATED, [(SET_COOKIE, cookie)], who))
}

/// Ends the session of the request's cookie, if there is one. From the pages of this control plane only.
#[utoipa::path(
    delete, path = "/v1/session", tag = "system", operation_id = "logout",
    responses((status = 204), (status = "default", body = ErrorBody))
)]
pub(super) async fn logout(
    State(admin): State<Admin>,
    OwnPage(session): OwnPage,
    headers: HeaderMap,
) -> Result<(StatusCode, [(http::HeaderName, String); 1]), Refused> {
    check_content_type(&headers)?;
    if let Some(session) = session {
        admin.access.sessions.close(session);
    }
    Ok((StatusCode::NO_CONTENT, [(SET_COOKIE, no_cookie())]))
}

/// Says that a request comes from a page of ours, and which session it has.
pub(super) struct OwnPage(Option<SessionKey>);

impl<S: Sync> axum::extract::FromRequestParts<S> for OwnPage {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut http::request::Parts, _: &S) -> Result<Self, Refused> {
        let uri: &Uri = &parts.uri;
        origin::check_change(uri, &parts.headers)?;
        Ok(Self(SessionKey::of(&parts.headers)))
    }
}
