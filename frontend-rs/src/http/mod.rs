//! HTTP: one file an endpoint.
//!
//! # Layout
//!
//! `server` (connections) → `guard` (request id, API key, body size) → an endpoint (`chat_completions`, `completions`, `tokenize`, …) → `fields`,
//! `params`, `messages` (validation) → `job` (what to generate) → `run` (submit, stream or collect) → `choice` (tokens to
//! text) → `shape` (OpenAI's JSON) → `outlet` (who gets it) → `sse` (bounded output). `audio` has the same for audio
//! files: `multipart` (the form), then decoding, windows, formats; `speech` for texts that are spoken.

pub(crate) mod audio;
pub(crate) mod body;
pub(crate) mod chat_completions;
pub(crate) mod choice;
pub(crate) mod completions;
pub(crate) mod counters;
pub(crate) mod detokenize;
pub(crate) mod error;
pub(crate) mod fields;
mod guard;
pub(crate) mod job;
mod leftover;
mod messages;
mod metrics;
pub(crate) mod models;
pub mod multipart;
pub(crate) mod outlet;
mod params;
mod probes;
pub(crate) mod run;
mod server;
pub(crate) mod shape;
pub(crate) mod speech;
pub(crate) mod sse;
pub(crate) mod tokenize;

pub use error::ApiError;
pub use server::Server;

use std::sync::Arc;
use std::time::Duration;

use axum::routing::{get, post};
use tokio::sync::Semaphore;

use crate::model::ModelEntry;
use crate::route::Backend;
use crate::text::TextPool;

/// What the HTTP side is told by the command line.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    pub api_key: Option<String>,
    /// Largest request body, bytes.
    pub max_body: usize,
    /// Largest body of a request with an audio file, bytes.
    pub max_upload: usize,
    /// Longest audio of a file.
    pub max_audio: Duration,
    /// Bytes that the decoded audio of all requests may take.
    pub max_audio_memory: usize,
    /// Requests handled at once; more get 429.
    pub max_in_flight: usize,
    pub request_timeout: Duration,
    /// Connections at once; those that ask nothing make room for more.
    pub max_connections: usize,
    /// How long a request's head may take from the connection, or the response before, on. Above what pools of clients and
    /// proxies keep a connection for (90 s at most), so that none is closed while its client is about to use it.
    pub head_timeout: Duration,
    /// After which the kernel gives up a peer that takes nothing; above `slow_client_timeout`, whose error comes first.
    pub unread_timeout: Duration,
    /// Threads for templates and tokenization, and for decoding audio.
    pub text_threads: usize,
    /// Bytes of a stream that wait for a client that reads slowly.
    pub max_buffered: usize,
    /// How long such a client may take to make room.
    pub slow_client_timeout: Duration,
    /// How long a client over shared memory may leave even the ends of its calls where they are.
    pub hung_client_timeout: Duration,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            api_key: None,
            max_body: 32 << 20,
            max_upload: 256 << 20,
            max_audio: Duration::from_secs(7200),
            max_audio_memory: 2 << 30,
            max_in_flight: 1024,
            request_timeout: Duration::from_secs(600),
            max_connections: 10_000,
            head_timeout: Duration::from_secs(120),
            unread_timeout: Duration::from_secs(60),
            text_threads: std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8)),
            max_buffered: 4 << 20,
            slow_client_timeout: Duration::from_secs(30),
            hung_client_timeout: Duration::from_secs(120),
        }
    }
}

/// What every handler sees, and whoever answers clients over shared memory.
pub struct App {
    pub(crate) config: HttpConfig,
    pub(crate) backend: Arc<dyn Backend>,
    pool: TextPool,
    in_flight: Arc<Semaphore>,
    /// Files decoded at once.
    decoding: Arc<Semaphore>,
    pub(crate) audio: audio::Counters,
    pub(crate) counters: counters::Counters,
    pub(crate) clients: crate::clients::Counters,
}

impl App {
    /// Most bytes of a request's body.
    fn body_limit(&self, route: &str) -> usize {
        if matches!(route, "/v1/audio/transcriptions" | "/v1/audio/translations") {
            self.config.max_upload
        } else {
            self.config.max_body
        }
    }

    /// The model that a request names.
    fn model(&self, name: &str) -> Result<Arc<ModelEntry>, ApiError> {
        models::find(&self.backend.models(), name)
    }
}

impl App {
    /// Starts the text threads; call once.
    pub fn new(config: HttpConfig, backend: Arc<dyn Backend>) -> Arc<Self> {
        let pool = TextPool::new(config.text_threads, config.max_in_flight.max(1))
            .expect("the system can start a few threads");
        Arc::new(Self {
            in_flight: Arc::new(Semaphore::new(
                config.max_in_flight.min(Semaphore::MAX_PERMITS),
            )),
            decoding: Arc::new(Semaphore::new(config.text_threads.max(1))),
            audio: audio::Counters::new(config.max_audio_memory),
            pool,
            counters: counters::Counters::default(),
            clients: crate::clients::Counters::default(),
            config,
            backend,
        })
    }
}

/// The whole HTTP surface.
pub fn router(app: Arc<App>) -> axum::Router {
    axum::Router::new()
        .route("/health", get(probes::health))
        .route("/ready", get(probes::ready))
        .route("/version", get(probes::version))
        .route("/metrics", get(metrics::metrics))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route(
            "/v1/chat/completions",
            post(chat_completions::chat_completions),
        )
        .route("/v1/completions", post(completions::completions))
        .route("/v1/audio/transcriptions", post(audio::transcriptions))
        .route("/v1/audio/translations", post(audio::translations))
        .route("/v1/audio/speech", post(speech::speech))
        .route("/v1/audio/voices", get(speech::voices))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(detokenize::detokenize))
        .fallback(guard::unknown_route)
        .method_not_allowed_fallback(guard::wrong_method)
        .layer(axum::middleware::from_fn_with_state(
            app.clone(),
            guard::guard,
        ))
        .with_state(app)
}
