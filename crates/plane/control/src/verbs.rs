//! The admin's verbs. Inputs are checked whole; every change is one transaction with its audit
//! entry, and a verb that fails has changed nothing.

mod check;
mod link;
mod member;
mod remove;

pub(crate) use remove::removable_after;

use crate::api::{
    AddToken, ApiError, AuditView, Fault, Faults, IssuedToken, Look, Principal, Scope, SettingView,
    StatusView, TokenView,
};
use crate::audit::{AuditHead, AuditNote, AuditRecord};
use crate::control::Control;
use crate::ledger::Change;
use crate::record::{At, SettingRecord, Text, TokenRecord, key};
use crate::setting::{self, Setting};
use crate::state::{State, find};
use crate::token::{SECRET_LEN_MAX, hash};
use crate::view::Viewer;
use fairlead_host::rng;
use fairlead_model::{ApiCode, Name, TokenId};
use fairlead_store::{Entry, ReadError, SCAN_LIMIT_MAX};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// Most admin tokens.
const TOKENS_MAX: usize = 1_000;
/// Most audit entries of one answer.
const AUDIT_PAGE_MAX: usize = 1_000;

impl Control {
    /// Who a token is.
    ///
    /// # Errors
    /// No such token.
    pub async fn authenticate(&self, secret: &str) -> Result<Principal, ApiError> {
        let refused = || {
            ApiError::new(
                ApiCode::Unauthenticated,
                "no such token: it is wrong, was revoked, or is newer than the backup that this control plane was restored \
                 from",
            )
        };
        if secret.is_empty() || secret.len() > SECRET_LEN_MAX {
            return Err(refused());
        }
        let state = self.0.ledger.state();
        let hash = hash(secret);
        if state.enrolments.contains_key(&hash) {
            return Err(ApiError::new(
                ApiCode::Unauthenticated,
                "this is the one-shot token of an enrolment, for `fairlead enrol` on that member's host: here an \
                 admin token is needed",
            ));
        }
        let kept = state.tokens.get(&hash).ok_or_else(refused)?;
        Ok(principal(&kept.record))
    }

    /// The owner of a token, by the token's id; `None` once it was revoked.
    #[must_use]
    pub fn principal(&self, token: TokenId) -> Option<Principal> {
        let state = self.0.ledger.state();
        let kept = state.tokens.values().find(|kept| kept.record.id.0 == token)?;
        Some(principal(&kept.record))
    }

    /// Everything that is shown, in one consistent look.
    #[must_use]
    pub fn look(&self) -> Look {
        let viewer = Viewer::new(&self.0);
        let state = &viewer.state;
        Look {
            at: self.0.clock.wall(),
            status: viewer.status(self.ca_pin()),
            relays: state
                .relays
                .values()
                .map(|kept| viewer.relay(&kept.record))
                .collect(),
            nodes: state
                .nodes
                .values()
                .map(|kept| viewer.node(&kept.record))
                .collect(),
            links: state
                .links
                .values()
                .map(|kept| viewer.link(&kept.record))
                .collect(),
        }
    }

    /// Returns when the control plane stops, so that answers without an end end. Cancel safe.
    pub async fn stopping(&self) {
        self.0.stopping.cancelled().await;
    }

    /// The pool at a glance.
    pub async fn status(&self) -> StatusView {
        Viewer::new(&self.0).status(self.ca_pin())
    }

    /// Audit entries after `after`, ascending, at most `limit` (1 to 1,000).
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditView>, ApiError> {
        let entries = self.audit_page(after, limit.clamp(1, AUDIT_PAGE_MAX)).await?;
        entries.iter().map(|e| record(e).map(AuditRecord::view)).collect()
    }

    /// Checks the whole chain; how many entries it has.
    ///
    /// # Errors
    /// An entry was altered, removed or reordered, which the message names; the store cannot be
    /// read.
    pub async fn verify_audit(&self) -> Result<u64, ApiError> {
        match self.first_broken().await? {
            (entries, None) => Ok(entries),
            (_, Some(seq)) => Err(ApiError::new(
                ApiCode::Internal,
                format!("the audit log is broken at entry {seq}: it was altered outside the control plane"),
            )),
        }
    }

    /// Checks the whole chain and keeps what is found, for the status: a pool whose log is
    /// broken serves as before, and says so. Cancel safe.
    pub async fn watch_audit(&self) {
        match self.first_broken().await {
            Ok((entries, broken)) => {
                self.0.audit_broken.store(broken.unwrap_or(0), Ordering::Relaxed);
                match broken {
                    None => tracing::info!(entries, "the audit log is whole"),
                    Some(entry) => tracing::error!(
                        entry,
                        "the audit log is broken at this entry: it was altered outside the control plane"
                    ),
                }
            }
            Err(error) => tracing::warn!(error = error.message, "the audit log cannot be checked"),
        }
    }

