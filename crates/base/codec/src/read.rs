//! Reading a frame from bytes that a peer sent.

use crate::VARINT_BYTES_MAX;

/// Why bytes are not what their reader expected. All of these are the peer's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The bytes end before the value does.
    #[error("the bytes end early: {needed} needed, {left} left")]
    Truncated {
        /// Bytes that the value takes.
        needed: usize,
        /// Bytes that are there.
        left: usize,
    },
    /// A length prefix above what the field allows.
    #[error("a field of {length} bytes, at most {max} allowed")]
    TooLong {
        /// The length that the prefix names.
        length: u64,
        /// The most that the field allows.
        max: usize,
    },
    /// A varint longer than 64 bits, or longer than its value needs.
    #[error("a variable-length integer that is not in its shortest form")]
    Varint,
    /// A boolean other than 0 and 1.
    #[error("a boolean of value {0}")]
    Bool(u8),
    /// Text that is not UTF-8.
    #[error("text that is not UTF-8")]
    Utf8,
    /// Bytes after the last field.
    #[error("{0} bytes after the last field")]
    Trailing(usize),
}

/// A cursor over the bytes of one frame.
///
/// Each method takes its value from the front or fails and leaves the reader as it was. End with
/// [`finish`](Self::finish), so that bytes nobody read are a fault and not a hiding place.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the front of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes }
    }

    /// Bytes not yet read.
    #[must_use]
    pub const fn remaining(&self) -> usize {
        self.left.len()
    }

    /// Whether all bytes are read.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// Ends reading.
    ///
    /// # Errors
    /// Bytes are left over.
    pub const fn finish(self) -> Result<(), ReadError> {
        match self.left.len() {
            0 => Ok(()),
            left => Err(ReadError::Trailing(left)),
        }
    }

    /// Everything that is left, as the last field of a frame.
    #[must_use]
    pub const fn rest(self) -> &'a [u8] {
        self.left
    }

    /// Exactly `length` bytes.
    ///
    /// # Errors
    /// Fewer are left.
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], ReadError> {
        let Some((taken, left)) = self.left.split_at_checked(length) else {
            return Err(ReadError::Truncated {
                needed: length,
                left: self.left.len(),
            });
        };
        self.left = left;
        Ok(taken)
    }

    /// Exactly `N` bytes as an array.
    ///
    /// # Errors
    /// Fewer are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], ReadError> {
        let Some((taken, left)) = self.left.split_first_chunk::<N>() else {
            return Err(ReadError::Truncated {
                needed: N,
                left: self.left.len(),
            });
        };
        self.left = left;
        Ok(*taken)
    }

    /// One byte.
    ///
    /// # Errors
    /// None is left.
    pub fn u8(&mut self) -> Result<u8, ReadError> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    /// Two bytes, big-endian.
    ///
    /// # Errors
    /// Fewer are left.
    pub fn u16(&mut self) -> Result<u16, ReadError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    /// Four bytes, big-endian.
    ///
    /// # Errors
    /// Fewer are left.
    pub fn u32(&mut self) -> Result<u32, ReadError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// Eight bytes, big-endian.
    ///
    /// # Errors
    /// Fewer are left.
    pub fn u64(&mut self) -> Result<u64, ReadError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// Eight bytes, big-endian, two's complement.
    ///
    /// # Errors
    /// Fewer are left.
    pub fn i64(&mut self) -> Result<i64, ReadError> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    /// One byte, 0 or 1.
    ///
    /// # Errors
    /// None is left, or another value.
    pub fn bool(&mut self) -> Result<bool, ReadError> {
        let before = self.left;
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => {
                self.left = before;
                Err(ReadError::Bool(other))
            }
        }
    }

    /// An integer of 1 to 10 bytes: groups of seven bits, least first, the top bit says that more
    /// follow.
    ///
    /// # Errors
    /// The bytes end early, or the integer is longer than 64 bits or than its value needs.
    pub fn varint(&mut self) -> Result<u64, ReadError> {
        let mut value = 0u64;
        for (index, &byte) in self.left.iter().take(VARINT_BYTES_MAX).enumerate() {
            let group = u64::from(byte & 0x7f);
            let shifted = group << (7 * index);
            if (shifted >> (7 * index)) != group {
                return Err(ReadError::Varint);
            }
            value |= shifted;
            if byte & 0x80 == 0 {
                if byte == 0 && index > 0 {
                    return Err(ReadError::Varint);
                }
                self.left = self.left.get(index + 1..).unwrap_or_default();
                return Ok(value);
            }
        }
        if self.left.len() >= VARINT_BYTES_MAX {
            return Err(ReadError::Varint);
        }
        Err(ReadError::Truncated {
            needed: self.left.len() + 1,
            left: self.left.len(),
        })
    }

    /// A varint length and that many bytes, at most `max`.
    ///
    /// # Errors
    /// The length is above `max`, or the bytes end early.
    pub fn bytes(&mut self, max: usize) -> Result<&'a [u8], ReadError> {
        let before = self.left;
        let read = self.varint().and_then(|length| match usize::try_from(length) {
            Ok(fits) if fits <= max => self.take(fits),
            Ok(_) | Err(_) => Err(ReadError::TooLong { length, max }),
        });
        if read.is_err() {
            self.left = before;
        }
        read
    }

    /// A varint length and that many bytes of UTF-8, at most `max` bytes.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes), or not UTF-8.
    pub fn text(&mut self, max: usize) -> Result<&'a str, ReadError> {
        let before = self.left;
        std::str::from_utf8(self.bytes(max)?).map_err(|_| {
            self.left = before;
            ReadError::Utf8
        })
    }
}
