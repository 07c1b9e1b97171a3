//! Sessions of browsers: an admin token exchanged for a cookie, so that the token itself is in no
//! page, no storage and no URL. They live in memory: a control plane that starts again knows none,
//! and a browser logs in again.

use fairlead_host::rng;
use fairlead_model::TokenId;
use http::HeaderMap;
use http::header::COOKIE;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The cookie's name. By its prefix browsers take it only from us: over TLS, for this host alone,
/// for every path.
pub(crate) const COOKIE_NAME: &str = "__Host-fairlead";
/// What goes with the cookie, whatever its value: no script reads it, no other site's page sends it.
const COOKIE_ATTRIBUTES: &str = "Path=/; Secure; HttpOnly; SameSite=Strict";
/// A session ends when nothing was asked and no page was open for this long.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(30 * 60);
/// A session ends this long after its login, whatever it does: a working day and its overtime.
pub(crate) const AGE_MAX: Duration = Duration::from_secs(12 * 3600);
/// Sessions of one token; the one that was used longest ago makes room. A token is a team's at most.
pub(crate) const PER_TOKEN_MAX: usize = 16;
/// Sessions at once, some 100 bytes each. Only holders of tokens make them.
pub(crate) const SESSIONS_MAX: usize = 1_024;

/// The digest of a session's secret: all that is kept of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionKey([u8; 32]);

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey")
    }
}

impl SessionKey {
    /// The session that a request's cookie names. Two cookies of the name are none: one of them is
    /// somebody else's.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let texts = headers
            .get_all(COOKIE)
            .iter()
            .filter_map(|value| value.to_str().ok());
        let mut values = texts
            .flat_map(|text| text.split(';'))
            .filter_map(|pair| pair.trim().split_once('='))
            .filter(|(name, _)| *name == COOKIE_NAME)
            .map(|(_, value)| value);
        match (values.next(), values.next()) {
            (Some(value), None) if !value.is_empty() => Some(Self::digest(value)),
            (Some(_) | None, _) => None,
        }
    }

    fn digest(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }
}

#[derive(Debug)]
struct Session {
    token: TokenId,
    opened: Instant,
    used: Instant,
}

impl Session {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.used) >= IDLE_MAX
            || now.saturating_duration_since(self.opened) >= AGE_MAX
    }
}

/// Every session.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<BTreeMap<SessionKey, Session>>);

impl Sessions {
    /// Opens a session of a token; the cookie that carries it. Its secret is new each time, so that
    /// a cookie which somebody planted before the login opens nothing.
    pub(crate) fn open(&self, token: TokenId, now: Instant) -> String {
        let secret = rng::token();
        let mut sessions = self.lock();
        sessions.retain(|_, session| !session.is_over(now));
        let own = sessions.values().filter(|session| session.token == token).count();
        if own >= PER_TOKEN_MAX {
            make_room(&mut sessions, |session| session.token == token);
        } else if sessions.len() >= SESSIONS_MAX {
            make_room(&mut sessions, |_| true);
        }
        let session = Session {
            token,
            opened: now,
            used: now,
        };
        sessions.insert(SessionKey::digest(secret.expose()), session);
        format!("{COOKIE_NAME}={}; {COOKIE_ATTRIBUTES}", secret.expose())
    }

    /// The token of a session that goes on, which counts as used.
    pub(crate) fn token(&self, key: SessionKey, now: Instant) -> Option<TokenId> {
        let mut sessions = self.lock();
        let session = sessions.get_mut(&key)?;
        if session.is_over(now) {
            sessions.remove(&key);
            return None;
        }
        session.used = now;
        Some(session.token)
    }

    /// Ends a session; whether there was one.
    pub(crate) fn close(&self, key: SessionKey) -> bool {
        self.lock().remove(&key).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionKey, Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The cookie that makes a browser forget its session.
pub(crate) fn no_cookie() -> String {
    format!("{COOKIE_NAME}=; {COOKIE_ATTRIBUTES}; Max-Age=0")
}

fn make_room(sessions: &mut BTreeMap<SessionKey, Session>, among: impl Fn(&Session) -> bool) {
    let candidates = sessions.iter().filter(|(_, session)| among(session));
    let oldest = candidates.min_by_key(|(_, session)| session.used);
    if let Some(key) = oldest.map(|(key, _)| *key) {
        sessions.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn key(cookie: &str) -> SessionKey {
        let value = cookie.split_once('=').unwrap().1.split(';').next().unwrap();
        SessionKey::digest(value)
    }

    fn headers(cookies: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for cookie in cookies {
            headers.append(COOKIE, HeaderValue::from_str(cookie).unwrap());
        }
        headers
    }

    #[test]
    fn sessions_end_by_idleness_by_age_and_by_logout() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let token: TokenId = rng::new_id();
        let idle = key(&sessions.open(token, start));
        assert_eq!(sessions.token(idle, start + IDLE_MAX / 2), Some(token));
        assert_eq!(
            sessions.token(idle, start + IDLE_MAX),
            Some(token),
            "it was used meanwhile"
        );
        assert_eq!(sessions.token(idle, start + IDLE_MAX * 2), None);
        let busy = key(&sessions.open(token, start));
        let mut now = start;
        while now < start + AGE_MAX {
            assert_eq!(sessions.token(busy, now), Some(token));
            now += IDLE_MAX / 2;
        }
        assert_eq!(sessions.token(busy, now), None, "no use makes it live for ever");
        let ended = key(&sessions.open(token, start));
        assert!(sessions.close(ended) && !sessions.close(ended));
        assert_eq!(sessions.token(ended, start), None);
    }

    #[test]
    fn they_are_bounded_and_those_of_one_token_push_out_their_own() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let other: TokenId = rng::new_id();
        let kept = key(&sessions.open(other, start));
        let token: TokenId = rng::new_id();
        let keys: Vec<SessionKey> = (0..=PER_TOKEN_MAX as u32)
            .map(|n| key(&sessions.open(token, start + Duration::from_secs(n.into()))))
            .collect();
        let now = start + Duration::from_secs(60);
        assert_eq!(sessions.token(keys[0], now), None);
        assert!(
            keys[1..]
                .iter()
                .all(|key| sessions.token(*key, now) == Some(token))
        );
        assert_eq!(sessions.token(kept, now), Some(other));
        for _ in 0..2 * SESSIONS_MAX {
            sessions.open(rng::new_id(), now);
        }
        assert_eq!(sessions.lock().len(), SESSIONS_MAX);
    }

    #[test]
    fn one_cookie_of_our_name_is_read_and_two_are_none() {
        let wanted = Some(SessionKey::digest("abc"));
        for cookies in [
            &["__Host-fairlead=abc"][..],
            &["a=b; __Host-fairlead=abc;c=d"],
            &["a=b", "__Host-fairlead=abc"],
        ] {
            assert_eq!(SessionKey::of(&headers(cookies)), wanted, "{cookies:?}");
        }
        for cookies in [
            &[][..],
            &["fairlead=abc"],
            &["__host-fairlead=abc"],
            &["__Host-fairlead="],
            &["__Host-fairlead=abc; __Host-fairlead=abd"],
            &["__Host-fairlead=abc", "__Host-fairlead=abc"],
        ] {
            assert_eq!(SessionKey::of(&headers(cookies)), None, "{cookies:?}");
        }
    }
}
