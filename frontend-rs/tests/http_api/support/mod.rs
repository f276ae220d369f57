pub mod backend;
pub mod client;
pub mod models;
pub mod server;

pub use backend::{bytes, done, Scripted, Step};
pub use models::{qwen, smol, tiny, tiny_id};
pub use server::Server;

/// Polls until `condition` holds; fails the test if it does not within ten seconds.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
    while !condition() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "not within ten seconds: {what}"
        );
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}
