//! Browsers: login, cookie, logout, and what a cookie may do.

use super::{ADVERTISED, Subject};
use axum::body::Body;
use http::header::{CONTENT_TYPE, COOKIE, HOST, ORIGIN, SET_COOKIE};
use http::{HeaderMap, Method, Request, StatusCode};

/// A request of a page of ours.
pub(super) fn from_page(method: Method, path: &str, cookie: Option<&str>, body: &str) -> Request<Body> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, ADVERTISED)
        .header(ORIGIN, format!("https://{ADVERTISED}"))
        .header("sec-fetch-site", "same-origin")
        .header(CONTENT_TYPE, "application/json");
    if let Some(cookie) = cookie {
        request = request.header(COOKIE, cookie);
    }
    request.body(Body::from(body.to_owned())).unwrap()
}

/// The cookie that an answer sets, as it is sent back.
pub(super) fn cookie(headers: &HeaderMap) -> String {
    let text = headers.get(SET_COOKIE).expect("a cookie").to_str().unwrap();
    text.split(';').next().unwrap().to_owned()
}

/// Logs in, and returns the cookie.
pub(super) async fn log_in(subject: &Subject, token: &str) -> String {
    let body = serde_json::json!({ "token": token }).to_string();
    let answer = subject
        .send(from_page(Method::POST, "/v1/session", None, &body))
        .await;
    assert_eq!(answer.status, StatusCode::CREATED, "{answer:?}");
    cookie(&answer.headers)
}

#[tokio::test]
async fn a_token_is_exchanged_for_a_cookie_that_does_what_the_token_may() {
    let subject = Subject::start().await;
    let body = serde_json::json!({ "token": subject.token }).to_string();
    let answer = subject
        .send(from_page(Method::POST, "/v1/session", None, &body))
        .await;
    assert_eq!(answer.status, StatusCode::CREATED);
    assert_eq!(answer.body["name"], "first");
    assert!(!answer.body.to_string().contains(&subject.token));
    let set = answer.headers.get(SET_COOKIE).unwrap().to_str().unwrap();
    let (value, attributes) = set.split_once("; ").unwrap();
    assert!(value.starts_with("__Host-fairlead=") && value.len() > 50, "{set}");
    assert!(!value.contains(&subject.token));
    assert_eq!(attributes, "Path=/; Secure; HttpOnly; SameSite=Strict");

    let cookie = cookie(&answer.headers);
    let who = subject
        .send(from_page(Method::GET, "/v1/whoami", Some(&cookie), ""))
        .await;
    assert_eq!(who.ok()["name"], "first");
    let add = from_page(Method::POST, "/v1/nodes", Some(&cookie), r#"{"name":"a"}"#);
    assert_eq!(subject.send(add).await.status, StatusCode::CREATED);
    let audit = subject.get("/v1/audit").await.ok();
    let last = audit["items"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(
        (&last["action"], &last["actor"]),
        (&"node.add".into(), &"token first".into())
    );

    let out = subject
        .send(from_page(Method::DELETE, "/v1/session", Some(&cookie), ""))
        .await;
    assert_eq!(out.status, StatusCode::NO_CONTENT);
    assert!(
        out.headers
            .get(SET_COOKIE)
            .unwrap()
            .to_str()
            .unwrap()
            .ends_with("Max-Age=0")
    );
    let who = subject
        .send(from_page(Method::GET, "/v1/whoami", Some(&cookie), ""))
        .await;
    assert_eq!(
        (who.status, who.code()),
        (StatusCode::UNAUTHORIZED, "UNAUTHENTICATED")
    );
}

/// A cookie that was planted before the login opens nothing after it, and a second login ends the
/// first.
#[tokio::test]
async fn a_session_is_never_fixed_from_outside() {
    let subject = Subject::start().await;
    let planted = "__Host-fairlead=planted-by-somebody-else";
    let body = serde_json::json!({ "token": subject.token }).to_string();
    let login = |cookie: &str| from_page(Method::POST, "/v1/session", Some(cookie), &body);
    let answer = subject.send(login(planted)).await;
    let first = cookie(&answer.headers);
    assert_ne!(first, planted);
    let second = cookie(&subject.send(login(&first)).await.headers);
    assert_ne!(first, second);
    for (cookie, status) in [
        (planted, StatusCode::UNAUTHORIZED),
        (&first, StatusCode::UNAUTHORIZED),
        (&second, StatusCode::OK),
        (&format!("{second}; {second}"), StatusCode::UNAUTHORIZED),
    ] {
        let who = subject
            .send(from_page(Method::GET, "/v1/whoami", Some(cookie), ""))
            .await;
        assert_eq!(who.status, status, "{cookie}");
    }
}

/// A session ends with its token.
#[tokio::test]
async fn a_revoked_token_ends_its_sessions() {
    let subject = Subject::start().await;
    let secret = subject.token_with("second", "admin:system").await;
    let cookie = log_in(&subject, &secret).await;
    subject.delete("/v1/tokens/second").await.ok();
    let who = subject
        .send(from_page(Method::GET, "/v1/whoami", Some(&cookie), ""))
        .await;
    assert_eq!(who.code(), "UNAUTHENTICATED");
}

/// A header decides over a cookie: a wrong token is not mended by a good session.
#[tokio::test]
async fn a_token_in_the_header_is_the_only_one_that_counts() {
    let subject = Subject::start().await;
    let cookie = log_in(&subject, &subject.token).await;
    let mut sent = from_page(Method::GET, "/v1/whoami", Some(&cookie), "");
    let wrong = http::HeaderValue::from_static("Bearer wrong");
    sent.headers_mut().insert(http::header::AUTHORIZATION, wrong);
    assert_eq!(subject.send(sent).await.code(), "UNAUTHENTICATED");
}
