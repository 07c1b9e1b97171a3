//! Associations between two nodes over a leg.

use super::{Bench, node_id, relay_id, soon};
use crate::tls::Peer;
use crate::{Carrier, Leg, PairError, PairHello, PairRun, pair};
use bytes::Bytes;
use fairlead_hop::frame::{Answer, Frame};
use fairlead_model::{AssociationId, BootCounter, Identity, RefusalCode};

fn hello() -> PairHello {
    PairHello {
        association: AssociationId::from_bytes([3; 16]),
        boot: BootCounter(41),
    }
}

fn run(boot: u64, dead: Option<u64>) -> PairRun {
    PairRun {
        boot: BootCounter(boot),
        dead: dead.map(BootCounter),
    }
}

/// Both ends of a fresh leg, and the carrier that has to outlive it.
async fn leg(bench: &Bench) -> (Leg, Leg, (Carrier, Carrier)) {
    let (node, relay) = soon(bench.carriers()).await;
    let mut near = soon(node.open_leg()).await.unwrap();
    near.send.write_all(b"o").await.unwrap();
    let mut far = soon(relay.accept_leg()).await.unwrap();
    let mut first = [0];
    soon(far.recv.read_exact(&mut first)).await.unwrap();
    (near, far, (node, relay))
}

/// R-STR-06: both ends know the other's identity and share a secret that is theirs alone.
#[tokio::test]
async fn two_nodes_share_a_secret() {
    let bench = Bench::new();
    let (alpha, beta) = (node_id(1), node_id(2));
    let beta_tls = bench.authority.member(Identity::Node(beta));
    let mut secrets = Vec::new();
    for (run, dead) in [
        (run(7, None), None),
        (run(7, Some(5)), Some(BootCounter(5))),
        // What no later run can know.
        (run(7, Some(7)), None),
    ] {
        let (near, mut far, _carriers) = leg(&bench).await;
        let accept = async {
            // The ClientHello comes before the answer goes.
            let mut chunks = [Bytes::new()];
            assert_eq!(far.recv.read_chunks(&mut chunks).await, Ok(Some(1)));
            far.recv.unread(chunks[0].clone());
            far.send.write_frame(&Frame::Answer(Answer::Ok)).await.unwrap();
            pair::accept(far, &beta_tls, run).await
        };
        let (dialled, accepted) =
            soon(async { tokio::join!(pair::dial(near, bench.dialler.tls(), beta, hello()), accept) }).await;
        let (dialled, accepted) = (dialled.unwrap(), accepted.unwrap());
        assert_eq!((dialled.peer, dialled.peer_boot), (beta, BootCounter(7)));
        assert_eq!(dialled.peer_dead, dead);
        assert_eq!((accepted.peer, accepted.peer_boot), (alpha, BootCounter(41)));
        assert_eq!(accepted.association, hello().association);
        assert_eq!(dialled.secret.expose(), accepted.secret.expose());
        assert!(!format!("{dialled:?}").contains(&format!("{:?}", dialled.secret.expose())));
        secrets.push(*dialled.secret.expose());
    }
    assert_ne!(secrets[0], secrets[1], "a secret came twice");
}

/// An acceptor of an older version says nothing behind its boot counter, and ends the leg.
#[tokio::test]
async fn an_older_acceptor_names_no_dead_run() {
    let bench = Bench::new();
    let beta = bench.authority.member(Identity::Node(node_id(2)));
    let (near, mut far, _carriers) = leg(&bench).await;
    let accept = async {
        far.send.write_frame(&Frame::Answer(Answer::Ok)).await.unwrap();
        let reply = [&[1][..], &7u64.to_be_bytes()].concat();
        pair::accept_saying(far, &beta, BootCounter(7), reply).await
    };
    let dial = pair::dial(near, bench.dialler.tls(), node_id(2), hello());
    let (dialled, accepted) = soon(async { tokio::join!(dial, accept) }).await;
    let (dialled, accepted) = (dialled.unwrap(), accepted.unwrap());
    assert_eq!((dialled.peer_boot, dialled.peer_dead), (BootCounter(7), None));
    assert_eq!(dialled.secret.expose(), accepted.secret.expose());
}

