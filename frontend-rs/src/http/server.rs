//! The HTTP server's socket: takes connections, bounds them, and lets them go.
//!
//! A connection takes a file descriptor whether it asks for something or not, and the same descriptors start workers and
//! open their arenas. So connections get a share of them; those that ask nothing are closed in time, and at once where
//! others wait; and the kernel gives up peers that have vanished or do not read.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{service_fn, Service};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{watch, OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinHandle, JoinSet};

use super::{router, App};

/// After a connection that could not be taken; and what a new connection, or one that has to go, gets before it is cut.
const PAUSE: Duration = Duration::from_secs(1);
/// Silence after which the kernel asks a peer whether it is still there.
const SILENCE_S: u32 = 60;

/// A running server.
pub struct Server {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Server {
    pub fn start(listener: TcpListener, app: Arc<App>) -> Self {
        let (stop, stopping) = watch::channel(false);
        let limit = app.config.max_connections.clamp(1, Semaphore::MAX_PERMITS);
        let taker = Taker {
            listener,
            head_timeout: app.config.head_timeout,
            unread_timeout: app.config.unread_timeout,
            service: TowerToHyperService::new(router(app)),
            places: Arc::new(Semaphore::new(limit)),
            crowded: watch::Sender::new(()),
            stopping,
        };
        Self {
            stop,
            task: tokio::spawn(taker.run()),
        }
    }

    /// Takes no more connections, and gives open ones `patience` to end.
    pub async fn stop(mut self, patience: Duration) {
        self.stop.send_replace(true);
        let _ = tokio::time::timeout(patience, &mut self.task).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Taker {
    listener: TcpListener,
    head_timeout: Duration,
    unread_timeout: Duration,
    service: TowerToHyperService<axum::Router>,
    places: Arc<Semaphore>,
    /// Told when a connection waits for a place.
    crowded: watch::Sender<()>,
    stopping: watch::Receiver<bool>,
}

impl Taker {
    /// Until it is to stop; then until all connections have ended.
    async fn run(self) {
        let mut connections = JoinSet::new();
        let mut stopping = self.stopping.clone();
        loop {
            let taken = tokio::select! {
                taken = self.take() => taken,
                // An error says that nobody can stop it any more.
                _ = stopping.wait_for(|stop| *stop) => break,
                Some(_) = connections.join_next() => continue,
            };
            match taken {
                Ok((stream, place)) => {
                    self.set_up(&stream);
                    connections.spawn(self.serve(stream, place));
                }
                // The peer was gone before it was taken.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::error!("a connection cannot be taken: {error}");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        drop(self.listener);
        while connections.join_next().await.is_some() {}
    }

    /// The next connection, and a place for it.
    async fn take(&self) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
        // First the place: what cannot be served yet waits where it takes no descriptor of ours.
        let place = self.place().await;
        let (stream, _) = self.listener.accept().await?;
        Ok((stream, place))
    }

    async fn place(&self) -> OwnedSemaphorePermit {
        loop {
            let place = self.places.clone().acquire_owned();
            if self.places.available_permits() == 0 {
                self.crowded.send_replace(());
            }
            if let Ok(Ok(place)) = tokio::time::timeout(PAUSE, place).await {
                return place;
            }
        }
    }

    fn set_up(&self, stream: &TcpStream) {
        let unread_ms = u32::try_from(self.unread_timeout.as_millis()).unwrap_or(u32::MAX);
        // A token is a small write; waiting to fill a packet would hold it back.
        let set = stream.set_nodelay(true).and_then(|()| {
            setsockopt(stream, sockopt::TcpUserTimeout, &unread_ms)?;
            setsockopt(stream, sockopt::KeepAlive, &true)?;
            setsockopt(stream, sockopt::TcpKeepIdle, &SILENCE_S)?;
            Ok(())
        });
        if let Err(error) = set {
            tracing::debug!("a connection's options: {error}");
        }
    }

    fn serve(
        &self,
        stream: TcpStream,
        place: OwnedSemaphorePermit,
    ) -> impl Future<Output = ()> + Send + 'static {
        let router = self.service.clone();
        let (mut crowded, mut stopping) = (self.crowded.subscribe(), self.stopping.clone());
        let head_timeout = self.head_timeout;
        async move {
            let _place = place;
            let begun = Instant::now();
            let asked = AtomicBool::new(false);
            let service = service_fn(|request: Request<Incoming>| {
                asked.store(true, Ordering::Relaxed);
                router.call(request)
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(head_timeout)
                .serve_connection(TokioIo::new(stream), service);
            let mut connection = pin!(connection);
            loop {
                tokio::select! {
                    _ = connection.as_mut() => return,
                    // One that has just come gets the time to ask.
                    _ = crowded.changed() => if begun.elapsed() < PAUSE { continue },
                    _ = stopping.wait_for(|stop| *stop) => {}
                }
                break;
            }
            // What it is being asked is still answered; if that is nothing, it ends here.
            connection.as_mut().graceful_shutdown();
            // Half a question counts as none.
            while tokio::time::timeout(PAUSE, connection.as_mut())
                .await
                .is_err()
                && asked.load(Ordering::Relaxed)
            {}
        }
    }
}
