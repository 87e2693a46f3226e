//! Many changes in few system calls, with one outcome each.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;

use ipvs_sys::{Command, DelDest, DelService, Failure, NewDest, NewService, SetDest, SetService, Zero};
use netlink_batch::{Encoder, Errno, Genl, KernelError};

use crate::error::{Error, ErrorKind, MissingModule, Subject};
use crate::model::{OutOfRange, RealServer, RealServerKey, VirtualServer, VirtualServerKey};

/// A change to a virtual or real server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Operation {
    /// Adds a virtual server. Fails if it exists.
    #[doc(alias = "IPVS_CMD_NEW_SERVICE")]
    AddVirtualServer(VirtualServer),
    /// Changes a virtual server. Fails if it does not exist.
    #[doc(alias = "IPVS_CMD_SET_SERVICE")]
    UpdateVirtualServer(VirtualServer),
    /// Deletes a virtual server with its real servers. Fails if it does not exist.
    #[doc(alias = "IPVS_CMD_DEL_SERVICE")]
    DeleteVirtualServer(VirtualServerKey),
    /// Resets the counters of a virtual server and its real servers.
    #[doc(alias = "IPVS_CMD_ZERO")]
    ZeroVirtualServer(VirtualServerKey),
    /// Adds a real server to a virtual server. Fails if it exists there.
    #[doc(alias = "IPVS_CMD_NEW_DEST")]
    AddRealServer(VirtualServerKey, RealServer),
    /// Changes a real server of a virtual server. Fails if it does not exist there. Connections continue.
    #[doc(alias = "IPVS_CMD_SET_DEST")]
    UpdateRealServer(VirtualServerKey, RealServer),
    /// Deletes a real server from a virtual server. Fails if it does not exist there.
    #[doc(alias = "IPVS_CMD_DEL_DEST")]
    DeleteRealServer(VirtualServerKey, RealServerKey),
}

type Classify = fn(Errno) -> Option<Failure>;

impl Operation {
    /// The virtual server that the operation changes, or to which the changed real server belongs.
    pub fn virtual_server(&self) -> VirtualServerKey {
        match self {
            Operation::AddVirtualServer(server) | Operation::UpdateVirtualServer(server) => server.key,
            Operation::DeleteVirtualServer(key)
            | Operation::ZeroVirtualServer(key)
            | Operation::AddRealServer(key, _)
            | Operation::UpdateRealServer(key, _)
            | Operation::DeleteRealServer(key, _) => *key,
        }
    }

    /// The server that the operation changes: a virtual or a real server.
    pub fn subject(&self) -> Subject {
        match self {
            Operation::AddVirtualServer(server) | Operation::UpdateVirtualServer(server) => {
                Subject::VirtualServer(server.key)
            }
            Operation::DeleteVirtualServer(key) | Operation::ZeroVirtualServer(key) => Subject::VirtualServer(*key),
            Operation::AddRealServer(key, real) | Operation::UpdateRealServer(key, real) => {
                Subject::RealServer(*key, real.key)
            }
            Operation::DeleteRealServer(key, real) => Subject::RealServer(*key, *real),
        }
    }

