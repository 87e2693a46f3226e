//! Decodes requests and encodes answers.

use std::sync::Arc;

use netlink_batch::header::{MESSAGE_HEADER, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NfGenHeader};
use netlink_batch::testing::Reply;
use netlink_batch::{Attrs, Be32, Be64, Encoder, Errno, Message, NulStr, RawAttrs, WireError};

use super::state::{FakeChain, FakeSet, FakeTable, Refusal, RuleRequest, Ruleset, whole};
use crate::attrs::{BatchAttr, ChainAttr, ElemListAttr, FlowtableAttr, GenAttr, ObjAttr, RuleAttr, SetAttr, TableAttr};
use crate::client::message_type;
use crate::expr::SetReference;
use crate::model::{Element, ElementKey, Family, Flowtable, Name, Object, ObjectType, Rule, TableKey};
use crate::sync::{fixed_data, reset as reset_expression};
use crate::uapi;
use crate::wire::{
    ElementForm, get_chain, get_elements, get_flowtable, get_object, get_rule, get_set, get_table, put_chain,
    put_element, put_flowtable, put_object, put_rule, put_set, put_table, split,
};

/// `NLM_F_APPEND`.
const NLM_F_APPEND: u16 = 0x800;

/// The generation for which a batch was made.
pub(super) fn batch_generation(payload: &[u8]) -> Option<u32> {
    let (_, attributes) = NfGenHeader::split(payload)?;
    Attrs::<BatchAttr<'_>>::new(attributes).iter().find_map(|attr| match attr {
        Ok(BatchAttr::Genid(Be32(generation))) => Some(generation),
        _ => None,
    })
}

/// The first attributes of a request: the table, and usually a name.
struct Request<'a> {
    family: Family,
    attributes: &'a [u8],
}

impl<'a> Request<'a> {
    fn read(message: &Message<'a>) -> Result<Self, Refusal> {
        let (family, attributes) = readable(split(message.payload))?;
        Ok(Request { family, attributes })
    }

    fn attr(&self, kind: u16) -> Option<&'a [u8]> {
        RawAttrs::new(self.attributes).map_while(Result::ok).find(|attr| attr.kind() == kind).map(|attr| attr.payload)
    }

    fn name(&self, kind: u16) -> Option<Name> {
        self.attr(kind).map(|bytes| Name::from_kernel(NulStr::new(bytes).as_bytes()))
    }

    fn need(&self, kind: u16) -> Result<Name, Refusal> {
        self.name(kind).ok_or(whole(Errno::EINVAL))
    }

    fn table(&self) -> Result<TableKey, Refusal> {
        Ok(TableKey { family: self.family, name: self.need(1)? })
    }

    fn u32(&self, kind: u16) -> Option<u32> {
        self.attr(kind).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes)
    }

    fn u64(&self, kind: u16) -> Option<u64> {
        self.attr(kind).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes)
    }
}

/// Refuses attributes that cannot be decoded, with `EINVAL` for the whole message.
fn readable<T>(outcome: Result<T, WireError>) -> Result<T, Refusal> {
    outcome.map_err(|_error| whole(Errno::EINVAL))
}

/// Handles one message of a batch.
pub(super) fn change(state: &mut Ruleset, message: &Message<'_>) -> Reply {
    match try_change(state, message) {
        Ok(()) => Reply::Ok,
        Err((errno, _)) if state.is_silent => Reply::Error(errno),
        Err((errno, None)) => Reply::Error(errno),
        Err((errno, Some(index))) => match place_of(message, index) {
            Some(offset) => Reply::ErrorAt(errno, offset),
            None => Reply::Error(errno),
        },
    }
}

/// Offset of an expression or element in a message.
fn place_of(message: &Message<'_>, index: usize) -> Option<u32> {
    let list_kind = match message.header.kind.to_be_bytes() {
        [_, uapi::NFT_MSG_NEWRULE] => RuleAttr::EXPRESSIONS,
        _ => ElemListAttr::ELEMENTS,
    };
    let attributes = message.payload.get(NfGenHeader::LENGTH..)?;
    let list = RawAttrs::new(attributes).map_while(Result::ok).find(|attr| attr.kind() == list_kind)?;
    let inside = RawAttrs::new(list.payload).map_while(Result::ok).nth(index)?;
    let before = MESSAGE_HEADER.checked_add(NfGenHeader::LENGTH)?.checked_add(list.offset)?.checked_add(4)?;
    u32::try_from(before.checked_add(inside.offset)?).ok()
}

