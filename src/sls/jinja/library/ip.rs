//! Addresses and networks, as Python's `ipaddress` reads and prints them.

use std::fmt;

/// An address of either version, perhaps with the length of its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ip {
    pub(crate) v6: bool,
    pub(crate) bits: u128,
    /// The length of the network, if it was given.
    pub(crate) prefix: Option<u32>,
}

/// Networks: first address and length.
const PRIVATE_4: &[(u32, u32)] = &[
    (0, 8),
    (0x0a00_0000, 8),
    (0x7f00_0000, 8),
    (0xa9fe_0000, 16),
    (0xac10_0000, 12),
    (0xc000_0000, 29),
    (0xc000_00aa, 31),
    (0xc000_0200, 24),
    (0xc0a8_0000, 16),
    (0xc612_0000, 15),
    (0xc633_6400, 24),
    (0xcb00_7100, 24),
    (0xf000_0000, 4),
];

const PRIVATE_6: &[(u128, u32)] = &[
    (1, 128),
    (0, 128),
    (0xffff << 32, 96),
    (0x100 << 112, 64),
    (0x2001 << 112, 23),
    (0x2001_0002 << 96, 48),
    (0x2001_0db8 << 96, 32),
    (0x2001_0010 << 96, 28),
    (0xfc00 << 112, 7),
    (0xfe80 << 112, 10),
];

const RESERVED_6: &[(u128, u32)] = &[
    (0, 8),
    (0x100 << 112, 8),
    (0x200 << 112, 7),
    (0x400 << 112, 6),
    (0x800 << 112, 5),
    (0x1000 << 112, 4),
    (0x4000 << 112, 3),
    (0x6000 << 112, 3),
    (0x8000 << 112, 3),
    (0xa000 << 112, 3),
    (0xc000 << 112, 3),
    (0xe000 << 112, 4),
    (0xf000 << 112, 5),
    (0xf800 << 112, 6),
    (0xfe00 << 112, 9),
];

fn v4(text: &str) -> Option<u128> {
    let octets: Vec<&str> = text.split('.').collect();
    if octets.len() != 4 {
        return None;
    }
    octets.iter().try_fold(0, |bits, octet| {
        let ok = (1..=3).contains(&octet.len())
            && octet.bytes().all(|b| b.is_ascii_digit())
            && !(octet.len() > 1 && octet.starts_with('0'));
        let octet: u128 = if ok { octet.parse().ok()? } else { return None };
        (octet < 256).then_some(bits << 8 | octet)
    })
}

fn v6(text: &str) -> Option<u128> {
    let (address, scope) = match text.split_once('%') {
        Some((address, scope)) => (address, Some(scope)),
        None => (text, None),
    };
    // A scope would have to be kept, and nothing here does.
    if scope.is_some() || !address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':' || b == b'.') {
        return None;
    }
    address.parse::<std::net::Ipv6Addr>().ok().map(u128::from)
}

