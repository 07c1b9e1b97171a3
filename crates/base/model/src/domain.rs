//! Failure domains: what fails together (R-GEN-03).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// What a label of a failure domain speaks of (R-GEN-03).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DomainLabel {
    /// The physical host.
    Host,
    /// The power feed.
    Power,
    /// The firewall in front of it.
    Firewall,
    /// The network route to it.
    Route,
}

impl DomainLabel {
    const ALL: [Self; 4] = [Self::Host, Self::Power, Self::Firewall, Self::Route];

    /// The label's one name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Power => "power",
            Self::Firewall => "firewall",
            Self::Route => "route",
        }
    }
}

/// The labels of one member. Two members that share any label with the same value are one domain:
/// capacity, not availability. Operators vouch for them; written `host=h1,power=p1` or, for the
/// host alone, `h1`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FailureDomain(BTreeMap<DomainLabel, String>);

/// Text that is not a failure domain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a failure domain: {reason} (write a host label such as rack-1, or labels: \
     host=h1,power=p1,firewall=f1,route=r1)"
)]
pub struct DomainError {
    text: String,
    reason: String,
}

/// A label value's greatest length in bytes.
const VALUE_LEN_MAX: usize = 63;

impl FailureDomain {
    /// Whether the two fail together: they share a label with the same value.
    #[must_use]
    pub fn shares_with(&self, other: &Self) -> bool {
        self.0
            .iter()
            .any(|(label, value)| other.0.get(label) == Some(value))
    }

    /// The labels in a fixed order.
    pub fn labels(&self) -> impl Iterator<Item = (DomainLabel, &str)> {
        self.0.iter().map(|(label, value)| (*label, value.as_str()))
    }
}

impl fmt::Display for FailureDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (label, value) in &self.0 {
            write!(f, "{separator}{}={value}", label.as_str())?;
            separator = ",";
        }
        Ok(())
    }
}

impl FromStr for FailureDomain {
    type Err = DomainError;

    fn from_str(text: &str) -> Result<Self, DomainError> {
        let fail = |reason: &str| DomainError {
            text: text.chars().take(128).collect(),
            reason: reason.to_owned(),
        };
        let mut labels = BTreeMap::new();
        for part in text.split(',') {
            let (label, value) = part.split_once('=').unwrap_or(("host", part));
            let label = DomainLabel::ALL
                .into_iter()
                .find(|l| l.as_str() == label.trim())
                .ok_or_else(|| {
                    let label: String = label.trim().chars().take(VALUE_LEN_MAX).collect();
                    fail(&format!("the label `{label}` is unknown"))
                })?;
            let value = value.trim();
            if value.is_empty() {
                return Err(fail("a value is empty"));
            }
            if value.len() > VALUE_LEN_MAX {
                return Err(fail("a value is longer than 63 characters"));
            }
            let allowed = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':');
            if let Some(foreign) = value.chars().find(|c| !allowed(c)) {
                return Err(fail(&format!(
                    "`{value}` has the character {foreign:?}, which is none of letters, digits and -._:"
                )));
            }
            if labels.insert(label, value.to_owned()).is_some() {
                return Err(fail(&format!("the label `{}` is given twice", label.as_str())));
            }
        }
        Ok(Self(labels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn d(text: &str) -> FailureDomain {
        text.parse().unwrap()
    }

    /// R-GEN-03: sharing any label makes one domain.
    #[test]
    fn sharing_any_label_is_one_domain() {
        assert!(d("h1").shares_with(&d("host=h1,power=p1")));
        assert!(d("host=h1,power=p1").shares_with(&d("host=h2,power=p1")));
        assert!(!d("host=h1,power=p1").shares_with(&d("host=p1,power=h1")));
        assert_eq!(d("power=p1,host=h1").to_string(), "host=h1,power=p1");
        for bad in ["", "host=", "rack=a", "a,b", "host=a b"] {
            assert!(bad.parse::<FailureDomain>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let said = |text: &str| text.parse::<FailureDomain>().unwrap_err().to_string();
        assert!(said("host=a,rack=b").contains("the label `rack` is unknown"));
        assert!(said("host=a b").contains("the character ' '"));
        assert!(said("host=a,host=b").contains("`host` is given twice"));
    }
}
