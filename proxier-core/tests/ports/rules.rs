use std::slice;

use iptables::{ChainName, Edit, Rule, TableName, Transaction};
use proxier_core::config::NamePrefix;
use proxier_core::net::Family;
use proxier_core::ports::{NamedSet, PortError, PortErrorKind, SetKey, SetKind};

use super::sets::service;
use super::{FAMILIES, World};

fn chain(name: &str) -> ChainName {
    ChainName::new(name).unwrap()
}

fn filling(table: TableName, name: &str, rules: &[&str]) -> Transaction {
    let mut change = Transaction::new();
    let rules = rules.iter().map(|rule| Rule::parse(rule).unwrap());
    change.table(table).replace_chain(&chain(name), rules);
    change
}

fn matching(set: NamedSet) -> Transaction {
    let rule = format!("-m set --match-set {set} dst,dst -j MARK --set-xmark 0x4000/0x4000");
    filling(TableName::NAT, "KUBE-SERVICES", &[&rule])
}

pub(crate) fn rules_are_written_and_read(world: &mut impl World) {
    for family in FAMILIES {
        let before = world.ports().rules.dump(family).unwrap();
        assert_eq!(before.rule_count(), 0, "nobody has used the tables: {before}");
        let mut change = filling(TableName::NAT, "KUBE-MARK-MASQ", &["-j MARK --set-xmark 0x4000/0x4000"]);
        change.table(TableName::FILTER).replace_chain(&chain("KUBE-FORWARD"), [Rule::parse("-j RETURN").unwrap()]);
        world.ports().rules.restore(family, &change).unwrap();
        let nat = world.saved_rules(family, "nat");
        assert!(nat.contains("-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n"), "{nat}");
        assert!(world.saved_rules(family, "filter").contains("-A KUBE-FORWARD -j RETURN\n"));
        let dump = world.ports().rules.dump(family).unwrap();
        let rules = &dump.table(&TableName::NAT).unwrap().chain("KUBE-MARK-MASQ").unwrap().rules;
        assert_eq!(rules.len(), 1);
        assert!(dump.has_chain(&TableName::FILTER, "KUBE-FORWARD"));
        assert_eq!(dump.tables.len(), 2);
        world.ports().rules.restore(family, &Transaction::new()).unwrap();
    }
}

pub(crate) fn a_refused_transaction_changes_nothing(world: &mut impl World) {
    for family in FAMILIES {
        world.ports().rules.restore(family, &filling(TableName::NAT, "ONE", &["-j RETURN"])).unwrap();
        let before = world.saved_rules(family, "nat");
        let mut jump = filling(TableName::NAT, "ONE", &["-j ACCEPT"]);
        jump.table(TableName::NAT).edit(Edit::Append(chain("ONE"), Rule::parse("-j NOWHERE").unwrap()));
        assert_eq!(world.ports().rules.restore(family, &jump).unwrap_err().kind(), PortErrorKind::NotFound);
        let mut strange = filling(TableName::NAT, "ONE", &["-j ACCEPT"]);
        let rule = Rule::parse("-m nosuchmatch -j ACCEPT").unwrap();
        strange.table(TableName::NAT).edit(Edit::Append(chain("ONE"), rule));
        assert_eq!(world.ports().rules.restore(family, &strange).unwrap_err().kind(), PortErrorKind::Unavailable);
        assert_eq!(world.saved_rules(family, "nat"), before);
    }
}

pub(crate) fn a_check_changes_nothing(world: &mut impl World) {
    for family in FAMILIES {
        let good = filling(TableName::NAT, "ONE", &["-p tcp -m tcp --dport 80 -j RETURN"]);
        world.ports().rules.check(family, &good).unwrap();
        let strange = filling(TableName::NAT, "ONE", &["-m nosuchmatch -j ACCEPT"]);
        assert_eq!(world.ports().rules.check(family, &strange).unwrap_err().kind(), PortErrorKind::Unavailable);
        assert!(!world.ports().rules.dump(family).unwrap().has_chain(&TableName::NAT, "ONE"));
    }
}

pub(crate) fn both_families_at_once(world: &mut impl World) {
    let [v4, v6] = FAMILIES;
    let good = filling(TableName::NAT, "KUBE-SERVICES", &["-j RETURN"]);
    let mut bad = filling(TableName::NAT, "OTHER", &["-j ACCEPT"]);
    bad.table(TableName::NAT).edit(Edit::Append(chain("OTHER"), Rule::parse("-j NOWHERE").unwrap()));
    assert_eq!(
        world.ports().rules.restore_families(&[(v6, slice::from_ref(&good)), (v4, slice::from_ref(&good))]),
        [Ok(()), Ok(())]
    );
    for family in FAMILIES {
        assert!(world.saved_rules(family, "nat").contains("-A KUBE-SERVICES -j RETURN\n"));
    }
    // One family is refused, either one, and nothing is written after that; the other is done.
    let last = filling(TableName::NAT, "LAST", &["-j RETURN"]);
    for (refused, done) in [(v4, v6), (v6, v4)] {
        let more = filling(TableName::NAT, "KUBE-POSTROUTING", &["-j RETURN"]);
        let outcomes = world
            .ports()
            .rules
            .restore_families(&[(refused, &[good.clone(), bad.clone(), last.clone()]), (done, &[more])]);
        let kinds: Vec<_> = outcomes.iter().map(|outcome| outcome.as_ref().map_err(PortError::kind)).collect();
        assert_eq!(kinds, [Err(PortErrorKind::NotFound), Ok(&())]);
        let saved = world.saved_rules(refused, "nat");
        assert!(!saved.contains("OTHER") && !saved.contains("LAST"), "{saved}");
        assert!(world.saved_rules(done, "nat").contains("-A KUBE-POSTROUTING -j RETURN\n"));
        let undo = filling(TableName::NAT, "KUBE-POSTROUTING", &[]);
        world.ports().rules.restore_families(&[(done, &[undo])]).pop().unwrap().unwrap();
    }
    assert_eq!(world.ports().rules.restore_families(&[]), []);
}

