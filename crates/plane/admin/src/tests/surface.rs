//! The document against the router, and what every answer has.

use super::{PEER, Subject, request};
use axum::body::Body;
use http::header::{ALLOW, HOST};
use http::{Method, Request, StatusCode};
use serde_json::Value;

/// Every route, written down a second time: one that is lost or added by accident shows here.
const ROUTES: &[(&str, &str)] = &[
    ("GET", "/healthz"),
    ("GET", "/v1/audit"),
    ("POST", "/v1/enrol"),
    ("GET", "/v1/events"),
    ("GET", "/v1/links"),
    ("POST", "/v1/links"),
    ("POST", "/v1/links/{link}/check"),
    ("DELETE", "/v1/links/{link}"),
    ("GET", "/v1/links/{link}"),
    ("GET", "/v1/nodes"),
    ("POST", "/v1/nodes"),
    ("DELETE", "/v1/nodes/{node}"),
    ("GET", "/v1/nodes/{node}"),
    ("POST", "/v1/nodes/{node}/token"),
    ("GET", "/v1/openapi.json"),
    ("GET", "/v1/relays"),
    ("POST", "/v1/relays"),
    ("DELETE", "/v1/relays/{relay}"),
    ("GET", "/v1/relays/{relay}"),
    ("POST", "/v1/relays/{relay}/token"),
    ("POST", "/v1/session"),
    ("DELETE", "/v1/session"),
    ("GET", "/v1/settings"),
    ("GET", "/v1/settings/{key}"),
    ("PUT", "/v1/settings/{key}"),
    ("GET", "/v1/status"),
    ("GET", "/v1/tokens"),
    ("POST", "/v1/tokens"),
    ("DELETE", "/v1/tokens/{token}"),
    ("GET", "/v1/warnings"),
    ("GET", "/v1/whoami"),
];

/// Routes that need no admin token.
pub(super) const PUBLIC: &[(&str, &str)] = &[
    ("GET", "/healthz"),
    ("GET", "/v1/openapi.json"),
    ("POST", "/v1/enrol"),
    ("POST", "/v1/session"),
    ("DELETE", "/v1/session"),
];

/// Method and path of every operation that the served document lists.
pub(super) async fn documented(subject: &Subject) -> Vec<(Method, String, Value)> {
    let document = subject
        .send(request(Method::GET, "/v1/openapi.json", None, None))
        .await
        .ok();
    assert!(
        document["openapi"].as_str().unwrap().starts_with("3.1"),
        "{document}"
    );
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            operations.push((method, path.clone(), operation.clone()));
        }
    }
    operations
}

/// A path with its parameter filled in.
pub(super) fn filled(path: &str) -> String {
    match (path.find('{'), path.find('}')) {
        (Some(from), Some(to)) => format!("{}policy.lease{}", &path[..from], &path[to + 1..]),
        _ => path.to_owned(),
    }
}

#[tokio::test]
async fn the_document_lists_every_route_and_the_router_has_no_other() {
    let subject = Subject::start().await;
    let operations = documented(&subject).await;
    let mut listed: Vec<(&str, &str)> = operations
        .iter()
        .map(|(m, p, _)| (m.as_str(), p.as_str()))
        .collect();
    listed.sort_by_key(|(method, path)| (*path, *method));
    let mut wanted = ROUTES.to_vec();
    wanted.sort_by_key(|(method, path)| (*path, *method));
    assert_eq!(listed, wanted);

    for (method, path, operation) in &operations {
        let protected = operation.get("security").is_some();
        let public = PUBLIC.contains(&(method.as_str(), path.as_str()));
        assert_eq!(protected, !public, "{method} {path}");
        assert!(
            operation["responses"].get("default").is_some(),
            "{method} {path}: errors"
        );
        assert!(operation["summary"].is_string(), "{method} {path}: summary");
    }
    // Every method on every path: taken if and only if the document has it.
    for (_, path) in ROUTES {
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
            let sent = Method::from_bytes(method.as_bytes()).unwrap();
            let answer = subject.send(request(sent, &filled(path), None, Some("{}"))).await;
            if ROUTES.contains(&(method, path)) {
                assert_ne!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
                assert_ne!(answer.status, StatusCode::NOT_FOUND, "{method} {path}");
            } else {
                assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
                assert_eq!(answer.code(), "METHOD_NOT_ALLOWED");
                let allow = answer.headers.get(ALLOW).expect("Allow").to_str().unwrap();
                let mut allowed: Vec<&str> = allow.split(',').filter(|m| *m != "HEAD").collect();
                allowed.sort_unstable();
                let mut taken: Vec<&str> = ROUTES
                    .iter()
                    .filter(|(_, p)| p == path)
                    .map(|(m, _)| *m)
                    .collect();
                taken.sort_unstable();
                assert_eq!(allowed, taken, "{path}");
            }
        }
    }
}

