//! Exit codes: one table, and the total functions from errors to it.

use fairlead_host::LockError;
use fairlead_model::ApiCode;
use std::error::Error;
use std::io;
use std::process::ExitCode;

macro_rules! exits {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $meaning:literal;)*) => {
        /// How a command ended. Scripts rely on the numbers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Exit {
            $($(#[$doc])* $name,)*
        }

        impl Exit {
            /// Every exit with its number and meaning, as `--help` lists them.
            pub const ALL: &'static [(Self, u8, &'static str)] = &[$((Self::$name, $number, $meaning),)*];

            /// The number that the shell sees.
            #[must_use]
            pub const fn number(self) -> u8 {
                match self { $(Self::$name => $number,)* }
            }
        }
    };
}

exits! {
    /// Everything asked for was done.
    Done = 0, "done";
    /// Something broke.
    Failed = 1, "failed: something broke";
    /// A guard or a missing right said no.
    Refused = 2, "refused: the right is missing, or a guard says no (in use, connected, the last of its kind)";
    /// Some of it was done.
    Partial = 3, "partly done";
    /// A name, address or folder is another's.
    Conflict = 4, "conflict: the name, address or folder is another's";
    /// The control plane cannot be reached, or cannot serve.
    Unavailable = 5, "the control plane is unreachable or unavailable";
    /// The control plane's CA is not the pinned one.
    PinMismatch = 10, "the control plane's CA is not the pinned one";
    /// `enrol`: the token was used.
    TokenUsed = 11, "enrol: the token was used before";
    /// `enrol`: the token has expired.
    TokenExpired = 12, "enrol: the token has expired";
    /// `enrol`: the token is unknown, or another member's.
    TokenUnknown = 13, "enrol: the token is unknown, or was issued for another member";
    /// The clocks differ by more than 60 s, or too far for the control plane's certificate.
    ClockSkew = 14, "this host's clock and the control plane's differ by more than 60 s";
    /// `enrol`: the host has a relay of this pool (R-ENR-04).
    HostHasRelay = 15, "enrol: this host already has a relay of the pool";
    /// `enrol`: the token was used by another host.
    TokenOtherHost = 16, "enrol: the token belongs to another host";
    /// Flags or settings are wrong, or nothing has the name; nothing was done.
    Usage = 64, "flags or settings are wrong, or nothing has that name; nothing was done";
}

impl Exit {
    /// The exit that goes with an API error.
    #[must_use]
    pub const fn of_api(code: ApiCode) -> Self {
        match code {
            ApiCode::InvalidRequest | ApiCode::TooLarge | ApiCode::NotFound => Self::Usage,
            ApiCode::Unauthenticated
            | ApiCode::Forbidden
            | ApiCode::CrossSite
            | ApiCode::InUse
            | ApiCode::LocalRelay
            | ApiCode::HasConnected
            | ApiCode::NotCarried
            | ApiCode::LimitReached
            | ApiCode::RelayOfflineRemovalUnsafe
            | ApiCode::RelayNotConnected
            | ApiCode::NodeNotConnected => Self::Refused,
            ApiCode::NameTaken | ApiCode::Conflict | ApiCode::ListenTaken => Self::Conflict,
            ApiCode::RateLimited | ApiCode::Unavailable => Self::Unavailable,
            ApiCode::MethodNotAllowed | ApiCode::Internal | ApiCode::BadCsr => Self::Failed,
            ApiCode::TokenUnknown | ApiCode::TokenOtherMember => Self::TokenUnknown,
            ApiCode::TokenUsed => Self::TokenUsed,
            ApiCode::TokenExpired => Self::TokenExpired,
            ApiCode::TokenOtherHost => Self::TokenOtherHost,
            ApiCode::HostHasRelay => Self::HostHasRelay,
            ApiCode::ClockSkew => Self::ClockSkew,
        }
    }

    /// The exit that goes with a folder that could not be locked.
    #[must_use]
    pub const fn of_lock(error: &LockError) -> Self {
        match error {
            LockError::Held { .. } => Self::Conflict,
            LockError::File(_) => Self::Failed,
        }
    }

