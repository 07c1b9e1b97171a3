//! Request bodies: read up to a bound, and judged whole, so that all faults of a body are listed
//! together: unknown fields, missing ones, wrong types, fields given twice, and texts that their
//! own parser refuses.

mod judge;
mod node;

use crate::json;
use crate::refused::Refused;
use axum::body::Body as HttpBody;
use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use fairlead_control::ApiError;
use fairlead_control::api::{Fault, MemberRole, Scope};
use fairlead_model::address::RELAY_PORT;
use fairlead_model::{ApiCode, FailureDomain, HostPort, ListenAddress, Name, ServiceClass, TargetAddress};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use node::Node;
use serde::de::DeserializeOwned;
use std::str::FromStr;
use std::time::Duration;

/// Greatest body in bytes: an enrolment with its CSR has 2 KiB.
pub(crate) const BODY_LEN_MAX: usize = 64 << 10;
/// How much of a larger body is read and thrown away, so that clients that send all before they read
/// get the answer: a connection that is closed over unread bytes is reset (RFC 9112 section 9.6). Some
/// 50 ms of work.
const DISCARDED_MAX: usize = 64 << 20;
/// How long that may take.
const DISCARD_WAIT_MAX: Duration = Duration::from_secs(10);
/// Characters of a wrong text that are repeated in a message.
const SHOWN_MAX: usize = 64;
/// The field of a fault that belongs to no field.
const WHOLE_BODY: &str = "body";

/// The type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A text.
    Text,
    /// `true` or `false`.
    Flag,
    /// A list of texts.
    Texts,
    /// An object of texts.
    TextMap,
}

/// One field of a body.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) required: bool,
    /// Says what is wrong with a text. Verbs check texts again, and more; here it serves to list
    /// those faults beside faults of shape.
    check: fn(&str) -> Option<String>,
}

/// A body and its fields.
pub(crate) trait Schema: DeserializeOwned {
    /// Its fields, in the order in which faults are listed.
    const FIELDS: &'static [Field];
}

const fn required(name: &'static str, kind: Kind, check: fn(&str) -> Option<String>) -> Field {
    Field {
        name,
        kind,
        required: true,
        check,
    }
}

const fn optional(name: &'static str, kind: Kind, check: fn(&str) -> Option<String>) -> Field {
    Field {
        name,
        kind,
        required: false,
        check,
    }
}

impl Schema for json::AddRelay {
    const FIELDS: &'static [Field] = &[
        required("name", Kind::Text, parses::<Name>),
        required("address", Kind::Text, relay_address),
        optional("failure_domain", Kind::Text, parses::<FailureDomain>),
        optional("local", Kind::Flag, any),
    ];
}

impl Schema for json::AddNode {
    const FIELDS: &'static [Field] = &[required("name", Kind::Text, parses::<Name>)];
}

impl Schema for json::AddLink {
    const FIELDS: &'static [Field] = &[
        required("name", Kind::Text, parses::<Name>),
        required("from", Kind::Text, any),
        required("to", Kind::Text, any),
        required("target", Kind::Text, parses::<TargetAddress>),
        required("listen", Kind::Text, listen_address),
        optional("class", Kind::Text, parses::<ServiceClass>),
    ];
}

impl Schema for json::CheckLink {
    const FIELDS: &'static [Field] = &[optional("relay", Kind::Text, any)];
}

impl Schema for json::SetSetting {
    const FIELDS: &'static [Field] = &[required("value", Kind::Text, any)];
}

impl Schema for json::AddToken {
    const FIELDS: &'static [Field] = &[
        required("name", Kind::Text, parses::<Name>),
        required("scopes", Kind::Texts, parses::<Scope>),
    ];
}

impl Schema for json::EnrolRequest {
    const FIELDS: &'static [Field] = &[
        required("token", Kind::Text, any),
        required("role", Kind::Text, parses::<MemberRole>),
        required("csr_pem", Kind::Text, any),
        required("version", Kind::Text, any),
        required("host_fingerprint", Kind::TextMap, any),
        required("wall_clock", Kind::Text, rfc3339),
        optional("listen", Kind::Text, any),
    ];
}

