//! Kubeconfigs, credentials and TLS.

use testkit::apiserver::kubeconfig;

use super::*;

#[tokio::test]
async fn a_new_token_is_read_when_the_old_one_does_not_count_any_more() {
    let server = shop();
    server.demand_token("first");
    let folder = Folder::new("token");
    // Editors write such line ends.
    let token = folder.put("token", "first\r\n");
    let kubeconfig = folder.put("kubeconfig", &server.kubeconfig(Some(&token)));
    let mut watching = settled_by(Connection { kubeconfig: Some(kubeconfig), master: None }, &server, quick()).await;
    assert_eq!(watching.failures(), 0);

    server.demand_token("second");
    server.end_watches();
    wait_for("the old token to be refused", || watching.failures() >= 3).await;
    // Half a token, with a byte that no header may have: no watch ends.
    std::fs::write(&token, "sec\0ond").unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    std::fs::write(&token, "second\n").unwrap();
    watched(&server).await;
    watching.ends_with(&server).await;
}

/// A server that rejects all credentials gets only the requests that each watch's growing pauses allow, whether the
/// credentials come from a file or from a program that prints others each time.
#[tokio::test]
async fn rejected_watches_do_not_wake_each_other() {
    let folder = Folder::new("rejected");
    let exec = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "interactiveMode": "Never",
        "args": ["-c", "printf '{\"status\":{\"token\":\"wrong-%s\"}}' $$"],
    });
    let users = [json!({"tokenFile": folder.put("token", "wrong")}), json!({"exec": exec})];
    let options = with(|options| {
        (options.first_pause, options.longest_pause) = (Duration::from_secs(2), Duration::from_secs(60));
    });
    let begun = Instant::now();
    let mut all = Vec::new();
    for user in users {
        let server = shop();
        server.demand_token("right");
        let text = kubeconfig(&server.url(), &json!({}), &user);
        let kubeconfig = Some(folder.put(&format!("kubeconfig-{}", all.len()), &text));
        all.push((connect(Connection { kubeconfig, master: None }, options.clone()).await, server));
    }
    tokio::time::sleep(Duration::from_secs(10).saturating_sub(begun.elapsed())).await;
    // Each of the three at 0 s, after 2 to 3 s, and after 6 to 9 s.
    for (watching, server) in &all {
        assert_eq!(server.requests().len(), 9, "in {:?}", begun.elapsed());
        assert_eq!(watching.failures(), 9);
    }
}

/// Nagle's algorithm would hold it until the server's delayed acknowledgement, after 40 ms. The least counts, since other tests run meanwhile.
#[tokio::test]
async fn the_first_request_of_a_connection_follows_the_handshake_at_once() {
    let (server, folder) = (shop(), Folder::new("first-request"));
    let authority = Authority::new("ours");
    let relay = Relay::start(&authority, server.address(), None);
    let authority = json!({"certificate-authority": folder.put("ca.crt", &authority.certificate())});
    let kubeconfig = folder.put("kubeconfig", &kubeconfig(&relay.url(), &authority, &json!({})));
    settled_by(Connection { kubeconfig: Some(kubeconfig), master: None }, &server, quick()).await;
    let waits = relay.waits();
    assert!(*waits.iter().min().unwrap() < Duration::from_millis(20), "{waits:?}");
}

