//! The plaintext of sealed records: no bytes panic, and what decodes has one encoding.
#![no_main]

use fairlead_codec::{Reader, Writer};
use fairlead_stream::frame::Frame;
use fairlead_stream::record::record_length;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some(header) = data.first_chunk() {
        let _ = record_length(header);
    }
    let mut reader = Reader::new(data);
    let mut again = Vec::new();
    while let Ok(Some(frame)) = Frame::take(&mut reader) {
        frame
            .put(&mut Writer::new(&mut again, data.len()))
            .expect("what decoded can be encoded");
        assert_eq!(
            again,
            data[..data.len() - reader.remaining()],
            "one frame has one encoding"
        );
    }
});
