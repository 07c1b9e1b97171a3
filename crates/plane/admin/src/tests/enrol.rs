//! Enrolment through JSON.

use super::{Subject, request};
use crate::json::EnrolResponse;
use crate::limit::FAILURES_MAX;
use http::{Method, StatusCode};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

fn csr() -> String {
    let key = KeyPair::generate().unwrap();
    CertificateParams::default()
        .serialize_request(&key)
        .unwrap()
        .pem()
        .unwrap()
}

fn body(token: &str, role: &str, host: &str) -> Value {
    json!({
        "token": token, "role": role, "csr_pem": csr(), "version": "0.1.0",
        "host_fingerprint": {"host_key": host.repeat(32)},
        "wall_clock": jiff::Timestamp::now().to_string(),
    })
}

/// Enrolment needs no admin token.
async fn enrol(subject: &Subject, peer: &str, body: &Value) -> super::Answer {
    let text = body.to_string();
    subject
        .send_from(peer, request(Method::POST, "/v1/enrol", None, Some(&text)))
        .await
}

async fn issued(subject: &Subject, name: &str) -> String {
    let issued = subject.post("/v1/nodes", json!({"name": name})).await.ok();
    issued["token"].as_str().unwrap().to_owned()
}

/// R-ENR-02, R-ENR-03: once, with a signing request; every refusal has its own code.
#[tokio::test]
async fn a_token_enrols_its_member_once() {
    let subject = Subject::start().await;
    let peer = "192.0.2.20:5000";
    let token = issued(&subject, "alpha").await;

    let mut wrong = body(&token, "node", "aa");
    wrong["csr_pem"] = json!("-----BEGIN NONSENSE-----");
    let answer = enrol(&subject, peer, &wrong).await;
    assert_eq!(
        (answer.status, answer.code()),
        (StatusCode::BAD_REQUEST, "BAD_CSR"),
        "{answer:?}"
    );
    let answer = enrol(&subject, peer, &body(&token, "relay", "aa")).await;
    assert_eq!(answer.code(), "TOKEN_OTHER_MEMBER", "{answer:?}");
    let mut late = body(&token, "node", "aa");
    late["wall_clock"] = json!((jiff::Timestamp::now() - jiff::SignedDuration::from_hours(24)).to_string());
    let answer = enrol(&subject, peer, &late).await;
    assert_eq!(
        (answer.status, answer.code()),
        (StatusCode::CONFLICT, "CLOCK_SKEW")
    );
    assert!(
        answer.body["error"]["message"]
            .as_str()
            .unwrap()
            .contains("differ"),
        "{answer:?}"
    );

    // None of these used the token.
    let good = body(&token, "node", "aa");
    let answer = enrol(&subject, peer, &good).await.ok();
    let enrolled: EnrolResponse = serde_json::from_value(answer).unwrap();
    assert_eq!(
        (enrolled.role.as_str(), enrolled.name.as_str()),
        ("node", "alpha")
    );
    assert_eq!(enrolled.ca_pem, subject.control.ca_pem());
    assert!(
        enrolled
            .certificate_chain_pem
            .starts_with("-----BEGIN CERTIFICATE-----")
    );
    assert!(enrolled.policy_keys.iter().all(|key| key.len() == 64));
    // A reply that was lost: the same key and host get it again.
    let again: EnrolResponse = serde_json::from_value(enrol(&subject, peer, &good).await.ok()).unwrap();
    assert_eq!(again.id, enrolled.id);
    let answer = enrol(&subject, peer, &body(&token, "node", "aa")).await;
    assert_eq!(
        (answer.status, answer.code()),
        (StatusCode::FORBIDDEN, "TOKEN_USED")
    );
    let answer = enrol(&subject, peer, &body(&token, "node", "bb")).await;
    assert_eq!(
        (answer.status, answer.code()),
        (StatusCode::FORBIDDEN, "TOKEN_OTHER_HOST")
    );
}

/// Unknown tokens are guesses and limited like failed logins; used ones are not (R-ENR-02: of
/// fifty uses one succeeds and all others are told why).
#[tokio::test]
async fn only_unknown_tokens_count_as_guesses() {
    let subject = Subject::start().await;
    let peer = "198.51.100.7:1";
    let token = issued(&subject, "alpha").await;
    let mut codes = Vec::new();
    for _ in 0..50 {
        let answer = enrol(&subject, peer, &body(&token, "node", "aa")).await;
        codes.push(if answer.status.is_success() {
            "enrolled".to_owned()
        } else {
            answer.code().to_owned()
        });
    }
    assert_eq!(codes.iter().filter(|c| *c == "enrolled").count(), 1, "{codes:?}");
    assert_eq!(
        codes.iter().filter(|c| *c == "TOKEN_USED").count(),
        49,
        "{codes:?}"
    );
    for _ in 0..FAILURES_MAX {
        assert_eq!(
            enrol(&subject, peer, &body("guess", "node", "aa")).await.code(),
            "TOKEN_UNKNOWN"
        );
    }
    assert_eq!(
        enrol(&subject, peer, &body("guess", "node", "aa")).await.code(),
        "RATE_LIMITED"
    );
    // A right token from the same address still enrols.
    let token = issued(&subject, "beta").await;
    let answer = enrol(&subject, peer, &body(&token, "node", "ab")).await;
    assert!(answer.status.is_success(), "{answer:?}");
    assert_eq!(
        enrol(&subject, "198.51.100.8:1", &body("guess", "node", "aa"))
            .await
            .code(),
        "TOKEN_UNKNOWN"
    );
}
