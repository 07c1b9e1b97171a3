//! Hop frames and liveness messages: no bytes panic, and what decodes survives encoding.
#![no_main]

use bytes::BytesMut;
use fairlead_hop::frame::{Decoded, Frame};
use fairlead_hop::liveness::LiveMessage;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(bytes) = data.try_into()
        && let Ok(message) = LiveMessage::decode(bytes)
    {
        assert_eq!(&message.encode(), bytes, "a message has one encoding");
    }
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
