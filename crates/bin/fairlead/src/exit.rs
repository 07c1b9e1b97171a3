//! Exit codes: one table, and the total functions from errors to it.

use fairlead_model::ApiCode;
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
    Refused = 2, "refused, or blocked by a guard";
    /// Some of it was done.
    Partial = 3, "partly done";
    /// The name, address or object is another's, or changed meanwhile.
    Conflict = 4, "conflict with what exists";
    /// The control plane cannot be reached, or cannot serve.
    Unavailable = 5, "the control plane is unreachable or unavailable";
    /// `enrol`: the control plane's CA is not the pinned one.
    PinMismatch = 10, "enrol: the control plane's CA is not the pinned one";
    /// `enrol`: the token was used.
    TokenUsed = 11, "enrol: the token was used before";
    /// `enrol`: the token has expired.
    TokenExpired = 12, "enrol: the token has expired";
    /// `enrol`: the token is unknown, or another member's.
    TokenUnknown = 13, "enrol: the token is unknown, or was issued for another member";
    /// `enrol`: the clocks differ by more than 60 s.
    ClockSkew = 14, "enrol: this host's clock and the control plane's differ by more than 60 s";
    /// `enrol`: the host has a relay of this pool (R-ENR-04).
    HostHasRelay = 15, "enrol: this host already has a relay of the pool";
    /// `enrol`: the token was used by another host.
    TokenOtherHost = 16, "enrol: the token belongs to another host";
    /// Flags, settings or names are wrong; nothing was done.
    Usage = 64, "flags, settings or names are wrong; nothing was done";
}

impl Exit {
    /// The exit that goes with an API error.
    #[must_use]
    pub const fn of_api(code: ApiCode) -> Self {
        match code {
            ApiCode::InvalidRequest | ApiCode::TooLarge => Self::Usage,
            ApiCode::Unauthenticated
            | ApiCode::Forbidden
            | ApiCode::CrossSite
            | ApiCode::InUse
            | ApiCode::RelayOfflineRemovalUnsafe
            | ApiCode::RelayNotConnected => Self::Refused,
            ApiCode::NameTaken | ApiCode::Conflict | ApiCode::ListenTaken => Self::Conflict,
            ApiCode::RateLimited | ApiCode::Unavailable => Self::Unavailable,
            ApiCode::NotFound | ApiCode::MethodNotAllowed | ApiCode::Internal | ApiCode::BadCsr => {
                Self::Failed
            }
            ApiCode::TokenUnknown | ApiCode::TokenOtherMember => Self::TokenUnknown,
            ApiCode::TokenUsed => Self::TokenUsed,
            ApiCode::TokenExpired => Self::TokenExpired,
            ApiCode::TokenOtherHost => Self::TokenOtherHost,
            ApiCode::HostHasRelay => Self::HostHasRelay,
            ApiCode::ClockSkew => Self::ClockSkew,
        }
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

    #[test]
    fn numbers_are_unique_and_every_api_code_has_one() {
        let numbers: BTreeSet<u8> = Exit::ALL.iter().map(|(_, n, _)| *n).collect();
        assert_eq!(numbers.len(), Exit::ALL.len());
        for &code in ApiCode::ALL {
            assert_ne!(Exit::of_api(code), Exit::Done, "{code}");
        }
    }
}
