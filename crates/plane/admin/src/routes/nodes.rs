//! Nodes.

use super::{Answer, Which};
use crate::Admin;
use crate::body::Body;
use crate::json::{AddNode, Empty, ErrorBody, Issued, List, Node};
use crate::refused::Refused;
use axum::extract::State;
use axum::{Extension, Json};
use fairlead_control::api::{MemberRole, Principal};
use http::StatusCode;

/// Every node.
#[utoipa::path(
    get, path = "/v1/nodes", tag = "members", operation_id = "node_list", security(("bearer" = [])),
    responses((status = 200, body = List<Node>), (status = "default", body = ErrorBody))
)]
pub(super) async fn list(State(admin): State<Admin>) -> Json<List<Node>> {
    let items = admin.control.nodes().await.into_iter().map(Into::into).collect();
    Json(List { items })
}

/// Adds a node and issues its one-shot enrolment token (R-ENR-01).
#[utoipa::path(
    post, path = "/v1/nodes", tag = "members", operation_id = "node_add", security(("bearer" = [])),
    request_body = AddNode,
    responses((status = 201, body = Issued), (status = "default", body = ErrorBody))
)]
pub(super) async fn add(
    State(admin): State<Admin>,
    Extension(principal): Extension<Principal>,
    Body(node): Body<AddNode>,
) -> Result<(StatusCode, Json<Issued>), Refused> {
    let issued = admin.control.add_node(&principal, &node.name).await?;
    Ok((StatusCode::CREATED, Json(issued.into())))
}

/// One node, by name or id.
#[utoipa::path(
    get, path = "/v1/nodes/{node}", tag = "members", operation_id = "node_show", security(("bearer" = [])),
    params(("node" = String, Path, description = "Name or id")),
    responses((status = 200, body = Node), (status = "default", body = ErrorBody))
)]
pub(super) async fn show(State(admin): State<Admin>, Which(which): Which) -> Answer<Node> {
    Ok(Json(admin.control.node(&which).await?.into()))
}

/// Removes a node, and answers with it as it was; its session and certificate end at once. Refused while links use it.
#[utoipa::path(
    delete, path = "/v1/nodes/{node}", tag = "members", operation_id = "node_remove",
    security(("bearer" = [])),
    params(("node" = String, Path, description = "Name or id")),
    responses((status = 200, body = Node), (status = "default", body = ErrorBody))
)]
pub(super) async fn remove(
    State(admin): State<Admin>,
    Extension(principal): Extension<Principal>,
    Which(which): Which,
) -> Answer<Node> {
    Ok(Json(admin.control.remove_node(&principal, &which).await?.into()))
}

/// A new token for a node whose host has never connected; the one before ends, and an enrolment too.
#[utoipa::path(
    post, path = "/v1/nodes/{node}/token", tag = "members", operation_id = "node_reissue",
    security(("bearer" = [])),
    params(("node" = String, Path, description = "Name or id")),
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
        .reissue(&principal, MemberRole::Node, &which)
        .await?;
    Ok((StatusCode::CREATED, Json(issued.into())))
}
