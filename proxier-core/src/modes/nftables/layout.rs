//! The layout of a table: everything except its elements and the chains that select endpoints. It depends on settings
//! alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nftables::expr::{CmpOp, DynSetOp, FibFlags, FibResult, NatFlags, NumgenKind};
use nftables::{
    ChainType, CtState, Expression, Hook, Operand, Priority, Register, Rule, RuleBuilder, Set, SetFlags, SetKey,
    SetReference, Table, TableFlags, TableKey, Transaction, Value, Verdict,
};

use super::lower::{SetName, number};
use super::pick::{Affinity, Clients, Draw, Marks, Pick, SEED, SharedChain, Slot, Split, first, slot_number, tickets};
use crate::config::{Config, KernelNames};
use crate::modes::shared::networks::PodTraffic;
use crate::modes::shared::nft::{self, COMMENT, RTN_LOCAL, no_fields, of_pods, rejections};
pub(super) use crate::modes::shared::nft::{OWNED, built, name as chain};
use crate::modes::shared::table::{self, ChainRules, Fate, Layout as _, write_layout};
use crate::net::{Family, Network, Protocol};
use crate::ports::{Result, Tables};
use crate::service::NodeFacts;

/// Chain: clients are refused.
pub(super) const REJECT: &str = "reject-connection";
/// Chain: connections to Frontends.
pub(super) const SERVICES: &str = "services-by-port";
/// Chain: first packets of connections that no Frontend matched.
const NEW: &str = "new-connections";
/// Chain: connections to Frontends with source ranges.
const GUARD: &str = "guard";

/// Largest numbers of clients that the lowest slots remember, which all Frontends with affinity share. The kernel
/// allocates memory for them at once, 8 MiB together. Higher slots grow as needed up to the kernel's own limit, 65,535
/// (`nft_dynset_init`). Beyond, new clients are served without affinity.
const CLIENTS: [u32; 3] = [0x30000, 0x18000, 0x18000];

/// How often the kernel frees clients that have timed out, for which it walks the whole set. The kernel's default is 1
/// s.
const COLLECTED_EVERY: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(super) table: TableKey,
    flags: TableFlags,
    pub(super) family: Family,
    mark: u32,
    /// How local traffic is detected, even if everything is masqueraded.
    local: PodTraffic,
    masquerade_all: bool,
    /// [`NodeFacts::other_pods`].
    other_pods: Option<(Network, Network)>,
    /// Whether connection tracking treats packets outside a window as valid.
    pub(super) is_liberal: bool,
    has_localhost: bool,
    /// The counter in elements of Frontends, if any.
    counter: Option<Expression>,
    fixed_sets: BTreeMap<SetName, Arc<Set>>,
}

/// Chain: counts by protocol and refuses packets to node ports at the loopback address that are not TCP.
pub(super) const REJECT_LOCALHOST: &str = "reject-localhost";
/// The protocols that it refuses, in the order of its rules.
pub(super) const NOT_RELAYED: [Protocol; 2] = [Protocol::Udp, Protocol::Sctp];

pub(super) fn table(family: Family, names: &KernelNames) -> TableKey {
    TableKey { family: family.into(), name: chain(names.table.as_str()) }
}

impl Layout {
    pub(crate) fn new(family: Family, facts: &NodeFacts) -> Self {
        Layout::of_table(table(family, &facts.config().names), family, facts)
    }

    pub(super) fn of_table(table: TableKey, family: Family, facts: &NodeFacts) -> Self {
        let config: &Config = facts.config();
        let mut layout = Layout {
            table,
            flags: table::flags(config),
            family,
            mark: config.masquerade_bit.mask(),
            local: PodTraffic::from_facts(facts, family),
            masquerade_all: config.masquerade_all,
            other_pods: facts.other_pods(family),
            is_liberal: false,
            has_localhost: facts.serves_localhost(family),
            counter: config.nftables.count_connections.then_some(Expression::COUNTER),
            fixed_sets: BTreeMap::new(),
        };
        layout.fixed_sets = SetName::FIXED.into_iter().map(|name| (name, Arc::new(layout.make_set(name)))).collect();
        layout
    }

