//! Writing a frame for a peer.

use bytes::BufMut;

/// Why a frame cannot be written. Both are the caller's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The frame would grow above its bound.
    #[error("the frame has room for {left} more bytes, {needed} needed")]
    Full {
        /// Bytes that the value takes.
        needed: usize,
        /// Bytes that the frame may still grow by.
        left: usize,
    },
    /// A field above what its reader allows.
    #[error("a field of {length} bytes, at most {max} allowed")]
    TooLong {
        /// The field's length.
        length: usize,
        /// The most that its reader allows.
        max: usize,
    },
}

/// Appends the fields of one frame to a buffer (`Vec<u8>`, `BytesMut`), up to a bound.
///
/// A method that fails has written nothing.
#[derive(Debug)]
pub struct Writer<'a, B: BufMut> {
    out: &'a mut B,
    left: usize,
}

impl<'a, B: BufMut> Writer<'a, B> {
    /// Appends to `out`, at most `max` bytes.
    pub fn new(out: &'a mut B, max: usize) -> Self {
        let left = max.min(out.remaining_mut());
        Self { out, left }
    }

    /// Bytes that may still be written.
    #[must_use]
    pub const fn left(&self) -> usize {
        self.left
    }

    /// Bytes as they are, without a length.
    ///
    /// # Errors
    /// The frame is full.
    pub fn raw(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.claim(bytes.len())?;
        self.out.put_slice(bytes);
        Ok(())
    }

    /// One byte.
    ///
    /// # Errors
    /// The frame is full.
    pub fn u8(&mut self, value: u8) -> Result<(), WriteError> {
        self.raw(&value.to_be_bytes())
    }

    /// Two bytes, big-endian.
    ///
    /// # Errors
    /// The frame is full.
    pub fn u16(&mut self, value: u16) -> Result<(), WriteError> {
        self.raw(&value.to_be_bytes())
    }

    /// Four bytes, big-endian.
    ///
    /// # Errors
    /// The frame is full.
    pub fn u32(&mut self, value: u32) -> Result<(), WriteError> {
        self.raw(&value.to_be_bytes())
    }

    /// Eight bytes, big-endian.
    ///
    /// # Errors
    /// The frame is full.
    pub fn u64(&mut self, value: u64) -> Result<(), WriteError> {
        self.raw(&value.to_be_bytes())
    }

    /// Eight bytes, big-endian, two's complement.
    ///
    /// # Errors
    /// The frame is full.
    pub fn i64(&mut self, value: i64) -> Result<(), WriteError> {
        self.raw(&value.to_be_bytes())
    }

    /// One byte, 0 or 1.
    ///
    /// # Errors
    /// The frame is full.
    pub fn bool(&mut self, value: bool) -> Result<(), WriteError> {
        self.u8(u8::from(value))
    }

    /// An integer in its shortest form, 1 to 10 bytes.
    ///
    /// # Errors
    /// The frame is full.
    pub fn varint(&mut self, value: u64) -> Result<(), WriteError> {
        self.claim(varint_len(value))?;
        self.put_varint(value);
        Ok(())
    }

    /// A varint length and the bytes; `max` is what the field's reader allows.
    ///
    /// # Errors
    /// More than `max` bytes, or the frame is full.
    pub fn bytes(&mut self, bytes: &[u8], max: usize) -> Result<(), WriteError> {
        if bytes.len() > max {
            return Err(WriteError::TooLong {
                length: bytes.len(),
                max,
            });
        }
        // Lossless: usize is at most 64 bits on every target that Rust has.
        let length = bytes.len() as u64;
        self.claim(varint_len(length).saturating_add(bytes.len()))?;
        self.put_varint(length);
        self.out.put_slice(bytes);
        Ok(())
    }

    /// A varint length and the text's bytes; `max` (bytes) is what the field's reader allows.
    ///
    /// # Errors
    /// More than `max` bytes, or the frame is full.
    pub fn text(&mut self, text: &str, max: usize) -> Result<(), WriteError> {
        self.bytes(text.as_bytes(), max)
    }

    fn claim(&mut self, needed: usize) -> Result<(), WriteError> {
        match self.left.checked_sub(needed) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(WriteError::Full {
                needed,
                left: self.left,
            }),
        }
    }

    fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.out.put_u8((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.out.put_u8(value as u8);
    }
}

/// How many bytes [`Writer::varint`] takes for `value`.
#[must_use]
pub const fn varint_len(value: u64) -> usize {
    // 0 still takes one group of seven bits.
    let bits = 64 - (value | 1).leading_zeros();
    bits.div_ceil(7) as usize
}
