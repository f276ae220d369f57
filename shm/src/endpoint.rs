//! What both ends of a pair have in common: send, receive, sleep and wake, notice the other's death.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::doorbell::{poll_for, Doorbell, EventDoorbell, SemaphoreDoorbell};
use crate::error::{ArenaError, PeerInfo, Result};
use crate::header::{monotonic_ns, state};
use crate::heartbeat::{look, Heartbeat};
use crate::inbox::Inbox;
use crate::layout::{header, Layout};
use crate::mapping::Mapping;
use crate::memory::Memory;
use crate::receiver::{Message, Receiver};
use crate::rendezvous::{receive, Packet};
use crate::sender::{Sender, Unsent};
use crate::stats::{count, Counters, Stats};

/// Whether the peer is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Created; the peer has not attached yet.
    Waiting,
    Up,
    /// The socket reached its end: the peer has closed or died. What it published before can still be received.
    Gone,
}

type Shared = Arc<Mapping>;

/// Longest look at the ring before a sleep. The cost of a wake-up on an idle processor of a virtual machine is about
/// twice that.
const SPIN_NS: u64 = 20_000;
/// A side whose last message is older does not spin: an idle pair costs nothing.
const RECENTLY_NS: u64 = 1_000_000;

/// The doorbell that this side waits for.
pub(crate) enum Ear {
    /// Together with the socket.
    Event(EventDoorbell),
    /// Alone. Whoever watches the socket posts it when that ends.
    Semaphore(SemaphoreDoorbell),
}

impl Ear {
    pub fn bell(&self) -> &dyn Doorbell {
        match self {
            Ear::Event(bell) => bell,
            Ear::Semaphore(bell) => bell,
        }
    }
}

/// One end of a pair. The front end's [`crate::HostEnd`] and the worker's [`crate::PeerEnd`] are built on it.
pub(crate) struct Endpoint {
    /// The peer's name in messages.
    peer_name: String,
    own: Shared,
    peer: Shared,
    layout: Layout,
    sender: Mutex<Sender<Shared, Shared>>,
    receiver: Mutex<Receiver<Shared, Shared>>,
    /// Rung by the peer.
    bell_in: Ear,
    /// Rings the peer.
    bell_out: Box<dyn Doorbell>,
    socket: OwnedFd,
    gone: AtomicBool,
    woken: AtomicBool,
    closed: AtomicBool,
    /// When [`Endpoint::recv`] last returned messages, by the monotonic clock.
    last_taken: AtomicU64,
    peer_pid: AtomicU32,
    owner: u32,
    counters: Counters,
    /// Where what comes is sorted, if it is.
    inbox: OnceLock<Weak<Inbox>>,
}

