//! Searching the memory of another process: how a test shows that a relay cannot read payload
//! (R-STR-06), and that the same search finds it where it must be.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// A random marker: long enough never to be there by chance.
pub type Marker = [u8; MARKER_LEN];

/// The length of a marker.
pub const MARKER_LEN: usize = 32;

/// Memory is read in pieces of this size, overlapping by a marker less one byte.
const PIECE: usize = 1024 * 1024;

/// What a search did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Search {
    /// How many bytes were read.
    pub bytes: u64,
    /// How often each marker that was there was found, by its place in the list.
    pub found: BTreeMap<usize, u64>,
}

/// In DER a private key of 32 bytes stands behind this: an octet string.
const KEY_TAG: [u8; 2] = [0x04, 32];

/// Base64 characters of a line of PEM.
const PEM_LINE_LEN: usize = 64;

/// The beginning of a secret as a marker.
///
/// # Errors
/// When it is shorter than one.
pub fn marker(bytes: &[u8]) -> Result<Marker> {
    let bytes = bytes.get(..MARKER_LEN).context("too short for a marker")?;
    Ok(bytes.try_into()?)
}

/// The forms that a private key (P-256 or Ed25519, PKCS #8) shows itself in: its bytes, the limbs of a
/// number, and the text of its file.
///
/// # Errors
/// When the text holds no such key.
pub fn key_markers(pem: &str) -> Result<Vec<Marker>> {
    use base64::Engine as _;
    let (_, body) = pem.split_once("-----\n").context("no PEM")?;
    let (body, _) = body.split_once("-----").context("no PEM")?;
    let characters: String = body.split_whitespace().collect();
    let der = base64::engine::general_purpose::STANDARD.decode(characters)?;
    let tag = der
        .windows(2)
        .position(|pair| pair == KEY_TAG)
        .context("no key")?;
    let at = tag + KEY_TAG.len();
    let key = marker(der.get(at..).context("no key")?)?;
    let mut limbs = key;
    limbs.reverse();
    let character = at.div_ceil(3) * 4;
    let in_file = body.as_bytes().get(character + character / PEM_LINE_LEN..);
    Ok(vec![key, limbs, marker(in_file.context("no key")?)?])
}

/// Searches all readable memory of a process, which is stopped meanwhile.
///
/// # Errors
/// When the process is gone or may not be read.
pub fn search(pid: u32, markers: &[Marker]) -> Result<Search> {
    let _still = crate::process::stop(pid)?;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let memory = File::open(format!("/proc/{pid}/mem")).context("cannot read another process's memory")?;
    let table = Table::new(markers);
    let mut search = Search {
        bytes: 0,
        found: BTreeMap::new(),
    };
    let mut piece = vec![0; PIECE];
    for line in maps
        .lines()
        .filter(|l| !l.contains("[vvar") && !l.contains("[vsyscall]"))
    {
        let mut words = line.split_whitespace();
        let (Some(range), Some(rights)) = (words.next(), words.next()) else {
            continue;
        };
        if !rights.starts_with('r') {
            continue;
        }
        let (from, to) = range.split_once('-').context("unreadable maps")?;
        let (mut at, end) = (u64::from_str_radix(from, 16)?, u64::from_str_radix(to, 16)?);
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
            let space = piece.get_mut(..want).context("piece")?;
            // A mapping may be larger than its file: what cannot be read holds nothing.
            let Ok(read) = memory.read_at(space, at) else {
                break;
            };
            if read == 0 {
                break;
            }
            table.find(space.get(..read).context("read")?, &mut search.found);
            search.bytes += read as u64;
            if at + read as u64 >= end {
                break;
            }
            at += (read.saturating_sub(MARKER_LEN - 1)).max(1) as u64;
        }
    }
    Ok(search)
}

/// The markers by their first two bytes, so that most places cost one look.
struct Table<'a> {
    markers: &'a [Marker],
    heads: Vec<bool>,
}

impl<'a> Table<'a> {
    fn new(markers: &'a [Marker]) -> Self {
        let mut heads = vec![false; 1 << 16];
        for marker in markers {
            let [a, b, ..] = *marker;
            if let Some(head) = heads.get_mut(usize::from(u16::from_le_bytes([a, b]))) {
                *head = true;
            }
        }
        Self { markers, heads }
    }

    fn find(&self, bytes: &[u8], found: &mut BTreeMap<usize, u64>) {
        for window in bytes.windows(MARKER_LEN) {
            let [a, b, ..] = window else { continue };
            if !self
                .heads
                .get(usize::from(u16::from_le_bytes([*a, *b])))
                .is_some_and(|&head| head)
            {
                continue;
            }
            for (place, _) in self
                .markers
                .iter()
                .enumerate()
                .filter(|(_, m)| m.as_slice() == window)
            {
                *found.entry(place).or_default() += 1;
            }
        }
    }
}

/// Fresh markers.
#[must_use]
pub fn markers(count: usize) -> Vec<Marker> {
    let mut random = fastrand::Rng::new();
    (0..count)
        .map(|_| std::array::from_fn(|_| random.u8(..)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_marker_in_a_process_is_found_and_another_is_not() {
        use std::io::Write as _;
        // The shell keeps the variable in its memory; it waits for the line that never comes.
        let text: Vec<Marker> = (0..2)
            .map(|_| std::array::from_fn(|_| fastrand::alphanumeric() as u8))
            .collect();
        let mut child = Command::new("sh")
            .args(["-c", "read a; read b"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(&text[0]).unwrap();
        stdin.write_all(b"\n").unwrap();
        let start = std::time::Instant::now();
        let found = loop {
            let found = search(child.id(), &text).unwrap();
            if !found.found.is_empty() || start.elapsed().as_secs() > 5 {
                break found;
            }
            // A search stops the process: it must run in between to get at its input.
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        drop(stdin);
        child.wait().unwrap();
        assert!(found.found.contains_key(&0), "{found:?}");
        assert!(!found.found.contains_key(&1) && found.bytes > 100_000);
    }

    #[test]
    fn a_marker_over_the_seam_of_two_pieces_is_found() {
        let markers = markers(3);
        let mut found = BTreeMap::new();
        let mut bytes = vec![0; 100];
        bytes[50..82].copy_from_slice(&markers[2]);
        Table::new(&markers).find(&bytes, &mut found);
        assert_eq!(found, BTreeMap::from([(2, 1)]));
    }
}
