//! The expressions of which each field is one attribute.

use netlink_batch::{Be16, Be32, Be64};

use super::Expression;
use super::codec::put_other;
use super::read::get_other;
use crate::attrs::{
    BitwiseAttr, ByteorderAttr, CmpAttr, ConnlimitAttr, CounterAttr, CtAttr, DupAttr, ExthdrAttr, FibAttr, FlowAttr,
    HashAttr, LimitAttr, LogAttr, MetaAttr, NgAttr, OsfAttr, PayloadAttr, QueueAttr, RangeAttr, RtAttr, SocketAttr,
    SynproxyAttr, TproxyAttr, XfrmAttr,
};
use crate::wire::listed;

listed! {
    Expression, put_fields else put_other, get_known else get_other;
    "payload" PayloadAttr {
        Payload { register: DREG Dreg, base: BASE Base, offset: OFFSET Offset, length: LEN Len }
        PayloadSet {
            source: SREG Sreg, base: BASE Base, offset: OFFSET Offset, length: LEN Len,
            checksum: CSUM_TYPE CsumType or(Be32(0)), checksum_offset: CSUM_OFFSET CsumOffset or(Be32(0)),
            checksum_flags: CSUM_FLAGS CsumFlags or(Be32(0))
        }
    }
    "meta" MetaAttr {
        Meta { key: KEY Key, register: DREG Dreg }
        MetaSet { key: KEY Key, source: SREG Sreg }
    }
    "ct" CtAttr {
        Ct { key: KEY Key, register: DREG Dreg, direction: DIRECTION Direction }
        CtSet { key: KEY Key, direction: DIRECTION Direction, source: SREG Sreg }
    }
    "fib" FibAttr {
        Fib { register: DREG Dreg, result: RESULT Result, flags: FLAGS Flags or(Be32(0)) }
    }
    "cmp" CmpAttr {
        Cmp { register: SREG Sreg, op: OP Op, value: DATA Data }
    }
    "bitwise" BitwiseAttr {
        Shift { source: SREG Sreg, register: DREG Dreg, op: OP Op, length: LEN Len, bits: DATA Data }
        Bitwise {
            source: SREG Sreg, register: DREG Dreg, length: LEN Len, mask: MASK Mask, xor: XOR Xor = OP Op(Be32(0))
        }
    }
    "byteorder" ByteorderAttr {
        ByteOrder { source: SREG Sreg, register: DREG Dreg, op: OP Op, length: LEN Len, size: SIZE Size }
    }
    "range" RangeAttr {
        Range { register: SREG Sreg, inverted: OP Op or(Be32(0)), from: FROM_DATA FromData, to: TO_DATA ToData }
    }
    "exthdr" ExthdrAttr {
        Exthdr {
            register: DREG Dreg, kind: TYPE Type, offset: OFFSET Offset or(Be32(0)), length: LEN Len or(Be32(0)),
            op: OP Op or(Be32(0)), present: FLAGS Flags or(Be32(0))
        }
        // The kernel reports flags for these but refuses them in requests.
        ExthdrSet {
            source: SREG Sreg, kind: TYPE Type, offset: OFFSET Offset or(Be32(0)), length: LEN Len or(Be32(0)),
            op: OP Op or(Be32(0)); ExthdrAttr::Flags(Be32(0))
        }
        ExthdrReset {
            kind: TYPE Type, op: OP Op or(Be32(0));
            ExthdrAttr::Flags(Be32(0)), ExthdrAttr::Offset(Be32(0)), ExthdrAttr::Len(Be32(0))
        }
    }
    "rt" RtAttr {
        Rt { key: KEY Key, register: DREG Dreg }
    }
    "socket" SocketAttr {
        Socket { key: KEY Key, register: DREG Dreg, level: LEVEL Level }
    }
    "osf" OsfAttr {
        // The kernel reports flags 0 but refuses them in requests.
        Osf { register: DREG Dreg, ttl: TTL Ttl or(0), version: FLAGS Flags unless(Be32(0)) }
    }
    "xfrm" XfrmAttr {
        Xfrm { register: DREG Dreg, key: KEY Key, outgoing: DIR Dir, index: SPNUM Spnum or(Be32(0)) }
    }
    "numgen" NgAttr {
        Numgen { register: DREG Dreg, modulus: MODULUS Modulus, kind: TYPE Type, offset: OFFSET Offset or(Be32(0)) }
    }
    "hash" HashAttr {
        Hash {
            source: SREG Sreg, register: DREG Dreg, length: LEN Len, modulus: MODULUS Modulus, seed: SEED Seed,
            offset: OFFSET Offset unless(Be32(0)) = TYPE Type(Be32(0))
        }
        SymmetricHash {
            register: DREG Dreg, modulus: MODULUS Modulus, offset: OFFSET Offset unless(Be32(0)) = TYPE Type(Be32(1))
        }
    }
    "counter" CounterAttr {
        Counter { bytes: BYTES Bytes or(Be64(0)), packets: PACKETS Packets or(Be64(0)); CounterAttr::Pad(_) }
    }
    "limit" LimitAttr {
        Limit {
            rate: RATE Rate, unit: UNIT Unit, burst: BURST Burst or(Be32(0)), bytes: TYPE Type or(Be32(0)),
            inverted: FLAGS Flags or(Be32(0)); LimitAttr::Pad(_)
        }
    }
    "connlimit" ConnlimitAttr {
        ConnectionLimit { count: COUNT Count, inverted: FLAGS Flags or(Be32(0)) }
    }
    "queue" QueueAttr {
        Queue { first: NUM Num, count: TOTAL Total or(Be16(1)), flags: FLAGS Flags or(Be16(0)) }
        QueueFrom { source: SREG_QNUM SregQnum, flags: FLAGS Flags or(Be16(0)) }
    }
    "dup" DupAttr {
        Duplicate { address: SREG_ADDR SregAddr, device: SREG_DEV SregDev }
    }
    "tproxy" TproxyAttr {
        Tproxy { family: FAMILY Family, address: REG_ADDR RegAddr, port: REG_PORT RegPort }
    }
    "synproxy" SynproxyAttr {
        Synproxy { mss: MSS Mss or(Be16(0)), window_scale: WSCALE Wscale or(0), flags: FLAGS Flags or(Be32(0)) }
    }
    "log" LogAttr {
        Log {
            prefix: PREFIX Prefix, group: GROUP Group, snaplen: SNAPLEN Snaplen, threshold: QTHRESHOLD Qthreshold,
            level: LEVEL Level, flags: FLAGS Flags
        }
    }
    "flow_offload" FlowAttr {
        FlowAdd { flowtable: TABLE_NAME TableName }
    }
}
