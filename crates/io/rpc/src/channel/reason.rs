//! Why a session was ended by its other end.

use std::time::Duration;
use tonic::{Status, Streaming};

/// How long a reason that is on its way is waited for. It comes before the end of the stream, with
/// what is in the connection already.
const REASON_MAX: Duration = Duration::from_secs(1);

/// The status with which a session's other end has closed it, if it comes within a second.
///
/// A message that cannot go up any more tells nothing of why: that is said in what still comes down.
pub async fn reason<T>(down: &mut Streaming<T>) -> Option<Status> {
    let said = async {
        loop {
            match down.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(status) => return Some(status),
            }
        }
    };
    tokio::time::timeout(REASON_MAX, said).await.ok().flatten()
}
