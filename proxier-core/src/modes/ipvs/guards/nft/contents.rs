//! Converts between a table in the kernel and IPVS mode's terms: entries of sets, and elements.

use std::net::IpAddr;

use ipset::{Element, IpSpan, Ports, SetType};
use nftables::{Element as NftElement, ElementData, ElementKey, TableKey, TableSnapshot, Value};

use super::layout::Layout;
use crate::config::Config;
use crate::modes::ipvs::observed::Contents;
use crate::modes::ipvs::split;
use crate::modes::shared::nft::{address, is_ours, leading_frontend};
use crate::modes::shared::table::{Layout as _, Shape};
use crate::net::Family;
use crate::plan::report::Unread;
use crate::ports::{PortErrorKind, Result, SetKey, SetKind, Tables, place_of};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableContents {
    /// Entries by set, for every existing set.
    pub(crate) entries: Contents,
    pub(super) shape: Shape,
    /// Whether there are other programs' sets or elements.
    has_others: bool,
}

impl TableContents {
    /// Converts a snapshot; `None` if the table is another program's.
    fn new(snapshot: TableSnapshot, family: Family) -> Option<Self> {
        let (shape, elements) = Shape::read(snapshot)?;
        let mut found = TableContents { shape, ..TableContents::default() };
        for (name, elements) in elements {
            let Some(kind) = SetKind::ALL_OF_NFT.into_iter().find(|kind| kind.nft_name() == name) else {
                found.has_others = true;
                continue;
            };
            let entries = found.entries.entry(SetKey::new(family, kind)).or_default();
            for element in elements {
                match decode(kind, family, &element) {
                    Some(element) => drop(entries.insert(element)),
                    None => found.has_others = true,
                }
            }
        }
        Some(found)
    }

    pub(super) fn is_other(&self, layout: &Layout) -> bool {
        let chains = layout.chains();
        let is_wanted = |name: &String| chains.iter().any(|(chain, _)| chain.key.name.as_str() == name);
        self.has_others || !self.shape.chains.keys().all(is_wanted) || self.shape.is_other(layout)
    }
}

/// Reads the table of a family; `None` if it does not exist or is another program's.
pub(crate) fn read(table: &TableKey, family: Family, tables: &mut dyn Tables) -> Result<Option<TableContents>, Unread> {
    match tables.read(table) {
        Ok(snapshot) => Ok(snapshot.and_then(|snapshot| TableContents::new(snapshot, family))),
        Err(error) => Err(Unread::new(format_args!("table {table}"), error)),
    }
}

/// Whether a family is served by nftables mode, which has not been cleaned up yet.
pub(crate) fn has_nftables_mode(family: Family, config: &Config, tables: &mut dyn Tables) -> Result<bool> {
    let name = crate::modes::shared::nft::name(&config.names.table);
    let table = nftables::TableKey { family: family.into(), name };
    match is_ours(&table, tables) {
        Err(error) if matches!(error.kind(), PortErrorKind::Unavailable | PortErrorKind::NotFound) => Ok(false),
        answer => answer,
    }
}

pub(super) fn encode(kind: SetKind, element: &Element) -> NftElement {
    match (kind, element) {
        (kind, Element::IpPortIp(span, ports, _)) if kind.has_marks() => {
            let place = encode_key(&Element::IpPort(*span, *ports));
            let mark = split::recorded(element).map_or(0, |(_, mark)| mark.get());
            NftElement::new(place).maps_to(Value::mark(mark))
        }
        _ => NftElement::new(encode_key(element)),
    }
}

pub(super) fn encode_key(element: &Element) -> ElementKey {
    let place = |span: &IpSpan, ports: &Ports| {
        [span.first().into(), Value::byte(ports.protocol().number()), Value::port(ports.ports().first())]
    };
    // Never too long: the longest are two IPv6 addresses, a protocol and a port.
    let concat = |fields: &[Value]| Value::concat(fields).unwrap_or(Value::EMPTY);
    match element {
        Element::Ip(span) => ElementKey::Value(span.first().into()),
        Element::Port(ports) => ElementKey::Value(Value::port(ports.first())),
        Element::IpPort(span, ports) => ElementKey::Value(concat(&place(span, ports))),
        Element::IpPortIp(span, ports, sources) => {
            let [address, protocol, port] = place(span, ports);
            let from = |source: IpAddr| concat(&[address.clone(), protocol.clone(), port.clone(), source.into()]);
            ElementKey::range(from(sources.first()), from(sources.last()))
        }
        // No own set has other kinds.
        _ => ElementKey::CatchAll,
    }
}

