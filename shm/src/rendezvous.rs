//! What travels over the socket between the two ends of a pair: one attach message with the doorbells, one answer, then
//! only the end of file that means the other side's death. A client, which was not started with its end of a socketpair,
//! says first that it wants to attach.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    recvmsg, send, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

use crate::doorbell::{poll_for, EventDoorbell};
use crate::error::{ArenaError, Result};
use crate::header::Identity;
use crate::layout::{fields_hash, ABI_MAJOR, ABI_MINOR};
use crate::object::PREFIX;

const HELLO: &[u8; 4] = b"DZCL";
const HELLO_AUDIO: u32 = 1;
const ATTACH: &[u8; 4] = b"DZAT";
const ATTACHED: &[u8; 4] = b"DZOK";
const REFUSED: &[u8; 4] = b"DZNO";
const MAX_NAME: usize = 200;
/// No packet is longer.
const MAX_PACKET: usize = 1024;

/// A client's first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// It will send audio: give it slots that hold some.
    pub audio: bool,
}

/// The creator's first and only packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    pub identity: Identity,
    /// Name of the object that the creator writes.
    pub requests: String,
    /// Name of the object that the receiver of this message is to write.
    pub results: String,
    /// Name of the semaphore that wakes a client. A worker is woken by an eventfd.
    pub bell: Option<String>,
}

/// The peer's first and only packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Attached { pid: u32 },
    Refused { reason: String },
}

/// A kind of packet and the version of who sends it.
fn versioned(kind: &[u8; 4]) -> Vec<u8> {
    let mut packet = kind.to_vec();
    packet.extend(ABI_MAJOR.to_le_bytes());
    packet.extend(ABI_MINOR.to_le_bytes());
    packet.extend(fields_hash().to_le_bytes());
    packet
}

/// Takes what [`versioned`] wrote; `peer` is who did, for the error.
fn take_version(rest: &mut &[u8], kind: &[u8; 4], peer: &str) -> Result<()> {
    if take::<4>(rest)? != *kind {
        return Err(bad("it is not from an arena"));
    }
    let major = u32::from_le_bytes(take(rest)?);
    let minor = u32::from_le_bytes(take(rest)?);
    let hash = u64::from_le_bytes(take(rest)?);
    if major != ABI_MAJOR || minor > ABI_MINOR || hash != fields_hash() {
        return Err(ArenaError::AbiMismatch {
            object: peer.into(),
            ours: format!("{ABI_MAJOR}.{ABI_MINOR} (layout {:016x})", fields_hash()),
            theirs: format!("{major}.{minor} (layout {hash:016x})"),
        });
    }
    Ok(())
}

impl Hello {
    pub fn encode(self) -> Vec<u8> {
        let mut packet = versioned(HELLO);
        packet.extend(if self.audio { HELLO_AUDIO } else { 0 }.to_le_bytes());
        packet
    }

    pub fn decode(packet: &[u8]) -> Result<Self> {
        let mut rest = packet;
        take_version(&mut rest, HELLO, "the client")?;
        let flags = u32::from_le_bytes(take(&mut rest)?);
        if flags & !HELLO_AUDIO != 0 || !rest.is_empty() {
            return Err(bad("it asks for something unknown"));
        }
        Ok(Hello {
            audio: flags & HELLO_AUDIO != 0,
        })
    }
}

impl Attach {
    pub fn encode(&self) -> Vec<u8> {
        let mut packet = versioned(ATTACH);
        packet.extend(self.identity.instance);
        packet.extend(self.identity.epoch.to_le_bytes());
        for name in [&self.requests, &self.results]
            .into_iter()
            .chain(&self.bell)
        {
            packet.extend((name.len() as u16).to_le_bytes());
            packet.extend(name.as_bytes());
        }
        packet
    }

    pub fn decode(packet: &[u8]) -> Result<Self> {
        let mut rest = packet;
        take_version(&mut rest, ATTACH, "the front end")?;
        let identity = Identity {
            instance: take(&mut rest)?,
            epoch: u64::from_le_bytes(take(&mut rest)?),
        };
        let requests = take_name(&mut rest)?;
        let results = take_name(&mut rest)?;
        let bell = match rest.is_empty() {
            true => None,
            false => Some(take_name(&mut rest)?),
        };
        if !rest.is_empty() {
            return Err(bad("bytes follow its end"));
        }
        Ok(Attach {
            identity,
            requests,
            results,
            bell,
        })
    }
}