    fn reference(set: SetName) -> SetReference {
        SetReference::named(chain(set.name()))
    }

    pub(super) fn set_key_of(&self, name: &str) -> SetKey {
        SetKey { table: self.table.clone(), name: chain(name) }
    }

    fn frontend(&self) -> Vec<Operand> {
        vec![self.destination(), Operand::L4PROTO, Operand::DPORT]
    }

    /// Fields that identify a client of a Frontend.
    fn client(&self) -> Vec<Operand> {
        [&[self.source()], self.frontend().as_slice()].concat()
    }

    /// Sends to the endpoint in a slot, and continues if there is none.
    fn to_endpoint(&self, slot: Operand) -> RuleBuilder {
        self.to_endpoint_after(self.rule(), slot)
    }

    fn to_endpoint_after(&self, rule: RuleBuilder, slot: Operand) -> RuleBuilder {
        let key = [self.frontend().as_slice(), &[slot]].concat();
        rule.dnat_to_map(self.table.family, &key, Layout::reference(SetName::Endpoints))
    }

    pub(super) fn clients_set(&self, clients: Clients) -> Set {
        let key = SetKey { table: self.table.clone(), name: chain(clients) };
        let mut set = Set::typeof_set(key.clone(), &self.client()).unwrap_or_else(|_| Set::new(key, no_fields()));
        set.flags = SetFlags::DYNAMIC | SetFlags::TIMEOUT;
        set.gc_interval = Some(COLLECTED_EVERY);
        set.size = usize::try_from(clients.number).ok().and_then(|number| CLIENTS.get(number)).copied();
        set
    }

    pub(super) fn set(&self, name: SetName) -> Arc<Set> {
        self.fixed_sets.get(&name).cloned().unwrap_or_else(|| Arc::new(self.make_set(name)))
    }

    fn make_set(&self, name: SetName) -> Set {
        let key = self.set_key_of(&name.name());
        let frontend = self.frontend();
        let with = |more: &[Operand]| [frontend.as_slice(), more].concat();
        let endpoint = [self.destination(), Operand::DPORT];
        // Numbers of slots mean nothing to people beyond their order.
        let slot = Operand::random(u32::from(u16::MAX));
        let set = match name {
            SetName::Services => Set::typeof_verdict_map(key.clone(), &frontend),
            SetName::Endpoints => Set::typeof_map(key.clone(), &with(&[slot]), &endpoint),
            SetName::Draws => Set::typeof_set(key.clone(), &with(&[slot])),
            SetName::Picked(_) | SetName::Rejected | SetName::Dropped | SetName::Guarded => {
                Set::typeof_set(key.clone(), &frontend)
            }
            SetName::Allowed => {
                Set::typeof_set(key.clone(), &with(&[self.source()])).map(|set| set.flags(SetFlags::INTERVAL))
            }
            SetName::ClusterIps => Set::typeof_set(key.clone(), &[self.destination()]),
            SetName::Hairpins => Set::typeof_set(key.clone(), &[self.source(), self.destination()]),
        };
        // Only operands unknown to nft could fail; a test creates all sets.
        let mut set = set.unwrap_or_else(|_| Set::new(key, no_fields()));
        set.expressions.extend(self.counter.clone().filter(|_| name.leads_on()));
        set
    }

    fn mark(&self) -> Rule {
        built(self.rule().set_mark_bits(self.mark, self.mark))
    }

    /// Marks a connection to a cluster IP if its source requires it; `None` if no source does.
    fn internal_mark(&self) -> Option<Rule> {
        let others = || of_pods(self.rule(), &self.local, CmpOp::Ne);
        let rule = if self.masquerade_all { Some(self.rule()) } else { others() };
        rule.map(|rule| built(rule.set_mark_bits(self.mark, self.mark)))
    }

