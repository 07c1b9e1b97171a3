//! From the plan to what members hold: numbers and roots are committed, then documents are signed
//! and published. A process that ends in between signs the same bytes after its restart: they
//! follow from the committed number and the plan.

use super::ahead::Ahead;
use super::wanted::{place_record, wanted};
use crate::audit::AuditNote;
use crate::control::Inner;
use crate::grant::{Term, Terms};
use crate::ledger::{Change, CommitError, Turn};
use crate::plan::{GrantContents, Numbering, Plan, Wanted, plan};
use crate::publish::{Contents, Documents, Draft, GrantSet, SignedGrant, sign, sign_grant};
use crate::record::{At, CounterRecord, HeadRecord, LeaderRecord, MemberKey, PlaceRecord, Text, key};
use crate::setting::Settings;
use crate::state::State;
use fairlead_model::{LeaderTerm, LinkId, NodeId, PolicyEpoch, Revision, RouteId, WallTime};
use fairlead_trust::{Keyring, Verified};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Most records of one commit, well below the store's bound on operations. What does not fit goes
/// into further commits, each with a revision of its own.
const RECORDS_PER_COMMIT_MAX: usize = 500;

const _: () = assert!(
    RECORDS_PER_COMMIT_MAX + 8 <= fairlead_store::OPS_MAX,
    "a commit with its counter fits into the store's bound"
);

/// Applies plans.
pub(super) struct Apply {
    inner: Arc<Inner>,
    policy_keys: Keyring,
    grant_keys: Keyring,
    /// The plan that is published; `None` before the first.
    plan: Option<Plan>,
    /// What it was made of, and the grants' terms.
    made_of: Option<(Wanted, Terms)>,
    /// The commit that it was made at; `None` to make one whatever was committed.
    planned: Option<u64>,
    /// When time alone makes a plan due.
    again: Option<WallTime>,
    /// Whose policies the next plan signs under a new number, whatever they say.
    renumber: BTreeSet<MemberKey>,
}

/// A policy on its way to be published.
enum Step<C: Contents> {
    /// It is published already.
    Keep(Arc<Verified<C::Document>>),
    /// It is signed once its number is committed.
    Sign(Draft<C::Document>),
}

/// One record that the plan writes.
enum Write {
    /// Where a link is; `None` removes it.
    Place(LinkId, Option<PlaceRecord>),
    /// A revoked route that is forgotten.
    Forget(RouteId),
    /// A member's newest policy.
    Head(MemberKey, Numbering, String),
}

/// The records of a plan, in commits that the store takes.
struct Writes {
    commits: VecDeque<(Revision, Vec<Write>)>,
    next: Revision,
}

impl Apply {
    pub(super) fn new(inner: Arc<Inner>) -> Self {
        let grant_key = inner.authority.grant.verifying_key();
        Self {
            policy_keys: inner.bundle.policy_keys.clone(),
            grant_keys: Keyring::new([grant_key]).unwrap_or_default(),
            inner,
            plan: None,
            made_of: None,
            planned: None,
            again: None,
            renumber: BTreeSet::new(),
        }
    }

    /// The next [`Self::follow`] makes a plan whatever was committed.
    pub(super) const fn again(&mut self) {
        self.planned = None;
    }

    /// Raises the revision and the leader's term above what members hold; the next [`Self::follow`] signs
    /// their policies anew. On record before anything is signed under it.
    pub(super) async fn raise(&mut self, ahead: Ahead) -> Result<(), CommitError> {
        let turn = self.inner.ledger.turn().await?;
        let mut change = Change::default();
        let (term, revision) = (self.inner.term().0, turn.state().policy_revision());
        // Above the held one: the leader that gave it out is not this one.
        let next_term = if ahead.term > term {
            ahead.term.saturating_add(1)
        } else {
            term
        };
        let next_revision = ahead.revision.max(revision);
        if next_term > term {
            change.put(key::LEADER, &LeaderRecord { term: next_term });
        }
        if next_revision > revision {
            change.put(
                key::COUNTER,
                &CounterRecord {
                    revision: next_revision,
                },
            );
        }
        if !change.is_empty() {
            tracing::warn!(
                leader_term = next_term,
                revision = next_revision,
                members = ahead.members.len(),
                "members hold newer policies than this control plane: was it restored from an older backup? Its \
                 numbers were raised above theirs"
            );
            let facts = |leader_term: u64, revision: u64| serde_json::json!({ "leader_term": leader_term, "revision": revision });
            let note = AuditNote::new("control", "policy.numbers.raise", "pool");
            change.note(
                note.before(&facts(term, revision))
                    .after(&facts(next_term, next_revision)),
            );
        }
        turn.commit(change).await?;
        self.inner.raise_term(LeaderTerm(next_term));
        self.renumber.extend(ahead.members);
        self.planned = None;
        Ok(())
    }

