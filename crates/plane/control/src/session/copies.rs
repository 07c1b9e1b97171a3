//! A member of which two processes live has been copied (R-ENR-10): one of them is kept, the other
//! refused, and both are named.

use super::{Caller, text};
use crate::audit::{AuditNote, AuditRecord};
use crate::control::Inner;
use crate::ledger::Change;
use crate::observed::{Cloned, Process};
use crate::record::{MemberKey, key};
use crate::state::State;
use fairlead_model::{MonoTime, ProcessBootId, RelayId, WallTime};
use fairlead_rpc::pb;
use fairlead_telemetry::chain;
use fairlead_trust::{COPY_NEWS_FOR, Copies, RunVerdict, Runs};
use std::collections::BTreeMap;
use std::time::Duration;
use tonic::Status;

/// The alert's action in the audit log.
const CLONED: &str = "member.identity.cloned";
/// How old an alert may be for what a start finds again to be the same.
const NOTED_FOR: Duration = Duration::from_secs(24 * 3600);
/// Among how many entries, the newest, it is looked for.
const NOTED_AMONG_MAX: u64 = 1_000;

/// What members' processes say of themselves, by key: another key is another enrolment, whose
/// processes have nothing to do with earlier ones.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    key_hash: Option<[u8; 32]>,
    runs: Runs<Process>,
    /// The arrival of the newest session that was let in.
    admitted: u64,
    since: Option<WallTime>,
    /// Whether a relay's report of copies has been noted.
    reported: bool,
}

impl Processes {
    /// The copies, and since when they are known.
    pub(crate) fn copies(&self, now: MonoTime) -> Option<(Copies<'_, Process>, WallTime)> {
        Some((self.runs.copies(now)?, self.since?))
    }

    /// Whether a relay's report is the first that says so.
    pub(crate) fn is_first_report(&mut self) -> bool {
        !std::mem::replace(&mut self.reported, true)
    }
}

/// Lets the session's process in, or refuses it because another one lives.
///
/// # Errors
/// What the process is told.
pub(super) async fn admit(
    inner: &Inner,
    member: MemberKey,
    caller: Caller,
    said: Option<pb::Process>,
) -> Result<Option<ProcessBootId>, Status> {
    // A member of an older version says nothing.
    let Some(said) = said else {
        return Ok(None);
    };
    let Some(boot) = ProcessBootId::from_slice(&said.boot_id) else {
        return Err(Status::invalid_argument("the process has no boot id of 16 bytes"));
    };
    let state = inner.ledger.state();
    let process = Process {
        boot,
        address: caller.address,
        host_name: text(said.host_name),
        machine: text(said.machine),
        product: text(said.product),
    };
    let own_host = is_own_host(&state, member, &process);
    let now = inner.clock.mono();
    let verdict = inner.observed.lock().hello(member, |processes, lives| {
        if processes.key_hash != Some(caller.key_hash) {
            *processes = Processes {
                key_hash: Some(caller.key_hash),
                ..Processes::default()
            };
        }
        // The process whose session it is came later than this was said, be it the same one.
        if lives.is_some() && caller.arrival < processes.admitted {
            return RunVerdict::Late;
        }
        let verdict = processes
            .runs
            .hello(boot, caller.arrival, process.clone(), own_host, now, |b| {
                lives == Some(b)
            });
        if found(&verdict) {
            processes.since = Some(inner.clock.wall());
        }
        match verdict {
            RunVerdict::Alone | RunVerdict::Kept { .. } => processes.admitted = caller.arrival,
            RunVerdict::Late | RunVerdict::Refused { .. } => {}
        }
        verdict
    });
    let object = object(&state, member);
    match &verdict {
        RunVerdict::Alone => return Ok(Some(boot)),
        RunVerdict::Late => return Err(Status::unavailable("a later session of the member has come")),
        RunVerdict::Kept { other, found: true } => note(inner, &object, &process, other, "").await,
        RunVerdict::Refused { kept, found: true } => note(inner, &object, kept, &process, "").await,
        RunVerdict::Kept { found: false, .. } | RunVerdict::Refused { found: false, .. } => {}
    }
    match verdict {
        RunVerdict::Alone | RunVerdict::Late | RunVerdict::Kept { .. } => Ok(Some(boot)),
        RunVerdict::Refused { kept, .. } => {
            tracing::info!(%object, address = %process.address, "a copy of the identity was refused");
            Err(Status::already_exists(format!(
                "{object} runs on {kept} already, with the same key: this copy is kept out. Stop one of \
                 the two; if a copy is not yours, remove the member and add it again"
            )))
        }
    }
}

