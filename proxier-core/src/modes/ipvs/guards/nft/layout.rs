//! The layout of a table: everything except its elements. It depends on settings alone.
//!
//! The chains do what kube-proxy's do in its IPVS mode, at hooks that suit the path of a packet through IPVS:
//!
//! ```text
//!  prerouting -101  mark  ─▶ input 0  refuse, drop; 97  split ─▶ IPVS (98, 99) ─▶ output again (-300  split no more) ─▶ postrouting 99  masquerade
//!  output -150  drop; -101  mark  ─▶ IPVS (-99, -98) ─▶ output again ─▶ postrouting 99  masquerade
//! ```
//!
//! Chains of type `nat` come just before those of iptables. `output` drops before IPVS, while the packet still has the
//! load balancer's address as destination (an iptables rule would need the match `ipvs`). IPVS forwards a packet through
//! hook `output`, where chains of type `nat` do not see it again. So the mark set in the first hook tells `postrouting`
//! what to do, as with kube-proxy.
//!
//! IPVS compares the whole mark of a packet with those of its virtual servers. So the marks that split clients outside
//! from those inside ([`SetKind::LocalSplit`]) are set last before IPVS and removed first behind it. No other program's
//! rules see them. Marks that other programs gave these packets are lost. Packets from inside are marked for
//! masquerading in the first hook, by where they were sent: behind IPVS that could not be told.
//!
//! iptables has `ACCEPT` in table nat, which keeps other programs from translating the destination. Host ports of CNI
//! plugins match every local address, and addresses of Services are local. Here the destination is translated to
//! itself: later chains of type `nat` do not see a connection that has a translation. An address that is not of this
//! host, since another proxy has removed the device, is left to those programs. `ACCEPT` in table filter has no
//! counterpart.

use std::collections::{BTreeMap, BTreeSet};

use ipset::SetType;
use nftables::expr::{CmpOp, FibFlags, FibResult, NatFlags};
use nftables::{
    ChainType, CtState, DataType, FieldTypes, Hook, L4Protocol, Operand, Priority, Rule, RuleBuilder, Set, SetFlags,
    SetKey as NftSetKey, SetReference, Table, TableFlags, TableKey, Value, Verdict,
};

use crate::config::{KernelNames, MarkRange};
use crate::modes::shared::networks::PodTraffic;
use crate::modes::shared::nft::{COMMENT_OF_IPVS, OWNED, RTN_LOCAL, built, name, no_fields, of_pods, rejections};
use crate::modes::shared::table::{self, ChainRules, Layout as _};
use crate::net::{Family, Network};
use crate::pack::Gather as _;
use crate::ports::SetKind;
use crate::service::NodeFacts;

pub(super) const KEEP: &str = "keep-destination";
const SERVICES: &str = "services";
const NODE_PORT: &str = "node-port";
const LOAD_BALANCER: &str = "load-balancer";
const FIREWALL: &str = "firewall";
const SOURCE_RANGES: &str = "source-ranges";
const FILTER: &str = "ipvs-filter";
const FROM_INSIDE: &str = "from-inside";
const FROM_OUTSIDE: &str = "from-outside";

/// Just before IPVS, which takes packets for this host at 98 and 99 (`ip_vs_ops` in the kernel's ip_vs_core.c).
const BEFORE_IPVS: Priority = Priority(97);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(crate) table: TableKey,
    flags: TableFlags,
    pub(crate) family: Family,
    mark: u32,
    masquerade_all: bool,
    /// Whether connections to Services keep their destinations, regardless of other tables' rules. Not while nftables
    /// mode still serves them.
    pub(super) keeps: bool,
    /// Packets of outside clients get marks of this range if they must reach local endpoints only.
    pub(super) split: Option<MarkRange>,
    /// How pods are detected, to tell clients outside from them.
    pods: PodTraffic,
    /// Whether addresses are bound by routes, or may still be, so that this node's programs do not connect from the
    /// destination address.
    pub(super) by_routes: bool,
    /// Networks that are local as a whole. Packets in them that no Service serves are refused.
    pub(crate) guarded_networks: BTreeSet<Network>,
    pub(super) sets: BTreeMap<SetKind, Set>,
}

pub(crate) fn table(family: Family, names: &KernelNames) -> TableKey {
    TableKey { family: family.into(), name: name(names.ipvs_table().as_str()) }
}