    pub(crate) fn doing(&self) -> &'static str {
        match self {
            Operation::AddVirtualServer(_) | Operation::AddRealServer(..) => "adding",
            Operation::UpdateVirtualServer(_) | Operation::UpdateRealServer(..) => "updating",
            Operation::DeleteVirtualServer(_) | Operation::DeleteRealServer(..) => "deleting",
            Operation::ZeroVirtualServer(_) => "zeroing the counters of",
        }
    }

    /// The command's number and the meanings of its error numbers.
    pub(crate) fn command(&self) -> (u8, Classify) {
        fn of<C: Command>(_: &C) -> (u8, Classify) {
            (C::NUMBER, C::classify)
        }
        match self {
            Operation::AddVirtualServer(service) => of(&NewService { service }),
            Operation::UpdateVirtualServer(service) => of(&SetService { service }),
            Operation::DeleteVirtualServer(service) => of(&DelService { service }),
            Operation::ZeroVirtualServer(service) => of(&Zero { service: Some(service) }),
            Operation::AddRealServer(service, dest) => of(&NewDest { service, dest }),
            Operation::UpdateRealServer(service, dest) => of(&SetDest { service, dest }),
            Operation::DeleteRealServer(service, dest) => of(&DelDest { service, dest }),
        }
    }

    pub(crate) fn encode(&self, out: &mut Encoder) {
        match self {
            Operation::AddVirtualServer(service) => NewService { service }.encode(out),
            Operation::UpdateVirtualServer(service) => SetService { service }.encode(out),
            Operation::DeleteVirtualServer(service) => DelService { service }.encode(out),
            Operation::ZeroVirtualServer(service) => Zero { service: Some(service) }.encode(out),
            Operation::AddRealServer(service, dest) => NewDest { service, dest }.encode(out),
            Operation::UpdateRealServer(service, dest) => SetDest { service, dest }.encode(out),
            Operation::DeleteRealServer(service, dest) => DelDest { service, dest }.encode(out),
        }
    }

    fn is_addition(&self) -> bool {
        matches!(self, Operation::AddVirtualServer(_) | Operation::AddRealServer(..))
    }

    /// Checks values that the types cannot rule out.
    fn check(&self) -> Result<(), OutOfRange> {
        match self {
            Operation::AddVirtualServer(server) | Operation::UpdateVirtualServer(server) => server.check(),
            _ => Ok(()),
        }
    }

    /// The module that is missing if the kernel answers `ENOENT`.
    fn modules(&self) -> MissingModule {
        match self {
            Operation::AddVirtualServer(server) | Operation::UpdateVirtualServer(server) => {
                let scheduler = server.config.scheduler;
                match server.config.persistence.and_then(|persistence| persistence.engine) {
                    Some(engine) => MissingModule::SchedulerOrEngine(scheduler, engine),
                    None => MissingModule::Scheduler(scheduler),
                }
            }
            _ => MissingModule::Ipvs,
        }
    }

    fn refused(&self, kernel: KernelError) -> Error {
        let (_, classify) = self.command();
        let meaning = classify(kernel.errno);
        Error::refused(kernel, meaning, self.modules(), self.doing(), self.subject())
    }

    /// Sends this operation and waits for its acknowledgement.
    pub(crate) fn execute(&self, genl: &mut Genl) -> Result<(), Error> {
        self.check().map_err(|range| Error::new(ErrorKind::OutOfRange(range), self.doing(), self.subject()))?;
        genl.request(self.command().0, |out| self.encode(out)).map_err(|error| match error.kernel() {
            Some(kernel) => self.refused(kernel.clone()),
            None => Error::below(error, self.doing(), self.subject()),
        })
    }
}

/// `adding real server 10.1.0.1:8080 of virtual server TCP 10.0.0.1:80`.
impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.doing(), self.subject())
    }
}

