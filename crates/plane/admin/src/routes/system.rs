//! Audit log, status, and what describes the interface itself.

use super::Answer;
use crate::json::{AuditEntry, ErrorBody, Health, List, Status, Warning, WhoAmI};
use crate::query::shown;
use crate::refused::Refused;
use crate::{Admin, warning};
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use fairlead_control::ApiError;
use fairlead_control::api::{Faults, Principal};
use std::collections::BTreeSet;
use std::sync::Arc;
use utoipa::openapi::OpenApi;

/// Entries of a page where none is asked for.
const AUDIT_LIMIT_DEFAULT: usize = 100;
/// Entries of a page at most.
const AUDIT_LIMIT_MAX: usize = 1_000;

/// The audit log, oldest first (R-UI-05).
#[utoipa::path(
    get, path = "/v1/audit", tag = "system", operation_id = "audit_list", security(("bearer" = [])),
    params(
        ("after" = Option<u64>, Query, description = "Only entries with a greater number; 0 if absent"),
        ("limit" = Option<usize>, Query, description = "Entries at most, 1 to 1000; 100 if absent"),
    ),
    responses((status = 200, body = List<AuditEntry>), (status = "default", body = ErrorBody))
)]
pub(super) async fn audit(State(admin): State<Admin>, RawQuery(query): RawQuery) -> Answer<List<AuditEntry>> {
    let (after, limit) = page(query.as_deref().unwrap_or(""))?;
    let entries = admin.control.audit(after, limit).await?;
    let items = entries.into_iter().map(Into::into).collect();
    Ok(Json(List { items }))
}

/// `after` and `limit` of a query, or every fault. Numbers need no percent-decoding.
fn page(query: &str) -> Result<(u64, usize), ApiError> {
    let (mut after, mut limit) = (Some(0), Some(AUDIT_LIMIT_DEFAULT));
    let mut faults = Faults::default();
    let mut seen = BTreeSet::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = shown(name);
        match name.as_str() {
            "after" => {
                after = value.parse().ok();
                if after.is_none() {
                    faults.add("after", "expected a whole number from 0");
                }
            }
            "limit" => {
                limit = value.parse().ok().filter(|n| (1..=AUDIT_LIMIT_MAX).contains(n));
                if limit.is_none() {
                    faults.add("limit", format_args!("expected 1 to {AUDIT_LIMIT_MAX}"));
                }
            }
            _ => faults.add(&name, "unknown parameter: allowed are after, limit"),
        }
        if !seen.insert(name.clone()) {
            faults.add(&name, "it is given twice");
        }
    }
    faults.into_result(after.zip(limit))
}

/// Whose token this is.
#[utoipa::path(
    get, path = "/v1/whoami", tag = "system", operation_id = "whoami", security(("bearer" = [])),
    responses((status = 200, body = WhoAmI), (status = "default", body = ErrorBody))
)]
pub(super) async fn whoami(Extension(principal): Extension<Principal>) -> Json<WhoAmI> {
    Json(WhoAmI {
        name: principal.name,
        scopes: principal.scopes.iter().map(ToString::to_string).collect(),
    })
}

/// The pool at a glance.
#[utoipa::path(
    get, path = "/v1/status", tag = "system", operation_id = "status", security(("bearer" = [])),
    responses((status = 200, body = Status), (status = "default", body = ErrorBody))
)]
pub(super) async fn status(State(admin): State<Admin>) -> Json<Status> {
    Json(Status::from(&admin.control.look()))
}

/// What an admin should know or mend, most urgent first.
#[utoipa::path(
    get, path = "/v1/warnings", tag = "system", operation_id = "warning_list", security(("bearer" = [])),
    responses((status = 200, body = List<Warning>), (status = "default", body = ErrorBody))
)]
pub(super) async fn warnings(State(admin): State<Admin>) -> Json<List<Warning>> {
    let items = warning::warnings(&admin.control.look());
    Json(List { items })
}

/// Whether the control plane answers and reads its store. Says nothing else, and needs no token.
#[utoipa::path(
    get, path = "/healthz", tag = "system", operation_id = "health",
    responses((status = 200, body = Health), (status = "default", body = ErrorBody))
)]
pub(super) async fn health(State(admin): State<Admin>) -> Result<Json<Health>, Refused> {
    admin.control.audit(0, 1).await?;
    Ok(Json(Health {
        status: "ok".to_owned(),
    }))
}

/// This document.
#[utoipa::path(
    get, path = "/v1/openapi.json", tag = "system", operation_id = "openapi",
    responses((status = 200, description = "OpenAPI 3.1", body = Object), (status = "default", body = ErrorBody))
)]
pub(super) async fn document(Extension(document): Extension<Arc<OpenApi>>) -> Json<OpenApi> {
    Json(OpenApi::clone(&document))
}
