//! The lock on a Redis with TLS.

use std::fs;
use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_trial::redis_server::RedisServer;
use hashed_wheel_trial::server::free_port;
use hashed_wheel_trial::testing;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use redis::{Client, TlsCertificates};
use redis_lock::{LockClient, LockError, LockOptions};

const PATIENCE: Duration = Duration::from_secs(20);

/// A certificate authority.
type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Starts a server that accepts TLS on a port of its own, which is returned too. Its certificate is
/// for the address 127.0.0.1.
fn start(name: &str, authority: &Authority) -> Option<(RedisServer, u16)> {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["127.0.0.1".to_owned()])
        .unwrap()
        .signed_by(&key, authority)
        .unwrap();
    let mut tls_port = 0;
    let started = RedisServer::start_prepared(name, |folder| {
        tls_port = free_port()?;
        fs::write(folder.join("server.crt"), certificate.pem())?;
        fs::write(folder.join("server.key"), key.serialize_pem())?;
        fs::write(folder.join("ca.crt"), authority.pem())?;
        let arguments = [
            ["--tls-port", &tls_port.to_string()],
            ["--tls-cert-file", "server.crt"],
            ["--tls-key-file", "server.key"],
            ["--tls-ca-cert-file", "ca.crt"],
            ["--tls-auth-clients", "no"],
        ];
        Ok(arguments.concat().into_iter().map(str::to_owned).collect())
    });
    testing::server_or_skip(started).map(|server| (server, tls_port))
}

fn client(url: &str, trusted: &Authority, timer: &HashedWheelTimer) -> LockClient {
    let trusted = TlsCertificates {
        client_tls: None,
        root_cert: Some(trusted.pem().into_bytes()),
    };
    LockClient::builder(Client::build_with_tls(url, trusted).unwrap())
        .timer(timer)
        .build()
        .unwrap()
}

fn options() -> LockOptions {
    LockOptions::new().lease(PATIENCE * 3).poll(PATIENCE * 3)
}

#[tokio::test]
async fn locks_and_messages_use_tls() {
    let authority = authority();
    let Some((server, port)) = start("lock-tls", &authority) else {
        return;
    };
    let timer = HashedWheelTimer::new(Duration::from_millis(5), 512);
    let locks = client(&format!("rediss://127.0.0.1:{port}/"), &authority, &timer);
    let guard = locks.lock_with("a", options()).lock().await.unwrap();
    let mut waiting = locks.lock_with("a", options());
    let waiting = tokio::spawn(async move { waiting.lock().await });
    let begin = Instant::now();
    while server.subscribed_channels("lock-wake:*").unwrap() != 1 {
        assert!(
            begin.elapsed() < PATIENCE,
            "the waiting caller has not subscribed"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    guard.unlock().await.unwrap();
    let guard = tokio::time::timeout(PATIENCE, waiting)
        .await
        .expect("it is woken")
        .unwrap()
        .unwrap();
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_server_with_an_unknown_certificate_is_refused() {
    let Some((_server, port)) = start("lock-tls-unknown", &authority()) else {
        return;
    };
    let timer = HashedWheelTimer::new(Duration::from_millis(5), 512);
    let locks = client(&format!("rediss://127.0.0.1:{port}/"), &authority(), &timer);
    let error = locks.lock_with("a", options()).lock().await.unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(&error, LockError::Redis(error) if !error.is_timeout()),
        "{error:?}"
    );
    assert!(text.contains("invalid peer certificate"), "{text}");
}
