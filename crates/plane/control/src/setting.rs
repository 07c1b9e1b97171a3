//! Settings of the pool: one table with each one's default, range and meaning.

use crate::record::SettingRecord;
use crate::state::State;
use fairlead_model::duration;
use fairlead_trust::RelaySettings;
use std::time::Duration;

/// What a setting's value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A duration within bounds, inclusive.
    Duration {
        /// Where none is set.
        default: Duration,
        /// Least.
        min: Duration,
        /// Greatest.
        max: Duration,
    },
    /// A count within bounds, inclusive.
    Count {
        /// Where none is set.
        default: u64,
        /// Least.
        min: u64,
        /// Greatest.
        max: u64,
    },
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Key.
    pub key: &'static str,
    /// Type, default and range.
    pub kind: Kind,
    /// What it means.
    pub meaning: &'static str,
    /// The requirement or measurement it comes from; for readers of the code and of the API, not on the reference page.
    pub source: &'static str,
}

const fn hours(n: u64) -> Duration {
    Duration::from_secs(n * 3600)
}

/// Every setting.
pub const TABLE: &[Setting] = &[
    Setting {
        key: "policy.lease",
        kind: Kind::Duration {
            default: hours(72),
            min: hours(1),
            max: hours(168),
        },
        meaning: "How long a relay admits new tunnels without hearing from the control plane.",
        source: "R-POL-01",
    },
    Setting {
        key: "grant.lifetime",
        kind: Kind::Duration {
            default: hours(4),
            min: hours(1),
            max: hours(224),
        },
        meaning: "How long a newly issued grant lasts at least; grants used at relays last at least 4/3 of the \
                  lease.",
        source: "R-POL-02",
    },
    Setting {
        key: "placement.spread",
        kind: Kind::Count {
            default: 2,
            min: 1,
            max: 16,
        },
        meaning: "How many ready relays receive a link's new connections.",
        source: "R-PLC-02",
    },
    Setting {
        key: "enrolment.token-lifetime",
        kind: Kind::Duration {
            default: hours(24),
            min: Duration::from_secs(300),
            max: hours(168),
        },
        meaning: "How long a one-shot enrolment token may be used.",
        source: "R-ENR-02",
    },
    Setting {
        key: "relay.legs-per-node",
        kind: Kind::Count {
            default: RelaySettings::DEFAULT.legs_per_node_max as u64,
            min: 1,
            max: 1_048_576,
        },
        meaning: "Most legs of one node at a relay; each tunnel has two, and up to 512 KiB while it moves bytes.",
        source: "bounds after authentication",
    },
    Setting {
        key: "relay.pending-opens-per-node",
        kind: Kind::Count {
            default: RelaySettings::DEFAULT.pending_opens_per_node_max as u64,
            min: 1,
            max: 65_536,
        },
        meaning: "Most opens of one node that await their answer at a relay.",
        source: "bounds after authentication",
    },
    Setting {
        key: "relay.handshakes-per-address",
        kind: Kind::Count {
            default: RelaySettings::DEFAULT.handshakes_per_address_max as u64,
            min: 1,
            max: 65_536,
        },
        meaning: "Most unfinished handshakes of one address at a relay; nodes behind one NAT share it.",
        source: "F-10",
    },
];

impl Setting {
    /// The row of a key.
    #[must_use]
    pub fn find(key: &str) -> Option<&'static Self> {
        TABLE.iter().find(|s| s.key == key)
    }

    /// The default, in the form that it is set.
    #[must_use]
    pub fn default_text(&self) -> String {
        match self.kind {
            Kind::Duration { default, .. } => duration::format(default),
            Kind::Count { default, .. } => default.to_string(),
        }
    }

    /// What is allowed.
    #[must_use]
    pub fn range_text(&self) -> String {
        match self.kind {
            Kind::Duration { min, max, .. } => {
                format!("{} to {}", duration::format(min), duration::format(max))
            }
            Kind::Count { min, max, .. } => format!("{min} to {max}"),
        }
    }

    /// The value in its one form.
    ///
    /// # Errors
    /// What is wrong and what is allowed.
    pub fn check(&self, text: &str) -> Result<String, String> {
        let outside = || format!("`{text}` is out of range: allowed is {}", self.range_text());
        match self.kind {
            Kind::Duration { min, max, .. } => {
                let value = duration::parse(text).map_err(|e| e.to_string())?;
                if value < min || value > max {
                    return Err(outside());
                }
                Ok(duration::format(value))
            }
            Kind::Count { min, max, .. } => {
                let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
                let value: u64 =
                    text.parse().ok().filter(|_| digits).ok_or_else(|| {
                        format!("`{text}` is not a number: allowed is {}", self.range_text())
                    })?;
                if value < min || value > max {
                    return Err(outside());
                }
                Ok(value.to_string())
            }
        }
    }
}