/// The authority of the server changes, then that of clients, while both run: reconnecting does not wait for a pause once the files are there.
#[tokio::test]
async fn new_certificates_are_read_when_their_files_change() {
    let (server, folder) = (shop(), Folder::new("rotation"));
    let [old, new, clients, later_clients] = ["old", "new", "clients", "later"].map(Authority::new);
    let put_identity = |of: &Authority| {
        let identity = of.client("system:kube-proxy");
        (folder.put("client.crt", &identity.certificate), folder.put("client.key", &identity.key))
    };
    let (certificate, key) = put_identity(&clients);
    let authority = folder.put("ca.crt", &old.certificate());
    let relay = Relay::start(&old, server.address(), Some(&clients));
    let address = relay.address();
    let user = json!({"client-certificate": certificate, "client-key": key});
    let text = kubeconfig(&relay.url(), &json!({"certificate-authority": authority}), &user);
    let kubeconfig = folder.put("kubeconfig", &text);
    let options = with(|options| {
        (options.first_pause, options.longest_pause) = (Duration::from_secs(60), Duration::from_secs(60));
    });
    let mut watching = settled_by(Connection { kubeconfig: Some(kubeconfig), master: None }, &server, options).await;
    assert_eq!(watching.failures(), 0);
    let rotations: [(&Authority, &Authority, &dyn Fn()); 2] = [
        (&new, &clients, &|| drop(folder.put("ca.crt", &new.certificate()))),
        (&new, &later_clients, &|| drop(put_identity(&later_clients))),
    ];
    let mut relay = Some(relay);
    let requested = || ["/services", "/endpointslices", "/nodes"].map(|path| asked(&server, path).len());
    for (number, (authority, clients, rotate)) in rotations.into_iter().enumerate() {
        let (before, seen) = (watching.failures(), requested());
        drop(relay.take());
        relay = Some(Relay::start_on(address, authority, server.address(), Some(clients)));
        // The break of the watch, then a certificate that does not count.
        wait_for("failures of all three", || watching.failures() >= before + 3).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(watching.failures() < before + 9, "each pauses: {}", watching.failures() - before);
        // Half a certificate: the earlier one stays.
        folder.put("ca.crt", "-----BEGIN CERTIFICATE-----\nnonsense");
        tokio::time::sleep(Duration::from_secs(2)).await;
        folder.put("ca.crt", &authority.certificate());
        rotate();
        let name = format!("rotated-{number}");
        server.put(&service(&name, 80));
        assert_eq!(watching.line().await, format!("+service default/{name}"));
        // The others may come back later than the one of Services.
        wait_for("all three again", || requested().into_iter().zip(seen).all(|(now, before)| now > before)).await;
    }
}