fn returned(rule: RuleBuilder) -> Rule {
    built(rule.verdict(Verdict::Return))
}

impl Layout {
    pub(crate) fn new(table: TableKey, family: Family, facts: &NodeFacts) -> Self {
        let mut layout = Layout {
            table,
            flags: table::flags(facts.config()),
            family,
            mark: facts.config().masquerade_bit.mask(),
            masquerade_all: facts.config().masquerade_all,
            keeps: true,
            split: facts.config().splits_local().then_some(facts.config().ipvs.mark_range),
            pods: PodTraffic::from_facts(facts, family),
            by_routes: false,
            guarded_networks: BTreeSet::new(),
            sets: BTreeMap::new(),
        };
        layout.sets = SetKind::ALL_OF_NFT.into_iter().map(|kind| (kind, layout.set(kind))).gather();
        layout
    }

    fn set_reference(kind: SetKind) -> SetReference {
        SetReference::named(name(kind.nft_name()))
    }

    fn fields(&self, kind: SetKind) -> Vec<Operand> {
        let place = [self.destination(), Operand::L4PROTO, Operand::DPORT];
        match kind.set_type() {
            SetType::HashIp => vec![self.destination()],
            SetType::BitmapPort => vec![Operand::DPORT],
            SetType::HashIpPortIp | SetType::HashIpPortNet if !kind.has_marks() => {
                [place.as_slice(), &[self.source()]].concat()
            }
            _ => place.to_vec(),
        }
    }

    fn set(&self, kind: SetKind) -> Set {
        let key = NftSetKey { table: self.table.clone(), name: name(kind.nft_name()) };
        // Only operands unknown to nft could fail; a test creates all sets.
        let made = match kind {
            SetKind::SplitMark => Set::typeof_map(key.clone(), &self.fields(kind), &[Operand::MARK]),
            _ => Set::typeof_set(key.clone(), &self.fields(kind)),
        };
        let mut set = made.unwrap_or_else(|_| Set::new(key, no_fields()));
        if kind == SetKind::LoadBalancerSourceCidr {
            set = set.flags(SetFlags::INTERVAL);
        }
        set
    }

    /// Matches the packets of a set at the end of a rule.
    fn in_set(&self, rule: RuleBuilder, kind: SetKind) -> RuleBuilder {
        rule.in_set(&self.fields(kind), Layout::set_reference(kind))
    }

    fn matching(&self, kind: SetKind) -> RuleBuilder {
        self.in_set(self.rule(), kind)
    }

    fn is_local(rule: RuleBuilder, flags: FibFlags, op: CmpOp) -> RuleBuilder {
        rule.matches(&Operand::Fib(FibResult::AddressType, flags), op, Value::mark(RTN_LOCAL))
    }

    fn marks(&self, rule: RuleBuilder) -> Rule {
        built(rule.set_mark_bits(self.mark, self.mark))
    }

    /// Packets of this node, and of pods if these are detected.
    fn inside(&self) -> impl Iterator<Item = RuleBuilder> {
        let of_node = Layout::is_local(self.rule(), FibFlags::SADDR, CmpOp::Eq);
        [of_node].into_iter().chain(of_pods(self.rule(), &self.pods, CmpOp::Eq))
    }

    /// To a split Frontend from outside: the packet gets the mark with which IPVS selects local endpoints.
    fn mark_outside(&self) -> Vec<Rule> {
        let kind = SetKind::SplitMark;
        let to = FieldTypes::of(&[DataType::MARK])
            .map(|mark| Operand::map(self.fields(kind), Layout::set_reference(kind), mark));
        // The type of the map is constant, so it fits.
        let marked = built(to.map_or_else(|_| self.rule(), |mark| self.rule().set_mark_to(&mark)));
        self.inside().map(returned).chain([marked]).collect()
    }

    /// Keeps this node's own packets from load balancers whose source ranges exclude the node. They have the load
    /// balancer's address as their source, as its entries, unless it is bound by a route.
    fn barred_from_node(&self) -> Rule {
        let kind = SetKind::LoadBalancerNotNode;
        if !self.by_routes {
            return built(self.matching(kind).drop_packet());
        }
        let of_node = Layout::is_local(self.rule(), FibFlags::SADDR, CmpOp::Eq);
        let place =
            [self.fields(kind).split_last().map_or(&[][..], |(_, place)| place), &[self.destination()]].concat();
        built(of_node.in_set(&place, Layout::set_reference(kind)).drop_packet())
    }