    /// The way of connections from outside this node. Under policy `Local`, pods of other nodes are clients outside if
    /// they connect to an address of the link that they come in by. An endpoint on a third node would answer them past
    /// this node. Chains of such Frontends ([`Layout::split`]) know them by the mark.
    fn arriving(&self) -> Vec<Rule> {
        let marked = |bits| {
            let (network, own) = self.other_pods?;
            let rule = self.rule().saddr_in(network.network(), network.prefix_len());
            let rule = rule.saddr_not_in(own.network(), own.prefix_len());
            let to_link = Operand::Fib(FibResult::AddressType, FibFlags::DADDR | FibFlags::IIF);
            Some(built(rule.matches(&to_link, CmpOp::Eq, Value::mark(RTN_LOCAL)).set_mark_bits(bits, self.mark)))
        };
        let mut rules: Vec<Rule> = marked(self.mark).into_iter().collect();
        rules.push(built(self.rule().jump(chain(SERVICES))));
        // No Frontend took it.
        rules.extend(marked(0));
        rules
    }

    /// Sends this node and its pods, which may use all endpoints, to one chain; their answers return through this node
    /// anyway. Sends all other clients to the other chain, and all clients if the first one is missing.
    fn split(&self, Split { anywhere, only_here }: &Split) -> Vec<Rule> {
        let from_here = || {
            let register = Register::FIRST;
            self.rule()
                .expression(Expression::Fib { result: FibResult::AddressType, flags: FibFlags::SADDR, register })
                .expression(Expression::Cmp { register, op: CmpOp::Eq, value: Value::mark(RTN_LOCAL) })
        };
        let goes_to = |rule: RuleBuilder, to: &Option<Pick>| Some(built(rule.goto(chain((*to)?))));
        let mut rules = Vec::new();
        if self.other_pods.is_some() {
            // Their source stays.
            let of_other_pods = self.rule().mark(self.mark, self.mark).set_mark_bits(0, self.mark);
            let outside = only_here.map_or(Verdict::Return, |to| Verdict::Goto(chain(to)));
            rules.push(built(of_other_pods.verdict(outside)));
        }
        rules.extend(of_pods(self.rule(), &self.local, CmpOp::Eq).and_then(|rule| goes_to(rule, anywhere)));
        rules.push(built(from_here().set_mark_bits(self.mark, self.mark)));
        rules.extend(goes_to(from_here(), anywhere));
        rules.extend(goes_to(self.rule(), only_here));
        rules
    }

    fn to_one_of(&self, set: SetName) -> RuleBuilder {
        self.rule().in_set(&self.frontend(), Layout::reference(set))
    }

    /// The chain for connections to Frontends: through the sets of these chains, then through the verdict map.
    pub(super) fn services(&self, chains: impl IntoIterator<Item = Pick>) -> ChainRules {
        let by_set = |pick| built(self.to_one_of(SetName::Picked(pick)).goto(chain(pick)));
        let mut rules: Vec<Rule> = chains.into_iter().map(by_set).collect();
        rules.push(built(self.rule().verdict_map(&self.frontend(), Layout::reference(SetName::Services))));
        self.regular(SERVICES, rules)
    }

    fn new_connections(&self) -> Vec<Rule> {
        let refused = self.to_one_of(SetName::Rejected).goto(chain(REJECT));
        let others = self.rule().in_set(&[self.destination()], Layout::reference(SetName::ClusterIps));
        let localhost = self.has_localhost.then(|| {
            let to_localhost = self.rule().matches(&self.destination(), CmpOp::Eq, self.family.localhost().into());
            let refused = to_localhost.in_set(&self.frontend(), Layout::reference(SetName::Rejected));
            built(refused.goto(chain(REJECT_LOCALHOST)))
        });
        let rules =
            [built(refused), built(self.to_one_of(SetName::Dropped).drop_packet()), built(others.goto(chain(REJECT)))];
        localhost.into_iter().chain(rules).collect()
    }

    fn reject_localhost(&self) -> Vec<Rule> {
        let of = |protocol: Protocol| built(self.rule().meta_l4proto(number(protocol)).counter().goto(chain(REJECT)));
        NOT_RELAYED.map(of).into()
    }

