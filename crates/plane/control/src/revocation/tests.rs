//! What is counted: each revocation once for each relay, when it is enforced there.

use super::*;
use crate::plan::{Numbering, RelayContents};
use crate::publish::{Contents as _, sign};
use fairlead_model::{LeaderTerm, LeaseSeq};
use fairlead_telemetry::metric::Exposition;
use fairlead_trust::{Keyring, PolicyRoot, RelaySettings, SigningKey};
use std::time::Duration;

const AT: WallTime = WallTime(1_800_000_000_000);

fn relay(n: u8) -> RelayId {
    RelayId::from_bytes([n; 16])
}

fn route(n: u8) -> RouteId {
    RouteId::from_bytes([n; 16])
}

type Policies = BTreeMap<RelayId, Arc<Verified<RelayPolicy>>>;

fn policy(id: RelayId, revision: u64, revoked: &[u8]) -> (RelayId, Arc<Verified<RelayPolicy>>) {
    let key = SigningKey::from_seed(&[3; 32]);
    let keys = Keyring::new([key.verifying_key()]).unwrap();
    let contents = RelayContents {
        endpoints: Vec::new(),
        routes: Vec::new(),
        nodes: Vec::new(),
        revoked_routes: revoked.iter().copied().map(route).collect(),
        settings: RelaySettings::DEFAULT,
    };
    let numbering = Numbering {
        epoch: PolicyEpoch(1),
        revision: Revision(revision),
        leader_term: LeaderTerm(1),
        issued_at: AT,
    };
    let draft = contents.draft(id, numbering, &keys);
    (id, sign::<RelayContents>(&key, &keys, &draft).unwrap())
}

fn head(revision: u64) -> PolicyHead {
    PolicyHead {
        epoch: PolicyEpoch(1),
        revision: Revision(revision),
        root: PolicyRoot::of(b""),
        leader_term: LeaderTerm(1),
        lease_seq: LeaseSeq(1),
        lease_not_after: AT,
    }
}

fn page(revocations: &Revocations) -> String {
    let registry = Metrics::new("control");
    revocations.register(&registry);
    registry.encode(Exposition::OpenMetrics)
}

/// R-REV-03: the latency is the time from the change to the relay's word; a relay that was away for an
/// hour counts an hour, and a policy that does not say so yet counts nothing.
#[test]
fn each_relay_counts_each_revocation_once() {
    let revocations = Revocations::default();
    let before: Policies = [policy(relay(1), 5, &[9]), policy(relay(2), 5, &[9])].into();
    revocations.published(&Policies::new(), &before, |_| Some(AT));
    assert_eq!(
        revocations.pending(relay(1)),
        0,
        "what was revoked before is not on its way"
    );
    let next: Policies = [policy(relay(1), 6, &[9, 1, 2]), policy(relay(2), 6, &[9, 1])].into();
    revocations.published(&before, &next, |_| Some(AT));
    assert_eq!(
        (revocations.pending(relay(1)), revocations.pending(relay(2))),
        (2, 1)
    );
    revocations.applied(relay(1), "paris", &head(5), AT.plus(Duration::from_millis(100)));
    assert_eq!(
        revocations.pending(relay(1)),
        2,
        "revision 5 does not revoke them"
    );
    // A later one does, too; the same word again counts nothing.
    for _ in 0..2 {
        revocations.applied(relay(1), "paris", &head(7), AT.plus(Duration::from_millis(200)));
        revocations.applied(relay(2), "oslo", &head(6), AT.plus(Duration::from_secs(3_000)));
    }
    assert_eq!(
        (revocations.pending(relay(1)), revocations.pending(relay(2))),
        (0, 0)
    );
    let page = page(&revocations);
    for line in [
        "fairlead_relay_revocation_seconds_bucket{le=\"0.1\",relay=\"paris\"} 0",
        "fairlead_relay_revocation_seconds_bucket{le=\"0.25\",relay=\"paris\"} 2",
        "fairlead_relay_revocation_seconds_bucket{le=\"600.0\",relay=\"oslo\"} 0",
        "fairlead_relay_revocation_seconds_bucket{le=\"3600.0\",relay=\"oslo\"} 1",
        "fairlead_relay_revocation_seconds_count{relay=\"paris\"} 2",
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
}

/// A relay that is removed waits for nothing and has no series any more.
#[test]
fn a_removed_relay_leaves_nothing() {
    let revocations = Revocations::default();
    let before: Policies = [policy(relay(1), 5, &[])].into();
    let next: Policies = [policy(relay(1), 6, &[1])].into();
    revocations.published(&before, &next, |_| Some(AT));
    revocations.applied(relay(1), "paris", &head(6), AT);
    assert!(page(&revocations).contains("paris"));
    let more: Policies = [policy(relay(1), 7, &[1, 2])].into();
    revocations.published(&next, &more, |_| Some(AT));
    assert_eq!(revocations.pending(relay(1)), 1);
    revocations.published(&more, &Policies::new(), |_| None);
    assert_eq!(revocations.pending(relay(1)), 0);
    assert!(!page(&revocations).contains("paris"));
    revocations.applied(relay(1), "paris", &head(9), AT);
    assert!(!page(&revocations).contains("paris"));
}