    /// The exit that goes with what the system refused: an address that another process has is a
    /// conflict with it.
    #[must_use]
    pub fn of_system(error: &(dyn Error + 'static)) -> Self {
        let mut next = Some(error);
        while let Some(cause) = next {
            let io = cause.downcast_ref::<io::Error>();
            if io.is_some_and(|e| e.kind() == io::ErrorKind::AddrInUse) {
                return Self::Conflict;
            }
            next = cause.source();
        }
        Self::Failed
    }

    /// The list of codes, for `--help`.
    #[must_use]
    pub fn help() -> String {
        let mut text = String::from("Exit codes:\n");
        for (_, number, meaning) in Self::ALL {
            text.push_str(&format!("  {number:>2}  {meaning}\n"));
        }
        text
    }

    /// The codes that `enrol` ends with, for its `--help`.
    #[must_use]
    pub fn enrol_help() -> String {
        let mut text = String::from("Exit codes:\n");
        for (exit, number, meaning) in Self::ALL {
            if !matches!(exit, Self::Partial) {
                let meaning = meaning.strip_prefix("enrol: ").unwrap_or(meaning);
                text.push_str(&format!("  {number:>2}  {meaning}\n"));
            }
        }
        text
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.number())
    }
}

/// An error at the edge: what is printed once, with the exit that goes with it.
pub trait Failing: std::error::Error + Send + Sync + 'static {
    /// The process's exit.
    fn exit(&self) -> Exit;
}

/// Any operation's error, on its way to the edge.
#[derive(Debug)]
pub struct Failure {
    error: Box<dyn std::error::Error + Send + Sync>,
    exit: Exit,
}

impl Failure {
    /// The process's exit.
    #[must_use]
    pub const fn exit(&self) -> Exit {
        self.exit
    }

    /// The error, to print.
    #[must_use]
    pub fn as_error(&self) -> &(dyn std::error::Error + 'static) {
        &*self.error
    }
}

impl<E: Failing> From<E> for Failure {
    fn from(error: E) -> Self {
        Self {
            exit: error.exit(),
            error: Box::new(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// R-UI-02: scripts rely on these numbers. One line per exit, with every API code that ends in it.
    const TABLE: &str = "\
0
1 METHOD_NOT_ALLOWED INTERNAL BAD_CSR
2 UNAUTHENTICATED FORBIDDEN CROSS_SITE IN_USE RELAY_OFFLINE_REMOVAL_UNSAFE RELAY_NOT_CONNECTED NODE_NOT_CONNECTED \
LOCAL_RELAY HAS_CONNECTED NOT_CARRIED LIMIT_REACHED
3
4 NAME_TAKEN CONFLICT LISTEN_TAKEN
5 RATE_LIMITED UNAVAILABLE
10
11 TOKEN_USED
12 TOKEN_EXPIRED
13 TOKEN_UNKNOWN TOKEN_OTHER_MEMBER
14 CLOCK_SKEW
15 HOST_HAS_RELAY
16 TOKEN_OTHER_HOST
64 INVALID_REQUEST NOT_FOUND TOO_LARGE
";

    #[test]
    fn every_api_code_has_the_exit_that_scripts_rely_on() {
        let numbers: BTreeSet<u8> = Exit::ALL.iter().map(|(_, n, _)| *n).collect();
        assert_eq!(numbers.len(), Exit::ALL.len());
        let mut table = String::new();
        for (exit, number, _) in Exit::ALL {
            table.push_str(&number.to_string());
            for code in ApiCode::ALL.iter().filter(|c| Exit::of_api(**c) == *exit) {
                table.push_str(&format!(" {code}"));
            }
            table.push('\n');
        }
        assert_eq!(table, TABLE);
    }

    #[test]
    fn what_another_process_has_is_a_conflict() {
        let held = tempfile::tempdir().unwrap();
        let _lock = fairlead_host::FolderLock::acquire(held.path()).unwrap();
        let error = fairlead_host::FolderLock::acquire(held.path()).unwrap_err();
        assert_eq!(Exit::of_lock(&error), Exit::Conflict);
        let error = fairlead_host::FolderLock::acquire(&held.path().join("none")).unwrap_err();
        assert_eq!(Exit::of_lock(&error), Exit::Failed);
        let first = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = std::net::TcpListener::bind(first.local_addr().unwrap()).unwrap_err();
        let nested = crate::run::RunError::Signals(taken);
        assert_eq!(Exit::of_system(&nested), Exit::Conflict);
        // The engine is a setting: the wrong one is a fault of the settings.
        let engine = fairlead_store::OpenError::OtherBackend {
            dir: "/d".into(),
            marker: "/d/backend".into(),
            found: fairlead_store::Backend::Redb,
            asked: fairlead_store::Backend::Sled,
        };
        let engine = crate::run::RunError::ControlOpen(fairlead_control::OpenError::Store(engine));
        assert_eq!(engine.exit(), Exit::Usage);
        let other = io::Error::from(io::ErrorKind::AddrNotAvailable);
        assert_eq!(Exit::of_system(&other), Exit::Failed);
    }
}
