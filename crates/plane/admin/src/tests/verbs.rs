//! The verbs through JSON.

use super::Subject;
use http::{Method, StatusCode};
use serde_json::{Value, json};

async fn with_nodes() -> Subject {
    let subject = Subject::start().await;
    for name in ["alpha", "beta"] {
        subject.post("/v1/nodes", json!({"name": name})).await.ok();
    }
    subject
}

fn link(name: &str, listen: &str) -> Value {
    json!({"name": name, "from": "alpha", "to": "beta", "target": "127.0.0.1:5432",
           "listen": listen, "class": "database"})
}

/// R-ENR-01: adding a member yields an install command that pins the CA; the token is apart.
#[tokio::test]
async fn members_are_added_listed_and_shown() {
    let subject = Subject::start().await;
    let body = json!({"name": "paris-1", "address": "relay.example", "failure_domain": "rack-1"});
    let answer = subject.post("/v1/relays", body).await;
    assert_eq!(answer.status, StatusCode::CREATED);
    let issued = answer.ok();
    let (command, token) = (
        issued["install_command"].as_str().unwrap(),
        issued["token"].as_str().unwrap(),
    );
    assert!(command.contains(&subject.control.ca_pin()), "{command}");
    // The token travels by standard input: neither arguments nor a shell's history hold it.
    assert!(
        command.starts_with("fairlead enrol relay ") && !command.contains(token),
        "{command}"
    );
    assert!(token.len() >= 43, "256 bits");
    assert!(issued["expires_at"].as_str().unwrap().ends_with('Z'));

    let relays = subject.get("/v1/relays").await.ok();
    assert_eq!(relays["items"].as_array().unwrap().len(), 1);
    for which in ["paris-1", issued["id"].as_str().unwrap()] {
        let relay = subject.get(&format!("/v1/relays/{which}")).await.ok();
        assert_eq!(relay["address"], "relay.example:9443");
        assert_eq!(relay["failure_domain"], "host=rack-1");
        assert_eq!(
            (&relay["state"], &relay["capacity"]),
            (&json!("pending"), &json!(false))
        );
    }
    let again = subject.post("/v1/relays/paris-1/token", json!({})).await;
    assert_eq!(again.status, StatusCode::CREATED);
    assert_ne!(again.ok()["token"], issued["token"]);

    let body = json!({"name": "paris-1", "address": "other.example"});
    let taken = subject.post("/v1/relays", body).await;
    assert_eq!((taken.status, taken.code()), (StatusCode::CONFLICT, "NAME_TAKEN"));
    let node = subject.post("/v1/nodes", json!({"name": "alpha"})).await.ok();
    assert_eq!(node["role"], "node");
    assert_eq!(subject.get("/v1/nodes/alpha").await.ok()["state"], "pending");
    assert_eq!(
        subject.post("/v1/nodes/alpha/token", json!({})).await.status,
        StatusCode::CREATED
    );
}