fn try_change(state: &mut Ruleset, message: &Message<'_>) -> Result<(), Refusal> {
    let request = Request::read(message)?;
    let [_, command] = message.header.kind.to_be_bytes();
    let exclusive = message.header.flags & NLM_F_EXCL != 0;
    let payload = message.payload;
    match command {
        uapi::NFT_MSG_NEWTABLE => state.add_table(readable(get_table(payload))?.table, exclusive),
        uapi::NFT_MSG_DELTABLE => state.delete_table(&request.table()?),
        uapi::NFT_MSG_NEWCHAIN => state.add_chain(readable(get_chain(payload))?.chain, exclusive),
        uapi::NFT_MSG_DELCHAIN => state.delete_chain(&request.table()?, &request.need(ChainAttr::NAME)?),
        uapi::NFT_MSG_NEWRULE => {
            let rule: Rule = readable(get_rule(payload))?.rule;
            let place = RuleRequest {
                handle: request.u64(RuleAttr::HANDLE),
                position: request.u64(RuleAttr::POSITION),
                append: message.header.flags & NLM_F_APPEND != 0,
                replace: message.header.flags & NLM_F_REPLACE != 0,
            };
            state.add_rule(&request.table()?, &request.need(RuleAttr::CHAIN)?, rule, place)
        }
        uapi::NFT_MSG_DELRULE => {
            let chain = request.name(RuleAttr::CHAIN);
            state.delete_rules(&request.table()?, chain.as_ref(), request.u64(RuleAttr::HANDLE))
        }
        uapi::NFT_MSG_NEWSET => {
            let set = readable(get_set(payload))?.set;
            state.add_set(set, request.u32(SetAttr::ID), exclusive)
        }
        uapi::NFT_MSG_DELSET => state.delete_set(&request.table()?, &request.need(SetAttr::NAME)?),
        uapi::NFT_MSG_NEWSETELEM => {
            let id = request.u32(ElemListAttr::SET_ID);
            let set = SetReference { name: request.need(ElemListAttr::SET)?, id };
            let elements = elements(payload)?.ok_or(whole(Errno::EINVAL))?;
            state.add_elements(&request.table()?, &set, elements, exclusive)
        }
        uapi::NFT_MSG_DELSETELEM => {
            state.delete_elements(&request.table()?, &request.need(ElemListAttr::SET)?, elements(payload)?)
        }
        uapi::NFT_MSG_NEWOBJ => state.add_object(readable(get_object(payload))?.object, exclusive),
        uapi::NFT_MSG_DELOBJ => {
            let kind = ObjectType::from_number(request.u32(ObjAttr::TYPE).unwrap_or_default());
            state.delete_object(&request.table()?, kind, &request.need(ObjAttr::NAME)?)
        }
        uapi::NFT_MSG_NEWFLOWTABLE => {
            if request.attr(FlowtableAttr::HOOK).is_none() {
                return Err(whole(Errno::EINVAL));
            }
            state.add_flowtable(readable(get_flowtable(payload))?.flowtable, exclusive)
        }
        uapi::NFT_MSG_DELFLOWTABLE => {
            let devices = readable(get_flowtable(payload))?.flowtable.devices;
            state.delete_flowtable(&request.table()?, &request.need(FlowtableAttr::NAME)?, &devices)
        }
        _ => Err(whole(Errno::EINVAL)),
    }
}

/// The elements of a request; `None` if it has no list of them.
fn elements(payload: &[u8]) -> Result<Option<Vec<Element>>, Refusal> {
    let (_, attributes) = readable(split(payload))?;
    let listed = RawAttrs::new(attributes).map_while(Result::ok).any(|attr| attr.kind() == ElemListAttr::ELEMENTS);
    let mut found = Vec::new();
    readable(get_elements(payload, |element| found.push(element)))?;
    Ok(listed.then_some(found))
}

