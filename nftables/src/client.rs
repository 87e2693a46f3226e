//! The client: transactions, and reading.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use netlink_batch::header::NfGenHeader;
use netlink_batch::{Be32, Be64, Connection, Encoder, KernelError, Protocol, Socket, Transport, WireError};

use crate::attrs::{ChainAttr, ElemListAttr, FlowtableAttr, ObjAttr, RuleAttr, SetAttr, TableAttr};
use crate::error::{self, Error, ErrorKind, Part, Refusal, classify};
use crate::model::{
    ChainKey, Element, ElementKey, Family, FlowtableKey, ObjectKey, ObservedChain, ObservedFlowtable, ObservedObject,
    ObservedRule, ObservedSet, ObservedTable, Set, SetFlags, SetKey, TableKey,
};
use crate::snapshot::{SetContents, TableSnapshot};
use crate::sync::TableSpec;
use crate::transaction::{SentMessage, Transaction, put_begin, put_flowtable_key};
use crate::uapi;
use crate::wire::{
    ElementForm, get_chain, get_elements, get_flowtable, get_generation, get_object, get_rule, get_set, get_table,
    is_of_table, pair_intervals, put_element, put_name,
};

/// A conversation with the kernel's nf_tables in one network namespace. Blocking; one request at a time; [`Send`].
#[derive(Debug)]
pub struct Client {
    connection: Connection,
}

/// The message type of a command (linux/netfilter/nfnetlink.h).
pub(crate) fn message_type(command: u8) -> u16 {
    u16::from_be_bytes([uapi::NFNL_SUBSYS_NFTABLES, command])
}

/// The header of the messages around a transaction.
const BATCH_HEADER: NfGenHeader = NfGenHeader { family: 0, version: 0, resource: 10 };

fn header(family: Option<Family>) -> [u8; 4] {
    NfGenHeader { family: family.map_or(0, Family::number), version: 0, resource: 0 }.to_bytes()
}

impl Client {
    /// Opens a conversation in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]; [`ErrorKind::Unsupported`] on a kernel without nfnetlink.
    pub fn open() -> Result<Self, Error> {
        Socket::open(Protocol::Netfilter).map(Self::with_transport).map_err(opening)
    }

    /// Opens a conversation in another network namespace, given by an open file such as `/run/netns/<name>`.
    ///
    /// # Errors
    /// As [`Client::open`]. Entering a namespace takes `CAP_SYS_ADMIN`.
    pub fn open_in(namespace: BorrowedFd<'_>) -> Result<Self, Error> {
        Socket::open_in(Protocol::Netfilter, namespace).map(Self::with_transport).map_err(opening)
    }

    /// A conversation over any transport: a socket of one's own, or a fake kernel.
    pub fn with_transport(transport: impl Transport + 'static) -> Self {
        Client { connection: Connection::new(transport) }
    }

    /// The connection below, to change its limits.
    pub fn connection_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// The number of the rule set's generation: it grows with every transaction of any program in the namespace.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`], [`ErrorKind::Unsupported`] without nf_tables.
    #[doc(alias = "NFT_MSG_GETGEN")]
    pub fn generation(&mut self) -> Result<u32, Error> {
        let action = "reading the generation";
        self.ask(uapi::NFT_MSG_GETGEN, None, |_| {}, get_generation, action)
    }

    /// Makes all changes at one instant, or none.
    ///
    /// # Errors
    /// The kind of the first operation that the kernel refused; [`Error::refusals`] has all of them.
    /// [`ErrorKind::TooLarge`] and [`ErrorKind::Invalid`] before anything is sent; [`ErrorKind::GenerationChanged`];
    /// [`ErrorKind::Timeout`] and [`ErrorKind::StateUnknown`] when it is not known what happened.
    pub fn commit(&mut self, transaction: &Transaction) -> Result<(), Error> {
        self.send(transaction, true)
    }

    /// Has the kernel check all changes, and makes none of them.
    ///
    /// For tables that the same transaction makes, the kernel skips its last checks here: of jumps in a circle,
    /// and of expressions in a chain at a hook where they are not possible. `nft -c` has the same gap.
    ///
    /// # Errors
    /// As [`Client::commit`].
    pub fn check(&mut self, transaction: &Transaction) -> Result<(), Error> {
        self.send(transaction, false)
    }

