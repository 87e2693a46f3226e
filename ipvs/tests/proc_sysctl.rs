//! Settings, in a folder that stands for the kernel's.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ipvs::sysctl::{ErrorKind, Knob, Sysctl, Value, ValueType};
use proptest::prelude::*;

/// A folder of its own that is removed again.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ipvs-sysctl-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn set(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap_or_default();
    }
}

#[test]
fn values_are_read_by_their_type() {
    let folder = Folder::new("types");
    for (name, text) in [
        ("conntrack", "1\n"),
        ("est_nice", "-5\n"),
        ("sync_threshold", "3\t50\n"),
        ("est_cpulist", "0-1\n"),
        ("sync_qlen_max", "18446744073709551615\n"),
        ("am_droprate", "ten\n"),
        ("brand_new", "1\n"),
    ] {
        folder.set(name, text);
    }
    let sysctl = Sysctl::at(&folder.0);
    assert_eq!(sysctl.read(Knob::Conntrack).unwrap(), Value::ON);
    assert_eq!(sysctl.read(Knob::EstNice).unwrap(), Value::Integer(-5));
    assert_eq!(sysctl.read(Knob::SyncThreshold).unwrap(), Value::Pair(3, 50));
    assert_eq!(sysctl.read(Knob::EstCpulist).unwrap(), Value::CpuList("0-1".to_owned()));
    assert_eq!(sysctl.read(Knob::SyncQlenMax).unwrap(), Value::Count(u64::MAX));
    let malformed = sysctl.read(Knob::AmDroprate).unwrap_err();
    assert_eq!(*malformed.kind(), ErrorKind::Malformed("ten\n".to_owned()));
    assert_eq!(sysctl.unknown().unwrap(), ["brand_new"]);
    fs::remove_file(folder.0.join("am_droprate")).unwrap();
    assert_eq!(sysctl.read_all().unwrap().len(), 5);
}

#[test]
fn what_is_absent_says_since_when_it_exists() {
    let folder = Folder::new("absent");
    let sysctl = Sysctl::at(&folder.0);
    for (knob, expected) in [
        (Knob::EstNice, "net.ipv4.vs.est_nice: this kernel does not have it; it exists since Linux 6.2"),
        (Knob::Conntrack, "it takes a kernel with CONFIG_IP_VS_NFCT"),
        (Knob::LblcExpiration, "it takes module ip_vs_lblc"),
    ] {
        let reading = sysctl.read(knob).unwrap_err();
        let writing = sysctl.write(knob, &Value::Integer(1)).unwrap_err();
        assert_eq!((reading.kind(), writing.kind()), (&ErrorKind::Absent, &ErrorKind::Absent));
        assert!(reading.is_absent() && reading.to_string().ends_with(expected), "{reading}");
        assert!(writing.to_string().starts_with("writing net.ipv4.vs."), "{writing}");
        assert!(!folder.0.join(knob.name()).exists(), "writing must not create {knob}");
    }
    let nowhere = Sysctl::at("/nonexistent/vs");
    let error = nowhere.read_all().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotLoaded);
    assert!(error.to_string().contains("modprobe ip_vs"), "{error}");
    assert_eq!(*nowhere.unknown().unwrap_err().kind(), ErrorKind::NotLoaded);
}

#[test]
fn out_of_range_values_are_not_written() {
    let folder = Folder::new("range");
    let sysctl = Sysctl::at(&folder.0);
    for (knob, value) in [
        (Knob::Conntrack, Value::Integer(2)),
        (Knob::Conntrack, Value::CpuList("1".to_owned())),
        (Knob::DropEntry, Value::Integer(4)),
        (Knob::DropPacket, Value::Integer(-1)),
        (Knob::SyncPorts, Value::Integer(3)),
        (Knob::SyncPorts, Value::Integer(0)),
        (Knob::SyncPorts, Value::Integer(i64::MIN)),
        (Knob::SyncVersion, Value::Integer(2)),
        (Knob::SyncRetries, Value::Integer(4)),
        (Knob::SyncThreshold, Value::Pair(50, 50)),
        (Knob::SyncThreshold, Value::Pair(-1, 50)),
        (Knob::SyncThreshold, Value::Integer(3)),
        (Knob::EstNice, Value::Integer(20)),
        (Knob::EstCpulist, Value::CpuList("0\n1".to_owned())),
        (Knob::ConnLfactor, Value::Integer(9)),
        (Knob::ConnMax, Value::Integer((1 << 30) + 1)),
        (Knob::Amemthresh, Value::Integer(1 << 31)),
        (Knob::SyncQlenMax, Value::Integer(5)),
    ] {
        folder.set(knob.name(), "7\n");
        let error = sysctl.write(knob, &value).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutOfRange(_)), "{knob} {value}: {error}");
        assert!(error.to_string().contains("allowed: "), "{error}");
        assert_eq!(fs::read_to_string(folder.0.join(knob.name())).unwrap(), "7\n", "{knob}");
    }
}

