//! `/metrics` and `/healthz` of a process, over plain HTTP on an address that the admin chose.

use crate::RateLimitedLog;
use crate::metric::{Exposition, Metrics};
use bytes::Bytes;
use fairlead_room::{Room, accountable};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Whether a process can do its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It can.
    Ready,
    /// It cannot, for this reason.
    NotReady(String),
}

/// Asked at each `/healthz`; must not block.
pub type HealthFn = Arc<dyn Fn() -> Health + Send + Sync>;

/// Why the address could not be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for metrics")]
pub struct ServeError {
    address: SocketAddr,
    #[source]
    source: io::Error,
}

impl ServeError {
    /// The address, and why it cannot be had.
    #[must_use]
    pub fn into_parts(self) -> (SocketAddr, io::Error) {
        (self.address, self.source)
    }
}

/// A running metrics endpoint; dropping it ends it.
#[derive(Debug)]
pub struct Served {
    address: SocketAddr,
    /// The accept loop; dropped, it ends with its connections.
    task: JoinSet<()>,
}

/// Scrapers of one process: Prometheus, its spare, a person. One more takes the place of the oldest,
/// so that somebody who connects and says nothing keeps no scraper waiting.
const CONNECTIONS_MAX: usize = 16;
/// A scraper sends its request at once.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Headers of one request, and the bytes of its head: a scraper sends ten short ones.
const HEADERS_MAX: usize = 32;
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// A connection's whole life, which bounds a reader that stalls. An idle one ends sooner, by
/// [`HEADER_TIMEOUT`].
const CONNECTION_LIFE_MAX: Duration = Duration::from_secs(60);
/// How often a lasting shortage is logged again.
const LOG_EVERY: Duration = Duration::from_secs(30);
/// Pause after a failed accept (descriptors used up), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The media types of the two expositions.
const OPENMETRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves `/metrics` and `/healthz` on `address` until `cancel`. Port 0 picks a free one.
///
/// # Errors
/// The address cannot be bound.
pub async fn serve(
    address: SocketAddr,
    metrics: Metrics,
    health: HealthFn,
    cancel: CancellationToken,
) -> Result<Served, ServeError> {
    let fail = |source| ServeError { address, source };
    let listener = TcpListener::bind(address).await.map_err(fail)?;
    let address = listener.local_addr().map_err(fail)?;
    let pages = Pages { metrics, health };
    let mut task = JoinSet::new();
    task.spawn(accept(listener, pages, cancel));
    Ok(Served { address, task })
}

impl Served {
    /// The address that is served.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of the metrics.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/metrics", self.address)
    }

    /// Waits until the endpoint has ended after its token was cancelled. Cancel-safe.
    pub async fn join(mut self) {
        while let Some(ended) = self.task.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "the metrics endpoint failed");
            }
        }
    }
}

#[derive(Clone)]
struct Pages {
    metrics: Metrics,
    health: HealthFn,
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").finish_non_exhaustive()
    }
}

async fn accept(listener: TcpListener, pages: Pages, cancel: CancellationToken) {
    let room = Room::new(CONNECTIONS_MAX, CONNECTIONS_MAX);
    let log = RateLimitedLog::new(LOG_EVERY);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = cancel.cancelled() => break,
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, peer)) => {
                let pages = pages.clone();
                let place = room.enter(accountable(peer.ip()));
                connections.spawn(async move {
                    tokio::select! {
                        () = connection(stream, pages) => {}
                        () = place.evicted() => tracing::debug!("a metrics connection made room for another"),
                    }
                });
            }
            Err(error) => {
                if let Some(suppressed) = log.allow(std::time::Instant::now()) {
                    tracing::warn!(%error, suppressed, "cannot accept a metrics connection");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // Dropping the set ends the connections that are left: a scrape is worth no wait.
}

async fn connection(stream: TcpStream, pages: Pages) {
    let service = service_fn(move |request| {
        let response = pages.answer(&request);
        async move { Ok::<_, Infallible>(response) }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CONNECTION_LIFE_MAX, serving).await {
        Ok(Ok(())) | Err(_) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a metrics connection ended early"),
    }
}

impl Pages {
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text(
                StatusCode::METHOD_NOT_ALLOWED,
                "text/plain",
                "only GET\n".to_owned(),
            );
        }
        match request.uri().path() {
            "/metrics" => {
                let (exposition, kind) = wanted(request.headers());
                text(StatusCode::OK, kind, self.metrics.encode(exposition))
            }
            "/healthz" => match (self.health)() {
                Health::Ready => text(StatusCode::OK, "text/plain", "ready\n".to_owned()),
                Health::NotReady(reason) => text(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "text/plain",
                    format!("not ready: {reason}\n"),
                ),
            },
            _ => text(
                StatusCode::NOT_FOUND,
                "text/plain",
                "only /metrics and /healthz\n".to_owned(),
            ),
        }
    }
}

