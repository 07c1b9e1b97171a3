//! Metrics of a daemon in Prometheus' text form.

use crate::Host;
use anyhow::{Context, Result, bail};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A scrape that takes longer is a fault of its own.
const SCRAPE_LIMIT: Duration = Duration::from_secs(5);

/// One scrape.
#[derive(Debug, Clone)]
pub struct Scrape {
    text: String,
}

impl Scrape {
    /// Reads `http://HOST:PORT/PATH`.
    ///
    /// # Errors
    /// When nobody answers in time, or not with 200.
    pub async fn of(url: &str) -> Result<Self> {
        let page = get(url, "*/*").await?;
        Ok(Self { text: page.body })
    }

    /// Reads the URL on a host of its own.
    ///
    /// # Errors
    /// As [`Scrape::of`].
    pub async fn of_host(host: &Host, url: &str) -> Result<Self> {
        let address = host_and_path(url)?.0.parse()?;
        let page = tokio::time::timeout(SCRAPE_LIMIT, talk(host.connect(address)?, url, "*/*"))
            .await
            .with_context(|| format!("{url} of {}: no answer", host.name()))??;
        Ok(Self { text: page.body })
    }

    /// The sum of all samples of `name` that carry all of `labels`; `None` when there is none.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let wanted: Vec<String> = labels.iter().map(|(k, v)| format!("{k}=\"{v}\"")).collect();
        let mut sum = None;
        for line in self.text.lines().filter(|l| !l.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let series_name = series.split('{').next().unwrap_or_default();
            if series_name == name && wanted.iter().all(|w| series.contains(w.as_str())) {
                sum = Some(sum.unwrap_or(0.0) + value.parse::<f64>().unwrap_or(f64::NAN));
            }
        }
        sum
    }

    /// The sum of all samples, whatever their name, that have a label of this value.
    #[must_use]
    pub fn sum_of_label_value(&self, value: &str) -> f64 {
        let wanted = format!("=\"{value}\"");
        let lines = self
            .text
            .lines()
            .filter(|l| !l.starts_with('#') && l.contains(&wanted));
        lines
            .filter_map(|l| l.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum()
    }

    /// The text as it came.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// A page that was got over plain HTTP.
#[derive(Debug, Clone)]
pub struct Page {
    /// Status line and headers.
    pub head: String,
    /// What follows.
    pub body: String,
}

/// Gets `http://HOST:PORT/PATH`, asking for a media type. HTTP/1.0, so that the body comes whole.
///
/// # Errors
/// When nobody answers in time, or not with 200.
pub async fn get(url: &str, accept: &str) -> Result<Page> {
    tokio::time::timeout(SCRAPE_LIMIT, fetch(url, accept))
        .await
        .with_context(|| format!("{url}: no answer"))?
}

async fn fetch(url: &str, accept: &str) -> Result<Page> {
    let (host, _) = host_and_path(url)?;
    let stream = TcpStream::connect(host)
        .await
        .with_context(|| format!("connect {host}"))?;
    talk(stream, url, accept).await
}

fn host_and_path(url: &str) -> Result<(&str, &str)> {
    let rest = url
        .strip_prefix("http://")
        .with_context(|| format!("`{url}` is no http URL"))?;
    Ok(rest.split_once('/').unwrap_or((rest, "")))
}

async fn talk(mut stream: TcpStream, url: &str, accept: &str) -> Result<Page> {
    let (host, path) = host_and_path(url)?;
    let request = format!("GET /{path} HTTP/1.0\r\nHost: {host}\r\nAccept: {accept}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let (head, body) = text.split_once("\r\n\r\n").context("no HTTP answer")?;
    let status = head.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("200") {
        bail!("{url}: {status}: {body}");
    }
    Ok(Page {
        head: head.to_owned(),
        body: body.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_over_the_labels_not_asked_for() {
        let scrape = Scrape {
            text: "# HELP x y\nx{a=\"1\",b=\"2\"} 3\nx{a=\"1\"} 4\nx{a=\"2\"} 5\nxy 9\n".into(),
        };
        assert_eq!(scrape.sum("x", &[("a", "1")]), Some(7.0));
        assert_eq!(scrape.sum("x", &[]), Some(12.0));
        assert_eq!(scrape.sum("x", &[("a", "3")]), None);
        assert_eq!(scrape.sum_of_label_value("1"), 7.0);
    }
}
