//! Addresses as admins write them: `host:port`, `[v6]:port`, `unix:/path`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The relay's only public port (R-GEN-02).
pub const RELAY_PORT: u16 = 9443;
/// The control plane's port.
pub const CONTROL_PORT: u16 = 8443;

/// A host name or IP address with a port. IPv6 literals stand in brackets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    host: Host,
    port: u16,
}

/// The host part of an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// An IP literal.
    Ip(IpAddr),
    /// A DNS name, lowercase, resolved at each dial.
    Dns(String),
}

/// Where a publisher's daemon dials.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TargetAddress {
    /// A TCP service.
    Tcp(HostPort),
    /// A Unix stream socket, by absolute path.
    Unix(PathBuf),
}

/// Where a consumer's daemon listens: an IP literal and a port, since a name could resolve to
/// several interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenAddress(pub SocketAddr);

/// Text that is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {what}: {reason} (write {allowed})")]
pub struct AddressError {
    text: String,
    what: &'static str,
    reason: &'static str,
    allowed: &'static str,
}

/// Greatest length of a DNS name in text form (RFC 1035 section 2.3.4).
const DNS_NAME_LEN_MAX: usize = 253;
/// Greatest length of a socket path: `sun_path` less its final NUL (unix(7)).
const UNIX_PATH_LEN_MAX: usize = 107;

impl HostPort {
    /// An address made of an IP literal.
    #[must_use]
    pub const fn from_ip(ip: IpAddr, port: u16) -> Self {
        Self {
            host: Host::Ip(ip),
            port,
        }
    }

    /// The host.
    #[must_use]
    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// The port, never 0.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The socket address, where the host is an IP literal.
    #[must_use]
    pub const fn as_socket_addr(&self) -> Option<SocketAddr> {
        match self.host {
            Host::Ip(ip) => Some(SocketAddr::new(ip, self.port)),
            Host::Dns(_) => None,
        }
    }

    /// Parses the control plane's address as people have it at hand: what [`HostPort::parse`] takes,
    /// port 8443 where none is written, or its URL.
    ///
    /// # Errors
    /// Names the text and what is allowed.
    pub fn parse_control(text: &str) -> Result<Self, AddressError> {
        if text.starts_with("http://") {
            return Err(AddressError {
                text: text.chars().take(128).collect(),
                what: "the control plane's address",
                reason: "it is served over TLS alone, so the scheme is https",
                allowed: "https://host:port, or host:port",
            });
        }
        let address = text
            .strip_prefix("https://")
            .map_or(text, |rest| rest.trim_end_matches('/'));
        Self::parse(address, Some(CONTROL_PORT)).map_err(|e| AddressError {
            text: text.chars().take(128).collect(),
            what: "the control plane's address",
            allowed: "host, host:port, [v6]:port or https://host:port",
            ..e
        })
    }

    /// Parses `host`, `host:port`, `v4`, `v4:port`, `v6`, `[v6]` or `[v6]:port`; a missing port is
    /// `default_port`, and with no default it is an error. A bare IPv6 literal has no port; one that
    /// could also be read as a literal with a port is refused.
    ///
    /// # Errors
    /// Names the text and what is allowed.
    pub fn parse(text: &str, default_port: Option<u16>) -> Result<Self, AddressError> {
        let allowed = if default_port.is_some() {
            "host, host:port, [v6] or [v6]:port"
        } else {
            "host:port or [v6]:port"
        };
        let fail = |reason| AddressError {
            text: text.chars().take(128).collect(),
            what: "an address",
            reason,
            allowed,
        };
        if text.contains("://") {
            return Err(fail("it is a URL, and an address has no scheme"));
        }
        let missing = || fail("its port is missing");
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (v6, tail) = rest.split_once(']').ok_or_else(|| fail("its `]` is missing"))?;
            let ip: Ipv6Addr = v6.parse().map_err(|_| fail("its IPv6 literal is malformed"))?;
            let port = match tail {
                "" => default_port.ok_or_else(missing)?,
                _ => parse_port(
                    tail.strip_prefix(':')
                        .ok_or_else(|| fail("text follows its `]`"))?,
                )
                .ok_or_else(|| fail("its port is not 1 to 65535"))?,
            };
            (Host::Ip(IpAddr::V6(ip)), port)
        } else if text.matches(':').count() > 1 {
            let ip: Ipv6Addr = text
                .parse()
                .map_err(|_| fail("its IPv6 literal is malformed, or needs brackets"))?;
            if default_port.is_some() && is_ambiguous(text) {
                return Err(fail(
                    "its last part may be a port or not: an IPv6 literal like this needs brackets",
                ));
            }
            (
                Host::Ip(IpAddr::V6(ip)),
                default_port.ok_or_else(|| fail("an IPv6 literal with a port needs brackets"))?,
            )
        } else {
            let (host, port) = match text.split_once(':') {
                Some((host, port)) => (
                    host,
                    parse_port(port).ok_or_else(|| fail("its port is not 1 to 65535"))?,
                ),
                // A number alone is a port.
                None if parse_port(text).is_some() => return Err(fail("its host is missing")),
                None => (text, default_port.ok_or_else(missing)?),
            };
            (parse_host(host).map_err(fail)?, port)
        };
        Ok(Self { host, port })
    }
}

