//! Flow tables.

use super::{FlowtableKey, InvalidValue, Priority};
use crate::expr::flags;

flags! {
    /// Properties of a flow table (`NFT_FLOWTABLE_*`).
    FlowtableFlags {
        /// Flows are offloaded to the devices, which must support it (nft's `flags offload`).
        HW_OFFLOAD = 1;
        /// Packets of flows are counted by connection tracking. Since Linux 5.7.
        COUNTER = 2;
    }
}

/// A flow table. Packets of connections that a rule has added to it go from device to device at ingress and skip all
/// chains.
///
/// ```
/// use nftables::{Family, Flowtable, FlowtableFlags, L4Protocol, Name, TableKey, Transaction, rule};
///
/// let table = TableKey::new(Family::Inet, "router")?;
/// let fast = Flowtable::new(table.flowtable("fast")?, ["eth0", "eth1"]).flags(FlowtableFlags::COUNTER);
/// let mut transaction = Transaction::new();
/// transaction.add_flowtable(fast);
/// // The chain is at hook `forward`.
/// let add = rule(Family::Inet).meta_l4proto(L4Protocol::TCP).flow_add(Name::new("fast")?).build()?;
/// transaction.add_rule(&table.chain("forward")?, add);
/// assert_eq!(
///     transaction.to_string(),
///     "\
/// add flowtable inet router fast { hook ingress priority 0; devices = { \"eth0\", \"eth1\" }; counter; }
/// add rule inet router forward meta l4proto tcp flow add @fast
/// "
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Flowtable {
    /// Identity of the flow table.
    pub key: FlowtableKey,
    /// Order at hook `ingress` of its devices: smaller numbers run first.
    #[cfg_attr(feature = "serde", serde(default))]
    pub priority: Priority,
    /// Devices whose packets it handles. Each device may be in one flow table of a table
    /// (`nft_register_flowtable_net_hooks`). `eth*`: all devices with this prefix, including later ones (Linux 6.16).
    #[cfg_attr(feature = "serde", serde(default))]
    pub devices: Vec<String>,
    /// Flags.
    #[cfg_attr(feature = "serde", serde(default))]
    pub flags: FlowtableFlags,
}

impl Flowtable {
    /// A flow table for these devices, with priority 0 (`filter`).
    pub fn new<D: Into<String>>(key: FlowtableKey, devices: impl IntoIterator<Item = D>) -> Self {
        let devices = devices.into_iter().map(Into::into).collect();
        Flowtable { key, priority: Priority::FILTER, devices, flags: FlowtableFlags::empty() }
    }

    /// Refuses invalid device names (`dev_valid_name`, net/core/dev.c).
    pub(crate) fn check_devices(devices: &[String]) -> Result<(), InvalidValue> {
        let odd = |name: &&String| {
            let known = matches!(name.as_str(), "" | "." | "..") || name.len() > 15;
            known || name.chars().any(|c| c.is_whitespace() || c.is_control() || matches!(c, '/' | ':'))
        };
        match devices.iter().find(odd) {
            Some(name) => Err(InvalidValue::new(
                format!("device {name:?}"),
                "no device has such a name: 1 to 15 bytes without blanks, slash, colon and control characters",
            )),
            None => Ok(()),
        }
    }
}

netlink_batch::settings! {
    Flowtable:
    /// Sets the priority.
    priority(priority: Priority) |of| of.priority = priority;
    /// Adds flags.
    flags(flags: FlowtableFlags) |of| of.flags |= flags;
}

/// A flow table as read from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ObservedFlowtable {
    /// The flow table.
    pub flowtable: Flowtable,
    /// The kernel's handle.
    pub handle: u64,
    /// Number of rules that add to it.
    pub references: u32,
}
