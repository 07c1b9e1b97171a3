//! A session's turns: what wakes it, and how often it wakes for nothing.

use super::*;
use crate::control::{Control, ControlSettings};
use crate::plan::{Numbering, RelayContents};
use crate::publish::{Contents as _, Documents, sign};
use fairlead_host::SystemClock;
use fairlead_model::{HostPort, PolicyEpoch, Revision};
use fairlead_trust::{Keyring, RelaySettings};
use std::collections::BTreeMap;
use std::pin::pin;

const RELAY: RelayId = RelayId::from_bytes([7; 16]);

async fn opened(dir: &std::path::Path) -> Arc<Inner> {
    let advertise: HostPort = "127.0.0.1:1".parse().unwrap();
    let settings = ControlSettings::new(dir.to_owned(), advertise);
    let control = Control::open(settings, Arc::new(SystemClock::new()))
        .await
        .unwrap();
    Arc::clone(&control.0)
}

/// How often a session wakes in which the supervisor says nothing, until it is closed for that.
async fn turns_of_a_silent_session(inner: Arc<Inner>) -> u64 {
    let (down, mut sent) = mpsc::channel(DOWN_QUEUED_MAX);
    let (_asker, mut probes) = mpsc::channel(1);
    let mut task = Task {
        inner,
        id: RELAY,
        session: 0,
        down,
        sent: Sent::default(),
        said: None,
        signed_ahead: None,
    };
    let mut up = tokio_stream::pending();
    let cancel = tokio_util::sync::CancellationToken::new();
    let mut turns = 0;
    let ended = {
        let mut serving = pin!(task.serve(&mut up, &mut probes, &cancel));
        std::future::poll_fn(|cx| {
            turns += 1;
            serving.as_mut().poll(cx)
        })
        .await
    };
    assert_eq!(ended, Ended::Silent);
    assert!(sent.try_recv().is_err(), "there was nothing to send");
    turns
}

/// R-SHD-03: a session without a policy waits for one; it does not ask for it a thousand times a
/// second.
#[tokio::test]
async fn a_session_without_a_policy_does_not_spin() {
    let dir = tempfile::tempdir().unwrap();
    let inner = opened(dir.path()).await;
    tokio::time::pause();
    let turns = turns_of_a_silent_session(inner).await;
    assert!(turns <= 2 * SILENCE_MAX.as_secs(), "{turns} turns");
}

/// R-SHD-03: nor one whose policy's number is not the newest in the store, so that no lease is signed
/// over it.
#[tokio::test]
async fn a_session_whose_lease_cannot_be_signed_does_not_spin() {
    let dir = tempfile::tempdir().unwrap();
    let inner = opened(dir.path()).await;
    let key = &inner.authority.policy;
    let keys = Keyring::new([key.verifying_key()]).unwrap();
    let contents = RelayContents {
        endpoints: Vec::new(),
        routes: Vec::new(),
        nodes: Vec::new(),
        revoked_routes: Vec::new(),
        settings: RelaySettings::DEFAULT,
    };
    let numbering = Numbering {
        epoch: PolicyEpoch(1),
        revision: Revision(1),
        leader_term: fairlead_model::LeaderTerm(1),
        issued_at: inner.clock.wall(),
    };
    let policy = sign::<RelayContents>(key, &keys, &contents.draft(RELAY, numbering, &keys)).unwrap();
    inner.published.publish(Documents {
        relays: Arc::new(BTreeMap::from([(RELAY, policy)])),
        ..Documents::default()
    });
    tokio::time::pause();
    let turns = turns_of_a_silent_session(inner).await;
    assert!(turns <= 2 * SILENCE_MAX.as_secs(), "{turns} turns");
}

/// R-POL-05: a clock that is set back while the relay is connected is told of once, and once more when
/// it is right again.
#[test]
fn a_clock_is_news_when_it_changes() {
    let hour = Some(Duration::from_secs(3600));
    let fault = clock_news(None, hour, false).unwrap().unwrap_err();
    assert!(fault.starts_with("clock differs by 1h"), "{fault}");
    let fault = clock_news(None, hour, true).unwrap().unwrap_err();
    assert!(fault.starts_with("this control plane's clock was 1h"), "{fault}");
    assert_eq!(clock_news(hour, Some(Duration::from_secs(3700)), true), None);
    assert_eq!(clock_news(hour, None, false), Some(Ok(())));
    assert_eq!(clock_news(None, None, false), None);
}
