//! The REST client of the admin's verbs, of enrolment and of `up`.

use crate::exit::{Exit, Failing};
use crate::tls::{ControlCertError, ControlVerifier};
use fairlead_admin::json::ErrorBody;
use fairlead_host::rng::Token;
use fairlead_model::{ApiCode, HostPort};
use reqwest::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How long a connection may take: three SYN retransmissions (1 + 2 + 4 s) and a handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one request may take in all.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Greatest answer that is read: 1,000 audit entries of 8 KiB.
const ANSWER_LEN_MAX: usize = 8 * 1024 * 1024;

/// A connection to one control plane.
#[derive(Debug, Clone)]
pub(crate) struct RestClient {
    control: HostPort,
    client: reqwest::Client,
    verifier: Arc<ControlVerifier>,
    token: Option<Arc<Token>>,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RestError {
    #[error("the control plane {control} cannot be reached: {reason}")]
    Unreachable { control: HostPort, reason: String },
    #[error("the control plane {control} was not trusted")]
    Certificate {
        control: HostPort,
        #[source]
        error: Box<ControlCertError>,
    },
    /// The control plane said no.
    #[error("{}", api_text(error))]
    Api { code: ApiCode, error: Box<ErrorBody> },
    #[error("{control} answered {status} with something that is not Fairlead's: {reason}")]
    Answer {
        control: HostPort,
        status: StatusCode,
        reason: String,
    },
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
}

fn api_text(body: &ErrorBody) -> String {
    let error = &body.error;
    let mut text = format!("{} ({})", error.message, error.code);
    // One that only repeats the message says nothing new.
    for fault in error.faults.iter().filter(|f| f.message != error.message) {
        text.push_str(&format!("\n  {}: {}", fault.field, fault.message));
    }
    text
}

impl Failing for RestError {
    fn exit(&self) -> Exit {
        match self {
            Self::Unreachable { .. } => Exit::Unavailable,
            Self::Certificate { error, .. } => match **error {
                ControlCertError::Pin { .. } => Exit::PinMismatch,
                ControlCertError::Clock { .. } => Exit::ClockSkew,
                ControlCertError::Leaf(_) | ControlCertError::Issuer { .. } | ControlCertError::Chain(_) => {
                    Exit::Refused
                }
            },
            Self::Api { code, .. } => Exit::of_api(*code),
            Self::Answer { .. } | Self::Tls(_) => Exit::Failed,
        }
    }
}

impl RestError {
    /// Whether the control plane does not know the token.
    pub(crate) fn is_refused_token(&self) -> bool {
        matches!(
            self,
            Self::Api {
                code: ApiCode::Unauthenticated,
                ..
            }
        )
    }
}

impl RestClient {
    /// A client of `control`; nothing is connected yet.
    pub(crate) fn new(
        control: HostPort,
        verifier: Arc<ControlVerifier>,
        token: Option<Token>,
    ) -> Result<Self, RestError> {
        let tls = verifier
            .client_config()
            .map_err(|e| RestError::Tls(e.to_string()))?;
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .https_only(true)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(REQUEST_TIMEOUT)
            .user_agent(concat!("fairlead/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|e| RestError::Tls(fairlead_telemetry::chain(&e)))?;
        Ok(Self {
            control,
            client,
            verifier,
            token: token.map(Arc::new),
        })
    }

    /// Whose it is.
    pub(crate) const fn control(&self) -> &HostPort {
        &self.control
    }

    /// The verifier, for what the handshake has shown.
    pub(crate) fn verifier(&self) -> &ControlVerifier {
        &self.verifier
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, RestError> {
        self.send(Method::GET, path, None::<&()>).await
    }

    pub(crate) async fn post<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T, RestError> {
        self.send(Method::POST, path, Some(body)).await
    }

    pub(crate) async fn put<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T, RestError> {
        self.send(Method::PUT, path, Some(body)).await
    }

    pub(crate) async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, RestError> {
        self.send(Method::DELETE, path, None::<&()>).await
    }

    async fn send<B: Serialize, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<T, RestError> {
        let url = format!("https://{}{path}", self.control);
        let mut request = self.client.request(method, url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token.expose());
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let mut response = request.send().await.map_err(|e| self.failed(&e))?;
        let status = response.status();
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| self.failed(&e))? {
            if bytes.len() + chunk.len() > ANSWER_LEN_MAX {
                return Err(self.answer(status, format!("it is longer than {ANSWER_LEN_MAX} bytes")));
            }
            bytes.extend_from_slice(&chunk);
        }
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(|e| self.answer(status, e.to_string()));
        }
        let error: ErrorBody =
            serde_json::from_slice(&bytes).map_err(|e| self.answer(status, e.to_string()))?;
        let code = ApiCode::parse(&error.error.code).unwrap_or(ApiCode::Internal);
        Err(RestError::Api {
            code,
            error: Box::new(error),
        })
    }

    fn answer(&self, status: StatusCode, reason: String) -> RestError {
        RestError::Answer {
            control: self.control.clone(),
            status,
            reason,
        }
    }

    fn failed(&self, error: &reqwest::Error) -> RestError {
        if let Some(Err(error)) = self.verifier.outcome() {
            return RestError::Certificate {
                control: self.control.clone(),
                error: Box::new(error),
            };
        }
        RestError::Unreachable {
            control: self.control.clone(),
            reason: reason(error),
        }
    }
}

/// The innermost cause: the outer ones only repeat that a request failed.
fn reason(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "it did not answer in time".to_owned();
    }
    let mut last: &(dyn Error + 'static) = error;
    while let Some(source) = last.source() {
        if let Some(said) = source.downcast_ref::<io::Error>().and_then(handshake) {
            return said;
        }
        last = source;
    }
    last.to_string()
}

/// What a failed TLS handshake says of the port; `None` of any other failure. The connector wraps the
/// handshake's error in one of its own, whose source it is not.
fn handshake(error: &io::Error) -> Option<String> {
    let inner = error.get_ref()?.downcast_ref::<io::Error>()?;
    let what = match inner.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidMessage(_)) => "it does not speak TLS".to_owned(),
        Some(other) => format!("the TLS handshake with it failed ({other})"),
        None => match inner.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                // It also ends those that take it too long.
                let busy = "it ended the TLS handshake, as a control plane does that is overloaded";
                return Some(format!("{busy}: try again; or is this not its port?"));
            }
            _ => return None,
        },
    };
    Some(format!("{what}: is this the control plane's port?"))
}

