//! Fields against their own encoding, and each fault by name.

use super::*;
use proptest::prelude::*;

#[derive(Debug, Clone, PartialEq)]
enum Field {
    U8(u8),
    U16(u16),
    U32(u32),
    U64(u64),
    I64(i64),
    Bool(bool),
    Varint(u64),
    Bytes(Vec<u8>),
    Text(String),
}

const FIELD_MAX: usize = 300;

fn field() -> impl Strategy<Value = Field> {
    prop_oneof![
        any::<u8>().prop_map(Field::U8),
        any::<u16>().prop_map(Field::U16),
        any::<u32>().prop_map(Field::U32),
        any::<u64>().prop_map(Field::U64),
        any::<i64>().prop_map(Field::I64),
        any::<bool>().prop_map(Field::Bool),
        (any::<u64>(), 0u32..64).prop_map(|(v, shift)| Field::Varint(v >> shift)),
        prop::collection::vec(any::<u8>(), 0..=FIELD_MAX).prop_map(Field::Bytes),
        "\\PC{0,60}".prop_map(Field::Text),
    ]
}

fn write(w: &mut Writer<'_, Vec<u8>>, f: &Field) -> Result<(), WriteError> {
    match f {
        Field::U8(v) => w.u8(*v),
        Field::U16(v) => w.u16(*v),
        Field::U32(v) => w.u32(*v),
        Field::U64(v) => w.u64(*v),
        Field::I64(v) => w.i64(*v),
        Field::Bool(v) => w.bool(*v),
        Field::Varint(v) => w.varint(*v),
        Field::Bytes(v) => w.bytes(v, FIELD_MAX),
        Field::Text(v) => w.text(v, FIELD_MAX),
    }
}

fn read(r: &mut Reader<'_>, like: &Field) -> Result<Field, ReadError> {
    Ok(match like {
        Field::U8(_) => Field::U8(r.u8()?),
        Field::U16(_) => Field::U16(r.u16()?),
        Field::U32(_) => Field::U32(r.u32()?),
        Field::U64(_) => Field::U64(r.u64()?),
        Field::I64(_) => Field::I64(r.i64()?),
        Field::Bool(_) => Field::Bool(r.bool()?),
        Field::Varint(_) => Field::Varint(r.varint()?),
        Field::Bytes(_) => Field::Bytes(r.bytes(FIELD_MAX)?.to_vec()),
        Field::Text(_) => Field::Text(r.text(FIELD_MAX)?.to_owned()),
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(fields in prop::collection::vec(field(), 0..20)) {
        let mut out = Vec::new();
        let mut w = Writer::new(&mut out, 64 * 1024);
        for f in &fields {
            write(&mut w, f).unwrap();
        }
        let mut r = Reader::new(&out);
        for f in &fields {
            prop_assert_eq!(&read(&mut r, f).unwrap(), f);
        }
        r.finish().unwrap();
    }

    /// One value has one encoding: whatever is read writes back to the same bytes.
    #[test]
    fn any_bytes_read_write_back_equal(bytes in prop::collection::vec(any::<u8>(), 0..40), like in field()) {
        let mut r = Reader::new(&bytes);
        match read(&mut r, &like) {
            Ok(f) => {
                let used = bytes.len() - r.remaining();
                let mut out = Vec::new();
                write(&mut Writer::new(&mut out, bytes.len()), &f).unwrap();
                prop_assert_eq!(&out[..], &bytes[..used]);
            }
            // A failed read takes nothing.
            Err(_) => prop_assert_eq!(r.remaining(), bytes.len()),
        }
    }

    #[test]
    fn a_full_frame_refuses_and_writes_nothing(f in field(), room in 0usize..12) {
        let mut out = Vec::new();
        let result = write(&mut Writer::new(&mut out, room), &f);
        prop_assert!(out.len() <= room);
        if result.is_err() {
            prop_assert!(out.is_empty());
        }
    }
}

#[test]
fn faults_are_told_apart() {
    assert_eq!(
        Reader::new(&[1, 2]).u32(),
        Err(ReadError::Truncated { needed: 4, left: 2 })
    );
    assert_eq!(
        Reader::new(&[5, 0]).bytes(4),
        Err(ReadError::TooLong { length: 5, max: 4 })
    );
    assert_eq!(
        Reader::new(&[5, 0]).bytes(5),
        Err(ReadError::Truncated { needed: 5, left: 1 })
    );
    assert_eq!(Reader::new(&[1, 0xff]).text(5), Err(ReadError::Utf8));
    assert_eq!(Reader::new(&[2]).bool(), Err(ReadError::Bool(2)));
    assert_eq!(Reader::new(&[0x80, 0]).varint(), Err(ReadError::Varint));
    assert_eq!(Reader::new(&[0xff; 10]).varint(), Err(ReadError::Varint));
    assert_eq!(
        Reader::new(&[0xff; 9]).varint(),
        Err(ReadError::Truncated { needed: 10, left: 9 })
    );
    assert_eq!(Reader::new(&[0]).finish(), Err(ReadError::Trailing(1)));
    assert_eq!(
        Writer::new(&mut Vec::new(), 9).bytes(&[0; 4], 3),
        Err(WriteError::TooLong { length: 4, max: 3 })
    );
}

#[test]
fn varints_have_known_bytes() {
    for (value, bytes) in [
        (0, &[0][..]),
        (127, &[127]),
        (128, &[0x80, 1]),
        (300, &[0xac, 2]),
        (u64::MAX, &[255, 255, 255, 255, 255, 255, 255, 255, 255, 1]),
    ] {
        let mut out = Vec::new();
        Writer::new(&mut out, 10).varint(value).unwrap();
        assert_eq!(out, bytes);
        assert_eq!(varint_len(value), bytes.len());
    }
}
