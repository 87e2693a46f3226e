//! The client: transactions and reads.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use netlink_batch::header::NfGenHeader;
use netlink_batch::{Be64, Connection, Encoder, KernelError, Protocol, Socket, Transport, WireError};

use crate::attrs::{ChainAttr, ElemListAttr, FlowtableAttr, ObjAttr, RuleAttr, SetAttr, TableAttr};
use crate::error::{self, Error, ErrorKind, Part, Refusal, classify};
use crate::gather::Gather as _;
use crate::model::{
    ChainKey, Element, ElementKey, Family, FlowtableKey, ObjectKey, ObservedChain, ObservedFlowtable, ObservedObject,
    ObservedRule, ObservedSet, ObservedTable, Set, SetFlags, SetKey, TableKey,
};
use crate::snapshot::{SetContents, TableSnapshot};
use crate::sync::TableSpec;
use crate::transaction::{SentMessage, Transaction, put_begin};
use crate::uapi;
use crate::wire::{
    ElementForm, get_chain, get_elements, get_flowtable, get_generation, get_object, get_rule, get_set, get_table,
    is_of_table, pair_intervals, put_chain_key, put_chain_of_rule, put_element, put_flowtable_key, put_name,
    put_object_key, put_set_key, put_set_of_elements,
};

/// A connection to the kernel's nf_tables in one network namespace. Calls block, one request at a time. It is [`Send`].
#[derive(Debug)]
pub struct Client {
    connection: Connection,
}

/// The message type of a command (linux/netfilter/nfnetlink.h).
pub(crate) fn message_type(command: u8) -> u16 {
    u16::from_be_bytes([uapi::NFNL_SUBSYS_NFTABLES, command])
}

/// The header of the messages that begin and end a transaction.
const BATCH_HEADER: NfGenHeader = NfGenHeader { family: 0, version: 0, resource: 10 };

fn header(family: Option<Family>) -> [u8; 4] {
    NfGenHeader { family: family.map_or(0, Family::number), version: 0, resource: 0 }.to_bytes()
}

impl Client {
    /// Opens a connection in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]; [`ErrorKind::Unsupported`] on a kernel without nfnetlink.
    pub fn open() -> Result<Self, Error> {
        Socket::open(Protocol::Netfilter).map(Self::with_transport).map_err(opening)
    }

    /// Opens a connection in another network namespace, given by an open file such as `/run/netns/<name>`.
    ///
    /// # Errors
    /// As [`Client::open`]. Entering a namespace needs `CAP_SYS_ADMIN`.
    pub fn open_in(namespace: BorrowedFd<'_>) -> Result<Self, Error> {
        Socket::open_in(Protocol::Netfilter, namespace).map(Self::with_transport).map_err(opening)
    }

    /// Opens a connection over any transport: your own socket, or a fake kernel.
    pub fn with_transport(transport: impl Transport + 'static) -> Self {
        Client { connection: Connection::new(transport) }
    }

    /// The underlying connection, to change its limits.
    pub fn connection_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// The generation number of the rule set. Every transaction of any program in the namespace increases it.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`], [`ErrorKind::Unsupported`] without nf_tables.
    #[doc(alias = "NFT_MSG_GETGEN")]
    pub fn generation(&mut self) -> Result<u32, Error> {
        let action = "reading the generation";
        self.ask(uapi::NFT_MSG_GETGEN, None, |_| {}, get_generation, action)
    }

    /// Applies all changes atomically, or none.
    ///
    /// # Errors
    /// The kind of the first refused operation; [`Error::refusals`] has all of them. [`ErrorKind::TooLarge`] and
    /// [`ErrorKind::Invalid`] before anything is sent. [`ErrorKind::GenerationChanged`]. [`ErrorKind::Timeout`] and
    /// [`ErrorKind::StateUnknown`] if the outcome is unknown.
    pub fn commit(&mut self, transaction: &Transaction) -> Result<(), Error> {
        self.send(transaction, true)
    }

