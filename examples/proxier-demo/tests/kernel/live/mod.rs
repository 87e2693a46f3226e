//! Shared by the tests of `proxier-demo` on a live API: a world of Services on a server.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use testkit::apiserver::ApiServer;

use crate::program::Folder;

/// A Service with one port, as the API server has it and as `ipvsadm` prints it.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) address: String,
    /// External addresses.
    pub(crate) external: Vec<String>,
    pub(crate) endpoints: Vec<String>,
}

impl Service {
    pub(crate) fn new(name: &str, address: &str, endpoints: &[&str]) -> Self {
        Service {
            name: name.to_owned(),
            address: address.to_owned(),
            external: Vec::new(),
            endpoints: endpoints.iter().map(|&address| address.to_owned()).collect(),
        }
    }

    pub(crate) fn object(&self) -> Value {
        let mut object = json!({
            "kind": "Service", "apiVersion": "v1", "metadata": {"namespace": "demo", "name": self.name},
            "spec": {
                "type": "ClusterIP", "clusterIP": self.address, "clusterIPs": [self.address],
                "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster",
                "ports": [{"name": "p", "port": 80, "protocol": "TCP", "targetPort": 8080}],
                "sessionAffinity": "None",
            },
            "status": {"loadBalancer": {}},
        });
        if !self.external.is_empty() {
            object["spec"]["externalIPs"] = self.external.clone().into();
        }
        object
    }

    pub(crate) fn slice(&self) -> Value {
        let endpoints: Vec<Value> = self
            .endpoints
            .iter()
            .map(|address| json!({"addresses": [address], "conditions": {"ready": true, "serving": true}}))
            .collect();
        json!({
            "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
            "metadata": {
                "namespace": "demo", "name": format!("{}-1", self.name),
                "labels": {"kubernetes.io/service-name": self.name},
            },
            "ports": [{"name": "p", "port": 8080, "protocol": "TCP"}],
            "endpoints": endpoints,
        })
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let mut places = vec![format!("{}:80", self.address)];
        places.extend(self.external.iter().map(|ip| format!("{ip}:80")));
        let mut lines = Vec::new();
        for place in places {
            lines.push(format!("-A -t {place} -s rr"));
            let reals = self.endpoints.iter();
            lines.extend(reals.map(|real| format!("-a -t {place} -r {real}:8080 -m -w 1")));
        }
        lines
    }
}

/// A Node as a kubelet and the controllers make it.
fn node() -> Value {
    json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1", "topology.kubernetes.io/zone": "a"}},
        "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "n1"}]},
    })
}

/// Services on a server, and a kubeconfig for it.
pub(crate) struct World {
    pub(crate) server: ApiServer,
    services: Vec<Service>,
    folder: Folder,
}

impl World {
    pub(crate) fn new(services: Vec<Service>) -> Self {
        Self::on(ApiServer::start(), services)
    }

    /// A world on this server.
    pub(crate) fn on(server: ApiServer, services: Vec<Service>) -> Self {
        server.put(&node());
        for service in &services {
            server.put(&service.object());
            server.put(&service.slice());
        }
        let folder = Folder::with("kubeconfig", &server.kubeconfig(None));
        World { server, services, folder }
    }

    pub(crate) fn kubeconfig(&self) -> String {
        self.folder.0.join("kubeconfig").display().to_string()
    }

    pub(crate) fn lines(&self) -> BTreeSet<String> {
        self.services.iter().flat_map(Service::lines).collect()
    }
}
