//! The control plane's REST interface, as an admin with a token sees it.

use super::PoolFile;
use anyhow::{Context, Result, bail};
use reqwest::{Certificate, Client, Method};
use serde_json::Value;
use std::time::Duration;

/// One request may take this long: a control plane that was just killed answers later or refuses.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// A client of the REST interface.
#[derive(Debug, Clone)]
pub struct Rest {
    client: Client,
    url: String,
    token: String,
}

impl Rest {
    /// The client of a pool's first admin.
    ///
    /// # Errors
    /// When the pool's CA or token cannot be read.
    pub fn new(pool: &PoolFile) -> Result<Self> {
        let token = std::fs::read_to_string(&pool.control.admin_token_file)?
            .trim()
            .to_owned();
        let ca = std::fs::read(&pool.control.ca_file)?;
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let client = Client::builder()
            .tls_certs_only([Certificate::from_pem(&ca)?])
            .timeout(REQUEST_LIMIT)
            .pool_max_idle_per_host(0)
            .build()?;
        Ok(Self {
            client,
            url: pool.control.url.clone(),
            token,
        })
    }

    /// The same client with another token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self {
            token: token.to_owned(),
            ..self.clone()
        }
    }

    /// Sends a request and returns status and body, whatever they are.
    ///
    /// # Errors
    /// When no answer comes, or one that is no JSON.
    pub async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
        let mut request = self
            .client
            .request(method, format!("{}{path}", self.url))
            .bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(body);
        }
        self.answer(request).await
    }

    /// Sends a body as it is, under the JSON content type.
    ///
    /// # Errors
    /// As [`Rest::send`].
    pub async fn send_text(&self, method: Method, path: &str, body: String) -> Result<(u16, Value)> {
        let request = self
            .client
            .request(method, format!("{}{path}", self.url))
            .bearer_auth(&self.token);
        self.answer(request.header("content-type", "application/json").body(body))
            .await
    }

    async fn answer(&self, request: reqwest::RequestBuilder) -> Result<(u16, Value)> {
        let response = request.send().await?;
        let status = response.status().as_u16();
        let text = response.text().await?;
        let body = match text.is_empty() {
            true => Value::Null,
            false => {
                serde_json::from_str(&text).with_context(|| format!("HTTP {status}, no JSON: {text}"))?
            }
        };
        Ok((status, body))
    }

    /// Reads a resource.
    ///
    /// # Errors
    /// When it is not there.
    pub async fn get(&self, path: &str) -> Result<Value> {
        self.success(Method::GET, path, None).await
    }

    /// Creates a resource; what it returns has been acknowledged.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.success(Method::POST, path, Some(body)).await
    }

    /// Writes a resource.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn put(&self, path: &str, body: &Value) -> Result<Value> {
        self.success(Method::PUT, path, Some(body)).await
    }

    /// Removes a resource.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn delete(&self, path: &str) -> Result<Value> {
        self.success(Method::DELETE, path, None).await
    }

    async fn success(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let (status, answer) = self.send(method.clone(), path, body).await?;
        if !(200..300).contains(&status) {
            bail!("{method} {path}: HTTP {status}: {answer}");
        }
        Ok(answer)
    }
}