/// A request for data.
pub(super) fn read(state: &mut Ruleset, message: &Message<'_>) -> Reply {
    let [subsystem, command] = message.header.kind.to_be_bytes();
    if subsystem != uapi::NFNL_SUBSYS_NFTABLES {
        return Reply::Error(Errno::EINVAL);
    }
    let dump = message.header.flags & NLM_F_DUMP == NLM_F_DUMP;
    let get = match command {
        uapi::NFT_MSG_GETOBJ_RESET => uapi::NFT_MSG_GETOBJ,
        uapi::NFT_MSG_GETRULE_RESET => uapi::NFT_MSG_GETRULE,
        uapi::NFT_MSG_GETSETELEM_RESET => uapi::NFT_MSG_GETSETELEM,
        other => other,
    };
    let found = Request::read(message).and_then(|request| {
        let found = answer(state, get, &request, message, dump)?;
        if get != command {
            // It was found.
            let _of_all = reset(state, get, &request, message);
        }
        Ok(found)
    });
    match found {
        Ok((_, bodies)) if bodies.is_empty() && !dump => Reply::Error(Errno::ENOENT),
        Ok((kind, bodies)) => {
            let bodies = bodies.into_iter().map(|body| (message_type(kind), body)).collect();
            if dump { Reply::Dump(bodies) } else { Reply::Data(bodies) }
        }
        Err((errno, _)) => Reply::Error(errno),
    }
}

type Bodies = (u8, Vec<Vec<u8>>);

fn body(family: Family, put: impl FnOnce(&mut Encoder)) -> Vec<u8> {
    let mut out = Encoder::new();
    out.bytes(&NfGenHeader { family: family.number(), version: 0, resource: 0 }.to_bytes());
    put(&mut out);
    out.as_slice().to_vec()
}

fn answer(
    state: &Ruleset,
    command: u8,
    request: &Request<'_>,
    message: &Message<'_>,
    dump: bool,
) -> Result<Bodies, Refusal> {
    let wanted = |name: &Name, kind: u16| request.name(kind).is_none_or(|wanted| wanted == *name);
    let of_family = |table: &&FakeTable| request.family == Family::Other(0) || table.family() == request.family;
    let tables = || state.tables.values().filter(of_family);
    let one = || request.table().and_then(|key| state.table(&key));
    Ok(match command {
        uapi::NFT_MSG_GETGEN => {
            let put = |out: &mut Encoder| out.attr(GenAttr::ID, &Be32(state.generation));
            (uapi::NFT_MSG_NEWGEN, vec![body(Family::Other(0), put)])
        }
        uapi::NFT_MSG_GETTABLE if dump => (uapi::NFT_MSG_NEWTABLE, tables().map(table_body).collect()),
        uapi::NFT_MSG_GETTABLE => (uapi::NFT_MSG_NEWTABLE, vec![table_body(one()?)]),
        uapi::NFT_MSG_GETCHAIN => {
            let found = tables().filter(|table| dump || wanted(&table.table.key.name, ChainAttr::TABLE));
            let chains = found.flat_map(|table| table.chains.iter().map(move |chain| (table, chain)));
            let chains = chains.filter(|(_, chain)| dump || wanted(&chain.chain.key.name, ChainAttr::NAME));
            (uapi::NFT_MSG_NEWCHAIN, chains.map(|(table, chain)| chain_body(table, chain)).collect())
        }
        uapi::NFT_MSG_GETRULE => {
            let found = tables().filter(|table| wanted(&table.table.key.name, RuleAttr::TABLE));
            let chains = found.flat_map(|table| &table.chains);
            let chains = chains.filter(|chain| wanted(&chain.chain.key.name, RuleAttr::CHAIN));
            let handle = request.u64(RuleAttr::HANDLE);
            (uapi::NFT_MSG_NEWRULE, chains.flat_map(|chain| rule_bodies(chain, handle)).collect())
        }
        uapi::NFT_MSG_GETSET => {
            let sets = one()?.sets.iter().filter(|set| dump || wanted(&set.set.key.name, SetAttr::NAME));
            (uapi::NFT_MSG_NEWSET, sets.map(set_body).collect())
        }
        uapi::NFT_MSG_GETSETELEM => {
            let table = one()?;
            let place = table.set_place(&request.need(ElemListAttr::SET)?).ok_or(whole(Errno::ENOENT))?;
            let set = table.sets.get(place).ok_or(whole(Errno::ENOENT))?;
            let asked = if dump { None } else { elements(message.payload)? };
            (uapi::NFT_MSG_NEWSETELEM, element_bodies(set, asked.as_deref())?)
        }
        uapi::NFT_MSG_GETOBJ => {
            let found = tables().filter(|table| wanted(&table.table.key.name, ObjAttr::TABLE));
            let kind = request.u32(ObjAttr::TYPE).map(ObjectType::from_number);
            let objects = found.flat_map(|table| table.objects.iter().map(move |object| (table, object)));
            let objects = objects.filter(|(_, (object, _))| {
                kind.is_none_or(|kind| kind == object.key.kind) && (dump || wanted(&object.key.name, ObjAttr::NAME))
            });
            let bodies = objects.map(|(table, (object, handle))| object_body(table, object, *handle));
            (uapi::NFT_MSG_NEWOBJ, bodies.collect())
        }
        uapi::NFT_MSG_GETFLOWTABLE => {
            let found = tables().filter(|table| wanted(&table.table.key.name, FlowtableAttr::TABLE));
            let all = found.flat_map(|table| table.flowtables.iter().map(move |flowtable| (table, flowtable)));
            let all = all.filter(|(_, (flowtable, _))| dump || wanted(&flowtable.key.name, FlowtableAttr::NAME));
            let bodies = all.map(|(table, (flowtable, handle))| flowtable_body(table, flowtable, *handle));
            (uapi::NFT_MSG_NEWFLOWTABLE, bodies.collect())
        }
        _ => return Err(whole(Errno::EINVAL)),
    })
}

