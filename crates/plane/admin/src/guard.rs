//! What every request passes, whatever its route: security headers, a deadline, and the Host
//! allow-list.

use crate::refused::Refused;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use fairlead_control::ApiError;
use fairlead_model::address::Host;
use fairlead_model::{ApiCode, HostPort};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Uri};
use std::sync::Arc;
use std::time::Duration;

/// How long a request may take, its body included. A verb is a commit or a read: milliseconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Headers of every answer. Answers are data for programs: nothing in them may run, be framed or
/// be kept, no page of another site may load them. The console's files have a policy of their own.
const HEADERS: [(HeaderName, HeaderValue); 7] = [
    (RESOURCE_POLICY, HeaderValue::from_static("same-origin")),
    (OPENER_POLICY, HeaderValue::from_static("same-origin")),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"),
    ),
];

const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

/// Names that a request may be addressed to. A page of another site that makes its own name
/// resolve to this address (DNS rebinding) has that name in the Host header; so any IP literal is
/// let through, and of names only ours.
#[derive(Debug, Clone)]
pub(crate) struct Hosts {
    names: Arc<[String]>,
}

impl Hosts {
    /// `localhost`, and the advertised host where it is a name.
    pub(crate) fn new(advertised: &HostPort) -> Self {
        let mut names = vec!["localhost".to_owned()];
        if let Host::Dns(name) = advertised.host() {
            names.push(name.clone());
        }
        Self { names: names.into() }
    }

    fn allows(&self, host: &HostPort) -> bool {
        match host.host() {
            Host::Ip(_) => true,
            Host::Dns(name) => self.names.contains(name),
        }
    }
}

/// Wraps the routes.
pub(crate) fn guarded(routes: Router, hosts: Hosts) -> Router {
    routes
        .layer(from_fn_with_state(hosts, check_host))
        .layer(from_fn(deadline))
        .layer(from_fn(headers))
}

async fn headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in HEADERS {
        response.headers_mut().entry(name).or_insert(value);
    }
    response
}

async fn deadline(request: Request, next: Next) -> Response {
    tokio::time::timeout(REQUEST_TIMEOUT, next.run(request))
        .await
        .unwrap_or_else(|_| {
            let message = format!("no answer within {} s", REQUEST_TIMEOUT.as_secs());
            Refused::new(ApiCode::Unavailable, message).into_response()
        })
}

async fn check_host(State(hosts): State<Hosts>, request: Request, next: Next) -> Result<Response, Refused> {
    let text = host_of(request.uri(), request.headers());
    // Browsers leave the port out where it is 443.
    let host = text.and_then(|text| HostPort::parse(text, Some(443)).ok());
    if host.is_some_and(|host| hosts.allows(&host)) {
        return Ok(next.run(request).await);
    }
    let shown: String = text.unwrap_or("").chars().take(128).collect();
    Err(ApiError::new(
        ApiCode::InvalidRequest,
        format!("the request is for the host `{shown}`, which is not this one"),
    )
    .with_fault(
        "host",
        format!("expected an IP address, {}", hosts.names.join(" or ")),
    )
    .into())
}

/// The host that the client asked for: `:authority` of HTTP/2, or the one `Host` header.
pub(crate) fn host_of<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    let mut values = headers.get_all(HOST).iter();
    let header = values.next().map(|value| value.to_str());
    if values.next().is_some() {
        return None;
    }
    match (uri.authority(), header) {
        (Some(authority), None) => Some(authority.as_str()),
        // A proxy's form, with both: they must say the same.
        (Some(authority), Some(Ok(header))) => (authority.as_str() == header).then_some(header),
        (None, Some(Ok(header))) => Some(header),
        (_, Some(Err(_))) | (None, None) => None,
    }
}
