//! nft's types, by which it prints the bytes of keys and data. The kernel only stores their numbers.

use std::fmt;

use super::InvalidValue;

/// Byte order of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ByteOrder {
    /// Text, or a concatenation.
    None,
    /// The machine's.
    Host,
    /// Network byte order.
    Network,
}

impl ByteOrder {
    /// nft's number of it.
    pub(crate) fn number(self) -> u32 {
        match self {
            ByteOrder::None => 0,
            ByteOrder::Host => 1,
            ByteOrder::Network => 2,
        }
    }
}

/// A type by its number in nft (`enum datatypes`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DataType(pub u32);

macro_rules! types {
    ($($(#[$doc:meta])* $constant:ident = $number:literal, $name:literal, $length:literal, $order:ident;)*) => {
        impl DataType {
            $( $(#[$doc])* pub const $constant: DataType = DataType($number); )*

            const ALL: &'static [(DataType, &'static str, u32, ByteOrder)] = &[
                $( (DataType::$constant, $name, $length, ByteOrder::$order), )*
            ];
        }
    };
}

types! {
    /// An integer whose length depends on the expression (with `typeof`).
    INTEGER = 4, "integer", 0, Network;
    /// Text.
    STRING = 5, "string", 0, None;
    /// IPv4 address.
    IPV4_ADDR = 7, "ipv4_addr", 4, Network;
    /// IPv6 address.
    IPV6_ADDR = 8, "ipv6_addr", 16, Network;
    /// Ethernet address.
    ETHER_ADDR = 9, "ether_addr", 6, Network;
    /// Ethernet type.
    ETHER_TYPE = 10, "ether_type", 2, Network;
    /// IP protocol.
    INET_PROTO = 12, "inet_proto", 1, Network;
    /// Operation of ARP.
    ARP_OP = 11, "arp_op", 2, Network;
    /// Port.
    INET_SERVICE = 13, "inet_service", 2, Network;
    /// Type of an ICMP message.
    ICMP_TYPE = 14, "icmp_type", 1, Network;
    /// Flags of TCP.
    TCP_FLAG = 15, "tcp_flag", 1, Network;
    /// Type of a DCCP packet.
    DCCP_TYPE = 16, "dccp_pkttype", 1, Network;
    /// Type of a mobility header.
    MH_TYPE = 17, "mh_type", 1, Network;
    /// Duration in milliseconds.
    TIME = 18, "time", 4, Host;
    /// Packet mark.
    MARK = 19, "mark", 4, Host;
    /// Index of an interface.
    IFACE_INDEX = 20, "iface_index", 4, Host;
    /// Hardware type of an interface (`ARPHRD_*`).
    IFACE_TYPE = 21, "iface_type", 2, Host;
    /// Realm of a route.
    REALM = 22, "realm", 4, Host;
    /// Traffic-control class: major and minor number.
    CLASS_ID = 23, "classid", 4, Host;
    /// User.
    UID = 24, "uid", 4, Host;
    /// Group.
    GID = 25, "gid", 4, Host;
    /// State of a connection.
    CT_STATE = 26, "ct_state", 4, Host;
    /// Direction of a connection.
    CT_DIR = 27, "ct_dir", 1, Host;
    /// Status of a connection.
    CT_STATUS = 28, "ct_status", 4, Host;
    /// Type of an ICMPv6 message.
    ICMPV6_TYPE = 29, "icmpv6_type", 1, Network;
    /// Labels of a connection.
    CT_LABEL = 30, "ct_label", 16, Host;
    /// Type of a packet.
    PKT_TYPE = 31, "pkt_type", 1, Host;
    /// Code of an ICMP message.
    ICMP_CODE = 32, "icmp_code", 1, Network;
    /// Code of an ICMPv6 message.
    ICMPV6_CODE = 33, "icmpv6_code", 1, Network;
    /// Group of interfaces.
    DEVICE_GROUP = 35, "devgroup", 4, Host;
    /// Differentiated services.
    DSCP = 36, "dscp", 1, Network;
    /// Explicit congestion notification.
    ECN = 37, "ecn", 1, Network;
    /// Type of an address in the routing tables.
    FIB_ADDR_TYPE = 38, "fib_addrtype", 4, Host;
    /// Whether something is present.
    BOOLEAN = 39, "boolean", 1, Host;
    /// Events of a connection.
    CT_EVENT = 40, "ct_event", 4, Host;
    /// Name of an interface.
    IFNAME = 41, "ifname", 16, Host;
    /// Type of an IGMP message.
    IGMP_TYPE = 42, "igmp_type", 1, Network;
    /// Time in nanoseconds since 1970.
    TIME_DATE = 43, "time", 8, Host;
    /// Seconds since midnight, UTC.
    HOUR = 44, "hour", 4, Host;
    /// Day of the week, Sunday is 0.
    DAY = 45, "day", 1, Host;
    /// `NFPROTO_*`.
    NF_PROTO = 2, "nf_proto", 1, Host;
}

impl DataType {
    /// nft's name; `None` if this crate does not know the type.
    pub fn name(self) -> Option<&'static str> {
        self.row().map(|(_, name, _, _)| *name)
    }

    /// Length of a value in bytes; 0 if it is unknown or depends on the expression.
    pub fn length(self) -> u32 {
        self.row().map_or(0, |(_, _, length, _)| *length)
    }

    /// Byte order of a value outside intervals.
    pub fn byte_order(self) -> ByteOrder {
        self.row().map_or(ByteOrder::None, |(_, _, _, order)| *order)
    }

    fn row(self) -> Option<&'static (DataType, &'static str, u32, ByteOrder)> {
        DataType::ALL.iter().find(|(known, _, _, _)| *known == self)
    }
}

