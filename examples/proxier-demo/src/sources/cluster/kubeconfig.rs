//! Reads kubeconfigs, and explains their problems in plain words.

use std::fs::File;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError, NamedCluster};

use crate::problem::{Problem, causes};
use crate::sources::files::NotedFiles;

/// The current context of this file. Records the files of which it consists. Sends no request, starts no program.
/// Errors: the file cannot be read, or lacks something that it refers to.
pub(super) async fn config(path: &Path, files: &mut NotedFiles) -> Result<Config, Problem> {
    let problem = |reason: String| Problem::new(path.display().to_string(), reason);
    let unusable = |error: &dyn std::error::Error| {
        let text = causes(error);
        // The text after the arrow shows the lines around the fault, on several lines.
        let text = text.split(" --> ").next().unwrap_or_default().replace("error: ", "");
        // The client library quotes paths twice.
        let text = text.replace("'\"", "\"").replace("\"'", "\"");
        problem(format!("not a usable kubeconfig: {text}"))
    };
    files.note(path);
    if is_device(path).map_err(|error| problem(format!("the kubeconfig cannot be read ({error})")))? {
        return Err(problem("not a usable kubeconfig: this is a device".to_owned()));
    }
    let kubeconfig = Kubeconfig::read_from(path).map_err(|error| unusable(&error))?;
    if kubeconfig.current_context.is_none() && kubeconfig.contexts.is_empty() {
        return Err(problem("not a kubeconfig: it has no contexts".to_owned()));
    }
    let cluster = complete(&kubeconfig).map_err(|(field, reason)| problem(reason).at(field))?;
    let authority = cluster.cluster.as_ref().and_then(|cluster| cluster.certificate_authority.as_ref());
    if let Some(path) = authority {
        files.note(path);
    }
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let mut config = config.map_err(|error| match error {
        KubeconfigError::ParseProxyUrl(_) => Problem::new("HTTPS_PROXY", "is not a URL; unset it, it is not used here"),
        error => unusable(&error),
    })?;
    // The client library takes it from HTTPS_PROXY, even for hosts of NO_PROXY.
    config.proxy_url = None;
    if !is_server(&config.cluster_url) {
        let reason = format!("{:?} is not a URL such as https://10.0.0.1:6443", config.cluster_url.to_string());
        return Err(problem(reason).at("clusters.cluster.server"));
    }
    if config.cluster_url.scheme_str() == Some("https")
        && !config.accept_invalid_certs
        && config.root_cert.as_ref().is_some_and(Vec::is_empty)
    {
        return Err(problem("there is no certificate in it".to_owned()).at("certificate-authority"));
    }
    let user = &config.auth_info;
    [&user.client_certificate, &user.client_key].into_iter().flatten().for_each(|path| files.note(path));
    Ok(config)
}

/// Whether it has a scheme and a host, which every request needs.
pub(super) fn is_server(url: &http::Uri) -> bool {
    matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some_and(|host| !host.is_empty())
}

/// Whether this is a device, which is endless. A pipe (`<(…)` in a shell) has an end, and can be read only once.
fn is_device(path: &Path) -> std::io::Result<bool> {
    let kind = File::open(path)?.metadata()?.file_type();
    Ok(kind.is_char_device() || kind.is_block_device())
}

/// The cluster of the current context, if all names that it refers to exist; otherwise the field and the reason.
fn complete(kubeconfig: &Kubeconfig) -> Result<&NamedCluster, (&'static str, String)> {
    let named = |what: &str, name: &str, names: Vec<&str>| {
        let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        format!("there is no {what} {name:?}; there is {known}")
    };
    let contexts = || kubeconfig.contexts.iter();
    let Some(current) = kubeconfig.current_context.as_deref().filter(|name| !name.is_empty()) else {
        return Err(("current-context", "is missing; kubectl config use-context sets it".to_owned()));
    };
    let Some(context) = contexts().find(|context| context.name == current).and_then(|named| named.context.as_ref())
    else {
        let names = contexts().map(|context| context.name.as_str()).collect();
        return Err(("current-context", named("context", current, names)));
    };
    let Some(cluster) = kubeconfig.clusters.iter().find(|cluster| cluster.name == context.cluster) else {
        let names = kubeconfig.clusters.iter().map(|cluster| cluster.name.as_str()).collect();
        return Err(("contexts.context.cluster", named("cluster", &context.cluster, names)));
    };
    if let Some(user) = context.user.as_deref().filter(|user| !user.is_empty())
        && !kubeconfig.auth_infos.iter().any(|known| known.name == user)
    {
        let names = kubeconfig.auth_infos.iter().map(|user| user.name.as_str()).collect();
        return Err(("contexts.context.user", named("user", user, names)));
    }
    let proxy = cluster.cluster.as_ref().and_then(|cluster| cluster.proxy_url.as_deref());
    if proxy.is_some_and(|proxy| !proxy.is_empty()) {
        let reason = "is not supported; remove it, and let server be an address that this node reaches without a proxy";
        return Err(("clusters.cluster.proxy-url", reason.to_owned()));
    }
    Ok(cluster)
}

/// Whether one side rejects the other's certificate, as far as the TLS library's message shows.
pub(super) fn is_of_certificates(message: &str) -> bool {
    message.contains("invalid peer certificate") || message.contains("fatal alert")
}

/// What to do about a failed connection, as far as the TLS library's message shows the cause.
pub(super) fn advice(message: &str) -> &'static str {
    for (words, advice) in [
        ("UnknownIssuer", "; its certificate is not signed by the certificate-authority that is configured"),
        ("NotValidForName", "; its certificate is not for this name or address"),
        ("certificate expired", "; its certificate has expired, or this machine's clock is wrong"),
        ("CertificateRequired", "; it wants a client certificate (client-certificate and client-key of the user)"),
        ("fatal alert", "; it does not accept the client certificate"),
        ("Connection refused", "; does it run, and is that its address?"),
    ] {
        if message.contains(words) {
            return advice;
        }
    }
    ""
}