    fn guard(&self) -> Vec<Rule> {
        let key = [self.frontend().as_slice(), &[self.source()]].concat();
        let allowed = self.rule().in_set(&key, Layout::reference(SetName::Allowed));
        vec![built(allowed.verdict(Verdict::Return)), built(self.rule().drop_packet())]
    }

    fn masquerade(&self) -> Vec<Rule> {
        let marked = || self.rule().mark(self.mark, self.mark);
        let hairpin = self.rule().in_set(&[self.source(), self.destination()], Layout::reference(SetName::Hairpins));
        vec![
            built(hairpin.set_mark_bits(0, self.mark).masquerade(NatFlags::FULLY_RANDOM)),
            built(marked().set_mark_bits(0, self.mark).masquerade(NatFlags::FULLY_RANDOM)),
        ]
    }
}

impl Layout {
    pub(super) fn rules(&self, chain: &SharedChain) -> Vec<Rule> {
        match chain {
            SharedChain::Pick(pick) => self.pick_rules(pick),
            SharedChain::Split(split) => self.split(split),
            SharedChain::Slot(slot) => self.slot_rules(slot),
        }
    }

    pub(super) fn entering_set(&self, chain: &SharedChain) -> Option<Set> {
        chain.entered_by_set().map(|pick| self.make_set(SetName::Picked(pick)))
    }

    fn pick_rules(&self, pick: &Pick) -> Vec<Rule> {
        let mut rules: Vec<Rule> = match pick.marks {
            Marks::Nothing => Vec::new(),
            Marks::Internal => self.internal_mark().into_iter().collect(),
            Marks::Everything => vec![self.mark()],
        };
        let offset = first(pick.is_local);
        match pick.draw {
            // Any of the slots, all with the same probability.
            Draw::Random => {
                rules.extend((pick.fewest()..=pick.most).rev().map(|modulus| {
                    built(self.to_endpoint(Operand::Numgen { kind: NumgenKind::Random, modulus, offset }))
                }));
            }
            Draw::Sticky(_) => {
                rules.extend(pick.slots().map(|slot| {
                    let known = self.rule().in_set(&self.client(), SetReference::named(chain(slot.clients)));
                    built(known.jump(chain(slot)))
                }));
                rules.extend(pick.slots().map(|slot| self.draw(pick, &slot)));
            }
            Draw::Client { port } => {
                let of = [self.source()].into_iter().chain(port.then_some(Operand::SPORT)).collect();
                let hash = Operand::Hash { of, modulus: pick.most, seed: Some(SEED), offset };
                rules.push(built(self.to_endpoint(hash)));
            }
        }
        rules
    }

    /// A new client gets this slot when its draw means it. The draw is a number of the packet, so it is the same in
    /// each of these rules, and different for another port of the client.
    fn draw(&self, pick: &Pick, slot: &Slot) -> Rule {
        let draw = Operand::Hash {
            of: vec![self.source(), Operand::SPORT],
            modulus: pick.most,
            seed: Some(SEED),
            offset: tickets(slot.clients.is_local, slot.clients.number),
        };
        let key = [self.frontend().as_slice(), &[draw]].concat();
        built(self.rule().in_set(&key, Layout::reference(SetName::Draws)).goto(chain(slot)))
    }

    fn slot_rules(&self, slot: &Slot) -> Vec<Rule> {
        let timeout = Duration::from_secs(slot.secs.into());
        // A constant that nft accepts among the fields of a key: a random choice from one number.
        let this = || Operand::Numgen {
            kind: NumgenKind::Random,
            modulus: 1,
            offset: slot_number(slot.clients.is_local, slot.clients.number),
        };
        let clients = || SetReference::named(chain(slot.clients));
        let change = |op, timeout| self.rule().change_set(op, clients(), &self.client(), &[], timeout);
        vec![
            built(self.to_endpoint_after(change(DynSetOp::Update, Some(timeout)), this())),
            built(self.to_endpoint(this())),
            built(change(DynSetOp::Delete, None)),
        ]
    }
}

