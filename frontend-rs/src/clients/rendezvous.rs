//! The socket that clients connect to: who may, and how they come to their arena pair.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use denizen_shm::{ArenaError, Config, Connection, HostEnd, Link, Listener};
use serde_json::{json, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{timeout_at, Instant};

use super::envelope::Message;
use super::session::{readable, CutOff, Session, Stop};
use crate::http::App;

/// How long a client may take for each step of its way to an arena.
const PATIENCE: Duration = Duration::from_secs(10);
/// Before the next try where the system has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// Takes clients until the server stops, then waits for all to have been dismissed.
pub struct Rendezvous {
    pub app: Arc<App>,
    pub listener: Listener,
    /// Most clients at once.
    pub limit: usize,
}

impl Rendezvous {
    pub async fn run(self, mut stop: Stop) {
        let mut sessions = JoinSet::new();
        if let Err(error) = self.accept(&mut sessions, &mut stop).await {
            tracing::error!("no more clients over shared memory: {error}");
        }
        drop(self.listener);
        while sessions.join_next().await.is_some() {}
    }

    async fn accept(&self, sessions: &mut JoinSet<()>, stop: &mut Stop) -> std::io::Result<()> {
        let places = Arc::new(Semaphore::new(self.limit));
        let waiting = readable(self.listener.as_fd())?;
        let mut number = 0;
        let stopping = stop.clone();
        loop {
            match self.listener.accept() {
                Ok(Some(connection)) => {
                    number += 1;
                    let visitor = Visitor {
                        app: self.app.clone(),
                        connection,
                        number,
                        limit: self.limit,
                        places: places.clone(),
                    };
                    sessions.spawn(visitor.receive(stopping.clone()));
                    continue;
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!("{error}");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            }
            tokio::select! {
                ready = waiting.readable() => ready?.clear_ready(),
                Some(_) = sessions.join_next() => {}
                _ = stop.wait_for(Option::is_some) => return Ok(()),
            }
        }
    }
}

/// Somebody who has connected.
struct Visitor {
    app: Arc<App>,
    connection: Connection,
    number: u64,
    limit: usize,
    /// Of clients: taken once a visitor has said that it is one, so that what knocks and says nothing, or nonsense, keeps
    /// none from it.
    places: Arc<Semaphore>,
}

/// Why a visitor is refused: the name in `/metrics`, and what it is told.
type Refusal = (&'static str, String);

/// Only the server's own user is served.
fn check_user(peer: u32, own: u32) -> Result<(), Refusal> {
    if peer == own {
        return Ok(());
    }
    let why = format!("this server belongs to user {own}, the client to user {peer}");
    Err(("user", why))
}

impl Visitor {
    async fn receive(self, mut stop: Stop) {
        let (app, number, pid) = (self.app.clone(), self.number, self.connection.pid());
        let (host, _place) = match self.invite().await {
            Ok(invited) => invited,
            Err((reason, why)) => {
                app.clients.refused(reason);
                return tracing::warn!("client {number} (pid {pid}) was refused: {why}");
            }
        };
        let _connected = Connected::new(&app);
        let outcome = match attached(&host).await {
            Ok(true) => {
                tracing::debug!("client {number} (pid {pid}) has attached");
                let session = Session::new(app.clone(), Arc::new(host));
                session.run(welcome(&app), &mut stop).await
            }
            Ok(false) => Ok(()),
            Err(cut) => Err(cut),
        };
        match outcome {
            Ok(()) => tracing::debug!("client {number} (pid {pid}) has gone"),
            Err(cut) => {
                app.clients.cut_off(cut.reason);
                tracing::warn!("client {number} (pid {pid}) was cut off: {}", cut.why);
            }
        }
    }

    /// Checks who it is and what it wants, and offers it a pair.
    async fn invite(self) -> Result<(HostEnd, OwnedSemaphorePermit), Refusal> {
        let (audio, place) = match self.ask().await {
            Ok(asked) => asked,
            Err((reason, why)) => {
                self.connection.refuse(&why);
                return Err((reason, why));
            }
        };
        let config = Config::client(format!("client {}", self.number), self.number, audio);
        let connection = self.connection;
        // To allocate a few MiB takes a moment.
        let offered = tokio::task::spawn_blocking(move || connection.offer(&config)).await;
        match offered {
            Ok(Ok(host)) => Ok((host, place)),
            Ok(Err((error, connection))) => {
                let reason = match error {
                    ArenaError::NoSpace { .. } => "memory",
                    // Most likely it has gone.
                    _ => "hello",
                };
                let why = error.to_string();
                connection.refuse(&why);
                Err((reason, why))
            }
            Err(error) => Err(("hello", error.to_string())),
        }
    }

    async fn ask(&self) -> Result<(bool, OwnedSemaphorePermit), Refusal> {
        check_user(self.connection.uid(), denizen_shm::user())?;
        let fault = |error: std::io::Error| ("hello", error.to_string());
        let waiting = readable(self.connection.as_fd()).map_err(fault)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.connection.hello() {
                Ok(Some(hello)) => return Ok((hello.audio, self.place()?)),
                Ok(None) => {}
                Err(error @ ArenaError::AbiMismatch { .. }) => {
                    return Err(("version", error.to_string()))
                }
                Err(error) => return Err(("hello", error.to_string())),
            }
            match timeout_at(deadline, waiting.readable()).await {
                Ok(ready) => ready.map_err(fault)?.clear_ready(),
                Err(_) => {
                    let seconds = PATIENCE.as_secs();
                    return Err(("hello", format!("nothing came within {seconds} s")));
                }
            }
        }
    }

    fn place(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        self.places.clone().try_acquire_owned().map_err(|_| {
            let why = format!(
                "{} clients are connected already; close one, or start the server with a higher --shm-clients",
                self.limit
            );
            ("clients", why)
        })
    }
}

/// Waits for a client to attach; false if it went instead.
async fn attached(host: &HostEnd) -> Result<bool, CutOff> {
    let cut = |why: String| CutOff {
        reason: "attach",
        why,
    };
    let waiting = readable(host.socket_fd())?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match host.poll_socket().map_err(|error| cut(error.to_string()))? {
            Link::Up => return Ok(true),
            Link::Gone => return Ok(false),
            Link::Waiting => {}
        }
        match timeout_at(deadline, waiting.readable()).await {
            Ok(ready) => ready?.clear_ready(),
            Err(_) => {
                let seconds = PATIENCE.as_secs();
                return Err(cut(format!("it did not attach within {seconds} s")));
            }
        }
    }
}

/// Counted for as long as it lives.
struct Connected(Arc<App>);

impl Connected {
    fn new(app: &Arc<App>) -> Self {
        app.clients.connected.fetch_add(1, Ordering::Relaxed);
        app.clients.total.fetch_add(1, Ordering::Relaxed);
        Self(app.clone())
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        let connected: &AtomicU64 = &self.0.clients.connected;
        connected.fetch_sub(1, Ordering::Relaxed);
    }
}

fn welcome(app: &App) -> Message {
    let models: Vec<Value> = app
        .backend
        .models()
        .iter()
        .map(|model| {
            let mut map = json!({
                "id": model.name,
                "kind": model.kind(),
                "context": model.context,
                "vocab": model.vocab,
            });
            if let Some(speaker) = model.speaker() {
                map["sample_rate"] = speaker.sample_rate.into();
                map["voices"] = json!(speaker.voices);
            }
            map
        })
        .collect();
    let config = &app.config;
    let limits = json!({
        "max_in_flight": config.max_in_flight,
        "max_body": config.max_body,
        "max_upload": config.max_upload,
        "max_audio_s": config.max_audio.as_secs_f64(),
        "request_timeout_s": config.request_timeout.as_secs_f64(),
        "max_buffered": config.max_buffered,
        "slow_client_timeout_s": config.slow_client_timeout.as_secs_f64(),
    });
    Message::welcome(env!("CARGO_PKG_VERSION"), models, limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_servers_own_user_is_served() {
        assert_eq!(check_user(1000, 1000), Ok(()));
        for (peer, own) in [(1001, 1000), (0, 1000), (1000, 0)] {
            let (reason, why) = check_user(peer, own).unwrap_err();
            assert_eq!(reason, "user");
            assert!(why.contains(&format!("user {own}, the client to user {peer}")));
        }
    }
}
