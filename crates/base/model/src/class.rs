//! Service classes of links (R-SHD-02).

use std::fmt;
use std::str::FromStr;

/// What a link carries. `Database` and `Storage` have a reserved share of each relay and are
/// refused last (R-SHD-02). The class comes from policy, never from the asker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum ServiceClass {
    /// Anything else: HTTP APIs, remote shells, metrics.
    #[default]
    Standard,
    /// A database.
    Database,
    /// An object store or file service.
    Storage,
}

/// Text that is not a class.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a class: expected standard, database or storage")]
pub struct ClassError(String);

impl ServiceClass {
    /// Every class, in the order they are shown.
    pub const ALL: [Self; 3] = [Self::Standard, Self::Database, Self::Storage];

    /// The class's one name, in settings, JSON and metrics labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Database => "database",
            Self::Storage => "storage",
        }
    }
}

impl fmt::Display for ServiceClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ServiceClass {
    type Err = ClassError;
    fn from_str(text: &str) -> Result<Self, ClassError> {
        Self::ALL
            .into_iter()
            .find(|c| c.as_str() == text)
            .ok_or_else(|| ClassError(text.chars().take(64).collect()))
    }
}