impl Answer {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Answer::Attached { pid } => [&ATTACHED[..], &pid.to_le_bytes()].concat(),
            Answer::Refused { reason } => {
                let mut packet = [&REFUSED[..], reason.as_bytes()].concat();
                packet.truncate(MAX_PACKET);
                packet
            }
        }
    }

    pub fn decode(packet: &[u8]) -> Result<Self> {
        let mut rest = packet;
        match &take::<4>(&mut rest)? {
            ATTACHED => Ok(Answer::Attached {
                pid: u32::from_le_bytes(take(&mut rest)?),
            }),
            REFUSED => Ok(Answer::Refused {
                reason: String::from_utf8_lossy(rest).into_owned(),
            }),
            _ => Err(bad("the answer is not from an arena")),
        }
    }
}

fn bad(what: &str) -> ArenaError {
    ArenaError::BadAttach(what.to_string())
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N]> {
    let (field, tail) = rest
        .split_first_chunk::<N>()
        .ok_or_else(|| bad("it ends early"))?;
    *rest = tail;
    Ok(*field)
}

fn take_name(rest: &mut &[u8]) -> Result<String> {
    let len = usize::from(u16::from_le_bytes(take(rest)?));
    let (name, tail) = rest
        .split_at_checked(len)
        .ok_or_else(|| bad("it ends early"))?;
    *rest = tail;
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
    if len > MAX_NAME || !name.starts_with(PREFIX.as_bytes()) || !name.iter().all(plain) {
        return Err(bad("an object's name is not an arena's"));
    }
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Send the attach message with the eventfds: for a worker the one that it waits on, and for all the one that it rings.
pub(crate) fn send_attach(
    socket: impl AsFd,
    attach: &Attach,
    doorbells: &[&EventDoorbell],
) -> Result<()> {
    let fds: Vec<BorrowedFd<'_>> = doorbells.iter().map(|bell| bell.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let packet = attach.encode();
    sendmsg(
        socket,
        &[IoSlice::new(&packet)],
        &mut control,
        SendFlags::NOSIGNAL,
    )
    .map_err(|e| ArenaError::io("cannot send the attach message", e))?;
    Ok(())
}

/// Send a packet without descriptors.
pub(crate) fn send_packet(socket: impl AsFd, packet: &[u8]) -> Result<()> {
    // These few packets fit every socket; whoever does not read them must not hold anybody up.
    send(socket, packet, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
        .map_err(|e| ArenaError::io("cannot write to the peer's socket", e))?;
    Ok(())
}

/// Wait for a packet, until `deadline`; `whose` says who should send it.
pub(crate) fn wait_for_packet(
    socket: impl AsFd,
    deadline: Instant,
    whose: &str,
) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    loop {
        match receive(&socket)? {
            Packet::Data(packet, fds) => return Ok((packet, fds)),
            Packet::EndOfFile => return Err(bad(&format!("{whose} has gone"))),
            Packet::None => {}
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(bad(&format!("nothing came from {whose} in time")));
        }
        poll_for(&mut [PollFd::new(&socket, PollFlags::IN)], Some(left))?;
    }
}

/// What the socket had to say.
pub(crate) enum Packet {
    /// Nothing now.
    None,
    /// The other side has gone.
    EndOfFile,
    Data(Vec<u8>, Vec<OwnedFd>),
}

/// Look at the socket without waiting.
pub(crate) fn receive(socket: impl AsFd) -> Result<Packet> {
    let mut bytes = [0; MAX_PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(
            &socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            flags,
        ) {
            Ok(received) => break received,
            // A peer that left packets unread resets the connection. That is said once; behind it are its own last
            // packet, if it sent one, and the end of file.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            Err(Errno::AGAIN) => return Ok(Packet::None),
            Err(e) => return Err(ArenaError::io("cannot read the peer's socket", e)),
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    if received.bytes == 0 {
        return Ok(Packet::EndOfFile);
    }
    Ok(Packet::Data(bytes[..received.bytes].to_vec(), fds))
}
