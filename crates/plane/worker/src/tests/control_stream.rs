//! The control stream towards a member that reads late: what the worker has begun to say, it says
//! to the end.

use super::pool::{ALPHA, BETA, ENDPOINT, Node, Pool, RELAY, Worker, soon};
use bytes::BytesMut;
use fairlead_hop::{Frame, NodeControl, NodeControlConfig, Refusal, Register, RegisterRefused};
use fairlead_model::{
    EndpointId, Generation, Identity, MonoTime, NodeId, ProcessBootId, RefusalCode, RegistrationBoot,
    RegistrationEpoch, SessionId,
};
use fairlead_rpc::pb;
use fairlead_transport::{Carrier, CarrierConfig, Dialler, Leg};
use std::time::{Duration, Instant};

const HOUR: Duration = Duration::from_secs(3600);
/// Registrations of the test's node: more answers than its window takes.
const REGISTRATIONS: u8 = 16;
/// Answers that fit into the window; one more fits in part.
const FITTING: usize = 4;

/// A node that greeted and reads nothing more until it is told to.
struct LateReader {
    carrier: Carrier,
    leg: Leg,
    _dialler: Dialler,
}

fn register(n: u8) -> Register {
    Register {
        endpoint: EndpointId::from_bytes([0x70 + n; 16]),
        generation: Generation(1),
        epoch: RegistrationEpoch(n.into()),
    }
}

/// What the worker says of an endpoint that the policy does not have.
fn answer_len() -> usize {
    let mut encoded = BytesMut::new();
    Frame::RegisterRefused(RegisterRefused {
        register: register(0),
        refusal: Refusal::from(RefusalCode::RegistrationMismatch),
    })
    .encode(&mut encoded)
    .unwrap();
    encoded.len()
}

impl LateReader {
    async fn connect(pool: &Pool, worker: &Worker, id: NodeId) -> Self {
        let config = CarrierConfig {
            leg_window_bytes: u32::try_from(FITTING * answer_len() + answer_len() / 2).unwrap(),
            ..CarrierConfig::default()
        };
        let dialler = Dialler::new(pool.member(Identity::Node(id)), &config).unwrap();
        let carrier = soon(dialler.dial(&worker.address.into(), Identity::Relay(RELAY)))
            .await
            .unwrap();
        let mut leg = carrier.open_leg().await.unwrap();
        let config = NodeControlConfig {
            session: SessionId::from_bytes([0x55; 16]),
            process_boot: ProcessBootId::from_bytes([1; 16]),
            boot: RegistrationBoot::new(1),
            session_number: 1,
            software: "test".to_owned(),
        };
        let hello = NodeControl::new(config, MonoTime(0)).poll_transmit().unwrap();
        leg.send.write_frame(&hello).await.unwrap();
        let answer = soon(leg.recv.read_frame()).await.unwrap();
        assert!(matches!(answer, Some(Frame::HelloOk(_))), "{answer:?}");
        Self {
            carrier,
            leg,
            _dialler: dialler,
        }
    }

    /// Registers, and waits until the worker stands in the middle of an answer.
    async fn block(&mut self, worker: &Worker) {
        for n in 0..REGISTRATIONS {
            self.leg
                .send
                .write_frame(&Frame::Register(register(n)))
                .await
                .unwrap();
        }
        let begun = Instant::now();
        while refusals(&worker.scrape().await) < FITTING + 1 {
            assert!(begun.elapsed() < Duration::from_secs(8));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn read(&mut self) -> Option<Frame> {
        soon(self.leg.recv.read_frame()).await.unwrap()
    }

    /// Reads the answers to these registrations, in their order.
    async fn expect_answers(&mut self, numbers: std::ops::Range<u8>) {
        for n in numbers {
            match self.read().await {
                Some(Frame::RegisterRefused(refused)) => assert_eq!(refused.register, register(n)),
                other => panic!("answer {n}: {other:?}"),
            }
        }
    }
}

/// Registrations that the worker has refused so far.
fn refusals(page: &str) -> usize {
    let lines = page
        .lines()
        .filter(|line| line.starts_with("fairlead_registrations_refused_total{"));
    lines
        .filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok())
        .sum()
}

/// R-ADM-04: whatever happens while an answer is half written (a policy, a withdrawal, the worker's
/// stop), every answer arrives whole: a node whose registration was never answered waits for ever.
#[tokio::test]
async fn answers_outlive_what_happens_meanwhile() {
    let pool = Pool::new();
    let (mut worker, alpha, beta) = pool.ready().await;
    // A tunnel, so that the stop below waits.
    let (near, _far) = tokio::join!(alpha.open(pool.open()), beta.accept());
    let _near = near.unwrap();
    let mut late = LateReader::connect(&pool, &worker, BETA).await;
    late.block(&worker).await;
    for revision in 2..=4 {
        let signed = pool.signed(&pool.policy(revision), revision, HOUR);
        worker.apply(signed).await.unwrap();
    }
    let grace_ms = 20_000;
    worker.control.stop(pb::StopRequest { grace_ms }).await.unwrap();
    let (mut answered, mut notices) = (0, 0);
    while answered < REGISTRATIONS || notices == 0 {
        match late.read().await {
            Some(Frame::RegisterRefused(refused)) => {
                assert_eq!(refused.register, register(answered));
                answered += 1;
            }
            Some(Frame::DrainNotice) => notices += 1,
            other => panic!("after {answered} answers: {other:?}"),
        }
    }
    assert_eq!(notices, 1);
}

/// A member that policy drops while it does not read is told what was begun, then why it goes.
#[tokio::test]
async fn a_dismissal_waits_for_the_frame_that_was_begun() {
    let pool = Pool::new();
    let (mut worker, _alpha, _beta) = pool.ready().await;
    let mut late = LateReader::connect(&pool, &worker, ALPHA).await;
    late.block(&worker).await;
    let mut without = pool.policy(2);
    without.nodes.retain(|node| *node != ALPHA);
    without.routes.clear();
    worker.apply(pool.signed(&without, 2, HOUR)).await.unwrap();
    late.expect_answers(0..FITTING as u8 + 1).await;
    assert_eq!(late.read().await, Some(Frame::Close(RefusalCode::UnknownNode)));
    let _ = soon(late.carrier.closed()).await;
}

/// R-REV-01: the withdrawal of a registration does not cost the answer that is being written.
#[tokio::test]
async fn a_withdrawal_waits_for_the_frame_that_was_begun() {
    let pool = Pool::new();
    let mut worker = pool.start().await;
    let signed = pool.signed(&pool.policy(1), 1, HOUR);
    worker.apply(signed).await.unwrap();
    let mut late = LateReader::connect(&pool, &worker, BETA).await;
    let served = Register {
        endpoint: ENDPOINT,
        ..register(0)
    };
    late.leg.send.write_frame(&Frame::Register(served)).await.unwrap();
    assert_eq!(late.read().await, Some(Frame::Registered(served)));
    late.block(&worker).await;
    let mut without = pool.policy(2);
    without.endpoints.clear();
    without.routes.clear();
    worker.apply(pool.signed(&without, 2, HOUR)).await.unwrap();
    let mut answered = 0;
    let mut withdrawn = false;
    while answered < REGISTRATIONS || !withdrawn {
        match late.read().await {
            Some(Frame::RegisterRefused(refused)) if refused.register == served => withdrawn = true,
            Some(Frame::RegisterRefused(refused)) => {
                assert_eq!(refused.register, register(answered));
                answered += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    // Nobody else noticed.
    let _alpha = Node::connect(&pool, worker.address, ALPHA).await;
}