/// A relay that answers itself, or leads to another node, is found out.
#[tokio::test]
async fn impostors_are_refused() {
    let bench = Bench::new();
    for impostor in [Identity::Node(node_id(6)), Identity::Relay(relay_id(1))] {
        let tls = bench.authority.member(impostor);
        let (near, mut far, _carriers) = leg(&bench).await;
        let accept = async {
            far.send.write_frame(&Frame::Answer(Answer::Ok)).await.unwrap();
            let _ = pair::accept(far, &tls, run(1, None)).await;
        };
        let (dialled, ()) =
            soon(async { tokio::join!(pair::dial(near, bench.dialler.tls(), node_id(2), hello()), accept) })
                .await;
        let PairError::Identity(mismatch) = dialled.unwrap_err() else {
            panic!("{impostor} was not recognised");
        };
        assert_eq!(mismatch.found, impostor);
        assert_eq!(mismatch.expected, Peer::Exactly(Identity::Node(node_id(2))));
    }
    // The other way round: a relay that dials is no node.
    let beta = bench.authority.member(Identity::Node(node_id(2)));
    let relay = bench.authority.member(Identity::Relay(relay_id(1)));
    let (near, mut far, _carriers) = leg(&bench).await;
    let accept = async {
        far.send.write_frame(&Frame::Answer(Answer::Ok)).await.unwrap();
        pair::accept(far, &beta, run(1, None)).await
    };
    let (_, accepted) =
        soon(async { tokio::join!(pair::dial(near, &relay, node_id(2), hello()), accept) }).await;
    assert!(matches!(accepted, Err(PairError::Handshake(_))), "{accepted:?}");
}

/// R-STR-05: a relay that changes one byte ends the pair on both sides.
#[tokio::test]
async fn a_changed_byte_ends_the_pair() {
    let bench = Bench::new();
    let beta = bench.authority.member(Identity::Node(node_id(2)));
    let (near, far, _carriers) = leg(&bench).await;
    let (mut relay_near, relay_far, _carriers) = leg(&bench).await;
    let changing = async move {
        let Leg { mut send, mut recv } = far;
        let mut chunks = [Bytes::new()];
        let mut at = 0usize;
        while let Ok(Some(_)) = recv.read_chunks(&mut chunks).await {
            let mut bytes = chunks[0].to_vec();
            for byte in &mut bytes {
                // Within the client's second flight, behind its hello.
                *byte ^= u8::from(at == 1_700);
                at += 1;
            }
            if relay_near.send.write_all(&bytes).await.is_err() {
                break;
            }
        }
        send.finish();
        drop(relay_near);
    };
    let accept = async {
        let mut relay_far = relay_far;
        relay_far
            .send
            .write_frame(&Frame::Answer(Answer::Ok))
            .await
            .unwrap();
        pair::accept(relay_far, &beta, run(1, None)).await
    };
    let dial = pair::dial(near, bench.dialler.tls(), node_id(2), hello());
    let (dialled, accepted, ()) = soon(async { tokio::join!(dial, accept, changing) }).await;
    assert!(dialled.is_err() && accepted.is_err());
}

/// A refusal of the leg keeps its code.
#[tokio::test]
async fn a_refused_leg_keeps_its_code() {
    let bench = Bench::new();
    let (near, mut far, _carriers) = leg(&bench).await;
    let refuse = async {
        let refusal = RefusalCode::NotRegistered.into();
        far.send
            .write_frame(&Frame::Answer(Answer::Refused(refusal)))
            .await
            .unwrap();
        far.send.finish();
    };
    let (dialled, ()) =
        soon(async { tokio::join!(pair::dial(near, bench.dialler.tls(), node_id(2), hello()), refuse) })
            .await;
    let PairError::Refused(refusal) = dialled.unwrap_err() else {
        panic!("not a refusal");
    };
    assert_eq!(refusal.code, RefusalCode::NotRegistered);
}
