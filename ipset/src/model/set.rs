//! Sets: what to create, and what the kernel has.

use std::fmt;
use std::net::IpAddr;

use super::{AsTool, Entry, Family, InvalidValue, IpSpan, PortRange, SetName, SetType, Timeout};

bitflags::bitflags! {
    /// Extensions that a set's entries can have, and the set's behaviour when full.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub struct SetFlags: u8 {
        /// Every entry counts packets and bytes.
        const COUNTERS = 1;
        /// Entries can have comments.
        const COMMENT = 2;
        /// Entries can have a mark, a priority and a queue for the SET target.
        const SKBINFO = 4;
        /// When the set is full, a new entry replaces an existing one. Only `hash:` types.
        ///
        /// `ipset` 7.17 does not print this option, but this crate does.
        const FORCEADD = 8;
    }
}

/// The range of a bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Range {
    /// IPv4 addresses, at most 65,536 (networks, with netmask). bitmap:ip and bitmap:ip,mac.
    Addresses(IpSpan),
    /// Ports. bitmap:port.
    Ports(PortRange),
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Range::Addresses(span) => write!(f, "{}-{}", span.first(), span.last()),
            Range::Ports(ports) => write!(f, "{}-{}", ports.first(), ports.last()),
        }
    }
}

/// Create options. `None` leaves the choice to the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct SetOptions {
    /// Family of the addresses. No effect on types without addresses. Default IPv4.
    pub family: Family,
    /// Initial number of hash buckets, rounded up to a power of two. Default 1024. The kernel doubles it when needed,
    /// which takes some milliseconds each time. Half the number of entries is a good value.
    pub hashsize: Option<u32>,
    /// Greatest number of entries of a `hash:` type. Default 65,536.
    pub maxelem: Option<u32>,
    /// Addresses are cut to this prefix length, so one entry represents its whole network. For hash:ip and bitmap:ip.
    /// Since Linux 6.2 also for hash:ip,port and for hash:net,net, where both networks' addresses are cut and their
    /// prefix lengths kept. The value is 1 to 32 or 128. The greatest is the default and not reported.
    pub netmask: Option<u8>,
    /// Addresses are cut to this mask, which need not be a prefix. For hash:ip, hash:ip,port and hash:net,net (both
    /// networks), since Linux 6.2. Excludes netmask. All ones is the default and not reported.
    pub bitmask: Option<IpAddr>,
    /// Marks are cut to this mask. hash:ip,mark. Default `0xffffffff`.
    pub markmask: Option<u32>,
    /// Enables timeouts of entries. Entries without their own timeout get this one.
    pub timeout: Option<Timeout>,
    /// Extensions that entries can have, and the behaviour when full.
    pub flags: SetFlags,
    /// Start value of the hash, for a reproducible order. Since Linux 5.11. Default: random.
    pub initval: Option<u32>,
    /// Greatest number of entries in a bucket, 2 to 12 and even. Since Linux 5.11. Default 12.
    pub bucketsize: Option<u8>,
    /// The range of a bitmap. Required for every bitmap.
    pub range: Option<Range>,
    /// Size of a list:set. No effect since Linux 4.3. Default 8.
    pub size: Option<u32>,
}

impl SetOptions {
    /// No options: the kernel chooses.
    pub fn new() -> Self {
        Self::default()
    }
}

/// A set to be created.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SetSpec {
    /// Name of the set.
    pub name: SetName,
    /// Type of the set.
    pub set_type: SetType,
    /// Options of the set.
    #[cfg_attr(feature = "serde", serde(default))]
    pub options: SetOptions,
}

impl SetSpec {
    /// A set with the kernel's defaults.
    pub fn new(name: SetName, set_type: SetType) -> Self {
        SetSpec { name, set_type, options: SetOptions::default() }
    }

    /// Sets all options.
    #[must_use]
    pub fn with_options(mut self, options: SetOptions) -> Self {
        self.options = options;
        self
    }

    /// Checks that the type supports the options, as far as possible without a kernel.
    ///
    /// # Errors
    /// [`InvalidValue::Option`], [`InvalidValue::OptionValue`], [`InvalidValue::Number`], [`InvalidValue::EntryFamily`].
    pub fn check(&self) -> Result<(), InvalidValue> {
        let (set_type, options) = (self.set_type, &self.options);
        let option = |option: &str| InvalidValue::Option { what: set_type.to_string(), option: option.to_owned() };
        if let Some(foreign) = set_type.foreign_option(options) {
            return Err(option(foreign));
        }
        if set_type == SetType::Unknown {
            return Err(InvalidValue::SetType(set_type.to_string()));
        }
        if options.netmask.is_some() && options.bitmask.is_some() {
            return Err(option("bitmask together with netmask"));
        }
        let fits = match options.range {
            None => !set_type.is_bitmap(),
            Some(Range::Addresses(span)) => set_type != SetType::BitmapPort && span.family() == Family::Inet,
            Some(Range::Ports(_)) => set_type == SetType::BitmapPort,
        };
        if !fits {
            return Err(InvalidValue::OptionValue("range".to_owned()));
        }
        let max = options.family.bits();
        if let Some(netmask) = options.netmask
            && !(1..=max).contains(&netmask)
        {
            return Err(InvalidValue::Number { what: "netmask", text: netmask.to_string(), min: 1, max: max.into() });
        }
        if let Some(bitmask) = options.bitmask
            && bitmask.is_ipv4() != (options.family == Family::Inet)
        {
            return Err(InvalidValue::EntryFamily { text: bitmask.to_string(), family: options.family });
        }
        Ok(())
    }

