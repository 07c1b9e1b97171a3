//! Where the CLI finds its control plane: flags, environment, or the user's profile.

use crate::cli::verbs::{Connection, Login};
use crate::exit::{Exit, Failing, Failure};
use crate::faults::Faults;
use crate::rest::{RestClient, RestError};
use crate::table;
use crate::tls::{Anchor, ControlVerifier};
use crate::token::{self, TokenError};
use crate::verbs::show;
use fairlead_admin::json::WhoAmI;
use fairlead_host::file::{self, FileError};
use fairlead_host::rng::Token;
use fairlead_host::{SystemClock, secret};
use fairlead_model::{CaPin, HostPort};
use fairlead_telemetry::chain;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A CA file's greatest size: a bundle of dozens of certificates.
const CA_LEN_MAX: usize = 256 * 1024;
/// The profile's greatest size.
const PROFILE_LEN_MAX: usize = 16 * 1024;

/// The stored profile: `profile.toml` in the settings folder, beside `ca.pem` and `token`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    control: String,
    ca_file: PathBuf,
    token_file: PathBuf,
}

/// What `login` did, as JSON.
#[derive(Debug, Serialize)]
struct LoggedIn {
    control: String,
    name: String,
    scopes: Vec<String>,
    profile: PathBuf,
}

/// Why the control plane's address, CA or token is not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProfileError {
    #[error(
        "which control plane? Give --control, --ca-file and --token-file (or FAIRLEAD_CONTROL, FAIRLEAD_CA_FILE \
         and FAIRLEAD_TOKEN_FILE), or run `fairlead login` once. Missing: {0}"
    )]
    Missing(String),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: {reason}", path.display())]
    Malformed { path: PathBuf, reason: String },
    #[error("the profile cannot be written")]
    Store(#[source] FileError),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error("give --ca-file, or --ca-pin as the control plane's install commands show it")]
    NoAnchor,
    #[error("the control plane presented no CA certificate")]
    NoCa,
    #[error("no settings folder: neither XDG_CONFIG_HOME nor HOME is set")]
    NoHome,
}

impl Failing for ProfileError {
    fn exit(&self) -> Exit {
        match self {
            Self::Missing(_)
            | Self::File(_)
            | Self::Malformed { .. }
            | Self::Token(_)
            | Self::NoAnchor
            | Self::NoHome => Exit::Usage,
            Self::NoCa | Self::Store(_) => Exit::Failed,
        }
    }
}

/// A client by flags and environment first, the profile second.
pub(crate) fn client(connection: &Connection) -> Result<RestClient, Failure> {
    let given = connection.given();
    let mut parts = (given.control, given.ca_file, given.token_file);
    let places = [
        ("--control", parts.0.is_some()),
        ("--ca-file", parts.1.is_some()),
        ("--token-file", parts.2.is_some()),
    ];
    let [control_place, ca_place, token_place] = places.map(|(flag, given)| place(flag, given));
    if (parts.0.is_none() || parts.1.is_none() || parts.2.is_none())
        && let Some(profile) = load()?
    {
        parts.0.get_or_insert(profile.control);
        parts.1.get_or_insert(profile.ca_file);
        parts.2.get_or_insert(profile.token_file);
    }
    let (control, ca_file, token_file) = match parts {
        (Some(control), Some(ca_file), Some(token_file)) => (control, ca_file, token_file),
        (control, ca_file, token_file) => {
            let missing: Vec<_> = [
                ("the address", control.is_none()),
                ("the CA file", ca_file.is_none()),
                ("the token file", token_file.is_none()),
            ]
            .into_iter()
            .filter_map(|(what, missing)| missing.then_some(what))
            .collect();
            return Err(ProfileError::Missing(missing.join(", ")).into());
        }
    };
    let mut faults = Faults::default();
    let control = faults.take(control_place, HostPort::parse_control(&control));
    let cas = faults.take(ca_place, ca(&ca_file).map_err(|e| chain(&e)));
    let token = faults.take(token_place, token_of(&token_file).map_err(|e| chain(&e)));
    let ((control, cas), token) = faults.finish(control.zip(cas).zip(token))?;
    Ok(new_client(control, cas, token)?)
}