    /// Reads a table, passes it to `plan` (`None` if there is none), and commits the transaction that `plan` returns
    /// for the generation that was read. Starts over if another program changed the rule set meanwhile.
    ///
    /// A rule is added once, also when other programs change the table meanwhile:
    ///
    /// ```
    /// # use nftables::fake::FakeNftables;
    /// use nftables::{Chain, Client, Family, Table, TableKey, Transaction, rule};
    ///
    /// # let mut client = Client::with_transport(FakeNftables::new().transport());
    /// let table = TableKey::new(Family::Inet, "filter")?;
    /// let chain = table.chain("web")?;
    /// let wanted = rule(Family::Inet).dport(443).accept().comment("https").build()?;
    /// for _ in 0..2 {
    ///     client.change_table(&table, |found| {
    ///         let mut transaction = Transaction::new();
    ///         if found.is_none_or(|found| found.rules_of(&chain).all(|found| found.rule != wanted)) {
    ///             transaction.add_table(Table::new(table.clone())).add_chain(Chain::regular(chain.clone()));
    ///             transaction.add_rule(&chain, wanted.clone());
    ///         }
    ///         transaction
    ///     })?;
    /// }
    /// assert_eq!(client.list_rules(&chain)?.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::snapshot`] and [`Client::commit`]; [`ErrorKind::GenerationChanged`] when the rule set changed
    /// during each of [`Limits::dump_attempts`](netlink_batch::Limits::dump_attempts) attempts.
    pub fn change_table(
        &mut self,
        table: &TableKey,
        mut plan: impl FnMut(Option<&TableSnapshot>) -> Transaction,
    ) -> Result<(), Error> {
        let mut attempts = self.connection.limits().dump_attempts.max(1);
        loop {
            attempts = attempts.saturating_sub(1);
            // From before the reading, in case there is no table.
            let mut generation = self.generation()?;
            let found = match self.snapshot(table) {
                Err(error) if error.is_not_found() => None,
                read => Some(read?),
            };
            if let Some(found) = &found {
                generation = found.generation;
            }
            let mut transaction = plan(found.as_ref());
            match self.commit(transaction.expect_generation(generation)) {
                Err(error) if error.kind() == ErrorKind::GenerationChanged && attempts > 0 => {}
                outcome => return outcome,
            }
        }
    }

    /// Makes a table as it should be: reads it, compares, and commits the difference in one transaction, for the generation that was read.
    /// Starts over if another program changed the rule set meanwhile. Returns what was committed; nothing is written when it is empty.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], as [`TableSpec::diff`]; else as [`Client::change_table`].
    pub fn sync(&mut self, wanted: &TableSpec) -> Result<Transaction, Error> {
        let mut plan = Ok(Transaction::new());
        self.change_table(&wanted.table.key, |found| {
            plan = wanted.diff(found);
            plan.as_ref().cloned().unwrap_or_default()
        })?;
        plan.map_err(|error| Error::invalid(error, format!("comparing table {}", wanted.table.key)))
    }

