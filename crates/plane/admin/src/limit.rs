//! How many failed logins an address may make.
//!
//! A token bucket per address that only failures drain: a limiter that charges every request
//! (governor and its like) would slow the console down, or be too wide to slow a guesser.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Failures that an address may make in a row: an admin with an old token in a script and
/// another in a profile, several times over.
pub(crate) const FAILURES_MAX: u32 = 20;
/// One more failure is allowed after each of these: 28,800 guesses a day of 2^256.
pub(crate) const REFILL: Duration = Duration::from_secs(3);
/// Addresses that are remembered.
const ADDRESSES_MAX: usize = 4_096;
/// An address is whole again, and forgotten, this long after its last failure at the latest.
const WHOLE_AFTER: Duration = REFILL.saturating_mul(FAILURES_MAX);

/// Failures of all addresses, each as the instant when the last of them will be forgiven.
#[derive(Debug, Default)]
pub(crate) struct FailureLimit {
    forgiven_at: BTreeMap<IpAddr, Instant>,
}

impl FailureLimit {
    /// How long `address` must wait before its next try; `None` if it may try.
    pub(crate) fn wait(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let forgiven_at = self.forgiven_at.get(&network(address))?;
        // One try needs room for one failure.
        let level = forgiven_at.saturating_duration_since(now) + REFILL;
        level.checked_sub(WHOLE_AFTER).filter(|wait| !wait.is_zero())
    }

    /// Counts a failure of `address`.
    pub(crate) fn failed(&mut self, address: IpAddr, now: Instant) {
        let address = network(address);
        if self.forgiven_at.len() >= ADDRESSES_MAX && !self.forgiven_at.contains_key(&address) {
            self.forget(now);
        }
        let at = self.forgiven_at.entry(address).or_insert(now);
        *at = ((*at).max(now) + REFILL).min(now + WHOLE_AFTER);
    }

    /// Makes room: those that are whole, and if that is not enough the eighth that is whole first,
    /// so that a flood of addresses does not search the whole map at each failure.
    fn forget(&mut self, now: Instant) {
        self.forgiven_at.retain(|_, at| *at > now);
        if self.forgiven_at.len() >= ADDRESSES_MAX {
            let mut instants: Vec<Instant> = self.forgiven_at.values().copied().collect();
            let cut = *instants.select_nth_unstable(ADDRESSES_MAX / 8).1;
            self.forgiven_at.retain(|_, at| *at > cut);
        }
    }
}

/// What counts as one address: an IPv6 host has its whole /64 to choose from.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) => IpAddr::V4(v4),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn failures_are_bounded_and_forgiven_one_by_one() {
        let (mut limit, start) = (FailureLimit::default(), Instant::now());
        for _ in 0..FAILURES_MAX {
            assert_eq!(limit.wait(a("192.0.2.1"), start), None);
            limit.failed(a("192.0.2.1"), start);
        }
        assert_eq!(limit.wait(a("192.0.2.1"), start), Some(REFILL));
        assert_eq!(limit.wait(a("192.0.2.2"), start), None, "another address");
        assert_eq!(
            limit.wait(a("::ffff:192.0.2.1"), start),
            Some(REFILL),
            "the same address"
        );
        let later = start + REFILL;
        assert_eq!(limit.wait(a("192.0.2.1"), later), None);
        limit.failed(a("192.0.2.1"), later);
        assert_eq!(limit.wait(a("192.0.2.1"), later), Some(REFILL));
        // Never longer than one refill, however many were tried meanwhile.
        for _ in 0..1_000 {
            limit.failed(a("192.0.2.1"), later);
        }
        assert_eq!(limit.wait(a("192.0.2.1"), later), Some(REFILL));
    }

    #[test]
    fn ipv6_counts_by_network_and_memory_is_bounded() {
        let (mut limit, now) = (FailureLimit::default(), Instant::now());
        for host in 0..u128::from(FAILURES_MAX) {
            let address = Ipv6Addr::from_bits((0x2001_0db8 << 96) | host);
            limit.failed(IpAddr::V6(address), now);
        }
        assert!(limit.wait(a("2001:db8::ffff"), now).is_some());
        assert!(limit.wait(a("2001:db8:0:1::"), now).is_none());
        for n in 0..20_000_u32 {
            limit.failed(IpAddr::V4(n.into()), now);
        }
        assert!(limit.forgiven_at.len() <= ADDRESSES_MAX);
        // The one that is blocked is kept over those that failed once.
        assert!(limit.wait(a("2001:db8::ffff"), now).is_some());
    }
}
