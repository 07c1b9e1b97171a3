//! Stable codes of refusals, with their class (R-ADM-05).
//!
//! One table serves the hop frames, the sealed stream frames, metrics labels and logs. A number is
//! never reused.

/// What the refused side does next (R-ADM-05).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RetryClass {
    /// Another relay may admit it: try there at once.
    Elsewhere,
    /// The same request may succeed after the retry-after: wait and try again.
    Wait,
    /// It will not succeed until an admin changes something.
    Never,
}

impl RetryClass {
    /// The class's one name, in logs and metrics labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Elsewhere => "elsewhere",
            Self::Wait => "wait",
            Self::Never => "never",
        }
    }
}

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal, $class:ident, $message:literal;)*) => {
        /// Why something was refused. `#[repr]` numbers are the wire form.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum RefusalCode {
            $($(#[$doc])* $name,)*
        }

        impl RefusalCode {
            /// Every code, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The number on the wire.
            #[must_use]
            pub const fn number(self) -> u16 {
                match self { $(Self::$name => $number,)* }
            }

            /// The code of a wire number; a number from a newer peer is `None`.
            #[must_use]
            pub const fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// The stable name, in logs, metrics labels and JSON.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// What the refused side does next.
            #[must_use]
            pub const fn class(self) -> RetryClass {
                match self { $(Self::$name => RetryClass::$class,)* }
            }

            /// One sentence for people.
            #[must_use]
            pub const fn message(self) -> &'static str {
                match self { $(Self::$name => $message,)* }
            }
        }

        impl std::fmt::Display for RefusalCode {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.message())
            }
        }
    };
}

refusals! {
    // 1–19: the relay's policy.
    /// The relay has no verified policy.
    NoPolicy = 1, "NO_POLICY", Elsewhere, "the relay has no policy yet";
    /// The relay's policy lease has ended (R-POL-06).
    LeaseEnded = 2, "LEASE_ENDED", Elsewhere, "the relay's policy lease has ended";
    /// The route is not in the relay's policy.
    UnknownRoute = 3, "UNKNOWN_ROUTE", Elsewhere, "the route is not in the relay's policy";
    /// The route, node or key is revoked; final once the signed revocation is verified.
    Revoked = 4, "REVOKED", Never, "the route is revoked";
    /// The grant's signature, subject or route is wrong.
    BadGrant = 5, "BAD_GRANT", Never, "the grant is not valid for this route and consumer";
    /// The grant's time is over.
    GrantExpired = 6, "GRANT_EXPIRED", Wait, "the grant has expired";
    /// The grant's time has not come; clocks differ.
    GrantNotYetValid = 7, "GRANT_NOT_YET_VALID", Wait, "the grant is not valid yet: clocks differ";
    /// The grant is newer than the policy and the policy did not come in time (R-POL-10).
    GrantAheadOfPolicy = 8, "GRANT_AHEAD_OF_POLICY", Wait, "the grant is newer than the relay's policy";
    /// The node is not in the relay's policy.
    UnknownNode = 9, "UNKNOWN_NODE", Elsewhere, "the node is not in the relay's policy";
    /// A registration that the policy does not hold (R-POL-10).
    RegistrationMismatch = 10, "REGISTRATION_MISMATCH", Wait, "the registration does not match policy";
    // 20–39: the relay's state.
    /// No daemon has registered the endpoint on this relay.
    NotRegistered = 20, "NOT_REGISTERED", Elsewhere, "no node has registered the endpoint on this relay";
    /// The publisher announced a restart (R-ADM-03).
    EndpointRestarting = 21, "ENDPOINT_RESTARTING", Wait, "target endpoint is restarting";
    /// The relay drains (R-OPS-01).
    Draining = 22, "DRAINING", Elsewhere, "the relay is draining";
    /// The relay is short of CPU, memory or descriptors (R-SHD-01).
    Overloaded = 23, "OVERLOADED", Elsewhere, "the relay refuses new tunnels under load";
    /// A bound per node was reached: pending opens, legs or associations.
    TooMany = 24, "TOO_MANY", Wait, "the node has reached a limit of the relay";
    /// The publisher's leg could not be opened in time.
    PublisherUnreachable = 25, "PUBLISHER_UNREACHABLE", Elsewhere, "the publisher did not answer in time";
    /// The relay stops.
    ShuttingDown = 26, "SHUTTING_DOWN", Elsewhere, "the relay is shutting down";
    /// Another process uses the node's identity, and is kept (R-ENR-10).
    IdentityInUse = 27, "IDENTITY_IN_USE", Wait, "another process uses this node's identity";
    /// A member has ended its hop session: its daemon stops, or a probe or check is done.
    MemberLeft = 28, "MEMBER_LEFT", Elsewhere, "the member has ended its session";
    // 40–59: the publisher's daemon and its target (R-STR-07).
    /// The target's port is closed.
    TargetRefused = 40, "TARGET_REFUSED", Never, "the target refused the connection";
    /// The target did not answer in time.
    TargetTimeout = 41, "TARGET_TIMEOUT", Never, "the target did not answer in time";
    /// The target's host or network cannot be reached.
    TargetUnreachable = 42, "TARGET_UNREACHABLE", Never, "the target cannot be reached";
    /// The target's name does not resolve.
    TargetUnresolved = 43, "TARGET_UNRESOLVED", Never, "the target's name does not resolve";
    /// The publisher does not publish this endpoint.
    UnknownEndpoint = 44, "UNKNOWN_ENDPOINT", Never, "the publisher does not publish this endpoint";
    /// The publisher does not know the association: make a new one.
    UnknownAssociation = 45, "UNKNOWN_ASSOCIATION", Wait, "the publisher does not know the association";
    /// The publisher does not know the stream that a leg would resume.
    UnknownStream = 46, "UNKNOWN_STREAM", Never, "the publisher does not know the stream";
    /// The publisher's memory budget or descriptors are used up.
    PublisherOverloaded = 47, "PUBLISHER_OVERLOADED", Wait, "the publisher has no room for another stream";
    // 60–: the protocol.
    /// A frame that the protocol does not allow.
    Protocol = 60, "PROTOCOL", Never, "the peer broke the protocol";
    /// No common protocol version.
    Version = 61, "VERSION", Never, "the peer speaks no version in common";
    /// Something of ours broke; the log has it.
    Internal = 62, "INTERNAL", Wait, "an internal error";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// R-ADM-05: every refusal has a stable code and a class.
    #[test]
    fn codes_are_unique_and_round_trip() {
        let numbers: BTreeSet<u16> = RefusalCode::ALL.iter().map(|c| c.number()).collect();
        let names: BTreeSet<&str> = RefusalCode::ALL.iter().map(|c| c.as_str()).collect();
        assert_eq!(numbers.len(), RefusalCode::ALL.len());
        assert_eq!(names.len(), RefusalCode::ALL.len());
        for &code in RefusalCode::ALL {
            assert_eq!(RefusalCode::from_number(code.number()), Some(code));
        }
        assert_eq!(RefusalCode::from_number(0), None);
    }
}