    /// Lets the kernel check all changes without applying them.
    ///
    /// For tables that the same transaction creates, the kernel skips its final checks: for jump loops, and for
    /// expressions that are not allowed at a chain's hook. `nft -c` has the same gap.
    ///
    /// # Errors
    /// As [`Client::commit`].
    pub fn check(&mut self, transaction: &Transaction) -> Result<(), Error> {
        self.send(transaction, false)
    }

    /// Reads a table, passes it to `plan` (`None` if there is none), and commits the returned transaction for the
    /// generation that was read. Starts over if another program changed the rule set meanwhile.
    ///
    /// This adds a rule exactly once, even if other programs change the table meanwhile:
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
    /// As [`Client::snapshot`] and [`Client::commit`]; [`ErrorKind::GenerationChanged`] if the rule set changed during
    /// each of [`Limits::dump_attempts`](netlink_batch::Limits::dump_attempts) attempts.
    pub fn change_table(
        &mut self,
        table: &TableKey,
        mut plan: impl FnMut(Option<&TableSnapshot>) -> Transaction,
    ) -> Result<(), Error> {
        let mut attempts = self.connection.limits().dump_attempts.max(1);
        loop {
            attempts = attempts.saturating_sub(1);
            // The generation before the read, in case the table does not exist.
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

    /// Brings a table to a desired state: reads it, compares, and commits the difference in one transaction for the
    /// generation that was read. Starts over if another program changed the rule set meanwhile. Returns what was
    /// committed. If that is empty, nothing was written.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], as [`TableSpec::diff`]; otherwise as [`Client::change_table`].
    pub fn sync(&mut self, wanted: &TableSpec) -> Result<Transaction, Error> {
        let mut plan = Ok(Transaction::new());
        self.change_table(&wanted.table.key, |found| {
            plan = wanted.diff(found);
            plan.as_ref().cloned().unwrap_or_default()
        })?;
        plan.map_err(|error| Error::invalid(error, format!("comparing table {}", wanted.table.key)))
    }

    /// Sends a batch. Without its end message the kernel only checks the batch (net/netfilter/nfnetlink.c,
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
        if refused.is_empty() {
            return Ok(());
        }
        let refusals =
            refused.into_iter().map(|(place, kernel)| refusal(transaction, &messages, place, kernel, &action));
        Error::refused(refusals.collect()).map_or(Ok(()), Err)
    }

    /// Lists the tables of a family, or all.
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`], [`ErrorKind::Malformed`], [`ErrorKind::Permission`], [`ErrorKind::Unsupported`]
    /// without nf_tables.
    #[doc(alias = "NFT_MSG_GETTABLE")]
    pub fn list_tables(&mut self, family: Option<Family>) -> Result<Vec<ObservedTable>, Error> {
        self.dump(uapi::NFT_MSG_GETTABLE, family, |_| {}, get_table, "listing tables")
    }

    /// Reads one table.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn get_table(&mut self, table: &TableKey) -> Result<ObservedTable, Error> {
        let put = |out: &mut Encoder| put_name(out, TableAttr::NAME, &table.name);
        self.ask(uapi::NFT_MSG_GETTABLE, Some(table.family), put, get_table, &format!("reading table {table}"))
    }

    /// Lists the chains of a table. Also empty if the table does not exist: the kernel lists the chains of all tables.
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

    /// Reads one chain.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn get_chain(&mut self, chain: &ChainKey) -> Result<ObservedChain, Error> {
        let put = |out: &mut Encoder| put_chain_key(out, chain);
        self.ask(uapi::NFT_MSG_GETCHAIN, Some(chain.table.family), put, get_chain, &format!("reading chain {chain}"))
    }

    /// Lists the rules of a chain in order. Also empty if the chain does not exist.
    ///
    /// # Errors
    /// As [`Client::list_tables`].
    #[doc(alias = "NFT_MSG_GETRULE")]
    pub fn list_rules(&mut self, chain: &ChainKey) -> Result<Vec<ObservedRule>, Error> {
        let put = |out: &mut Encoder| put_chain_of_rule(out, chain);
        let action = format!("listing the rules of chain {chain}");
        self.dump(uapi::NFT_MSG_GETRULE, Some(chain.table.family), put, get_rule, &action)
    }

    /// Resets the counters and consumed quotas of a rule and returns the rule as it was. No packet is lost in between.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Unsupported`] before Linux 6.2.
    #[doc(alias = "NFT_MSG_GETRULE_RESET")]
    pub fn reset_rule(&mut self, chain: &ChainKey, handle: u64) -> Result<ObservedRule, Error> {
        let put = |out: &mut Encoder| {
            put_chain_of_rule(out, chain);
            out.attr(RuleAttr::HANDLE, &Be64(handle));
        };
        let action = format!("resetting rule {handle} of chain {chain}");
        self.ask(uapi::NFT_MSG_GETRULE_RESET, Some(chain.table.family), put, get_rule, &action)
    }

