//! An issuer of tokens, which publishes its keys on a free port.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, crypto};
use parking_lot::Mutex;

/// A private key for these tests only. It is public.
const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEINYH3OBBALtVgg8RgzCNZFhq3+VOKfTOeqQihfDFl9W6
-----END PRIVATE KEY-----
";

pub(crate) struct Issuer {
    address: std::net::SocketAddr,
    published: Arc<Published>,
}

#[derive(Default)]
struct Published {
    set: Mutex<String>,
    fetches: AtomicUsize,
}

impl Issuer {
    /// Starts an issuer that publishes its key under the name `id`.
    pub(crate) async fn start(id: &str) -> Issuer {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let published = Arc::new(Published::default());
        let issuer = Issuer { address, published: Arc::clone(&published) };
        issuer.publish(id);
        let keys = get(move || async move {
            published.fetches.fetch_add(1, Ordering::Relaxed);
            published.set.lock().clone()
        });
        let app = Router::new().route("/keys", keys);
        tokio::spawn(async move { axum::serve(listener, app).await });
        issuer
    }

    /// Publishes the key under another name from now on.
    pub(crate) fn publish(&self, id: &str) {
        *self.published.set.lock() = set_of(id);
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/keys", self.address)
    }

    pub(crate) fn fetches(&self) -> usize {
        self.published.fetches.load(Ordering::Relaxed)
    }
}

/// The issuer's key set, with the key under the name `id`.
pub(crate) fn set_of(id: &str) -> String {
    format!(
        r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","use":"sig","kid":"{id}","x":"Ls5AiS3G1dnetVQbtVTWeiL7HVYdr_KUD-GmO5SpiVc"}}]}}"#
    )
}

/// A token signed with the issuer's key, which names the key `id`.
pub(crate) fn token(id: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"EdDSA","kid":"{id}"}}"#));
    let claims = URL_SAFE_NO_PAD.encode(r#"{"sub":"ada","exp":4102444800}"#);
    let message = format!("{header}.{claims}");
    let key = EncodingKey::from_ed_pem(PRIVATE.as_bytes()).unwrap();
    let signature = crypto::sign(message.as_bytes(), &key, Algorithm::EdDSA).unwrap();
    format!("{message}.{signature}")
}

/// Waits until `holds` returns true.
pub(crate) async fn until(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "the condition did not become true in 30 s");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
