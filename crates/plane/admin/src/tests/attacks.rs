//! The interface attacked as a browser would be, or through one.

use super::session::{from_page, log_in};
use super::surface::{PUBLIC, documented, filled};
use super::{ADVERTISED, PEER, Subject, request};
use crate::limit::FAILURES_MAX;
use axum::body::Body;
use http::header::{CONTENT_TYPE, COOKIE, HOST, ORIGIN};
use http::{HeaderValue, Method, Request, StatusCode};
use tower::ServiceExt as _;

/// What a page of another site can make a browser send with our cookie, if the browser lets it.
fn foreign(method: &Method, path: &str, cookie: &str) -> Vec<(&'static str, Request<Body>)> {
    let page = || from_page(method.clone(), path, Some(cookie), r#"{"name":"evil"}"#);
    let with = |what, change: &dyn Fn(&mut Request<Body>)| {
        let mut request = page();
        change(&mut request);
        (what, request)
    };
    let origin = |text| {
        move |request: &mut Request<Body>| {
            request
                .headers_mut()
                .insert(ORIGIN, HeaderValue::from_static(text));
        }
    };
    let kind = |text| {
        move |request: &mut Request<Body>| {
            request
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static(text));
        }
    };
    vec![
        with("another origin", &origin("https://evil.example")),
        with(
            "another port of this host",
            &origin("https://control.example:9999"),
        ),
        with("plain text of this host", &origin("http://control.example:8443")),
        with("a sandboxed frame", &origin("null")),
        with("no origin", &|request| {
            request.headers_mut().remove(ORIGIN);
        }),
        with("a form", &kind("application/x-www-form-urlencoded")),
        with("a file form", &kind("multipart/form-data; boundary=x")),
        with("a plain-text form", &kind("text/plain")),
        with("no type", &|request| {
            request.headers_mut().remove(CONTENT_TYPE);
        }),
        with("a site that shares our domain", &|request| {
            request
                .headers_mut()
                .insert("sec-fetch-site", HeaderValue::from_static("same-site"));
        }),
    ]
}

