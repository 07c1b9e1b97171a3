//! Hop frames: no bytes panic, and what decodes survives encoding.
#![no_main]

use bytes::BytesMut;
use fairlead_hop::frame::{Decoded, Frame};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut left = data;
    while let Ok(decoded) = Frame::decode(left) {
        let consumed = match decoded {
            Decoded::Frame { frame, consumed } => {
                let mut again = BytesMut::new();
                frame.encode(&mut again).expect("what decoded can be encoded");
                // Codes of a newer peer read as the general one, so the bytes may differ.
                let consumed_again = again.len();
                let same = Decoded::Frame {
                    frame,
                    consumed: consumed_again,
                };
                assert_eq!(Frame::decode(&again), Ok(same), "a frame survives encoding");
                consumed
            }
            Decoded::Skip { consumed } => consumed,
            Decoded::Incomplete { needed } => {
                assert!(needed > left.len(), "a complete frame was called incomplete");
                return;
            }
        };
        assert!(consumed > 0 && consumed <= left.len());
        left = &left[consumed..];
    }
});
