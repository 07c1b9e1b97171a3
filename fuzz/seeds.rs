//! Writes the seeds of all targets: `cargo run --example seeds`, in this folder. Seeds are committed;
//! run it again when a format changes.

use bytes::{Bytes, BytesMut};
use fairlead_codec::Writer;
use fairlead_hop::Frame as HopFrame;
use fairlead_hop::frame::{self as hop, LegKind};
use fairlead_model::*;
use fairlead_rpc::signed::*;
use fairlead_stream::frame::Frame;
use fairlead_trust::admission::{HostBoot, PolicyHead, Snapshot};
use fairlead_trust::document::*;
use fairlead_trust::{Keyring, PayloadType, SigningKey, seal};
use std::path::PathBuf;
use std::time::Duration;

fn save(target: &str, name: &str, bytes: &[u8]) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("seeds")
        .join(target);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(name), bytes).unwrap();
}

const RELAY: RelayId = RelayId::from_bytes([1; 16]);
const NODE: NodeId = NodeId::from_bytes([2; 16]);
const PUBLISHER: NodeId = NodeId::from_bytes([3; 16]);
const ENDPOINT: EndpointId = EndpointId::from_bytes([5; 16]);
const ROUTE: RouteId = RouteId::from_bytes([6; 16]);
const ISSUED: WallTime = WallTime(1_800_000_000_000);

fn key() -> SigningKey {
    SigningKey::from_seed(&[7; 32])
}

fn keyring() -> Keyring {
    Keyring::new([key().verifying_key()]).unwrap()
}

fn relay_policy() -> Vec<u8> {
    encode_relay_policy(&RelayPolicy {
        relay: RELAY,
        epoch: PolicyEpoch(1),
        revision: Revision(101),
        leader_term: LeaderTerm(1),
        issued_at: ISSUED,
        endpoints: vec![PolicyEndpoint {
            endpoint: ENDPOINT,
            generation: Generation(1),
            publisher: PUBLISHER,
            class: ServiceClass::Database,
        }],
        routes: vec![PolicyRoute {
            route: ROUTE,
            consumer: NODE,
            endpoint: ENDPOINT,
        }],
        nodes: vec![NODE, PUBLISHER],
        revoked_routes: vec![RouteId::from_bytes([8; 16])],
        grant_keys: keyring(),
        settings: RelaySettings::DEFAULT,
    })
}

fn policy_lease() -> Vec<u8> {
    encode_policy_lease(&PolicyLease {
        relay: RELAY,
        epoch: PolicyEpoch(1),
        revision: Revision(101),
        root: PolicyRoot([9; 32]),
        not_before: ISSUED,
        not_after: ISSUED.plus(Duration::from_secs(72 * 3600)),
        seq: LeaseSeq(4),
        leader_term: LeaderTerm(1),
    })
}

fn node_policy() -> Vec<u8> {
    let link: Name = "db".parse().unwrap();
    encode_node_policy(&NodePolicy {
        node: NODE,
        epoch: PolicyEpoch(1),
        revision: Revision(101),
        leader_term: LeaderTerm(1),
        issued_at: ISSUED,
        relays: vec![NodeRelay {
            relay: RELAY,
            name: "local".parse().unwrap(),
            address: "127.0.0.1:9443".parse().unwrap(),
            failure_domain: "host=a".parse().unwrap(),
        }],
        publications: vec![Publication {
            endpoint: ENDPOINT,
            generation: Generation(1),
            link: link.clone(),
            target: "127.0.0.1:5432".parse().unwrap(),
            class: ServiceClass::Database,
            relays: vec![RELAY],
            routes: vec![PublishedRoute {
                route: ROUTE,
                consumer: NODE,
                revision_min: Revision(7),
            }],
        }],
        consumptions: vec![Consumption {
            route: ROUTE,
            endpoint: ENDPOINT,
            generation: Generation(1),
            publisher: PUBLISHER,
            link,
            listen: "[::1]:15432".parse().unwrap(),
            class: ServiceClass::Database,
            relays: vec![RELAY],
        }],
        revoked_routes: vec![],
        grant_keys: keyring(),
    })
}

fn grant() -> Vec<u8> {
    encode_grant(&Grant {
        consumer: NODE,
        publisher: PUBLISHER,
        endpoint: ENDPOINT,
        route: ROUTE,
        generation: Generation(1),
        epoch: PolicyEpoch(1),
        revision: Revision(101),
        not_before: ISSUED,
        not_after: ISSUED.plus(Duration::from_secs(96 * 3600)),
    })
}

