//! Enrolment: the only change that needs no admin token; its own token is in the body.

use super::Answer;
use crate::Admin;
use crate::access::address_of;
use crate::body::Body;
use crate::json::{EnrolRequest, EnrolResponse, ErrorBody};
use axum::extract::State;
use axum::{Extension, Json};
use fairlead_control::PeerAddress;
use fairlead_model::ApiCode;

/// Enrols a relay or node with its one-shot token and a certificate signing request (R-ENR-02,
/// R-ENR-03). Unknown tokens count as failed logins of the address; used and expired ones, which
/// somebody was given, do not.
#[utoipa::path(
    post, path = "/v1/enrol", tag = "members", operation_id = "enrol",
    request_body = EnrolRequest,
    responses((status = 200, body = EnrolResponse), (status = "default", body = ErrorBody))
)]
pub(super) async fn enrol(
    State(admin): State<Admin>,
    peer: Option<Extension<PeerAddress>>,
    Body(request): Body<EnrolRequest>,
) -> Answer<EnrolResponse> {
    let address = address_of(peer);
    match admin.control.enrol(request.into(), address).await {
        Ok(enrolled) => Ok(Json(enrolled.into())),
        Err(error) => {
            if error.code == ApiCode::TokenUnknown {
                admin.access.failed(address)?;
            }
            Err(error.into())
        }
    }
}
