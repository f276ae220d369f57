//! The front end's end of a pair: creates it, hands the other end to a child process, owns its names.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};

use crate::config::Config;
use crate::doorbell::{Doorbell, EventDoorbell, SemaphoreDoorbell};
use crate::endpoint::{Ear, Endpoint, Link, Parts};
use crate::error::{ArenaError, PeerInfo, Result};
use crate::failpoint::failpoint;
use crate::header::{self, Identity, Role};
use crate::heartbeat::Heartbeat;
use crate::mapping::Mapping;
use crate::object::{random, Object};
use crate::receiver::Message;
use crate::rendezvous::{send_attach, Answer, Attach};
use crate::stats::Stats;
use crate::sys;

enum Attaching {
    /// The names of objects and semaphore still exist.
    Waiting(#[allow(dead_code)] Vec<Object>),
    Attached,
    Refused(String),
}

/// What wakes the peer.
pub(crate) enum Waking {
    /// A worker.
    Eventfd,
    /// A client.
    Semaphore,
}

/// See the crate's documentation for how an async consumer uses it. All methods may be called from any thread.
pub struct HostEnd {
    endpoint: Endpoint,
    attaching: Mutex<Attaching>,
    names: (String, String),
}

/// The socket that the child process inherits; the pair's objects and doorbells come over it.
///
/// If it is dropped without a child, [`HostEnd::poll_socket`] reports [`Link::Gone`].
pub struct ChildEnd(OwnedFd);

impl ChildEnd {
    /// Let the process that `command` spawns inherit the socket as file descriptor `fd`. **Drop the command after
    /// spawning**: until then this process holds the child's end open, and would not see its end of file.
    pub fn inherit(self, command: &mut Command, fd: RawFd) {
        sys::inherit(command, self.0, fd);
    }

    /// For a peer in this process (tests, benchmarks): give the result to [`crate::PeerEnd::attach`].
    pub fn into_fd(self) -> OwnedFd {
        self.0
    }
}

impl HostEnd {
    /// Create both objects with all their memory, and the socketpair.
    pub fn create(config: &Config) -> Result<(HostEnd, ChildEnd)> {
        let (socket, child) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|e| ArenaError::io("cannot create a socketpair", e))?;
        let host = Self::offer(config, socket, Waking::Eventfd)?;
        Ok((host, ChildEnd(child)))
    }

    /// Create both objects and the doorbells, and send the attach message over `socket`.
    pub(crate) fn offer(config: &Config, socket: OwnedFd, waking: Waking) -> Result<HostEnd> {
        let (requests_layout, results_layout) = config.layouts()?;
        let bytes = config.bytes()?;
        let identity = Identity {
            instance: random()?,
            epoch: config.epoch,
        };
        let requests = Object::create("req", requests_layout.total, bytes)?;
        failpoint("host.created_one");
        let results = Object::create("res", results_layout.total, bytes)?;

        let own = Mapping::new(requests.as_fd(), requests_layout.total, true)?;
        header::write(&own, Role::Requests, &identity, &requests_layout);
        header::claim(&own);
        // The peer's object gets its header here, while it is nobody's yet, and is read-only from then on.
        let writable = Mapping::new(results.as_fd(), results_layout.total, true)?;
        header::write(&writable, Role::Results, &identity, &results_layout);
        drop(writable);
        let peer = Mapping::new(results.as_fd(), results_layout.total, false)?;

        let names = (requests.name().to_string(), results.name().to_string());
        let mut attach = Attach {
            identity,
            requests: names.0.clone(),
            results: names.1.clone(),
            bell: None,
        };
        let mut objects = vec![requests, results];
        let bell_in = EventDoorbell::new()?;
        let bell_out: Box<dyn Doorbell> = match waking {
            Waking::Eventfd => {
                let bell = EventDoorbell::new()?;
                send_attach(&socket, &attach, &[&bell, &bell_in])?;
                Box::new(bell)
            }
            Waking::Semaphore => {
                let (bell, file) = SemaphoreDoorbell::create()?;
                attach.bell = Some(file.semaphore_name().to_string());
                objects.push(file);
                failpoint("host.created_bell");
                send_attach(&socket, &attach, &[&bell_in])?;
                Box::new(bell)
            }
        };
        failpoint("host.created");
        let endpoint = Endpoint::new(Parts {
            peer_name: config.peer_name.clone(),
            own,
            peer,
            layout: requests_layout,
            peer_layout: results_layout,
            epoch: config.epoch,
            bell_in: Ear::Event(bell_in),
            bell_out,
            socket,
        });
        Ok(HostEnd {
            endpoint,
            attaching: Mutex::new(Attaching::Waiting(objects)),
            names,
        })
    }

