//! Properties of the codec: what is written reads the same, every prefix is safe, what is unknown is kept.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

use ipvs_sys::uapi::SvcFlags;
use ipvs_sys::{
    CmdAttr, Command, Counter, DaemonAttr, DestAttr, FlagsMask, GetDest, GetService, InfoAttr, NewDest, NewService,
    Query, StatsAttr, SvcAttr,
};
use netlink_batch::{Attribute, Attrs, Be16, Encoder, NulStr, RawAttr};
use proptest::prelude::*;

/// A name without NUL, kept in one place for the borrowing attributes.
fn name() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(1..=255_u8, 0..20)
}

/// Values for one of everything.
#[derive(Clone, Debug)]
struct Values {
    name: Vec<u8>,
    engine: Vec<u8>,
    numbers: [u32; 8],
    wide: [u64; 4],
    short: [u16; 4],
    bytes: [u8; 4],
    addr: [u8; 16],
    unknown: (u16, Vec<u8>),
}

fn values() -> impl Strategy<Value = Values> {
    // Numbers from 1000 on are in no table; with and without flag bits.
    let unknown = (1000..0x3fff_u16, any::<bool>(), prop::collection::vec(any::<u8>(), 0..40))
        .prop_map(|(kind, nested, payload)| (if nested { kind | 0x8000 } else { kind }, payload));
    (
        name(),
        name(),
        any::<[u32; 8]>(),
        any::<[u64; 4]>(),
        any::<[u16; 4]>(),
        any::<[u8; 4]>(),
        any::<[u8; 16]>(),
        unknown,
    )
        .prop_map(|(name, engine, numbers, wide, short, bytes, addr, unknown)| Values {
            name,
            engine,
            numbers,
            wide,
            short,
            bytes,
            addr,
            unknown,
        })
}

fn list<'a, A: Attribute<'a>>(attributes: &[A]) -> Vec<u8> {
    let mut out = Encoder::new();
    for attribute in attributes {
        attribute.encode(&mut out);
    }
    out.finish().unwrap();
    out.as_slice().to_vec()
}

fn stats(values: &Values) -> Vec<StatsAttr<'_>> {
    let [a, b, c, d] = values.wide;
    let narrow = |index: usize| Counter::Narrow(values.numbers[index]);
    vec![
        StatsAttr::Conns(narrow(0)),
        StatsAttr::InPkts(Counter::Wide(a)),
        StatsAttr::OutPkts(narrow(1)),
        StatsAttr::Pad(&values.bytes),
        StatsAttr::InBytes(Counter::Wide(b)),
        StatsAttr::OutBytes(Counter::Wide(c)),
        StatsAttr::Cps(narrow(2)),
        StatsAttr::InPps(narrow(3)),
        StatsAttr::OutPps(Counter::Wide(d)),
        StatsAttr::InBps(narrow(4)),
        StatsAttr::OutBps(narrow(5)),
        StatsAttr::Unknown(unknown(values)),
    ]
}

fn unknown(values: &Values) -> RawAttr<'_> {
    RawAttr { type_field: values.unknown.0, payload: &values.unknown.1, offset: 0 }
}

fn service<'a>(values: &'a Values, stats: &'a [u8]) -> Vec<SvcAttr<'a>> {
    let [a, b, c, ..] = values.numbers;
    vec![
        SvcAttr::Af(values.short[0]),
        SvcAttr::Protocol(values.short[1]),
        SvcAttr::Addr(values.addr),
        SvcAttr::Port(Be16(values.short[2])),
        SvcAttr::Fwmark(a),
        SvcAttr::SchedName(NulStr::new(&values.name)),
        SvcAttr::Flags(FlagsMask { flags: SvcFlags::from_bits_retain(b), mask: c }),
        SvcAttr::Timeout(values.numbers[3]),
        SvcAttr::Netmask(values.bytes),
        SvcAttr::Stats(Attrs::new(stats)),
        SvcAttr::PeName(NulStr::new(&values.engine)),
        SvcAttr::Stats64(Attrs::new(stats)),
        SvcAttr::Unknown(unknown(values)),
    ]
}

fn dest<'a>(values: &'a Values, stats: &'a [u8]) -> Vec<DestAttr<'a>> {
    let number = |index: usize| values.numbers[index];
    vec![
        DestAttr::Addr(values.addr),
        DestAttr::Port(Be16(values.short[0])),
        DestAttr::FwdMethod(number(0)),
        DestAttr::Weight(number(1)),
        DestAttr::UThresh(number(2)),
        DestAttr::LThresh(number(3)),
        DestAttr::ActiveConns(number(4)),
        DestAttr::InactConns(number(5)),
        DestAttr::PersistConns(number(6)),
        DestAttr::Stats(Attrs::new(stats)),
        DestAttr::AddrFamily(values.short[1]),
        DestAttr::Stats64(Attrs::new(stats)),
        DestAttr::TunType(values.bytes[0]),
        DestAttr::TunPort(Be16(values.short[2])),
        DestAttr::TunFlags(values.short[3]),
        DestAttr::Unknown(unknown(values)),
    ]
}