impl Ip {
    /// Of text like `192.0.2.1` or, if `network`, `192.0.2.1/24`.
    pub(crate) fn parse(text: &str, network: bool) -> Option<Ip> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) if network => (address, Some(length)),
            Some(_) => return None,
            None => (text, None),
        };
        let (v6, bits) = match v4(address) {
            Some(bits) => (false, bits),
            None => (true, v6(address)?),
        };
        let mut ip = Ip { v6, bits, prefix: None };
        ip.prefix = match length {
            None if network => Some(ip.width()),
            None => None,
            Some(length) => Some(ip.length(length)?),
        };
        Some(ip)
    }

    /// The length of a network, out of digits or a mask.
    fn length(self, text: &str) -> Option<u32> {
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            return text.parse().ok().filter(|length| *length <= self.width());
        }
        if self.v6 {
            return None;
        }
        let mask = u32::try_from(v4(text)?).ok()?;
        if mask.leading_ones() + mask.trailing_zeros() == 32 {
            return Some(mask.leading_ones());
        }
        // A mask of the host's part.
        (mask.leading_zeros() + mask.trailing_ones() == 32).then(|| mask.leading_zeros())
    }

    pub(crate) fn width(self) -> u32 {
        if self.v6 { 128 } else { 32 }
    }

    /// The first address of its network.
    pub(crate) fn first(self) -> u128 {
        self.bits & !self.hosts_mask()
    }

    /// The bits that vary within its network.
    pub(crate) fn hosts_mask(self) -> u128 {
        let host = self.width() - self.prefix.unwrap_or(self.width());
        if host == 128 { u128::MAX } else { (1 << host) - 1 }
    }

    fn within(self, first: u128, length: u32) -> bool {
        let host = self.width() - length;
        host == 128 || self.bits >> host == first >> host
    }

    /// Whether it lies in another's network.
    pub(crate) fn is_in(self, network: Ip) -> bool {
        self.v6 == network.v6 && self.within(network.first(), network.prefix.unwrap_or(network.width()))
    }

    pub(crate) fn is_private(self) -> bool {
        if !self.v6 {
            return PRIVATE_4.iter().any(|(first, length)| self.within(u128::from(*first), *length));
        }
        if self.bits >> 32 == 0xffff {
            return Ip { v6: false, bits: self.bits & 0xffff_ffff, prefix: None }.is_private();
        }
        PRIVATE_6.iter().any(|(first, length)| self.within(*first, *length))
    }

    pub(crate) fn is_multicast(self) -> bool {
        if self.v6 { self.within(0xff00 << 112, 8) } else { self.within(0xe000_0000, 4) }
    }

    pub(crate) fn is_loopback(self) -> bool {
        if self.v6 {
            self.bits == 1 && self.prefix.is_none_or(|length| length == 128)
        } else {
            self.within(0x7f00_0000, 8)
        }
    }

    pub(crate) fn is_link_local(self) -> bool {
        if self.v6 { self.within(0xfe80 << 112, 10) } else { self.within(0xa9fe_0000, 16) }
    }

    pub(crate) fn is_reserved(self) -> bool {
        if self.v6 {
            RESERVED_6.iter().any(|(first, length)| self.within(*first, *length))
        } else {
            self.within(0xf000_0000, 4)
        }
    }

    pub(crate) fn is_site_local(self) -> bool {
        self.v6 && self.within(0xfec0 << 112, 10)
    }

    pub(crate) fn is_unspecified(self) -> bool {
        self.bits == 0 && (!self.v6 || self.prefix.is_none_or(|length| length == 128))
    }
}

impl fmt::Display for Ip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.v6 {
            let groups: Vec<u128> = (0..8).rev().map(|i| self.bits >> (16 * i) & 0xffff).collect();
            // The longest run of zeros, the first of several, of at least two.
            let (mut best, mut best_len, mut start) = (0, 0, 0);
            for (i, group) in groups.iter().enumerate() {
                if *group != 0 {
                    start = i + 1;
                } else if i + 1 - start > best_len {
                    (best, best_len) = (start, i + 1 - start);
                }
            }
            let hex = |groups: &[u128]| {
                groups.iter().map(|group| format!("{group:x}")).collect::<Vec<_>>().join(":")
            };
            if best_len > 1 {
                let (head, tail) = (
                    groups.get(..best).unwrap_or_default(),
                    groups.get(best + best_len..).unwrap_or_default(),
                );
                write!(f, "{}::{}", hex(head), hex(tail))?;
            } else {
                f.write_str(&hex(&groups))?;
            }
        } else {
            let octet = |i: u32| self.bits >> (8 * i) & 0xff;
            write!(f, "{}.{}.{}.{}", octet(3), octet(2), octet(1), octet(0))?;
        }
        match self.prefix {
            Some(length) => write!(f, "/{length}"),
            None => Ok(()),
        }
    }
}