    /// Sends a batch. Without its end the kernel checks it and throws it away (net/netfilter/nfnetlink.c,
    /// `nfnetlink_rcv_batch`).
    fn send(&mut self, transaction: &Transaction, make: bool) -> Result<(), Error> {
        let action = || {
            let doing = if make { "committing" } else { "checking" };
            format!("{doing} a transaction of {} operations", transaction.len())
        };
        let unsendable = |error: WireError, action: String| {
            Error::netlink(
                netlink_batch::Error::new(netlink_batch::ErrorKind::Unsendable(error), "netlink transaction"),
                action,
            )
        };
        let mut messages: Vec<SentMessage> = Vec::new();
        let mut writer = self.connection.together();
        let generation = transaction.generation;
        writer
            .push(uapi::NFNL_MSG_BATCH_BEGIN, 0, &BATCH_HEADER.to_bytes(), |out| put_begin(out, generation))
            .map_err(|error| unsendable(error, action()))?;
        for (place, operation) in transaction.operations.iter().enumerate() {
            operation.check().map_err(|error| Error::invalid(error, operation.action()))?;
            let (command, flags) = operation.command();
            let header = operation.header();
            let mut from = 0;
            while operation.has_more(from) {
                let mut next = from;
                writer
                    .push(message_type(command), flags, &header, |out| next = operation.put(out, from))
                    .map_err(|error| unsendable(error, operation.action()))?;
                messages.push(SentMessage { operation: place, elements: from..next });
                from = next.max(from.saturating_add(1));
            }
        }
        if messages.is_empty() {
            return Ok(());
        }
        let last = messages.len();
        if make {
            writer
                .push(uapi::NFNL_MSG_BATCH_END, 0, &BATCH_HEADER.to_bytes(), |_| {})
                .map_err(|error| unsendable(error, action()))?;
        }
        let refused = writer.send(last).map_err(|error| Error::netlink(error, action()))?;
        let refusals =
            refused.into_iter().map(|(place, kernel)| refusal(transaction, &messages, place, kernel, &action));
        Error::refused(refusals.collect()).map_or(Ok(()), Err)
    }

