//! A kernel without IPVS, and one whose IPVS is unloaded and loaded again while a client is open.
#![allow(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use ipvs::{Batch, Client, MissingModule, Scheduler, VirtualServer, VirtualServerKey};
use testkit::{Need, kernel_test, missing, oracle};

/// The program with which the kernel loads modules.
const LOADER: &str = "/proc/sys/kernel/modprobe";

#[test]
fn the_missing_module_is_named_and_a_client_survives_its_coming_back() {
    kernel_test(&[Need::Root], || {
        let absent = |error: &ipvs::Error| {
            assert_eq!(error.module_missing(), Some(MissingModule::Ipvs), "{error}");
            assert!(error.to_string().contains("modprobe ip_vs"), "{error}");
        };
        if missing(Need::IpVs).is_some() {
            absent(&Client::open().unwrap_err());
            return;
        }
        // Only a machine that is there for tests may lose its modules for a moment.
        if std::env::var_os("TESTKIT_REQUIRE").is_none_or(|value| value != "all") {
            Client::open().unwrap().info().unwrap();
            return;
        }
        let mut client = Client::open().unwrap();
        client.info().unwrap();
        // The kernel loads IPVS when it is looked up: not while it has no program to do so.
        let loader = std::fs::read_to_string(LOADER).unwrap();
        std::fs::write(LOADER, "/bin/false\n").unwrap();
        testkit::modules::unload("ip_vs");
        absent(&Client::open().unwrap_err());
        absent(&client.info().unwrap_err());
        absent(&client.list_virtual_servers().unwrap_err());
        oracle::run("modprobe", &["ip_vs"], None).unwrap();
        std::fs::write(LOADER, loader).unwrap();
        let key = VirtualServerKey::tcp("10.0.0.1:80".parse().unwrap());
        let mut batch = Batch::new();
        batch.add_virtual_server(VirtualServer::new(key, Scheduler::RoundRobin));
        let report = client.run(&batch);
        assert!(report.is_done(), "{report:?}");
        assert_eq!(oracle::ipvsadm_save().unwrap().trim(), "-A -t 10.0.0.1:80 -s rr");
    });
}
