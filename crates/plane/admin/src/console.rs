//! The console: one page and its files, in the binary. They are the same for everybody and hold no
//! secret; everything else the page gets through the interface, with its session.

use crate::Admin;
use axum::Router;
use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use fairlead_model::ApiCode;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Uri};

use crate::refused::Refused;

/// What the page may do: load its own files, speak to its own control plane. Nothing inline, nothing
/// from elsewhere, no frame around it, no text that becomes markup.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
     trusted-types 'none'",
);
const PERMISSIONS: (HeaderName, HeaderValue) = (
    HeaderName::from_static("permissions-policy"),
    HeaderValue::from_static("camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
);

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

macro_rules! files {
    ($($name:literal $kind:ident),* $(,)?) => {
        &[$(($name, $kind, include_bytes!(concat!("../console/", $name)))),*]
    };
}

/// Every file: name, type, content. A path is looked up here and nowhere else.
pub(crate) const FILES: &[(&str, &str, &[u8])] = files![
    "app.js" SCRIPT,
    "base.css" STYLE,
    "dialogs.js" SCRIPT,
    "dom.js" SCRIPT,
    "icon.svg" IMAGE,
    "live.js" SCRIPT,
    "login.js" SCRIPT,
    "pages.js" SCRIPT,
    "parts.css" STYLE,
    "words.js" SCRIPT,
];
const PAGE: &[u8] = include_bytes!("../console/index.html");

/// The page at `/`, its files below `/console/`.
pub(crate) fn routes() -> Router<Admin> {
    Router::new()
        .route("/", get(|| async { file(HTML, PAGE) }))
        .route("/console/{file}", get(named))
}

async fn named(Path(name): Path<String>, uri: Uri) -> Result<Response, Refused> {
    let found = FILES.iter().find(|(known, _, _)| *known == name);
    let (_, kind, content) = found.ok_or_else(|| {
        let path: String = uri.path().chars().take(128).collect();
        Refused::new(ApiCode::NotFound, format!("there is no `{path}` here"))
    })?;
    Ok(file(kind, content))
}

fn file(kind: &'static str, content: &'static [u8]) -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(kind)),
        (CONTENT_SECURITY_POLICY, POLICY),
        PERMISSIONS,
    ];
    (headers, content).into_response()
}
