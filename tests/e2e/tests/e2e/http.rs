//! HTTP/1.1 and HTTP/2 through a link.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use fairlead_testkit::{Pool, verified::Pattern};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Answers with the request's version and path in headers, and with its body.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let version = format!("{:?}", request.version());
    let path = request.uri().path().to_owned();
    let body = match request.into_body().collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => {
            let mut response = Response::new(Full::from(error.to_string()));
            *response.status_mut() = StatusCode::BAD_REQUEST;
            return Ok(response);
        }
    };
    let response = Response::builder()
        .header("x-version", version)
        .header("x-path", path);
    Ok(response.body(Full::from(body)).unwrap_or_default())
}

/// A server that speaks whichever version the client begins with.
async fn server() -> Result<(SocketAddr, JoinSet<()>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(async move {
                let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let _ = server
                    .serve_connection(TokioIo::new(stream), service_fn(answer))
                    .await;
            });
        }
    });
    Ok((address, tasks))
}

fn request(path: &str, body: &Bytes, host: SocketAddr) -> Result<Request<Full<Bytes>>> {
    let uri = format!("http://{host}{path}");
    Ok(Request::post(uri)
        .header("host", host.to_string())
        .body(Full::from(body.clone()))?)
}

async fn check(response: Response<Incoming>, version: &str, path: &str, body: &Bytes) -> Result<()> {
    let header = |name: &str| {
        response
            .headers()
            .get(name)
            .and_then(|v| v.to_str().ok())
            .unwrap_or("")
            .to_owned()
    };
    ensure!(response.status() == StatusCode::OK, "{:?}", response.status());
    ensure!(
        header("x-version") == version && header("x-path") == path,
        "{:?}",
        response.headers()
    );
    ensure!(
        response.into_body().collect().await?.to_bytes() == body,
        "the body of {path} changed"
    );
    Ok(())
}

/// R-GEN-01: an application's protocol passes unchanged, many requests on one connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_1_and_http_2_pass_through_a_link() -> Result<()> {
    let (target, _server) = server().await?;
    let pool = Pool::builder().to("web", &target.to_string())?.start().await?;
    let link = pool.listen("web")?;

    let stream = TcpStream::connect(link).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { connection.await.context("HTTP/1.1 connection") });
    for number in 0..100_u32 {
        let length = if number % 10 == 0 { 1_000_000 } else { 500 };
        let body = Bytes::from(Pattern::new(number.into()).bytes(0, length));
        let path = format!("/one/{number}");
        sender.ready().await?;
        let response = sender.send_request(request(&path, &body, link)?).await?;
        check(response, "HTTP/1.1", &path, &body).await?;
    }

    let stream = TcpStream::connect(link).await?;
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = handshake.await?;
    tasks.spawn(async move { connection.await.context("HTTP/2 connection") });
    let mut requests = JoinSet::new();
    for number in 0..50_u32 {
        let mut sender = sender.clone();
        requests.spawn(async move {
            let body = Bytes::from(Pattern::new(number.into()).bytes(0, 200_000));
            let path = format!("/two/{number}");
            let response = sender.send_request(request(&path, &body, link)?).await?;
            check(response, "HTTP/2.0", &path, &body).await
        });
    }
    while let Some(result) = requests.join_next().await {
        result??;
    }
    Ok(())
}
