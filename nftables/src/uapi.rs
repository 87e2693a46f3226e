//! Numbers of linux/netfilter/nf_tables.h and related headers, with their C names.

netlink_batch::numbers! {
    const ALL;

    // linux/netfilter/nfnetlink.h
    NFNL_SUBSYS_NFTABLES: u8 = 10;
    NFNL_MSG_BATCH_BEGIN: u16 = 16;
    NFNL_MSG_BATCH_END: u16 = 17;
    NFNL_BATCH_GENID: u16 = 1;
    NFNLGRP_NFTABLES: u32 = 7;
    NFNLGRP_NFTRACE: u32 = 9;

    // enum nf_tables_msg_types
    NFT_MSG_NEWTABLE: u8 = 0;
    NFT_MSG_GETTABLE: u8 = 1;
    NFT_MSG_DELTABLE: u8 = 2;
    NFT_MSG_NEWCHAIN: u8 = 3;
    NFT_MSG_GETCHAIN: u8 = 4;
    NFT_MSG_DELCHAIN: u8 = 5;
    NFT_MSG_NEWRULE: u8 = 6;
    NFT_MSG_GETRULE: u8 = 7;
    NFT_MSG_DELRULE: u8 = 8;
    NFT_MSG_NEWSET: u8 = 9;
    NFT_MSG_GETSET: u8 = 10;
    NFT_MSG_DELSET: u8 = 11;
    NFT_MSG_NEWSETELEM: u8 = 12;
    NFT_MSG_GETSETELEM: u8 = 13;
    NFT_MSG_DELSETELEM: u8 = 14;
    NFT_MSG_NEWGEN: u8 = 15;
    NFT_MSG_GETGEN: u8 = 16;
    NFT_MSG_TRACE: u8 = 17;
    NFT_MSG_NEWOBJ: u8 = 18;
    NFT_MSG_GETOBJ: u8 = 19;
    NFT_MSG_DELOBJ: u8 = 20;
    NFT_MSG_GETOBJ_RESET: u8 = 21;
    NFT_MSG_NEWFLOWTABLE: u8 = 22;
    NFT_MSG_GETFLOWTABLE: u8 = 23;
    NFT_MSG_DELFLOWTABLE: u8 = 24;
    NFT_MSG_GETRULE_RESET: u8 = 25;
    NFT_MSG_GETSETELEM_RESET: u8 = 33;

    NFT_NAME_MAXLEN: usize = 256;
    NFT_USERDATA_MAXLEN: usize = 256;
    NFT_DATA_VALUE_MAXLEN: usize = 64;
    NFT_DATA_VERDICT: u32 = 0xffff_ff00;
    NFT_REG_SIZE: u32 = 16;
    NFT_REG32_SIZE: u32 = 4;
    NFT_SET_ELEM_INTERVAL_END: u32 = 1;
    NFT_SET_ELEM_CATCHALL: u32 = 2;
    NFT_LOOKUP_F_INV: u32 = 1;
    NFT_DYNSET_F_INV: u32 = 1;
    NFT_DYNSET_F_EXPR: u32 = 2;
    NFT_LIMIT_F_INV: u32 = 1;
    NFT_EXTHDR_F_PRESENT: u32 = 1;
    NFT_OSF_F_VERSION: u32 = 1;
    NFT_QUOTA_F_INV: u32 = 1;
    NFT_QUOTA_F_DEPLETED: u32 = 2;
    NFT_CONNLIMIT_F_INV: u32 = 1;
    NFT_CHAIN_BASE: u32 = 1;
    NFT_CHAIN_BINDING: u32 = 4;
    NFT_RETURN: i32 = -5;
    NFT_GOTO: i32 = -4;
    NFT_JUMP: i32 = -3;
    NFT_BREAK: i32 = -2;
    NFT_CONTINUE: i32 = -1;
    NFT_OBJECT_COUNTER: u32 = 1;
}
