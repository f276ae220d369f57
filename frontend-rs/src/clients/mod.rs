//! Clients on this machine, over shared memory: `docs/design/sdk.md`.
//!
//! # Layout
//!
//! `place` (run directory, names) → `rendezvous` (who connects, and gets an arena pair) → `session` (one client: what it
//! says, what it gets) → `envelope` and `value` (msgpack) → `upload` (bodies and audio in parts) → `call`, `sound` and
//! `speech` (the work of the HTTP endpoints) → `outbox` (output, bounded). `counters` is for `/metrics`.

mod call;
mod counters;
mod envelope;
mod outbox;
mod place;
mod rendezvous;
mod session;
mod sound;
mod speech;
mod upload;
mod value;

pub use counters::Counters;
pub use place::DEFAULT_NAME;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use denizen_shm::{ArenaError, Listener};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::http::App;
use rendezvous::Rendezvous;

/// The rendezvous of a running server.
pub struct Clients {
    stop: watch::Sender<Option<Instant>>,
    task: JoinHandle<()>,
    path: PathBuf,
}

/// The socket of a server, before it takes anybody.
pub struct Place(Listener);

impl Place {
    /// Takes the name `name` in the run directory of this process's user. An error is one line that names the flag.
    pub fn take(name: &str) -> Result<Self, String> {
        let uid = denizen_shm::user();
        let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let folder = place::run_dir(variable, uid);
        let socket = place::socket(&folder, name)?;
        place::make(&folder, uid)?;
        Self::at(&socket).map_err(|error| match error {
            ArenaError::NameTaken { path } => format!(
                "a server that lives has the name '{name}' ({path}); give this one another with --shm-name, or none with \
                 --no-shm"
            ),
            other => format!("--shm-name {name}: {other}"),
        })
    }

    /// Listens at a path of the caller's choice.
    pub fn at(socket: &Path) -> Result<Self, ArenaError> {
        Listener::bind(socket).map(Self)
    }
}

impl Clients {
    /// Takes clients, at most `limit` at once.
    pub fn start(app: Arc<App>, place: Place, limit: usize) -> Self {
        let (stop, stopped) = watch::channel(None);
        let path = place.0.path().to_owned();
        let rendezvous = Rendezvous {
            app,
            listener: place.0,
            limit,
        };
        Self {
            stop,
            task: tokio::spawn(rendezvous.run(stopped)),
            path,
        }
    }

    /// Where clients connect.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes no more clients, and dismisses each when its calls have ended, at the latest after `patience`.
    pub async fn stop(mut self, patience: Duration) {
        self.stop.send_replace(Some(Instant::now() + patience));
        // Sessions look at the time by themselves.
        let late = patience + Duration::from_secs(1);
        if tokio::time::timeout(late, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}
