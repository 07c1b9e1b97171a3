//! Warnings.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Something that an admin should know or mend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Warning {
    /// Stable code, such as `RELAY_OFFLINE`.
    pub code: String,
    /// `critical`: something does not work. `warning`: it may soon not.
    pub severity: String,
    /// `pool`, `relay`, `node` or `link`.
    pub kind: String,
    /// Id of the object; empty for the pool.
    pub id: String,
    /// Its name; empty for the pool.
    pub name: String,
    /// One sentence: what is the matter.
    pub message: String,
    /// One sentence: what to do.
    pub action: String,
}
