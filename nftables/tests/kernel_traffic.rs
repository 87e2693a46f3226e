//! Connections through tables that this crate wrote: what counts is where they end.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use nftables::expr::{DynSetOp, HeaderBase, NatFlags, NatKind, NumgenKind};
use nftables::{
    BaseChain, Chain, ChainType, Client, DataType, Element, Expression, Family, FieldTypes, Flowtable, Hook,
    L4Protocol, Operand, Priority, Register, Rule, Set, SetFlags, Table, TableKey, Transaction, Value, Verdict, rule,
};
use testkit::traffic::{Connection, NameServer};
use testkit::{Need, Netns, kernel_test, oracle, veth_pair};

const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
const PORT: u16 = 0x1234;

/// Servers on this host that say who they are: their ports.
fn servers(count: u8) -> Vec<u16> {
    (0..count)
        .map(|number| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            // Ends with the test program.
            thread::spawn(move || {
                for mut stream in listener.incoming().flatten() {
                    stream.write_all(&[number]).unwrap_or_default();
                }
            });
            port
        })
        .collect()
}

/// The server that answers a connection to the service.
fn ask() -> u8 {
    let to = SocketAddr::from((SERVICE, PORT));
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(60)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut answer = [0];
    stream.read_exact(&mut answer).unwrap();
    answer[0]
}

fn endpoint(port: u16) -> Value {
    Value::concat(&[Ipv4Addr::LOCALHOST.into(), Value::port(port)]).unwrap()
}

/// A way to the service's address: no host has it, and it leaves by `lo`.
fn way() {
    oracle::run("ip", &["route", "add", "10.96.0.0/16", "dev", "lo", "src", "127.0.0.1"], None).unwrap();
    // Addresses of 127/8 may be translated to.
    std::fs::write("/proc/sys/net/ipv4/conf/all/route_localnet", "1").unwrap();
}

fn output(table: &TableKey, name: &str) -> Chain {
    Chain::base(table.chain(name).unwrap(), BaseChain::new(ChainType::Nat, Hook::Output, Priority::DSTNAT))
}

#[test]
fn connections_are_spread_over_the_endpoints() {
    kernel_test(&[Need::Root, Need::Nftables], || {
        way();
        let ports = servers(2);
        let table = TableKey::new(Family::Inet, "proxy").unwrap();
        let key = [Operand::IP_DADDR, Operand::L4PROTO, Operand::DPORT];
        let slots = [key.as_slice(), &[Operand::random(2)]].concat();
        let data = [Operand::IP_DADDR, Operand::DPORT];
        let endpoints = Set::typeof_map(table.set("endpoints2").unwrap(), &slots, &data).unwrap();
        let services = Set::typeof_verdict_map(table.set("services").unwrap(), &key).unwrap();
        let pick = table.chain("pick2").unwrap();
        let fields = [SERVICE.into(), Value::byte(L4Protocol::TCP.0), Value::port(PORT)];
        let slot = |number: u32, port: u16| {
            let key = Value::concat(&[fields.as_slice(), &[Value::mark(number)]].concat()).unwrap();
            Element::value(key).maps_to(endpoint(port))
        };
        let mut transaction = Transaction::new();
        transaction.add_table(Table::new(table.clone()));
        transaction.add_chain(Chain::regular(pick.clone()));
        transaction.add_chain(output(&table, "out"));
        transaction.add_set(endpoints.clone());
        transaction.add_set(services.clone());
        let send = rule(Family::Inet).meta_l4proto(L4Protocol::TCP).dnat_to_map(Family::Ip, &slots, &endpoints.key);
        transaction.add_rule(&pick, send.build().unwrap());
        let find = rule(Family::Inet).verdict_map(&key, &services.key);
        transaction.add_rule(&table.chain("out").unwrap(), find.build().unwrap());
        transaction.add_elements(&endpoints, [slot(0, ports[0]), slot(1, ports[1])]);
        let verdict = Element::value(Value::concat(&fields).unwrap()).verdict(Verdict::Goto(pick.name));
        transaction.add_elements(&services, [verdict]);
        let mut client = Client::open().unwrap();
        client.commit(&transaction).unwrap();
        let mut seen = [0_u32; 2];
        // Two hundred draws without one of the two are as likely as an error of the machine.
        for _ in 0..200 {
            seen[usize::from(ask())] += 1;
            if seen.iter().all(|count| *count > 0) {
                break;
            }
        }
        assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
        // One element changes, at one instant, and everybody goes to the other.
        let mut change = Transaction::new();
        change.delete_elements(&endpoints, [slot(0, 0)]).add_elements(&endpoints, [slot(0, ports[1])]);
        client.commit(&change).unwrap();
        assert!((0..20).all(|_| ask() == 1));
    });
}