    /// The tables of a family, or of all. Empty when there are none.
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`], [`ErrorKind::Malformed`], [`ErrorKind::Permission`], [`ErrorKind::Unsupported`] without nf_tables.
    #[doc(alias = "NFT_MSG_GETTABLE")]
    pub fn list_tables(&mut self, family: Option<Family>) -> Result<Vec<ObservedTable>, Error> {
        self.dump(uapi::NFT_MSG_GETTABLE, family, |_| {}, get_table, "listing tables")
    }

    /// One table.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn get_table(&mut self, table: &TableKey) -> Result<ObservedTable, Error> {
        let put = |out: &mut Encoder| put_name(out, TableAttr::NAME, &table.name);
        self.ask(uapi::NFT_MSG_GETTABLE, Some(table.family), put, get_table, &format!("reading table {table}"))
    }

    /// The chains of a table. Empty also when there is no such table: the kernel lists the chains of all.
    ///
    /// # Errors
    /// As [`Client::list_tables`].
    #[doc(alias = "NFT_MSG_GETCHAIN")]
    pub fn list_chains(&mut self, table: &TableKey) -> Result<Vec<ObservedChain>, Error> {
        let read = |payload: &[u8]| is_of_table(payload, table).then(|| get_chain(payload)).transpose();
        let action = format!("listing the chains of table {table}");
        let put = |out: &mut Encoder| put_name(out, ChainAttr::TABLE, &table.name);
        let found = self.dump(uapi::NFT_MSG_GETCHAIN, Some(table.family), put, read, &action)?;
        Ok(found.into_iter().flatten().collect())
    }

    /// One chain.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn get_chain(&mut self, chain: &ChainKey) -> Result<ObservedChain, Error> {
        let put = |out: &mut Encoder| {
            put_name(out, ChainAttr::TABLE, &chain.table.name);
            put_name(out, ChainAttr::NAME, &chain.name);
        };
        self.ask(uapi::NFT_MSG_GETCHAIN, Some(chain.table.family), put, get_chain, &format!("reading chain {chain}"))
    }

    /// The rules of a chain, in order. Empty also when there is no such chain.
    ///
    /// # Errors
    /// As [`Client::list_tables`].
    #[doc(alias = "NFT_MSG_GETRULE")]
    pub fn list_rules(&mut self, chain: &ChainKey) -> Result<Vec<ObservedRule>, Error> {
        let put = |out: &mut Encoder| {
            put_name(out, RuleAttr::TABLE, &chain.table.name);
            put_name(out, RuleAttr::CHAIN, &chain.name);
        };
        let action = format!("listing the rules of chain {chain}");
        self.dump(uapi::NFT_MSG_GETRULE, Some(chain.table.family), put, get_rule, &action)
    }

    /// Sets the counters and consumed quotas of a rule to zero; returns the rule as it was before. No packet is lost between.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Unsupported`] before Linux 6.2.
    #[doc(alias = "NFT_MSG_GETRULE_RESET")]
    pub fn reset_rule(&mut self, chain: &ChainKey, handle: u64) -> Result<ObservedRule, Error> {
        let put = |out: &mut Encoder| {
            put_name(out, RuleAttr::TABLE, &chain.table.name);
            put_name(out, RuleAttr::CHAIN, &chain.name);
            out.attr(RuleAttr::HANDLE, &Be64(handle));
        };
        let action = format!("resetting rule {handle} of chain {chain}");
        self.ask(uapi::NFT_MSG_GETRULE_RESET, Some(chain.table.family), put, get_rule, &action)
    }

    /// The sets and maps of a table, without their elements.
    ///
    /// # Errors
    /// As [`Client::list_tables`], and [`ErrorKind::NotFound`] without the table.
    #[doc(alias = "NFT_MSG_GETSET")]
    pub fn list_sets(&mut self, table: &TableKey) -> Result<Vec<ObservedSet>, Error> {
        let put = |out: &mut Encoder| put_name(out, SetAttr::TABLE, &table.name);
        let action = format!("listing the sets of table {table}");
        self.dump(uapi::NFT_MSG_GETSET, Some(table.family), put, get_set, &action)
    }

    /// One set or map, without its elements.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn get_set(&mut self, set: &SetKey) -> Result<ObservedSet, Error> {
        let put = |out: &mut Encoder| {
            put_name(out, SetAttr::TABLE, &set.table.name);
            put_name(out, SetAttr::NAME, &set.name);
        };
        self.ask(uapi::NFT_MSG_GETSET, Some(set.table.family), put, get_set, &format!("reading set {set}"))
    }

    /// The elements of a set, complete; ranges as [`ElementKey::Range`].
    ///
    /// The time grows with the square of the number of ranges of one field: the kernel walks the tree from its beginning for each
    /// part of the answer (`nft_rbtree_walk`). On Linux 6.18, 20,000 ranges take 48 ms and 40,000 take 142 ms; as many addresses of a set
    /// without ranges take 12 and 24 ms, ranges of two fields (`ipv4_addr . inet_service`) 10 and 20 ms. Where that matters, ask for
    /// single keys with [`Client::get_element`] (about 13 µs each, in a set of any size), for the number of elements with
    /// [`Client::get_set`] ([`ObservedSet::count`], Linux 6.16), or keep what was read and follow the changes with
    /// [`Events`](crate::Events).
    ///
    /// # Errors
    /// As [`Client::list_tables`], and [`ErrorKind::NotFound`].
    #[doc(alias = "NFT_MSG_GETSETELEM")]
    pub fn list_elements(&mut self, set: &Set) -> Result<Vec<Element>, Error> {
        let key = &set.key;
        let read = |payload: &[u8]| {
            let mut elements = Vec::new();
            get_elements(payload, |element| elements.push(element)).map(|()| elements)
        };
        let messages = self.dump(
            uapi::NFT_MSG_GETSETELEM,
            Some(key.table.family),
            |out| put_set_key(out, key),
            read,
            &format!("listing the elements of set {key}"),
        )?;
        let elements: Vec<Element> = messages.into_iter().flatten().collect();
        Ok(if ElementForm::of(set) == ElementForm::Pairs { pair_intervals(elements) } else { elements })
    }

    /// Gives the elements of a set to `each` while they arrive, as the kernel keeps them: a range of one field is two
    /// elements, the second of which is an [`ElementKey::End`].
    ///
    /// The elements given before an error are incomplete: start over.
    ///
    /// A hash table that grows is moved by the kernel in the background, for up to some seconds after tens of thousands of additions. A
    /// dump meanwhile may leave out elements or have them twice, and nothing in it says so (net/netfilter/nft_set_hash.c,
    /// `nft_rhash_walk`, skips by a count what earlier messages had). Seen on 6.18: 80,341 of 88,250. [`Client::snapshot`] reads again
    /// until it has as many as the kernel counts (6.16), or without a count until a dump has nothing twice; read twice before you delete
    /// or add by difference.
    ///
    /// A range as the kernel keeps it: its start, and the first value behind it.
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`] when the rule set was changed meanwhile; else as [`Client::list_elements`].
    pub fn for_each_element(&mut self, set: &SetKey, mut each: impl FnMut(Element)) -> Result<(), Error> {
        let limits = self.connection.limits();
        let mut once = limits;
        once.dump_attempts = 1;
        self.connection.set_limits(once);
        let action = format!("listing the elements of set {set}");
        let read = |payload: &[u8]| get_elements(payload, &mut each);
        let put = |out: &mut Encoder| put_set_key(out, set);
        let outcome = self.dump(uapi::NFT_MSG_GETSETELEM, Some(set.table.family), put, read, &action);
        self.connection.set_limits(limits);
        outcome.map(drop)
    }

    /// The element that a key finds: in a set of intervals, the one that holds it; if the key has one field, the kernel
    /// reports only its start. `None` when there is none.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] without the set.
    pub fn get_element(&mut self, set: &Set, key: &ElementKey) -> Result<Option<Element>, Error> {
        self.read_element(uapi::NFT_MSG_GETSETELEM, set, key, "reading")
    }

    /// Sets the counters and consumed quotas of the element that a key finds to zero; returns the element as it was before, as
    /// [`Client::get_element`] does.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] without the set; [`ErrorKind::Unsupported`] before Linux 6.5.
    #[doc(alias = "NFT_MSG_GETSETELEM_RESET")]
    pub fn reset_element(&mut self, set: &Set, key: &ElementKey) -> Result<Option<Element>, Error> {
        self.read_element(uapi::NFT_MSG_GETSETELEM_RESET, set, key, "resetting")
    }

    fn read_element(&mut self, command: u8, set: &Set, key: &ElementKey, verb: &str) -> Result<Option<Element>, Error> {
        // The kernel answers alike for a missing element and a missing set.
        let observed = self.get_set(&set.key)?;
        let form = ElementForm::of(&observed.set);
        let action = format!("{verb} an element of set {}", set.key);
        // A single value finds its range; a second attribute would ask for the end.
        let (form, wanted) = match (form, key) {
            (ElementForm::Pairs, ElementKey::Range(ends)) => (ElementForm::Single, ElementKey::Value(ends.0.clone())),
            (ElementForm::Pairs, key) => (ElementForm::Single, key.clone()),
            (form, key) => (form, key.clone()),
        };
        let put = |out: &mut Encoder| {
            put_set_key(out, &set.key);
            out.nest(ElemListAttr::ELEMENTS, |out| {
                put_element(out, form, &Element::new(wanted.clone()));
            });
        };
        let mut found = Vec::new();
        let read = |payload: &[u8]| get_elements(payload, |element| found.push(element));
        match self.ask(command, Some(set.key.table.family), put, read, &action) {
            Ok(()) => Ok(found.into_iter().next()),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The objects of a table.
    ///
    /// # Errors
    /// As [`Client::list_tables`].
    #[doc(alias = "NFT_MSG_GETOBJ")]
    pub fn list_objects(&mut self, table: &TableKey) -> Result<Vec<ObservedObject>, Error> {
        let put = |out: &mut Encoder| put_name(out, ObjAttr::TABLE, &table.name);
        let action = format!("listing the objects of table {table}");
        self.dump(uapi::NFT_MSG_GETOBJ, Some(table.family), put, get_object, &action)
    }

    /// One object, a counter with its numbers.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn get_object(&mut self, object: &ObjectKey) -> Result<ObservedObject, Error> {
        self.read_object(uapi::NFT_MSG_GETOBJ, object, "reading")
    }

    /// Sets a counter or a consumed quota to zero; returns the object as it was before. No packet is lost between. Of other objects
    /// nothing changes.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    #[doc(alias = "NFT_MSG_GETOBJ_RESET")]
    pub fn reset_object(&mut self, object: &ObjectKey) -> Result<ObservedObject, Error> {
        self.read_object(uapi::NFT_MSG_GETOBJ_RESET, object, "resetting")
    }

    fn read_object(&mut self, command: u8, object: &ObjectKey, verb: &str) -> Result<ObservedObject, Error> {
        let put = |out: &mut Encoder| {
            put_name(out, ObjAttr::TABLE, &object.table.name);
            put_name(out, ObjAttr::NAME, &object.name);
            out.attr(ObjAttr::TYPE, &Be32(object.kind.number()));
        };
        let action = format!("{verb} object {object}");
        self.ask(command, Some(object.table.family), put, get_object, &action)
    }

    /// The flow tables of a table. Empty also when there is no such table.
    ///
    /// # Errors
    /// As [`Client::list_tables`].
    #[doc(alias = "NFT_MSG_GETFLOWTABLE")]
    pub fn list_flowtables(&mut self, table: &TableKey) -> Result<Vec<ObservedFlowtable>, Error> {
        let put = |out: &mut Encoder| put_name(out, FlowtableAttr::TABLE, &table.name);
        let action = format!("listing the flow tables of table {table}");
        self.dump(uapi::NFT_MSG_GETFLOWTABLE, Some(table.family), put, get_flowtable, &action)
    }

    /// One flow table.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn get_flowtable(&mut self, flowtable: &FlowtableKey) -> Result<ObservedFlowtable, Error> {
        let put = |out: &mut Encoder| put_flowtable_key(out, flowtable);
        let action = format!("reading flow table {flowtable}");
        self.ask(uapi::NFT_MSG_GETFLOWTABLE, Some(flowtable.table.family), put, get_flowtable, &action)
    }

    /// A table with everything in it, of one generation. Other tables are not read.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Interrupted`] when the rule set changed during each of
    /// [`Limits::dump_attempts`](netlink_batch::Limits::dump_attempts) readings, or when the kernel was enlarging a set for more than a
    /// second.
    pub fn snapshot(&mut self, table: &TableKey) -> Result<TableSnapshot, Error> {
        let mut attempts = self.connection.limits().dump_attempts.max(1);
        loop {
            attempts = attempts.saturating_sub(1);
            let before = self.generation()?;
            match self.read_table(table, before) {
                // Something that vanished while it was read has changed the generation.
                Err(error) if !error.is_not_found() && error.kind() != ErrorKind::Interrupted => return Err(error),
                read => {
                    if self.generation()? == before {
                        return read;
                    }
                }
            }
            if attempts == 0 {
                return Err(Error::new(ErrorKind::Interrupted, format!("reading table {table} with its contents")));
            }
        }
    }

    fn read_table(&mut self, key: &TableKey, generation: u32) -> Result<TableSnapshot, Error> {
        let table = self.get_table(key)?;
        let chains = self.list_chains(key)?;
        let action = format!("listing the rules of table {key}");
        let put = |out: &mut Encoder| put_name(out, RuleAttr::TABLE, &key.name);
        let rules = self.dump(uapi::NFT_MSG_GETRULE, Some(key.family), put, get_rule, &action)?;
        let mut sets = Vec::new();
        for set in self.list_sets(key)? {
            let elements = self.all_elements(&set)?;
            sets.push(SetContents { set, elements });
        }
        let objects = self.list_objects(key)?;
        let flowtables = self.list_flowtables(key)?;
        let parts = [chains.len(), sets.len(), objects.len(), flowtables.len()].into_iter().sum::<usize>();
        let left_out = table.references.saturating_sub(u32::try_from(parts).unwrap_or(u32::MAX));
        Ok(TableSnapshot { generation, table, chains, rules, sets, objects, flowtables, left_out })
    }

    /// The elements of a set, each once. While the kernel enlarges its table a dump leaves some out and may have others twice
    /// ([`Client::for_each_element`]): what several dumps have together, until it is as many as the kernel counts.
    fn all_elements(&mut self, set: &ObservedSet) -> Result<Vec<Element>, Error> {
        const DUMPS: u32 = 10;
        let elements = self.list_elements(&set.set)?;
        // Trees and their like are not moved.
        if set.set.flags.contains(SetFlags::INTERVAL) {
            return Ok(elements);
        }
        // Elements that time out, or that packets add, make the count out of date.
        if set.set.flags.intersects(SetFlags::TIMEOUT | SetFlags::DYNAMIC) {
            return Ok(by_key(elements).collect::<BTreeMap<_, _>>().into_values().collect());
        }
        let count = set.count.and_then(|of| usize::try_from(of).ok());
        let different = elements.iter().map(|element| &element.key).collect::<HashSet<_>>().len();
        if different == elements.len() && count.is_none_or(|count| different >= count) {
            return Ok(elements);
        }
        let mut all: BTreeMap<ElementKey, Element> = by_key(elements).collect();
        let mut agrees = false;
        for dump in 0..DUMPS {
            // A kernel that does not count: until a dump has nothing new and nothing twice.
            if count.map_or(agrees, |count| all.len() >= count) {
                return Ok(all.into_values().collect());
            }
            std::thread::sleep(Duration::from_millis(1 << dump));
            let (elements, before) = (self.list_elements(&set.set)?, all.len());
            let listed = elements.len();
            all.extend(by_key(elements));
            agrees = all.len() == before && listed == before;
        }
        // The list is complete: several dumps agree, or it has as many elements as the kernel counts.
        if agrees || count.is_some_and(|count| all.len() >= count) {
            return Ok(all.into_values().collect());
        }
        let action = format!("listing the elements of set {}, which the kernel moves to a larger table", set.set.key);
        Err(Error::new(ErrorKind::Interrupted, action))
    }

    fn ask<T>(
        &mut self,
        command: u8,
        family: Option<Family>,
        put: impl FnOnce(&mut Encoder),
        read: impl FnMut(&[u8]) -> Result<T, WireError>,
        action: &str,
    ) -> Result<T, Error> {
        let answers = self
            .connection
            .query(message_type(command), 0, &header(family), put, read)
            .map_err(|error| error::reading(command, error, action))?;
        answers.into_iter().next().ok_or_else(|| Error::new(ErrorKind::Malformed, action))
    }

    fn dump<T>(
        &mut self,
        command: u8,
        family: Option<Family>,
        put: impl Fn(&mut Encoder),
        read: impl FnMut(&[u8]) -> Result<T, WireError>,
        action: &str,
    ) -> Result<Vec<T>, Error> {
        self.connection
            .dump(message_type(command), 0, &header(family), put, read)
            .map(|dump| dump.items)
            .map_err(|error| error::reading(command, error, action))
    }
}