fn signed() {
    let kinds = [
        ("relay_policy", PayloadType::RelayPolicy, relay_policy()),
        ("policy_lease", PayloadType::PolicyLease, policy_lease()),
        ("node_policy", PayloadType::NodePolicy, node_policy()),
        ("grant", PayloadType::Grant, grant()),
    ];
    for (i, (name, payload_type, payload)) in (0u8..).zip(kinds) {
        save("signed_document", name, &[&[i], &payload[..]].concat());
        let envelope = seal(&key(), payload_type, &payload).unwrap();
        save("envelope", name, &[&[i << 1], &envelope[..]].concat());
        save(
            "envelope",
            &format!("{name}_damaged"),
            &[&[i << 1 | 1, 0, 0, 40, 1], &payload[..]].concat(),
        );
    }
    let snapshot = Snapshot {
        relay: RELAY,
        host_boot: HostBoot([2; 16]),
        saved: BootTime(1000),
        floor: Some(ISSUED),
        head: Some(PolicyHead {
            epoch: PolicyEpoch(1),
            revision: Revision(101),
            root: PolicyRoot([9; 32]),
            leader_term: LeaderTerm(1),
            lease_seq: LeaseSeq(4),
            lease_not_after: ISSUED,
        }),
        lease_left: Duration::from_secs(3600),
        policy_envelope: seal(&key(), PayloadType::RelayPolicy, &relay_policy()).unwrap(),
        lease_envelope: seal(&key(), PayloadType::PolicyLease, &policy_lease()).unwrap(),
    };
    save("admission_snapshot", "full", &snapshot.encode().unwrap());
    let empty = Snapshot {
        floor: None,
        head: None,
        policy_envelope: Bytes::new(),
        lease_envelope: Bytes::new(),
        ..snapshot
    };
    save("admission_snapshot", "empty", &empty.encode().unwrap());
}

fn hop_frames() {
    let session = SessionId::from_bytes([4; 16]);
    let process_boot = ProcessBootId::from_bytes([5; 16]);
    let register = hop::Register {
        endpoint: ENDPOINT,
        generation: Generation(1),
        epoch: RegistrationEpoch(2),
    };
    let association = AssociationId::from_bytes([6; 16]);
    let refusal = hop::Refusal {
        code: RefusalCode::Overloaded,
        retry_after: Some(Duration::from_millis(250)),
    };
    let frames = [
        HopFrame::Hello(hop::Hello {
            version_min: 1,
            version_max: 1,
            session,
            process_boot,
            software: "0.1.0".to_owned(),
            capabilities: vec!["policy_lease_v1".to_owned()],
        }),
        HopFrame::HelloOk(hop::HelloOk {
            version: 1,
            session,
            relay: RELAY,
            process_boot,
            legs_max: 1000,
            capabilities: vec![],
        }),
        HopFrame::Register(register),
        HopFrame::Registered(register),
        HopFrame::RegisterRefused(hop::RegisterRefused { register, refusal }),
        HopFrame::Unregister(register),
        HopFrame::Restarting,
        HopFrame::DrainNotice,
        HopFrame::Ping(hop::Ping {
            number: 1,
            padding: Bytes::from_static(b"padding"),
        }),
        HopFrame::Pong(hop::Ping {
            number: 1,
            padding: Bytes::new(),
        }),
        HopFrame::Close(RefusalCode::ShuttingDown),
        HopFrame::Open(hop::Open {
            kind: LegKind::Stream,
            association,
            route: ROUTE,
            stream: StreamNumber(7),
            epoch: LegEpoch(1),
            resume: false,
            grant: seal(&key(), PayloadType::Grant, &grant()).unwrap(),
        }),
        HopFrame::Incoming(hop::Incoming {
            kind: LegKind::Pair,
            association,
            route: ROUTE,
            stream: StreamNumber(0),
            epoch: LegEpoch(0),
            resume: false,
            endpoint: ENDPOINT,
            consumer: NODE,
            policy: (PolicyEpoch(1), Revision(101)),
        }),
        HopFrame::Answer(hop::Answer::Ok),
        HopFrame::Answer(hop::Answer::Refused(refusal)),
    ];
    let mut all = BytesMut::new();
    for (i, frame) in frames.iter().enumerate() {
        let mut one = BytesMut::new();
        frame.encode(&mut one).unwrap();
        save("hop_frame", &format!("{i:02}"), &one);
        all.extend_from_slice(&one);
    }
    save("hop_frame", "all", &all);
}