/// Session affinity in two rules, with registers that hold a value from one step to the next. The number of a client's
/// endpoint is looked up, and counts only while that endpoint exists. Otherwise a new one is drawn: a slot, and the
/// number of the endpoint in it.
fn affinity(affinities: &Set, endpoints: &Set, slots: &Set) -> [Rule; 2] {
    let slot = |number| Register::slot(number).unwrap();
    let address = |offset, register| Expression::Payload { base: HeaderBase::Network, offset, length: 4, register };
    let port = |register| Expression::Payload { base: HeaderBase::Transport, offset: 2, length: 2, register };
    // Slots 0 to 2: number, address, port. 3 and 4: endpoint. 8 to 10: client, address, port.
    let client = || [address(12, slot(8)), address(16, slot(9)), port(slot(10))];
    let number = || [address(16, slot(1)), port(slot(2))];
    let find =
        Expression::Lookup { set: (&endpoints.key).into(), source: slot(0), register: Some(slot(3)), inverted: false };
    let write = |op| Expression::DynSet {
        set: (&affinities.key).into(),
        op,
        key: slot(8),
        // The kernel wants a register for data of a map also to delete.
        data: Some(slot(0)),
        timeout: None,
        inverted: false,
        expressions: Vec::new(),
    };
    let nat = Expression::Nat {
        kind: NatKind::Destination,
        family: Family::Ip,
        address: Some(slot(3).into()),
        port: Some(slot(4).into()),
        flags: NatFlags::empty(),
    };
    let known =
        Expression::Lookup { set: (&affinities.key).into(), source: slot(8), register: Some(slot(0)), inverted: false };
    let draw = Expression::Numgen { kind: NumgenKind::Random, modulus: 2, offset: 0, register: slot(0) };
    let in_slot =
        Expression::Lookup { set: (&slots.key).into(), source: slot(0), register: Some(slot(0)), inverted: false };
    let tcp = rule(Family::Ip).meta_l4proto(L4Protocol::TCP).build().unwrap().expressions;
    let again =
        [client().to_vec(), vec![known], number().to_vec(), vec![find.clone(), write(DynSetOp::Update), nat.clone()]];
    let anew = [
        client().to_vec(),
        vec![draw, in_slot],
        number().to_vec(),
        vec![find, write(DynSetOp::Delete), write(DynSetOp::Add), nat],
    ];
    [again, anew].map(|steps| Rule::new([tcp.clone(), steps.concat()].concat()))
}

#[test]
fn a_client_stays_with_its_endpoint_while_that_lives() {
    kernel_test(&[Need::Root, Need::Nftables], || {
        way();
        let ports = servers(2);
        let table = TableKey::new(Family::Ip, "proxy").unwrap();
        let types = |types: &[DataType]| FieldTypes::of(types).unwrap();
        let (address, port, mark) = (DataType::IPV4_ADDR, DataType::INET_SERVICE, DataType::MARK);
        let endpoints =
            Set::map(table.set("endpoints").unwrap(), types(&[mark, address, port]), types(&[address, port]));
        let affinities = Set::map(table.set("affinities").unwrap(), types(&[address, address, port]), types(&[mark]))
            .flags(SetFlags::DYNAMIC)
            .timeout(Duration::from_secs(10_800))
            .size(65_536);
        let slots = Set::map(table.set("slots").unwrap(), types(&[mark]), types(&[mark]));
        let number = |number: u32| Value::concat(&[Value::mark(number), SERVICE.into(), Value::port(PORT)]).unwrap();
        let chain = table.chain("out").unwrap();
        let mut transaction = Transaction::new();
        transaction.add_table(Table::new(table.clone()));
        transaction.add_set(endpoints.clone());
        transaction.add_set(affinities.clone());
        transaction.add_set(slots.clone());
        transaction.add_chain(output(&table, "out"));
        for rule in affinity(&affinities, &endpoints, &slots) {
            transaction.add_rule(&chain, rule);
        }
        let both = [0, 1].map(|endpoint_number: u32| {
            let port = ports[usize::try_from(endpoint_number).unwrap()];
            Element::value(number(endpoint_number)).maps_to(endpoint(port))
        });
        let slot = |slot, number| Element::value(Value::mark(slot)).maps_to(Value::mark(number));
        transaction.add_elements(&endpoints, both.clone());
        transaction.add_elements(&slots, [slot(0, 0), slot(1, 1)]);
        let mut client = Client::open().unwrap();
        client.commit(&transaction).unwrap();
        let first = ask();
        assert!((0..40).all(|_| ask() == first), "one client, one endpoint");
        assert_eq!(client.list_elements(&affinities).unwrap().len(), 1);
        // Its endpoint goes: its element, what is in its slot, and no walk over clients.
        let (gone, left) = (u32::from(first), u32::from(1 - first));
        let mut change = Transaction::new();
        change.delete_elements(&endpoints, [both[usize::from(first)].clone()]);
        change.delete_elements(&slots, [slot(gone, gone)]).add_elements(&slots, [slot(gone, left)]);
        client.commit(&change).unwrap();
        assert!((0..40).all(|_| ask() == 1 - first), "the other one from now on");
        // The endpoint comes back: the client stays with the other.
        let mut change = Transaction::new();
        change.add_elements(&endpoints, [both[usize::from(first)].clone()]);
        change.delete_elements(&slots, [slot(gone, gone)]).add_elements(&slots, [slot(gone, gone)]);
        client.commit(&change).unwrap();
        assert!((0..40).all(|_| ask() == 1 - first), "a client that was moved stays");
        let known = client.list_elements(&affinities).unwrap();
        assert_eq!(known.len(), 1);
        assert_eq!(known[0].data, Some(nftables::ElementData::Value(Value::mark(left))));
    });
}