/// Decodes an element as an entry; `None` for another program's.
pub(super) fn decode(kind: SetKind, family: Family, found: &NftElement) -> Option<Element> {
    let (first, last) = found.key.ends()?;
    let (first, last) = (first.as_bytes(), last.as_bytes());
    let element = match kind.set_type() {
        SetType::HashIp => Element::Ip(IpSpan::host(address(first, family)?.0)),
        SetType::BitmapPort => Element::Port(u16::from_be_bytes(*first.first_chunk()?).into()),
        set_type => {
            let (frontend, sources) = leading_frontend(first, family)?;
            let (span, ports) = place_of(&frontend);
            match (set_type, &found.data) {
                (SetType::HashIpPort, _) => Element::IpPort(span, ports),
                (_, Some(ElementData::Value(mark))) => {
                    split::with_mark(span, ports, u32::from_ne_bytes(*mark.as_bytes().first_chunk()?))
                }
                _ => {
                    let (_, end) = leading_frontend(last, family)?;
                    Element::IpPortIp(span, ports, network(address(sources, family)?.0, address(end, family)?.0)?)
                }
            }
        }
    };
    // An element that we would write differently is another program's.
    let written = encode(kind, &element);
    ((written.key, written.data) == (found.key.clone(), found.data.clone())).then_some(element)
}

fn network(first: IpAddr, last: IpAddr) -> Option<IpSpan> {
    // Most are of one address.
    let most = if first.is_ipv4() { 32 } else { 128 };
    let mut networks = (0..=most).rev().filter_map(|prefix| IpSpan::network(first, prefix).ok());
    networks.find(|span| (span.first(), span.last()) == (first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(text: &str) -> IpSpan {
        text.parse().unwrap()
    }

    #[test]
    fn elements_that_we_never_write_belong_to_another_program() {
        let key = |first: [u8; 4], last: [u8; 4]| {
            let of = |source: [u8; 4]| {
                let fields = [[192, 0, 2, 1], source].map(|octets| IpAddr::from(octets).into());
                let [host, source] = fields;
                Value::concat(&[host, Value::byte(6), Value::port(80), source]).unwrap()
            };
            ElementKey::range(of(first), of(last))
        };
        let decoded = |key| decode(SetKind::LoadBalancerSourceCidr, Family::V4, &NftElement::new(key));
        assert!(decoded(key([10, 0, 0, 0], [10, 0, 0, 255])).is_some());
        assert_eq!(decoded(key([10, 0, 0, 1], [10, 0, 0, 255])), None);
        assert_eq!(decoded(ElementKey::CatchAll), None);
        assert_eq!(decode(SetKind::ClusterIp, Family::V4, &NftElement::value(Value::port(80))), None);
        let place = Element::IpPort(span("198.51.100.1"), Ports::port(ipset::Protocol::TCP, 443));
        assert_eq!(decode(SetKind::SplitMark, Family::V4, &encode(SetKind::LocalSplit, &place)), None, "no mark");
        // Each is like ours but for one thing.
        let whole = encode(SetKind::LocalSplit, &place);
        let with_data = whole.clone().maps_to(Value::mark(7));
        assert_eq!(decode(SetKind::LocalSplit, Family::V4, &whole), Some(place));
        assert_eq!(decode(SetKind::LocalSplit, Family::V4, &with_data), None);
        let host = |last: u8| IpAddr::from([10, 0, 0, last]);
        assert!(decode(SetKind::IpvsIps, Family::V4, &NftElement::value(host(1))).is_some());
        assert_eq!(decode(SetKind::IpvsIps, Family::V4, &NftElement::range(host(1), host(9))), None);
        let of_port = |port: u16, source| {
            Value::concat(&[host(1).into(), Value::byte(6), Value::port(port), host(source).into()]).unwrap()
        };
        let sources = |first, last| NftElement::range(of_port(80, first), of_port(last, 7));
        assert!(decode(SetKind::LoadBalancerSourceCidr, Family::V4, &sources(6, 80)).is_some());
        assert_eq!(decode(SetKind::LoadBalancerSourceCidr, Family::V4, &sources(6, 81)), None);
    }

    #[test]
    fn marks_are_in_the_order_of_this_host() {
        let mark = split::with_mark(span("2001:db8::1"), Ports::port(ipset::Protocol::UDP, 53), 0x0102_0304);
        let element = encode(SetKind::SplitMark, &mark);
        assert_eq!(element.data, Some(ElementData::Value(Value::mark(0x0102_0304))));
        assert_eq!(decode(SetKind::SplitMark, Family::V6, &element), Some(mark));
    }
}