    /// How many entries the chain has, and the first that does not follow the one before it.
    async fn first_broken(&self) -> Result<(u64, Option<u64>), ApiError> {
        let newest = self
            .0
            .ledger
            .state()
            .audit_head
            .as_ref()
            .map_or_else(AuditHead::none, |k| k.record.clone());
        let mut head = AuditHead::none();
        while head.seq < newest.seq {
            let page = self.audit_page(head.seq, SCAN_LIMIT_MAX).await?;
            let next = |head: &AuditHead| Ok((newest.seq, Some(head.seq.saturating_add(1))));
            if page.is_empty() {
                return next(&head);
            }
            for entry in &page {
                match record(entry) {
                    Ok(record) if record.follows(&head) => head = record.head(),
                    Ok(_) | Err(_) => return next(&head),
                }
                if head.seq == newest.seq {
                    break;
                }
            }
        }
        Ok((newest.seq, (head != newest).then_some(newest.seq)))
    }

    async fn audit_page(&self, after: u64, limit: usize) -> Result<Vec<Entry>, ApiError> {
        let after = key::audit(after);
        let store = self.0.ledger.store();
        store
            .scan(key::AUDIT, Some(&after), limit)
            .await
            .map_err(unreadable)
    }

    /// Every setting.
    pub async fn settings(&self) -> Vec<SettingView> {
        let state = self.0.ledger.state();
        setting::TABLE
            .iter()
            .map(|row| setting_view(&state, row))
            .collect()
    }

    /// One setting.
    ///
    /// # Errors
    /// No such setting.
    pub async fn setting(&self, key: &str) -> Result<SettingView, ApiError> {
        Ok(setting_view(&self.0.ledger.state(), find_setting(key)?))
    }

    /// Sets a setting. It is in force at once.
    ///
    /// # Errors
    /// No such setting; the value is malformed or out of range.
    pub async fn set_setting(&self, by: &Principal, key: &str, value: &str) -> Result<SettingView, ApiError> {
        let row = find_setting(key)?;
        let value = row.check(value).map_err(|message| {
            ApiError::faults(vec![Fault {
                field: "value".to_owned(),
                message,
            }])
        })?;
        let turn = self.0.ledger.turn().await?;
        let before = setting_view(turn.state(), row).value;
        if before != value {
            let mut change = Change::default();
            change.note(
                AuditNote::new(actor(by), "setting.set", format!("setting {key}"))
                    .before(&before)
                    .after(&value),
            );
            change.put(crate::record::key::setting(key), &SettingRecord { value });
            turn.commit(change).await?;
        }
        self.setting(key).await
    }

    /// Makes an admin token; its secret is in the answer only.
    ///
    /// # Errors
    /// Faults of the input; the name is taken.
    pub async fn add_token(&self, by: &Principal, input: AddToken) -> Result<IssuedToken, ApiError> {
        let mut faults = Faults::default();
        let name = faults.take("name", Name::requested(&input.name));
        let scopes: BTreeSet<Scope> = input
            .scopes
            .iter()
            .filter_map(|s| faults.parse("scopes", s))
            .collect();
        if input.scopes.is_empty() {
            faults.add("scopes", "it is empty: give admin:system or read");
        }
        let name = faults.into_result(name)?.to_string();
        let turn = self.0.ledger.turn().await?;
        let tokens = &turn.state().tokens;
        if tokens.values().any(|k| k.record.name == name) {
            return Err(taken("token", &name));
        }
        if tokens.len() >= TOKENS_MAX {
            return Err(full("tokens", TOKENS_MAX));
        }
        let secret = rng::token();
        let record = TokenRecord {
            id: Text(rng::new_id()),
            name,
            scopes: scopes.into_iter().map(Text).collect(),
            created_at: At::from(self.0.clock.wall()),
        };
        let mut change = Change::default();
        change.note(AuditNote::new(actor(by), "token.add", format!("token {}", record.name)).after(&record));
        change.put(key::token(&hash(secret.expose())), &record);
        turn.commit(change).await?;
        Ok(IssuedToken {
            view: token_view(&record),
            secret: secret.expose().to_owned(),
        })
    }

    /// Every admin token, by name.
    pub async fn tokens(&self) -> Vec<TokenView> {
        let state = self.0.ledger.state();
        let mut views: Vec<TokenView> = state.tokens.values().map(|k| token_view(&k.record)).collect();
        views.sort_by(|a, b| a.name.cmp(&b.name));
        views
    }

