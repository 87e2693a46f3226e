//! Families of generic netlink on a simulated controller: found by name, moved when their module is loaded again, gone.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]
#![cfg(feature = "testing")]

use std::sync::{Arc, Mutex};

use netlink_batch::header::GenlHeader;
use netlink_batch::testing::{Reply, Simulated};
use netlink_batch::{
    Attrs, ControllerAttr, Encoder, Errno, ErrorKind, Family, Genl, GroupAttr, Message, NulStr, Outcome, WireError,
};

/// `GENL_ID_CTRL`.
const CONTROLLER: u16 = 0x10;
const NAME: &str = "EXAMPLE";
/// A command that succeeds, one that answers with what it was sent, one that lists three entries, one that finds nothing, and one that
/// is refused.
const SET: u8 = 1;
const GET: u8 = 2;
const LIST: u8 = 3;
const FIND: u8 = 4;
const REFUSED: u8 = 5;

/// The kernel's side: the family's number, `None` while its module is not loaded, and the commands that came to it.
#[derive(Default)]
struct Kernel {
    id: Option<u16>,
    commands: Vec<(u8, u8)>,
    lookups: usize,
    /// Loads the module again, with the next number, when this many commands have come.
    reload_after: Option<usize>,
}

fn describe(id: u16) -> Vec<u8> {
    let group = |out: &mut Encoder, name: &str, id: Option<u32>| {
        out.nest(1, |out| {
            out.attr(GroupAttr::NAME, &NulStr::from(name));
            if let Some(id) = id {
                out.attr(GroupAttr::ID, &id);
            }
        });
    };
    let mut out = Encoder::new();
    out.bytes(&GenlHeader { command: 1, version: 2 }.to_bytes());
    out.attr(ControllerAttr::FAMILY_NAME, &NulStr::from(NAME));
    out.attr(ControllerAttr::FAMILY_ID, &id);
    out.attr(ControllerAttr::VERSION, &7_u32);
    out.nest(ControllerAttr::MCAST_GROUPS, |out| {
        group(out, "one", Some(11));
        group(out, "two", Some(12));
        group(out, "numberless", None);
    });
    out.as_slice().to_vec()
}

impl Kernel {
    fn respond(&mut self, message: &Message<'_>) -> Reply {
        let (header, attributes) = GenlHeader::split(message.payload).unwrap();
        if message.header.kind == CONTROLLER {
            self.lookups += 1;
            assert_eq!(header, GenlHeader { command: 3, version: 2 }, "CTRL_CMD_GETFAMILY");
            let asked = Attrs::<ControllerAttr<'_>>::new(attributes).to_vec().unwrap();
            assert_eq!(asked, [ControllerAttr::FamilyName(NulStr::from(NAME))]);
            return self.id.map_or(Reply::Error(Errno::ENOENT), |id| Reply::Data(vec![(CONTROLLER, describe(id))]));
        }
        // genl_rcv_msg: a number that no family has.
        if Some(message.header.kind) != self.id {
            return Reply::Error(Errno::ENOENT);
        }
        self.commands.push((header.command, header.version));
        if self.reload_after.is_some_and(|count| self.commands.len() >= count) {
            self.reload_after = None;
            self.id = self.id.map(|id| id + 1);
        }
        match header.command {
            SET => Reply::Ok,
            GET => Reply::Data(vec![(message.header.kind, message.payload.to_vec())]),
            LIST => Reply::Dump((0..3).map(|number| (message.header.kind, vec![LIST, 7, 0, 0, number])).collect()),
            FIND => Reply::Error(Errno::ENOENT),
            _ => Reply::Error(Errno::EBUSY),
        }
    }
}