fn live_messages() {
    use fairlead_hop::liveness::{BindRefusal, LiveMessage};
    let boot = ProcessBootId::from_bytes([7; 16]);
    for (name, message) in [
        ("live-bind", LiveMessage::Bind(SessionId::from_bytes([6; 16]))),
        ("live-bound", LiveMessage::Bound(boot)),
        ("live-none", LiveMessage::Refused(BindRefusal::NoSession, boot)),
        ("live-busy", LiveMessage::Refused(BindRefusal::Busy, boot)),
        ("live-ping", LiveMessage::Ping(1)),
        ("live-pong", LiveMessage::Pong(u64::MAX)),
    ] {
        save("hop_frame", name, &message.encode());
    }
}

/// Operations of `liveness`: see its `step`.
fn livenesses() {
    let (bound, heard) = ([0u8, 0, 255], [4u8, 1]);
    let (look, second, seconds) = ([7u8, 0], [7u8, 110], [7u8, 150]);
    let (closed, unacknowledged) = ([2u8, 0], [2u8, 1]);
    let (refused, unserved, cut, unable) = ([1u8, 0], [1u8, 2], [1u8, 3], [1u8, 4]);
    let (taken, relay_closed, relay_unacknowledged) = ([5u8], [6u8, 0], [6u8, 1]);
    let runs: [(&str, &[&[u8]]); 10] = [
        (
            "killed",
            &[
                &bound, &closed, &refused, &look, &look, &look, &look, &look, &look,
            ],
        ),
        ("vanished", &[&bound, &second, &seconds, &unacknowledged]),
        (
            "frozen",
            &[
                &bound,
                &closed,
                &unserved,
                &second,
                &second,
                &bound,
                &[3, 3],
                &heard,
            ],
        ),
        ("restarted", &[&bound, &[2, 2], &[0, 1, 9, 255]]),
        // The answer to an attempt that was under way at the verdict: found by fuzzing.
        ("late-answer", &[&seconds, &seconds, &seconds, &bound, &closed]),
        ("forgotten", &[&bound, &closed, &[0, 2, 255]]),
        (
            "blocked",
            &[
                &refused, &second, &second, &unable, &heard, &seconds, &seconds, &seconds, &seconds, &seconds,
            ],
        ),
        (
            "contradicted",
            &[
                &bound, &closed, &heard, &refused, &look, &cut, &heard, &look, &refused, &heard, &second,
            ],
        ),
        (
            "relay",
            &[
                &taken,
                &relay_closed,
                &second,
                &taken,
                &relay_closed,
                &seconds,
                &seconds,
            ],
        ),
        (
            "relay-vanished",
            &[&taken, &seconds, &relay_unacknowledged, &seconds],
        ),
    ];
    for (name, run) in runs {
        save("liveness", name, &run.concat());
    }
}

fn stream_frames() {
    let (epoch, grant) = (LegEpoch(2), b"grant");
    let frames = [
        Frame::Ack {
            next: 10,
            limit: 1 << 18,
        },
        Frame::Fin { final_offset: 10 },
        Frame::Reset {
            code: 1,
            final_offset: 10,
        },
        Frame::Attach {
            epoch,
            relay: RELAY,
            next: 0,
            limit: 1 << 18,
            resend: true,
            resume: false,
            grant,
        },
        Frame::AttachOk {
            epoch,
            next: 0,
            limit: 1 << 18,
            connected: true,
        },
        Frame::AttachRefused { epoch, code: 4 },
        Frame::DialResult { code: 40 },
        Frame::MovePlease,
        Frame::Detach,
        Frame::Ping { id: 1 },
        Frame::Pong { id: 1 },
        Frame::Closed,
        Frame::Data {
            offset: 10,
            bytes: b"bytes of the stream",
        },
    ];
    let mut all = Vec::new();
    for (i, frame) in frames.iter().enumerate() {
        let mut one = Vec::new();
        frame.put(&mut Writer::new(&mut one, 1 << 14)).unwrap();
        save("stream_frame", &format!("{i:02}"), &one);
        all.extend(one);
    }
    save("stream_frame", "all", &all);
    save("stream_frame", "record_header", &[23, 3, 3, 0x40, 0x10]);
}

