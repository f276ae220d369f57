//! A worker's or a client's end of a pair: a worker attaches over the socket it inherited, a client by an
//! [`crate::Invitation`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{fstat, FileType};
use rustix::io::FdFlags;

use crate::doorbell::{Doorbell, EventDoorbell};
use crate::endpoint::{Ear, Endpoint, Parts};
use crate::error::{ArenaError, PeerInfo, Result};
use crate::failpoint::failpoint;
use crate::header::{self, Role};
use crate::heartbeat::{set_phase, Beat, Phase};
use crate::inbox::{Inbox, Protocol};
use crate::layout::{Layout, CLASS_SIZES, HEADER_LEN};
use crate::mapping::Mapping;
use crate::object::{check, open};
use crate::receiver::Message;
use crate::rendezvous::{send_packet, wait_for_packet, Answer, Attach};
use crate::stats::Stats;
use crate::sys::take_inherited;
use crate::watch::{told_twice, Watch};

/// How long [`PeerEnd::attach`] waits for the attach message, which a front end sends before it starts the process.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);
pub(crate) const HOST_NAME: &str = "the front end";

/// All methods may be called from any thread.
pub struct PeerEnd {
    endpoint: Arc<Endpoint>,
    alive: Mutex<Option<Alive>>,
}

impl PeerEnd {
    /// Attach over `socket`, the end that [`crate::ChildEnd`] was. The heartbeat starts, in phase `load`.
    ///
    /// What goes wrong is also told to the front end, where [`crate::HostEnd::poll_socket`] reports it.
    pub fn attach(socket: OwnedFd) -> Result<PeerEnd> {
        let stat = fstat(&socket).map_err(|e| ArenaError::io("bad attach socket", e))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return Err(ArenaError::BadAttach(
                "the inherited file descriptor is not a socket: was this process started by the front end?"
                    .into(),
            ));
        }
        // Inherited without the flag; processes that this one starts must not keep the socket open.
        rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC)
            .map_err(|e| ArenaError::io("bad attach socket", e))?;
        let deadline = Instant::now() + ATTACH_TIMEOUT;
        let (packet, fds) = wait_for_packet(&socket, deadline, HOST_NAME)?;
        let opened = (|| {
            let attach = Attach::decode(&packet)?;
            let doorbells = <[OwnedFd; 2]>::try_from(fds).map_err(|fds| {
                ArenaError::BadAttach(format!("{} doorbells came with it, not 2", fds.len()))
            })?;
            let requests = open(&attach.requests, false)?;
            let results = open(&attach.results, true)?;
            let pair = Pair::map(&attach, requests.as_fd(), results.as_fd())?;
            Ok((pair, doorbells.map(EventDoorbell::from_fd)))
        })();
        let (pair, [bell_in, bell_out]) =
            opened.inspect_err(|error| tell_refused(&socket, error))?;
        pair.attached(
            Ear::Event(bell_in),
            Box::new(bell_out),
            socket,
            |endpoint| {
                let tended = Arc::downgrade(endpoint);
                let tend = move || {
                    if let Some(endpoint) = tended.upgrade() {
                        endpoint.tend();
                    }
                };
                Beat::start(Arc::clone(endpoint.own()), tend).map(Alive::Beating)
            },
        )
    }

    /// [`PeerEnd::attach`] with the number of an inherited file descriptor, which this takes over.
    pub fn attach_inherited(fd: RawFd) -> Result<PeerEnd> {
        PeerEnd::attach(take_inherited(fd)?)
    }

    /// Publish one message. Errors as [`crate::HostEnd::send`].
    pub fn send(&self, envelope: &[u8], attachment: Option<&[u8]>) -> Result<()> {
        self.endpoint.send(envelope, attachment)
    }

    /// Take the next message if there is one.
    pub fn try_recv(&self) -> Result<Option<Message>> {
        self.endpoint.try_recv()
    }

    /// Wait for messages. Empty on timeout, [`PeerEnd::wake`] or a signal. [`ArenaError::PeerGone`] once the front end
    /// has gone and everything it published has been received.
    pub fn recv(&self, max: usize, timeout: Option<Duration>) -> Result<Vec<Message>> {
        self.endpoint
            .recv(max, timeout, || self.endpoint.read_socket(told_twice))
    }

    /// Boxes in which what comes is sorted by call, for use in place of [`PeerEnd::recv`]. To be made once.
    pub fn inbox(&self, protocol: Protocol) -> Arc<Inbox> {
        let inbox = Arc::new(Inbox::new(self.endpoint.clone(), protocol));
        self.endpoint.set_inbox(&inbox);
        inbox
    }

    /// Whether the front end has gone. What it published before can still be received.
    pub fn gone(&self) -> bool {
        self.endpoint.gone()
    }

    /// Make a blocked [`PeerEnd::recv`] return, or the next one if none is blocked.
    pub fn wake(&self) -> Result<()> {
        self.endpoint.wake()
    }

    /// Say what the engine does from now on.
    pub fn set_phase(&self, phase: Phase) -> Result<()> {
        self.endpoint.check_usable()?;
        set_phase(self.endpoint.own(), phase);
        Ok(())
    }

    /// The front end and how much of what was sent it has not taken.
    pub fn peer(&self) -> PeerInfo {
        self.endpoint.peer_info()
    }

    /// Longest attachment that leaves room in the slab for other messages: a slot of the largest class there is.
    pub fn part_bytes(&self) -> usize {
        let slots = self.endpoint.layout().geometry.slots;
        let largest = slots.iter().rposition(|count| *count > 0);
        largest.map_or(0, |class| CLASS_SIZES[class])
    }

    /// Counters and fill levels.
    pub fn stats(&self) -> Stats {
        self.endpoint.stats()
    }

    /// Stop beating, publish nothing more, let the front end see the end of file.
    pub fn close(&self) {
        let alive = self
            .alive
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let alive = match alive {
            // In a forked child the threads do not exist.
            Some(alive) if self.endpoint.forked() => return alive.forget(),
            // It beats no longer than it is there.
            Some(Alive::Beating(beat)) => {
                drop(beat);
                None
            }
            other => other,
        };
        self.endpoint.close();
        // A watch ends with its socket.
        drop(alive);
    }
}