#[tokio::test]
async fn of_several_credentials_those_count_that_count_for_client_go() {
    let (server, folder) = (shop(), Folder::new("several"));
    server.demand_token("right");
    let exec = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "interactiveMode": "Never",
        "args": [r#"{"status":{"token":"right"}}"#],
    });
    for user in [
        json!({"token": "wrong", "tokenFile": folder.put("token", "right")}),
        json!({"token": "right", "tokenFile": "/nonexistent/token"}),
        json!({"token": "right", "tokenFile": ""}),
        json!({"token": "", "exec": exec}),
        json!({"token": "right", "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "false"}}),
    ] {
        let kubeconfig = folder.put("kubeconfig", &kubeconfig(&server.url(), &json!({}), &user));
        let mut watching = connect(Connection { kubeconfig: Some(kubeconfig), master: None }, quick()).await;
        watching.snapshot().await;
        assert_eq!(watching.failures(), 0, "{user}");
    }
}

/// Credentials that cannot be sent are bad input, with the place where they are; nothing panics.
#[tokio::test]
async fn credentials_that_cannot_be_used_are_named() {
    let folder = Folder::new("credentials");
    let program = |script: &str| {
        json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script],
            "interactiveMode": "Never",
        }})
    };
    let token = |name: &str, text: &str| json!({"tokenFile": folder.put(name, text)});
    let credential = |status: &str| program(&format!("printf '%s' '{{\"status\":{status}}}'"));
    for (user, expected) in [
        (token("split", "a\nb"), "/split cannot be sent: byte 2 of 3 is a control character"),
        (token("blank", " \n"), "/blank is empty"),
        (json!({"tokenFile": "/nonexistent/token"}), "the token cannot be read from /nonexistent/token: No such file"),
        (json!({"token": "a\n"}), "the token in the kubeconfig cannot be sent: byte 2 of 2"),
        (
            json!({"auth-provider": {"name": "oidc", "config": {"id-token": "\u{1}"}}}),
            "of auth-provider cannot be sent",
        ),
        (
            json!({"auth-provider": {"name": "gcp", "config": {"cmd-path": "yes"}}}),
            "auth-provider gcp is not supported",
        ),
        (program("printf 'kind: [ExecCredential'"), "prints no ExecCredential: "),
        (program("printf '\\377'"), "prints no ExecCredential: "),
        (credential("null"), "prints no ExecCredential: status is missing"),
        (credential("{}"), "it has neither a token nor a certificate"),
        (credential(r#"{"token":""}"#), "it has neither a token nor a certificate"),
        (credential(r#"{"token":5}"#), "status.token: invalid type"),
        (
            credential(r#"{"token":"a\nb"}"#),
            "the token in status.token cannot be sent: byte 2 of 3 is a control character",
        ),
        (credential(r#"{"token":"\u0000"}"#), "the token in status.token cannot be sent: byte 1 of 1"),
        (credential(r#"{"token":"ä"}"#), "the token in status.token cannot be sent: byte 1 of 2"),
        (credential(r#"{"clientKeyData":"x"}"#), "only one of clientCertificateData and clientKeyData is set"),
        (
            credential(r#"{"token":"a","expirationTimestamp":"soon"}"#),
            "status.expirationTimestamp: \"soon\" is not a time",
        ),
        (
            credential(r#"{"token":"a","expirationTimestamp":"10000-01-01T00:00:00Z"}"#),
            "status.expirationTimestamp: \"10000-01-01T00:00:00Z\" is not a time",
        ),
        (
            program("exec yes"),
            "\"sh\" that gets credentials (exec in the kubeconfig) failed: it prints more than 1048576 bytes",
        ),
        (program("echo 'not logged in' >&2; exit 7"), "failed: exit status: 7: not logged in"),
        (json!({"as": "a\nb", "token": "a"}), "failed to parse header value"),
    ] {
        let kubeconfig = folder.put("kubeconfig", &kubeconfig("http://127.0.0.1:1", &json!({}), &user));
        let problem = refusal(&kubeconfig).await.unwrap();
        assert!(problem.starts_with("http://127.0.0.1:1/: ") && problem.contains(expected), "{user}: {problem}");
    }
    // YAML, which client-go accepts.
    let yaml = program("printf 'kind: ExecCredential\nstatus:\n  token: a\n'");
    let kubeconfig = folder.put("kubeconfig", &kubeconfig("http://127.0.0.1:1", &json!({}), &yaml));
    assert_eq!(refusal(&kubeconfig).await, None);
}

/// Why a source with this kubeconfig does not start.
async fn refusal(kubeconfig: &Path) -> Option<String> {
    let (sender, _changes) = channel();
    let connection = Connection { kubeconfig: Some(kubeconfig.to_owned()), master: None };
    let started = Cluster::start(connection, "n1", quick(), sender).await;
    started.err().map(|problem| problem.to_string())
}

#[tokio::test]
async fn errors_of_a_kubeconfig_are_named() {
    const GOOD: &str = "
apiVersion: v1
kind: Config
current-context: x
clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]
contexts: [{name: x, context: {cluster: a, user: u}}]
users: [{name: u, user: {}}]
";
    let folder = Folder::new("kubeconfig");
    let replaced = |from: &str, to: &str| {
        assert!(GOOD.contains(from), "{from}");
        GOOD.replacen(from, to, 1)
    };
    assert_eq!(refusal(&folder.put("kubeconfig", GOOD)).await, None);
    for (text, expected) in [
        (replaced("current-context: x", ""), "current-context: is missing; kubectl config use-context sets it"),
        (replaced("t: x\n", "t: y\n"), "current-context: there is no context \"y\"; there is x"),
        (replaced("cluster: a", "cluster: b"), "contexts.context.cluster: there is no cluster \"b\"; there is a"),
        (replaced("user: u", "user: v"), "contexts.context.user: there is no user \"v\"; there is u"),
        (
            replaced("http://127.0.0.1:1", "127.0.0.1:1"),
            "clusters.cluster.server: \"127.0.0.1:1\" is not a URL such as https://10.0.0.1:6443",
        ),
        (
            replaced("http://127.0.0.1:1", "::"),
            "not a usable kubeconfig: failed to parse cluster url: invalid authority",
        ),
        (
            replaced("'http://127.0.0.1:1'", "'https://127.0.0.1:1', certificate-authority-data: bm9uc2Vuc2UK"),
            "certificate-authority: there is no certificate in it",
        ),
        (
            replaced("1:1'", "1:1', certificate-authority: /nonexistent/ca.crt"),
            "not a usable kubeconfig: failed to load certificate authority: failed to read file \"/nonexistent/ca.crt\": \
             No such file or directory (os error 2)",
        ),
        (
            replaced("1'}}]", "1', proxy-url: 'socks5://127.0.0.1:2'}}]"),
            "clusters.cluster.proxy-url: is not supported; remove it, and let server be an address that this node reaches \
             without a proxy",
        ),
        (String::new(), "not a kubeconfig: it has no contexts"),
    ] {
        let path = folder.put("kubeconfig", &text);
        assert_eq!(refusal(&path).await.unwrap(), format!("{}: {expected}", path.display()));
    }
    let malformed = refusal(&folder.put("kubeconfig", "a: [b")).await.unwrap();
    assert!(malformed.contains(": not a usable kubeconfig: ") && malformed.contains("line 1"), "{malformed}");
    let missing = refusal(Path::new("/nonexistent/config")).await.unwrap();
    assert!(missing.starts_with("/nonexistent/config: the kubeconfig cannot be read (No such file"), "{missing}");
}

/// A program whose child keeps its standard output; credentials that say "never" for their end, and ones that end soon.
#[tokio::test]
async fn a_program_gets_new_credentials_when_the_old_ones_end() {
    let (server, folder) = (shop(), Folder::new("ending"));
    server.demand_token("first");
    let (token, end) = (folder.put("token", "first"), folder.put("end", "9999-12-31T23:59:59Z"));
    let script = format!(
        "sleep 60 & echo asked >>{0}/asked; printf '{{\"status\":{{\"token\":\"%s\",\"expirationTimestamp\":\"%s\"}}}}' \
         $(cat {1}) $(cat {2})",
        folder.0.display(),
        token.display(),
        end.display()
    );
    let user =
        json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script]}});
    let connection = || {
        let kubeconfig = folder.put("kubeconfig", &kubeconfig(&server.url(), &json!({}), &user));
        Connection { kubeconfig: Some(kubeconfig), master: None }
    };
    let asked = || std::fs::read_to_string(folder.0.join("asked")).unwrap().lines().count();
    let started = Instant::now();
    let watching = settled_by(connection(), &server, quick()).await;
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!((asked(), watching.failures()), (1, 0));
    let watches_end = || {
        // One that brings something first has not ended at once.
        server.bookmark();
        server.end_watches();
    };
    watches_end();
    watched(&server).await;
    assert_eq!(asked(), 1);
    drop(watching);
    watches_end();
    // The credentials have ended: each request asks for new ones, and none is refused.
    folder.put("end", "2026-01-01T00:00:00Z");
    let watching = settled_by(connection(), &server, quick()).await;
    folder.put("token", "second");
    server.accept_token("second");
    watches_end();
    watched(&server).await;
    server.demand_token("second");
    watches_end();
    watched(&server).await;
    assert_eq!(watching.failures(), 0);
    assert!(asked() >= 4, "{}", asked());
}

/// Each obstacle between the two ends of TLS is named; a certificate may be in the kubeconfig, and the server may have a name.
#[test]
fn what_is_wrong_with_tls_is_said() {
    let (server, folder) = (shop(), Folder::new("tls"));
    let [ours, theirs, clients] = ["ours", "theirs", "clients"].map(Authority::new);
    let relay = Relay::start(&ours, server.address(), Some(&clients));
    let identity = clients.client("system:kube-proxy");
    let known = json!({
        "client-certificate": folder.put("client.crt", &identity.certificate),
        "client-key": folder.put("client.key", &identity.key),
    });
    let [right, wrong] = [("ca.crt", &ours), ("other.crt", &theirs)]
        .map(|(name, of)| json!({"certificate-authority": folder.put(name, &of.certificate())}));
    let within = json!({"certificate-authority-data": ByteString(ours.certificate().into_bytes())});
    let (url, by_name) = (relay.url(), relay.url().replace("127.0.0.1", "localhost"));
    for (url, cluster, user, code, expected) in [
        (&url, &wrong, &known, 1, "not signed by the certificate-authority that is configured"),
        (&url, &right, &json!({}), 1, "it wants a client certificate"),
        (&url, &right, &known, 0, "Service shop/dns"),
        (&by_name, &within, &known, 0, "Service shop/dns"),
    ] {
        let path = folder.put("kubeconfig", &kubeconfig(url, cluster, user)).display().to_string();
        let explained = demo(&["explain", "shop/dns", "--kubeconfig", &path, "--input-timeout", "1s"]);
        let said = text(&explained.stdout) + &text(&explained.stderr);
        assert_eq!(explained.status.code(), Some(code), "{said}");
        assert!(said.contains(expected) && (code == 0 || said.contains(&format!("no answer from {url}"))), "{said}");
    }
}

/// A shell may have a proxy for the internet. The API server is asked directly.
#[test]
fn a_proxy_of_the_environment_is_not_used() {
    let (server, folder) = (shop(), Folder::new("proxy"));
    let path = folder.put("kubeconfig", &server.kubeconfig(None)).display().to_string();
    let explain = |name: &str, proxy: &str| {
        command(&["explain", "shop/dns", "--kubeconfig", &path]).env(name, proxy).output().unwrap()
    };
    for (name, proxy) in [("HTTPS_PROXY", "http://127.0.0.1:1"), ("https_proxy", "127.0.0.1:1")] {
        assert!(ok(&explain(name, proxy)).contains("Service shop/dns"), "{name}={proxy}");
    }
    let refused = text(&explain("HTTPS_PROXY", "http://a b").stderr);
    assert!(refused.contains("proxier-demo: HTTPS_PROXY: is not a URL; unset it"), "{refused}");
}

/// Neither the log nor the counts by host have the user and the password of a URL.
#[tokio::test]
async fn a_password_in_the_servers_url_is_not_repeated() {
    let of = |url: &str| Connection { master: Some(url.to_owned()), ..Connection::default() };
    for url in ["http://user:PASSW0RD@127.0.0.1:1", "https://user:PASSW0RD@127.0.0.1:1/x", "http://user:PASSW0RD@"] {
        let (sender, _changes) = channel();
        let started = Cluster::start(of(url), "n1", quick(), sender).await;
        let said = started.as_ref().err().map(ToString::to_string).unwrap_or_default();
        assert!(!said.contains("PASSW0RD"), "{said}");
        assert_eq!(started.is_err(), url.ends_with('@'), "{said}");
        if let Ok(cluster) = &started {
            let failures = || cluster.counters().failures.load(std::sync::atomic::Ordering::Relaxed);
            wait_for("requests that fail", || failures() > 3).await;
        }
    }
    let page = proxier_demo::sources::cluster::requests::counted();
    assert!(!format!("{page:?}").contains("PASSW0RD"));
}
