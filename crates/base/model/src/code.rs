//! Stable codes of API errors: every error that the REST and gRPC interfaces return has one.

macro_rules! codes {
    ($($(#[doc = $doc:literal])* $name:ident, $text:literal, $status:literal;)*) => {
        /// The stable code of an API error.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ApiCode {
            $($(#[doc = $doc])* $name,)*
        }

        impl ApiCode {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The code as it stands in JSON.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// What it means, in a sentence.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),*).trim(),)* }
            }

            /// The HTTP status that goes with it.
            #[must_use]
            pub const fn http_status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            /// Reads a code; one of a newer peer is `None`.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|c| c.as_str() == text)
            }
        }

        impl std::fmt::Display for ApiCode {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

codes! {
    /// The body is not the JSON that the route takes, or a field has a fault.
    InvalidRequest, "INVALID_REQUEST", 400;
    /// No token, or one that is unknown or revoked.
    Unauthenticated, "UNAUTHENTICATED", 401;
    /// The token's scopes do not allow this.
    Forbidden, "FORBIDDEN", 403;
    /// The request comes from the page of another site, or does not say from which.
    CrossSite, "CROSS_SITE", 403;
    /// No such object.
    NotFound, "NOT_FOUND", 404;
    /// The route does not take this method.
    MethodNotAllowed, "METHOD_NOT_ALLOWED", 405;
    /// The name is taken.
    NameTaken, "NAME_TAKEN", 409;
    /// What is asked for is another object's: an address, or the local relay's place; or the text is
    /// one object's id and another's name.
    Conflict, "CONFLICT", 409;
    /// The object is in use by others, which the message names.
    InUse, "IN_USE", 409;
    // R-OPS-03.
    /// The relay is offline and may serve still: its lease, or who uses it, forbids its removal.
    RelayOfflineRemovalUnsafe, "RELAY_OFFLINE_REMOVAL_UNSAFE", 409;
    // R-OPS-02.
    /// The relay must be connected for this.
    RelayNotConnected, "RELAY_NOT_CONNECTED", 409;
    /// The node must be connected for this.
    NodeNotConnected, "NODE_NOT_CONNECTED", 409;
    /// The local relay stays with its control plane.
    LocalRelay, "LOCAL_RELAY", 409;
    /// The member has enrolled and connected: a new token is for one whose host never has.
    HasConnected, "HAS_CONNECTED", 409;
    /// No relay, or not this one, carries the link.
    NotCarried, "NOT_CARRIED", 409;
    /// One control plane keeps no more of these.
    LimitReached, "LIMIT_REACHED", 409;
    /// The listen address is another link's on that consumer.
    ListenTaken, "LISTEN_TAKEN", 409;
    /// The body is larger than the route takes.
    TooLarge, "TOO_LARGE", 413;
    /// Too many requests from this address or token.
    RateLimited, "RATE_LIMITED", 429;
    /// Something of ours broke; the log has it.
    Internal, "INTERNAL", 500;
    /// The store refuses writes (disk full, say).
    Unavailable, "UNAVAILABLE", 503;
    /// The enrolment token was never issued.
    TokenUnknown, "TOKEN_UNKNOWN", 403;
    // R-ENR-02.
    /// The enrolment token was used.
    TokenUsed, "TOKEN_USED", 403;
    // R-ENR-02.
    /// The enrolment token has expired.
    TokenExpired, "TOKEN_EXPIRED", 403;
    /// The enrolment token was issued for another member.
    TokenOtherMember, "TOKEN_OTHER_MEMBER", 403;
    // R-ENR-02.
    /// The token was used by another host.
    TokenOtherHost, "TOKEN_OTHER_HOST", 403;
    // R-ENR-04.
    /// The host already holds a relay of this pool.
    HostHasRelay, "HOST_HAS_RELAY", 409;
    // R-POL-05.
    /// The two clocks differ by more than 60 s.
    ClockSkew, "CLOCK_SKEW", 409;
    /// The certificate signing request is malformed or unsigned.
    BadCsr, "BAD_CSR", 400;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip() {
        for &code in ApiCode::ALL {
            assert_eq!(ApiCode::parse(code.as_str()), Some(code));
            assert!((400..600).contains(&code.http_status()));
        }
    }
}