    /// Plans and applies, where something was committed since the last plan or its time has come.
    /// `seen` counts commits.
    pub(super) async fn follow(&mut self, seen: u64) -> Result<(), CommitError> {
        let now = self.inner.clock.wall();
        // A clock that was set back has signed grants that have not begun.
        let is_back = self.made_of.as_ref().is_some_and(|(before, _)| now < before.now);
        let is_time = is_back || self.again.is_some_and(|at| now >= at);
        if self.planned == Some(seen) && !is_time {
            return Ok(());
        }
        if self.planned.is_none() || is_time || !self.is_made_of(&self.inner.ledger.state(), now) {
            self.apply(now).await?;
        }
        self.planned = Some(seen);
        Ok(())
    }

    /// Whether the plan would be made of the same again. Most commits are leases, pulses and refused
    /// enrolments.
    fn is_made_of(&self, state: &State, now: WallTime) -> bool {
        let Some((before, before_terms)) = &self.made_of else {
            return false;
        };
        // Time and the next number are no change in themselves.
        let wanted = Wanted {
            now: before.now,
            next: before.next,
            ..wanted(state, now)
        };
        wanted == *before && terms(state) == *before_terms
    }

    async fn apply(&mut self, now: WallTime) -> Result<(), CommitError> {
        let turn = self.inner.ledger.turn().await?;
        let mut wanted = wanted(turn.state(), now);
        let terms = terms(turn.state());
        let plan = plan(&wanted);
        let documents = self.inner.published.snapshot();
        let mut writes = Writes::new(wanted.next);
        writes.places(&wanted, &plan);
        let before = self.plan.as_ref();
        let relays = self.steps(
            &plan.relays,
            before.map(|p| &p.relays),
            &documents.relays,
            &turn,
            &mut writes,
        );
        let nodes = self.steps(
            &plan.nodes,
            before.map(|p| &p.nodes),
            &documents.nodes,
            &turn,
            &mut writes,
        );
        self.commit(turn, writes).await?;
        self.renumber.clear();

        let state = self.inner.ledger.state();
        let (grants, renewal) = self.grants(&plan, &documents, &state, terms, now);
        let next = Documents {
            relays: Arc::new(self.signed(relays)),
            nodes: Arc::new(self.signed(nodes)),
            grants: Arc::new(grants),
            placements: Arc::new(plan.placements.clone()),
        };
        self.inner
            .revocations
            .published(&documents.relays, &next.relays, |route| {
                wanted.revoked.get(&route).map(|revoked| revoked.at)
            });
        if self.plan.is_none() || !next.is_same(&documents) {
            self.inner.published.publish(next);
        }
        self.again = [plan.again, renewal].into_iter().flatten().min();
        wanted.places.clone_from(&plan.places);
        wanted.revoked.retain(|route, _| !plan.forgotten.contains(route));
        self.made_of = Some((wanted, terms));
        self.plan = Some(plan);
        Ok(())
    }

