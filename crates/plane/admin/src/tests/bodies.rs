//! Bodies: every fault of one is listed, none is half taken.

use super::{Subject, request};
use crate::body::{BODY_LEN_MAX, Kind, Schema, parse};
use crate::json;
use http::header::CONTENT_TYPE;
use http::{Method, Request, StatusCode};
use serde_json::Value;
use utoipa::ToSchema;

fn faults<T: Schema + std::fmt::Debug>(body: &str) -> Vec<(String, String)> {
    let error = parse::<T>(body.as_bytes()).unwrap_err();
    error.faults.into_iter().map(|f| (f.field, f.message)).collect()
}

#[test]
fn all_faults_of_a_link_together() {
    let found = faults::<json::AddLink>(
        r#"{"name":"A b","from":7,"target":"host","listen":["x"],"class":"gold","colour":"red","name":"b","to":"x"}"#,
    );
    let fields: Vec<&str> = found.iter().map(|(f, _)| f.as_str()).collect();
    assert_eq!(
        fields,
        ["name", "name", "from", "target", "listen", "class", "colour"]
    );
    for ((field, message), part) in found.iter().zip([
        "is not a name",
        "given 2 times",
        "expected a text, found a number",
        "port is missing",
        "expected a text, found a list",
        "standard, database or storage",
        "allowed are name, from, to, target, listen, class",
    ]) {
        assert!(message.contains(part), "{field}: {message}");
    }
    let found = faults::<json::AddLink>("{}");
    let fields: Vec<&str> = found.iter().map(|(f, _)| f.as_str()).collect();
    assert_eq!(fields, ["name", "from", "to", "target", "listen"]);
    assert!(found.iter().all(|(_, message)| message == "it is missing"));
}

#[test]
fn malformed_json_names_line_and_column() {
    for (body, line, column) in [
        ("", 1, 0),
        ("{", 1, 1),
        ("{\n  \"name\": \"a\"\n  \"to\": 1}", 3, 3),
        ("{\"name\": \"a\"} x", 1, 15),
        ("{'name': 1}", 1, 2),
        ("{\"name\": \"a\",}", 1, 14),
        ("\u{feff}{}", 1, 1),
        ("{\"name\": \"\\ud800\"}", 1, 17),
        ("{\"name\": NaN}", 1, 10),
    ] {
        let error = parse::<json::AddNode>(body.as_bytes()).unwrap_err();
        let place = (error.details["line"].as_str(), error.details["column"].as_str());
        let wanted = (line.to_string(), column.to_string());
        assert_eq!(
            place,
            (wanted.0.as_str(), wanted.1.as_str()),
            "{body:?}: {error:?}"
        );
        assert!(
            error.message.contains(&format!("line {line}, column {column}")),
            "{error}"
        );
        assert_eq!(error.faults[0].field, "body");
    }
    // Not UTF-8, and nested too deeply: errors, not a full stack.
    assert!(parse::<json::AddNode>(b"{\"name\": \"\xff\"}").is_err());
    let deep = "[".repeat(60_000);
    assert!(parse::<json::AddNode>(deep.as_bytes()).is_err());
}