    /// Lists the sets and maps of a table, without their elements.
    ///
    /// # Errors
    /// As [`Client::list_tables`], and [`ErrorKind::NotFound`] without the table.
    #[doc(alias = "NFT_MSG_GETSET")]
    pub fn list_sets(&mut self, table: &TableKey) -> Result<Vec<ObservedSet>, Error> {
        let put = |out: &mut Encoder| put_name(out, SetAttr::TABLE, &table.name);
        let action = format!("listing the sets of table {table}");
        self.dump(uapi::NFT_MSG_GETSET, Some(table.family), put, get_set, &action)
    }

    /// Reads one set or map, without its elements.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn get_set(&mut self, set: &SetKey) -> Result<ObservedSet, Error> {
        let put = |out: &mut Encoder| put_set_key(out, set);
        self.ask(uapi::NFT_MSG_GETSET, Some(set.table.family), put, get_set, &format!("reading set {set}"))
    }

    /// Lists all elements of a set; ranges as [`ElementKey::Range`].
    ///
    /// The time grows with the square of the number of single-field ranges, because the kernel walks the tree from its
    /// start for each part of the answer (`nft_rbtree_walk`). On Linux 6.18, 20,000 ranges take 48 ms and 40,000 take
    /// 142 ms. The same number of addresses in a set without ranges takes 12 and 24 ms, and of two-field ranges
    /// (`ipv4_addr . inet_service`) 10 and 20 ms. If that is too slow, read single keys with [`Client::get_element`]
    /// (about 13 µs each, in a set of any size). Or read the number of elements with [`Client::get_set`]
    /// ([`ObservedSet::count`], Linux 6.16). Or keep the elements and follow changes with [`Events`](crate::Events).
    ///
    /// # Errors
    /// As [`Client::list_tables`], and [`ErrorKind::NotFound`].
    #[doc(alias = "NFT_MSG_GETSETELEM")]
    pub fn list_elements(&mut self, set: &Set) -> Result<Vec<Element>, Error> {
        let key = &set.key;
        let mut elements: Vec<Element> = Vec::new();
        let read = |payload: &[u8]| {
            let before = elements.len();
            get_elements(payload, |element| elements.push(element))?;
            Ok(elements.len().saturating_sub(before))
        };
        let counts = self.dump(
            uapi::NFT_MSG_GETSETELEM,
            Some(key.table.family),
            |out| put_set_of_elements(out, key),
            read,
            &format!("listing the elements of set {key}"),
        )?;
        // Those of the dump that was complete come last, behind what others before it have brought.
        elements.drain(..elements.len().saturating_sub(counts.into_iter().sum()));
        Ok(if ElementForm::of(set) == ElementForm::Pairs { pair_intervals(elements) } else { elements })
    }

    /// Passes the elements of a set to `each` as they arrive, in the kernel's form: a range of one field is two
    /// elements, the second an [`ElementKey::End`].
    ///
    /// After an error the elements passed so far are incomplete: start over.
    ///
    /// The kernel grows hash tables in the background, for some seconds after tens of thousands of additions. A dump
    /// meanwhile may omit or repeat elements without a sign of it (net/netfilter/nft_set_hash.c, `nft_rhash_walk`,
    /// skips by a count of earlier elements). An example on 6.18: 80,341 of 88,250. [`Client::snapshot`] reads again
    /// until it has as many elements as the kernel counts (6.16), or without a count until a dump repeats nothing. If
    /// you delete or add by difference, read twice.
    ///
    /// A range in the kernel's form: its start, and the first value after it.
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`] if the rule set changed meanwhile; otherwise as [`Client::list_elements`].
    pub fn for_each_element(&mut self, set: &SetKey, mut each: impl FnMut(Element)) -> Result<(), Error> {
        let limits = self.connection.limits();
        let mut once = limits;
        once.dump_attempts = 1;
        self.connection.set_limits(once);
        let action = format!("listing the elements of set {set}");
        let read = |payload: &[u8]| get_elements(payload, &mut each);
        let put = |out: &mut Encoder| put_set_of_elements(out, set);
        let outcome = self.dump(uapi::NFT_MSG_GETSETELEM, Some(set.table.family), put, read, &action);
        self.connection.set_limits(limits);
        outcome.map(drop)
    }

    /// Reads the element that matches a key; in a set of intervals, the one that contains it. For single-field keys the
    /// kernel only reports the start of the range. `None` if nothing matches.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] without the set.
    pub fn get_element(&mut self, set: &Set, key: &ElementKey) -> Result<Option<Element>, Error> {
        self.read_element(uapi::NFT_MSG_GETSETELEM, set, key, "reading")
    }

    /// Resets the counters and consumed quotas of the element that matches a key. Returns the element as it was, in the
    /// form of [`Client::get_element`].
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] without the set; [`ErrorKind::Unsupported`] before Linux 6.5.
    #[doc(alias = "NFT_MSG_GETSETELEM_RESET")]
    pub fn reset_element(&mut self, set: &Set, key: &ElementKey) -> Result<Option<Element>, Error> {
        self.read_element(uapi::NFT_MSG_GETSETELEM_RESET, set, key, "resetting")
    }

    fn read_element(&mut self, command: u8, set: &Set, key: &ElementKey, verb: &str) -> Result<Option<Element>, Error> {
        // The kernel's answer for a missing element is that for a missing set.
        let observed = self.get_set(&set.key)?;
        let form = ElementForm::of(&observed.set);
        let action = format!("{verb} an element of set {}", set.key);
        // A single value matches its range; a second attribute would request the end.
        let (form, wanted) = match (form, key) {
            (ElementForm::Pairs, ElementKey::Range(ends)) => (ElementForm::Single, ElementKey::Value(ends.0.clone())),
            (ElementForm::Pairs, key) => (ElementForm::Single, key.clone()),
            (form, key) => (form, key.clone()),
        };
        let put = |out: &mut Encoder| {
            put_set_of_elements(out, &set.key);
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

    /// Lists the objects of a table.
    ///
    /// # Errors
    /// As [`Client::list_tables`].
    #[doc(alias = "NFT_MSG_GETOBJ")]
    pub fn list_objects(&mut self, table: &TableKey) -> Result<Vec<ObservedObject>, Error> {
        let put = |out: &mut Encoder| put_name(out, ObjAttr::TABLE, &table.name);
        let action = format!("listing the objects of table {table}");
        self.dump(uapi::NFT_MSG_GETOBJ, Some(table.family), put, get_object, &action)
    }

    /// Reads one object, including a counter's values.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn get_object(&mut self, object: &ObjectKey) -> Result<ObservedObject, Error> {
        self.read_object(uapi::NFT_MSG_GETOBJ, object, "reading")
    }

    /// Resets a counter or a consumed quota and returns the object as it was. No packet is lost in between. Other
    /// objects do not change.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    #[doc(alias = "NFT_MSG_GETOBJ_RESET")]
    pub fn reset_object(&mut self, object: &ObjectKey) -> Result<ObservedObject, Error> {
        self.read_object(uapi::NFT_MSG_GETOBJ_RESET, object, "resetting")
    }

    fn read_object(&mut self, command: u8, object: &ObjectKey, verb: &str) -> Result<ObservedObject, Error> {
        let put = |out: &mut Encoder| put_object_key(out, object);
        let action = format!("{verb} object {object}");
        self.ask(command, Some(object.table.family), put, get_object, &action)
    }

    /// Lists the flow tables of a table. Also empty if the table does not exist.
    ///
    /// # Errors
    /// As [`Client::list_tables`].
    #[doc(alias = "NFT_MSG_GETFLOWTABLE")]
    pub fn list_flowtables(&mut self, table: &TableKey) -> Result<Vec<ObservedFlowtable>, Error> {
        let put = |out: &mut Encoder| put_name(out, FlowtableAttr::TABLE, &table.name);
        let action = format!("listing the flow tables of table {table}");
        self.dump(uapi::NFT_MSG_GETFLOWTABLE, Some(table.family), put, get_flowtable, &action)
    }

    /// Reads one flow table.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn get_flowtable(&mut self, flowtable: &FlowtableKey) -> Result<ObservedFlowtable, Error> {
        let put = |out: &mut Encoder| put_flowtable_key(out, flowtable);
        let action = format!("reading flow table {flowtable}");
        let read = self.ask(uapi::NFT_MSG_GETFLOWTABLE, Some(flowtable.table.family), put, get_flowtable, &action);
        // The kernel answers EPERM if the names of the devices do not fit into a page (`nf_tables_getflowtable`); a
        // listing has room.
        let Some(error) = read.as_ref().err().filter(|error| error.kind() == ErrorKind::Permission) else {
            return read;
        };
        let listed = self.list_flowtables(&flowtable.table).unwrap_or_default();
        listed.into_iter().find(|found| found.flowtable.key == *flowtable).ok_or_else(|| error.clone())
    }

    /// Reads a table with all its contents, in one generation. Other tables are not read.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]. [`ErrorKind::Interrupted`] if the rule set changed during each of
    /// [`Limits::dump_attempts`](netlink_batch::Limits::dump_attempts) attempts, or if the kernel was enlarging a set
    /// for more than a second.
    pub fn snapshot(&mut self, table: &TableKey) -> Result<TableSnapshot, Error> {
        let mut attempts = self.connection.limits().dump_attempts.max(1);
        loop {
            attempts = attempts.saturating_sub(1);
            let before = self.generation()?;
            match self.read_table(table, before) {
                // If something disappeared during the read, the generation has changed.
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

    /// The elements of a set, each once. While the kernel enlarges its table, a dump may omit or repeat some
    /// ([`Client::for_each_element`]). So this collects several dumps until they have as many elements as the kernel
    /// counts.
    fn all_elements(&mut self, set: &ObservedSet) -> Result<Vec<Element>, Error> {
        const DUMPS: u32 = 10;
        let elements = self.list_elements(&set.set)?;
        // Only hash tables are moved.
        if set.set.flags.contains(SetFlags::INTERVAL) {
            return Ok(elements);
        }
        // Timeouts and packets that add elements make the count outdated.
        if set.set.flags.intersects(SetFlags::TIMEOUT | SetFlags::DYNAMIC) {
            return Ok(by_key(elements).gather::<BTreeMap<_, _>>().into_values().collect());
        }
        let count = set.count.and_then(|of| usize::try_from(of).ok());
        let different = elements.iter().map(|element| &element.key).collect::<HashSet<_>>().len();
        if different == elements.len() && count.is_none_or(|count| different >= count) {
            return Ok(elements);
        }
        let mut all: BTreeMap<ElementKey, Element> = by_key(elements).gather();
        let mut agrees = false;
        for dump in 0..DUMPS {
            // If the kernel does not count: until a dump has nothing new and nothing twice.
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

/// Length of a message's headers: nlmsghdr and nfgenmsg.
const HEADERS: usize = 20;

/// The refusal in the kernel's answer to message number `place`. The first message begins the batch, the last ends it.
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
    // The kernel has one answer for both; it accepts equal elements in a set without data.
    let kind = if kind == ErrorKind::AlreadyExists && operation.keeps_ranges() { ErrorKind::Overlap } else { kind };
    Refusal { operation: Some(sent.operation), action: operation.action(), part, kind, kernel }
}

fn by_key(elements: Vec<Element>) -> impl Iterator<Item = (ElementKey, Element)> {
    elements.into_iter().map(|element| (element.key.clone(), element))
}