#[tokio::test]
async fn links_are_added_shown_and_removed() {
    let subject = with_nodes().await;
    let answer = subject.post("/v1/links", link("db", "127.0.0.1:15432")).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{answer:?}");
    let db = answer.ok();
    assert_eq!(
        (&db["class"], &db["from"]["name"]),
        (&json!("database"), &json!("alpha"))
    );

    let taken = subject.post("/v1/links", link("db", "127.0.0.1:15433")).await;
    assert_eq!((taken.status, taken.code()), (StatusCode::CONFLICT, "NAME_TAKEN"));
    let taken = subject.post("/v1/links", link("db2", "127.0.0.1:15432")).await;
    assert_eq!(
        (taken.status, taken.code()),
        (StatusCode::CONFLICT, "LISTEN_TAKEN")
    );
    assert!(
        taken.body["error"]["message"].as_str().unwrap().contains("db"),
        "{taken:?}"
    );

    let mut unknown = link("db3", "127.0.0.1:15434");
    unknown["from"] = json!("nobody");
    unknown["to"] = json!("no one");
    let answer = subject.post("/v1/links", unknown).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{answer:?}");
    assert_eq!(answer.fields(), ["from", "to"]);

    assert_eq!(
        subject.get("/v1/links").await.ok()["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let removed = subject.delete("/v1/links/db").await.ok();
    assert_eq!(removed["id"], db["id"]);
    assert_eq!(subject.delete("/v1/links/db").await.code(), "NOT_FOUND");
    // The name and the address are free again; the route's id is not.
    let next = subject
        .post("/v1/links", link("db", "127.0.0.1:15432"))
        .await
        .ok();
    assert_ne!(next["route"], db["route"]);
}

#[tokio::test]
async fn settings_are_read_and_set_within_their_range() {
    let subject = Subject::start().await;
    let listed = subject.get("/v1/settings").await.ok();
    for setting in listed["items"].as_array().unwrap() {
        for field in ["key", "value", "default", "range", "meaning", "source"] {
            assert!(!setting[field].as_str().unwrap().is_empty(), "{setting}");
        }
    }
    let path = "/v1/settings/policy.lease";
    let set = subject
        .call(Method::PUT, path, json!({"value": "24h"}))
        .await
        .ok();
    assert_eq!(set["value"], "24h");
    assert_eq!(subject.get(path).await.ok()["value"], "24h");
    // R-POL-01: 1 h to 168 h.
    for value in ["59m", "169h", "soon", ""] {
        let answer = subject.call(Method::PUT, path, json!({"value": value})).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{value}");
        assert_eq!(answer.fields(), ["value"]);
    }
    assert_eq!(subject.get(path).await.ok()["value"], "24h");
    let answer = subject
        .call(Method::PUT, "/v1/settings/none", json!({"value": "1"}))
        .await;
    assert_eq!(answer.code(), "NOT_FOUND");
}

/// R-UI-05: every change is in the audit log with who, what, before and after.
#[tokio::test]
async fn changes_are_audited_and_paged() {
    let subject = with_nodes().await;
    subject
        .post("/v1/links", link("db", "127.0.0.1:15432"))
        .await
        .ok();
    subject.delete("/v1/links/db").await.ok();
    let all = subject.get("/v1/audit?limit=1000").await.ok();
    let entries = all["items"].as_array().unwrap();
    let seqs: Vec<u64> = entries.iter().map(|e| e["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    for pair in entries.windows(2) {
        assert_eq!(pair[0]["hash"], pair[1]["previous_hash"]);
    }
    let actions: Vec<&str> = entries.iter().map(|e| e["action"].as_str().unwrap()).collect();
    assert!(
        actions.ends_with(&["node.add", "node.add", "link.add", "link.remove"]),
        "{actions:?}"
    );
    let removed = entries.last().unwrap();
    assert_eq!(removed["before"]["listen"], "127.0.0.1:15432", "{removed}");
    assert!(removed["after"].is_null(), "{removed}");
    assert!(
        removed["actor"].as_str().unwrap().starts_with("token "),
        "{removed}"
    );

    let page = subject
        .get(&format!("/v1/audit?after={}&limit=1", seqs.len() - 1))
        .await
        .ok();
    assert_eq!(page["items"].as_array().unwrap().len(), 1);
    assert_eq!(page["items"][0]["hash"], removed["hash"]);
    let bad = subject.get("/v1/audit?after=-1&limit=0&colour=red&limit=5").await;
    assert_eq!(bad.status, StatusCode::BAD_REQUEST);
    assert_eq!(bad.fields(), ["after", "limit", "colour", "limit"]);
}

#[tokio::test]
async fn tokens_show_their_secret_once() {
    let subject = Subject::start().await;
    let made = subject
        .post("/v1/tokens", json!({"name": "ci", "scopes": ["read"]}))
        .await;
    assert_eq!(made.status, StatusCode::CREATED);
    let made = made.ok();
    let listed = subject.get("/v1/tokens").await.ok();
    let ci = listed["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|t| t["name"] == "ci")
        .unwrap();
    assert_eq!((&ci["id"], ci.get("secret")), (&made["id"], None));
    let bad = subject
        .post("/v1/tokens", json!({"name": "ci2", "scopes": []}))
        .await;
    assert_eq!(
        (bad.status, bad.fields()),
        (StatusCode::BAD_REQUEST, vec!["scopes"])
    );
    // Nothing of a secret is in the store's files.
    let secret = made["secret"].as_str().unwrap();
    let store = subject.dir.path().join("control");
    let found = std::process::Command::new("grep")
        .args(["-r", "-l", "-F", secret])
        .arg(store)
        .output()
        .unwrap();
    assert!(
        found.stdout.is_empty(),
        "{}",
        String::from_utf8_lossy(&found.stdout)
    );
    let status = subject.get("/v1/status").await.ok();
    assert_eq!(
        (&status["lab"], &status["ca_pin"]),
        (&json!(true), &json!(subject.control.ca_pin()))
    );
}

/// R-OPS-03: members are removed with the object as it was; a node in use is not, and names why.
#[tokio::test]
async fn members_are_removed_when_nothing_uses_them() {
    let subject = with_nodes().await;
    subject
        .post("/v1/links", link("db", "127.0.0.1:15432"))
        .await
        .ok();
    let refused = subject.delete("/v1/nodes/beta").await;
    assert_eq!((refused.status, refused.code()), (StatusCode::CONFLICT, "IN_USE"));
    assert_eq!(refused.body["error"]["details"]["links"], "db");
    assert_eq!(
        subject.get("/v1/links/db").await.ok()["last_refusal"],
        Value::Null,
        "nothing was refused"
    );
    subject.delete("/v1/links/db").await.ok();
    let removed = subject.delete("/v1/nodes/beta").await;
    assert_eq!(
        (removed.status, &removed.body["name"]),
        (StatusCode::OK, &json!("beta"))
    );
    assert_eq!(subject.delete("/v1/nodes/beta").await.code(), "NOT_FOUND");

    // A typo does not burn the name.
    let body = json!({"name": "paris-1", "address": "rely.example"});
    subject.post("/v1/relays", body).await.ok();
    let removed = subject.delete("/v1/relays/paris-1").await.ok();
    assert_eq!(removed["address"], "rely.example:9443");
    let body = json!({"name": "paris-1", "address": "relay.example"});
    assert_eq!(subject.post("/v1/relays", body).await.status, StatusCode::CREATED);

    let entries = subject.get("/v1/audit?limit=1000").await.ok();
    let removals: Vec<&str> = entries["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|e| e["before"].is_object())
        .filter_map(|e| e["action"].as_str())
        .collect();
    assert_eq!(removals, ["link.remove", "node.remove", "relay.remove"]);
}

/// The token that the request is made with is revoked only on purpose.
#[tokio::test]
async fn ones_own_token_is_revoked_with_force_only() {
    let mut subject = Subject::start().await;
    let other = subject.token_with("other", "admin:system").await;
    let refused = subject.delete("/v1/tokens/first").await;
    assert_eq!((refused.status, refused.code()), (StatusCode::CONFLICT, "IN_USE"));
    let refused = subject.delete("/v1/tokens/first?force=false").await;
    assert_eq!(refused.code(), "IN_USE");
    let bad = subject.delete("/v1/tokens/first?force=yes&really=1").await;
    assert_eq!(bad.fields(), ["force", "really"]);
    assert!(
        subject
            .delete("/v1/tokens/first?force=true")
            .await
            .status
            .is_success()
    );
    assert_eq!(subject.get("/v1/status").await.status, StatusCode::UNAUTHORIZED);
    subject.token = other;
    // The last one stays, whatever is said.
    assert_eq!(
        subject.delete("/v1/tokens/other?force=true").await.code(),
        "IN_USE"
    );
}