fn table_body(table: &FakeTable) -> Vec<u8> {
    let parts = [table.chains.len(), table.sets.len(), table.objects.len(), table.flowtables.len()];
    let references = parts.into_iter().fold(0, usize::saturating_add);
    body(table.family(), |out| {
        put_table(out, &table.table);
        out.attr(TableAttr::USE, &Be32(u32::try_from(references).unwrap_or(u32::MAX)));
        out.attr(TableAttr::HANDLE, &Be64(table.handle));
    })
}

fn chain_body(table: &FakeTable, chain: &FakeChain) -> Vec<u8> {
    let references = table.jumps_to(&chain.chain.key.name).saturating_add(chain.rules.len());
    body(table.family(), |out| {
        put_chain(out, &chain.chain);
        out.attr(ChainAttr::USE, &Be32(u32::try_from(references).unwrap_or(u32::MAX)));
        out.attr(ChainAttr::HANDLE, &Be64(chain.handle));
    })
}

fn rule_bodies(chain: &FakeChain, handle: Option<u64>) -> Vec<Vec<u8>> {
    let key = &chain.chain.key;
    let one = |(handle, rule): &(u64, Rule)| {
        body(key.table.family, |out| {
            put_rule(out, key, rule);
            out.attr(RuleAttr::HANDLE, &Be64(*handle));
        })
    };
    chain.rules.iter().filter(|(of, _)| handle.is_none_or(|handle| handle == *of)).map(one).collect()
}

/// Resets the counts of one object, rule or element.
fn reset(state: &mut Ruleset, get: u8, request: &Request<'_>, message: &Message<'_>) -> Result<(), Refusal> {
    let table = state.tables.get_mut(&request.table()?).ok_or(whole(Errno::ENOENT))?;
    match get {
        uapi::NFT_MSG_GETOBJ => {
            let (name, kind) = (request.need(ObjAttr::NAME)?, request.u32(ObjAttr::TYPE).map(ObjectType::from_number));
            let of = |object: &&mut (Object, u64)| object.0.key.name == name && Some(object.0.key.kind) == kind;
            table.objects.iter_mut().filter(of).for_each(|(object, _)| object.data = fixed_data(&object.data));
        }
        uapi::NFT_MSG_GETRULE => {
            let handle = request.u64(RuleAttr::HANDLE);
            let rules = table.chains.iter_mut().flat_map(|chain| &mut Arc::make_mut(chain).rules);
            let wanted = rules.filter(|(of, _)| Some(*of) == handle);
            wanted.flat_map(|(_, rule)| &mut rule.expressions).for_each(reset_expression);
        }
        _ => {
            let set = request.need(ElemListAttr::SET)?;
            let place = table.set_place(&set).ok_or(whole(Errno::ENOENT))?;
            let set = table.sets.get_mut(place).ok_or(whole(Errno::ENOENT))?;
            for wanted in elements(message.payload)?.unwrap_or_default() {
                let key = find(set, &wanted).map(|found| found.key.clone());
                let found =
                    Arc::make_mut(&mut set.elements).values_mut().filter(|element| Some(&element.key) == key.as_ref());
                found.flat_map(|element| &mut element.extras_mut().expressions).for_each(reset_expression);
            }
        }
    }
    Ok(())
}