/// Whether an IPv6 literal's last group could be meant as a port.
fn is_ambiguous(literal: &str) -> bool {
    literal
        .rsplit_once(':')
        .is_some_and(|(host, port)| host.parse::<Ipv6Addr>().is_ok() && parse_port(port).is_some())
}

/// A port in plain digits; `+80` and `0` are refused.
fn parse_port(text: &str) -> Option<u16> {
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|&p| p != 0)
}

fn parse_host(text: &str) -> Result<Host, &'static str> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(Host::Ip(ip));
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.is_empty() {
        return Err("its host is empty");
    }
    if name.len() > DNS_NAME_LEN_MAX {
        return Err("its host is longer than 253 characters");
    }
    let label_ok = |l: &str| {
        !l.is_empty()
            && l.len() <= 63
            && l.bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    if !name.split('.').all(label_ok) {
        return Err("its host is neither an IP address nor a DNS name");
    }
    // 10.0.0 or 1.2.3.4.5: a mistyped address, not a name (RFC 1123 section 2.1).
    if name
        .rsplit('.')
        .next()
        .is_some_and(|l| l.bytes().all(|b| b.is_ascii_digit()))
    {
        return Err("its IPv4 literal is malformed");
    }
    Ok(Host::Dns(name.to_ascii_lowercase()))
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}", self.port),
            Host::Ip(IpAddr::V4(ip)) => write!(f, "{ip}:{}", self.port),
            Host::Dns(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

impl FromStr for HostPort {
    type Err = AddressError;
    fn from_str(text: &str) -> Result<Self, AddressError> {
        Self::parse(text, None)
    }
}

impl From<SocketAddr> for HostPort {
    fn from(a: SocketAddr) -> Self {
        Self::from_ip(a.ip(), a.port())
    }
}

impl fmt::Display for TargetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for TargetAddress {
    type Err = AddressError;
    fn from_str(text: &str) -> Result<Self, AddressError> {
        const ALLOWED: &str = "host:port, [v6]:port or unix:/absolute/path";
        let fail = |reason| AddressError {
            text: text.chars().take(128).collect(),
            what: "a target",
            reason,
            allowed: ALLOWED,
        };
        // In any case: a host named `Unix` would print as a path.
        let prefix = text.get(..5).filter(|p| p.eq_ignore_ascii_case("unix:"));
        let Some(path) = prefix.and_then(|p| text.get(p.len()..)) else {
            return HostPort::parse(text, None)
                .map(Self::Tcp)
                .map_err(|e| AddressError {
                    what: "a target",
                    allowed: ALLOWED,
                    ..e
                });
        };
        if !Path::new(path).is_absolute() {
            return Err(fail("its path is not absolute"));
        }
        if path.len() > UNIX_PATH_LEN_MAX {
            return Err(fail("its path is longer than 107 bytes, a socket's limit"));
        }
        if path.contains(['\0', '\n']) {
            return Err(fail("its path has a control character"));
        }
        Ok(Self::Unix(PathBuf::from(path)))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a listen address looks like, for whoever wrote something else.
const LISTEN_ALLOWED: &str = "127.0.0.1:port or [::1]:port";

impl ListenAddress {
    /// Reads an address that somebody asks to have listened on. What is stored or signed already is
    /// read by [`FromStr`]: it was asked for under the rules of its time and stays readable.
    ///
    /// # Errors
    /// The text is no address, or one where no TCP connection can end (RFC 9293 section 3.9.2.3).
    pub fn requested(text: &str) -> Result<Self, AddressError> {
        let address: Self = text.parse()?;
        if let IpAddr::V6(ip) = address.0.ip()
            && ip.to_ipv4_mapped().is_some()
        {
            // Sockets for IPv6 alone cannot be bound to one, and it would hide that the IPv4 one is taken.
            return Err(Self::fault(
                text,
                "its host is an IPv4 address in the form of IPv6: write it as IPv4",
            ));
        }
        match address.0.ip() {
            IpAddr::V4(ip) if ip.is_broadcast() => {
                Err(Self::fault(text, "its host is the broadcast address"))
            }
            ip if ip.is_multicast() => Err(Self::fault(text, "its host is a multicast address")),
            IpAddr::V4(_) | IpAddr::V6(_) => Ok(address),
        }
    }

    fn fault(text: &str, reason: &'static str) -> AddressError {
        AddressError {
            text: text.chars().take(128).collect(),
            what: "a listen address",
            reason,
            allowed: LISTEN_ALLOWED,
        }
    }
}

impl FromStr for ListenAddress {
    type Err = AddressError;
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let address = HostPort::parse(text, None).map_err(|e| AddressError {
            what: "a listen address",
            allowed: LISTEN_ALLOWED,
            ..e
        })?;
        address
            .as_socket_addr()
            .map(Self)
            .ok_or_else(|| Self::fault(text, "its host is a name, not an IP address"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_and_without_port() {
        for (text, default, want) in [
            ("relay-1.example.net", Some(9443), "relay-1.example.net:9443"),
            ("Relay-1.example.net.:80", Some(9443), "relay-1.example.net:80"),
            ("192.0.2.1", Some(9443), "192.0.2.1:9443"),
            ("192.0.2.1:1", None, "192.0.2.1:1"),
            ("2001:db8::1", Some(9443), "[2001:db8::1]:9443"),
            (
                "2001:db8:1:2:3:4:5:80",
                Some(9443),
                "[2001:db8:1:2:3:4:5:80]:9443",
            ),
            ("2001:db8::1:beef", Some(9443), "[2001:db8::1:beef]:9443"),
            ("[2001:db8::1]", Some(9443), "[2001:db8::1]:9443"),
            ("[::1]:5432", None, "[::1]:5432"),
            ("localhost:5432", None, "localhost:5432"),
        ] {
            assert_eq!(
                HostPort::parse(text, default).unwrap().to_string(),
                want,
                "{text}"
            );
        }
        for (text, default, why) in [
            ("", None, "port is missing"),
            ("", Some(1), "host is empty"),
            (":80", None, "host is empty"),
            ("host", None, "port is missing"),
            ("host:0", None, "1 to 65535"),
            ("host:65536", None, "1 to 65535"),
            ("host:+80", None, "1 to 65535"),
            ("host:http", None, "1 to 65535"),
            ("::1", None, "needs brackets"),
            ("::1:9443", Some(9443), "needs brackets"),
            ("2001:db8::1:80", Some(9443), "needs brackets"),
            ("25502", None, "host is missing"),
            ("25502", Some(9443), "host is missing"),
            ("http://relay.example", Some(9443), "it is a URL"),
            ("[::1", None, "`]` is missing"),
            ("[::1]80", None, "follows"),
            ("[10.0.0.1]:80", None, "IPv6 literal"),
            ("300.1.1.1:80", None, "IPv4 literal"),
            ("a b:80", None, "neither"),
            ("-a:80", None, "neither"),
        ] {
            let error = HostPort::parse(text, default).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn the_control_planes_address_may_be_its_url() {
        for (text, want) in [
            ("https://127.0.0.1:8443", "127.0.0.1:8443"),
            ("https://[::1]:8443/", "[::1]:8443"),
            ("https://control.example", "control.example:8443"),
            ("control.example", "control.example:8443"),
        ] {
            assert_eq!(HostPort::parse_control(text).unwrap().to_string(), want, "{text}");
        }
        let error = HostPort::parse_control("http://a:1").unwrap_err().to_string();
        assert!(error.contains("TLS") && !error.contains("no scheme"), "{error}");
        for bad in ["http://a:1", "https://", "https://a/b", ""] {
            let error = HostPort::parse_control(bad).unwrap_err().to_string();
            assert!(error.contains("control plane's address"), "{bad}: {error}");
        }
    }

    #[test]
    fn targets_and_listen_addresses() {
        assert_eq!(
            "unix:/run/pg/s".parse::<TargetAddress>().unwrap().to_string(),
            "unix:/run/pg/s"
        );
        assert_eq!(
            "[::1]:5432".parse::<TargetAddress>().unwrap().to_string(),
            "[::1]:5432"
        );
        // Found by fuzzing: it would print as a path.
        assert!("uniX:5543".parse::<TargetAddress>().is_err());
        assert!(
            "unix:run/pg"
                .parse::<TargetAddress>()
                .unwrap_err()
                .to_string()
                .contains("absolute")
        );
        let long = format!("unix:/{}", "a".repeat(107));
        assert!(
            long.parse::<TargetAddress>()
                .unwrap_err()
                .to_string()
                .contains("107")
        );
        assert!(
            "localhost:1"
                .parse::<ListenAddress>()
                .unwrap_err()
                .to_string()
                .contains("a name")
        );
        assert_eq!(
            "[::1]:15432".parse::<ListenAddress>().unwrap().to_string(),
            "[::1]:15432"
        );
    }

    /// A daemon is asked to listen where a TCP connection can end; what is stored stays readable.
    #[test]
    fn nobody_listens_where_no_connection_can_end() {
        for (text, reason) in [
            ("255.255.255.255:55", "broadcast"),
            ("[::ffff:255.255.255.255]:55", "write it as IPv4"),
            ("224.0.0.1:55", "multicast"),
            ("239.255.255.255:55", "multicast"),
            ("[ff02::1]:55", "multicast"),
            ("[::ffff:127.0.0.1]:55", "write it as IPv4"),
        ] {
            let error = ListenAddress::requested(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(text.parse::<ListenAddress>().is_ok(), "{text}");
        }
        for text in ["0.0.0.0:55", "[::]:55", "127.0.0.1:55", "223.255.255.255:55"] {
            assert!(ListenAddress::requested(text).is_ok(), "{text}");
        }
        assert!(ListenAddress::requested("localhost:1").is_err());
    }
}
