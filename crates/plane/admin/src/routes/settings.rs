//! Settings.

use super::{Answer, Which};
use crate::Admin;
use crate::body::Body;
use crate::json::{ErrorBody, List, SetSetting, Setting};
use axum::extract::State;
use axum::{Extension, Json};
use fairlead_control::api::Principal;

/// Every setting, with its default, range and meaning.
#[utoipa::path(
    get, path = "/v1/settings", tag = "system", operation_id = "setting_list", security(("bearer" = [])),
    responses((status = 200, body = List<Setting>), (status = "default", body = ErrorBody))
)]
pub(super) async fn list(State(admin): State<Admin>) -> Json<List<Setting>> {
    let items = admin
        .control
        .settings()
        .await
        .into_iter()
        .map(Into::into)
        .collect();
    Json(List { items })
}

/// One setting.
#[utoipa::path(
    get, path = "/v1/settings/{key}", tag = "system", operation_id = "setting_show",
    security(("bearer" = [])),
    params(("key" = String, Path, description = "Key, such as policy.lease")),
    responses((status = 200, body = Setting), (status = "default", body = ErrorBody))
)]
pub(super) async fn show(State(admin): State<Admin>, Which(key): Which) -> Answer<Setting> {
    Ok(Json(admin.control.setting(&key).await?.into()))
}

/// Sets a setting.
#[utoipa::path(
    put, path = "/v1/settings/{key}", tag = "system", operation_id = "setting_set",
    security(("bearer" = [])),
    params(("key" = String, Path, description = "Key, such as policy.lease")),
    request_body = SetSetting,
    responses((status = 200, body = Setting), (status = "default", body = ErrorBody))
)]
pub(super) async fn set(
    State(admin): State<Admin>,
    Extension(principal): Extension<Principal>,
    Which(key): Which,
    Body(SetSetting { value }): Body<SetSetting>,
) -> Answer<Setting> {
    Ok(Json(
        admin.control.set_setting(&principal, &key, &value).await?.into(),
    ))
}
