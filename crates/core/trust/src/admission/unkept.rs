//! What is in force while the disk refuses the next value: what both values allow.

use super::RelayAdmission;
use std::sync::Arc;

impl RelayAdmission {
    /// The value that is in force after `next` could not be written: it allows what this value and
    /// `next` both allow. What `next` takes away is gone at once (R-REV-01); what it gives waits for
    /// the disk, since a head that is in force and forgotten would let an older policy in (R-POL-04).
    /// Head, lease and bounds stay this value's, and with them what is acknowledged.
    ///
    /// A value that was unkept before is replaced: `next` was made from it. Nothing older than `next`
    /// is applied from here on.
    #[must_use]
    pub fn with_unkept(&self, next: Self) -> Self {
        let unkept = Arc::new(Self { unkept: None, ..next });
        Self {
            unkept: Some(unkept),
            ..self.clone()
        }
    }

    /// The newest value that was accepted, whether it could be written or not: the one to be written.
    #[must_use]
    pub fn newest(&self) -> &Self {
        self.unkept.as_deref().unwrap_or(self)
    }

    /// Whether the newest value is the one in force.
    #[must_use]
    pub const fn is_kept(&self) -> bool {
        self.unkept.is_none()
    }
}
