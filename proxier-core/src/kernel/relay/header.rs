//! The PROXY protocol, version 2: tells an endpoint who connects. Source: haproxy.org, doc/proxy-protocol.txt, section 2.2.

use std::net::SocketAddr;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY.
const PROXY: u8 = 0x21;
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;

/// The header of a connection from `client` to the Service's address and port.
pub(super) fn header(client: SocketAddr, service: SocketAddr) -> Vec<u8> {
    let mut header = Vec::from(SIGNATURE);
    header.push(PROXY);
    let addresses = if let (SocketAddr::V4(client), SocketAddr::V4(service)) = (client, service) {
        header.push(TCP_OVER_IPV4);
        [client.ip().octets(), service.ip().octets()].concat()
    } else {
        header.push(TCP_OVER_IPV6);
        let octets = |address: SocketAddr| match address {
            SocketAddr::V4(address) => address.ip().to_ipv6_mapped().octets(),
            SocketAddr::V6(address) => address.ip().octets(),
        };
        [octets(client), octets(service)].concat()
    };
    // Two ports behind the addresses.
    let length = u16::try_from(addresses.len()).unwrap_or_default().saturating_add(4);
    header.extend(length.to_be_bytes());
    header.extend(addresses);
    header.extend(client.port().to_be_bytes());
    header.extend(service.port().to_be_bytes());
    header
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "tests stop at the first surprise")]
mod tests {
    use super::header;

    #[test]
    fn headers_are_as_in_the_specification() {
        let v4 = header("192.0.2.1:258".parse().unwrap(), "10.96.0.1:80".parse().unwrap());
        let expected = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x01\x0a\x60\x00\x01\x01\x02\x00\x50";
        assert_eq!(v4, expected);
        let v6 = header("[2001:db8::1]:258".parse().unwrap(), "[fd00::1]:80".parse().unwrap());
        assert_eq!((v6.len(), &v6[12..16]), (52, &b"\x21\x21\x00\x24"[..]));
        assert_eq!(&v6[16..20], b"\x20\x01\x0d\xb8");
        assert_eq!(&v6[48..], b"\x01\x02\x00\x50");
    }
}
