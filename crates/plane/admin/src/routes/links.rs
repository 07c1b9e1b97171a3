//! Links.

use super::{Answer, Which};
use crate::Admin;
use crate::body::Body;
use crate::json::{AddLink, CheckLink, ErrorBody, Link, List, PathCheck, RemovedLink};
use crate::refused::Refused;
use axum::extract::State;
use axum::{Extension, Json};
use fairlead_control::api::Principal;
use http::StatusCode;

/// Every link.
#[utoipa::path(
    get, path = "/v1/links", tag = "links", operation_id = "link_list", security(("bearer" = [])),
    responses((status = 200, body = List<Link>), (status = "default", body = ErrorBody))
)]
pub(super) async fn list(State(admin): State<Admin>) -> Json<List<Link>> {
    let items = admin.control.links().await.into_iter().map(Into::into).collect();
    Json(List { items })
}

/// Publishes a target on one node to another.
#[utoipa::path(
    post, path = "/v1/links", tag = "links", operation_id = "link_add", security(("bearer" = [])),
    request_body = AddLink,
    responses((status = 201, body = Link), (status = "default", body = ErrorBody))
)]
pub(super) async fn add(
    State(admin): State<Admin>,
    Extension(principal): Extension<Principal>,
    Body(link): Body<AddLink>,
) -> Result<(StatusCode, Json<Link>), Refused> {
    let link = admin.control.add_link(&principal, link.into()).await?;
    Ok((StatusCode::CREATED, Json(link.into())))
}

/// One link, by name or id.
#[utoipa::path(
    get, path = "/v1/links/{link}", tag = "links", operation_id = "link_show", security(("bearer" = [])),
    params(("link" = String, Path, description = "Name or id")),
    responses((status = 200, body = Link), (status = "default", body = ErrorBody))
)]
pub(super) async fn show(State(admin): State<Admin>, Which(which): Which) -> Answer<Link> {
    Ok(Json(admin.control.link(&which).await?.into()))
}

/// Removes a link, and answers with it as it was and with who has not heard of it. Its route is revoked; its id is never used again.
#[utoipa::path(
    delete, path = "/v1/links/{link}", tag = "links", operation_id = "link_remove",
    security(("bearer" = [])),
    params(("link" = String, Path, description = "Name or id")),
    responses((status = 200, body = RemovedLink), (status = "default", body = ErrorBody))
)]
pub(super) async fn remove(
    State(admin): State<Admin>,
    Extension(principal): Extension<Principal>,
    Which(which): Which,
) -> Answer<RemovedLink> {
    Ok(Json(admin.control.remove_link(&principal, &which).await?.into()))
}

/// Lets the link's consumer try its path with a new hop session, a new association and new tunnels, and says how far it came (R-UI-04). Changes nothing; takes up to 25 s.
#[utoipa::path(
    post, path = "/v1/links/{link}/check", tag = "links", operation_id = "link_check",
    security(("bearer" = [])),
    params(("link" = String, Path, description = "Name or id")),
    request_body = CheckLink,
    responses((status = 200, body = PathCheck), (status = "default", body = ErrorBody))
)]
pub(super) async fn check(
    State(admin): State<Admin>,
    Which(which): Which,
    Body(asked): Body<CheckLink>,
) -> Answer<PathCheck> {
    let checked = admin.control.check_link(&which, asked.relay.as_deref()).await?;
    Ok(Json(checked.into()))
}
