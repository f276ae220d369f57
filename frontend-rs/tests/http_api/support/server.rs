//! The router on a real socket.

use std::net::SocketAddr;
use std::sync::Arc;

use denizen_frontend::http::{self, App, HttpConfig};
use denizen_frontend::route::Backend;
use serde_json::Value;

use super::client::{self, Reply, Stream};

pub struct Server {
    pub address: SocketAddr,
    _server: http::Server,
}

impl Server {
    pub async fn start(backend: Arc<dyn Backend>) -> Self {
        Self::with(HttpConfig::default(), backend).await
    }

    pub async fn with(config: HttpConfig, backend: Arc<dyn Backend>) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = http::Server::start(listener, App::new(config, backend));
        Self {
            address,
            _server: server,
        }
    }

    pub async fn get(&self, path: &str) -> Reply {
        client::request(self.address, "GET", path, &[], b"").await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_bytes(path, body.to_string().as_bytes()).await
    }

    pub async fn post_bytes(&self, path: &str, body: &[u8]) -> Reply {
        client::request(
            self.address,
            "POST",
            path,
            &[("content-type", "application/json")],
            body,
        )
        .await
    }

    /// A streamed request; the head has been read.
    pub async fn stream(&self, path: &str, body: &Value) -> Stream {
        Stream::open(self.address, path, body).await
    }

    /// All events of a streamed request, `[DONE]` included.
    pub async fn events(&self, path: &str, body: &Value) -> Vec<String> {
        self.stream(path, body).await.rest().await
    }
}