/// Where the control plane's address is from.
pub(crate) fn control_place(connection: &Connection) -> &'static str {
    match connection.given().control {
        Some(_) => "--control (or FAIRLEAD_CONTROL)",
        None => "the profile of `fairlead login`",
    }
}

/// Where a fault of the connection is: at its flag, or in the profile, which nobody writes by hand.
const fn place(flag: &'static str, given: bool) -> &'static str {
    match given {
        true => flag,
        false => "the profile of `fairlead login`, which makes it anew",
    }
}

/// A client with a CA file and a token file, as `up` uses it.
pub(crate) fn client_of(control: HostPort, ca_file: &Path, token_file: &Path) -> Result<RestClient, Failure> {
    let cas = ca(ca_file)?;
    let token = token_of(token_file).map_err(ProfileError::from)?;
    Ok(new_client(control, cas, token)?)
}

fn new_client(
    control: HostPort,
    cas: Vec<CertificateDer<'static>>,
    token: Token,
) -> Result<RestClient, RestError> {
    let verifier = ControlVerifier::new(Anchor::Certificates(cas), Arc::new(SystemClock::new()));
    RestClient::new(control, verifier, Some(token))
}

fn ca(path: &Path) -> Result<Vec<CertificateDer<'static>>, ProfileError> {
    let text = file::read_given(path, CA_LEN_MAX)?;
    let malformed = |reason: String| ProfileError::Malformed {
        path: path.to_owned(),
        reason,
    };
    let cas = CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| malformed(e.to_string()))?;
    if cas.is_empty() {
        return Err(malformed("there is no PEM certificate in it".to_owned()));
    }
    Ok(cas)
}

fn token_of(file: &Path) -> Result<Token, TokenError> {
    token::read(&file.display().to_string())
}

fn load() -> Result<Option<Profile>, ProfileError> {
    let Some(folder) = settings_folder() else {
        return Ok(None);
    };
    let path = folder.join("profile.toml");
    let Some(bytes) = file::read_optional(&path, PROFILE_LEN_MAX)? else {
        return Ok(None);
    };
    let malformed = |reason: String| ProfileError::Malformed {
        path: path.clone(),
        reason,
    };
    let text = String::from_utf8(bytes).map_err(|e| malformed(e.to_string()))?;
    profile_of(&text).map(Some).map_err(malformed)
}

/// # Errors
/// What is wrong with the text, and what to do.
fn profile_of(text: &str) -> Result<Profile, String> {
    toml::from_str(text).map_err(|e| {
        let reason = e.to_string();
        format!("{}\n`fairlead login` writes it anew", reason.trim_end())
    })
}

