//! The one thread that starts worker processes.
//!
//! A worker asks the kernel to be killed when its parent dies, and the kernel takes "parent" to be the *thread* that
//! started it. So that thread must live as long as this process does; threads of an async runtime come and go.

use std::io;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use denizen_shm::ChildEnd;
use tokio::process::Child;
use tokio::sync::oneshot;

/// The file descriptor that a worker finds its socket at.
const WORKER_FD: i32 = 3;

struct Order {
    command: Command,
    socket: ChildEnd,
    reply: oneshot::Sender<io::Result<Child>>,
}

/// A handle to the thread; cheap to clone.
#[derive(Clone)]
pub struct Spawner {
    orders: mpsc::Sender<Order>,
}

impl Spawner {
    /// Call within a tokio runtime: it is the one that waits for the children.
    pub fn start() -> io::Result<Self> {
        let runtime = tokio::runtime::Handle::current();
        let (orders, incoming) = mpsc::channel::<Order>();
        std::thread::Builder::new()
            .name("denizen-spawn".into())
            .spawn(move || {
                let _entered = runtime.enter();
                for order in incoming {
                    // A caller that has gone drops the child, which kills it.
                    let _ = order.reply.send(spawn(order.command, order.socket));
                }
            })?;
        Ok(Self { orders })
    }

    /// Runs `python -m module --fd 3 --config JSON` with the worker's end of the socket at that descriptor. `log_level` is
    /// the worker's, unless the environment has one.
    pub async fn spawn(
        &self,
        python: &std::path::Path,
        module: &str,
        config: &str,
        log_level: &str,
        socket: ChildEnd,
    ) -> io::Result<Child> {
        let mut command = Command::new(python);
        command.args([
            // Without it the working directory comes first, and a file there could pose as a module.
            "-P",
            "-m",
            module,
            "--fd",
            &WORKER_FD.to_string(),
            "--config",
            config,
        ]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // Else Python holds its lines back until its buffer is full.
        command.env("PYTHONUNBUFFERED", "1");
        if std::env::var_os("DENIZEN_LOG").is_none() {
            command.env("DENIZEN_LOG", log_level);
        }
        let (reply, child) = oneshot::channel();
        let lost = || io::Error::other("the thread that starts processes has ended");
        self.orders
            .send(Order {
                command,
                socket,
                reply,
            })
            .map_err(|_| lost())?;
        child.await.map_err(|_| lost())?
    }
}

fn spawn(mut command: Command, socket: ChildEnd) -> io::Result<Child> {
    socket.inherit(&mut command, WORKER_FD);
    let mut command = tokio::process::Command::from(command);
    command.kill_on_drop(true);
    // The command is dropped on return, and with it this process's copy of the worker's end.
    command.spawn()
}
