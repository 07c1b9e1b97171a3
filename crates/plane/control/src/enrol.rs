//! Enrolment: a one-shot token and a signing request become an identity (R-ENR-01 to 04).
//!
//! The token's single use is a precondition of the one transaction that records the member's key,
//! its host and the token's use. The certificate is signed after the commit: a reply that is lost
//! is asked for again by the same key from the same host, and gives a new certificate.

use crate::api::{ApiError, EnrolRequest, Enrolled, Faults, MemberRole};
use crate::audit::AuditNote;
use crate::authority::{CERTIFICATE_LIFETIME, Csr};
use crate::control::Control;
use crate::fingerprint::{self, HOST_KEY, same_by, same_host};
use crate::ledger::{Change, Turn};
use crate::record::{
    At, EnrolledRecord, EnrolmentRecord, MemberKey, NodeRecord, RelayRecord, UsedRecord, key,
};
use crate::state::State;
use crate::token::{SECRET_LEN_MAX, hash};
use crate::told;
use fairlead_model::{ApiCode, HostPort, Identity, Name, WallTime, duration};
use rustls_pki_types::CertificateDer;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Greatest difference of two clocks that is tolerated (R-POL-05).
pub const CLOCK_SKEW_MAX: Duration = Duration::from_secs(60);

/// So many refusals of one token are audited one by one: twice the fifty hosts of F-14. Of those
/// behind them only each power of ten is, with the count: whoever holds one token cannot fill the
/// log.
const REFUSALS_NOTED_MAX: u64 = 100;

/// Whether the `count`th refusal of a token goes into the audit log.
const fn is_noted(count: u64) -> bool {
    let mut power = count;
    while power != 0 && power.is_multiple_of(10) {
        power /= 10;
    }
    count <= REFUSALS_NOTED_MAX || power == 1
}

/// Counts refused uses of tokens that were issued, by the token's hash: as many as members.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<BTreeMap<String, u64>>);

impl Refusals {
    /// One more, after the `noted` that are on record. Tokens that are no more are forgotten.
    fn count(&self, state: &State, token_hash: &str, noted: u64) -> u64 {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !counts.contains_key(token_hash) {
            counts.retain(|hash, _| state.enrolments.contains_key(hash));
        }
        let count = counts.entry(token_hash.to_owned()).or_insert(noted);
        *count = (*count).max(noted).saturating_add(1);
        *count
    }
}

/// A request whose parts have been read.
struct Checked {
    token_hash: String,
    role: MemberRole,
    csr: Csr,
    wall_clock: WallTime,
    request: EnrolRequest,
}

/// The member that a token is for.
#[derive(Clone)]
enum Member {
    Relay(RelayRecord),
    Node(NodeRecord),
}

