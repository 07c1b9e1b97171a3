//! Whether an address is free, and who holds it if not.

use crate::exit::{Exit, Failing};
use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
}

impl Protocol {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PortError {
    /// Somebody has it.
    #[error("{address}/{} is taken by {holder}", protocol.as_str())]
    Taken {
        address: SocketAddr,
        protocol: Protocol,
        holder: Holder,
    },
    /// Anything else, such as an address that is not this machine's.
    #[error("{address}/{} cannot be listened on", protocol.as_str())]
    Io {
        address: SocketAddr,
        protocol: Protocol,
        #[source]
        error: io::Error,
    },
}

impl Failing for PortError {
    fn exit(&self) -> Exit {
        match self {
            Self::Taken { .. } => Exit::Conflict,
            Self::Io { .. } => Exit::Failed,
        }
    }
}

/// Who holds a socket, as far as this user may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Holder {
    Process { pid: i32, name: String },
    Unknown,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, name } => write!(f, "{name} (pid {pid})"),
            Self::Unknown => f.write_str("a process of another user or namespace"),
        }
    }
}

/// Checks that `address` can be listened on.
pub(crate) fn check(address: SocketAddr, protocol: Protocol) -> Result<(), PortError> {
    let tried = match protocol {
        Protocol::Tcp => TcpListener::bind(address).map(drop),
        Protocol::Udp => UdpSocket::bind(address).map(drop),
    };
    tried.map_err(|error| explain(address, protocol, error))
}

/// The error of a failed bind, with the holder's name if the address is taken.
pub(crate) fn explain(address: SocketAddr, protocol: Protocol, error: io::Error) -> PortError {
    if error.kind() == io::ErrorKind::AddrInUse {
        PortError::Taken {
            address,
            protocol,
            holder: holder(address, protocol),
        }
    } else {
        PortError::Io {
            address,
            protocol,
            error,
        }
    }
}

/// Ports that `free` tries: below Linux's ephemeral range (ip_local_port_range, 32768 up), from
/// which any outgoing connection may take an address while its pool is down.
const FREE_PORTS: std::ops::Range<u16> = 20_000..32_768;
/// Tries before the kernel picks one of its own range.
const FREE_TRIES: usize = 64;

/// A port of `ip` that is free on all of `protocols`. Another process may take it before it is
/// used; the one that uses it reports that. None of `given`, which nobody listens on yet.
pub(crate) fn free(ip: IpAddr, protocols: &[Protocol], given: &[u16]) -> Result<SocketAddr, PortError> {
    let free = |address: SocketAddr| {
        protocols
            .iter()
            .try_for_each(|protocol| check(address, *protocol))
    };
    for _ in 0..FREE_TRIES {
        let random = u16::from_le_bytes(fairlead_host::rng::bytes());
        let port = FREE_PORTS.start + random % (FREE_PORTS.end - FREE_PORTS.start);
        let address = SocketAddr::new(ip, port);
        if !given.contains(&port) && free(address).is_ok() {
            return Ok(address);
        }
    }
    let any = SocketAddr::new(ip, 0);
    let address = TcpListener::bind(any)
        .and_then(|s| s.local_addr())
        .map_err(|error| PortError::Io {
            address: any,
            protocol: Protocol::Tcp,
            error,
        })?;
    free(address).map(|()| address)
}

/// Who listens on `address`: the socket's inode from /proc/net, its owner from /proc/PID/fd.
fn holder(address: SocketAddr, protocol: Protocol) -> Holder {
    let inodes: Vec<u64> = ["", "6"]
        .iter()
        .filter_map(|family| fs::read_to_string(format!("/proc/net/{}{family}", protocol.as_str())).ok())
        .flat_map(|table| inodes_of(&table, address, protocol))
        .collect();
    process_with(&inodes).unwrap_or(Holder::Unknown)
}

/// Socket state TCP_LISTEN in /proc/net/tcp (include/net/tcp_states.h).
const STATE_LISTEN: &str = "0A";

