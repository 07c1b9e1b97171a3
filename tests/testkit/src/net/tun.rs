//! A TUN device: the kernel's end of a wire.

use anyhow::{Context, Result};
use rustix::ioctl::{Setter, ioctl, opcode};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;

/// `TUNSETIFF` of linux/if_tun.h: `_IOW('T', 202, int)`, although its argument is an `ifreq`.
const TUNSETIFF: rustix::ioctl::Opcode = opcode::write::<i32>(b'T', 202);

/// `IFF_TUN | IFF_NO_PI`: IP packets without a header before them.
const TUN_WITHOUT_HEADER: u16 = 0x0001 | 0x1000;

/// `struct ifreq`, the parts that `TUNSETIFF` reads.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// Makes the device `name` in the network namespace of the calling thread; it is gone when the file
/// is closed. Reads and writes are whole IP packets and do not block.
pub(super) fn open(name: &str) -> Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open("/dev/net/tun")
        .context("cannot open /dev/net/tun")?;
    let mut request = InterfaceRequest {
        name: [0; 16],
        flags: TUN_WITHOUT_HEADER,
        rest: [0; 22],
    };
    // The last byte stays 0: the kernel reads a C string.
    for (to, from) in request.name.iter_mut().take(15).zip(name.bytes()) {
        *to = from;
    }
    #[allow(unsafe_code)]
    // SAFETY: TUNSETIFF reads a `struct ifreq` (40 bytes), which `InterfaceRequest` is by layout, and
    // writes nothing behind it; the value lives until the call returns.
    unsafe { ioctl(&file, Setter::<TUNSETIFF, InterfaceRequest>::new(request)) }
        .with_context(|| format!("cannot make the TUN device {name}"))?;
    Ok(file)
}

const _: () = assert!(std::mem::size_of::<InterfaceRequest>() == 40);
