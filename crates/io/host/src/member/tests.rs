//! A member's folder: written, read, removed, and every fault of its files.

use super::*;
use std::os::unix::fs::PermissionsExt as _;

fn config() -> MemberConfig {
    MemberConfig {
        role: MemberRole::Relay(RelayId::from_bytes([7; 16])),
        name: "paris-1".parse().unwrap(),
        trust_domain: "pool.example".parse().unwrap(),
        control: "[2001:db8::1]:8443".parse().unwrap(),
        ca_pin: CaPin([0xab; 32]),
        grpc_server_name: "grpc.fairlead.internal".to_owned(),
        advertised_address: Some("relay.example:9443".parse().unwrap()),
        listen: Some("0.0.0.0:9443".parse().unwrap()),
    }
}

#[test]
fn what_is_saved_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let folder = MemberFolder::new(dir.path().join("relay"));
    assert!(!folder.is_enrolled());
    folder.save_identity(b"KEY", "CERT", "CA").unwrap();
    let bundle = TrustBundle {
        version: 3,
        policy_keys: vec![[1; 32], [2; 32]],
    };
    folder.save_trust(&bundle).unwrap();
    folder.save(&config()).unwrap();
    assert!(folder.is_enrolled());
    assert_eq!(folder.load().unwrap(), config());
    assert_eq!(
        folder.load().unwrap().identity(),
        Identity::Relay(RelayId::from_bytes([7; 16]))
    );
    assert_eq!(folder.load_trust().unwrap(), bundle);
    assert_eq!(folder.key().unwrap().as_slice(), b"KEY");
    assert_eq!(folder.cert_chain_pem().unwrap(), "CERT");
    assert_eq!(folder.ca_pem().unwrap(), "CA");
    let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder.key_path()), 0o600);
    assert_eq!(mode(folder.dir()), 0o700);

    assert_eq!(folder.read_runtime().unwrap(), None);
    let info = RuntimeInfo {
        pid: 42,
        metrics_url: Some("http://127.0.0.1:1/metrics".to_owned()),
        listen: None,
    };
    write_runtime(&folder.runtime_path(), &info).unwrap();
    assert_eq!(folder.read_runtime().unwrap(), Some(info));

    let node = MemberConfig {
        role: MemberRole::Node(NodeId::from_bytes([9; 16])),
        advertised_address: None,
        listen: None,
        ..config()
    };
    folder.save(&node).unwrap();
    assert_eq!(folder.load().unwrap(), node);
}

/// R-ENR-01: a failed enrolment leaves nothing behind; files of others stay.
#[test]
fn remove_all_removes_what_enrolment_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let folder = MemberFolder::new(dir.path().join("relay"));
    folder.save_identity(b"KEY", "CERT", "CA").unwrap();
    folder.save(&config()).unwrap();
    folder.remove_all().unwrap();
    assert!(!folder.dir().exists());
    folder.remove_all().unwrap();

    folder.save(&config()).unwrap();
    fs::write(folder.dir().join("notes"), "mine").unwrap();
    folder.remove_all().unwrap();
    assert_eq!(fs::read_dir(folder.dir()).unwrap().count(), 1);
}

