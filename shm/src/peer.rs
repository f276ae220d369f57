//! The worker's end of a pair: attaches over the socket it inherited, beats while it lives.

use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{fstat, FileType};
use rustix::io::FdFlags;

use crate::doorbell::{poll_for, EventDoorbell};
use crate::endpoint::{Endpoint, Parts};
use crate::error::{ArenaError, PeerInfo, Result};
use crate::failpoint::failpoint;
use crate::header::{self, Role};
use crate::heartbeat::{set_phase, Beat, Phase};
use crate::mapping::Mapping;
use crate::object::open;
use crate::receiver::Message;
use crate::rendezvous::{receive, send_answer, Answer, Attach, Packet};
use crate::stats::Stats;
use crate::sys::take_inherited;

/// How long [`PeerEnd::attach`] waits for the attach message, which a front end sends before it starts the process.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);
const HOST_NAME: &str = "the front end";

/// All methods may be called from any thread.
pub struct PeerEnd {
    endpoint: Endpoint,
    beat: Mutex<Option<Beat>>,
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
        let (packet, fds) = wait_for_attach(&socket)?;
        match Self::open_pair(&packet, fds, socket) {
            Ok(peer) => Ok(peer),
            Err((error, socket)) => {
                let reason = error.to_string();
                let _ = send_answer(&socket, &Answer::Refused { reason });
                Err(error)
            }
        }
    }

    /// [`PeerEnd::attach`] with the number of an inherited file descriptor, which this takes over.
    pub fn attach_inherited(fd: RawFd) -> Result<PeerEnd> {
        PeerEnd::attach(take_inherited(fd)?)
    }

    fn open_pair(
        packet: &[u8],
        fds: Vec<OwnedFd>,
        socket: OwnedFd,
    ) -> std::result::Result<PeerEnd, (ArenaError, OwnedFd)> {
        let opened = (|| {
            let attach = Attach::decode(packet)?;
            let [bell_in, bell_out] = <[OwnedFd; 2]>::try_from(fds).map_err(|fds| {
                ArenaError::BadAttach(format!("{} doorbells came with it, not 2", fds.len()))
            })?;
            let (own, layout) = open_object(&attach.results, Role::Results, true, &attach)?;
            let (peer, peer_layout) =
                open_object(&attach.requests, Role::Requests, false, &attach)?;
            let slots = (
                layout.geometry.slot_count(),
                peer_layout.geometry.slot_count(),
            );
            if (peer_layout.geometry.returns, layout.geometry.returns) != slots {
                return Err(ArenaError::BadObject {
                    object: attach.results,
                    reason: "its return ring does not fit the peer's slab".into(),
                });
            }
            header::claim(&own);
            set_phase(&own, Phase::Load);
            Ok((
                own,
                layout,
                peer,
                peer_layout,
                attach.identity.epoch,
                bell_in,
                bell_out,
            ))
        })();
        let (own, layout, peer, peer_layout, epoch, bell_in, bell_out) = match opened {
            Ok(opened) => opened,
            Err(error) => return Err((error, socket)),
        };
        failpoint("peer.opened");
        let endpoint = Endpoint::new(Parts {
            peer_name: HOST_NAME.into(),
            own,
            peer,
            layout,
            peer_layout,
            epoch,
            bell_in: EventDoorbell::from_fd(bell_in),
            bell_out: EventDoorbell::from_fd(bell_out),
            socket,
        });
        endpoint.note_peer_pid();
        let beat = match Beat::start(Arc::clone(endpoint.own())) {
            Ok(beat) => beat,
            Err(error) => return Err((error, endpoint.into_socket())),
        };
        let pid = std::process::id();
        if let Err(error) = send_answer(endpoint.socket(), &Answer::Attached { pid }) {
            return Err((error, endpoint.into_socket()));
        }
        failpoint("peer.attached");
        Ok(PeerEnd {
            endpoint,
            beat: Mutex::new(Some(beat)),
        })
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
        self.endpoint.recv(max, timeout, || {
            self.endpoint.read_socket(|_| {
                Err(ArenaError::BadAttach(
                    "the front end sent a second packet".into(),
                ))
            })
        })
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

    /// Counters and fill levels.
    pub fn stats(&self) -> Stats {
        self.endpoint.stats()
    }

    /// Stop beating, publish nothing more, let the front end see the end of file.
    pub fn close(&self) {
        let beat = self
            .beat
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(mut beat) = beat {
            if self.endpoint.forked() {
                beat.forget();
            }
        }
        self.endpoint.close();
    }
}

impl Drop for PeerEnd {
    fn drop(&mut self) {
        self.close();
    }
}

fn wait_for_attach(socket: &OwnedFd) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    let deadline = Instant::now() + ATTACH_TIMEOUT;
    loop {
        match receive(socket)? {
            Packet::Data(packet, fds) => return Ok((packet, fds)),
            Packet::EndOfFile => {
                return Err(ArenaError::BadAttach(
                    "the front end had gone before this process attached".into(),
                ))
            }
            Packet::None => {}
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ArenaError::BadAttach(format!(
                "nothing came within {} s",
                ATTACH_TIMEOUT.as_secs()
            )));
        }
        poll_for(&mut [PollFd::new(socket, PollFlags::IN)], Some(left))?;
    }
}

fn open_object(
    name: &str,
    role: Role,
    writable: bool,
    attach: &Attach,
) -> Result<(Mapping, crate::layout::Layout)> {
    let (fd, len) = open(name, writable)?;
    if len < crate::layout::HEADER_LEN {
        return Err(ArenaError::BadObject {
            object: name.to_string(),
            reason: format!("{len} bytes are too short for a header"),
        });
    }
    let mapping = Mapping::new(std::os::fd::AsFd::as_fd(&fd), len, writable)?;
    let layout = header::read(&mapping, len, name, role, &attach.identity)?;
    Ok((mapping, layout))
}
