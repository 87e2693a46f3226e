//! Tables.

use super::TableKey;
use crate::expr::flags;

flags! {
    /// Properties of a table (`NFT_TABLE_F_*`).
    TableFlags {
        /// Its base chains see no packets.
        DORMANT = 1;
        /// The table is deleted when the socket that created it is closed; only that socket may change it. Since Linux
        /// 5.12.
        OWNER = 2;
        /// The table outlives its owner. Since Linux 6.9.
        PERSIST = 4;
    }
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Table {
    /// Identity of the table.
    pub key: TableKey,
    /// Flags.
    #[cfg_attr(feature = "serde", serde(default))]
    pub flags: TableFlags,
    /// A comment. nft accepts at most 128 bytes, the kernel stores up to 253. Kept since Linux 5.10.
    pub comment: Option<String>,
}

impl Table {
    /// A table without flags.
    pub fn new(key: TableKey) -> Self {
        Table { key, flags: TableFlags::empty(), comment: None }
    }
}

/// A table as read from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ObservedTable {
    /// The table.
    pub table: Table,
    /// The kernel's handle.
    pub handle: u64,
    /// Number of chains, sets and objects in it.
    pub references: u32,
    /// Netlink port of its owner.
    pub owner: Option<u32>,
}