impl Control {
    /// Enrols a member. `from` is the peer's address, for the audit log.
    ///
    /// A refusal is audited where it names a token that was issued; one with an unknown token is
    /// only logged, so that nobody can fill the log without a token.
    ///
    /// # Errors
    /// Faults of the request ([`ApiCode::BadCsr`] where only the request for a certificate is at
    /// fault); the token is unknown, expired, used, or another member's; the clocks differ; the
    /// host has a relay (R-ENR-04); the store fails.
    pub async fn enrol(&self, request: EnrolRequest, from: IpAddr) -> Result<Enrolled, ApiError> {
        let checked = check(request)?;
        let turn = self.0.ledger.turn().await?;
        let Some(kept) = turn.state().enrolments.get(&checked.token_hash) else {
            if let Some(suppressed) = told::enrolment("unknown token") {
                tracing::info!(%from, suppressed, "an enrolment with an unknown token was refused");
            }
            let what = match turn.state().tokens.contains_key(&checked.token_hash) {
                // Who sends it holds it: this tells nothing else.
                true => {
                    "this is an admin token; a member enrols with the token that `fairlead relay add`, `node add` \
                     or `token` shows for it"
                }
                false => {
                    "this control plane has no such token: it was never issued, a newer one has taken its place, or the \
                     control plane was restored from a backup that is older than it; ask for a new one"
                }
            };
            return Err(ApiError::new(ApiCode::TokenUnknown, what));
        };
        let enrolment = kept.record.clone();
        let Some(member) = self.member(&turn, enrolment.member) else {
            return Err(ApiError::new(
                ApiCode::TokenUnknown,
                "the member that the token was issued for has been removed",
            ));
        };
        match self.admit(&turn, &checked, &enrolment, &member) {
            Ok(Admitted::First) => {
                let change = self.enrolment(&checked, enrolment, &member);
                turn.commit(change).await?;
                tracing::info!(%from, member = %member.object(), "enrolled");
            }
            // Nothing to record: the use is on record, and the key and the host are the same.
            Ok(Admitted::Again) => drop(turn),
            Err(refusal) => {
                let count = self
                    .0
                    .refusals
                    .count(turn.state(), &checked.token_hash, enrolment.refused);
                if is_noted(count) {
                    let mut change = Change::default();
                    let facts = serde_json::json!({
                        "code": refusal.code.as_str(),
                        "reason": refusal.message,
                        "from": from.to_string(),
                        "refused_so_far": count,
                    });
                    change.note(
                        AuditNote::new(format!("host {from}"), "enrol.refused", member.object())
                            .after(&facts),
                    );
                    let counted = EnrolmentRecord {
                        refused: count,
                        ..enrolment
                    };
                    change.put(key::enrolment(&checked.token_hash), &counted);
                    turn.commit(change).await?;
                }
                let code = refusal.code.as_str();
                if let Some(suppressed) = told::enrolment(code) {
                    tracing::info!(%from, member = %member.object(), code, suppressed, "an enrolment was refused");
                }
                return Err(refusal);
            }
        }
        self.reply(&checked, &member)
    }

    fn member(&self, turn: &Turn, member: MemberKey) -> Option<Member> {
        match member {
            MemberKey::Relay(id) => turn.state().relay(id.0).cloned().map(Member::Relay),
            MemberKey::Node(id) => turn.state().node(id.0).cloned().map(Member::Node),
        }
    }

    /// Whether the request may use the token.
    fn admit(
        &self,
        turn: &Turn,
        checked: &Checked,
        enrolment: &EnrolmentRecord,
        member: &Member,
    ) -> Result<Admitted, ApiError> {
        let now = self.0.clock.wall();
        if member.role() != checked.role {
            return Err(ApiError::new(
                ApiCode::TokenOtherMember,
                format!(
                    "the token was issued for {}, not for a {}",
                    member.object(),
                    checked.role
                ),
            )
            .with_detail("role", member.role()));
        }
        if let Some(used) = &enrolment.used {
            let at = used_at(used.at.into(), now);
            if !same_host(&used.host, &checked.request.host_fingerprint) {
                return Err(ApiError::new(
                    ApiCode::TokenOtherHost,
                    format!("the token was used by another host {at}; ask for a new one"),
                ));
            }
            if used.key_hash != hex::encode(checked.csr.key_hash) {
                return Err(ApiError::new(
                    ApiCode::TokenUsed,
                    format!("the token was used on this host with another key {at}; ask for a new one"),
                ));
            }
        } else if now >= WallTime::from(enrolment.expires_at) {
            return Err(ApiError::new(
                ApiCode::TokenExpired,
                format!(
                    "the token expired {} ago; ask for a new one",
                    about(now.since(enrolment.expires_at.into()))
                ),
            ));
        }
        check_clock(checked.wall_clock, now)?;
        if enrolment.used.is_some() {
            return Ok(Admitted::Again);
        }
        self.check_host(turn, checked, member)?;
        Ok(Admitted::First)
    }