pub(crate) fn rules_are_listed_while_other_work_is_done(world: &mut impl World) {
    let mut worked = 0;
    let mut list = |world: &mut dyn FnMut(&mut dyn FnMut())| world(&mut || worked += 1);
    // The programs have not been looked for yet.
    list(&mut |work| world.ports().rules.list_meanwhile(&FAMILIES, work));
    for family in FAMILIES {
        world.ports().rules.restore(family, &filling(TableName::NAT, "ONE", &["-j RETURN"])).unwrap();
    }
    list(&mut |work| world.ports().rules.list_meanwhile(&FAMILIES, work));
    for family in FAMILIES {
        let dump = world.ports().rules.dump(family).unwrap();
        assert!(dump.has_chain(&TableName::NAT, "ONE"), "{family:?}: {dump}");
    }
    list(&mut |work| world.ports().rules.list_meanwhile(&FAMILIES, work));
    for family in FAMILIES {
        // A listing does not hide chains that are written after it.
        world.ports().rules.restore(family, &filling(TableName::NAT, "TWO", &["-j RETURN"])).unwrap();
        assert!(world.ports().rules.dump(family).unwrap().has_chain(&TableName::NAT, "TWO"));
    }
    assert_eq!(worked, 3);
}

pub(crate) fn a_rule_keeps_its_set(world: &mut impl World) {
    for family in FAMILIES {
        let set = SetKey::new(family, SetKind::ClusterIp).named(NamePrefix::KUBE);
        let ports = world.ports();
        ports.sets.create(set, 1).unwrap();
        ports.rules.restore(family, &matching(set)).unwrap();
        let error = ports.sets.destroy(set).unwrap_err();
        assert_eq!(error.kind(), PortErrorKind::Busy, "{error}");
        assert!(world.saved_set(&set.name()).is_some());
        let ports = world.ports();
        ports.rules.restore(family, &filling(TableName::NAT, "KUBE-SERVICES", &[])).unwrap();
        ports.sets.destroy(set).unwrap();
        assert!(world.saved_set(&set.name()).is_none());
    }
}

pub(crate) fn a_rule_needs_its_set(world: &mut impl World) {
    let set = SetKey::new(Family::V4, SetKind::ClusterIp).named(NamePrefix::KUBE);
    let ports = world.ports();
    assert_eq!(ports.rules.restore(Family::V4, &matching(set)).unwrap_err().kind(), PortErrorKind::NotFound);
    ports.sets.create(set, 1).unwrap();
    ports.rules.restore(Family::V4, &filling(TableName::NAT, "OTHER", &["-j RETURN"])).unwrap();
    ports.sets.destroy(set).unwrap();
    // A set that was destroyed is as missing as one that never existed.
    assert_eq!(ports.rules.restore(Family::V4, &matching(set)).unwrap_err().kind(), PortErrorKind::NotFound);
    let nat = world.saved_rules(Family::V4, "nat");
    assert!(nat.contains("-A OTHER -j RETURN\n") && !nat.contains("KUBE-SERVICES"), "{nat}");
}

pub(crate) fn a_set_is_replaced_under_a_rule(world: &mut impl World) {
    let set = SetKey::new(Family::V4, SetKind::ClusterIp).named(NamePrefix::KUBE);
    world.create_set("create KUBE-CLUSTER-IP hash:ip,port maxelem 64");
    let elements: Vec<_> = (1..=100).map(|port| service("10.96.0.1", port)).collect();
    let ports = world.ports();
    ports.rules.restore(Family::V4, &matching(set)).unwrap();
    ports.sets.replace(set, &elements.iter().collect::<Vec<_>>()).unwrap();
    assert_eq!(ports.sets.entries(set).unwrap().unwrap().len(), 100);
    let nat = world.saved_rules(Family::V4, "nat");
    assert!(nat.contains("--match-set KUBE-CLUSTER-IP dst,dst"), "{nat}");
    assert_eq!(world.ports().sets.destroy(set).unwrap_err().kind(), PortErrorKind::Busy);
}

pub(crate) fn programs_know_random_fully(world: &mut impl World) {
    for family in FAMILIES {
        assert_eq!(world.ports().rules.has_random_fully(family), Ok(true));
    }
}