/// The settings in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) lease: Duration,
    pub(crate) grant_lifetime: Duration,
    pub(crate) spread: usize,
    pub(crate) token_lifetime: Duration,
    pub(crate) relay: RelaySettings,
}

impl Settings {
    pub(crate) fn of(state: &State) -> Self {
        Self {
            lease: duration_of(state, "policy.lease"),
            grant_lifetime: duration_of(state, "grant.lifetime"),
            spread: usize::try_from(count_of(state, "placement.spread")).unwrap_or(usize::MAX),
            token_lifetime: duration_of(state, "enrolment.token-lifetime"),
            relay: RelaySettings {
                legs_per_node_max: bound_of(state, "relay.legs-per-node"),
                pending_opens_per_node_max: bound_of(state, "relay.pending-opens-per-node"),
                handshakes_per_address_max: bound_of(state, "relay.handshakes-per-address"),
                ..RelaySettings::DEFAULT
            },
        }
    }
}

fn stored<'a>(state: &'a State, key: &str) -> Option<&'a SettingRecord> {
    state.settings.get(key).map(|k| &k.record)
}

/// The stored value; the default where there is none, or where an older range allowed what this one
/// does not.
fn duration_of(state: &State, key: &str) -> Duration {
    let row = Setting::find(key);
    let set = stored(state, key).and_then(|s| duration::parse(&s.value).ok());
    match row.map(|r| r.kind) {
        Some(Kind::Duration { default, min, max }) => set.map_or(default, |d| d.clamp(min, max)),
        Some(Kind::Count { .. }) | None => Duration::ZERO,
    }
}

fn count_of(state: &State, key: &str) -> u64 {
    let row = Setting::find(key);
    let set = stored(state, key).and_then(|s| s.value.parse::<u64>().ok());
    match row.map(|r| r.kind) {
        Some(Kind::Count { default, min, max }) => set.map_or(default, |n| n.clamp(min, max)),
        Some(Kind::Duration { .. }) | None => 0,
    }
}

fn bound_of(state: &State, key: &str) -> u32 {
    u32::try_from(count_of(state, key)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// R-POL-01, R-POL-02: defaults and ranges.
    #[test]
    fn the_table_is_sound() {
        let keys: BTreeSet<&str> = TABLE.iter().map(|s| s.key).collect();
        assert_eq!(keys.len(), TABLE.len());
        for row in TABLE {
            assert_eq!(
                row.check(&row.default_text()),
                Ok(row.default_text()),
                "{}",
                row.key
            );
        }
        let settings = Settings::of(&State::default());
        assert_eq!(settings.lease, hours(72));
        assert_eq!(settings.grant_lifetime, hours(4));
        assert_eq!(settings.spread, 2);
        assert_eq!(settings.relay, RelaySettings::DEFAULT);
        let lease = Setting::find("policy.lease").unwrap();
        assert_eq!(lease.check("1h"), Ok("1h".to_owned()));
        assert_eq!(lease.check("168h"), Ok("168h".to_owned()));
        assert_eq!(lease.range_text(), "1h to 168h");
        for (bad, why) in [
            ("59m", "out of range"),
            ("169h", "out of range"),
            ("72", "unit is missing"),
            ("", "empty"),
        ] {
            assert!(lease.check(bad).unwrap_err().contains(why), "{bad}");
        }
        let spread = Setting::find("placement.spread").unwrap();
        for (bad, why) in [
            ("0", "out of range"),
            ("17", "out of range"),
            ("+2", "not a number"),
            ("two", "not a number"),
        ] {
            assert!(spread.check(bad).unwrap_err().contains(why), "{bad}");
        }
    }
}
