//! The event stream.

use super::session::{from_page, log_in};
use super::{PEER, Subject, request};
use crate::events::{SUBSCRIBERS_MAX, SUBSCRIBERS_PER_TOKEN_MAX};
use axum::body::{Body, BodyDataStream};
use fairlead_control::PeerAddress;
use futures_util::StreamExt as _;
use http::{Method, Request, StatusCode};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;
use tower::ServiceExt as _;

/// Far more than a piece takes; a beat comes each 10 s.
const PIECE_WAIT: Duration = Duration::from_secs(30);

struct Stream {
    body: BodyDataStream,
    id: String,
    objects: BTreeMap<String, Value>,
    anew: usize,
}

impl Stream {
    async fn open(subject: &Subject, mut sent: Request<Body>) -> Self {
        sent.extensions_mut().insert(PeerAddress(PEER.parse().unwrap()));
        let answer = subject.router.clone().oneshot(sent).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        Self {
            body: answer.into_body().into_data_stream(),
            id: String::new(),
            objects: BTreeMap::new(),
            anew: 0,
        }
    }

    /// The next event's name, its objects taken in; `None` at the end.
    async fn next(&mut self) -> Option<String> {
        let piece = tokio::time::timeout(PIECE_WAIT, self.body.next())
            .await
            .expect("a piece");
        let text = String::from_utf8(piece?.unwrap().to_vec()).unwrap();
        assert!(text.ends_with("\n\n"), "{text}");
        let mut name = String::new();
        for line in text.lines() {
            match line.split_once(": ") {
                Some(("id", id)) => id.clone_into(&mut self.id),
                Some(("event", event)) => event.clone_into(&mut name),
                Some(("data", data)) if name == "change" => self.take(&serde_json::from_str(data).unwrap()),
                Some(("data" | "retry", _)) | None => {}
                Some(other) => panic!("{other:?}"),
            }
        }
        Some(name)
    }

    fn take(&mut self, change: &Value) {
        if change["anew"] == true {
            self.objects.clear();
            self.anew += 1;
        }
        for item in change["items"].as_array().unwrap() {
            let key = format!(
                "{}/{}",
                item["kind"].as_str().unwrap(),
                item["id"].as_str().unwrap()
            );
            if item["value"].is_null() {
                assert!(self.objects.remove(&key).is_some(), "{key}");
            } else {
                self.objects.insert(key, item["value"].clone());
            }
        }
    }

    async fn until(&mut self, what: &str, holds: impl Fn(&BTreeMap<String, Value>) -> bool) {
        while !holds(&self.objects) {
            assert!(self.next().await.is_some(), "{what}: the stream ended");
        }
    }
}

fn named(objects: &BTreeMap<String, Value>, name: &str) -> bool {
    objects.values().any(|value| value["name"] == name)
}

#[tokio::test]
async fn everything_comes_first_then_each_change_and_a_broken_stream_goes_on() {
    let subject = Subject::start().await;
    subject
        .post("/v1/nodes", serde_json::json!({"name": "a"}))
        .await
        .ok();
    let events = || request(Method::GET, "/v1/events", Some(&subject.token), None);
    let mut stream = Stream::open(&subject, events()).await;
    assert_eq!(stream.next().await.as_deref(), Some("change"));
    assert!(named(&stream.objects, "a") && stream.objects.contains_key("status/"));
    subject
        .post("/v1/nodes", serde_json::json!({"name": "b"}))
        .await
        .ok();
    stream.until("node b", |objects| named(objects, "b")).await;
    assert_eq!(stream.anew, 1);
    let (id, objects) = (stream.id.clone(), stream.objects.clone());
    drop(stream);

    subject.delete("/v1/nodes/a").await.ok();
    let mut again = events();
    again.headers_mut().insert("last-event-id", id.parse().unwrap());
    let mut stream = Stream::open(&subject, again).await;
    stream.objects = objects;
    stream.until("node a goes", |objects| !named(objects, "a")).await;
    assert_eq!(stream.anew, 0, "nothing was sent a second time");
    assert!(named(&stream.objects, "b"));
    // A stream of another process begins anew.
    for id in ["", "x", "0000000000000000-1-1", "\u{7f}-1"] {
        let mut other = events();
        let Ok(id) = id.parse() else { continue };
        other.headers_mut().insert("last-event-id", id);
        let mut stream = Stream::open(&subject, other).await;
        stream.next().await;
        assert_eq!(stream.anew, 1);
    }
}

/// Neither a wrong token nor a wrong cookie opens a stream, and one that is open ends with its
/// session and with its token.
#[tokio::test]
async fn a_stream_needs_and_ends_with_its_credential() {
    let subject = Subject::start().await;
    for sent in [
        request(Method::GET, "/v1/events", None, None),
        request(Method::GET, "/v1/events", Some("wrong"), None),
        from_page(Method::GET, "/v1/events", Some("__Host-fairlead=wrong"), ""),
    ] {
        let answer = subject.send(sent).await;
        assert_eq!(
            (answer.status, answer.code()),
            (StatusCode::UNAUTHORIZED, "UNAUTHENTICATED")
        );
    }
    let secret = subject.token_with("reader", "read").await;
    let cookie = log_in(&subject, &secret).await;
    let page = || from_page(Method::GET, "/v1/events", Some(&cookie), "");
    let mut by_cookie = Stream::open(&subject, page()).await;
    let mut by_token = Stream::open(&subject, request(Method::GET, "/v1/events", Some(&secret), None)).await;
    by_cookie.next().await;
    by_token.next().await;
    subject
        .send(from_page(Method::DELETE, "/v1/session", Some(&cookie), ""))
        .await;
    while by_cookie.next().await.as_deref() == Some("change") {}
    assert_eq!(by_cookie.next().await, None);
    subject.delete("/v1/tokens/reader").await.ok();
    while by_token.next().await.as_deref() == Some("change") {}
    assert_eq!(by_token.next().await, None);
}

#[tokio::test]
async fn subscribers_are_bounded_and_leave_their_places() {
    let subject = Subject::start().await;
    let tokens = SUBSCRIBERS_MAX / SUBSCRIBERS_PER_TOKEN_MAX;
    let mut open = Vec::new();
    for n in 0..tokens {
        let secret = subject.token_with(&format!("t{n}"), "read").await;
        let events = || request(Method::GET, "/v1/events", Some(&secret), None);
        for _ in 0..SUBSCRIBERS_PER_TOKEN_MAX {
            open.push(Stream::open(&subject, events()).await);
        }
        assert_eq!(subject.send(events()).await.code(), "RATE_LIMITED");
    }
    let events = || request(Method::GET, "/v1/events", Some(&subject.token), None);
    assert_eq!(subject.send(events()).await.code(), "RATE_LIMITED");
    open.truncate(SUBSCRIBERS_MAX - 1);
    let mut stream = Stream::open(&subject, events()).await;
    assert_eq!(stream.next().await.as_deref(), Some("change"));
}