    /// Translates the destination to itself, if it is an address of this host. Otherwise IPVS does not get the packet,
    /// and a program that serves the address after this mode may translate it.
    fn keep(&self) -> Rule {
        let of_host = Layout::is_local(self.rule(), FibFlags::DADDR, CmpOp::Eq);
        built(of_host.dnat_to_operand(self.table.family, &self.destination()))
    }

    /// `KUBE-SERVICES`. It has no match `physdev`, which only distinguishes packets that arrive over a bridge, and
    /// matters for external IPs that are not bound here.
    fn services(&self) -> Vec<Rule> {
        let (loopback, prefix) = match self.family {
            Family::V4 => ([127, 0, 0, 0].into(), 8),
            Family::V6 => (std::net::Ipv6Addr::LOCALHOST.into(), 128),
        };
        let keeps = |rule: RuleBuilder| built(rule.goto(name(KEEP)));
        let mut rules = vec![returned(self.rule().saddr_in(loopback, prefix))];
        rules.extend(self.split.map(|_| built(self.matching(SetKind::LocalSplit).jump(name(FROM_INSIDE)))));
        rules.push(built(self.matching(SetKind::LoadBalancer).jump(name(LOAD_BALANCER))));
        rules.extend(self.cluster_ip_masquerade());
        rules.push(self.marks(self.matching(SetKind::ExternalIp)));
        // From elsewhere, or to an address of this host. Other local traffic goes to the host that has the address.
        for kind in [SetKind::ExternalIp, SetKind::ExternalIpLocal] {
            rules.push(keeps(Layout::is_local(self.matching(kind), FibFlags::SADDR, CmpOp::Ne)));
            rules.push(keeps(Layout::is_local(self.matching(kind), FibFlags::DADDR, CmpOp::Eq)));
        }
        rules.push(built(Layout::is_local(self.rule(), FibFlags::DADDR, CmpOp::Eq).jump(name(NODE_PORT))));
        rules.push(keeps(self.matching(SetKind::ClusterIp)));
        rules.push(keeps(self.matching(SetKind::LoadBalancer)));
        rules
    }

    fn cluster_ip_masquerade(&self) -> Option<Rule> {
        let kind = SetKind::ClusterIp;
        let rule = match &self.pods {
            _ if self.masquerade_all => self.matching(kind),
            // This node's own packets.
            PodTraffic::Unknown if self.by_routes => Layout::is_local(self.matching(kind), FibFlags::SADDR, CmpOp::Eq),
            PodTraffic::Unknown => {
                let from = [self.source(), Operand::L4PROTO, Operand::DPORT];
                self.rule().in_set(&from, Layout::set_reference(kind))
            }
            pods => self.in_set(of_pods(self.rule(), pods, CmpOp::Ne)?, kind),
        };
        Some(self.marks(rule))
    }

    /// `KUBE-NODE-PORT` in nat.
    fn node_port(&self) -> Vec<Rule> {
        let tcp = |kind| self.in_set(self.rule().meta_l4proto(L4Protocol::TCP), kind);
        let udp = |kind| self.in_set(self.rule().meta_l4proto(L4Protocol::UDP), kind);
        vec![
            returned(tcp(SetKind::NodePortLocalTcp)),
            self.marks(tcp(SetKind::NodePortTcp)),
            returned(udp(SetKind::NodePortLocalUdp)),
            self.marks(udp(SetKind::NodePortUdp)),
            returned(self.matching(SetKind::NodePortLocalSctp)),
            self.marks(self.matching(SetKind::NodePortSctp)),
        ]
    }

    /// `KUBE-POSTROUTING`. The mark is removed, so that it has no effect when the packet passes here again inside a
    /// tunnel.
    fn masquerade(&self) -> Vec<Rule> {
        let hairpin = self.matching(SetKind::LoopBack).set_mark_bits(0, self.mark);
        let marked = self.rule().mark(self.mark, self.mark).set_mark_bits(0, self.mark);
        vec![built(hairpin.masquerade(NatFlags::FULLY_RANDOM)), built(marked.masquerade(NatFlags::FULLY_RANDOM))]
    }

    /// `KUBE-SOURCE-RANGES-FIREWALL`.
    fn source_ranges(&self) -> Vec<Rule> {
        let inside = |kind| returned(self.matching(kind));
        let dropped = built(self.rule().drop_packet());
        vec![inside(SetKind::LoadBalancerSourceCidr), inside(SetKind::LoadBalancerSourceIp), dropped]
    }

