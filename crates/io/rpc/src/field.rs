//! Checks of single protobuf fields; a fault names its place.

use bytes::Bytes;
use fairlead_model::{ServiceClass, WallTime};
use fairlead_trust::{Keyring, VerifyingKey};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::str::FromStr;

/// A message that says nothing usable, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are no protobuf message of this kind.
    #[error("not a {message}: {reason}")]
    Protobuf {
        /// The message's name.
        message: &'static str,
        /// What the parser says.
        reason: String,
    },
    /// Another kind of document was verified than is to be parsed.
    #[error("a {found} where a {message} is due")]
    OtherDocument {
        /// The message's name.
        message: &'static str,
        /// The verified payload type.
        found: &'static str,
    },
    /// A field has a fault.
    #[error("{field}: {fault}")]
    Field {
        /// Its path, such as `routes[2].route_id`.
        field: String,
        /// What is wrong.
        fault: Fault,
    },
}

/// What is wrong with a field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It is not there.
    #[error("it is missing")]
    Missing,
    /// Its length is fixed.
    #[error("it has {given} bytes, not {due}")]
    Length {
        /// The length given.
        given: usize,
        /// The length due.
        due: usize,
    },
    /// It stands twice where each must be another.
    #[error("it is given twice")]
    Twice,
    /// Its text or number says nothing usable.
    #[error("{0}")]
    Value(String),
    /// It refers to something that the message does not hold.
    #[error("it names nothing that this message holds")]
    Dangling,
}

/// The place of a field, built as the message is walked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    parent: Option<&'a Place<'a>>,
    name: &'static str,
    index: Option<usize>,
}

/// An id of the model that travels as 16 bytes.
pub(crate) trait WireId: Sized + Copy + Ord {
    fn from_wire(bytes: &[u8]) -> Option<Self>;
    fn to_wire(self) -> Bytes;
}

macro_rules! wire_ids {
    ($($id:ty),*) => {$(
        impl WireId for $id {
            fn from_wire(bytes: &[u8]) -> Option<Self> {
                Self::from_slice(bytes)
            }
            fn to_wire(self) -> Bytes {
                Bytes::copy_from_slice(&self.to_bytes())
            }
        }
    )*};
}
wire_ids!(
    fairlead_model::RelayId,
    fairlead_model::NodeId,
    fairlead_model::EndpointId,
    fairlead_model::RouteId
);

const ID_LEN: usize = 16;
/// 9999-12-31T23:59:59.999Z: later times cannot be written as RFC 3339.
const WALL_MS_MAX: i64 = 253_402_300_799_999;

impl<'a> Place<'a> {
    pub(crate) const fn root(name: &'static str) -> Self {
        Place {
            parent: None,
            name,
            index: None,
        }
    }

    pub(crate) const fn item(name: &'static str, index: usize) -> Self {
        Place {
            parent: None,
            name,
            index: Some(index),
        }
    }

    pub(crate) const fn field(&'a self, name: &'static str) -> Self {
        Place {
            parent: Some(self),
            name,
            index: None,
        }
    }

    pub(crate) const fn field_item(&'a self, name: &'static str, index: usize) -> Self {
        Place {
            parent: Some(self),
            name,
            index: Some(index),
        }
    }

    fn path(&self) -> String {
        let mut path = self.parent.map_or_else(String::new, |p| format!("{}.", p.path()));
        path.push_str(self.name);
        if let Some(index) = self.index {
            path.push_str(&format!("[{index}]"));
        }
        path
    }

    pub(crate) fn fault(&self, fault: Fault) -> DecodeError {
        DecodeError::Field {
            field: self.path(),
            fault,
        }
    }

    pub(crate) fn value(&self, reason: impl Display) -> DecodeError {
        self.fault(Fault::Value(reason.to_string()))
    }

