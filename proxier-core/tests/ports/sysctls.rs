use proxier_core::ports::PortErrorKind;

use super::World;

const FORWARD: &str = "net/ipv4/ip_forward";

pub(crate) fn values_are_read_and_written(world: &mut impl World) {
    let sysctls = world.ports().sysctls;
    for value in ["1", "0", "1"] {
        sysctls.set(FORWARD, value).unwrap();
        assert_eq!(sysctls.get(FORWARD).unwrap(), value);
    }
    assert_eq!(world.sysctl(FORWARD), "1");
    let release = world.ports().sysctls.get("kernel/osrelease").unwrap();
    assert!(release.starts_with(|first: char| first.is_ascii_digit()), "{release}");
}

pub(crate) fn what_is_wrong_with_a_value_is_told(world: &mut impl World) {
    let sysctls = world.ports().sysctls;
    let before = sysctls.get(FORWARD).unwrap();
    let missing = [sysctls.get("net/ipv4/no_such_thing").unwrap_err(), sysctls.set("net/none", "1").unwrap_err()];
    for error in missing {
        assert_eq!(error.kind(), PortErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains("no"), "{error}");
    }
    let error = sysctls.set(FORWARD, "yes").unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Invalid, "{error}");
    for path in ["", "../../etc/hostname", "/etc/hostname", "net/../../../etc/hostname"] {
        assert_eq!(sysctls.get(path).unwrap_err().kind(), PortErrorKind::Invalid, "{path}");
        assert_eq!(sysctls.set(path, "1").unwrap_err().kind(), PortErrorKind::Invalid, "{path}");
    }
    assert_eq!(world.sysctl(FORWARD), before);
}