fn open(id: Option<u16>) -> (Result<Genl, netlink_batch::Error>, Arc<Mutex<Kernel>>) {
    let kernel = Arc::new(Mutex::new(Kernel { id, ..Kernel::default() }));
    let shared = Arc::clone(&kernel);
    let transport = Simulated::new(move |message: &Message<'_>| shared.lock().unwrap().respond(message));
    (Genl::with_transport(NAME, transport), kernel)
}

#[test]
fn a_family_is_found_by_name_and_its_version_goes_into_each_command() {
    let (genl, kernel) = open(Some(30));
    let mut genl = genl.unwrap();
    assert_eq!(genl.family(), Family { id: 30, version: 7 });
    genl.request(SET, |_| {}).unwrap();
    let answers = genl.query(GET, |out| out.attr(1, &5_u8), |header, rest| Ok((header, rest.to_vec()))).unwrap();
    let attribute = [5_u16.to_ne_bytes(), 1_u16.to_ne_bytes(), [5, 0], [0, 0]].concat();
    assert_eq!(answers, [(GenlHeader { command: GET, version: 7 }, attribute)]);
    let list = genl.dump(LIST, |_| {}, |header, rest| Ok((header.command, rest[0]))).unwrap();
    assert_eq!(list.items, [(LIST, 0), (LIST, 1), (LIST, 2)]);
    assert_eq!(kernel.lock().unwrap().commands, [(SET, 7), (GET, 7), (LIST, 7)]);
}

#[test]
fn a_family_that_is_absent_or_goes_is_missing() {
    let (genl, kernel) = open(None);
    assert_eq!(*genl.unwrap_err().kind(), ErrorKind::FamilyMissing);
    kernel.lock().unwrap().id = Some(30);
    let (genl, kernel) = open(Some(30));
    let mut genl = genl.unwrap();
    kernel.lock().unwrap().id = None;
    assert_eq!(*genl.request(SET, |_| {}).unwrap_err().kind(), ErrorKind::FamilyMissing);
    let mut refused = Vec::new();
    let stopped = genl.batch([1, 2], |_| SET, |_, _| {}, |item, outcome| refused.push((item, outcome)));
    assert_eq!(*stopped.unwrap_err().kind(), ErrorKind::FamilyMissing);
    assert!(matches!(&refused[..], [(1, Outcome::Refused(_)), (2, Outcome::Refused(_))]), "{refused:?}");
}

#[test]
fn a_family_that_has_moved_is_looked_up_again() {
    let (genl, kernel) = open(Some(30));
    let mut genl = genl.unwrap();
    kernel.lock().unwrap().id = Some(31);
    genl.request(SET, |_| {}).unwrap();
    assert_eq!(genl.family().id, 31);
    kernel.lock().unwrap().id = Some(32);
    assert_eq!(genl.dump(LIST, |_| {}, |_, _| Ok(())).unwrap().items.len(), 3);
    assert_eq!(kernel.lock().unwrap().commands, [(SET, 7), (LIST, 7)]);
}

#[test]
fn what_the_family_itself_does_not_find_is_asked_for_once() {
    let (genl, kernel) = open(Some(30));
    let mut genl = genl.unwrap();
    assert_eq!(genl.request(FIND, |_| {}).unwrap_err().kernel().unwrap().errno, Errno::ENOENT);
    assert_eq!(genl.request(REFUSED, |_| {}).unwrap_err().kernel().unwrap().errno, Errno::EBUSY);
    let kernel = kernel.lock().unwrap();
    assert_eq!(kernel.commands, [(FIND, 7), (REFUSED, 7)]);
    assert_eq!(kernel.lookups, 2, "when it was opened, and for the one answer that may mean that it has moved");
}

/// The commands that were not carried out, with their error numbers.
fn failures(genl: &mut Genl, commands: &[(usize, u8)]) -> Vec<(usize, Errno)> {
    let mut failed = Vec::new();
    let write = |_: &(usize, u8), _: &mut Encoder| {};
    genl.batch(
        commands.iter().copied(),
        |(_, command)| *command,
        write,
        |(item, _), outcome| match outcome {
            Outcome::Refused(error) => failed.push((item, error.errno)),
            other => panic!("{item}: {other:?}"),
        },
    )
    .unwrap();
    failed
}

#[test]
fn a_batch_gives_back_what_failed_over_many_chunks() {
    let (genl, kernel) = open(Some(30));
    let mut genl = genl.unwrap();
    let commands: Vec<(usize, u8)> =
        (0..300).map(|item| (item, if item % 100 == 99 { REFUSED } else { SET })).collect();
    assert_eq!(failures(&mut genl, &commands), [99, 199, 299].map(|item| (item, Errno::EBUSY)));
    assert_eq!(kernel.lock().unwrap().commands.len(), 300);
    assert_eq!(kernel.lock().unwrap().lookups, 1, "nothing says that the family has moved");
    // The family has not moved: what it does not find stays refused, and is not tried again.
    assert_eq!(failures(&mut genl, &[(0, SET), (1, FIND), (2, REFUSED)]), [(2, Errno::EBUSY), (1, Errno::ENOENT)]);
    assert_eq!(kernel.lock().unwrap().commands.len(), 303);
}

#[test]
fn a_batch_goes_on_where_the_family_is_now() {
    let (genl, kernel) = open(Some(30));
    let mut genl = genl.unwrap();
    kernel.lock().unwrap().reload_after = Some(200);
    let commands: Vec<(usize, u8)> = (0..300).map(|item| (item, SET)).collect();
    assert_eq!(failures(&mut genl, &commands), []);
    let kernel = kernel.lock().unwrap();
    assert_eq!(kernel.commands.len(), 300, "each command was carried out once");
    assert_eq!(kernel.lookups, 2);
}

#[test]
fn groups_have_numbers() {
    let (genl, _) = open(Some(30));
    let mut genl = genl.unwrap();
    assert_eq!(genl.group("two").unwrap(), Some(12));
    assert_eq!(genl.group("one").unwrap(), Some(11));
    assert_eq!(genl.group("three").unwrap(), None);
    let missing = WireError::Missing { attribute: "CTRL_ATTR_MCAST_GRP_ID".to_owned() };
    assert_eq!(*genl.group("numberless").unwrap_err().kind(), ErrorKind::Malformed(missing));
}
