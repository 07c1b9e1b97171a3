//! Admin tokens.

use super::{Answer, Which};
use crate::Admin;
use crate::body::Body;
use crate::json::{AddToken, ErrorBody, IssuedToken, List, Token};
use crate::query::shown;
use crate::refused::Refused;
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use fairlead_control::ApiError;
use fairlead_control::api::{Faults, Principal};
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

/// Revokes an admin token at once, by name or id; the one that the request is made with only with
/// `force=true`.
#[utoipa::path(
    delete, path = "/v1/tokens/{token}", tag = "system", operation_id = "token_revoke",
    security(("bearer" = [])),
    params(
        ("token" = String, Path, description = "Name or id"),
        ("force" = Option<bool>, Query, description = "Revoke even the token of this request; false if absent"),
    ),
    responses((status = 200, body = Token), (status = "default", body = ErrorBody))
)]
pub(super) async fn revoke(
    State(admin): State<Admin>,
    Extension(principal): Extension<Principal>,
    RawQuery(query): RawQuery,
    Which(which): Which,
) -> Answer<Token> {
    let force = force(query.as_deref().unwrap_or(""))?;
    Ok(Json(
        admin
            .control
            .revoke_token(&principal, &which, force)
            .await?
            .into(),
    ))
}

/// `force` of a query, or every fault.
fn force(query: &str) -> Result<bool, ApiError> {
    let mut force = None;
    let mut faults = Faults::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("force", _) if force.is_some() => faults.add("force", "it is given twice"),
            ("force", "true") => force = Some(true),
            ("force", "false") => force = Some(false),
            ("force", _) => faults.add("force", "expected true or false"),
            (name, _) => {
                faults.add(&shown(name), "unknown parameter: allowed is force");
            }
        }
    }
    faults.into_result(Some(force.unwrap_or(false)))
}