/// Notes that a relay met two processes of a node, once per run of this control plane.
pub(super) async fn note_report(inner: &Inner, relay: RelayId, cloned: &Cloned) {
    let node = cloned.node;
    let state = inner.ledger.state();
    let (Some(record), Some(relay)) = (state.node(node), state.relay(relay)) else {
        return;
    };
    let now = inner.clock.mono();
    let is_news = inner
        .observed
        .lock()
        .nodes
        .get_mut(&node)
        .is_some_and(|node| node.processes.copies(now).is_none() && node.processes.is_first_report());
    if is_news {
        let object = format!("node {}", record.name.0);
        note(
            inner,
            &object,
            &cloned.kept,
            &cloned.refused,
            relay.name.0.as_str(),
        )
        .await;
    }
}

const fn found(verdict: &RunVerdict<Process>) -> bool {
    match verdict {
        RunVerdict::Alone | RunVerdict::Late => false,
        RunVerdict::Kept { found, .. } | RunVerdict::Refused { found, .. } => *found,
    }
}

/// The alert: in the log and, with both hosts, in the audit log.
async fn note(inner: &Inner, object: &str, kept: &impl ToString, refused: &impl ToString, relay: &str) {
    let (kept, refused) = (kept.to_string(), refused.to_string());
    tracing::warn!(
        object,
        kept,
        refused,
        relay,
        "an identity is used by two processes: it was copied"
    );
    if is_noted(inner, object).await {
        return;
    }
    let mut facts = BTreeMap::from([("kept", kept.as_str()), ("refused", refused.as_str())]);
    if !relay.is_empty() {
        facts.insert("reported_by", relay);
    }
    let mut change = Change::default();
    change.note(AuditNote::new("control", CLONED, object).after(&facts));
    let committed = async { inner.ledger.turn().await?.commit(change).await };
    if let Err(error) = committed.await {
        tracing::warn!(object, error = %chain(&error), "the alert is not in the audit log");
    }
}

/// Whether the control plane before this one has noted it already: what is found soon after a start, of a
/// member that it noted within a day, is what went on then.
async fn is_noted(inner: &Inner, object: &str) -> bool {
    if inner.clock.mono().since(inner.started) >= COPY_NEWS_FOR {
        return false;
    }
    let since = inner.clock.wall().minus(NOTED_FOR);
    let newest = inner
        .ledger
        .state()
        .audit_head
        .as_ref()
        .map_or(0, |head| head.record.seq);
    let after = key::audit(newest.saturating_sub(NOTED_AMONG_MAX));
    let limit = usize::try_from(NOTED_AMONG_MAX).unwrap_or(usize::MAX);
    // Where the log cannot be read, an entry too many is the lesser fault.
    let entries = inner.ledger.store().scan(key::AUDIT, Some(&after), limit).await;
    entries.unwrap_or_default().iter().any(|entry| {
        serde_json::from_slice::<AuditRecord>(&entry.value).is_ok_and(|record| {
            let entry = record.view();
            entry.action == CLONED && entry.object == object && entry.at >= since
        })
    })
}

fn object(state: &State, member: MemberKey) -> String {
    let name = match member {
        MemberKey::Relay(id) => state.relay(id.0).map(|r| format!("relay {}", r.name.0)),
        MemberKey::Node(id) => state.node(id.0).map(|n| format!("node {}", n.name.0)),
    };
    name.unwrap_or_else(|| member.to_string())
}

/// Whether the process says that it runs on the host that enrolled. The host key is left out: it is
/// copied with the folder.
fn is_own_host(state: &State, member: MemberKey, process: &Process) -> bool {
    let enrolled = match member {
        MemberKey::Relay(id) => state.relay(id.0).and_then(|r| r.enrolled.as_ref()),
        MemberKey::Node(id) => state.node(id.0).and_then(|n| n.enrolled.as_ref()),
    };
    let same = |part: &str, said: &str| {
        let kept = enrolled?.host.get(part)?;
        (!said.is_empty()).then(|| kept == said)
    };
    same(crate::fingerprint::PRODUCT, &process.product)
        .or_else(|| same(crate::fingerprint::MACHINE, &process.machine))
        .unwrap_or(false)
}
