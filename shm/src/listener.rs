//! The front end's socket for clients.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{flock, lstat, open, unlink, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    accept_with, bind, connect, listen, socket_with, AddressFamily, SocketAddrUnix, SocketFlags,
    SocketType,
};

use crate::config::Config;
use crate::error::{ArenaError, Result};
use crate::host::{HostEnd, Waking};
use crate::rendezvous::{receive, send_packet, Answer, Hello, Packet};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// A rendezvous that clients connect to. Dropping it removes the socket's file, if it is still this one's.
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file.
    file: (u64, u64),
}

impl Listener {
    /// Listen at `path`. A socket file that nobody listens on is replaced.
    ///
    /// Errors: [`ArenaError::NameTaken`] if somebody does.
    pub fn bind(path: &Path) -> Result<Self> {
        let shown = path.display();
        let fault = |what: &str, e: Errno| ArenaError::io(format!("{what} {shown}"), e);
        let address = SocketAddrUnix::new(path).map_err(|_| {
            ArenaError::Config(format!(
                "{shown} is too long for a socket's path: at most 107 bytes"
            ))
        })?;
        let _turn = turn(path)?;
        match lstat(path) {
            Err(Errno::NOENT) => {}
            Err(e) => return Err(fault("cannot look at", e)),
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Socket => {
                let reason = format!("{shown} is there and is no socket: remove it");
                return Err(ArenaError::Config(reason));
            }
            Ok(_) => match connect(seqpacket()?, &address) {
                Err(Errno::CONNREFUSED) => unlink(path).map_err(|e| fault("cannot remove", e))?,
                Err(Errno::NOENT) => {}
                // A full queue of connections has somebody behind it, and so has a socket of another type.
                Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => {
                    let path = shown.to_string();
                    return Err(ArenaError::NameTaken { path });
                }
                Err(e) => return Err(fault("cannot connect to", e)),
            },
        }
        let socket = seqpacket()?;
        bind(&socket, &address).map_err(|e| fault("cannot create", e))?;
        let stat = lstat(path).map_err(|e| fault("cannot look at", e))?;
        let listener = Listener {
            socket,
            path: path.to_owned(),
            file: (stat.st_dev, stat.st_ino),
        };
        listen(&listener.socket, BACKLOG).map_err(|e| fault("cannot listen on", e))?;
        Ok(listener)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next connection that waits, if there is one.
    pub fn accept(&self) -> Result<Option<Connection>> {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match accept_with(&self.socket, flags) {
                Ok(socket) => {
                    let peer = socket_peercred(&socket)
                        .map_err(|e| ArenaError::io("cannot ask who a client is", e))?;
                    return Ok(Some(Connection {
                        socket,
                        uid: peer.uid.as_raw(),
                        pid: peer.pid.as_raw_nonzero().get(),
                    }));
                }
                // Somebody who has gone again.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(e) => return Err(ArenaError::io("cannot accept a client", e)),
            }
        }
    }
}

impl AsFd for Listener {
    /// Readable when a connection waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another server may have replaced a file that was removed by hand.
        if let Ok(_turn) = turn(&self.path) {
            if lstat(&self.path).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.file) {
                let _ = unlink(&self.path);
            }
        }
    }
}

/// Wait until no other server creates or removes a socket in this folder. It is one's turn as long as the result lives,
/// or the process.
fn turn(path: &Path) -> Result<OwnedFd> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let fault = |e: Errno| ArenaError::io(format!("cannot use {}", folder.display()), e);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = open(folder, flags, Mode::empty()).map_err(fault)?;
    loop {
        match flock(&fd, FlockOperation::LockExclusive) {
            Ok(()) => return Ok(fd),
            Err(Errno::INTR) => {}
            Err(e) => return Err(fault(e)),
        }
    }
}

fn seqpacket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|e| ArenaError::io("cannot create a socket", e))
}

/// Somebody who has connected. Dropping it hangs up.
pub struct Connection {
    socket: OwnedFd,
    uid: u32,
    pid: i32,
}

impl Connection {
    /// The effective user of the process that connected, by the kernel.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Its process id when it connected.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// What it asks for, if that has come.
    ///
    /// Errors: [`ArenaError::AbiMismatch`]; [`ArenaError::BadAttach`] for what no client sends, and for one that has gone.
    pub fn hello(&self) -> Result<Option<Hello>> {
        match receive(&self.socket)? {
            Packet::None => Ok(None),
            Packet::EndOfFile => Err(ArenaError::BadAttach("the client has gone".into())),
            Packet::Data(packet, _) => Hello::decode(&packet).map(Some),
        }
    }

    /// Create a pair for it and send the attach message.
    pub fn offer(self, config: &Config) -> std::result::Result<HostEnd, (ArenaError, Self)> {
        let (uid, pid) = (self.uid, self.pid);
        let socket = self
            .socket
            .try_clone()
            .map_err(|e| ArenaError::io("cannot duplicate a socket", e));
        match socket.and_then(|socket| HostEnd::offer(config, socket, Waking::Semaphore)) {
            Ok(host) => Ok(host),
            Err(error) => Err((
                error,
                Connection {
                    socket: self.socket,
                    uid,
                    pid,
                },
            )),
        }
    }

    /// Say why it gets none, and hang up.
    pub fn refuse(self, reason: &str) {
        let reason = reason.to_owned();
        // If it has gone, there is nobody to tell.
        let _ = send_packet(&self.socket, &Answer::Refused { reason }.encode());
    }
}

impl AsFd for Connection {
    /// Readable when [`Connection::hello`] has something to say.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