    /// Publish one message. The peer need not have attached yet.
    ///
    /// Errors: [`ArenaError::SlabFull`] is retryable; [`ArenaError::RingFull`] means that more was sent than the peer
    /// granted; [`ArenaError::PeerGone`].
    pub fn send(&self, envelope: &[u8], attachment: Option<&[u8]>) -> Result<()> {
        self.endpoint.send(envelope, attachment)
    }

    /// Take the next message if there is one. Works on after the peer has gone, until the ring is empty.
    pub fn try_recv(&self) -> Result<Option<Message>> {
        self.endpoint.try_recv()
    }

    /// Wait for messages (a blocking alternative to `try_recv`/`arm`). Empty on timeout, [`HostEnd::wake`] or a signal.
    /// [`ArenaError::PeerGone`] once the peer has gone and everything it published has been received.
    pub fn recv(&self, max: usize, timeout: Option<Duration>) -> Result<Vec<Message>> {
        self.endpoint
            .recv(max, timeout, || self.poll_socket().map(drop))
    }

    /// Make a blocked [`HostEnd::recv`] return.
    pub fn wake(&self) -> Result<()> {
        self.endpoint.wake()
    }

    /// Before sleeping: true if nothing waits and the doorbell will ring for the next message; false if a message
    /// arrived meanwhile.
    pub fn arm(&self) -> Result<bool> {
        self.endpoint.arm()
    }

    /// After sleeping, whatever ended it: clears the doorbell and tells the peer that it need not ring.
    pub fn disarm(&self) -> Result<()> {
        self.endpoint.disarm()
    }

    /// Becomes readable when the peer has published something while this side was armed.
    pub fn doorbell_fd(&self) -> BorrowedFd<'_> {
        match self.endpoint.bell_in() {
            Ear::Event(bell) => bell.as_fd(),
            Ear::Semaphore(_) => unreachable!("a host is woken by an eventfd"),
        }
    }

    /// Becomes readable when the peer has attached, refused or gone: then call [`HostEnd::poll_socket`].
    pub fn socket_fd(&self) -> BorrowedFd<'_> {
        self.endpoint.socket().as_fd()
    }

    /// Look at the socket without waiting. When the peer has attached, or gone, the objects' names are removed.
    ///
    /// [`ArenaError::AttachRefused`] says why the peer could not attach.
    pub fn poll_socket(&self) -> Result<Link> {
        self.endpoint.check_usable()?;
        if !self.endpoint.gone() {
            self.endpoint.read_socket(|packet| self.answered(packet))?;
        }
        let mut attaching = self
            .attaching
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Attaching::Refused(reason) = &*attaching {
            return Err(ArenaError::AttachRefused {
                peer: self.endpoint.peer_info(),
                reason: reason.clone(),
            });
        }
        if self.endpoint.gone() {
            *attaching = Attaching::Attached;
            return Ok(Link::Gone);
        }
        match *attaching {
            Attaching::Waiting(_) => Ok(Link::Waiting),
            _ => Ok(Link::Up),
        }
    }

    fn answered(&self, packet: &[u8]) -> Result<()> {
        let mut attaching = self
            .attaching
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !matches!(*attaching, Attaching::Waiting(_)) {
            return Err(ArenaError::BadAttach("the peer answered twice".into()));
        }
        *attaching = match Answer::decode(packet)? {
            Answer::Attached { pid } => {
                self.endpoint.set_peer_pid(pid);
                Attaching::Attached
            }
            Answer::Refused { reason } => Attaching::Refused(reason),
        };
        failpoint("host.unlinked");
        Ok(())
    }

    /// The peer's signs of life.
    pub fn heartbeat(&self) -> Heartbeat {
        self.endpoint.heartbeat()
    }

    /// Who the peer is, its pid (0 until attached), how much it has not taken, the age of its beat.
    pub fn peer(&self) -> PeerInfo {
        self.endpoint.peer_info()
    }

    /// Counters and fill levels.
    pub fn stats(&self) -> Stats {
        self.endpoint.stats()
    }

    /// Names of the two objects: (requests, results). They exist only until the peer has attached.
    pub fn names(&self) -> (&str, &str) {
        (&self.names.0, &self.names.1)
    }

    /// Publish nothing more and let the peer see the end of file.
    pub fn close(&self) {
        self.endpoint.close();
        if !self.endpoint.forked() {
            *self
                .attaching
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Attaching::Attached;
        }
    }
}

impl Drop for HostEnd {
    fn drop(&mut self) {
        self.close();
    }
}