#[test]
fn names_come_back() {
    let names: BTreeSet<&str> = Knob::ALL.iter().map(|knob| knob.name()).collect();
    assert_eq!(names.len(), Knob::ALL.len());
    for knob in Knob::ALL {
        assert_eq!(knob.to_string().parse::<Knob>().unwrap(), *knob);
        assert_eq!(knob.name().parse::<Knob>().unwrap(), *knob);
    }
    assert!("net.ipv4.ip_forward".parse::<Knob>().is_err());
}

#[test]
fn defaults_are_values_of_their_type_and_allowed() {
    let folder = Folder::new("defaults");
    let sysctl = Sysctl::at(&folder.0);
    for knob in Knob::ALL {
        let Some(default) = knob.describe().default else { continue };
        folder.set(knob.name(), &format!("{default}\n"));
        let value = sysctl.read(*knob).unwrap();
        assert_eq!(value.to_string(), default, "{knob}");
        knob.check(&value).unwrap();
    }
}

#[test]
fn clients_that_are_remembered_are_drained_by_a_switch() {
    let folder = Folder::new("drain");
    folder.set("expire_quiescent_template", "0\n");
    let sysctl = Sysctl::at(&folder.0);
    assert_eq!(sysctl.root(), folder.0);
    assert_eq!(sysctl.read(Knob::ExpireQuiescentTemplate).unwrap().as_integer(), Some(0));
    sysctl.drain_persistent_clients().unwrap();
    assert_eq!(fs::read_to_string(folder.0.join("expire_quiescent_template")).unwrap(), "1\n");
    assert_eq!(Value::Pair(3, 50).as_integer(), None);
    assert_eq!(Value::Integer(-5).as_integer(), Some(-5));
}

#[test]
fn what_is_no_setting_cannot_be_read_or_written() {
    let folder = Folder::new("odd");
    fs::create_dir_all(folder.0.join("conntrack")).unwrap();
    folder.set("file", "");
    let sysctl = Sysctl::at(&folder.0);
    assert_eq!(*sysctl.read(Knob::Conntrack).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(*sysctl.write(Knob::Conntrack, &Value::ON).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(*sysctl.read_all().unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(*Sysctl::at(folder.0.join("file")).unknown().unwrap_err().kind(), ErrorKind::Io);
}

fn write_back(root: &Path, knob: Knob, value: &Value) {
    fs::write(root.join(knob.name()), "").unwrap();
    let sysctl = Sysctl::at(root);
    sysctl.write(knob, value).unwrap();
    assert_eq!(sysctl.read(knob).unwrap(), *value);
}

proptest! {
    #[test]
    fn what_is_written_is_read(index in 0..Knob::ALL.len(), number in any::<i64>(), first in any::<i32>(), second in any::<i32>(), list in "[0-9,-]{0,9}") {
        let folder = Folder::new("prop");
        let knob = Knob::ALL[index];
        let value = match knob.describe().value_type {
            ValueType::Count => Value::Count(number.unsigned_abs()),
            ValueType::Pair => Value::Pair(first, second),
            ValueType::CpuList => Value::CpuList(list),
            ValueType::Integer { min, max } => Value::Integer(min + number.rem_euclid(max - min + 1)),
            ValueType::Switch => Value::Integer(number & 1),
            _ => Value::Integer(1 << number.rem_euclid(31)),
        };
        if knob.check(&value).is_ok() {
            write_back(&folder.0, knob, &value);
        } else {
            prop_assert!(matches!(value, Value::Pair(..)), "{} {}", knob, value);
        }
    }
}
