use proxier_core::net::{Family, Protocol};
use proxier_core::ports::{Flows, PortError, UdpServices};

use super::{World, at};

fn forget(world: &mut impl World, services: &UdpServices) -> Result<Flows, PortError> {
    let ports = world.ports();
    let mut of = |family| ports.conntrack.forget_flows(Protocol::Udp, family, services);
    Ok(Flows { v4: of(Family::V4)?, v6: of(Family::V6)? })
}

pub(crate) fn stale_flows_are_forgotten_and_others_stay(world: &mut impl World) {
    let flows = [
        // Flows to an endpoint that is gone, and to one that exists.
        ("10.1.1.1:4001", "10.96.0.10:53", "10.244.1.1:5301"),
        ("10.1.1.1:4002", "10.96.0.10:53", "10.244.1.2:5301"),
        // A flow without an answer yet.
        ("10.1.1.1:4003", "10.96.0.10:53", "10.96.0.10:53"),
        // Another port, and another address, of the same endpoint.
        ("10.1.1.1:4004", "10.96.0.10:54", "10.244.1.1:5301"),
        ("10.1.1.1:4005", "10.96.0.11:53", "10.244.1.1:5301"),
        // The endpoint's address with another port.
        ("10.1.1.1:4006", "10.96.0.10:53", "10.244.1.2:5302"),
        ("[fd00:9::1]:4001", "[fd00::a]:53", "[fd00:1::1]:5301"),
        ("[fd00:9::1]:4002", "[fd00::a]:53", "[fd00:1::2]:5301"),
    ]
    .map(|(client, destination, endpoint)| (at(client), at(destination), at(endpoint)));
    for (client, destination, endpoint) in flows {
        world.send_udp(client, destination, endpoint);
    }
    assert_eq!(world.flows(), flows.into());
    let services: UdpServices = [
        (at("10.96.0.10:53"), [at("10.244.1.2:5301"), at("10.244.1.3:5301")].into()),
        (at("[fd00::a]:53"), [at("[fd00:1::2]:5301")].into()),
        (at("10.96.0.99:53"), [].into()),
    ]
    .into();
    assert_eq!(forget(world, &services), Ok(Flows { v4: 3, v6: 1 }));
    assert_eq!(world.flows(), [flows[1], flows[3], flows[4], flows[7]].into());
    assert_eq!(forget(world, &services), Ok(Flows::default()));
    // A Service without endpoints keeps no flow.
    let services = [(at("10.96.0.10:53"), [].into())].into();
    assert_eq!(forget(world, &services), Ok(Flows { v4: 1, v6: 0 }));
    assert_eq!(world.flows(), [flows[3], flows[4], flows[7]].into());
}

pub(crate) fn nothing_to_forget(world: &mut impl World) {
    world.send_udp(at("10.1.1.1:4001"), at("10.96.0.10:53"), at("10.244.1.1:5301"));
    assert_eq!(forget(world, &UdpServices::new()), Ok(Flows::default()));
    let services = [(at("10.96.0.77:53"), [].into())].into();
    assert_eq!(forget(world, &services), Ok(Flows::default()));
    assert_eq!(world.flows().len(), 1);
}