#[tokio::test]
async fn what_is_not_there_is_an_error_in_json() {
    let subject = Subject::start().await;
    for path in ["/v1", "/v2/relays", "/v1/relays/", "/v1/relays/a/b/c", "/v1/%ff"] {
        let answer = subject.get(path).await;
        assert_eq!(
            (answer.status, answer.code()),
            (StatusCode::NOT_FOUND, "NOT_FOUND"),
            "{path}"
        );
    }
    for path in [
        "/v1/relays/none",
        "/v1/nodes/none",
        "/v1/links/none",
        "/v1/settings/none",
    ] {
        let answer = subject.get(path).await;
        assert_eq!(
            (answer.status, answer.code()),
            (StatusCode::NOT_FOUND, "NOT_FOUND"),
            "{path}"
        );
        assert!(
            answer.body["error"]["message"].as_str().unwrap().contains("none"),
            "{answer:?}"
        );
    }
    let answer = subject.get("/v1/relays/%ff").await;
    assert_eq!(
        (answer.status, answer.fields()),
        (StatusCode::BAD_REQUEST, vec!["path"])
    );
    let health = subject
        .send(request(Method::GET, "/healthz", None, None))
        .await
        .ok();
    assert_eq!(health["status"], "ok");
}

#[tokio::test]
async fn every_answer_has_the_security_headers() {
    let subject = Subject::start().await;
    for answer in [
        subject.get("/v1/status").await,
        subject.get("/none").await,
        subject.send(request(Method::GET, "/v1/status", None, None)).await,
        subject
            .send(request(Method::PATCH, "/v1/status", None, None))
            .await,
    ] {
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
            (
                "content-security-policy",
                "default-src 'none'; frame-ancestors 'none'",
            ),
        ] {
            assert_eq!(answer.headers.get(name).unwrap(), value, "{}", answer.status);
        }
    }
}

/// A page of another site that points its name here (DNS rebinding) is refused.
#[tokio::test]
async fn only_our_own_hosts_are_answered() {
    let subject = Subject::start().await;
    let with_hosts = |uri: &str, hosts: &[&str]| {
        let mut request = Request::builder().uri(uri);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        request.body(Body::empty()).unwrap()
    };
    for host in [
        "control.example:8443",
        "CONTROL.example",
        "control.example.:8443",
        "localhost:1",
        "127.0.0.1:8443",
        "192.0.2.9",
        "[::1]:8443",
        "[2001:db8::1]",
    ] {
        let answer = subject.send_from(PEER, with_hosts("/healthz", &[host])).await;
        assert_eq!(answer.status, StatusCode::OK, "{host}");
    }
    for hosts in [
        &["evil.example:8443"][..],
        &["evil.control.example"],
        &["control.example.evil.test"],
        &[""],
        &["control.example:8443", "evil.example"],
        &["user@control.example"],
        &["control.example:99999"],
        &[],
    ] {
        let answer = subject.send_from(PEER, with_hosts("/healthz", hosts)).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{hosts:?}");
        assert_eq!(answer.fields(), ["host"], "{hosts:?}");
    }
    // HTTP/2 has the host in the URI.
    for (uri, hosts, status) in [
        ("https://control.example:8443/healthz", &[][..], StatusCode::OK),
        ("https://evil.example/healthz", &[], StatusCode::BAD_REQUEST),
        (
            "https://control.example/healthz",
            &["evil.example"],
            StatusCode::BAD_REQUEST,
        ),
    ] {
        let answer = subject.send_from(PEER, with_hosts(uri, hosts)).await;
        assert_eq!(answer.status, status, "{uri} {hosts:?}");
    }
}

/// A parameter that a route does not take is refused by name: one that is ignored looks heeded.
#[tokio::test]
async fn unknown_query_parameters_are_named_on_every_route() {
    let subject = Subject::start().await;
    for (method, path) in ROUTES {
        let url = format!("{}?foo=1&limt", filled(path));
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let refused = subject
            .send(request(method.clone(), &url, Some(&subject.token), Some("{}")))
            .await;
        assert_eq!(
            (refused.status, refused.code()),
            (StatusCode::BAD_REQUEST, "INVALID_REQUEST"),
            "{method} {url}"
        );
        assert_eq!(refused.fields(), ["foo", "limt"], "{method} {url}");
    }
}

/// The console says of a link's class what is so: nothing goes by it.
#[test]
fn the_console_promises_nothing_of_a_class() {
    let dialogs = include_str!("../../console/dialogs.js");
    assert!(dialogs.contains("What the service is. Shown, and decides nothing yet."));
    assert!(!dialogs.contains("limits and priority"));
}
