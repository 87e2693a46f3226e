//! The reconciler on the running kernel, with a real clock.

use std::time::{Duration, Instant};

use iptables::{Backend, BackendChoice};
use proxier_core::config::Config;
use proxier_core::engine::{Options, Reconciler};
use proxier_core::kernel::{self, KernelPorts};
use proxier_core::modes::cleanup::cleanup;
use proxier_core::objects::{ConfigObject, EndpointSliceObject, ServiceObject};
use proxier_core::plan::report::Report;
use proxier_core::snapshot::ObjectKey;
use proxier_core::time::Moment;
use serde_json::{Value, json};

use super::net::CLUSTER_CIDR;
use super::objects::{self, HERE, Pod};

pub(crate) struct Cluster {
    pub(crate) proxier: Reconciler,
    kernel: KernelPorts,
    origin: Instant,
}

/// The options of a proxy with this configuration and the pods' networks.
pub(crate) fn options(more: &Value) -> Options {
    let mut object = json!({ "clusterCIDR": CLUSTER_CIDR });
    for (field, value) in more.as_object().into_iter().flatten() {
        object[field] = value.clone();
    }
    let object: ConfigObject = serde_json::from_value(object).unwrap();
    let mut rejections = Vec::new();
    let mut options = Options::default();
    options.config = Config::check(&object, &mut rejections);
    assert!(rejections.is_empty(), "{rejections:?}");
    options
}

/// Why a pass has not done everything; empty when it has.
pub(crate) fn troubles(report: &Report) -> Vec<String> {
    let unread = report.unread.iter().map(ToString::to_string);
    let failures = report.applied.failures.iter().map(ToString::to_string);
    let stopped = report.stopped.iter().map(ToString::to_string);
    unread.chain(failures).chain(stopped).collect()
}

pub(crate) fn key(name: &str) -> ObjectKey {
    ObjectKey::new("demo", name)
}

impl Cluster {
    /// A proxy that programs nothing before the first [`Cluster::settle`].
    pub(crate) fn new(options: Options) -> Self {
        Self::with(options, Backend::NfTables)
    }

    pub(crate) fn with(options: Options, backend: Backend) -> Self {
        let mut how = kernel::KernelOptions::default();
        how.backend = BackendChoice::Force(backend);
        Self::over(options, &how)
    }

    /// A proxy on a machine without the programs of iptables.
    pub(crate) fn without_programs(options: Options) -> Self {
        let mut how = kernel::KernelOptions::default();
        how.system = iptables::System::new().with_only_directory("/nonexistent");
        Self::over(options, &how)
    }

    fn over(options: Options, how: &kernel::KernelOptions) -> Self {
        let kernel = KernelPorts::open(how).unwrap();
        let mut proxier = Reconciler::new(HERE, options, Duration::ZERO);
        proxier.set_node(&objects::node(), Duration::ZERO);
        Cluster { proxier, kernel, origin: Instant::now() }
    }

    pub(crate) fn ports(&mut self) -> proxier_core::ports::Ports<'_> {
        self.kernel.ports()
    }

    pub(crate) fn now(&self) -> Moment {
        self.origin.elapsed()
    }

    pub(crate) fn service(&mut self, object: &ServiceObject) {
        self.proxier.upsert_service(object, self.now());
    }

    pub(crate) fn slice(&mut self, object: &EndpointSliceObject) {
        self.proxier.upsert_slice(object, self.now());
    }

    /// A Service with all kinds of addresses, and its endpoints.
    pub(crate) fn publish(&mut self, name: &str, number: u16, more: &Value, pods: &[Pod]) {
        self.service(&objects::service(name, number, more));
        self.endpoints(name, pods);
    }

    pub(crate) fn endpoints(&mut self, name: &str, pods: &[Pod]) {
        for slice in objects::slices(name, pods) {
            self.slice(&slice);
        }
    }

    /// Removes objects of proxies and modes other than this proxy's configured one.
    pub(crate) fn clean_up_after_others(&mut self) {
        let config = self.proxier.facts().config().clone();
        let cleaned = cleanup(&config, Some(self.proxier.mode()), &mut self.kernel.ports());
        assert!(cleaned.is_done() && cleaned.removed() > 0, "{cleaned:#?}");
        self.proxier.request_full(self.now());
    }

    /// Removes objects of any mode.
    pub(crate) fn clean_up(&mut self) {
        let config = self.proxier.facts().config().clone();
        let cleaned = cleanup(&config, None, &mut self.kernel.ports());
        assert!(cleaned.is_done() && cleaned.removed() > 0, "{cleaned:#?}");
    }

    /// Runs the pass that is due, if one is.
    pub(crate) fn pass(&mut self) -> Option<Report> {
        let origin = self.origin;
        self.proxier.pass(&|| origin.elapsed(), &mut self.kernel.ports())
    }

    /// Runs the pass that would be due after this time.
    pub(crate) fn pass_in(&mut self, time: Duration) -> Option<Report> {
        let origin = self.origin;
        self.proxier.pass(&|| origin.elapsed() + time, &mut self.kernel.ports())
    }

    /// Runs passes until none is due at once; each must do everything.
    #[track_caller]
    pub(crate) fn settle(&mut self) -> Vec<Report> {
        self.proxier.start(self.now());
        let mut reports = Vec::new();
        while let Some(report) = self.pass() {
            assert_eq!(troubles(&report), <[String; 0]>::default(), "pass {}", reports.len());
            reports.push(report);
        }
        reports
    }
}