/// A name or id as one path segment. Names and ids need no escaping; anything else is escaped.
pub(crate) fn segment(text: &str) -> String {
    text.bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => char::from(b).to_string(),
            _ => format!("%{b:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `fairlead` says of a listener that answers a connection with `answer` and ends it.
    async fn told_of(answer: &'static [u8]) -> String {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let pin = fairlead_model::CaPin([0; 32]);
        let clock = Arc::new(fairlead_host::SystemClock::new());
        let verifier = ControlVerifier::new(crate::tls::Anchor::Pin(pin), clock);
        let client = RestClient::new(address.into(), verifier, None).unwrap();
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            // What it is asked is read, so that its answer is not lost by a reset.
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            stream.write_all(answer).await.unwrap();
        };
        let (error, ()) = tokio::join!(client.get::<serde_json::Value>("/healthz"), serve);
        let error = error.unwrap_err();
        assert_eq!(error.exit(), Exit::Unavailable, "{error}");
        let text = fairlead_telemetry::chain(&error);
        assert!(text.contains(&address.to_string()), "{text}");
        text
    }

    #[tokio::test]
    async fn a_port_that_is_not_the_control_planes_is_said_so() {
        let text = told_of(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        let asked = "is this the control plane's port?";
        assert!(
            text.contains("does not speak TLS") && text.contains(asked),
            "{text}"
        );
        let text = told_of(b"").await;
        assert!(text.contains("ended the TLS handshake"), "{text}");
        assert!(
            text.contains("overloaded") && text.contains("not its port?"),
            "{text}"
        );
    }

    #[test]
    fn a_segment_cannot_leave_its_place() {
        assert_eq!(segment("relay-1.a"), "relay-1.a");
        assert_eq!(segment("a/../b?c#d é"), "a%2F..%2Fb%3Fc%23d%20%C3%A9");
    }
}
