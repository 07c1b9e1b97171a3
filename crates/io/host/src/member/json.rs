//! The JSON forms of a member's files, and the only place that knows them.

use super::{ControlSession, FieldFault, MemberConfig, MemberError, MemberRole, RuntimeInfo, TrustBundle};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Version of `member.json` and `trust.json` that this build writes and reads.
const FORMAT_VERSION: u32 = 1;
/// More keys than any rotation holds at once.
const POLICY_KEYS_MAX: usize = 16;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigJson {
    version: u32,
    role: String,
    id: String,
    name: String,
    trust_domain: String,
    control: String,
    ca_pin: String,
    grpc_server_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    advertised_address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    listen: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TrustJson {
    format: u32,
    version: u64,
    policy_keys: Vec<String>,
}

/// Unknown fields are let through: `up` of one version reads what a daemon of another wrote.
#[derive(Debug, Serialize, Deserialize)]
struct RuntimeJson {
    pid: u32,
    #[serde(default)]
    metrics_url: Option<String>,
    #[serde(default)]
    listen: Option<String>,
}

/// Unknown fields are let through, as above.
#[derive(Debug, Serialize, Deserialize)]
struct SessionJson {
    pid: u32,
    #[serde(default)]
    missing: Option<String>,
}

pub(super) fn session_to_json(session: &ControlSession) -> String {
    pretty(&SessionJson {
        pid: session.pid,
        missing: session.missing.clone(),
    })
}

pub(super) fn session_from_json(path: &Path, bytes: &[u8]) -> Result<ControlSession, MemberError> {
    let raw: SessionJson = from_json(path, bytes)?;
    Ok(ControlSession {
        pid: raw.pid,
        missing: raw.missing,
    })
}

pub(super) fn config_to_json(config: &MemberConfig) -> String {
    let (role, id) = match config.role {
        MemberRole::Relay(id) => ("relay", id.to_string()),
        MemberRole::Node(id) => ("node", id.to_string()),
    };
    pretty(&ConfigJson {
        version: FORMAT_VERSION,
        role: role.to_owned(),
        id,
        name: config.name.to_string(),
        trust_domain: config.trust_domain.to_string(),
        control: config.control.to_string(),
        ca_pin: config.ca_pin.to_string(),
        grpc_server_name: config.grpc_server_name.clone(),
        advertised_address: config.advertised_address.as_ref().map(ToString::to_string),
        listen: config.listen.map(|a| a.to_string()),
    })
}

pub(super) fn config_from_json(path: &Path, bytes: &[u8]) -> Result<MemberConfig, MemberError> {
    let raw: ConfigJson = from_json(path, bytes)?;
    let mut faults = Faults::default();
    faults.version("version", raw.version);
    let role = match raw.role.as_str() {
        "relay" => faults.parse("id", &raw.id).map(MemberRole::Relay),
        "node" => faults.parse("id", &raw.id).map(MemberRole::Node),
        other => {
            let shown: String = other.chars().take(40).collect();
            faults.add("role", format!("`{shown}` is not a role: expected relay or node"));
            None
        }
    };
    if raw.grpc_server_name.is_empty() {
        faults.add("grpc_server_name", "it is empty: expected a DNS name".to_owned());
    }
    let name = faults.parse("name", &raw.name);
    let trust_domain = faults.parse("trust_domain", &raw.trust_domain);
    let control = faults.parse("control", &raw.control);
    let ca_pin = faults.parse("ca_pin", &raw.ca_pin);
    let advertised_address = raw
        .advertised_address
        .map(|text| faults.parse("advertised_address", &text));
    let listen = raw.listen.map(|text| {
        faults.parse_with(
            "listen",
            text.parse().map_err(|_| {
                let shown: String = text.chars().take(64).collect();
                format!("`{shown}` is not an address: expected IP:port or [v6]:port")
            }),
        )
    });
    match (
        role,
        name,
        trust_domain,
        control,
        ca_pin,
        advertised_address,
        listen,
    ) {
        (Some(role), Some(name), Some(trust_domain), Some(control), Some(ca_pin), advertised, listen)
            if faults.0.is_empty() =>
        {
            Ok(MemberConfig {
                role,
                name,
                trust_domain,
                control,
                ca_pin,
                grpc_server_name: raw.grpc_server_name,
                advertised_address: advertised.flatten(),
                listen: listen.flatten(),
            })
        }
        (..) => Err(faults.into_error(path)),
    }
}

pub(super) fn trust_to_json(bundle: &TrustBundle) -> String {
    pretty(&TrustJson {
        format: FORMAT_VERSION,
        version: bundle.version,
        policy_keys: bundle.policy_keys.iter().map(hex::encode).collect(),
    })
}

pub(super) fn trust_from_json(path: &Path, bytes: &[u8]) -> Result<TrustBundle, MemberError> {
    let raw: TrustJson = from_json(path, bytes)?;
    let mut faults = Faults::default();
    faults.version("format", raw.format);
    if raw.policy_keys.is_empty() || raw.policy_keys.len() > POLICY_KEYS_MAX {
        faults.add(
            "policy_keys",
            format!(
                "it has {} keys: expected 1 to {POLICY_KEYS_MAX}",
                raw.policy_keys.len()
            ),
        );
    }
    let mut policy_keys = Vec::new();
    for (index, text) in raw.policy_keys.iter().take(POLICY_KEYS_MAX).enumerate() {
        let mut key = [0; 32];
        match hex::decode_to_slice(text, &mut key) {
            Ok(()) => policy_keys.push(key),
            Err(_) => faults.add(
                &format!("policy_keys[{index}]"),
                "it is not a key: expected 64 hexadecimal digits".to_owned(),
            ),
        }
    }
    if !faults.0.is_empty() {
        return Err(faults.into_error(path));
    }
    Ok(TrustBundle {
        version: raw.version,
        policy_keys,
    })
}

pub(super) fn runtime_to_json(info: &RuntimeInfo) -> String {
    pretty(&RuntimeJson {
        pid: info.pid,
        metrics_url: info.metrics_url.clone(),
        listen: info.listen.clone(),
    })
}

pub(super) fn runtime_from_json(path: &Path, bytes: &[u8]) -> Result<RuntimeInfo, MemberError> {
    let raw: RuntimeJson = from_json(path, bytes)?;
    Ok(RuntimeInfo {
        pid: raw.pid,
        metrics_url: raw.metrics_url,
        listen: raw.listen,
    })
}

fn from_json<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, MemberError> {
    serde_json::from_slice(bytes).map_err(|source| MemberError::Json {
        path: path.to_owned(),
        source,
    })
}

fn pretty<T: Serialize>(value: &T) -> String {
    // Structs of texts and numbers always serialize.
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.push('\n');
    text
}

#[derive(Default)]
struct Faults(Vec<FieldFault>);

impl Faults {
    fn add(&mut self, field: &str, message: String) {
        self.0.push(FieldFault {
            field: field.to_owned(),
            message,
        });
    }

    fn version(&mut self, field: &str, found: u32) {
        if found != FORMAT_VERSION {
            self.add(
                field,
                format!("{found} is not a version that this program reads: expected {FORMAT_VERSION}"),
            );
        }
    }

    fn parse<T>(&mut self, field: &str, text: &str) -> Option<T>
    where
        T: std::str::FromStr,
        T::Err: std::fmt::Display,
    {
        self.parse_with(field, text.parse().map_err(|e: T::Err| e.to_string()))
    }

    fn parse_with<T>(&mut self, field: &str, result: Result<T, String>) -> Option<T> {
        result.map_err(|message| self.add(field, message)).ok()
    }

    fn into_error(self, path: &Path) -> MemberError {
        MemberError::Faults {
            path: path.to_owned(),
            faults: self.0,
        }
    }
}