    /// One physical host holds one relay (R-ENR-04); lab mode is exempt.
    fn check_host(&self, turn: &Turn, checked: &Checked, member: &Member) -> Result<(), ApiError> {
        let Member::Relay(relay) = member else {
            return Ok(());
        };
        if self.0.settings.lab {
            return Ok(());
        }
        let others = turn.state().relays.values().map(|k| &k.record);
        let holder = others.filter(|other| other.id != relay.id).find_map(|other| {
            let enrolled = other.enrolled.as_ref()?;
            Some((other, same_by(&enrolled.host, &checked.request.host_fingerprint)?))
        });
        match holder {
            None => Ok(()),
            Some((holder, part)) => Err(ApiError::new(
                ApiCode::HostHasRelay,
                format!(
                    "this host holds relay {0} already, by {1}: {2}{3} (a control plane with `lab = true` allows \
                     several, to try)",
                    holder.name.0,
                    fingerprint::words(part),
                    instead(holder),
                    // A key is copied with a folder; the others may be a clone's.
                    if part == HOST_KEY { "" } else { CLONE },
                ),
            )
            .with_detail("relay", &holder.name.0)
            .with_detail("same", part)),
        }
    }

    fn enrolment(&self, checked: &Checked, enrolment: EnrolmentRecord, member: &Member) -> Change {
        let now = self.0.clock.wall();
        let key_hash = hex::encode(checked.csr.key_hash);
        let enrolled = EnrolledRecord {
            at: At::from(now),
            key_hash: key_hash.clone(),
            host: checked.request.host_fingerprint.clone(),
            certificate_not_after: At::from(now.plus(CERTIFICATE_LIFETIME)),
            connected: false,
        };
        let mut change = Change::default();
        match member {
            Member::Relay(before) => {
                let after = RelayRecord {
                    enrolled: Some(enrolled),
                    ..before.clone()
                };
                change.note(
                    AuditNote::new(member.object(), "relay.enrol", member.object())
                        .before(before)
                        .after(&after),
                );
                change.put(key::relay(before.id.0), &after);
            }
            Member::Node(before) => {
                let after = NodeRecord {
                    enrolled: Some(enrolled),
                    ..before.clone()
                };
                change.note(
                    AuditNote::new(member.object(), "node.enrol", member.object())
                        .before(before)
                        .after(&after),
                );
                change.put(key::node(before.id.0), &after);
            }
        }
        // The put carries the token's revision as a precondition: of fifty uses at once one commits
        // (F-14), on whatever control plane they come in.
        change.put(
            key::enrolment(&checked.token_hash),
            &EnrolmentRecord {
                used: Some(UsedRecord {
                    at: At::from(now),
                    key_hash,
                    host: checked.request.host_fingerprint.clone(),
                }),
                ..enrolment
            },
        );
        change
    }

    fn reply(&self, checked: &Checked, member: &Member) -> Result<Enrolled, ApiError> {
        let inner = &self.0;
        let issuance = inner
            .authority
            .issue(&checked.csr, member.identity(), &inner.domain, inner.clock.wall())
            .map_err(|e| ApiError::new(ApiCode::Internal, fairlead_telemetry::chain(&e)))?;
        Ok(Enrolled {
            role: member.role(),
            identity: member.identity(),
            name: member.name().clone(),
            trust_domain: inner.domain.clone(),
            certificate_chain_pem: certificate_pem(&issuance.der),
            ca_pem: inner.authority.ca_pem().to_owned(),
            policy_keys: inner.bundle.policy_keys.keys().map(|k| k.to_bytes()).collect(),
            trust_bundle_version: inner.bundle.version,
            grpc_server_name: fairlead_rpc::GRPC_SERVER_NAME.to_owned(),
            advertised_address: member.address().cloned(),
        })
    }
}

/// For two hosts that are told apart by nothing.
const CLONE: &str =
    "; two hosts, one the other's clone? Give this one an id of its own: see cloned hosts in the guide";

