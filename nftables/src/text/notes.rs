//! nft's words for operands of sets that have no value in this crate, from nft's notes about them.

use super::header::{Protocol, noted_option};
use super::rule::operands_text;
use crate::expr::{ExthdrOp, HeaderBase, XfrmKey};
use crate::model::Set;
use crate::{typing, userdata};

/// One operand.
#[derive(Debug)]
pub(super) struct Noted {
    pub(super) text: String,
    /// Its length in bytes, which may be padded in a concatenation.
    pub(super) length: u32,
    /// Its numbers are in host byte order.
    pub(super) is_host_order: bool,
    /// nft prints its numbers in hexadecimal.
    pub(super) is_raw: bool,
}

/// The operands of a set's keys or data (`userdata::SET_…_TYPEOF`); `None` without a note, or if one is unknown.
pub(super) fn noted(set: &Set, kind: u8) -> Option<Vec<Noted>> {
    let (_, note) = userdata::items(&set.userdata).find(|(found, _)| *found == kind)?;
    let noted: Vec<Noted> = typing::notes(note)?.into_iter().map(one).collect::<Option<_>>()?;
    // nft notes no fields for a concatenation of types.
    (!noted.is_empty()).then_some(noted)
}

fn one(bytes: &[u8]) -> Option<Noted> {
    if let Some(operand) = typing::operand(bytes) {
        let (length, is_host_order) = (operand.length(), operand.is_host_order());
        return Some(Noted { text: operands_text(&[operand], None)?, length, is_host_order, is_raw: false });
    }
    let (number, note) = typing::note_of(bytes)?;
    let number_of = |kind| typing::number_of(note, kind);
    let (mut is_host_order, mut is_raw) = (false, false);
    let (text, bits) = match number {
        typing::PAYLOAD if number_of(0)? == 0 => {
            is_raw = true;
            let base = HeaderBase::from_number(number_of(2)?.checked_sub(1)?).name()?;
            let (offset, bits) = (number_of(3)?, number_of(4)?);
            (format!("@{base},{offset},{bits}"), bits)
        }
        typing::PAYLOAD => Protocol::noted(number_of(0)?)?.noted_field(number_of(1)?)?,
        typing::EXTHDR => noted_option(ExthdrOp::from_number(number_of(2).unwrap_or(0)), number_of(0)?, number_of(1)?)?,
        typing::OSF => ("osf name".to_owned(), 128),
        typing::XFRM => {
            let way = if number_of(2)? == 0 { "in" } else { "out" };
            let place = match number_of(1)? {
                0 => String::new(),
                place => format!("spnum {place} "),
            };
            let key = XfrmKey::from_number(number_of(0)?);
            is_host_order = key == XfrmKey::RequestId;
            let is_ip6 = matches!(key, XfrmKey::SourceIp6 | XfrmKey::DestinationIp6);
            (format!("ipsec {way} {place}{}", key.name()?), if is_ip6 { 128 } else { 32 })
        }
        _ => return None,
    };
    Some(Noted { text, length: bits.div_ceil(8), is_host_order, is_raw })
}