pub(crate) struct Parts {
    pub peer_name: String,
    pub own: Mapping,
    pub peer: Mapping,
    pub layout: Layout,
    pub peer_layout: Layout,
    pub epoch: u64,
    pub bell_in: Ear,
    pub bell_out: Box<dyn Doorbell>,
    pub socket: OwnedFd,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic cannot leave sender or receiver half changed in a way that their own checks would not find.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Endpoint {
    pub fn new(parts: Parts) -> Self {
        let (own, peer) = (Arc::new(parts.own), Arc::new(parts.peer));
        let sender = Sender::new(
            Arc::clone(&own),
            Arc::clone(&peer),
            parts.layout,
            parts.peer_layout,
            parts.epoch,
        );
        let receiver = Receiver::new(
            Arc::clone(&own),
            Arc::clone(&peer),
            parts.layout,
            parts.peer_layout,
            parts.epoch,
        );
        Endpoint {
            peer_name: parts.peer_name,
            own,
            peer,
            layout: parts.layout,
            sender: Mutex::new(sender),
            receiver: Mutex::new(receiver),
            bell_in: parts.bell_in,
            bell_out: parts.bell_out,
            socket: parts.socket,
            gone: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            last_taken: AtomicU64::new(0),
            peer_pid: AtomicU32::new(0),
            owner: std::process::id(),
            counters: Counters::default(),
            inbox: OnceLock::new(),
        }
    }

    pub fn set_inbox(&self, inbox: &Arc<Inbox>) {
        let _ = self.inbox.set(Arc::downgrade(inbox));
    }

    /// What is to be done at every beat besides beating.
    pub fn tend(&self) {
        if let Some(inbox) = self.inbox.get().and_then(Weak::upgrade) {
            inbox.tend();
        }
    }

    pub fn own(&self) -> &Shared {
        &self.own
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub fn bell_in(&self) -> &Ear {
        &self.bell_in
    }

    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub fn gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    pub fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    pub fn peer_pid(&self) -> u32 {
        self.peer_pid.load(Ordering::Relaxed)
    }

    /// Take the peer's pid from its object's header: it is there when the object's owner came first.
    pub fn note_peer_pid(&self) {
        self.set_peer_pid(self.peer.load(header::WRITER_PID) as u32);
    }

    pub fn set_peer_pid(&self, pid: u32) {
        self.peer_pid.store(pid, Ordering::Relaxed);
    }

    pub fn heartbeat(&self) -> Heartbeat {
        look(&self.peer)
    }

    /// In a forked child: this arena is not the child's to touch.
    pub fn forked(&self) -> bool {
        self.owner != std::process::id()
    }

    pub fn check_usable(&self) -> Result<()> {
        if self.forked() {
            return Err(ArenaError::Forked { owner: self.owner });
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(ArenaError::Closed);
        }
        Ok(())
    }

    /// Who the peer is and how it does, for an error message.
    pub fn peer_info(&self) -> PeerInfo {
        PeerInfo {
            name: self.peer_name.clone(),
            pid: self.peer_pid(),
            depth: self
                .own
                .load(header::TAIL)
                .wrapping_sub(self.peer.load(header::HEAD)),
            beat_age: self.heartbeat().beat_age,
        }
    }

    pub fn peer_gone(&self) -> ArenaError {
        let why = if self.peer.load(header::STATE) == state::CLOSED {
            "it closed the arena"
        } else {
            "its socket reached end of file without a close, so it died or was killed"
        };
        ArenaError::PeerGone {
            peer: self.peer_info(),
            why,
        }
    }

    pub fn send(&self, envelope: &[u8], attachment: Option<&[u8]>) -> Result<()> {
        self.check_usable()?;
        if self.gone() {
            return Err(self.peer_gone());
        }
        let sent = lock(&self.sender).send(envelope, attachment);
        let ring = sent.map_err(|unsent| self.explain(unsent))?;
        count(&self.counters.sent, 1);
        let len = envelope.len() + attachment.map_or(0, <[u8]>::len);
        count(&self.counters.bytes_sent, len as u64);
        if ring {
            count(&self.counters.rings, 1);
            self.bell_out.ring()?;
        }
        Ok(())
    }

    fn explain(&self, unsent: Unsent) -> ArenaError {
        match unsent {
            Unsent::RingFull { capacity } => {
                count(&self.counters.ring_full, 1);
                ArenaError::RingFull {
                    peer: self.peer_info(),
                    capacity,
                }
            }
            Unsent::SlabFull { need, free, total } => {
                count(&self.counters.slab_full, 1);
                ArenaError::SlabFull {
                    peer: self.peer_info(),
                    need,
                    free,
                    total,
                }
            }
            Unsent::TooLarge { len, max } => ArenaError::TooLarge { len, max },
            Unsent::Corrupt(what) => ArenaError::Corrupt(what),
        }
    }

    pub fn try_recv(&self) -> Result<Option<Message>> {
        self.check_usable()?;
        self.take(&mut lock(&self.receiver))
    }

    fn take(&self, receiver: &mut Receiver<Shared, Shared>) -> Result<Option<Message>> {
        let message = receiver.try_recv()?;
        if let Some(message) = &message {
            count(&self.counters.received, 1);
            let len = message.envelope.len() + message.attachment.as_ref().map_or(0, Vec::len);
            count(&self.counters.bytes_received, len as u64);
        }
        Ok(message)
    }

    pub fn arm(&self) -> Result<bool> {
        self.check_usable()?;
        let armed = lock(&self.receiver).arm()?;
        if armed {
            count(&self.counters.sleeps, 1);
        }
        Ok(armed)
    }

    /// Withdraw the parked flag and forget the rings. Every message sent so far is found by the next look at the ring.
    pub fn disarm(&self) -> Result<()> {
        lock(&self.receiver).disarm();
        self.bell_in.bell().clear()
    }

    /// Wait for messages: at least one, unless `timeout` passes, [`Endpoint::wake`] is called or a signal arrives
    /// (then none). `on_socket` is called when the socket has something to say.
    pub fn recv(
        &self,
        max: usize,
        timeout: Option<Duration>,
        on_socket: impl Fn() -> Result<()>,
    ) -> Result<Vec<Message>> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut receiver = lock(&self.receiver);
        loop {
            self.check_usable()?;
            let gone = self.gone();
            let mut messages = Vec::new();
            while messages.len() < max {
                match self.take(&mut receiver)? {
                    Some(message) => messages.push(message),
                    None => break,
                }
            }
            if !messages.is_empty() {
                self.last_taken.store(monotonic_ns(), Ordering::Relaxed);
                return Ok(messages);
            }
            if self.woken.swap(false, Ordering::AcqRel) {
                return Ok(messages);
            }
            // `gone` was read before the ring was drained, and a dead peer publishes nothing more.
            if gone {
                return Err(self.peer_gone());
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) && timeout != Some(Duration::ZERO) {
                return Ok(messages);
            }
            if timeout != Some(Duration::ZERO) && self.spin(&receiver)? {
                continue;
            }
            if !receiver.arm()? {
                continue;
            }
            count(&self.counters.sleeps, 1);
            let (ready, socket_ready) = self.sleep(left);
            receiver.disarm();
            self.bell_in.bell().clear()?;
            if socket_ready {
                on_socket()?;
            }
            if !ready? {
                // Timeout or signal: one last look, then back to the caller.
                if let Some(message) = self.take(&mut receiver)? {
                    messages.push(message);
                }
                return Ok(messages);
            }
        }
    }

    /// Sleep until rung, at most `left`. Whether something ended it in time, and whether the socket did.
    fn sleep(&self, left: Option<Duration>) -> (Result<bool>, bool) {
        match &self.bell_in {
            Ear::Event(bell) => {
                let mut fds = [
                    PollFd::new(bell, PollFlags::IN),
                    PollFd::new(&self.socket, PollFlags::IN),
                ];
                let ready = poll_for(&mut fds, left);
                (ready, !fds[1].revents().is_empty())
            }
            Ear::Semaphore(bell) => (bell.wait(left), false),
        }
    }

    /// Look at the ring for a moment before sleeping, but only while messages keep coming: to be woken on an idle
    /// processor takes longer than the peer's answer. True: a message is there.
    fn spin(&self, receiver: &Receiver<Shared, Shared>) -> Result<bool> {
        let start = monotonic_ns();
        if start.saturating_sub(self.last_taken.load(Ordering::Relaxed)) > RECENTLY_NS {
            return Ok(false);
        }
        loop {
            for _ in 0..16 {
                if receiver.depth()? > 0 {
                    return Ok(true);
                }
                std::hint::spin_loop();
            }
            if self.woken.load(Ordering::Relaxed) || monotonic_ns().saturating_sub(start) > SPIN_NS
            {
                return Ok(false);
            }
        }
    }

    /// Make a blocked [`Endpoint::recv`] of this process return, or the next one if none is blocked.
    pub fn wake(&self) -> Result<()> {
        self.woken.store(true, Ordering::Release);
        self.bell_in.bell().ring()
    }

    /// Read the socket until it has nothing more to say, as an edge-triggered poll needs. Packets go to `on_packet`; end
    /// of file marks the peer as gone.
    pub fn read_socket(&self, on_packet: impl Fn(&[u8]) -> Result<()>) -> Result<()> {
        loop {
            match receive(&self.socket)? {
                Packet::None => return Ok(()),
                Packet::EndOfFile => {
                    self.set_gone();
                    return Ok(());
                }
                Packet::Data(bytes, _fds) => on_packet(&bytes)?,
            }
        }
    }

    /// Publish nothing more, and make blocked calls return.
    pub fn close(&self) {
        if self.forked() || self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.own.store(header::STATE, state::CLOSED);
        let _ = self.bell_in.bell().ring();
        // The peer learns it from the socket, which a blocked recv may keep open a moment longer.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    pub fn stats(&self) -> Stats {
        let mut sender = lock(&self.sender);
        // Free what the peer has handed back, so that the figures are of now. A corrupt peer is reported by `send`.
        let _ = sender.take_returns();
        Stats {
            bad_returns: sender.bad_returns(),
            out_depth: sender.depth().unwrap_or(u64::MAX),
            in_depth: self
                .peer
                .load(header::TAIL)
                .wrapping_sub(self.own.load(header::HEAD)),
            slots_in_use: sender.slab().in_use() as u64,
            slab_free: sender.slab().free_bytes(),
            slab_total: self.layout.slab_bytes(),
            ..self.counters.stats()
        }
    }
}