#[test]
fn other_shapes() {
    for (body, message) in [
        ("[]", "found a list"),
        ("null", "found null"),
        ("1", "found a number"),
        ("\"a\"", "found a text"),
        ("true", "found true or false"),
    ] {
        let found = faults::<json::AddNode>(body);
        assert_eq!(found[0].0, "body");
        assert!(found[0].1.contains(message), "{found:?}");
    }
    assert!(parse::<json::Empty>(b"{}").is_ok());
    assert_eq!(
        faults::<json::Empty>(r#"{"a":1}"#)[0].1,
        "unknown field: no field is allowed here"
    );
    // Optional fields may be null.
    let relay = r#"{"name":"a","address":"192.0.2.1","failure_domain":null}"#;
    assert_eq!(
        parse::<json::AddRelay>(relay.as_bytes()).unwrap().failure_domain,
        None
    );
    let found =
        faults::<json::AddRelay>(r#"{"name":null,"address":"::1:x","local":"yes","failure_domain":"a b"}"#);
    let fields: Vec<&str> = found.iter().map(|(f, _)| f.as_str()).collect();
    assert_eq!(fields, ["name", "address", "failure_domain", "local"]);
    let found = faults::<json::AddToken>(r#"{"name":"a","scopes":["read","root",3]}"#);
    let fields: Vec<&str> = found.iter().map(|(f, _)| f.as_str()).collect();
    assert_eq!(fields, ["scopes[1]", "scopes[2]"]);
    let found = faults::<json::EnrolRequest>(
        r#"{"token":"t","role":"king","csr_pem":"","version":"1","wall_clock":"noon",
            "host_fingerprint":{"machine":1,"product":"a","product":"b"}}"#,
    );
    let fields: Vec<&str> = found.iter().map(|(f, _)| f.as_str()).collect();
    assert_eq!(
        fields,
        [
            "role",
            "host_fingerprint.machine",
            "host_fingerprint.product",
            "wall_clock"
        ]
    );
}

/// A hostile body makes no long answer.
#[test]
fn faults_are_bounded() {
    let fields: Vec<String> = (0..5_000).map(|n| format!("\"f{n}\":{n}")).collect();
    assert_eq!(
        faults::<json::AddNode>(&format!("{{{}}}", fields.join(","))).len(),
        64
    );
    let name = "x".repeat(10_000);
    let found = faults::<json::AddNode>(&format!("{{\"{name}\":1,\"name\":\"{name}\"}}"));
    assert!(
        found
            .iter()
            .all(|(field, message)| field.len() + message.len() < 400),
        "{found:?}"
    );
}

/// The table that judges a body has the fields of the type that is read, and of the document.
#[test]
fn judged_fields_are_those_of_the_document() {
    fn check<T: Schema + ToSchema>() {
        let schema = serde_json::to_value(T::schema()).unwrap();
        let properties = schema["properties"].as_object().cloned().unwrap_or_default();
        let required: Vec<&str> = schema["required"]
            .as_array()
            .map(|names| names.iter().map(|n| n.as_str().unwrap()).collect())
            .unwrap_or_default();
        let mut names: Vec<&str> = T::FIELDS.iter().map(|f| f.name).collect();
        names.sort_unstable();
        let mut documented: Vec<&str> = properties.keys().map(String::as_str).collect();
        documented.sort_unstable();
        assert_eq!(names, documented, "{}", T::name());
        for field in T::FIELDS {
            let kind = &properties[field.name]["type"];
            let has = |t: &str| *kind == t || kind.as_array().is_some_and(|k| k.contains(&Value::from(t)));
            let wanted = match field.kind {
                Kind::Text => "string",
                Kind::Flag => "boolean",
                Kind::Texts => "array",
                Kind::TextMap => "object",
            };
            assert!(has(wanted), "{} {}: {kind}", T::name(), field.name);
            assert_eq!(
                required.contains(&field.name),
                field.required,
                "{} {}",
                T::name(),
                field.name
            );
        }
    }
    check::<json::AddRelay>();
    check::<json::AddNode>();
    check::<json::AddLink>();
    check::<json::SetSetting>();
    check::<json::AddToken>();
    check::<json::EnrolRequest>();
    check::<json::Empty>();
}

#[tokio::test]
async fn bodies_are_json_and_bounded() {
    let subject = Subject::start().await;
    let send = |kind: Option<&str>, body: String| {
        let mut sent = Request::builder()
            .method(Method::POST)
            .uri("/v1/nodes")
            .header("host", "localhost")
            .header("authorization", format!("Bearer {}", subject.token));
        if let Some(kind) = kind {
            sent = sent.header(CONTENT_TYPE, kind);
        }
        sent.body(axum::body::Body::from(body)).unwrap()
    };
    let node = |name: &str| format!("{{\"name\":\"{name}\"}}");
    for kind in [
        None,
        Some("text/plain"),
        Some("application/x-www-form-urlencoded"),
        Some("json"),
    ] {
        let answer = subject.send(send(kind, node("a"))).await;
        assert_eq!(
            (answer.status, answer.fields()),
            (StatusCode::BAD_REQUEST, vec!["content-type"])
        );
    }
    let kind = Some("Application/JSON; charset=utf-8");
    let padded = |len: usize| format!("{}{}", node("a"), " ".repeat(len - node("a").len()));
    let answer = subject.send(send(kind, padded(BODY_LEN_MAX + 1))).await;
    assert_eq!(
        (answer.status, answer.code()),
        (StatusCode::PAYLOAD_TOO_LARGE, "TOO_LARGE")
    );
    let answer = subject.send(send(kind, padded(BODY_LEN_MAX))).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{answer:?}");
    let sent = request(
        Method::POST,
        "/v1/nodes",
        Some(&subject.token),
        Some("{\n\"name\": }"),
    );
    let answer = subject.send(sent).await;
    assert_eq!(
        (answer.status, answer.code()),
        (StatusCode::BAD_REQUEST, "INVALID_REQUEST")
    );
    assert_eq!(answer.body["error"]["details"]["line"], "2", "{answer:?}");
}