impl fmt::Debug for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "type {}", self.0),
        }
    }
}

/// One field of a key or of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Field {
    /// Type of the field.
    pub data_type: DataType,
    /// Length in bytes.
    pub length: u32,
}

impl From<DataType> for Field {
    fn from(data_type: DataType) -> Self {
        Field { data_type, length: data_type.length() }
    }
}

/// The type of a key or of data: one field, or a concatenation of several.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "Vec<Field>", into = "Vec<Field>")
)]
pub struct FieldTypes {
    fields: Vec<Field>,
}

/// Bytes that a field of this length occupies in a concatenation: whole registers of 4 bytes.
pub(crate) fn padded(length: u32) -> u32 {
    length.checked_next_multiple_of(4).unwrap_or(u32::MAX)
}

/// nft encodes each field's type in six bits.
const TYPE_BITS: u32 = 6;
const TYPE_MASK: u32 = 0x3f;

impl FieldTypes {
    /// A type of these fields.
    ///
    /// # Errors
    /// The fields are empty, a field has no length, or there are more than five fields or more than 64 bytes in total.
    pub fn new(fields: impl IntoIterator<Item = Field>) -> Result<Self, InvalidValue> {
        let types = FieldTypes { fields: fields.into_iter().collect() };
        let invalid = |why| Err(InvalidValue::new(format!("type {types}"), why));
        if types.fields.is_empty() || types.fields.iter().any(|field| field.length == 0) {
            return invalid("each field needs a length");
        }
        if types.fields.len() > 5 {
            return invalid("a concatenation has at most five fields");
        }
        if types.length() > 64 {
            return invalid("registers hold at most 64 bytes");
        }
        Ok(types)
    }

    /// A type of fields of these types, each with its natural length.
    ///
    /// # Errors
    /// As [`FieldTypes::new`].
    pub fn of(types: &[DataType]) -> Result<Self, InvalidValue> {
        FieldTypes::new(types.iter().copied().map(Field::from))
    }

    /// The fields.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Whether there are several fields.
    pub fn is_concatenation(&self) -> bool {
        self.fields.len() > 1
    }

    /// Length in bytes. Fields of a concatenation are padded to a multiple of four.
    pub fn length(&self) -> u32 {
        match self.fields.as_slice() {
            [one] => one.length,
            many => many.iter().map(|field| padded(field.length)).fold(0, u32::saturating_add),
        }
    }

