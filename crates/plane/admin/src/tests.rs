//! The interface over a real control plane in a folder of its own.

mod access;
mod attacks;
mod bodies;
mod enrol;
mod events;
mod session;
mod surface;
mod tls;
mod verbs;

use axum::Router;
use axum::body::Body;
use fairlead_control::{Control, ControlSettings, PeerAddress};
use fairlead_host::SystemClock;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use tower::ServiceExt as _;

/// Where requests of the tests come from, unless a test says otherwise.
const PEER: &str = "192.0.2.7:40000";
/// The host that the control plane is advertised as.
const ADVERTISED: &str = "control.example:8443";

/// A control plane, its router and its first admin token.
struct Subject {
    control: Control,
    router: Router,
    token: String,
    dir: tempfile::TempDir,
}

/// An answer, read.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Value,
}

impl Answer {
    fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or("none")
    }

    /// The fields of the error's faults.
    fn fields(&self) -> Vec<&str> {
        let faults = self.body["error"]["faults"]
            .as_array()
            .expect("an error with faults");
        faults.iter().map(|f| f["field"].as_str().unwrap()).collect()
    }

    fn ok(self) -> Value {
        assert!(self.status.is_success(), "{self:?}");
        self.body
    }
}

impl Subject {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = ControlSettings::new(dir.path().join("control"), ADVERTISED.parse().unwrap());
        settings.lab = true;
        let control = Control::open(settings, Arc::new(SystemClock::new()))
            .await
            .unwrap();
        let token = std::fs::read_to_string(dir.path().join("control/admin.token")).unwrap();
        Self {
            router: crate::router(control.clone()),
            control,
            token: token.trim().to_owned(),
            dir,
        }
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        self.send_from(PEER, request).await
    }

    async fn send_from(&self, peer: &str, mut request: Request<Body>) -> Answer {
        let peer: SocketAddr = peer.parse().unwrap();
        request.extensions_mut().insert(PeerAddress(peer));
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let kind = parts.headers.get(CONTENT_TYPE);
        if kind.is_some_and(|kind| kind == "text/event-stream") || parts.status == StatusCode::NO_CONTENT {
            // It has no end, or nothing in it.
            return Answer {
                status: parts.status,
                headers: parts.headers,
                body: Value::Null,
            };
        }
        let bytes = body.collect().await.unwrap().to_bytes();
        let is_json = parts
            .headers
            .get(CONTENT_TYPE)
            .is_some_and(|t| t == "application/json");
        assert!(
            is_json,
            "every answer is JSON: {} {:?}",
            parts.status, parts.headers
        );
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: serde_json::from_slice(&bytes).unwrap(),
        }
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(request(Method::GET, path, Some(&self.token), None))
            .await
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        self.call(Method::POST, path, body).await
    }

    async fn call(&self, method: Method, path: &str, body: Value) -> Answer {
        let body = body.to_string();
        self.send(request(method, path, Some(&self.token), Some(&body)))
            .await
    }

    async fn delete(&self, path: &str) -> Answer {
        self.send(request(Method::DELETE, path, Some(&self.token), None))
            .await
    }

    /// A new admin token with one scope.
    async fn token_with(&self, name: &str, scope: &str) -> String {
        let body = serde_json::json!({"name": name, "scopes": [scope]});
        let made = self.post("/v1/tokens", body).await.ok();
        made["secret"].as_str().unwrap().to_owned()
    }
}

fn request(method: Method, path: &str, token: Option<&str>, body: Option<&str>) -> Request<Body> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, ADVERTISED);
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    match body {
        Some(body) => request
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_owned())),
        None => request.body(Body::empty()),
    }
    .unwrap()
}
