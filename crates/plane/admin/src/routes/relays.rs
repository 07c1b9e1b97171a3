//! Relays.

use super::{Answer, Which};
use crate::Admin;
use crate::body::Body;
use crate::json::{AddRelay, Empty, ErrorBody, Issued, List, Relay};
use crate::refused::Refused;
use axum::extract::State;
use axum::{Extension, Json};
use fairlead_control::api::{MemberRole, Principal};
use http::StatusCode;

/// Every relay.
#[utoipa::path(
    get, path = "/v1/relays", tag = "members", operation_id = "relay_list", security(("bearer" = [])),
    responses((status = 200, body = List<Relay>), (status = "default", body = ErrorBody))
)]
pub(super) async fn list(State(admin): State<Admin>) -> Json<List<Relay>> {
    let items = admin.control.relays().await.into_iter().map(Into::into).collect();
    Json(List { items })
}

/// Adds a relay and issues its one-shot enrolment token (R-ENR-01).
#[utoipa::path(
    post, path = "/v1/relays", tag = "members", operation_id = "relay_add", security(("bearer" = [])),
    request_body = AddRelay,
    responses((status = 201, body = Issued), (status = "default", body = ErrorBody))
)]
pub(super) async fn add(
    State(admin): State<Admin>,
    Extension(principal): Extension<Principal>,
    Body(relay): Body<AddRelay>,
) -> Result<(StatusCode, Json<Issued>), Refused> {
    let issued = admin.control.add_relay(&principal, relay.into()).await?;
    Ok((StatusCode::CREATED, Json(issued.into())))
}

/// One relay, by name or id.
#[utoipa::path(
    get, path = "/v1/relays/{relay}", tag = "members", operation_id = "relay_show", security(("bearer" = [])),
    params(("relay" = String, Path, description = "Name or id")),
    responses((status = 200, body = Relay), (status = "default", body = ErrorBody))
)]
pub(super) async fn show(State(admin): State<Admin>, Which(which): Which) -> Answer<Relay> {
    Ok(Json(admin.control.relay(&which).await?.into()))
}

/// Removes a relay, and answers with it as it was; one that never was ready goes at once, another one is refused while it may carry anything (R-OPS-03); `details.removableAfter` says from when on, where time is the reason.
#[utoipa::path(
    delete, path = "/v1/relays/{relay}", tag = "members", operation_id = "relay_remove",
    security(("bearer" = [])),
    params(("relay" = String, Path, description = "Name or id")),
    responses((status = 200, body = Relay), (status = "default", body = ErrorBody))
)]
pub(super) async fn remove(
    State(admin): State<Admin>,
    Extension(principal): Extension<Principal>,
    Which(which): Which,
) -> Answer<Relay> {
    Ok(Json(admin.control.remove_relay(&principal, &which).await?.into()))
}

/// A new token for a relay whose host has never connected; the one before ends, and an enrolment too.
#[utoipa::path(
    post, path = "/v1/relays/{relay}/token", tag = "members", operation_id = "relay_reissue",
    security(("bearer" = [])),
    params(("relay" = String, Path, description = "Name or id")),
    request_body = Empty,
    responses((status = 201, body = Issued), (status = "default", body = ErrorBody))
)]
pub(super) async fn reissue(
    State(admin): State<Admin>,
    Extension(principal): Extension<Principal>,
    Which(which): Which,
    Body(Empty {}): Body<Empty>,
) -> Result<(StatusCode, Json<Issued>), Refused> {
    let issued = admin
        .control
        .reissue(&principal, MemberRole::Relay, &which)
        .await?;
    Ok((StatusCode::CREATED, Json(issued.into())))
}
