//! TLS for the simulated API server: test certificates, and a relay that terminates TLS.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// Authority that signs certificates.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// The key (PKCS #8).
    pub key: String,
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).expect("no names, so none that is wrong");
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

impl Authority {
    /// A new one.
    pub fn new(name: &str) -> Self {
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        Authority(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// The authority's certificate in PEM, for `certificate-authority` in a kubeconfig.
    pub fn certificate(&self) -> String {
        self.0.pem()
    }

    /// A certificate for a client with this name.
    pub fn client(&self, name: &str) -> Identity {
        let mut params = params(name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Identity { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// Certificate and key for 127.0.0.1 and localhost, as DER.
    fn server(&self) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let names = ["127.0.0.1", "localhost", "kubernetes.default.svc"].map(str::to_owned);
        let mut params = CertificateParams::new(names).expect("names that are right");
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        (certificate.der().clone(), PrivateKeyDer::Pkcs8(key.serialize_der().into()))
    }
}

/// Terminates TLS on its own port and relays the plain text. Dropping it closes all connections.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    waits: Arc<Mutex<Vec<Duration>>>,
    _ends: oneshot::Sender<()>,
}

impl Relay {
    /// Starts a relay whose certificate this authority has signed. With `clients` it also requires client certificates
    /// signed by that authority.
    pub fn start(authority: &Authority, to: SocketAddr, clients: Option<&Authority>) -> Self {
        Self::start_on(SocketAddr::from(([127, 0, 0, 1], 0)), authority, to, clients)
    }

    /// Starts a relay on this address, which must be free.
    pub fn start_on(address: SocketAddr, authority: &Authority, to: SocketAddr, clients: Option<&Authority>) -> Self {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("versions of TLS");
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let mut roots = RootCertStore::empty();
                roots.add(clients.0.der().clone()).expect("a certificate");
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.expect("a verifier"))
            }
        };
        let (certificate, key) = authority.server();
        let mut config = builder.with_single_cert(vec![certificate], key).expect("a certificate and its key");
        // As kube-apiserver, which says nothing between the handshake and the first request.
        config.send_tls13_tickets = 0;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = super::bind(address);
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("an address");
        let (ends, ended) = oneshot::channel();
        let waits = Arc::<Mutex<Vec<Duration>>>::default();
        let noted = waits.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).expect("a listener");
                tokio::select! {
                    _ = ended => {}
                    () = accept(listener, acceptor, to, noted) => {}
                }
            });
        });
        Relay { address, waits, _ends: ends }
    }

    /// Address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// URL of the server.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// How long each connection so far took from the end of the handshake to the first byte of a request.
    pub fn waits(&self) -> Vec<Duration> {
        super::lock(&self.waits).clone()
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, to: SocketAddr, waits: Arc<Mutex<Vec<Duration>>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, waits) = (acceptor.clone(), waits.clone());
        tokio::spawn(async move {
            // Clients that do not trust it, or are not trusted, disconnect.
            let Ok(mut outer) = acceptor.accept(stream).await else { return };
            let (ready, mut first) = (Instant::now(), [0; 1]);
            let Ok(1..) = outer.read(&mut first).await else { return };
            super::lock(&waits).push(ready.elapsed());
            let Ok(mut inner) = TcpStream::connect(to).await else { return };
            let Ok(()) = inner.write_all(&first).await else { return };
            drop(copy_bidirectional(&mut outer, &mut inner).await);
        });
    }
}
