//! Tokens, scopes and failed logins.

use super::surface::{PUBLIC, documented, filled};
use super::{Subject, request};
use crate::limit::FAILURES_MAX;
use http::header::{AUTHORIZATION, HOST, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Method, Request, StatusCode};

#[tokio::test]
async fn every_protected_route_wants_a_token() {
    let subject = Subject::start().await;
    for (method, path, _) in documented(&subject).await {
        if PUBLIC.contains(&(method.as_str(), path.as_str())) {
            continue;
        }
        let answer = subject
            .send(request(method.clone(), &filled(&path), None, Some("{}")))
            .await;
        assert_eq!(
            (answer.status, answer.code()),
            (StatusCode::UNAUTHORIZED, "UNAUTHENTICATED"),
            "{method} {path}"
        );
        assert_eq!(answer.headers.get(WWW_AUTHENTICATE).unwrap(), "Bearer");
    }
}

/// A read-only token reads everything and changes nothing, whatever the body.
#[tokio::test]
async fn a_read_only_token_is_refused_every_change() {
    let subject = Subject::start().await;
    let reader = subject.token_with("reader", "read").await;
    let audited = subject.get("/v1/status").await.ok()["audit_seq"].clone();
    let mut changes = 0;
    for (method, path, _) in documented(&subject).await {
        if PUBLIC.contains(&(method.as_str(), path.as_str())) {
            continue;
        }
        for body in [Some("{}"), Some("not JSON"), None] {
            let sent = request(method.clone(), &filled(&path), Some(&reader), body);
            let answer = subject.send(sent).await;
            if method == Method::GET {
                assert_ne!(answer.status, StatusCode::FORBIDDEN, "{method} {path}");
                assert_ne!(answer.status, StatusCode::UNAUTHORIZED, "{method} {path}");
            } else {
                changes += 1;
                assert_eq!(
                    (answer.status, answer.code()),
                    (StatusCode::FORBIDDEN, "FORBIDDEN"),
                    "{method} {path}"
                );
            }
        }
    }
    assert_eq!(changes, 3 * 12, "every changing route was tried");
    // A valid change, too.
    let body = r#"{"value":"24h"}"#;
    let sent = request(
        Method::PUT,
        "/v1/settings/policy.lease",
        Some(&reader),
        Some(body),
    );
    assert_eq!(subject.send(sent).await.code(), "FORBIDDEN");
    assert_eq!(
        subject.get("/v1/settings/policy.lease").await.ok()["value"],
        "72h"
    );
    assert_eq!(subject.get("/v1/status").await.ok()["audit_seq"], audited);
}

#[tokio::test]
async fn a_revoked_token_ends_at_once() {
    let subject = Subject::start().await;
    let second = subject.token_with("second", "admin:system").await;
    let whoami = || request(Method::GET, "/v1/whoami", Some(&second), None);
    let who = subject.send(whoami()).await.ok();
    assert_eq!(who["name"], "second");
    assert_eq!(who["scopes"], serde_json::json!(["admin:system"]));
    subject.delete("/v1/tokens/second").await.ok();
    assert_eq!(subject.send(whoami()).await.code(), "UNAUTHENTICATED");
}

#[tokio::test]
async fn headers_that_are_not_one_bearer_token_are_none() {
    let subject = Subject::start().await;
    let token = &subject.token;
    for (values, status) in [
        (vec![format!("bEARER {token}")], StatusCode::OK),
        (vec![token.clone()], StatusCode::UNAUTHORIZED),
        (vec![format!("Basic {token}")], StatusCode::UNAUTHORIZED),
        (vec!["Bearer ".to_owned()], StatusCode::UNAUTHORIZED),
        (vec![format!("Bearer {token}"); 2], StatusCode::UNAUTHORIZED),
        (
            vec![format!("Bearer {}", "x".repeat(5_000))],
            StatusCode::UNAUTHORIZED,
        ),
    ] {
        let mut sent = Request::builder().uri("/v1/whoami").header(HOST, "localhost");
        for value in &values {
            sent = sent.header(AUTHORIZATION, value);
        }
        let answer = subject.send(sent.body(axum::body::Body::empty()).unwrap()).await;
        assert_eq!(answer.status, status, "{values:?}");
    }
}

/// Failed logins are limited per address; other addresses and open routes go on.
#[tokio::test]
async fn failed_logins_are_limited_by_address() {
    let subject = Subject::start().await;
    let (guesser, other) = ("198.51.100.1:1", "198.51.100.2:1");
    let guess = || request(Method::GET, "/v1/whoami", Some("guess"), None);
    let right = || request(Method::GET, "/v1/whoami", Some(&subject.token), None);
    for n in 0..FAILURES_MAX {
        assert_eq!(
            subject.send_from(guesser, guess()).await.code(),
            "UNAUTHENTICATED",
            "{n}"
        );
    }
    let answer = subject.send_from(guesser, guess()).await;
    assert_eq!(
        (answer.status, answer.code()),
        (StatusCode::TOO_MANY_REQUESTS, "RATE_LIMITED")
    );
    let seconds: u64 = answer
        .headers
        .get(RETRY_AFTER)
        .unwrap()
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((1..=3).contains(&seconds), "{seconds}");
    // Whoever shares the guesser's address, an admin on the same host say, is not kept out.
    assert_eq!(subject.send_from(guesser, right()).await.status, StatusCode::OK);
    assert_eq!(subject.send_from(other, right()).await.status, StatusCode::OK);
    let health = request(Method::GET, "/healthz", None, None);
    assert_eq!(subject.send_from(guesser, health).await.status, StatusCode::OK);
    // Requests without any token are not guesses.
    for _ in 0..2 * FAILURES_MAX {
        let none = request(Method::GET, "/v1/whoami", None, None);
        assert_eq!(subject.send_from(other, none).await.code(), "UNAUTHENTICATED");
    }
    assert_eq!(subject.send_from(other, right()).await.status, StatusCode::OK);
}