impl Schema for json::Login {
    const FIELDS: &'static [Field] = &[required("token", Kind::Text, any)];
}

impl Schema for json::Empty {
    const FIELDS: &'static [Field] = &[];
}

fn parses<T>(text: &str) -> Option<String>
where
    T: FromStr,
    T::Err: std::fmt::Display,
{
    text.parse::<T>().err().map(|e| e.to_string())
}

fn listen_address(text: &str) -> Option<String> {
    ListenAddress::requested(text).err().map(|e| e.to_string())
}

fn relay_address(text: &str) -> Option<String> {
    HostPort::parse(text, Some(RELAY_PORT))
        .err()
        .map(|e| e.to_string())
}

fn rfc3339(text: &str) -> Option<String> {
    let shown: String = text.chars().take(SHOWN_MAX).collect();
    text.parse::<jiff::Timestamp>()
        .err()
        .map(|_| format!("`{shown}` is not a time: expected RFC 3339, such as 2026-11-30T10:00:00.000Z"))
}

/// For texts that only the verb can judge.
const fn any(_: &str) -> Option<String> {
    None
}

/// A request's body, read and judged.
#[derive(Debug)]
pub(crate) struct Body<T>(pub(crate) T);

impl<T: Schema, S: Sync> FromRequest<S> for Body<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refused> {
        check_content_type(request.headers())?;
        let (head, body) = request.into_parts();
        let bytes = read(&head.headers, body).await?;
        Ok(Self(parse(&bytes)?))
    }
}

/// JSON only: a form of another site can send its own types without asking, but not this one.
pub(crate) fn check_content_type(headers: &HeaderMap) -> Result<(), Refused> {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = kind.and_then(|kind| kind.split(';').next()).unwrap_or("").trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(
        ApiError::new(ApiCode::InvalidRequest, "the body is not marked as JSON")
            .with_fault(
                "content-type",
                "expected the header `Content-Type: application/json`",
            )
            .into(),
    )
}

async fn read(headers: &HeaderMap, mut body: HttpBody) -> Result<Bytes, Refused> {
    let too_large = || {
        Refused::new(
            ApiCode::TooLarge,
            format!("the body is larger than {BODY_LEN_MAX} bytes"),
        )
    };
    // A client that asks first sends nothing after a no.
    let len = headers
        .get(CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if headers.contains_key(EXPECT) && len.is_some_and(|len| len > BODY_LEN_MAX as u64) {
        return Err(too_large());
    }
    match Limited::new(&mut body, BODY_LEN_MAX).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            // However it ends, the answer is the same.
            let _ = tokio::time::timeout(DISCARD_WAIT_MAX, discard(body)).await;
            Err(too_large())
        }
        Err(error) => {
            tracing::debug!(%error, "a request's body ended early");
            Err(Refused::new(ApiCode::InvalidRequest, "the body ended early"))
        }
    }
}

/// Reads what is left of a body, up to a bound.
async fn discard(mut body: HttpBody) {
    let mut left = DISCARDED_MAX;
    while let Some(Ok(frame)) = body.frame().await {
        left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        if left == 0 {
            return;
        }
    }
}

/// Reads a body of type `T`, or lists every fault that it has.
pub(crate) fn parse<T: Schema>(bytes: &[u8]) -> Result<T, ApiError> {
    let node: Node = serde_json::from_slice(bytes).map_err(|error| malformed(&error))?;
    let Node::Object(fields) = node else {
        return Err(ApiError::faults(vec![Fault {
            field: WHOLE_BODY.to_owned(),
            message: format!("expected an object, found {}", node.kind()),
        }]));
    };
    let faults = judge::judge(T::FIELDS, &fields);
    if !faults.is_empty() {
        return Err(ApiError::faults(faults));
    }
    // The shape is right, so this reads what was judged.
    serde_json::from_slice(bytes).map_err(|error| malformed(&error))
}

fn malformed(error: &serde_json::Error) -> ApiError {
    let (line, column) = (error.line(), error.column());
    ApiError::new(
        ApiCode::InvalidRequest,
        format!("the body is not valid JSON at line {line}, column {column}"),
    )
    .with_fault(WHOLE_BODY, error.to_string())
    .with_detail("line", line)
    .with_detail("column", column)
}