    pub(crate) fn id<T: WireId>(&self, bytes: &[u8]) -> Result<T, DecodeError> {
        if bytes.is_empty() {
            return Err(self.fault(Fault::Missing));
        }
        T::from_wire(bytes).ok_or_else(|| {
            self.fault(Fault::Length {
                given: bytes.len(),
                due: ID_LEN,
            })
        })
    }

    pub(crate) fn digest(&self, bytes: &[u8]) -> Result<[u8; 32], DecodeError> {
        bytes.try_into().map_err(|_| {
            self.fault(Fault::Length {
                given: bytes.len(),
                due: 32,
            })
        })
    }

    pub(crate) fn text<T: FromStr<Err: Display>>(&self, text: &str) -> Result<T, DecodeError> {
        if text.is_empty() {
            return Err(self.fault(Fault::Missing));
        }
        text.parse().map_err(|e| self.value(e))
    }

    /// A time that can be written: from 1970 to 9999. None is signed outside.
    pub(crate) fn wall(&self, ms: i64) -> Result<WallTime, DecodeError> {
        if (0..=WALL_MS_MAX).contains(&ms) {
            Ok(WallTime(ms))
        } else {
            Err(self.value(format_args!("{ms} ms is not a time between 1970 and 9999")))
        }
    }

    pub(crate) fn range(&self, value: u32, least: u32, most: u32) -> Result<u32, DecodeError> {
        if (least..=most).contains(&value) {
            Ok(value)
        } else {
            Err(self.value(format_args!("{value} is not between {least} and {most}")))
        }
    }
}

/// Ids of a list, none twice, in the list's order.
pub(crate) fn ids<T: WireId>(
    list: &[Bytes],
    place: impl Fn(usize) -> Place<'static>,
) -> Result<Vec<T>, DecodeError> {
    let mut seen = BTreeSet::new();
    list.iter()
        .enumerate()
        .map(|(index, bytes)| unique(&mut seen, &place(index), bytes))
        .collect()
}

/// One more id of a list in which none stands twice.
pub(crate) fn unique<T: WireId>(
    seen: &mut BTreeSet<T>,
    place: &Place<'_>,
    bytes: &[u8],
) -> Result<T, DecodeError> {
    let id = place.id(bytes)?;
    if seen.insert(id) {
        Ok(id)
    } else {
        Err(place.fault(Fault::Twice))
    }
}

pub(crate) fn keyring(list: &[Bytes], name: &'static str) -> Result<Keyring, DecodeError> {
    let keys = list
        .iter()
        .enumerate()
        .map(|(index, bytes)| {
            let place = Place::item(name, index);
            VerifyingKey::from_bytes(bytes).map_err(|e| place.value(e))
        })
        .collect::<Result<Vec<_>, _>>()?;
    Keyring::new(keys).map_err(|e| Place::root(name).value(e))
}

pub(crate) fn keyring_to_wire(ring: &Keyring) -> Vec<Bytes> {
    ring.keys()
        .map(|k| Bytes::copy_from_slice(&k.to_bytes()))
        .collect()
}

pub(crate) fn class(place: &Place<'_>, number: i32) -> Result<ServiceClass, DecodeError> {
    use crate::pb::ServiceClass as Wire;
    match Wire::try_from(number) {
        Ok(Wire::Standard) => Ok(ServiceClass::Standard),
        Ok(Wire::Database) => Ok(ServiceClass::Database),
        Ok(Wire::Storage) => Ok(ServiceClass::Storage),
        Ok(Wire::Unspecified) => Err(place.fault(Fault::Missing)),
        Err(_) => Err(place.value(format_args!("{number} is not a class"))),
    }
}

pub(crate) fn class_to_wire(class: ServiceClass) -> i32 {
    use crate::pb::ServiceClass as Wire;
    i32::from(match class {
        ServiceClass::Standard => Wire::Standard,
        ServiceClass::Database => Wire::Database,
        ServiceClass::Storage => Wire::Storage,
    })
}