impl table::Layout for Layout {
    fn key(&self) -> &TableKey {
        &self.table
    }

    fn to_table(&self) -> Table {
        let mut table = Table::new(self.table.clone()).comment(COMMENT);
        table.flags = self.flags;
        table
    }

    fn sets(&self) -> impl Iterator<Item = Set> {
        self.fixed_sets.values().map(|set| Set::clone(set))
    }

    fn chains(&self) -> Vec<ChainRules> {
        let before_dnat = Priority(Priority::DSTNAT.0.saturating_sub(10));
        let new = || vec![built(self.rule().ct_state(CtState::NEW).goto(chain(NEW)))];
        let guarded = || {
            let rule = self.rule().ct_state(CtState::NEW);
            vec![built(rule.in_set(&self.frontend(), Layout::reference(SetName::Guarded)).goto(chain(GUARD)))]
        };
        let mut forward = new();
        if !self.is_liberal {
            forward.insert(0, built(self.rule().ct_state(CtState::INVALID).drop_packet()));
        }
        let localhost = self.has_localhost.then(|| self.regular(REJECT_LOCALHOST, self.reject_localhost()));
        let filter = |chain, hook, priority, rules| self.base(chain, ChainType::Filter, hook, priority, rules);
        let nat = |chain, hook, priority, rules| self.base(chain, ChainType::Nat, hook, priority, rules);
        let all = [
            self.regular(OWNED, Vec::new()),
            self.regular(REJECT, rejections(self.family, || self.rule()).into()),
            self.services([]),
            self.regular(NEW, self.new_connections()),
            self.regular(GUARD, self.guard()),
            filter("prerouting-guard", Hook::Prerouting, before_dnat, guarded()),
            filter("output-guard", Hook::Output, before_dnat, guarded()),
            nat("prerouting", Hook::Prerouting, Priority::DSTNAT, self.arriving()),
            nat("output", Hook::Output, Priority::DSTNAT, vec![built(self.rule().jump(chain(SERVICES)))]),
            nat("postrouting", Hook::Postrouting, Priority::SRCNAT, self.masquerade()),
            filter("input-filter", Hook::Input, Priority::FILTER, new()),
            filter("forward-filter", Hook::Forward, Priority::FILTER, forward),
            filter("output-filter", Hook::Output, Priority::FILTER, new()),
        ];
        all.into_iter().chain(localhost).collect()
    }
}

/// Has the kernel check each family's table with every kind of set, chain and rule that this mode may write, without
/// creating any. One check is enough if all pass. The kernel loads the modules that it needs for that.
///
/// # Errors
/// The kernel lacks nf_tables, the family, or a kind of chain, set or expression, which the message names.
pub fn trials(
    families: impl IntoIterator<Item = Family>,
    facts: &NodeFacts,
    tables: &mut dyn Tables,
) -> Vec<(Family, Result<()>)> {
    nft::trials(families, tables, |transaction, family, name| {
        let table = TableKey { family: family.into(), name: name.clone() };
        add_everything(transaction, &Layout::of_table(table, family, facts));
    })
}

/// Adds a family's table with everything that it may have.
fn add_everything(transaction: &mut Transaction, layout: &Layout) {
    let mut sets: Vec<Set> = Vec::new();
    let mut chains = layout.chains();
    for draw in [Draw::Random, Draw::Sticky(Affinity { secs: 10, width: 1 })] {
        let pick = Pick { marks: Marks::Everything, is_local: false, most: 1, draw };
        if pick.has_set() {
            chains.push(layout.services([pick]));
        }
        let split = Split { anywhere: Some(pick), only_here: Some(pick) };
        for chain in pick.slots().map(SharedChain::Slot).chain([SharedChain::Pick(pick), SharedChain::Split(split)]) {
            sets.extend(
                layout.entering_set(&chain).into_iter().chain(chain.clients().map(|of| layout.clients_set(of))),
            );
            chains.push(layout.regular(&chain.to_string(), layout.rules(&chain)));
        }
    }
    write_layout(transaction, (Fate::Make, false), layout, sets, &chains);
}