/// Operations of `sealed_stream`: see its `step`.
fn sealed_streams() {
    // The first two bytes are the kind and the relay of the first leg.
    let head = [0u8, 1];
    let attach = [11, 0, 255, 255, 11, 0, 255, 255];
    let write = [0, 200, 200, 0, 0, 100, 100, 1];
    let carry = [11, 0, 255, 255, 11, 0, 255, 255, 11, 0, 255, 255];
    let read = [2, 255, 0, 2, 255, 1];
    let finish = [3, 0, 3, 1];
    let plain = [
        &head[..],
        &attach,
        &write,
        &carry,
        &read,
        &finish,
        &carry,
        &carry,
        &read,
    ];
    save("sealed_stream", "plain", &plain.concat());
    let lost = [6, 0, 5, 0, 2];
    let after_loss = [
        &head[..],
        &attach,
        &write,
        &lost,
        &carry,
        &read,
        &finish,
        &carry,
        &carry,
        &read,
    ];
    save("sealed_stream", "lost", &after_loss.concat());
    let planned = [5, 1, 3, 11, 1, 255, 255, 11, 1, 255, 255];
    let moved = [
        &head[..],
        &attach,
        &write,
        &planned,
        &write,
        &carry,
        &planned,
        &read,
        &finish,
        &carry,
    ];
    save("sealed_stream", "planned", &moved.concat());
    let damage = [11, 0, 0, 0, 8, 0, 0, 9, 0, 11, 0, 255, 255, 7, 200];
    save(
        "sealed_stream",
        "damaged",
        &[&head[..], &attach, &write, &damage, &lost, &carry].concat(),
    );
    let reset = [4, 255, 1];
    save(
        "sealed_stream",
        "reset",
        &[&head[..], &attach, &write, &reset, &carry, &read].concat(),
    );
    save(
        "sealed_stream",
        "refused",
        &[&head[..], &[9, 255], &attach, &carry].concat(),
    );
}

fn certificates() {
    let mut parameters = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
    let domain: TrustDomain = "pool.example".parse().unwrap();
    for (name, identity) in [
        ("relay", Identity::Relay(RELAY)),
        ("node", Identity::Node(NODE)),
        ("control", Identity::Control),
    ] {
        let uri = identity.to_spiffe(&domain).try_into().unwrap();
        parameters.subject_alt_names = vec![rcgen::SanType::URI(uri)];
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        save("certificate", name, parameters.self_signed(&key).unwrap().der());
    }
}

fn member_files() {
    let config = r#"{
  "version": 1,
  "role": "relay",
  "id": "0192f0c1-7d3a-7c55-9d0e-6b2f1f0a9c11",
  "name": "relay-1",
  "trust_domain": "pool.example",
  "control": "127.0.0.1:8443",
  "ca_pin": "sha256:0909090909090909090909090909090909090909090909090909090909090909",
  "grpc_server_name": "grpc.fairlead.internal",
  "advertised_address": "127.0.0.1:9443",
  "listen": "127.0.0.1:9443"
}"#;
    save("member_file", "config", format!("\0{config}").as_bytes());
    let keys = key().verifying_key().to_hex();
    let trust = format!("\x01{{\"format\": 1, \"version\": 3, \"policy_keys\": [\"{keys}\"]}}");
    save("member_file", "trust", trust.as_bytes());
    save(
        "member_file",
        "runtime",
        b"\x02{\"pid\": 12, \"metrics_url\": \"http://127.0.0.1:1/metrics\", \"listen\": null}",
    );
    let path = std::env::temp_dir().join(format!("fairlead-seed-{}", std::process::id()));
    fairlead_host::StateFile::new(path.clone(), *b"FLFUZZ\0\x01", 64 * 1024)
        .save(b"state")
        .unwrap();
    save(
        "member_file",
        "state",
        &[&[3], &std::fs::read(&path).unwrap()[..]].concat(),
    );
    std::fs::remove_file(path).unwrap();
}

fn texts() {
    let texts = [
        "127.0.0.1:5432",
        "[::1]:5432",
        "::1",
        "db.example:5432",
        "db.example",
        "unix:/run/postgresql/.s.PGSQL.5432",
        "0.0.0.0:15432",
        "72h",
        "1h30m",
        "90s",
        "250ms",
        "database",
        "storage",
        "host=a,power=b",
        "relay-1",
        "spiffe://pool.example/relay/0192f0c1-7d3a-7c55-9d0e-6b2f1f0a9c11",
        "spiffe://pool.example/control",
        "0192f0c1-7d3a-7c55-9d0e-6b2f1f0a9c11",
        "[fe80::1%eth0]:1",
        "host:99999",
    ];
    for (i, text) in texts.iter().enumerate() {
        save("text_form", &format!("{i:02}"), text.as_bytes());
    }
}

fn main() {
    signed();
    hop_frames();
    live_messages();
    livenesses();
    stream_frames();
    sealed_streams();
    certificates();
    member_files();
    texts();
}
