//! Admin tokens.

use super::{Answer, Which};
use crate::Admin;
use crate::body::Body;
use crate::json::{AddToken, ErrorBody, IssuedToken, List, Token};
use crate::refused::Refused;
use axum::extract::State;
use axum::{Extension, Json};
use fairlead_control::api::Principal;
use http::StatusCode;

/// Every admin token, without its secret.
#[utoipa::path(
    get, path = "/v1/tokens", tag = "system", operation_id = "token_list", security(("bearer" = [])),
    responses((status = 200, body = List<Token>), (status = "default", body = ErrorBody))
)]
pub(super) async fn list(State(admin): State<Admin>) -> Json<List<Token>> {
    let items = admin.control.tokens().await.into_iter().map(Into::into).collect();
    Json(List { items })
}

/// Makes an admin token; its secret is shown once.
#[utoipa::path(
    post, path = "/v1/tokens", tag = "system", operation_id = "token_add", security(("bearer" = [])),
    request_body = AddToken,
    responses((status = 201, body = IssuedToken), (status = "default", body = ErrorBody))
)]
pub(super) async fn add(
    State(admin): State<Admin>,
    Extension(principal): Extension<Principal>,
    Body(token): Body<AddToken>,
) -> Result<(StatusCode, Json<IssuedToken>), Refused> {
    let issued = admin.control.add_token(&principal, token.into()).await?;
    Ok((StatusCode::CREATED, Json(issued.into())))
}

/// Revokes an admin token at once, by name or id.
#[utoipa::path(
    delete, path = "/v1/tokens/{token}", tag = "system", operation_id = "token_revoke",
    security(("bearer" = [])),
    params(("token" = String, Path, description = "Name or id")),
    responses((status = 200, body = Token), (status = "default", body = ErrorBody))
)]
pub(super) async fn revoke(
    State(admin): State<Admin>,
    Extension(principal): Extension<Principal>,
    Which(which): Which,
) -> Answer<Token> {
    Ok(Json(admin.control.revoke_token(&principal, &which).await?.into()))
}
