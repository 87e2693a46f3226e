//! The attribute tables: number, name and type of each attribute, as in linux/netfilter/nf_tables.h.
//!
//! Numbers are in network byte order unless noted otherwise.

use netlink_batch::{Attrs, Be16, Be32, Be64, NulStr, attrs};

attrs! {
    /// `enum nft_batch_attributes` of nfnetlink.
    "NFNL_BATCH_", pub enum BatchAttr<'a> {
        /// The generation for which the transaction was made.
        GENID = 1 => Genid(Be32),
    }

    /// The state of the whole rule set.
    "NFTA_GEN_", pub enum GenAttr<'a> {
        ID = 1 => Id(Be32),
        PROC_PID = 2 => ProcPid(Be32),
        PROC_NAME = 3 => ProcName(NulStr<'a>),
    }

    /// A step of a traced packet.
    "NFTA_TRACE_", pub enum TraceAttr<'a> {
        TABLE = 1 => Table(NulStr<'a>),
        CHAIN = 2 => Chain(NulStr<'a>),
        RULE_HANDLE = 3 => RuleHandle(Be64),
        /// `NFT_TRACETYPE_*`.
        TYPE = 4 => Type(Be32),
        VERDICT = 5 => Verdict(Attrs<'a, VerdictAttr<'a>>),
        ID = 6 => Id(Be32),
        /// First bytes of the link header.
        LL_HEADER = 7 => LlHeader(&'a [u8]),
        /// First bytes of the network header.
        NETWORK_HEADER = 8 => NetworkHeader(&'a [u8]),
        /// First bytes of the transport header.
        TRANSPORT_HEADER = 9 => TransportHeader(&'a [u8]),
        IIF = 10 => Iif(Be32),
        IIFTYPE = 11 => Iiftype(Be16),
        OIF = 12 => Oif(Be32),
        OIFTYPE = 13 => Oiftype(Be16),
        MARK = 14 => Mark(Be32),
        /// `NFPROTO_*`.
        NFPROTO = 15 => Nfproto(Be32),
        POLICY = 16 => Policy(Be32),
        PAD = 17 => Pad(&'a [u8]),
    }

    /// A table.
    "NFTA_TABLE_", pub enum TableAttr<'a> {
        NAME = 1 => Name(NulStr<'a>),
        /// `NFT_TABLE_F_*`.
        FLAGS = 2 => Flags(Be32),
        USE = 3 => Use(Be32),
        HANDLE = 4 => Handle(Be64),
        PAD = 5 => Pad(&'a [u8]),
        /// Data stored by programs. Since Linux 5.10.
        USERDATA = 6 => Userdata(&'a [u8]),
        /// Netlink port of the owner. Since Linux 5.12.
        OWNER = 7 => Owner(Be32),
    }

    /// A chain.
    "NFTA_CHAIN_", pub enum ChainAttr<'a> {
        TABLE = 1 => Table(NulStr<'a>),
        HANDLE = 2 => Handle(Be64),
        NAME = 3 => Name(NulStr<'a>),
        HOOK = 4 => Hook(Attrs<'a, HookAttr<'a>>),
        POLICY = 5 => Policy(Be32),
        USE = 6 => Use(Be32),
        TYPE = 7 => Type(NulStr<'a>),
        COUNTERS = 8 => Counters(&'a [u8]),
        PAD = 9 => Pad(&'a [u8]),
        /// `NFT_CHAIN_*`.
        FLAGS = 10 => Flags(Be32),
        ID = 11 => Id(Be32),
        USERDATA = 12 => Userdata(&'a [u8]),
    }

    /// Hook of a base chain.
    "NFTA_HOOK_", pub enum HookAttr<'a> {
        /// `NF_INET_*` or `NF_NETDEV_*`.
        HOOKNUM = 1 => Hooknum(Be32),
        /// Order among the chains of a hook; signed.
        PRIORITY = 2 => Priority(Be32),
        DEV = 3 => Dev(NulStr<'a>),
        DEVS = 4 => Devs(&'a [u8]),
    }

    /// A device of a hook.
    "NFTA_DEVICE_", pub enum DeviceAttr<'a> {
        NAME = 1 => Name(NulStr<'a>),
        /// Prefix of several names. Since Linux 6.16.
        PREFIX = 2 => Prefix(&'a [u8]),
    }

    /// A rule.
    "NFTA_RULE_", pub enum RuleAttr<'a> {
        TABLE = 1 => Table(NulStr<'a>),
        CHAIN = 2 => Chain(NulStr<'a>),
        HANDLE = 3 => Handle(Be64),
        EXPRESSIONS = 4 => Expressions(Attrs<'a, ListAttr<'a>>),
        /// Data of iptables-nft.
        COMPAT = 5 => Compat(&'a [u8]),
        /// Handle of the preceding rule; in a request, of the neighbour.
        POSITION = 6 => Position(Be64),
        USERDATA = 7 => Userdata(&'a [u8]),
        PAD = 8 => Pad(&'a [u8]),
        ID = 9 => Id(Be32),
        /// The neighbour's number within the transaction.
        POSITION_ID = 10 => PositionId(Be32),
        CHAIN_ID = 11 => ChainId(Be32),
    }

    /// A list of expressions.
    "NFTA_LIST_", pub enum ListAttr<'a> {
        ELEM = 1 => Elem(Attrs<'a, ExprAttr<'a>>),
    }

    /// An expression.
    "NFTA_EXPR_", pub enum ExprAttr<'a> {
        NAME = 1 => Name(NulStr<'a>),
        DATA = 2 => Data(&'a [u8]),
    }

    /// A set or map.
    "NFTA_SET_", pub enum SetAttr<'a> {
        TABLE = 1 => Table(NulStr<'a>),
        NAME = 2 => Name(NulStr<'a>),
        /// `NFT_SET_*`.
        FLAGS = 3 => Flags(Be32),
        /// Number of the key's type in nft.
        KEY_TYPE = 4 => KeyType(Be32),
        /// Length of the key in bytes.
        KEY_LEN = 5 => KeyLen(Be32),
        /// Number of the data's type in nft, or `NFT_DATA_VERDICT`.
        DATA_TYPE = 6 => DataType(Be32),
        /// Length of the data in bytes.
        DATA_LEN = 7 => DataLen(Be32),
        /// `NFT_SET_POL_*`.
        POLICY = 8 => Policy(Be32),
        DESC = 9 => Desc(Attrs<'a, SetDescAttr<'a>>),
        ID = 10 => Id(Be32),
        /// Default timeout in milliseconds.
        TIMEOUT = 11 => Timeout(Be64),
        /// Interval of the garbage collection in milliseconds.
        GC_INTERVAL = 12 => GcInterval(Be32),
        USERDATA = 13 => Userdata(&'a [u8]),
        PAD = 14 => Pad(&'a [u8]),
        OBJ_TYPE = 15 => ObjType(Be32),
        HANDLE = 16 => Handle(Be64),
        EXPR = 17 => Expr(Attrs<'a, ExprAttr<'a>>),
        EXPRESSIONS = 18 => Expressions(Attrs<'a, ListAttr<'a>>),
        /// Name of the implementation. Since Linux 6.16.
        TYPE = 19 => Type(NulStr<'a>),
        /// Number of elements. Since Linux 6.16.
        COUNT = 20 => Count(Be32),
    }

    /// Expected size and fields.
    "NFTA_SET_DESC_", pub enum SetDescAttr<'a> {
        SIZE = 1 => Size(Be32),
        /// Lengths of a concatenation's fields. Since Linux 5.6.
        CONCAT = 2 => Concat(&'a [u8]),
    }

    /// A field of a concatenation.
    "NFTA_SET_FIELD_", pub enum SetFieldAttr<'a> {
        /// Length in bytes.
        LEN = 1 => Len(Be32),
    }

    /// Elements of a set.
    "NFTA_SET_ELEM_LIST_", pub enum ElemListAttr<'a> {
        TABLE = 1 => Table(NulStr<'a>),
        SET = 2 => Set(NulStr<'a>),
        ELEMENTS = 3 => Elements(&'a [u8]),
        SET_ID = 4 => SetId(Be32),
    }

    /// An element.
    "NFTA_SET_ELEM_", pub enum ElemAttr<'a> {
        KEY = 1 => Key(Attrs<'a, DataAttr<'a>>),
        DATA = 2 => Data(Attrs<'a, DataAttr<'a>>),
        /// `NFT_SET_ELEM_*`.
        FLAGS = 3 => Flags(Be32),
        /// Timeout in milliseconds.
        TIMEOUT = 4 => Timeout(Be64),
        /// Milliseconds left.
        EXPIRATION = 5 => Expiration(Be64),
        USERDATA = 6 => Userdata(&'a [u8]),
        EXPR = 7 => Expr(Attrs<'a, ExprAttr<'a>>),
        PAD = 8 => Pad(&'a [u8]),
        OBJREF = 9 => Objref(NulStr<'a>),
        /// End of a concatenation's interval. Since Linux 5.6.
        KEY_END = 10 => KeyEnd(Attrs<'a, DataAttr<'a>>),
        /// Expressions. Since Linux 5.11.
        EXPRESSIONS = 11 => Expressions(Attrs<'a, ListAttr<'a>>),
    }

    /// A value or a verdict.
    "NFTA_DATA_", pub enum DataAttr<'a> {
        VALUE = 1 => Value(&'a [u8]),
        VERDICT = 2 => Verdict(Attrs<'a, VerdictAttr<'a>>),
    }

    /// A verdict.
    "NFTA_VERDICT_", pub enum VerdictAttr<'a> {
        /// `NF_*` or `NFT_*`; signed.
        CODE = 1 => Code(Be32),
        CHAIN = 2 => Chain(NulStr<'a>),
        CHAIN_ID = 3 => ChainId(Be32),
    }

    /// A named object.
    "NFTA_OBJ_", pub enum ObjAttr<'a> {
        TABLE = 1 => Table(NulStr<'a>),
        NAME = 2 => Name(NulStr<'a>),
        /// `NFT_OBJECT_*`.
        TYPE = 3 => Type(Be32),
        DATA = 4 => Data(&'a [u8]),
        USE = 5 => Use(Be32),
        HANDLE = 6 => Handle(Be64),
        PAD = 7 => Pad(&'a [u8]),
        USERDATA = 8 => Userdata(&'a [u8]),
    }

    /// Reads bytes of a packet, or writes them.
    "NFTA_PAYLOAD_", pub enum PayloadAttr<'a> {
        DREG = 1 => Dreg(Be32),
        /// Header, `NFT_PAYLOAD_*`.
        BASE = 2 => Base(Be32),
        OFFSET = 3 => Offset(Be32),
        /// Number of bytes.
        LEN = 4 => Len(Be32),
        SREG = 5 => Sreg(Be32),
        CSUM_TYPE = 6 => CsumType(Be32),
        CSUM_OFFSET = 7 => CsumOffset(Be32),
        /// `NFT_PAYLOAD_L4CSUM_*`.
        CSUM_FLAGS = 8 => CsumFlags(Be32),
    }

    /// Reads or sets metadata of a packet.
    "NFTA_META_", pub enum MetaAttr<'a> {
        DREG = 1 => Dreg(Be32),
        /// `NFT_META_*`.
        KEY = 2 => Key(Be32),
        SREG = 3 => Sreg(Be32),
    }

    /// Reads or sets a part of the connection.
    "NFTA_CT_", pub enum CtAttr<'a> {
        DREG = 1 => Dreg(Be32),
        /// `NFT_CT_*`.
        KEY = 2 => Key(Be32),
        /// `IP_CT_DIR_*`.
        DIRECTION = 3 => Direction(u8),
        SREG = 4 => Sreg(Be32),
    }

    /// Looks up a route.
    "NFTA_FIB_", pub enum FibAttr<'a> {
        DREG = 1 => Dreg(Be32),
        /// Result that is looked up, `NFT_FIB_RESULT_*`.
        RESULT = 2 => Result(Be32),
        /// `NFTA_FIB_F_*`.
        FLAGS = 3 => Flags(Be32),
    }

    /// Compares with a constant.
    "NFTA_CMP_", pub enum CmpAttr<'a> {
        SREG = 1 => Sreg(Be32),
        /// `NFT_CMP_*`.
        OP = 2 => Op(Be32),
        DATA = 3 => Data(Attrs<'a, DataAttr<'a>>),
    }

    /// Computes with bits.
    "NFTA_BITWISE_", pub enum BitwiseAttr<'a> {
        SREG = 1 => Sreg(Be32),
        DREG = 2 => Dreg(Be32),
        /// Number of bytes.
        LEN = 3 => Len(Be32),
        MASK = 4 => Mask(Attrs<'a, DataAttr<'a>>),
        XOR = 5 => Xor(Attrs<'a, DataAttr<'a>>),
        /// `NFT_BITWISE_*`. Since Linux 5.6.
        OP = 6 => Op(Be32),
        /// Number of bits to shift by.
        DATA = 7 => Data(Attrs<'a, DataAttr<'a>>),
    }

    /// Converts byte order.
    "NFTA_BYTEORDER_", pub enum ByteorderAttr<'a> {
        SREG = 1 => Sreg(Be32),
        DREG = 2 => Dreg(Be32),
        /// `NFT_BYTEORDER_*`.
        OP = 3 => Op(Be32),
        /// Number of bytes.
        LEN = 4 => Len(Be32),
        /// Bytes of one number.
        SIZE = 5 => Size(Be32),
    }

    /// Compares with two constants.
    "NFTA_RANGE_", pub enum RangeAttr<'a> {
        SREG = 1 => Sreg(Be32),
        /// `NFT_RANGE_*`.
        OP = 2 => Op(Be32),
        FROM_DATA = 3 => FromData(Attrs<'a, DataAttr<'a>>),
        TO_DATA = 4 => ToData(Attrs<'a, DataAttr<'a>>),
    }

    /// Looks up a key in a set or map.
    "NFTA_LOOKUP_", pub enum LookupAttr<'a> {
        SET = 1 => Set(NulStr<'a>),
        SREG = 2 => Sreg(Be32),
        DREG = 3 => Dreg(Be32),
        SET_ID = 4 => SetId(Be32),
        /// `NFT_LOOKUP_F_*`.
        FLAGS = 5 => Flags(Be32),
    }

    /// Sets a register.
    "NFTA_IMMEDIATE_", pub enum ImmediateAttr<'a> {
        DREG = 1 => Dreg(Be32),
        DATA = 2 => Data(Attrs<'a, DataAttr<'a>>),
    }

    /// Translates addresses.
    "NFTA_NAT_", pub enum NatAttr<'a> {
        /// `NFT_NAT_*`.
        TYPE = 1 => Type(Be32),
        /// `NFPROTO_*`.
        FAMILY = 2 => Family(Be32),
        REG_ADDR_MIN = 3 => RegAddrMin(Be32),
        REG_ADDR_MAX = 4 => RegAddrMax(Be32),
        REG_PROTO_MIN = 5 => RegProtoMin(Be32),
        REG_PROTO_MAX = 6 => RegProtoMax(Be32),
        /// `NF_NAT_RANGE_*`.
        FLAGS = 7 => Flags(Be32),
    }

    /// Translates the source to the address of the output device.
    "NFTA_MASQ_", pub enum MasqAttr<'a> {
        /// `NF_NAT_RANGE_*`.
        FLAGS = 1 => Flags(Be32),
        REG_PROTO_MIN = 2 => RegProtoMin(Be32),
        REG_PROTO_MAX = 3 => RegProtoMax(Be32),
    }

    /// Translates the destination to this host.
    "NFTA_REDIR_", pub enum RedirAttr<'a> {
        REG_PROTO_MIN = 1 => RegProtoMin(Be32),
        REG_PROTO_MAX = 2 => RegProtoMax(Be32),
        /// `NF_NAT_RANGE_*`.
        FLAGS = 3 => Flags(Be32),
    }

    /// Answers with a refusal.
    "NFTA_REJECT_", pub enum RejectAttr<'a> {
        /// `NFT_REJECT_*`.
        TYPE = 1 => Type(Be32),
        ICMP_CODE = 2 => IcmpCode(u8),
    }

    /// Makes numbers.
    "NFTA_NG_", pub enum NgAttr<'a> {
        DREG = 1 => Dreg(Be32),
        MODULUS = 2 => Modulus(Be32),
        /// `NFT_NG_*`.
        TYPE = 3 => Type(Be32),
        OFFSET = 4 => Offset(Be32),
    }

    /// Computes a number from bytes.
    "NFTA_HASH_", pub enum HashAttr<'a> {
        SREG = 1 => Sreg(Be32),
        DREG = 2 => Dreg(Be32),
        /// Number of bytes.
        LEN = 3 => Len(Be32),
        MODULUS = 4 => Modulus(Be32),
        SEED = 5 => Seed(Be32),
        OFFSET = 6 => Offset(Be32),
        /// `NFT_HASH_*`.
        TYPE = 7 => Type(Be32),
    }

    /// Changes a set at runtime.
    "NFTA_DYNSET_", pub enum DynsetAttr<'a> {
        SET_NAME = 1 => SetName(NulStr<'a>),
        SET_ID = 2 => SetId(Be32),
        /// `NFT_DYNSET_OP_*`.
        OP = 3 => Op(Be32),
        SREG_KEY = 4 => SregKey(Be32),
        SREG_DATA = 5 => SregData(Be32),
        /// Timeout in milliseconds.
        TIMEOUT = 6 => Timeout(Be64),
        EXPR = 7 => Expr(Attrs<'a, ExprAttr<'a>>),
        PAD = 8 => Pad(&'a [u8]),
        /// `NFT_DYNSET_F_*`.
        FLAGS = 9 => Flags(Be32),
        /// Expressions of the element. Since Linux 5.11.
        EXPRESSIONS = 10 => Expressions(Attrs<'a, ListAttr<'a>>),
    }

    /// Counts.
    "NFTA_COUNTER_", pub enum CounterAttr<'a> {
        BYTES = 1 => Bytes(Be64),
        PACKETS = 2 => Packets(Be64),
        PAD = 3 => Pad(&'a [u8]),
    }

    /// Matches up to a rate.
    "NFTA_LIMIT_", pub enum LimitAttr<'a> {
        RATE = 1 => Rate(Be64),
        /// Unit of time in seconds.
        UNIT = 2 => Unit(Be64),
        BURST = 3 => Burst(Be32),
        /// `NFT_LIMIT_*`.
        TYPE = 4 => Type(Be32),
        /// `NFT_LIMIT_F_*`.
        FLAGS = 5 => Flags(Be32),
        PAD = 6 => Pad(&'a [u8]),
    }

    /// Writes into a log.
    "NFTA_LOG_", pub enum LogAttr<'a> {
        GROUP = 1 => Group(Be16),
        PREFIX = 2 => Prefix(NulStr<'a>),
        /// Bytes of a packet to copy.
        SNAPLEN = 3 => Snaplen(Be32),
        QTHRESHOLD = 4 => Qthreshold(Be16),
        LEVEL = 5 => Level(Be32),
        /// `NF_LOG_*`.
        FLAGS = 6 => Flags(Be32),
    }

    /// Refers to an object.
    "NFTA_OBJREF_", pub enum ObjrefAttr<'a> {
        /// `NFT_OBJECT_*`.
        IMM_TYPE = 1 => ImmType(Be32),
        IMM_NAME = 2 => ImmName(NulStr<'a>),
        SET_SREG = 3 => SetSreg(Be32),
        SET_NAME = 4 => SetName(NulStr<'a>),
        SET_ID = 5 => SetId(Be32),
    }

    /// Reads an option or extension header; writes or removes an option.
    "NFTA_EXTHDR_", pub enum ExthdrAttr<'a> {
        DREG = 1 => Dreg(Be32),
        TYPE = 2 => Type(u8),
        OFFSET = 3 => Offset(Be32),
        /// Number of bytes.
        LEN = 4 => Len(Be32),
        /// `NFT_EXTHDR_F_*`.
        FLAGS = 5 => Flags(Be32),
        /// `NFT_EXTHDR_OP_*`.
        OP = 6 => Op(Be32),
        SREG = 7 => Sreg(Be32),
    }

    /// Reads a property of the packet's route.
    "NFTA_RT_", pub enum RtAttr<'a> {
        DREG = 1 => Dreg(Be32),
        /// `NFT_RT_*`.
        KEY = 2 => Key(Be32),
    }

    /// Reads a property of the socket.
    "NFTA_SOCKET_", pub enum SocketAttr<'a> {
        /// `NFT_SOCKET_*`.
        KEY = 1 => Key(Be32),
        DREG = 2 => Dreg(Be32),
        LEVEL = 3 => Level(Be32),
    }

    /// Guesses the operating system.
    "NFTA_OSF_", pub enum OsfAttr<'a> {
        DREG = 1 => Dreg(Be32),
        TTL = 2 => Ttl(u8),
        /// `NFT_OSF_F_*`.
        FLAGS = 3 => Flags(Be32),
    }

    /// Reads a property of an IPsec state.
    "NFTA_XFRM_", pub enum XfrmAttr<'a> {
        DREG = 1 => Dreg(Be32),
        /// `NFT_XFRM_KEY_*`.
        KEY = 2 => Key(Be32),
        /// Incoming or outgoing, `XFRM_POLICY_*`.
        DIR = 3 => Dir(u8),
        SPNUM = 4 => Spnum(Be32),
    }

    /// Completes TCP handshakes on behalf of a server.
    "NFTA_SYNPROXY_", pub enum SynproxyAttr<'a> {
        MSS = 1 => Mss(Be16),
        WSCALE = 2 => Wscale(u8),
        /// `NF_SYNPROXY_OPT_*`.
        FLAGS = 3 => Flags(Be32),
    }

    /// Matches up to a number of bytes.
    "NFTA_QUOTA_", pub enum QuotaAttr<'a> {
        /// Number of bytes.
        BYTES = 1 => Bytes(Be64),
        /// `NFT_QUOTA_F_*`.
        FLAGS = 2 => Flags(Be32),
        PAD = 3 => Pad(&'a [u8]),
        /// Bytes so far.
        CONSUMED = 4 => Consumed(Be64),
    }

    /// Matches up to a number of connections.
    "NFTA_CONNLIMIT_", pub enum ConnlimitAttr<'a> {
        COUNT = 1 => Count(Be32),
        /// `NFT_CONNLIMIT_F_*`.
        FLAGS = 2 => Flags(Be32),
    }

    /// Passes packets to a program.
    "NFTA_QUEUE_", pub enum QueueAttr<'a> {
        NUM = 1 => Num(Be16),
        TOTAL = 2 => Total(Be16),
        /// `NFT_QUEUE_FLAG_*`.
        FLAGS = 3 => Flags(Be16),
        SREG_QNUM = 4 => SregQnum(Be32),
    }

    /// Sends a copy of the packet.
    "NFTA_DUP_", pub enum DupAttr<'a> {
        SREG_ADDR = 1 => SregAddr(Be32),
        SREG_DEV = 2 => SregDev(Be32),
    }

    /// Forwards the packet through a device.
    "NFTA_FWD_", pub enum FwdAttr<'a> {
        SREG_DEV = 1 => SregDev(Be32),
        SREG_ADDR = 2 => SregAddr(Be32),
        /// Family of the address, `NFPROTO_*`.
        NFPROTO = 3 => Nfproto(Be32),
    }

    /// Passes packets to a socket of this host.
    "NFTA_TPROXY_", pub enum TproxyAttr<'a> {
        /// Family of the address, `NFPROTO_*`.
        FAMILY = 1 => Family(Be32),
        REG_ADDR = 2 => RegAddr(Be32),
        REG_PORT = 3 => RegPort(Be32),
    }

    /// Adds the connection to a flow table.
    "NFTA_FLOW_", pub enum FlowAttr<'a> {
        TABLE_NAME = 1 => TableName(NulStr<'a>),
    }

    /// A flow table.
    "NFTA_FLOWTABLE_", pub enum FlowtableAttr<'a> {
        TABLE = 1 => Table(NulStr<'a>),
        NAME = 2 => Name(NulStr<'a>),
        HOOK = 3 => Hook(Attrs<'a, FlowtableHookAttr<'a>>),
        USE = 4 => Use(Be32),
        HANDLE = 5 => Handle(Be64),
        PAD = 6 => Pad(&'a [u8]),
        /// `NFT_FLOWTABLE_*`. Since Linux 5.5.
        FLAGS = 7 => Flags(Be32),
    }

    /// Hook of a flow table.
    "NFTA_FLOWTABLE_HOOK_", pub enum FlowtableHookAttr<'a> {
        /// `NF_NETDEV_INGRESS`.
        NUM = 1 => Num(Be32),
        /// Order at the hook; signed.
        PRIORITY = 2 => Priority(Be32),
        DEVS = 3 => Devs(&'a [u8]),
    }

    /// Object: a connection-tracking helper.
    "NFTA_CT_HELPER_", pub enum CtHelperAttr<'a> {
        NAME = 1 => Name(NulStr<'a>),
        /// `NFPROTO_*`.
        L3PROTO = 2 => L3proto(Be16),
        /// `IPPROTO_*`.
        L4PROTO = 3 => L4proto(u8),
    }

    /// Object: timeouts of connections.
    "NFTA_CT_TIMEOUT_", pub enum CtTimeoutAttr<'a> {
        /// `NFPROTO_*`.
        L3PROTO = 1 => L3proto(Be16),
        /// `IPPROTO_*`.
        L4PROTO = 2 => L4proto(u8),
        /// Seconds by state, `CTA_TIMEOUT_*`.
        DATA = 3 => Data(&'a [u8]),
    }

    /// Object: an expected connection.
    "NFTA_CT_EXPECT_", pub enum CtExpectAttr<'a> {
        /// `NFPROTO_*`.
        L3PROTO = 1 => L3proto(Be16),
        /// `IPPROTO_*`.
        L4PROTO = 2 => L4proto(u8),
        DPORT = 3 => Dport(Be16),
        /// Seconds, in the machine's byte order.
        TIMEOUT = 4 => Timeout(u32),
        SIZE = 5 => Size(u8),
    }

    /// Object: a security label for packets.
    "NFTA_SECMARK_", pub enum SecmarkAttr<'a> {
        CTX = 1 => Ctx(NulStr<'a>),
    }
}