/// Changes to carry out together, in order.
///
/// A batch is fast but not atomic: the kernel carries out each operation separately. A failed operation does not stop
/// the following ones.
///
/// # Example
///
/// ```
/// # #[cfg(feature = "testing")] {
/// use ipvs::{Batch, RealServer, Scheduler, VirtualServer, VirtualServerKey, Weight};
///
/// let mut ipvs = ipvs::fake::FakeIpvs::new().client()?;
/// let key = VirtualServerKey::tcp("10.96.0.10:80".parse()?);
/// let [old, new] = ["10.244.1.5:8080".parse()?, "10.244.2.7:8080".parse()?].map(RealServer::new);
///
/// let mut batch = Batch::new();
/// batch.add_virtual_server(VirtualServer::new(key, Scheduler::RoundRobin)).add_real_server(key, old);
/// ipvs.run(&batch).into_result()?;
///
/// // One endpoint replaces another: the new one first.
/// let mut batch = Batch::new();
/// batch.add_real_server(key, new).update_real_server(key, old.with_weight(Weight::DRAIN));
/// // Printed, a batch is a dry run.
/// assert_eq!(
///     batch.to_string(),
///     "-a -t 10.96.0.10:80 -r 10.244.2.7:8080 -m -w 1\n\
///      -e -t 10.96.0.10:80 -r 10.244.1.5:8080 -m -w 0\n"
/// );
/// ipvs.run(&batch).into_result()?;
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Batch {
    operations: Vec<Operation>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty batch with room for this many operations.
    pub fn with_capacity(operations: usize) -> Self {
        Batch { operations: Vec::with_capacity(operations) }
    }

    /// Adds an operation.
    pub fn push(&mut self, operation: Operation) {
        self.operations.push(operation);
    }

    /// Adds a virtual server.
    pub fn add_virtual_server(&mut self, server: VirtualServer) -> &mut Self {
        self.push(Operation::AddVirtualServer(server));
        self
    }

    /// Changes a virtual server.
    pub fn update_virtual_server(&mut self, server: VirtualServer) -> &mut Self {
        self.push(Operation::UpdateVirtualServer(server));
        self
    }

    /// Deletes a virtual server with its real servers.
    pub fn delete_virtual_server(&mut self, key: VirtualServerKey) -> &mut Self {
        self.push(Operation::DeleteVirtualServer(key));
        self
    }

    /// Adds a real server.
    pub fn add_real_server(&mut self, key: VirtualServerKey, server: RealServer) -> &mut Self {
        self.push(Operation::AddRealServer(key, server));
        self
    }

    /// Changes a real server.
    pub fn update_real_server(&mut self, key: VirtualServerKey, server: RealServer) -> &mut Self {
        self.push(Operation::UpdateRealServer(key, server));
        self
    }

    /// Deletes a real server.
    pub fn delete_real_server(&mut self, key: VirtualServerKey, real: RealServerKey) -> &mut Self {
        self.push(Operation::DeleteRealServer(key, real));
        self
    }

    /// The operations in order.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// The operations in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Operation> {
        self.operations.iter()
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether the batch has no operations.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }
}

impl<'a> IntoIterator for &'a Batch {
    type Item = &'a Operation;
    type IntoIter = std::slice::Iter<'a, Operation>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<Operation> for Batch {
    fn from_iter<I: IntoIterator<Item = Operation>>(operations: I) -> Self {
        Batch { operations: operations.into_iter().collect() }
    }
}

impl Extend<Operation> for Batch {
    fn extend<I: IntoIterator<Item = Operation>>(&mut self, operations: I) {
        self.operations.extend(operations);
    }
}

/// Outcome of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum Outcome {
    /// The kernel carried it out.
    Done,
    /// Refused; nothing was changed.
    Failed(Error),
    /// Sent, but the answer was lost. Read the state to find out whether it was carried out.
    Unknown,
    /// Not sent, because the batch stopped before it; see [`Report::stopped`].
    NotSent,
}

impl Outcome {
    /// Whether the kernel carried the operation out.
    pub fn is_done(&self) -> bool {
        matches!(self, Outcome::Done)
    }

    /// The error if the operation was refused.
    pub fn error(&self) -> Option<&Error> {
        match self {
            Outcome::Failed(error) => Some(error),
            _ => None,
        }
    }
}

/// One outcome for each operation of a [`Batch`], in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[must_use = "a batch reports failures only here"]
#[non_exhaustive]
pub struct Report {
    /// One outcome for each operation.
    pub outcomes: Vec<Outcome>,
    /// Why the batch stopped early, if it did: answers were lost, or the socket failed. Refusals do not stop a batch.
    pub stopped: Option<Error>,
    /// Index of a failed operation → index of the operation whose failure caused it.
    causes: BTreeMap<usize, usize>,
}

impl Report {
    /// Whether every operation was carried out.
    pub fn is_done(&self) -> bool {
        self.stopped.is_none() && self.outcomes.iter().all(Outcome::is_done)
    }

    /// The operations that were not carried out, with their index in the batch.
    pub fn failures(&self) -> impl Iterator<Item = (usize, &Outcome)> {
        self.outcomes.iter().enumerate().filter(|(_, outcome)| !outcome.is_done())
    }

    /// The index of the operation whose failure caused this refusal. That is the last earlier addition of the same
    /// virtual or real server, if it failed and the kernel now reports that the server does not exist. `None` if the
    /// operation succeeded or was refused for another reason. Show users the failures without a cause.
    pub fn cause(&self, index: usize) -> Option<usize> {
        self.causes.get(&index).copied()
    }