fn opening(error: netlink_batch::Error) -> Error {
    error::opening(error, "opening a netlink socket")
}

fn put_set_key(out: &mut Encoder, set: &SetKey) {
    put_name(out, ElemListAttr::TABLE, &set.table.name);
    put_name(out, ElemListAttr::SET, &set.name);
}

/// Length of a message's headers: nlmsghdr and nfgenmsg.
const HEADERS: usize = 20;

/// The refusal in the kernel's answer to the message at `place`. The first message is the batch's beginning, the last
/// its end.
fn refusal(
    transaction: &Transaction,
    messages: &[SentMessage],
    place: usize,
    kernel: KernelError,
    whole: &impl Fn() -> String,
) -> Refusal {
    let kind = classify(kernel.errno);
    let sent = place.checked_sub(1).and_then(|place| messages.get(place));
    let found = sent.and_then(|sent| Some((sent, transaction.operations.get(sent.operation)?)));
    let Some((sent, operation)) = found else {
        return Refusal { operation: None, action: whole(), part: Part::Whole, kind, kernel };
    };
    let offset = kernel.offset.and_then(|offset| usize::try_from(offset).ok()?.checked_sub(HEADERS));
    let part = match offset {
        Some(offset) => operation.part_at(sent.elements.start, offset),
        None => operation.part_without_place(&sent.elements),
    };
    // The kernel has one answer for both; equal elements of a set without data are taken.
    let kind = if kind == ErrorKind::AlreadyExists && operation.keeps_ranges() { ErrorKind::Overlap } else { kind };
    Refusal { operation: Some(sent.operation), action: operation.action(), part, kind, kernel }
}

fn by_key(elements: Vec<Element>) -> impl Iterator<Item = (ElementKey, Element)> {
    elements.into_iter().map(|element| (element.key.clone(), element))
}
