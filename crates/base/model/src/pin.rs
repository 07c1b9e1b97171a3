//! The pin of a CA's public key, as install commands carry it.

use std::fmt;
use std::str::FromStr;

/// Characters of a faulty text that its error repeats.
const SHOWN_MAX: usize = 80;

/// SHA-256 of a CA's public key (its SubjectPublicKeyInfo in DER): what an install command pins
/// (R-ENR-01). Written `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CaPin(pub [u8; 32]);

/// Text that is not a CA pin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a CA pin (write sha256: and 64 hexadecimal digits)")]
pub struct CaPinError(String);

impl fmt::Display for CaPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex::encode(self.0))
    }
}

impl fmt::Debug for CaPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CaPin({self})")
    }
}

impl FromStr for CaPin {
    type Err = CaPinError;
    fn from_str(text: &str) -> Result<Self, CaPinError> {
        let mut pin = [0; 32];
        text.strip_prefix("sha256:")
            .and_then(|digits| hex::decode_to_slice(digits, &mut pin).ok())
            .map(|()| Self(pin))
            .ok_or_else(|| CaPinError(text.chars().take(SHOWN_MAX).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_read_as_it_is_written() {
        let pin = CaPin([0xa5; 32]);
        assert_eq!(pin.to_string().parse(), Ok(pin));
        assert_eq!(
            pin.to_string().to_uppercase().replace("SHA", "sha").parse(),
            Ok(pin)
        );
        for bad in [
            "",
            "sha256:",
            "sha256:12",
            "sha1:00",
            &"a5".repeat(32),
            &format!("{pin}00"),
        ] {
            assert_eq!(
                bad.parse::<CaPin>(),
                Err(CaPinError(bad.chars().take(80).collect())),
                "{bad}"
            );
        }
    }
}