/// OpenMetrics for who asks for it, as Prometheus does; plain text for everybody else.
fn wanted(headers: &HeaderMap) -> (Exposition, &'static str) {
    let accepts = headers.get_all(ACCEPT).iter().filter_map(|v| v.to_str().ok());
    let mut kinds = accepts.flat_map(|list| list.split(','));
    match kinds.any(|kind| kind.trim_start().starts_with("application/openmetrics-text")) {
        true => (Exposition::OpenMetrics, OPENMETRICS_TYPE),
        false => (Exposition::Text, TEXT_TYPE),
    }
}

fn text(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn metrics_health_and_a_clean_end() {
        let ready = Arc::new(AtomicBool::new(false));
        let health: HealthFn = {
            let ready = Arc::clone(&ready);
            Arc::new(move || {
                if ready.load(Ordering::Relaxed) {
                    Health::Ready
                } else {
                    Health::NotReady("no policy".to_owned())
                }
            })
        };
        let cancel = CancellationToken::new();
        let local = "127.0.0.1:0".parse().unwrap();
        let served = serve(local, Metrics::new("worker"), health, cancel.clone())
            .await
            .unwrap();
        let address = served.address();
        let page = get(address, "/metrics").await;
        assert!(
            page.contains("fairlead_build_info") && page.contains("content-type: text/plain; version=0.0.4"),
            "{page}"
        );
        let asking =
            " HTTP/1.1\r\naccept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\nx: ";
        let page = get(address, &format!("/metrics{asking}")).await;
        assert!(
            page.ends_with("# EOF\n") && page.contains("content-type: application/openmetrics-text"),
            "{page}"
        );
        let not_ready = get(address, "/healthz").await;
        assert!(
            not_ready.starts_with("HTTP/1.1 503") && not_ready.contains("no policy"),
            "{not_ready}"
        );
        ready.store(true, Ordering::Relaxed);
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(get(address, "/").await.starts_with("HTTP/1.1 404"));
        assert!(
            serve(
                address,
                Metrics::new("x"),
                Arc::new(|| Health::Ready),
                CancellationToken::new()
            )
            .await
            .unwrap_err()
            .to_string()
            .contains(&address.to_string())
        );
        cancel.cancel();
        served.join().await;
        assert!(TcpStream::connect(address).await.is_err());
    }

    /// F-10: silent connections keep no scraper out, and are not kept for ever.
    #[tokio::test]
    async fn silence_keeps_nobody_out() {
        let cancel = CancellationToken::new();
        let local = "127.0.0.1:0".parse().unwrap();
        let served = serve(local, Metrics::new("worker"), Arc::new(|| Health::Ready), cancel)
            .await
            .unwrap();
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS_MAX * 4 {
            silent.push(TcpStream::connect(served.address()).await.unwrap());
        }
        assert!(
            get(served.address(), "/healthz")
                .await
                .starts_with("HTTP/1.1 200")
        );
        let mut oldest = silent.remove(0);
        let mut byte = [0];
        let ended = tokio::time::timeout(HEADER_TIMEOUT, oldest.read(&mut byte)).await;
        assert!(!matches!(ended.unwrap(), Ok(1..)), "the oldest made room");
    }
}