    /// What is to be done for each policy of one kind.
    fn steps<C: Contents>(
        &self,
        plan: &BTreeMap<C::Id, C>,
        before: Option<&BTreeMap<C::Id, C>>,
        published: &BTreeMap<C::Id, Arc<Verified<C::Document>>>,
        turn: &Turn,
        writes: &mut Writes,
    ) -> BTreeMap<C::Id, Step<C>> {
        let mut steps = BTreeMap::new();
        for (id, contents) in plan {
            let member = C::member(*id);
            let head = turn.state().heads.get(&member).map(|k| &k.record);
            // One that holds something newer would refuse the number that is on record.
            let head =
                head.filter(|head| head.epoch == self.inner.epoch.0 && !self.renumber.contains(&member));
            let kept = published
                .get(id)
                .filter(|_| before.and_then(|b| b.get(id)) == Some(contents))
                .filter(|document| head.is_some_and(|head| C::revision(document).0 == head.revision));
            if let Some(document) = kept {
                steps.insert(*id, Step::Keep(Arc::clone(document)));
                continue;
            }
            // Committed before, and unchanged: the same bytes.
            let again = head
                .map(|head| (head, contents.draft(*id, numbering(head), &self.grant_keys)))
                .filter(|(head, draft)| draft.root() == head.root);
            if let Some((_, draft)) = again {
                steps.insert(*id, Step::Sign(draft));
                continue;
            }
            let numbering = Numbering {
                epoch: self.inner.epoch,
                revision: writes.revision(),
                leader_term: self.inner.term(),
                issued_at: self.inner.clock.wall(),
            };
            let draft = contents.draft(*id, numbering, &self.grant_keys);
            writes.push(Write::Head(member, numbering, draft.root()));
            steps.insert(*id, Step::Sign(draft));
        }
        steps
    }

    /// Commits every record; the first commit in the turn that the plan was made in. A plan that
    /// another change has overtaken by the second commit is followed by the next plan at once.
    async fn commit(&self, turn: Turn, writes: Writes) -> Result<(), CommitError> {
        let mut turn = Some(turn);
        for (revision, writes) in writes.commits {
            let turn = match turn.take() {
                Some(turn) => turn,
                None => self.inner.ledger.turn().await?,
            };
            let mut change = Change::default();
            change.put(key::COUNTER, &CounterRecord { revision: revision.0 });
            for write in writes {
                match write {
                    Write::Place(link, Some(record)) => change.put(key::place(link), &record),
                    Write::Place(link, None) => change.delete(key::place(link)),
                    Write::Forget(route) => change.delete(key::revoked(route)),
                    // Removed since the plan was made.
                    Write::Head(member, ..) if !turn.state().has(member) => {}
                    Write::Head(member, numbering, root) => {
                        change.put(
                            key::head(member),
                            &head_record(turn.state(), member, numbering, root),
                        );
                    }
                }
            }
            turn.commit(change).await?;
            tracing::debug!(%revision, "a policy revision was committed");
        }
        Ok(())
    }

    /// Signs what is to be signed.
    fn signed<C: Contents>(
        &self,
        steps: BTreeMap<C::Id, Step<C>>,
    ) -> BTreeMap<C::Id, Arc<Verified<C::Document>>> {
        let mut documents = BTreeMap::new();
        for (id, step) in steps {
            match step {
                Step::Keep(document) => {
                    documents.insert(id, document);
                }
                Step::Sign(draft) => match sign::<C>(&self.inner.authority.policy, &self.policy_keys, &draft)
                {
                    Ok(document) => {
                        documents.insert(id, document);
                    }
                    Err(error) => {
                        let error = fairlead_telemetry::chain(&error);
                        tracing::error!(member = %C::member(id), error, "a policy could not be signed");
                    }
                },
            }
        }
        documents
    }

    /// Every node's grants, and when the first of them is due again.
    fn grants(
        &self,
        plan: &Plan,
        documents: &Documents,
        state: &State,
        terms: Terms,
        now: WallTime,
    ) -> (BTreeMap<NodeId, Arc<GrantSet>>, Option<WallTime>) {
        let mut sets: BTreeMap<NodeId, GrantSet> =
            plan.nodes.keys().map(|id| (*id, GrantSet::default())).collect();
        let mut due: Option<WallTime> = None;
        for (route, contents) in &plan.grants {
            let held = documents
                .grants
                .get(&contents.consumer)
                .and_then(|set| set.grants.get(route));
            let Some(grant) = self.signed_grant(contents, held, terms, state, now) else {
                continue;
            };
            let renewal = terms.renew_at(grant.grant.not_after);
            due = Some(due.map_or(renewal, |due| due.min(renewal)));
            sets.entry(contents.consumer)
                .or_default()
                .grants
                .insert(*route, grant);
        }
        let sets = sets.into_iter().map(|(id, set)| {
            let held = documents.grants.get(&id).filter(|held| ***held == set);
            (id, held.cloned().unwrap_or_else(|| Arc::new(set)))
        });
        (sets.collect(), due)
    }

