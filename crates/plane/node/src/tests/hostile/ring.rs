//! What relays that collude share: the nodes' sessions of each, and what each has carried.

use crate::tests::pool::BETA;
use bytes::Bytes;
use fairlead_hop::frame::{Answer, Frame, Incoming, Open};
use fairlead_model::{EndpointId, NodeId, PolicyEpoch, RelayId, Revision};
use fairlead_transport::{Carrier, Leg};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Bytes of each leg that are remembered to be played again.
const RECORD_BYTES_MAX: usize = 64 * 1024;
/// Legs that are remembered, the latest.
const RECORDINGS_MAX: usize = 32;

#[derive(Default)]
pub(super) struct Ring {
    carriers: Mutex<BTreeMap<(RelayId, NodeId), Carrier>>,
    recordings: Mutex<Vec<Recording>>,
    /// A chunk that a relay waits to exchange for another one's.
    offered: Mutex<Option<(RelayId, Bytes)>>,
    kept: Mutex<Vec<Recording>>,
}

/// What a consumer has said on a leg, as long as it speaks.
#[derive(Clone)]
pub(super) struct Recording {
    pub(super) relay: RelayId,
    pub(super) consumer: NodeId,
    pub(super) open: Open,
    said: Arc<Mutex<Vec<u8>>>,
}

impl Recording {
    pub(super) fn new(relay: RelayId, consumer: NodeId, open: &Open) -> Self {
        Self {
            relay,
            consumer,
            open: open.clone(),
            said: Arc::default(),
        }
    }

    pub(super) fn hear(&self, bytes: &[u8]) {
        let mut said = self.said.lock().unwrap();
        if said.len() < RECORD_BYTES_MAX {
            said.extend_from_slice(bytes);
        }
    }

    pub(super) fn said(&self) -> Vec<u8> {
        self.said.lock().unwrap().clone()
    }
}

/// As an honest relay tells the publisher of an OPEN.
pub(super) fn incoming(open: &Open, consumer: NodeId) -> Incoming {
    Incoming {
        kind: open.kind,
        association: open.association,
        route: open.route,
        stream: open.stream,
        epoch: open.epoch,
        resume: open.resume,
        endpoint: EndpointId::from_bytes(open.route.to_bytes()),
        consumer,
        policy: (PolicyEpoch(1), Revision(1_000)),
    }
}

impl Ring {
    pub(super) fn joined(&self, relay: RelayId, node: NodeId, carrier: Carrier) {
        self.carriers.lock().unwrap().insert((relay, node), carrier);
    }

    /// A leg to `node` over a session of `relay`, with INCOMING on it.
    pub(super) async fn leg_to(&self, relay: RelayId, node: NodeId, claims: Incoming) -> Option<Leg> {
        let carrier = self.carriers.lock().unwrap().get(&(relay, node)).cloned()?;
        let mut leg = carrier.open_leg().await.ok()?;
        leg.send.write_frame(&Frame::Incoming(claims)).await.ok()?;
        Some(leg)
    }

    /// Another relay of the ring with a session of `node`.
    pub(super) fn friend(&self, relay: RelayId, node: NodeId) -> Option<RelayId> {
        let carriers = self.carriers.lock().unwrap();
        let mut others = carriers.keys().filter(|(r, n)| *r != relay && *n == node);
        others.next().map(|(friend, _)| *friend)
    }

    pub(super) fn record(&self, recording: Recording) {
        let mut recordings = self.recordings.lock().unwrap();
        if recordings.len() == RECORDINGS_MAX {
            recordings.remove(0);
        }
        recordings.push(recording);
    }

    /// The latest legs that `wanted` relays carried.
    pub(super) fn recorded(&self, wanted: impl Fn(RelayId) -> bool) -> Vec<Recording> {
        let recordings = self.recordings.lock().unwrap();
        let latest = recordings.iter().rev().filter(|r| wanted(r.relay)).take(3);
        latest.cloned().collect()
    }

    /// Another relay's chunk for this one, if one is offered; else this one is offered, and what goes on
    /// is itself.
    pub(super) fn trade(&self, relay: RelayId, chunk: Bytes) -> (Bytes, bool) {
        let mut offered = self.offered.lock().unwrap();
        match offered.take() {
            Some((other, theirs)) if other != relay => {
                *offered = Some((relay, chunk));
                (theirs, true)
            }
            Some(_) | None => {
                *offered = Some((relay, chunk.clone()));
                (chunk, false)
            }
        }
    }

    /// A leg that is kept from the publisher for the moment.
    pub(super) fn keep(&self, recording: Recording) {
        self.kept.lock().unwrap().push(recording);
    }

    /// Plays the legs that were kept from the publisher, each to its end. How many it took so far as to
    /// answer under seal, and how many in all.
    pub(super) async fn play_kept(&self) -> (usize, usize) {
        let kept = std::mem::take(&mut *self.kept.lock().unwrap());
        let mut answered = 0;
        for recording in &kept {
            let claims = incoming(&recording.open, recording.consumer);
            let mut leg = self.leg_to(recording.relay, BETA, claims).await.unwrap();
            // A publisher that has no use for the leg may have reset it already.
            let _ = leg.send.write_all(&recording.said()).await;
            if let Ok(Some(Frame::Answer(Answer::Ok))) = leg.recv.read_frame().await {
                let mut chunks = [const { Bytes::new() }; 16];
                answered += usize::from(matches!(leg.recv.read_chunks(&mut chunks).await, Ok(Some(_))));
            }
        }
        (answered, kept.len())
    }
}