/// A chain at the devices whose names begin so gets their packets. (nft 1.0.6 never ends listing it.)
#[test]
fn devices_are_named_by_how_they_begin() {
    kernel_test(&[Need::Root, Need::Nftables, Need::Kernel(6, 16)], || {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, servers(1)[0]));
        let connects = || TcpStream::connect_timeout(&to, Duration::from_millis(500)).is_ok();
        assert!(connects());
        let table = TableKey::new(Family::Netdev, "early").unwrap();
        let mut base = BaseChain::new(ChainType::Filter, Hook::Ingress, Priority::FILTER);
        base.devices = vec!["l*".to_owned()];
        let drops = table.chain("drops").unwrap();
        let mut transaction = Transaction::new();
        transaction.add_table(Table::new(table.clone())).add_chain(Chain::base(drops.clone(), base.clone()));
        transaction.add_rule(&drops, rule(Family::Netdev).drop_packet().build().unwrap());
        let mut client = Client::open().unwrap();
        client.commit(&transaction).unwrap();
        assert_eq!(client.get_chain(&drops).unwrap().chain.base, Some(base.clone()));
        assert!(!connects());
        // A snapshot puts it back.
        let again = client.snapshot(&table).unwrap().to_transaction().unwrap();
        client.commit(Transaction::new().delete_table(&table)).unwrap();
        assert!(connects());
        client.commit(&again).unwrap();
        assert_eq!(client.get_chain(&drops).unwrap().chain.base, Some(base));
        assert!(!connects());
    });
}

/// A router adds connections to a flow table: connection tracking shows it, and their packets skip the chain.
#[test]
fn connections_take_the_flow_table() {
    const NEEDS: [Need; 5] = [Need::Root, Need::Nftables, Need::FlowTables, Need::Veth, Need::Conntrack];
    kernel_test(&NEEDS, || {
        let (router, client, server) = (Netns::current().unwrap(), Netns::new().unwrap(), Netns::new().unwrap());
        for (number, host) in [&client, &server].into_iter().enumerate() {
            let (device, at) = (format!("host{number}"), |last: u8| format!("10.7.{number}.{last}"));
            veth_pair((&router, &device), (host, "eth0")).unwrap();
            router.add_address(&(at(1) + "/24"), &device).unwrap();
            host.add_address(&(at(2) + "/24"), "eth0").unwrap();
            host.add_route("default", &at(1)).unwrap();
        }
        router.write_sysctl("net/ipv4/ip_forward", "1").unwrap();
        let table = TableKey::new(Family::Inet, "router").unwrap();
        let fast = Flowtable::new(table.flowtable("fast").unwrap(), ["host0", "host1"]);
        let forward = table.chain("forward").unwrap();
        let base = BaseChain::new(ChainType::Filter, Hook::Forward, Priority::FILTER);
        let add = rule(Family::Inet).meta_l4proto(L4Protocol::TCP).flow_add(fast.key.name.clone());
        let mut transaction = Transaction::new();
        transaction.add_table(Table::new(table)).add_flowtable(fast).add_chain(Chain::base(forward.clone(), base));
        transaction.add_rule(&forward, add.build().unwrap());
        transaction.add_rule(&forward, rule(Family::Inet).meta_l4proto(L4Protocol::TCP).counter().build().unwrap());
        Client::open().unwrap().commit(&transaction).unwrap();
        let named = NameServer::tcp(&server, "10.7.1.2:80".parse().unwrap(), "server").unwrap();
        let mut connection = client.run_in(|| Connection::open(named.address()).unwrap()).unwrap();
        for _ in 0..50 {
            assert_eq!(connection.ask().unwrap(), "server");
        }
        let tracked = oracle::run("conntrack", &["-L", "-p", "tcp"], None).unwrap().stdout;
        assert!(tracked.contains("[OFFLOAD]"), "{tracked}");
        let chain = oracle::run("nft", &["list", "chain", "inet", "router", "forward"], None).unwrap().stdout;
        let packets = chain.split("counter packets ").nth(1).unwrap().split(' ').next().unwrap();
        assert!((1..40).contains(&packets.parse::<u32>().unwrap()), "more than 100 packets went through: {chain}");
    });
}