    /// The grant that is held, where it stands; a new one where it does not.
    fn signed_grant(
        &self,
        contents: &GrantContents,
        held: Option<&SignedGrant>,
        terms: Terms,
        state: &State,
        now: WallTime,
    ) -> Option<SignedGrant> {
        let lease_end = contents
            .relays
            .iter()
            .filter_map(|id| state.heads.get(&MemberKey::Relay(Text(*id))))
            .filter_map(|head| head.record.lease_not_after)
            .max()
            .map(WallTime::from);
        let stands = |held: &&SignedGrant| {
            let term = Term {
                not_before: held.grant.not_before,
                not_after: held.grant.not_after,
            };
            held.grant.epoch == self.inner.epoch && held.says(contents) && !terms.is_due(term, now, lease_end)
        };
        if let Some(held) = held.filter(stands) {
            return Some(held.clone());
        }
        let grant = contents.grant(self.inner.epoch, now, terms.not_after(now, lease_end));
        match sign_grant(&self.inner.authority.grant, grant) {
            Ok(grant) => Some(grant),
            Err(error) => {
                let error = fairlead_telemetry::chain(&error);
                tracing::error!(route = %contents.route, error, "a grant could not be signed");
                None
            }
        }
    }
}

impl Writes {
    fn new(next: Revision) -> Self {
        Self {
            commits: VecDeque::new(),
            next,
        }
    }

    /// The places that the plan changes, and what it forgets. They stand before every policy: a
    /// route's first revision is on record before it is signed.
    fn places(&mut self, wanted: &Wanted, plan: &Plan) {
        for (link, place) in &plan.places {
            if wanted.places.get(link) != Some(place) {
                self.push(Write::Place(*link, Some(place_record(place))));
            }
        }
        for link in wanted.places.keys().filter(|id| !plan.places.contains_key(id)) {
            self.push(Write::Place(*link, None));
        }
        for route in &plan.forgotten {
            self.push(Write::Forget(*route));
        }
    }

    /// The revision of the commit that the next record goes into.
    fn revision(&self) -> Revision {
        match self.commits.back() {
            Some((revision, writes)) if writes.len() < RECORDS_PER_COMMIT_MAX => *revision,
            Some((revision, _)) => revision.next(),
            None => self.next,
        }
    }

    fn push(&mut self, write: Write) {
        let revision = self.revision();
        match self.commits.back_mut() {
            Some((last, writes)) if *last == revision => writes.push(write),
            Some(_) | None => self.commits.push_back((revision, vec![write])),
        }
    }
}

/// The grants' terms as of `state`.
fn terms(state: &State) -> Terms {
    let settings = Settings::of(state);
    Terms {
        lifetime: settings.grant_lifetime,
        lease: settings.lease,
    }
}

/// The number that a head was signed under.
fn numbering(head: &HeadRecord) -> Numbering {
    Numbering {
        epoch: PolicyEpoch(head.epoch),
        revision: Revision(head.revision),
        leader_term: LeaderTerm(head.leader_term),
        issued_at: head.issued_at.into(),
    }
}

/// The next head; leases are counted on within an epoch.
fn head_record(state: &State, member: MemberKey, numbering: Numbering, root: String) -> HeadRecord {
    let before = state.heads.get(&member).map(|k| &k.record);
    let lease_seq = before
        .filter(|head| head.epoch == numbering.epoch.0)
        .map_or(0, |head| head.lease_seq);
    HeadRecord {
        epoch: numbering.epoch.0,
        revision: numbering.revision.0,
        root,
        issued_at: At::from(numbering.issued_at),
        leader_term: numbering.leader_term.0,
        lease_seq,
        lease_not_after: before.and_then(|head| head.lease_not_after),
    }
}
