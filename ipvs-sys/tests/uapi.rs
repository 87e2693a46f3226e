//! Every number against the C header, where the machine has it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

use std::collections::BTreeMap;

use ipvs_sys::{CmdAttr, DaemonAttr, DestAttr, InfoAttr, StatsAttr, SvcAttr, uapi};
use netlink_batch::{AttrTable, Attribute};

const HEADER: &str = "ip_vs.h";

fn check_table(header: &BTreeMap<String, i64>, table: &AttrTable) {
    for row in table.rows {
        let name = format!("{}{}", table.prefix, row.name);
        assert_eq!(header.get(&name), Some(&i64::from(row.kind)), "{name}");
    }
    // Both ways: the header has nothing that the table lacks.
    let ours: Vec<String> = table.rows.iter().map(|row| format!("{}{}", table.prefix, row.name)).collect();
    for name in header.keys().filter(|name| name.starts_with(table.prefix)) {
        let bookkeeping = name.ends_with("_UNSPEC") || name.ends_with("_MAX");
        assert!(bookkeeping || ours.contains(name), "{name} is in {HEADER} but not in the table");
    }
}

#[test]
fn numbers_are_those_of_the_c_header() {
    let header = netlink_batch::testing::header_numbers(&[HEADER]).unwrap();
    check_table(&header, CmdAttr::TABLE);
    check_table(&header, SvcAttr::TABLE);
    check_table(&header, DestAttr::TABLE);
    check_table(&header, StatsAttr::TABLE);
    check_table(&header, DaemonAttr::TABLE);
    check_table(&header, InfoAttr::TABLE);
    for (name, number) in commands() {
        assert_eq!(header.get(name), Some(&i64::from(number)), "{name}");
    }
    for name in header.keys().filter(|name| name.starts_with("IPVS_CMD_") && !name.starts_with("IPVS_CMD_ATTR_")) {
        let bookkeeping = name.ends_with("_UNSPEC") || name.ends_with("_MAX");
        assert!(bookkeeping || commands().iter().any(|(ours, _)| ours == name), "{name} is not implemented");
    }
    let constants = [
        ("IPVS_GENL_VERSION", i64::from(uapi::GENL_VERSION)),
        ("IP_VS_SVC_F_PERSISTENT", uapi::SvcFlags::PERSISTENT.bits().into()),
        ("IP_VS_SVC_F_HASHED", uapi::SvcFlags::HASHED.bits().into()),
        ("IP_VS_SVC_F_ONEPACKET", uapi::SvcFlags::ONEPACKET.bits().into()),
        ("IP_VS_SVC_F_SCHED1", uapi::SvcFlags::SCHED1.bits().into()),
        ("IP_VS_SVC_F_SCHED2", uapi::SvcFlags::SCHED2.bits().into()),
        ("IP_VS_SVC_F_SCHED3", uapi::SvcFlags::SCHED3.bits().into()),
        ("IP_VS_CONN_F_FWD_MASK", uapi::CONN_F_FWD_MASK.into()),
        ("IP_VS_CONN_F_MASQ", uapi::CONN_F_MASQ.into()),
        ("IP_VS_CONN_F_LOCALNODE", uapi::CONN_F_LOCALNODE.into()),
        ("IP_VS_CONN_F_TUNNEL", uapi::CONN_F_TUNNEL.into()),
        ("IP_VS_CONN_F_DROUTE", uapi::CONN_F_DROUTE.into()),
        ("IP_VS_CONN_F_BYPASS", uapi::CONN_F_BYPASS.into()),
        ("IP_VS_CONN_F_TUNNEL_TYPE_IPIP", uapi::TUNNEL_TYPE_IPIP.into()),
        ("IP_VS_CONN_F_TUNNEL_TYPE_GUE", uapi::TUNNEL_TYPE_GUE.into()),
        ("IP_VS_CONN_F_TUNNEL_TYPE_GRE", uapi::TUNNEL_TYPE_GRE.into()),
        ("IP_VS_TUNNEL_ENCAP_FLAG_CSUM", uapi::TunnelFlags::CSUM.bits().into()),
        ("IP_VS_TUNNEL_ENCAP_FLAG_REMCSUM", uapi::TunnelFlags::REMCSUM.bits().into()),
        ("IP_VS_STATE_NONE", uapi::STATE_NONE.into()),
        ("IP_VS_STATE_MASTER", uapi::STATE_MASTER.into()),
        ("IP_VS_STATE_BACKUP", uapi::STATE_BACKUP.into()),
        ("IP_VS_SCHEDNAME_MAXLEN", i64::try_from(uapi::SCHEDNAME_MAXLEN).unwrap()),
        ("IP_VS_PENAME_MAXLEN", i64::try_from(uapi::PENAME_MAXLEN).unwrap()),
        ("IP_VS_IFNAME_MAXLEN", i64::try_from(uapi::IFNAME_MAXLEN).unwrap()),
    ];
    for (name, number) in constants {
        assert_eq!(header.get(name), Some(&number), "{name}");
    }
}

fn commands() -> Vec<(&'static str, u8)> {
    use ipvs_sys::*;
    type S<'a> = &'a [SvcAttr<'a>];
    type D<'a> = &'a [DestAttr<'a>];
    fn of<C: Command>() -> (&'static str, u8) {
        (C::NAME, C::NUMBER)
    }
    vec![
        of::<NewService<S<'_>>>(),
        of::<SetService<S<'_>>>(),
        of::<DelService<S<'_>>>(),
        of::<GetService<S<'_>>>(),
        of::<NewDest<S<'_>, D<'_>>>(),
        of::<SetDest<S<'_>, D<'_>>>(),
        of::<DelDest<S<'_>, D<'_>>>(),
        of::<GetDest<S<'_>>>(),
        of::<NewDaemon<&[DaemonAttr<'_>]>>(),
        of::<DelDaemon<&[DaemonAttr<'_>]>>(),
        of::<GetDaemon>(),
        of::<SetConfig<&[CmdAttr<'_>]>>(),
        of::<GetConfig>(),
        ("IPVS_CMD_SET_INFO", SET_INFO),
        of::<GetInfo>(),
        of::<Zero<S<'_>>>(),
        of::<Flush>(),
    ]
}