#[test]
fn faults_name_the_file_and_every_field() {
    let dir = tempfile::tempdir().unwrap();
    let folder = MemberFolder::new(dir.path().to_owned());
    folder.save(&config()).unwrap();
    let good: serde_json::Value = serde_json::from_slice(&fs::read(folder.config_path()).unwrap()).unwrap();
    let mut bad = good.clone();
    for (field, value) in [
        ("role", "king"),
        ("name", "A b"),
        ("trust_domain", ""),
        ("control", "host"),
        ("ca_pin", "sha256:12"),
        ("grpc_server_name", ""),
        ("advertised_address", "::1:"),
        ("listen", "localhost:1"),
    ] {
        bad[field] = value.into();
    }
    bad["version"] = 2.into();
    fs::write(folder.config_path(), bad.to_string()).unwrap();
    let MemberError::Faults { faults, .. } = folder.load().unwrap_err() else {
        panic!("expected faults")
    };
    let fields: Vec<&str> = faults.iter().map(|f| f.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "version",
            "role",
            "grpc_server_name",
            "name",
            "trust_domain",
            "control",
            "ca_pin",
            "advertised_address",
            "listen"
        ]
    );
    for (text, why) in [
        (r#"{"version":1"#, "line 1 column 12"),
        (r#"{"version":1,"colour":"red"}"#, "colour"),
        ("[]", "missing field"),
    ] {
        fs::write(folder.config_path(), text).unwrap();
        let error = folder.load().unwrap_err();
        let source = std::error::Error::source(&error)
            .map(ToString::to_string)
            .unwrap_or_default();
        assert!(error.to_string().contains("member.json"), "{error}");
        assert!(source.contains(why) || why == "missing field", "{source}");
    }
    fs::write(
        folder.trust_path(),
        r#"{"format":1,"version":1,"policy_keys":["00","zz"]}"#,
    )
    .unwrap();
    let error = folder.load_trust().unwrap_err().to_string();
    assert!(
        error.contains("policy_keys[0]") && error.contains("policy_keys[1]"),
        "{error}"
    );
}

/// An identity is read as one; the file that a new chain or new roots are to replace need not be readable.
#[test]
fn what_is_to_be_replaced_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let folder = MemberFolder::new(dir.path().to_owned());
    folder.save_identity(b"key", "chain", "roots").unwrap();
    let files = folder.identity().unwrap();
    assert_eq!(
        (&files.key_pem[..], &*files.chain_pem, &*files.roots_pem),
        (&b"key"[..], "chain", "roots")
    );
    assert!(!format!("{files:?}").contains("key"), "{files:?}");
    fs::remove_file(folder.identity_path(Some(IdentityFile::Chain))).unwrap();
    assert!(folder.identity().is_err() && folder.identity_with(None, Some("new".to_owned())).is_err());
    let files = folder.identity_with(Some("new".to_owned()), None).unwrap();
    assert_eq!((&*files.chain_pem, &*files.roots_pem), ("new", "roots"));
    let der: [&[u8]; 2] = [b"one", b"two"];
    let pem = IdentityFiles::pem(der);
    assert_eq!(pem.matches("-----BEGIN CERTIFICATE-----").count(), 2, "{pem}");
}

/// A file of the enrolment that is gone is named, with what to do: a member's folder has no backup.
#[test]
fn a_file_that_is_gone_is_named_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let folder = MemberFolder::new(dir.path().to_owned());
    let missing = [
        (folder.key().unwrap_err(), "key.pem"),
        (folder.cert_chain_pem().unwrap_err(), "cert.pem"),
        (folder.ca_pem().unwrap_err(), "ca.pem"),
        (folder.load_trust().unwrap_err(), "trust.json"),
    ];
    for (error, name) in missing {
        let error = error.to_string();
        for told in [name, "is missing", "add it again", "enrol"] {
            assert!(error.contains(told), "{told}: {error}");
        }
        assert!(!error.contains("backup"), "{error}");
    }
}

/// R-GEN-02: a folder whose `member.json` leads nowhere is not taken for one that nobody enrolled into.
#[test]
fn a_folder_whose_file_is_a_loop_is_a_members() {
    let dir = tempfile::tempdir().unwrap();
    let folder = MemberFolder::new(dir.path().to_owned());
    assert!(!folder.is_enrolled());
    std::os::unix::fs::symlink("member.json", folder.config_path()).unwrap();
    assert!(folder.is_enrolled());
    let error = folder.load().unwrap_err().to_string();
    assert!(error.contains("leads back to itself"), "{error}");
    assert!(
        !MemberFolder::new(folder.config_path().join("x")).is_enrolled(),
        "below a file there is nothing"
    );
}