/// What to do on a host that holds this relay: what works depends on whether it ever came.
fn instead(holder: &RelayRecord) -> String {
    let name = &holder.name.0;
    if holder.local {
        return "the local relay stays with its control plane; enrol this one on another host".to_owned();
    }
    if holder.enrolled.as_ref().is_some_and(|e| e.connected) {
        format!(
            "run that one, or stop its supervisor and remove it with `fairlead relay rm {name}`, which says when it \
             may go"
        )
    } else {
        format!(
            "it has never connected: enrol it with a new token of `fairlead relay token {name}`, or remove it with \
             `fairlead relay rm {name}`"
        )
    }
}

enum Admitted {
    /// The token's one use.
    First,
    /// The same key from the same host again: its reply was lost (R-ENR-02).
    Again,
}

impl Member {
    const fn role(&self) -> MemberRole {
        match self {
            Self::Relay(_) => MemberRole::Relay,
            Self::Node(_) => MemberRole::Node,
        }
    }

    const fn name(&self) -> &Name {
        match self {
            Self::Relay(relay) => &relay.name.0,
            Self::Node(node) => &node.name.0,
        }
    }

    const fn identity(&self) -> Identity {
        match self {
            Self::Relay(relay) => Identity::Relay(relay.id.0),
            Self::Node(node) => Identity::Node(node.id.0),
        }
    }

    const fn address(&self) -> Option<&HostPort> {
        match self {
            Self::Relay(relay) => Some(&relay.address.0),
            Self::Node(_) => None,
        }
    }

    fn object(&self) -> String {
        format!("{} {}", self.role(), self.name())
    }
}

/// Reads the request's parts; all faults together.
fn check(request: EnrolRequest) -> Result<Checked, ApiError> {
    let mut faults = Faults::default();
    if request.token.is_empty() || request.token.len() > SECRET_LEN_MAX {
        faults.add(
            "token",
            format!("it is empty or longer than {SECRET_LEN_MAX} bytes"),
        );
    }
    let role: Option<MemberRole> = faults.parse("role", &request.role);
    if request.version.len() > 64 {
        faults.add("version", "it is longer than 64 bytes");
    }
    fingerprint::check(&request.host_fingerprint, &mut faults);
    if request.wall_clock.is_none() {
        faults.add(
            "wall_clock",
            "it is missing or no time such as 2026-11-30T12:00:00.000Z",
        );
    }
    let clean = faults.is_empty();
    let csr = match Csr::from_pem(&request.csr_pem) {
        Ok(csr) => Some(csr),
        Err(error) if clean => {
            return Err(
                ApiError::new(ApiCode::BadCsr, format!("the signing request: {error}"))
                    .with_fault("csr_pem", error.to_string()),
            );
        }
        Err(error) => {
            faults.add("csr_pem", error);
            None
        }
    };
    let parts = role.zip(csr).zip(request.wall_clock);
    let ((role, csr), wall_clock) = faults.into_result(parts)?;
    Ok(Checked {
        token_hash: hash(&request.token),
        role,
        csr,
        wall_clock,
        request,
    })
}

/// Refuses a clock that differs by more than [`CLOCK_SKEW_MAX`].
fn check_clock(theirs: WallTime, ours: WallTime) -> Result<(), ApiError> {
    let (difference, how) = if theirs > ours {
        (theirs.since(ours), "ahead of")
    } else {
        (ours.since(theirs), "behind")
    };
    if difference <= CLOCK_SKEW_MAX {
        return Ok(());
    }
    Err(ApiError::new(
        ApiCode::ClockSkew,
        format!(
            "clock differs by {}: this host is {how} the control plane; set its clock and try again",
            about(difference)
        ),
    )
    .with_detail("difference_ms", difference.as_millis())
    .with_detail("direction", how))
}

/// A duration in whole seconds.
pub(crate) fn about(d: Duration) -> String {
    duration::format(Duration::from_secs(d.as_secs()))
}

fn used_at(at: WallTime, now: WallTime) -> String {
    format!("{} ago", about(now.since(at)))
}

/// PEM of a certificate.
pub(crate) fn certificate_pem(der: &CertificateDer<'_>) -> String {
    pem::encode_config(
        &pem::Pem::new("CERTIFICATE", der.to_vec()),
        pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF),
    )
}
