//! A client's thread that beats, and watches the socket: a sleeper on a semaphore does not see that end.

use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags};

use crate::doorbell::poll_for;
use crate::endpoint::Endpoint;
use crate::error::{ArenaError, Result};
use crate::header::monotonic_ns;
use crate::heartbeat::BEAT_INTERVAL;
use crate::layout::header;
use crate::memory::Memory;

/// The front end says nothing after its attach message.
pub(crate) fn told_twice(_packet: &[u8]) -> Result<()> {
    Err(ArenaError::BadAttach(
        "the front end sent a second packet".into(),
    ))
}

/// Runs until the socket ends, from whichever side. Dropping it waits for that: close the endpoint first.
pub(crate) struct Watch(Option<JoinHandle<()>>);

impl Watch {
    pub fn start(endpoint: &Arc<Endpoint>) -> Result<Self> {
        let endpoint = Arc::clone(endpoint);
        let thread = std::thread::Builder::new()
            .name("denizen-watch".into())
            .spawn(move || {
                while !endpoint.gone() {
                    endpoint.own().store(header::BEAT, monotonic_ns());
                    endpoint.tend();
                    let mut fds = [PollFd::new(endpoint.socket(), PollFlags::IN)];
                    let looked = poll_for(&mut fds, Some(BEAT_INTERVAL))
                        .and_then(|_| endpoint.read_socket(told_twice));
                    if looked.is_err() {
                        // A link that cannot be watched is none.
                        endpoint.set_gone();
                    }
                }
                let _ = endpoint.bell_in().bell().ring();
            })
            .map_err(|e| ArenaError::io("cannot start the thread that watches the socket", e))?;
        Ok(Watch(Some(thread)))
    }

    /// Leave the thread alone: in a forked child it does not exist.
    pub fn forget(&mut self) {
        self.0 = None;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            let _ = thread.join();
        }
    }
}
