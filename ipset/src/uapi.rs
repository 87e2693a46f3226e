//! Numbers and limits of linux/netfilter/ipset/ip_set.h and related headers, with their C names.

/// `IFNAMSIZ` (linux/if.h): length of an interface's name with its NUL.
pub const IFNAMSIZ: usize = 16;
/// `IPSET_MAX_TIMEOUT` (kernel, linux/netfilter/ipset/ip_set.h): the longest timeout in seconds.
pub const IPSET_MAX_TIMEOUT: u32 = (u32::MAX >> 1) / 1000;

netlink_batch::numbers! {
    const ALL;

    /// ipset's part of nfnetlink (linux/netfilter/nfnetlink.h).
    NFNL_SUBSYS_IPSET: u8 = 6;
    /// The newest protocol version that this crate supports.
    IPSET_PROTOCOL: u8 = 7;
    /// The oldest version that this crate supports. It cannot look up sets by index.
    IPSET_PROTOCOL_MIN: u8 = 6;
    /// Length of a set's or type's name with its NUL.
    IPSET_MAXNAMELEN: usize = 32;
    /// Length of a comment in bytes.
    IPSET_MAX_COMMENT_SIZE: usize = 255;

    // enum ipset_cmd
    IPSET_CMD_PROTOCOL: u8 = 1;
    IPSET_CMD_CREATE: u8 = 2;
    IPSET_CMD_DESTROY: u8 = 3;
    IPSET_CMD_FLUSH: u8 = 4;
    IPSET_CMD_RENAME: u8 = 5;
    IPSET_CMD_SWAP: u8 = 6;
    IPSET_CMD_LIST: u8 = 7;
    IPSET_CMD_SAVE: u8 = 8;
    IPSET_CMD_ADD: u8 = 9;
    IPSET_CMD_DEL: u8 = 10;
    IPSET_CMD_TEST: u8 = 11;
    IPSET_CMD_HEADER: u8 = 12;
    IPSET_CMD_TYPE: u8 = 13;
    IPSET_CMD_GET_BYNAME: u8 = 14;
    IPSET_CMD_GET_BYINDEX: u8 = 15;

    // enum ipset_cmd_flags
    IPSET_FLAG_EXIST: u32 = 1 << 0;
    IPSET_FLAG_LIST_SETNAME: u32 = 1 << 1;
    IPSET_FLAG_LIST_HEADER: u32 = 1 << 2;

    // enum ipset_cadt_flags
    IPSET_FLAG_BEFORE: u32 = 1 << 0;
    IPSET_FLAG_PHYSDEV: u32 = 1 << 1;
    IPSET_FLAG_NOMATCH: u32 = 1 << 2;
    IPSET_FLAG_WITH_COUNTERS: u32 = 1 << 3;
    IPSET_FLAG_WITH_COMMENT: u32 = 1 << 4;
    IPSET_FLAG_WITH_FORCEADD: u32 = 1 << 5;
    IPSET_FLAG_WITH_SKBINFO: u32 = 1 << 6;
    IPSET_FLAG_IFACE_WILDCARD: u32 = 1 << 7;

    // enum ipset_errno
    IPSET_ERR_PRIVATE: i32 = 4096;
    IPSET_ERR_PROTOCOL: i32 = 4097;
    IPSET_ERR_FIND_TYPE: i32 = 4098;
    IPSET_ERR_MAX_SETS: i32 = 4099;
    IPSET_ERR_BUSY: i32 = 4100;
    IPSET_ERR_EXIST_SETNAME2: i32 = 4101;
    IPSET_ERR_TYPE_MISMATCH: i32 = 4102;
    IPSET_ERR_EXIST: i32 = 4103;
    IPSET_ERR_INVALID_CIDR: i32 = 4104;
    IPSET_ERR_INVALID_NETMASK: i32 = 4105;
    IPSET_ERR_INVALID_FAMILY: i32 = 4106;
    IPSET_ERR_TIMEOUT: i32 = 4107;
    IPSET_ERR_REFERENCED: i32 = 4108;
    IPSET_ERR_IPADDR_IPV4: i32 = 4109;
    IPSET_ERR_IPADDR_IPV6: i32 = 4110;
    IPSET_ERR_COUNTER: i32 = 4111;
    IPSET_ERR_COMMENT: i32 = 4112;
    IPSET_ERR_INVALID_MARKMASK: i32 = 4113;
    IPSET_ERR_SKBINFO: i32 = 4114;
    /// Since Linux 6.2.
    IPSET_ERR_BITMASK_NETMASK_EXCL: i32 = 4115;
    IPSET_ERR_TYPE_SPECIFIC: i32 = 4352;

    // ip_set_hash.h
    IPSET_ERR_HASH_FULL: i32 = 4352;
    IPSET_ERR_HASH_ELEM: i32 = 4353;
    IPSET_ERR_INVALID_PROTO: i32 = 4354;
    IPSET_ERR_MISSING_PROTO: i32 = 4355;
    IPSET_ERR_HASH_RANGE_UNSUPPORTED: i32 = 4356;
    IPSET_ERR_HASH_RANGE: i32 = 4357;

    // ip_set_bitmap.h
    IPSET_ERR_BITMAP_RANGE: i32 = 4352;
    IPSET_ERR_BITMAP_RANGE_SIZE: i32 = 4353;

    // ip_set_list.h
    IPSET_ERR_NAME: i32 = 4352;
    IPSET_ERR_LOOP: i32 = 4353;
    IPSET_ERR_BEFORE: i32 = 4354;
    IPSET_ERR_NAMEREF: i32 = 4355;
    IPSET_ERR_LIST_FULL: i32 = 4356;
    IPSET_ERR_REF_EXIST: i32 = 4357;
}
