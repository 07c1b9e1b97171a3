//! Who asks, and whether they may: the token or the session, its scope, and the limit of failed
//! logins.

use crate::body::check_content_type;
use crate::limit::FailureLimit;
use crate::refused::{RETRY_AFTER_DETAIL, Refused};
use crate::session::{SessionKey, Sessions};
use crate::{Admin, origin};
use axum::extract::{Extension, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use fairlead_control::api::Principal;
use fairlead_control::{ApiError, PeerAddress};
use fairlead_model::{ApiCode, TokenId};
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Sessions of browsers, and failed logins of all addresses.
#[derive(Debug, Default)]
pub(crate) struct Access {
    pub(crate) sessions: Sessions,
    failures: Mutex<FailureLimit>,
}

/// What a request is made with; it can be asked again later, by answers that go on for hours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Credential {
    /// An admin token.
    Token(TokenId),
    /// A browser's session.
    Session(SessionKey),
}

impl Credential {
    /// Whose it is, while it is valid; a session counts as used.
    pub(crate) fn principal(self, admin: &Admin) -> Option<Principal> {
        let token = match self {
            Self::Token(token) => token,
            Self::Session(key) => admin.access.sessions.token(key, Instant::now())?,
        };
        admin.control.principal(token)
    }
}

/// Greatest length of a bearer token that is looked at; ours have 43 characters and a prefix.
const TOKEN_LEN_MAX: usize = 256;

impl Access {
    /// Counts a failed login. Only failures are ever held back: a secret has 256 bits, so there is
    /// nothing to guess, and whoever shares an admin's address cannot keep the admin out.
    ///
    /// # Errors
    /// The address has failed too often: it is told when to try again, nothing more.
    pub(crate) fn failed(&self, address: IpAddr) -> Result<(), Refused> {
        let mut failures = self.failures();
        let now = Instant::now();
        let Some(wait) = failures.wait(address, now) else {
            failures.failed(address, now);
            return Ok(());
        };
        let seconds = wait.as_secs().max(1);
        Err(ApiError::new(
            ApiCode::RateLimited,
            format!("too many failed logins from this address: try again in {seconds} s"),
        )
        .with_detail(RETRY_AFTER_DETAIL, seconds)
        .into())
    }

    fn failures(&self) -> MutexGuard<'_, FailureLimit> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address that a request came from.
pub(crate) fn address_of(peer: Option<Extension<PeerAddress>>) -> IpAddr {
    peer.map_or(
        IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        |Extension(PeerAddress(address))| address.ip(),
    )
}

/// Lets a request through to its route if its token or session allows the method: GET and HEAD
/// read, all others change. The handler finds the [`Principal`] and the [`Credential`] in the
/// request's extensions.
///
/// Being a layer, it cannot be forgotten by a handler.
pub(crate) async fn authorise(
    State(admin): State<Admin>,
    peer: Option<Extension<PeerAddress>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Refused> {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let (principal, credential) = if request.headers().contains_key(AUTHORIZATION) {
        by_token(&admin, request.headers(), address_of(peer)).await?
    } else {
        by_session(&admin, &request, reads)?
    };
    allow(&principal, reads)?;
    request.extensions_mut().insert(principal);
    request.extensions_mut().insert(credential);
    Ok(next.run(request).await)
}

async fn by_token(
    admin: &Admin,
    headers: &HeaderMap,
    address: IpAddr,
) -> Result<(Principal, Credential), Refused> {
    let principal = match bearer(headers) {
        Some(token) => login(admin, token, address).await?,
        None => return Err(no_token()),
    };
    let credential = Credential::Token(principal.token);
    Ok((principal, credential))
}

/// Whose a token is; a wrong one counts against the address.
pub(crate) async fn login(admin: &Admin, token: &str, address: IpAddr) -> Result<Principal, Refused> {
    match admin.control.authenticate(token).await {
        Ok(principal) => Ok(principal),
        Err(error) => {
            if error.code == ApiCode::Unauthenticated {
                admin.access.failed(address)?;
            }
            Err(error.into())
        }
    }
}

/// By cookie, which browsers send by themselves: so the request must come from a page of ours, and
/// a change must be one that no form can make. A cookie that opens nothing is no failed login: it
/// is what every open page has when the control plane starts again.
fn by_session(admin: &Admin, request: &Request, reads: bool) -> Result<(Principal, Credential), Refused> {
    let key = SessionKey::of(request.headers()).ok_or_else(no_token)?;
    if reads {
        origin::check_read(request.headers())?;
    } else {
        origin::check_change(request.uri(), request.headers())?;
        check_content_type(request.headers())?;
    }
    let credential = Credential::Session(key);
    let principal = credential
        .principal(admin)
        .ok_or_else(|| Refused::new(ApiCode::Unauthenticated, "the session has ended: log in again"))?;
    Ok((principal, credential))
}

fn no_token() -> Refused {
    Refused::new(
        ApiCode::Unauthenticated,
        "no token: send the header `Authorization: Bearer <token>`",
    )
}

fn allow(principal: &Principal, reads: bool) -> Result<(), Refused> {
    let (allowed, needed) = if reads {
        (principal.may_read(), "read or admin:system")
    } else {
        (principal.may_change(), "admin:system")
    };
    if allowed {
        return Ok(());
    }
    Err(ApiError::new(
        ApiCode::Forbidden,
        format!(
            "token `{}` may not do this: it needs the scope {needed}",
            principal.name
        ),
    )
    .with_detail("scope_needed", needed)
    .into())
}

/// The token of `Authorization: Bearer …`; the scheme's case does not matter (RFC 9110 section
/// 11.1). Two such headers are none.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (values.next()?.to_str().ok()?, values.next()) else {
        return None;
    };
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.len() <= TOKEN_LEN_MAX)
        .then_some(token)
}