    /// `KUBE-IPVS-FILTER`. Addresses of Services are local, so no other program that listens here may answer on them.
    fn ipvs_filter(&self) -> Vec<Rule> {
        let kinds = [SetKind::LoadBalancer, SetKind::ClusterIp, SetKind::ExternalIp, SetKind::ExternalIpLocal];
        let mut rules: Vec<Rule> = kinds.into_iter().map(|kind| returned(self.matching(kind))).collect();
        rules.push(returned(self.in_set(self.rule().meta_l4proto(L4Protocol::TCP), SetKind::HealthCheckNodePort)));
        let others = || self.in_set(self.rule().ct_state(CtState::NEW), SetKind::IpvsIps);
        rules.extend(rejections(self.family, others));
        rules.extend(self.guarded_networks.iter().flat_map(|network| {
            let new = || self.rule().daddr_in(network.network(), network.prefix_len()).ct_state(CtState::NEW);
            rejections(self.family, new)
        }));
        rules
    }
}

impl table::Layout for Layout {
    fn key(&self) -> &TableKey {
        &self.table
    }

    fn to_table(&self) -> Table {
        let mut table = Table::new(self.table.clone()).comment(COMMENT_OF_IPVS);
        table.flags = self.flags;
        table
    }

    fn sets(&self) -> impl Iterator<Item = Set> {
        self.sets.values().cloned()
    }

    fn chains(&self) -> Vec<ChainRules> {
        let jumps = |chain: &str| built(self.rule().jump(name(chain)));
        let before = |priority: Priority| Priority(priority.0.saturating_sub(1));
        let base = |chain, hook, priority, rules| self.base(chain, ChainType::Filter, hook, priority, rules);
        let nat = |chain, hook, priority, rules| self.base(chain, ChainType::Nat, hook, before(priority), rules);
        // Source ranges come before refusals of Services without endpoints.
        let without_endpoints =
            rejections(self.family, || self.in_set(self.rule().ct_state(CtState::NEW), SetKind::NoEndpoint));
        let input = [vec![jumps(FILTER), jumps(FIREWALL)], without_endpoints.into()].concat();
        // `KUBE-LOAD-BALANCER`.
        let load_balancer = vec![returned(self.matching(SetKind::LoadBalancerLocal)), self.marks(self.rule())];
        // The endpoint of a split Frontend may be on another node, and answers must return through this node.
        let from_inside = self.inside().map(|rule| self.marks(rule)).collect();
        // If any Frontend has a mark.
        let to_mark = self.split.map(|_| built(self.matching(SetKind::LocalSplit).goto(name(FROM_OUTSIDE))));
        let unmark = self.split.map(|range| built(self.rule().mark(range.value, range.mask).set_mark(0)));
        vec![
            self.regular(OWNED, Vec::new()),
            self.regular(KEEP, if self.keeps { vec![self.keep()] } else { Vec::new() }),
            self.regular(NODE_PORT, self.node_port()),
            self.regular(LOAD_BALANCER, load_balancer),
            self.regular(FROM_INSIDE, from_inside),
            self.regular(FROM_OUTSIDE, self.mark_outside()),
            self.regular(SERVICES, self.services()),
            self.regular(SOURCE_RANGES, self.source_ranges()),
            self.regular(FIREWALL, vec![built(self.matching(SetKind::LoadBalancerFirewall).jump(name(SOURCE_RANGES)))]),
            self.regular(FILTER, self.ipvs_filter()),
            nat("prerouting", Hook::Prerouting, Priority::DSTNAT, vec![jumps(SERVICES)]),
            nat("output", Hook::Output, Priority::DSTNAT, vec![jumps(SERVICES)]),
            nat("postrouting", Hook::Postrouting, Priority::SRCNAT, self.masquerade()),
            base("input-filter", Hook::Input, Priority::FILTER, input),
            base("forward-filter", Hook::Forward, Priority::FILTER, vec![jumps(FIREWALL)]),
            base("output-filter", Hook::Output, Priority::MANGLE, vec![self.barred_from_node()]),
            base("input-split", Hook::Input, BEFORE_IPVS, to_mark.into_iter().collect()),
            base("output-split", Hook::Output, Priority::RAW, unmark.into_iter().collect()),
        ]
    }
}
