//! The task that drains a worker's arena into the router.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use denizen_shm::{ArenaError, HostEnd, Link};
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;
use tokio::sync::mpsc;

use crate::route::envelope::decode;
use crate::route::{Notice, Router};

/// Messages handled before other tasks get a turn.
const SLICE: usize = 256;

/// Why a link ended.
#[derive(Debug)]
pub enum LinkEnd {
    /// The worker has closed its end or died.
    Gone,
    /// It sent what no worker of this version sends, or could not attach.
    Broken(String),
}

/// Drains until the worker has gone. Notices go to `notices`, and `heard` is told of every batch.
pub async fn drain(
    host: Arc<HostEnd>,
    router: Router,
    worker: usize,
    epoch: u64,
    notices: mpsc::UnboundedSender<Notice>,
    heard: Arc<std::sync::Mutex<Instant>>,
) -> LinkEnd {
    let mut receiver = Receiver {
        host,
        router,
        worker,
        epoch,
        notices,
        heard,
    };
    match receiver.run().await {
        Ok(()) => LinkEnd::Gone,
        Err(why) => LinkEnd::Broken(why),
    }
}

struct Receiver {
    host: Arc<HostEnd>,
    router: Router,
    worker: usize,
    epoch: u64,
    notices: mpsc::UnboundedSender<Notice>,
    heard: Arc<std::sync::Mutex<Instant>>,
}

impl Receiver {
    async fn run(&mut self) -> Result<(), String> {
        let host = self.host.clone();
        // The owned descriptors stay open and the same, which is all that the unsafe successor of this call asks for.
        #[allow(deprecated)]
        let watch = |fd: std::os::fd::BorrowedFd<'_>| -> io::Result<_> {
            AsyncFd::with_interest(fd.try_clone_to_owned()?, Interest::READABLE)
        };
        let text = |error: io::Error| format!("its arena cannot be waited for: {error}");
        let bell = watch(host.doorbell_fd()).map_err(text)?;
        let socket = watch(host.socket_fd()).map_err(text)?;
        loop {
            if self.take_some()? {
                tokio::task::yield_now().await;
                continue;
            }
            if !host.arm().map_err(said)? {
                continue;
            }
            let link = tokio::select! {
                ready = bell.readable() => {
                    // First the doorbell, then tokio's note of it: a ring in between is not lost.
                    host.disarm().map_err(said)?;
                    ready.map_err(text)?.clear_ready();
                    continue;
                }
                ready = socket.readable() => {
                    host.disarm().map_err(said)?;
                    let link = host.poll_socket().map_err(said)?;
                    ready.map_err(text)?.clear_ready();
                    link
                }
            };
            if link == Link::Gone {
                // What it published before it went.
                while self.take_some()? {}
                return Ok(());
            }
        }
    }

    /// Handles a slice of what has come; false if there was nothing.
    fn take_some(&mut self) -> Result<bool, String> {
        let mut any = false;
        for _ in 0..SLICE {
            let Some(message) = self.host.try_recv().map_err(said)? else {
                break;
            };
            any = true;
            let mut envelope = decode(&message.envelope)
                .map_err(|error| format!("it sent a malformed message: {error}"))?;
            envelope.attachment = message.attachment;
            if let Some(notice) = self.router.receive(self.worker, self.epoch, envelope) {
                // The life that listens outlives this task.
                let _ = self.notices.send(notice);
            }
        }
        if any {
            *self
                .heard
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner) = Instant::now();
        }
        Ok(any)
    }
}

fn said(error: ArenaError) -> String {
    error.to_string()
}