    /// Revokes an admin token, by name or id; the token as it was. The token that the request is
    /// made with only where `force` says so.
    ///
    /// # Errors
    /// No such token; it is the last one that may change things, or `by` itself.
    pub async fn revoke_token(
        &self,
        by: &Principal,
        name_or_id: &str,
        force: bool,
    ) -> Result<TokenView, ApiError> {
        let turn = self.0.ledger.turn().await?;
        let tokens = &turn.state().tokens;
        let (hash, kept) = find("token", tokens, name_or_id, |(_, k)| {
            (&k.record.name, k.record.id.0.to_string())
        })?
        .ok_or_else(|| missing(turn.state(), "token", name_or_id))?;
        let (hash, record) = (hash.clone(), kept.record.clone());
        let is_system = |r: &TokenRecord| r.scopes.contains(&Text(Scope::System));
        if is_system(&record) && tokens.values().filter(|k| is_system(&k.record)).count() == 1 {
            return Err(ApiError::new(
                ApiCode::InUse,
                format!(
                    "token {} is the last one with admin:system; add another before you revoke it",
                    record.name
                ),
            ));
        }
        if record.id.0 == by.token && !force {
            return Err(ApiError::new(
                ApiCode::InUse,
                format!(
                    "token {} is the one that this request is made with; whatever uses it would be locked out: \
                     use another token, or say force",
                    record.name
                ),
            ));
        }
        let mut change = Change::default();
        change.note(
            AuditNote::new(actor(by), "token.revoke", format!("token {}", record.name)).before(&record),
        );
        change.delete(key::token(&hash));
        turn.commit(change).await?;
        Ok(token_view(&record))
    }
}

fn principal(record: &TokenRecord) -> Principal {
    Principal {
        token: record.id.0,
        name: record.name.clone(),
        scopes: record.scopes.iter().map(|s| s.0).collect(),
    }
}

/// The actor of a change that an admin makes.
fn actor(by: &Principal) -> String {
    format!("token {}", by.name)
}

fn missing(state: &State, what: &str, name_or_id: &str) -> ApiError {
    let shown: String = name_or_id.chars().take(80).collect();
    let other = other_kind(state, what, name_or_id);
    ApiError::new(ApiCode::NotFound, format!("there is no {what} `{shown}`{other}"))
}

/// What else has the name or id, where `what` has it not.
fn other_kind(state: &State, what: &str, name_or_id: &str) -> String {
    let others = [
        ("relay", matches!(state.find_relay(name_or_id), Ok(Some(_)))),
        ("node", matches!(state.find_node(name_or_id), Ok(Some(_)))),
        ("link", matches!(state.find_link(name_or_id), Ok(Some(_)))),
    ];
    let found = others.into_iter().find(|(kind, is_one)| *is_one && *kind != what);
    found.map_or_else(String::new, |(kind, _)| format!(": it is a {kind}"))
}

fn taken(what: &str, name: &str) -> ApiError {
    ApiError::new(
        ApiCode::NameTaken,
        format!("there is a {what} `{name}` already; choose another name"),
    )
    .with_fault("name", format!("`{name}` is taken"))
}

fn full(what: &str, max: usize) -> ApiError {
    ApiError::new(
        ApiCode::LimitReached,
        format!("there are {max} {what}, the most that one control plane keeps"),
    )
}

fn unreadable(error: ReadError) -> ApiError {
    ApiError::new(ApiCode::Unavailable, fairlead_telemetry::chain(&error))
}

fn record(entry: &Entry) -> Result<AuditRecord, ApiError> {
    serde_json::from_slice(&entry.value).map_err(|e| {
        ApiError::new(
            ApiCode::Internal,
            format!("the store's record `{}`: {e}", entry.key),
        )
    })
}

fn find_setting(key: &str) -> Result<&'static Setting, ApiError> {
    Setting::find(key).ok_or_else(|| {
        let known: Vec<&str> = setting::TABLE.iter().map(|s| s.key).collect();
        let shown: String = key.chars().take(80).collect();
        ApiError::new(
            ApiCode::NotFound,
            format!("there is no setting `{shown}`; there are: {}", known.join(", ")),
        )
    })
}

fn setting_view(state: &State, row: &'static Setting) -> SettingView {
    let stored = state.settings.get(row.key).map(|k| k.record.value.clone());
    SettingView {
        key: row.key,
        value: stored.unwrap_or_else(|| row.default_text()),
        default: row.default_text(),
        range: row.range_text(),
        meaning: row.meaning,
        source: row.source,
    }
}

fn token_view(record: &TokenRecord) -> TokenView {
    TokenView {
        id: record.id.0,
        name: record.name.clone(),
        scopes: record.scopes.iter().map(|s| s.0).collect(),
        created_at: record.created_at.into(),
    }
}