/// Every changing route of the document, those of sessions included, refuses every request that a
/// page of another site can cause, and nothing is changed.
#[tokio::test]
async fn no_other_site_changes_anything_through_a_browser() {
    let subject = Subject::start().await;
    let cookie = log_in(&subject, &subject.token).await;
    let audited = subject.get("/v1/status").await.ok()["audit_seq"].clone();
    let mut tried = 0;
    for (method, path, _) in documented(&subject).await {
        // Enrolment knows no cookie: its token is in the body.
        if method == Method::GET || path == "/v1/enrol" {
            continue;
        }
        for (what, sent) in foreign(&method, &filled(&path), &cookie) {
            let answer = subject.send(sent).await;
            let refused = [StatusCode::FORBIDDEN, StatusCode::BAD_REQUEST].contains(&answer.status);
            assert!(refused, "{what}: {method} {path}: {}", answer.status);
            assert!(
                ["CROSS_SITE", "INVALID_REQUEST"].contains(&answer.code()),
                "{what}: {method} {path}: {}",
                answer.code()
            );
            tried += 1;
        }
    }
    assert!(tried >= 10 * 13, "{tried}");
    assert_eq!(subject.get("/v1/status").await.ok()["audit_seq"], audited);
    let who = subject
        .send(from_page(Method::GET, "/v1/whoami", Some(&cookie), ""))
        .await;
    assert_eq!(who.status, StatusCode::OK, "no other site logs anybody out");
    // Reads by a page of another site, too, where the browser says so.
    let mut read = from_page(Method::GET, "/v1/relays", Some(&cookie), "");
    let site = HeaderValue::from_static("cross-site");
    read.headers_mut().insert("sec-fetch-site", site);
    assert_eq!(subject.send(read).await.code(), "CROSS_SITE");
    // And no answer invites any other site.
    for path in ["/v1/status", "/", "/console/app.js"] {
        let sent = Request::options(path)
            .header(HOST, ADVERTISED)
            .header(ORIGIN, "https://evil.example")
            .header("access-control-request-method", "DELETE");
        let answer = subject.send(sent.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
        let cors = |name: &http::HeaderName| name.as_str().starts_with("access-control");
        assert!(!answer.headers.keys().any(cors), "{path}");
    }
}

/// A `read` session changes nothing, as its token does not, on every changing route there is.
#[tokio::test]
async fn a_read_only_session_is_refused_every_change() {
    let subject = Subject::start().await;
    let secret = subject.token_with("reader", "read").await;
    let cookie = log_in(&subject, &secret).await;
    let audited = subject.get("/v1/status").await.ok()["audit_seq"].clone();
    for (method, path, _) in documented(&subject).await {
        if PUBLIC.contains(&(method.as_str(), path.as_str())) {
            continue;
        }
        let answer = subject
            .send(from_page(method.clone(), &filled(&path), Some(&cookie), "{}"))
            .await;
        if method == Method::GET {
            assert_ne!(answer.status, StatusCode::FORBIDDEN, "{method} {path}");
            assert_ne!(answer.status, StatusCode::UNAUTHORIZED, "{method} {path}");
        } else {
            assert_eq!(answer.code(), "FORBIDDEN", "{method} {path}");
        }
    }
    assert_eq!(subject.get("/v1/status").await.ok()["audit_seq"], audited);
}

/// Ten thousand wrong tokens, through the login and the header: held back after the first few, no
/// memory for them, and an admin logs in meanwhile, from elsewhere and from the same address.
#[tokio::test]
async fn ten_thousand_wrong_tokens_keep_nobody_out() {
    let subject = Subject::start().await;
    let guesser = "198.51.100.9:1";
    let (mut limited, mut refused) = (0, 0);
    for n in 0..10_000 {
        let sent = if n % 2 == 0 {
            let body = format!(r#"{{"token":"guess-{n}"}}"#);
            from_page(Method::POST, "/v1/session", None, &body)
        } else {
            request(Method::GET, "/v1/status", Some(&format!("guess-{n}")), None)
        };
        match subject.send_from(guesser, sent).await.code() {
            "RATE_LIMITED" => limited += 1,
            "UNAUTHENTICATED" => refused += 1,
            other => panic!("{other}"),
        }
    }
    // A refill each 3 s: even a slow run lets few through.
    assert!(
        refused < FAILURES_MAX as usize + 100,
        "{refused} of 10,000 were looked at"
    );
    assert_eq!(limited + refused, 10_000);
    let body = serde_json::json!({ "token": subject.token }).to_string();
    for address in [PEER, guesser] {
        let sent = from_page(Method::POST, "/v1/session", None, &body);
        assert_eq!(
            subject.send_from(address, sent).await.status,
            StatusCode::CREATED,
            "{address}"
        );
    }
}

/// Names are checked before anything is kept: there is no node whose name is markup.
#[tokio::test]
async fn a_name_is_never_markup() {
    let subject = Subject::start().await;
    for name in [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "a\"onmouseover=alert(1)",
        "a'b",
        "a&lt;b",
        "javascript:alert(1)",
        "a\u{202e}b",
        "a\nb",
        "",
    ] {
        for path in ["/v1/nodes", "/v1/relays", "/v1/links", "/v1/tokens"] {
            let answer = subject.post(path, serde_json::json!({ "name": name })).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path} {name}");
            assert!(answer.fields().contains(&"name"), "{path} {name}");
        }
    }
    let failure_domain = serde_json::json!({"name": "a", "address": "a:1", "failure_domain": "<b>"});
    let answer = subject.post("/v1/relays", failure_domain).await;
    assert_eq!(answer.fields(), ["failure_domain"]);
}

/// The console's files are those in the table; no path leads anywhere else.
#[tokio::test]
async fn assets_are_a_table_and_no_path_leaves_it() {
    let subject = Subject::start().await;
    let get = |path: &str| {
        let sent = Request::get(path).header(HOST, ADVERTISED);
        subject.router.clone().oneshot(sent.body(Body::empty()).unwrap())
    };
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/console/app.js", "text/javascript; charset=utf-8"),
        ("/console/base.css", "text/css; charset=utf-8"),
        ("/console/icon.svg", "image/svg+xml"),
    ] {
        let answer = get(path).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        assert_eq!(answer.headers().get(CONTENT_TYPE).unwrap(), kind);
        let policy = answer.headers().get("content-security-policy").unwrap();
        let policy = policy.to_str().unwrap();
        for part in [
            "default-src 'none'",
            "script-src 'self';",
            "style-src 'self';",
            "connect-src 'self';",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        ] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("x-frame-options", "DENY"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(answer.headers().get(name).unwrap(), value, "{path}");
        }
    }
    for path in [
        "/console/",
        "/console/../Cargo.toml",
        "/console/..%2fCargo.toml",
        "/console/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/console//etc/passwd",
        "/console/app.js/..",
        "/console/app.js%00.css",
        "/console/APP.JS",
        "/console/index.html",
        "/..%2f..%2fetc/passwd",
        "/.git/config",
        "/console/%ff",
    ] {
        let answer = get(path).await.unwrap();
        assert!(
            [StatusCode::NOT_FOUND, StatusCode::BAD_REQUEST].contains(&answer.status()),
            "{path}: {}",
            answer.status()
        );
    }
    // Nothing inline, nothing from elsewhere.
    let page = include_str!("../../console/index.html");
    for barred in [
        "<style",
        "style=",
        "onclick",
        "onload",
        "http://",
        "https://",
        "//cdn",
        "javascript:",
    ] {
        assert!(!page.contains(barred), "{barred}");
    }
    assert!(!page.contains("<script>"), "an inline script");
}

/// No file of the console makes markup of text.
#[test]
fn the_console_has_no_way_to_make_markup() {
    for (name, _, content) in crate::console::FILES {
        let text = std::str::from_utf8(content).unwrap();
        for barred in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "DOMParser",
            "srcdoc",
            "localStorage",
            "sessionStorage",
        ] {
            assert!(!text.contains(barred), "{name}: {barred}");
        }
    }
}

/// Queries that a route does not know are refused with their names.
#[tokio::test]
async fn unknown_parameters_are_refused_by_name() {
    let subject = Subject::start().await;
    let cookie = log_in(&subject, &subject.token).await;
    for path in [
        "/v1/links",
        "/v1/nodes",
        "/v1/relays/none",
        "/v1/status",
        "/v1/warnings",
        "/healthz",
        "/",
    ] {
        let answer = subject
            .get(&format!("{path}?state=ready&colour=1&state=x&&"))
            .await;
        assert_eq!(
            (answer.status, answer.code()),
            (StatusCode::BAD_REQUEST, "INVALID_REQUEST")
        );
        assert_eq!(answer.fields(), ["colour", "state"], "{path}");
    }
    let answer = subject.get("/v1/events?token=x").await;
    assert_eq!(answer.fields(), ["token"]);
    let mut sent = from_page(Method::POST, "/v1/nodes?x=1", Some(&cookie), r#"{"name":"a"}"#);
    sent.headers_mut().remove(COOKIE);
    assert_eq!(subject.send(sent).await.fields(), ["x"]);
    assert_eq!(subject.get("/v1/links?").await.status, StatusCode::OK);
}