/// Inodes of the sockets in a /proc/net table that would clash with `address`.
fn inodes_of(table: &str, address: SocketAddr, protocol: Protocol) -> Vec<u64> {
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let local = parse_local(fields.nth(1)?)?;
            let state = fields.nth(1)?;
            let inode: u64 = fields.nth(5)?.parse().ok()?;
            let listens = match protocol {
                Protocol::Tcp => state == STATE_LISTEN,
                Protocol::Udp => true,
            };
            let clash = local.port() == address.port()
                && (local.ip().to_canonical() == address.ip().to_canonical()
                    || local.ip().is_unspecified()
                    || address.ip().is_unspecified());
            (listens && clash && inode != 0).then_some(inode)
        })
        .collect()
}

/// Parses `0100007F:20FB`: words of the address in host byte order, the port big-endian.
fn parse_local(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let words: Vec<[u8; 4]> = (0..ip.len() / 8)
        .filter_map(|i| ip.get(i * 8..i * 8 + 8))
        .filter_map(|word| u32::from_str_radix(word, 16).ok())
        .map(u32::to_ne_bytes)
        .collect();
    let bytes = words.concat();
    let ip = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(v4) => IpAddr::V4(Ipv4Addr::from(v4)),
        Err(_) => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.as_slice()).ok()?)),
    };
    Some(SocketAddr::new(ip, port))
}

/// The process with one of these sockets open.
fn process_with(inodes: &[u64]) -> Option<Holder> {
    if inodes.is_empty() {
        return None;
    }
    let wanted: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let Ok(open) = fs::read_dir(entry.path().join("fd")) else {
            continue;
        };
        let holds = open
            .flatten()
            .filter_map(|fd| fs::read_link(fd.path()).ok())
            .any(|target| wanted.iter().any(|w| target.as_os_str() == w.as_str()));
        if holds {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            return Some(Holder::Process {
                pid,
                name: name.trim_end().to_owned(),
            });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_names_its_holder() {
        for (ip, protocol) in [
            ("127.0.0.1", Protocol::Tcp),
            ("127.0.0.1", Protocol::Udp),
            ("::1", Protocol::Tcp),
        ] {
            let any = SocketAddr::new(ip.parse().unwrap(), 0);
            let (tcp, udp);
            let address = match protocol {
                Protocol::Tcp => {
                    tcp = TcpListener::bind(any).unwrap();
                    tcp.local_addr().unwrap()
                }
                Protocol::Udp => {
                    udp = UdpSocket::bind(any).unwrap();
                    udp.local_addr().unwrap()
                }
            };
            let error = check(address, protocol).unwrap_err();
            let PortError::Taken { holder, .. } = &error else {
                panic!("{error}")
            };
            let own = i32::try_from(std::process::id()).unwrap();
            assert!(
                matches!(holder, Holder::Process { pid, .. } if *pid == own),
                "{error}"
            );
        }
    }

    #[test]
    fn a_free_port_can_be_listened_on() {
        let address = free("127.0.0.2".parse().unwrap(), &[Protocol::Udp, Protocol::Tcp], &[]).unwrap();
        assert_ne!(address.port(), 0);
        check(address, Protocol::Udp).unwrap();
        check(address, Protocol::Tcp).unwrap();
        let foreign = check("192.0.2.1:80".parse().unwrap(), Protocol::Tcp);
        assert!(matches!(foreign, Err(PortError::Io { .. })));
    }

    #[test]
    fn addresses_of_proc_net() {
        if cfg!(target_endian = "little") {
            assert_eq!(
                parse_local("0100007F:20FB"),
                Some("127.0.0.1:8443".parse().unwrap())
            );
            assert_eq!(
                parse_local("00000000000000000000000001000000:0050"),
                Some("[::1]:80".parse().unwrap())
            );
        }
        assert_eq!(parse_local("xyz"), None);
        assert_eq!(parse_local("01:0050"), None);
    }

    /// A port that something else of the pool is to have is free still, and not given twice.
    #[test]
    fn no_port_is_given_twice() {
        let ip = "127.0.0.3".parse().unwrap();
        let given: Vec<u16> = FREE_PORTS.collect();
        let address = free(ip, &[Protocol::Tcp], &given).unwrap();
        assert!(!FREE_PORTS.contains(&address.port()), "{address}");
        let address = free(ip, &[Protocol::Tcp], &[]).unwrap();
        assert!(FREE_PORTS.contains(&address.port()), "{address}");
    }
}