    /// nft's number of the type.
    pub fn number(&self) -> u32 {
        self.fields.iter().fold(0, |number: u32, field| number.wrapping_shl(TYPE_BITS) | field.data_type.0)
    }

    pub(crate) fn byte_order(&self) -> ByteOrder {
        match self.fields.as_slice() {
            [one] => one.data_type.byte_order(),
            _ => ByteOrder::None,
        }
    }

    /// Decodes a type from the kernel's number and length. If the kernel lists the lengths of the fields (`lengths`),
    /// they rather than the number decide how many fields there are.
    pub(crate) fn from_kernel(number: u32, length: u32, lengths: &[u32]) -> Self {
        let mut rest = number;
        if lengths.len() > 1 {
            let mut fields: Vec<Field> = Vec::new();
            for (place, length) in lengths.iter().enumerate().rev() {
                // Excess bits stay with the first field, so that the number is written back unchanged.
                let data_type = DataType(if place == 0 { rest } else { rest & TYPE_MASK });
                rest = rest.wrapping_shr(TYPE_BITS);
                fields.push(Field { data_type, length: *length });
            }
            fields.reverse();
            return FieldTypes { fields };
        }
        let mut types = Vec::new();
        while rest != 0 {
            types.push(DataType(rest & TYPE_MASK));
            rest = rest.wrapping_shr(TYPE_BITS);
        }
        types.reverse();
        let mut fields: Vec<Field> = types.iter().copied().map(Field::from).collect();
        let known = fields.iter().map(|field| padded(field.length)).fold(0, u32::saturating_add);
        let open: Vec<&mut Field> = fields.iter_mut().filter(|field| field.length == 0).collect();
        // Types without a natural length share the rest, usually as four-byte numbers.
        let share = u32::try_from(open.len()).ok().and_then(|count| length.saturating_sub(known).checked_div(count));
        for field in open {
            field.length = share.unwrap_or_default();
        }
        let found = FieldTypes { fields };
        if found.is_concatenation() && found.length() == length {
            return found;
        }
        FieldTypes { fields: vec![Field { data_type: DataType(number), length }] }
    }

    /// Whether nft knows the types without a note of the operands.
    pub(crate) fn has_names(&self) -> bool {
        // The first two have no natural length; the others are only known to expressions.
        let unqualified = [
            DataType::INTEGER,
            DataType::STRING,
            DataType::CT_LABEL,
            DataType::CT_EVENT,
            DataType::TIME_DATE,
            DataType::HOUR,
            DataType::DAY,
        ];
        self.fields.iter().all(|field| field.data_type.name().is_some() && !unqualified.contains(&field.data_type))
    }
}

impl TryFrom<Vec<Field>> for FieldTypes {
    type Error = InvalidValue;
    fn try_from(fields: Vec<Field>) -> Result<Self, InvalidValue> {
        FieldTypes::new(fields)
    }
}

impl From<FieldTypes> for Vec<Field> {
    fn from(types: FieldTypes) -> Self {
        types.fields
    }
}

impl fmt::Display for FieldTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, field) in self.fields.iter().enumerate() {
            if place > 0 {
                f.write_str(" . ")?;
            }
            write!(f, "{:?}", field.data_type)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_types_print_as_the_kernel_knows_them() {
        let cases: [(u32, u32, &[u32]); 6] = [
            (DataType::IPV4_ADDR.0, 4, &[]),
            (0x1cd, 8, &[]),
            (0x1cd, 8, &[4, 2]),
            // Unknown types, more numbers than lengths, and vice versa.
            (0, 24, &[8, 8, 8]),
            (u32::MAX, 8, &[4, 4]),
            (u32::MAX, 7, &[]),
        ];
        for (number, length, lengths) in cases {
            let types = FieldTypes::from_kernel(number, length, lengths);
            assert_eq!((types.number(), types.length()), (number, length), "{types:?}");
            assert_eq!(types.is_concatenation(), number == 0x1cd || lengths.len() > 1);
        }
        assert_eq!(FieldTypes::from_kernel(1, 1, &[u32::MAX, u32::MAX]).length(), u32::MAX);
    }
}