    /// The options as a listing would show them: masks without effect are not reported, and a bitmap's range grows to
    /// whole networks (`mtype_head`, `bitmap_ip_create`).
    pub(crate) fn reported_options(&self) -> SetOptions {
        let mut options = self.options.clone();
        let bits = options.family.bits();
        options.netmask = options.netmask.filter(|prefix| *prefix != bits);
        options.bitmask = options.bitmask.filter(|mask| *mask != IpSpan::mask_of(options.family, bits));
        if let (Some(Range::Addresses(span)), Some(netmask)) = (options.range, options.netmask)
            && let (Ok(low), Ok(high)) = (IpSpan::network(span.first(), netmask), IpSpan::network(span.last(), netmask))
            && let Ok(whole) = IpSpan::range(low.first(), high.last())
        {
            options.range = Some(Range::Addresses(whole));
        }
        options
    }

    /// The mask to which addresses are cut, if any.
    pub(crate) fn mask(&self) -> Option<IpAddr> {
        let netmask = self.options.netmask.map(|prefix| IpSpan::mask_of(self.options.family, prefix));
        netmask.or(self.options.bitmask)
    }
}

netlink_batch::settings! {
    SetOptions, SetSpec in options:
    /// Sets the address family.
    with_family(family: Family) |of| of.family = family;
    /// Sets the initial number of buckets.
    with_hashsize(hashsize: u32) |of| of.hashsize = Some(hashsize);
    /// Sets the greatest number of entries.
    with_maxelem(maxelem: u32) |of| of.maxelem = Some(maxelem);
    /// Cuts addresses to this prefix length.
    with_netmask(netmask: u8) |of| of.netmask = Some(netmask);
    /// Cuts addresses to this mask.
    with_bitmask(bitmask: IpAddr) |of| of.bitmask = Some(bitmask);
    /// Cuts marks to this mask.
    with_markmask(markmask: u32) |of| of.markmask = Some(markmask);
    /// Sets the default timeout.
    with_timeout(timeout: Timeout) |of| of.timeout = Some(timeout);
    /// Adds extensions that entries can carry.
    with_flags(flags: SetFlags) |of| of.flags |= flags;
    /// Sets the start value of the hash.
    with_initval(initval: u32) |of| of.initval = Some(initval);
    /// Sets the greatest number of entries in a bucket.
    with_bucketsize(bucketsize: u8) |of| of.bucketsize = Some(bucketsize);
    /// Sets the range of a bitmap.
    with_range(range: Range) |of| of.range = Some(range);
    /// Sets the size of a list:set.
    with_size(size: u32) |of| of.size = Some(size);
}

/// A set as read from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ObservedSet {
    /// Name, type and options, complete as far as the kernel reports them.
    pub spec: SetSpec,
    /// The kernel's name of the type. Differs from `spec.set_type.name()` only for unknown types.
    pub type_name: String,
    /// Revision of the type.
    pub revision: u8,
    /// The kernel's index of the set, by which rules refer to it. `None` on kernels that only support protocol 6.
    pub index: Option<u16>,
    /// Rules and list:set sets that refer to it.
    pub references: u32,
    /// Bytes of memory.
    pub memory: u32,
    /// Number of entries according to the kernel, which may include expired ones.
    pub elements: Option<u32>,
    /// The entries, in the kernel's order. Empty if only the header was requested.
    pub entries: Vec<Entry>,
}

/// The `create` line of `ipset save`.
impl fmt::Display for SetSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = &self.options;
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        let hex = |number: Option<u32>| number.map(|number| format!("{number:#010x}"));
        let write = |f: &mut fmt::Formatter<'_>, options: &[(&str, Option<String>)]| {
            options.iter().try_for_each(|(word, value)| value.iter().try_for_each(|value| write!(f, " {word} {value}")))
        };
        // Types that gained the mask later print it later.
        let masks = [
            ("netmask", number(options.netmask.map(u32::from))),
            ("bitmask", options.bitmask.map(|mask| AsTool(mask).to_string())),
        ];
        let is_early = matches!(self.set_type, SetType::HashIp | SetType::BitmapIp);
        let (early, late) = if is_early { (&masks[..], &[][..]) } else { (&[][..], &masks[..]) };
        write!(f, "create {} {}", self.name, self.set_type)?;
        write(
            f,
            &[
                ("range", options.range.map(|range| range.to_string())),
                ("family", self.set_type.has_family().then(|| options.family.to_string())),
                ("markmask", hex(options.markmask)),
                ("hashsize", number(options.hashsize)),
                ("maxelem", number(options.maxelem)),
            ],
        )?;
        write(f, early)?;
        write(f, &[("size", number(options.size)), ("timeout", number(options.timeout.map(Timeout::secs)))])?;
        for (flag, word) in [
            (SetFlags::COUNTERS, "counters"),
            (SetFlags::COMMENT, "comment"),
            (SetFlags::FORCEADD, "forceadd"),
            (SetFlags::SKBINFO, "skbinfo"),
        ] {
            if options.flags.contains(flag) {
                write!(f, " {word}")?;
            }
        }
        write(f, &[("bucketsize", number(options.bucketsize.map(u32::from))), ("initval", hex(options.initval))])?;
        write(f, late)
    }
}
