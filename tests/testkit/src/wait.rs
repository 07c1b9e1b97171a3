//! Waiting for what no event tells: another process's state, seen from outside.

use anyhow::{Result, bail};
use std::fmt::Display;
use std::future::Future;
use std::time::{Duration, Instant};

/// Between two looks at a condition: far below every limit that a test holds against it.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Looks again and again until `look` gives a value, and returns it with the time that it took.
///
/// # Errors
/// After `limit`, with the last thing that `look` said.
pub async fn until<T, E, F, Fut>(what: &str, limit: Duration, mut look: F) -> Result<(T, Duration)>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = std::result::Result<T, E>>,
    E: Display,
{
    let start = Instant::now();
    loop {
        let last = match tokio::time::timeout(limit, look()).await {
            Ok(Ok(value)) => return Ok((value, start.elapsed())),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        if start.elapsed() >= limit {
            bail!("{what}: not within {limit:?}; last seen: {last}");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// [`until`] for a condition that is either so or not.
///
/// # Errors
/// When it is not so within `limit`.
pub async fn until_true(what: &str, limit: Duration, mut look: impl FnMut() -> bool) -> Result<Duration> {
    let ((), took) = until(what, limit, || {
        let so = look();
        async move { if so { Ok(()) } else { Err("not so") } }
    })
    .await?;
    Ok(took)
}