impl Drop for PeerEnd {
    fn drop(&mut self) {
        self.close();
    }
}

/// The thread that shows signs of life.
pub(crate) enum Alive {
    Beating(Beat),
    Watching(Watch),
}

impl Alive {
    fn forget(self) {
        match self {
            Alive::Beating(mut beat) => beat.forget(),
            Alive::Watching(mut watch) => watch.forget(),
        }
    }
}

/// Tell the front end why this process does not attach.
pub(crate) fn tell_refused(socket: &OwnedFd, error: &ArenaError) {
    let reason = error.to_string();
    // If it has gone, there is nobody to tell.
    let _ = send_packet(socket, &Answer::Refused { reason }.encode());
}

/// Both objects, mapped and checked.
pub(crate) struct Pair {
    own: Mapping,
    layout: Layout,
    peer: Mapping,
    peer_layout: Layout,
    epoch: u64,
}

impl Pair {
    /// `results` must be open for writing; neither descriptor is kept.
    pub fn map(attach: &Attach, requests: BorrowedFd<'_>, results: BorrowedFd<'_>) -> Result<Pair> {
        let (own, layout) = map_object(&attach.results, results, Role::Results, attach)?;
        let (peer, peer_layout) = map_object(&attach.requests, requests, Role::Requests, attach)?;
        let slots = (
            layout.geometry.slot_count(),
            peer_layout.geometry.slot_count(),
        );
        if (peer_layout.geometry.returns, layout.geometry.returns) != slots {
            return Err(ArenaError::BadObject {
                object: attach.results.clone(),
                reason: "its return ring does not fit the peer's slab".into(),
            });
        }
        Ok(Pair {
            own,
            layout,
            peer,
            peer_layout,
            epoch: attach.identity.epoch,
        })
    }

    /// Take possession, show signs of life, and answer *attached*.
    pub fn attached(
        self,
        bell_in: Ear,
        bell_out: Box<dyn Doorbell>,
        socket: OwnedFd,
        live: impl FnOnce(&Arc<Endpoint>) -> Result<Alive>,
    ) -> Result<PeerEnd> {
        header::claim(&self.own);
        set_phase(&self.own, Phase::Load);
        failpoint("peer.opened");
        let endpoint = Arc::new(Endpoint::new(Parts {
            peer_name: HOST_NAME.into(),
            own: self.own,
            peer: self.peer,
            layout: self.layout,
            peer_layout: self.peer_layout,
            epoch: self.epoch,
            bell_in,
            bell_out,
            socket,
        }));
        endpoint.note_peer_pid();
        let alive = live(&endpoint).inspect_err(|error| tell_refused(endpoint.socket(), error))?;
        let peer = PeerEnd {
            endpoint,
            alive: Mutex::new(Some(alive)),
        };
        let pid = std::process::id();
        send_packet(peer.endpoint.socket(), &Answer::Attached { pid }.encode())?;
        failpoint("peer.attached");
        Ok(peer)
    }
}

fn map_object(
    name: &str,
    fd: BorrowedFd<'_>,
    role: Role,
    attach: &Attach,
) -> Result<(Mapping, Layout)> {
    let len = check(name, fd)?;
    if len < HEADER_LEN {
        return Err(ArenaError::BadObject {
            object: name.to_string(),
            reason: format!("{len} bytes are too short for a header"),
        });
    }
    let mapping = Mapping::new(fd, len, role == Role::Results)?;
    let layout = header::read(&mapping, len, name, role, &attach.identity)?;
    Ok((mapping, layout))
}
