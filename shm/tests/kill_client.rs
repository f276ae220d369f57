//! SIGKILL at every step of a client's way to its arena, on both sides, in real processes.
//!
//! This test binary starts itself again for the processes to be killed: `process` is their entry.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use denizen_shm::{sweep, ArenaError, Config, HostEnd, Invitation, Link, Listener};

const PATIENCE: Duration = Duration::from_secs(30);
const SIGKILL: i32 = 9;

/// A folder of this test's own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("denizen-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("test.sock")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// This binary in another role, killed at `failpoint`.
fn start(role: &str, failpoint: &str, socket: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process", "--ignored", "--nocapture"])
        .env("DENIZEN_TEST_ROLE", role)
        .env("DENIZEN_TEST_SOCKET", socket)
        .env("DENIZEN_FAILPOINT", failpoint)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "the entry of the processes that the other tests start and kill"]
fn process() {
    let socket = PathBuf::from(std::env::var_os("DENIZEN_TEST_SOCKET").unwrap());
    match std::env::var("DENIZEN_TEST_ROLE").as_deref() {
        Ok("client") => client(&socket),
        Ok("server") => server(&socket),
        other => panic!("role {other:?}"),
    }
    panic!("the failpoint was never passed");
}

fn client(socket: &Path) {
    let invitation = Invitation::request(socket, true, PATIENCE).unwrap();
    let arena = invitation.attach().unwrap();
    for number in 0u32..20 {
        arena
            .send(&number.to_le_bytes(), Some(&[7; 100_000]))
            .unwrap();
        arena.recv(1, Some(PATIENCE)).unwrap();
    }
}

fn server(socket: &Path) {
    let listener = Listener::bind(socket).unwrap();
    let host = meet(&listener).expect("a client");
    until(|| (host.poll_socket().unwrap() != Link::Waiting).then_some(()));
    loop {
        match host.recv(16, Some(PATIENCE)) {
            Ok(messages) => {
                for message in messages {
                    host.send(&message.envelope, message.attachment.as_deref())
                        .unwrap();
                }
            }
            Err(ArenaError::PeerGone { .. }) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "nothing happened");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The next client's arena; `None` if it goes before it has one.
fn meet(listener: &Listener) -> Option<HostEnd> {
    let connection = until(|| listener.accept().unwrap());
    let hello = until(|| match connection.hello() {
        Ok(None) => None,
        Ok(Some(hello)) => Some(Some(hello)),
        Err(_) => Some(None),
    })?;
    let config = Config::client("client", 1, hello.audio);
    match connection.offer(&config) {
        Ok(host) => Some(host),
        Err((ArenaError::Io { .. }, _)) => None,
        Err((error, _)) => panic!("{error}"),
    }
}

fn listed() -> BTreeSet<String> {
    std::fs::read_dir("/dev/shm")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter(|name| name.contains("denizen-"))
        .collect()
}

/// Those of `names` whose lock nobody holds.
fn dead(names: &BTreeSet<String>) -> Vec<&String> {
    use rustix::fs::{flock, FlockOperation};
    names
        .iter()
        .filter(|name| {
            std::fs::File::open(format!("/dev/shm/{name}"))
                .is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_ok())
        })
        .collect()
}

/// Of what was made since `before`. Others may be making objects at this moment, which are locked a moment later.
fn nothing_left(before: &BTreeSet<String>) {
    until(|| {
        let made = listed().difference(before).cloned().collect();
        dead(&made).is_empty().then_some(())
    });
}

#[test]
fn a_client_killed_at_any_point_leaves_nothing_behind() {
    let folder = Folder::new("kill-client");
    let listener = Listener::bind(&folder.socket()).unwrap();
    for failpoint in [
        "client.connected",
        "client.asked",
        "client.invited",
        "peer.opened",
        "peer.attached",
        "send.stored:3",
        "send.published:3",
        "recv.copied:3",
        "recv.returned:3",
    ] {
        let before = listed();
        let mut process = start("client", failpoint, &folder.socket());
        let host = meet(&listener);
        // One that has asked may be dead by the time of the answer.
        if !failpoint.starts_with("client.") {
            assert!(host.is_some(), "{failpoint}");
        }
        if let Some(host) = host {
            loop {
                match host.recv(16, Some(PATIENCE)) {
                    Ok(messages) => {
                        for message in messages {
                            match host.send(&message.envelope, message.attachment.as_deref()) {
                                Ok(()) | Err(ArenaError::PeerGone { .. }) => {}
                                Err(error) => panic!("{error}"),
                            }
                        }
                    }
                    Err(ArenaError::PeerGone { .. }) => break,
                    Err(error) => panic!("{failpoint}: {error}"),
                }
            }
            assert_eq!(host.poll_socket().unwrap(), Link::Gone);
            let names = host.names();
            let names = [names.0.to_owned(), names.1.to_owned()];
            assert!(listed().is_disjoint(&names.into()), "{failpoint}");
        }
        let status = process.wait().unwrap();
        assert_eq!(status.signal(), Some(SIGKILL), "{failpoint}");
        nothing_left(&before);
    }
}

#[test]
fn a_server_killed_at_any_point_is_noticed_and_swept() {
    for failpoint in [
        "host.created_one",
        "host.created_bell",
        "host.created",
        "host.unlinked",
        "recv.copied:3",
        "send.published:3",
    ] {
        let before = listed();
        let folder = Folder::new("kill-server");
        let mut process = start("server", failpoint, &folder.socket());
        let invitation = until(
            || match Invitation::request(&folder.socket(), false, PATIENCE) {
                Err(ArenaError::NoServer { .. }) => None,
                other => Some(other),
            },
        );
        if let Ok(arena) = invitation.and_then(Invitation::attach) {
            let ended = (0u32..20).find_map(|number| {
                let sent = arena.send(&number.to_le_bytes(), None);
                let answered = sent.and_then(|()| arena.recv(1, Some(PATIENCE)));
                answered.map(|messages| assert!(!messages.is_empty())).err()
            });
            let error = ended.expect("the server lived");
            assert!(
                matches!(error, ArenaError::PeerGone { .. }),
                "{failpoint}: {error}"
            );
        }
        let status = process.wait().unwrap();
        assert_eq!(status.signal(), Some(SIGKILL), "{failpoint}");
        sweep().unwrap();
        nothing_left(&before);
        // Its socket is there, and the next server takes its place.
        assert!(folder.socket().exists());
        drop(Listener::bind(&folder.socket()).unwrap());
    }
}