fn set_body(set: &FakeSet) -> Vec<u8> {
    body(set.set.key.table.family, |out| {
        put_set(out, &set.set, 0);
        out.attr(SetAttr::HANDLE, &Be64(set.handle));
    })
}

/// Elements in one message of a listing.
const LISTED: usize = 100;

/// All elements, or the requested ones. In a set of ranges: the start of the range that contains the value.
fn element_bodies(set: &FakeSet, asked: Option<&[Element]>) -> Result<Vec<Vec<u8>>, Refusal> {
    let found: Vec<&Element> = match asked {
        None => set.elements.values().collect(),
        Some(asked) => {
            asked.iter().map(|element| find(set, element).ok_or(whole(Errno::ENOENT))).collect::<Result<_, _>>()?
        }
    };
    let key = &set.set.key;
    let form = match ElementForm::of(&set.set) {
        // In the kernel's form: range ends are separate elements.
        ElementForm::Pairs => ElementForm::Single,
        other => other,
    };
    let message = |elements: &[&Element]| {
        body(key.table.family, |out| {
            out.attr(ElemListAttr::TABLE, &NulStr::from(key.table.name.as_str()));
            out.attr(ElemListAttr::SET, &NulStr::from(key.name.as_str()));
            out.nest(ElemListAttr::ELEMENTS, |out| {
                for element in elements {
                    put_element(out, form, element);
                }
            });
        })
    };
    Ok(found.chunks(LISTED).map(message).collect())
}

fn find<'a>(set: &'a FakeSet, wanted: &Element) -> Option<&'a Element> {
    let Some(value) = wanted.key.start() else {
        return set.elements.values().find(|element| element.key == ElementKey::CatchAll);
    };
    if ElementForm::of(&set.set) != ElementForm::Pairs {
        let holds =
            |element: &&Element| element.key.ends().is_some_and(|(first, last)| first <= value && value <= last);
        return set.elements.values().find(holds);
    }
    let last = set.elements.values().filter(|element| match &element.key {
        ElementKey::Value(start) | ElementKey::End(start) => start <= value,
        _ => false,
    });
    // The last boundary at or before the value. If that is a start, its range contains the value.
    last.max_by(|one, other| one.key.boundary().cmp(&other.key.boundary()))
        .filter(|element| matches!(element.key, ElementKey::Value(_)))
}

impl ElementKey {
    /// The value, and whether a range starts there. One range may start where another ends.
    fn boundary(&self) -> Option<(&crate::model::Value, bool)> {
        match self {
            ElementKey::Value(value) => Some((value, true)),
            ElementKey::End(value) => Some((value, false)),
            _ => None,
        }
    }
}

fn flowtable_body(table: &FakeTable, flowtable: &Flowtable, handle: u64) -> Vec<u8> {
    let uses = table.uses_of_flowtable(&flowtable.key.name);
    body(table.family(), |out| {
        put_flowtable(out, flowtable);
        out.attr(FlowtableAttr::USE, &Be32(u32::try_from(uses).unwrap_or(u32::MAX)));
        out.attr(FlowtableAttr::HANDLE, &Be64(handle));
    })
}

fn object_body(table: &FakeTable, object: &Object, handle: u64) -> Vec<u8> {
    let uses = table.uses_of_object(object.key.kind, &object.key.name);
    body(table.family(), |out| {
        put_object(out, object);
        out.attr(ObjAttr::USE, &Be32(u32::try_from(uses).unwrap_or(u32::MAX)));
        out.attr(ObjAttr::HANDLE, &Be64(handle));
    })
}
