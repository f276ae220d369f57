//! How a client comes to its end of a pair: it asks at the front end's socket, and is invited or refused.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{connect, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::doorbell::{EventDoorbell, SemaphoreDoorbell};
use crate::endpoint::Ear;
use crate::error::{ArenaError, Result};
use crate::failpoint::failpoint;
use crate::object::open;
use crate::peer::{tell_refused, Alive, Pair, PeerEnd, HOST_NAME};
use crate::rendezvous::{send_packet, wait_for_packet, Answer, Attach, Hello};
use crate::sys::duplicate;
use crate::watch::Watch;

/// How soon a front end whose queue of connections is full is asked again.
const AGAIN: Duration = Duration::from_millis(5);

/// What a front end offers to a client. Dropping it without attaching tells the front end.
pub struct Invitation {
    socket: OwnedFd,
    attach: Attach,
    bell: String,
    /// Rings the front end.
    bell_out: EventDoorbell,
}

impl Invitation {
    /// Connect to the socket at `path` and ask for a pair; with `audio`, for one whose slots hold seconds of it.
    ///
    /// Errors: [`ArenaError::NoServer`]; [`ArenaError::Uninvited`] with the front end's reason;
    /// [`ArenaError::BadAttach`], also if nothing comes within `timeout`.
    pub fn request(path: &Path, audio: bool, timeout: Duration) -> Result<Self> {
        let deadline = Instant::now()
            .checked_add(timeout)
            .ok_or_else(|| ArenaError::Config("the timeout is too long".into()))?;
        let socket = reach(path, deadline)?;
        failpoint("client.connected");
        // A front end that refuses at once may have hung up already: its reason is still there to be read.
        let _ = send_packet(&socket, &Hello { audio }.encode());
        failpoint("client.asked");
        let (packet, fds) = wait_for_packet(&socket, deadline, HOST_NAME)?;
        if let Ok(Answer::Refused { reason }) = Answer::decode(&packet) {
            return Err(ArenaError::Uninvited(reason));
        }
        let understood = (|| {
            let attach = Attach::decode(&packet)?;
            let bell = attach
                .bell
                .clone()
                .ok_or_else(|| ArenaError::BadAttach("it names no doorbell".into()))?;
            let [bell_out] = <[OwnedFd; 1]>::try_from(fds).map_err(|fds| {
                ArenaError::BadAttach(format!("{} doorbells came with it, not 1", fds.len()))
            })?;
            Ok((attach, bell, EventDoorbell::from_fd(bell_out)))
        })();
        let (attach, bell, bell_out) =
            understood.inspect_err(|error| tell_refused(&socket, error))?;
        failpoint("client.invited");
        Ok(Invitation {
            socket,
            attach,
            bell,
            bell_out,
        })
    }

    /// Name of the object that the front end writes, without slash.
    pub fn requests(&self) -> &str {
        &self.attach.requests
    }

    /// Name of the object that the client writes, without slash.
    pub fn results(&self) -> &str {
        &self.attach.results
    }

    /// Name of the semaphore that wakes the client, without slash.
    pub fn bell(&self) -> &str {
        &self.bell
    }

    /// Open everything and attach. What goes wrong is also told to the front end.
    pub fn attach(self) -> Result<PeerEnd> {
        let opened = (|| Ok((open(self.requests(), false)?, open(self.results(), true)?)))();
        let (requests, results) = opened.inspect_err(|error| tell_refused(&self.socket, error))?;
        self.attach_to(requests.as_fd(), results.as_fd())
    }

    /// The same with the numbers of descriptors of objects that the caller has opened: `results` for writing. They are
    /// not kept.
    pub fn attach_opened(self, requests: RawFd, results: RawFd) -> Result<PeerEnd> {
        let opened = (|| Ok((duplicate(requests)?, duplicate(results)?)))();
        let (requests, results) = opened.inspect_err(|error| tell_refused(&self.socket, error))?;
        self.attach_to(requests.as_fd(), results.as_fd())
    }

    fn attach_to(self, requests: BorrowedFd<'_>, results: BorrowedFd<'_>) -> Result<PeerEnd> {
        let opened = (|| {
            let pair = Pair::map(&self.attach, requests, results)?;
            Ok((pair, SemaphoreDoorbell::open(&self.bell)?))
        })();
        let (pair, bell) = opened.inspect_err(|error| tell_refused(&self.socket, error))?;
        pair.attached(
            Ear::Semaphore(bell),
            Box::new(self.bell_out),
            self.socket,
            |endpoint| Watch::start(endpoint).map(Alive::Watching),
        )
    }

    /// Tell the front end why this client does not attach.
    pub fn refuse(self, reason: &str) {
        let reason = reason.to_owned();
        let _ = send_packet(&self.socket, &Answer::Refused { reason }.encode());
    }
}

/// Connect to `path`, waiting while the front end is busy with others.
fn reach(path: &Path, deadline: Instant) -> Result<OwnedFd> {
    let shown = path.display().to_string();
    let address = SocketAddrUnix::new(path)
        .map_err(|_| ArenaError::Config(format!("{shown} is too long for a socket's path")))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|e| ArenaError::io("cannot create a socket", e))?;
    let nobody = |reason: &'static str| {
        let path = shown.clone();
        Err(ArenaError::NoServer { path, reason })
    };
    loop {
        match connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::NOENT | Errno::NOTDIR) => return nobody("there is no such socket"),
            Err(Errno::CONNREFUSED) => return nobody("its server has gone"),
            Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(AGAIN),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                return Err(ArenaError::BadAttach(format!(
                    "the front end at {shown} took no connection in time"
                )))
            }
            Err(e) => return Err(ArenaError::io(format!("cannot connect to {shown}"), e)),
        }
    }
}