fn daemon(values: &Values) -> Vec<DaemonAttr<'_>> {
    vec![
        DaemonAttr::State(values.numbers[0]),
        DaemonAttr::McastIfn(NulStr::new(&values.name)),
        DaemonAttr::SyncId(values.numbers[1]),
        DaemonAttr::SyncMaxlen(values.short[0]),
        DaemonAttr::McastGroup(values.bytes),
        DaemonAttr::McastGroup6(values.addr),
        DaemonAttr::McastPort(values.short[1]),
        DaemonAttr::McastTtl(values.bytes[0]),
        DaemonAttr::Unknown(unknown(values)),
    ]
}

/// An unknown attribute remembers where it was found; that is not part of what it says.
fn same<'a, A: Attribute<'a>>(one: &A, other: &A) -> bool {
    list(std::slice::from_ref(one)) == list(std::slice::from_ref(other))
}

fn round_trip<'a, A: Attribute<'a> + std::fmt::Debug>(attributes: &[A], bytes: &'a [u8]) -> Result<(), TestCaseError> {
    let read = Attrs::<A>::new(bytes).to_vec().unwrap();
    prop_assert_eq!(read.len(), attributes.len());
    for (one, other) in attributes.iter().zip(&read) {
        prop_assert!(same(one, other), "{:?} {:?}", one, other);
    }
    prop_assert_eq!(list(&read), bytes);
    // Every prefix gives an error or fewer items, and those it gives are the first ones.
    for length in 0..bytes.len() {
        let items: Vec<A> = Attrs::<A>::new(&bytes[..length]).iter().map_while(Result::ok).collect();
        prop_assert!(items.len() <= attributes.len());
        for (one, other) in attributes.iter().zip(&items) {
            prop_assert!(same(one, other));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_reads_the_same(values in values()) {
        let stats_attributes = stats(&values);
        let stats_bytes = list(&stats_attributes);
        round_trip(&stats_attributes, &stats_bytes)?;
        let service_attributes = service(&values, &stats_bytes);
        let service_bytes = list(&service_attributes);
        round_trip(&service_attributes, &service_bytes)?;
        let dest_attributes = dest(&values, &stats_bytes);
        let dest_bytes = list(&dest_attributes);
        round_trip(&dest_attributes, &dest_bytes)?;
        let daemon_attributes = daemon(&values);
        let daemon_bytes = list(&daemon_attributes);
        round_trip(&daemon_attributes, &daemon_bytes)?;
        let command = [
            CmdAttr::Service(Attrs::new(&service_bytes)),
            CmdAttr::Dest(Attrs::new(&dest_bytes)),
            CmdAttr::Daemon(Attrs::new(&daemon_bytes)),
            CmdAttr::TimeoutTcp(values.numbers[0]),
            CmdAttr::TimeoutTcpFin(values.numbers[1]),
            CmdAttr::TimeoutUdp(values.numbers[2]),
            CmdAttr::Unknown(unknown(&values)),
        ];
        round_trip(&command, &list(&command))?;
        let info = [InfoAttr::Version(values.numbers[0]), InfoAttr::ConnTabSize(values.numbers[1])];
        round_trip(&info, &list(&info))?;
    }

    #[test]
    fn a_command_holds_what_it_was_given(values in values()) {
        let stats_bytes = list(&stats(&values));
        let (service, dest) = (service(&values, &stats_bytes), dest(&values, &stats_bytes));
        let mut out = Encoder::new();
        NewDest { service: &service[..], dest: &dest[..] }.encode(&mut out);
        let read = GetService::<&[SvcAttr<'_>]>::decode(out.as_slice()).unwrap();
        prop_assert_eq!(read.as_bytes(), &list(&service)[..]);
        let read = GetDest::<&[SvcAttr<'_>]>::decode(out.as_slice()).unwrap();
        prop_assert_eq!(read.as_bytes(), &list(&dest)[..]);
        // A service alone lacks the real server.
        let mut out = Encoder::new();
        NewService { service: &service[..] }.encode(&mut out);
        prop_assert!(GetDest::<&[SvcAttr<'_>]>::decode(out.as_slice()).is_err());
    }

    #[test]
    fn a_known_attribute_of_wrong_length_is_an_error_with_its_name(kind in 1..=12_u16, length in 0..40_usize) {
        let payload = vec![0_u8; length];
        let mut out = Encoder::new();
        out.attr(kind, &payload.as_slice());
        let read = Attrs::<SvcAttr<'_>>::new(out.as_slice()).to_vec();
        let fits = match kind {
            SvcAttr::AF | SvcAttr::PROTOCOL | SvcAttr::PORT => length == 2,
            SvcAttr::FWMARK | SvcAttr::TIMEOUT | SvcAttr::NETMASK => length == 4,
            SvcAttr::ADDR => length == 16,
            SvcAttr::FLAGS => length == 8,
            // Names and nests take any length.
            _ => true,
        };
        prop_assert_eq!(read.is_ok(), fits);
        if let Err(error) = read {
            prop_assert!(error.to_string().contains("IPVS_SVC_ATTR_"), "{}", error);
        }
    }
}