/// `fairlead login`: checks, then stores.
pub(crate) async fn login(flags: &Login) -> Result<(), Failure> {
    let folder = settings_folder().ok_or(ProfileError::NoHome)?;
    let mut faults = Faults::default();
    let connection = &flags.connection.given();
    if connection.control.is_none() {
        faults.add(
            "--control",
            "is missing: the address of the control plane, host:port",
        );
    }
    let control = connection
        .control
        .as_ref()
        .and_then(|text| faults.take("--control", HostPort::parse_control(text)));
    let pin: Option<CaPin> = flags
        .ca_pin
        .as_ref()
        .and_then(|text| faults.parse("--ca-pin", text));
    let cas = connection
        .ca_file
        .as_ref()
        .and_then(|path| faults.take("--ca-file", ca(path).map_err(|e| chain(&e))));
    let control = faults.finish(control)?;
    let anchor = match (cas, pin) {
        (Some(cas), _) => Anchor::Certificates(cas),
        (None, Some(pin)) => Anchor::Pin(pin),
        (None, None) => return Err(ProfileError::NoAnchor.into()),
    };
    // Only then: a person may be asked for it.
    let mut faults = Faults::default();
    let token_file = connection
        .token_file
        .clone()
        .unwrap_or_else(|| PathBuf::from("-"));
    let token = faults.take("--token-file", token_of(&token_file).map_err(|e| chain(&e)));
    let token = faults.finish(token)?;
    let secret_text = zeroize::Zeroizing::new(token.expose().to_owned());
    let verifier = ControlVerifier::new(anchor.clone(), Arc::new(SystemClock::new()));
    let client = RestClient::new(control.clone(), verifier, Some(token))?;
    let who: WhoAmI = client.get("/v1/whoami").await?;
    let ca_pem = match anchor {
        Anchor::Certificates(cas) => cas.iter().map(pem_text).collect::<String>(),
        Anchor::Pin(_) => client
            .verifier()
            .outcome()
            .and_then(Result::ok)
            .and_then(|seen| seen.ca)
            .map(|c| pem_text(&c))
            .ok_or(ProfileError::NoCa)?,
    };
    store(&folder, &control, &ca_pem, &secret_text)?;
    let logged_in = LoggedIn {
        control: control.to_string(),
        name: who.name,
        scopes: who.scopes,
        profile: folder,
    };
    show(connection, &logged_in, |l| {
        table::line(&format!(
            "logged in to {} as {} ({}); profile in {}",
            l.control,
            l.name,
            l.scopes.join(", "),
            l.profile.display()
        ));
    });
    Ok(())
}

fn store(folder: &Path, control: &HostPort, ca_pem: &str, token: &str) -> Result<(), ProfileError> {
    let profile = Profile {
        control: control.to_string(),
        ca_file: folder.join("ca.pem"),
        token_file: folder.join("token"),
    };
    let text = toml::to_string(&profile).map_err(|e| ProfileError::Malformed {
        path: folder.join("profile.toml"),
        reason: e.to_string(),
    })?;
    file::make_folder(folder, 0o700).map_err(ProfileError::Store)?;
    file::write_atomic(&profile.ca_file, 0o600, ca_pem.as_bytes()).map_err(ProfileError::Store)?;
    secret::write(&profile.token_file, token.as_bytes()).map_err(ProfileError::Store)?;
    file::write_atomic(&folder.join("profile.toml"), 0o600, text.as_bytes()).map_err(ProfileError::Store)
}

fn pem_text(certificate: &CertificateDer<'static>) -> String {
    pem::encode(&pem::Pem::new("CERTIFICATE", certificate.to_vec()))
}

/// The user's settings folder: XDG base directory specification, version 0.8.
fn settings_folder() -> Option<PathBuf> {
    xdg("XDG_CONFIG_HOME", ".config").map(|folder| folder.join("fairlead"))
}

/// The user's state folder, or one in the current folder without a home.
pub(crate) fn state_folder() -> PathBuf {
    xdg("XDG_STATE_HOME", ".local/state").map_or_else(|| PathBuf::from(".fairlead"), |f| f.join("fairlead"))
}

fn xdg(variable: &str, below_home: &str) -> Option<PathBuf> {
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(below_home)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A flag that was never given is not at fault, and who has a broken profile is told to log in.
    #[test]
    fn a_broken_profile_is_named_with_its_remedy() {
        assert_eq!(place("--token-file", true), "--token-file");
        assert!(place("--token-file", false).contains("fairlead login"));
        let broken = profile_of("control = ").unwrap_err();
        assert!(broken.contains("`fairlead login` writes it anew"), "{broken}");
        // One that cannot be written is no wrong flag.
        let file = tempfile::NamedTempFile::new().unwrap();
        let control = HostPort::parse_control("c").unwrap();
        let unwritable = store(&file.path().join("fairlead"), &control, "", "t").unwrap_err();
        assert_eq!(unwritable.exit(), Exit::Failed, "{unwritable}");
        profile_of("control = \"c:8443\"\nca_file = \"/c\"\ntoken_file = \"/t\"").unwrap();
    }
}