    /// Whether every operation was carried out, as a `Result`.
    ///
    /// # Errors
    /// The first operation's error, or why the batch stopped.
    pub fn into_result(self) -> Result<(), Error> {
        for outcome in self.outcomes {
            if let Outcome::Failed(error) = outcome {
                return Err(error);
            }
        }
        self.stopped.map_or(Ok(()), Err)
    }
}

pub(crate) fn run<I>(genl: &mut Genl, operations: I) -> Report
where
    I: IntoIterator,
    I::Item: Borrow<Operation>,
{
    let mut failures: Vec<(usize, Operation, Outcome)> = Vec::new();
    let mut impossible: Vec<(usize, Operation, Outcome)> = Vec::new();
    let mut additions: Vec<(usize, Subject)> = Vec::new();
    let mut len = 0_usize;
    let possible = operations.into_iter().filter_map(|operation| {
        let operation = *operation.borrow();
        let index = len;
        len = len.saturating_add(1);
        if operation.is_addition() {
            additions.push((index, operation.subject()));
        }
        match operation.check() {
            Ok(()) => Some((index, operation)),
            Err(range) => {
                let error = Error::new(ErrorKind::OutOfRange(range), operation.doing(), operation.subject());
                impossible.push((index, operation, Outcome::Failed(error)));
                None
            }
        }
    });
    let stopped = genl
        .batch(
            possible,
            |(_, operation)| operation.command().0,
            |(_, operation), out| operation.encode(out),
            |(index, operation), outcome| failures.push((index, operation, outcome_of(&operation, outcome))),
        )
        .err()
        .map(|error| Error::below(error, "running a batch on", Subject::Ipvs));
    let mut outcomes = Vec::new();
    outcomes.resize_with(len, || Outcome::Done);
    failures.append(&mut impossible);
    failures.sort_unstable_by_key(|(index, ..)| *index);
    let causes = causes(&additions, &failures);
    for (index, _, outcome) in failures {
        if let Some(place) = outcomes.get_mut(index) {
            *place = outcome;
        }
    }
    Report { outcomes, stopped, causes }
}

/// Maps the index of each failure to that of the earlier failure that caused it. `additions` has every attempted
/// addition; both lists are sorted by index.
fn causes(additions: &[(usize, Subject)], failures: &[(usize, Operation, Outcome)]) -> BTreeMap<usize, usize> {
    let mut additions = additions.iter().peekable();
    // Servers whose last addition failed, with the index of that addition.
    let mut missing: BTreeMap<Subject, usize> = BTreeMap::new();
    let mut causes = BTreeMap::new();
    for (index, operation, outcome) in failures {
        // Any later addition, whatever its outcome, supersedes earlier failed ones of the same server.
        while let Some((_, subject)) = additions.next_if(|(place, _)| place <= index) {
            missing.remove(subject);
        }
        let Some(error) = outcome.error() else { continue };
        let cause = match error.kind() {
            ErrorKind::VirtualServerNotFound => missing.get(&Subject::VirtualServer(operation.virtual_server())),
            ErrorKind::RealServerNotFound => missing.get(&operation.subject()),
            _ => None,
        };
        if let Some(cause) = cause {
            causes.insert(*index, *cause);
        }
        // A server that existed already can be used like an added one.
        if operation.is_addition() && !error.is_already_exists() {
            missing.insert(operation.subject(), *index);
        }
    }
    causes
}

fn outcome_of(operation: &Operation, outcome: netlink_batch::Outcome) -> Outcome {
    match outcome {
        netlink_batch::Outcome::Done => Outcome::Done,
        netlink_batch::Outcome::Refused(kernel) => Outcome::Failed(operation.refused(*kernel)),
        netlink_batch::Outcome::Unsendable(wire) => {
            let error = netlink_batch::Error::new(netlink_batch::ErrorKind::Unsendable(*wire), "netlink batch");
            Outcome::Failed(Error::below(error, operation.doing(), operation.subject()))
        }
        netlink_batch::Outcome::NotSent => Outcome::NotSent,
        _ => Outcome::Unknown,
    }
}
