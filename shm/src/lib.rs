//! The shared-memory arena between the front end and its peers, workers and clients: a pair of objects, each written by one side only, with
//! a ring of small descriptors, a slab for what does not fit into them, and doorbells for sleepers.
//!
//! # Layout
//!
//! | file | what |
//! |---|---|
//! | `layout` | where what lies in an object: the one definition |
//! | `header` | an object's identity and its check |
//! | `memory`, `mapping` | access to shared bytes: the trait, and the real thing (`unsafe`) |
//! | `descriptor`, `slab` | a ring entry; payloads in slots and chains |
//! | `sender`, `receiver` | the two halves of a direction, free of system calls: what loom, proptest and Miri run |
//! | `doorbell`, `heartbeat` | waking; signs of life |
//! | `config`, `error` | sizes; everything that can go wrong |
//! | `object`, `sweep` | named objects in `/dev/shm`, leftovers |
//! | `rendezvous` | attach message and answer over the socket between the two |
//! | `endpoint`, `host`, `peer`, `stats` | the two ends |
//! | `listener`, `invitation`, `watch` | how clients come to a pair; the thread that watches for the end of theirs |
//! | `sys` | system calls without a safe wrapper (`unsafe`) |
//!
//! # The front end
//!
//! ```no_run
//! # use denizen_shm::{Config, HostEnd};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! denizen_shm::sweep()?; // once, at start
//! let (host, child) = HostEnd::create(&Config::text("worker 0", 1))?;
//! let mut command = std::process::Command::new("python");
//! command.args(["-m", "denizen.worker", "--fd", "3"]);
//! child.inherit(&mut command, 3); // tokio: command.as_std_mut()
//! let process = command.spawn()?;
//! drop(command); // it holds the child's end of the socket
//! host.send(b"hello", None)?;
//! # Ok(())
//! # }
//! ```
//!
//! # An async consumer
//!
//! One task receives. It drains, arms, and sleeps only if `arm` says so; whatever ends the sleep, it disarms:
//!
//! ```text
//! let bell = AsyncFd::with_interest(host.doorbell_fd().try_clone_to_owned()?, Interest::READABLE)?;
//! let socket = AsyncFd::with_interest(host.socket_fd().try_clone_to_owned()?, Interest::READABLE)?;
//! loop {
//!     while let Some(message) = host.try_recv()? { handle(message); }
//!     if !host.arm()? { continue; }             // something arrived meanwhile
//!     let link = tokio::select! {
//!         ready = bell.readable() => {
//!             host.disarm()?;                   // first clear the eventfd …
//!             ready?.clear_ready();             // … then tokio's note of it: a ring in between is not lost
//!             continue;
//!         }
//!         ready = socket.readable() => {
//!             host.disarm()?;
//!             let link = host.poll_socket()?;
//!             ready?.clear_ready();             // at end of file this branch breaks out, below
//!             link
//!         }
//!     };
//!     if link == Link::Gone {
//!         while let Some(message) = host.try_recv()? { handle(message); }   // what it published before it died
//!         break;
//!     }
//! }
//! ```
//!
//! `send` may be called from any thread at any time. Drain in slices and yield if other tasks share the thread.

mod config;
mod descriptor;
mod doorbell;
mod endpoint;
mod error;
mod failpoint;
mod heartbeat;
mod host;
mod inbox;
mod invitation;
mod listener;
mod mapping;
mod object;
mod peer;
mod rendezvous;
mod stats;
mod sweep;
mod sys;
mod watch;

pub mod header;
pub mod layout;
pub mod memory;
pub mod receiver;
pub mod sender;
pub mod slab;

pub use config::{Config, Direction};
pub use descriptor::Descriptor;
pub use doorbell::{Doorbell, EventDoorbell, SemaphoreDoorbell};
pub use endpoint::Link;
pub use error::{ArenaError, PeerInfo, Result};
pub use heartbeat::{Heartbeat, Phase};
pub use host::{ChildEnd, HostEnd};
pub use inbox::{Inbox, Protocol, Taken};
pub use invitation::Invitation;
pub use listener::{Connection, Listener};
pub use object::{shm_space, user, Object};
pub use peer::PeerEnd;
pub use receiver::Message;
pub use rendezvous::{Answer, Attach, Hello};
pub use stats::Stats;
pub use sweep::{sweep, Swept};
