//! A client's way to its pair, in one process: real sockets, real objects, real semaphores.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use denizen_shm::{
    ArenaError, Config, Connection, Hello, HostEnd, Invitation, Link, Listener, PeerEnd,
};

const PATIENCE: Duration = Duration::from_secs(20);

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

fn accept(listener: &Listener) -> Connection {
    until(|| listener.accept().unwrap())
}

fn greeted(listener: &Listener) -> (Connection, Hello) {
    let connection = accept(listener);
    let hello = until(|| connection.hello().unwrap());
    (connection, hello)
}

fn left_of(names: &[String]) -> Vec<&String> {
    let there = |name: &&String| Path::new("/dev/shm").join(name).exists();
    names.iter().filter(there).collect()
}

/// Both ends, and the names that the objects and the semaphore had.
fn pair(folder: &Folder, audio: bool) -> (HostEnd, PeerEnd, Vec<String>) {
    let listener = Listener::bind(&folder.socket()).unwrap();
    let path = folder.socket();
    let asking = std::thread::spawn(move || Invitation::request(&path, audio, PATIENCE).unwrap());
    let (connection, hello) = greeted(&listener);
    assert_eq!(hello.audio, audio);
    let config = Config::client("client 1", 1, hello.audio);
    let host = connection.offer(&config).map_err(|(e, _)| e).unwrap();
    let invitation = asking.join().unwrap();
    let names = vec![
        invitation.requests().to_owned(),
        invitation.results().to_owned(),
        format!("sem.{}", invitation.bell()),
    ];
    assert_eq!(left_of(&names).len(), 3);
    let client = invitation.attach().unwrap();
    until(|| (host.poll_socket().unwrap() == Link::Up).then_some(()));
    (host, client, names)
}

#[test]
fn messages_go_both_ways_and_the_names_are_gone() {
    let folder = Folder::new("both-ways");
    let (host, client, names) = pair(&folder, false);
    assert!(left_of(&names).is_empty());
    for size in [0, 100, 5000, 300_000] {
        let bytes = vec![7; size];
        host.send(b"out", Some(&bytes)).unwrap();
        let got = client.recv(1, Some(PATIENCE)).unwrap();
        assert_eq!(got[0].attachment.as_ref().unwrap(), &bytes);
        client.send(b"back", Some(&bytes)).unwrap();
        let got = host.recv(1, Some(PATIENCE)).unwrap();
        assert_eq!(got[0].attachment.as_ref().unwrap(), &bytes);
    }
    assert_eq!(host.peer().pid, std::process::id());
}

#[test]
fn a_sleeping_client_is_woken_by_messages_and_by_its_own_wake() {
    let folder = Folder::new("woken");
    let (host, client, _) = pair(&folder, false);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let mut seen = 0;
            while seen < 100 {
                seen += client.recv(16, Some(PATIENCE)).unwrap().len();
            }
            // A wake: nothing has come.
            client.recv(16, Some(PATIENCE)).unwrap().len()
        });
        for _ in 0..100 {
            // Each is sent while the client sleeps.
            until(|| (client.stats().in_depth == 0).then_some(()));
            host.send(b"x", None).unwrap();
        }
        until(|| (client.stats().in_depth == 0).then_some(()));
        client.wake().unwrap();
        assert_eq!(sleeper.join().unwrap(), 0);
    });
}

#[test]
fn a_sleeping_client_sees_the_front_end_go() {
    let folder = Folder::new("gone");
    let (host, client, _) = pair(&folder, false);
    host.send(b"last", None).unwrap();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            assert_eq!(client.recv(16, None).unwrap()[0].envelope, b"last");
            client.recv(16, None).unwrap_err()
        });
        until(|| (client.stats().sleeps > 0 && client.stats().in_depth == 0).then_some(()));
        drop(host);
        let error = sleeper.join().unwrap();
        assert!(matches!(error, ArenaError::PeerGone { .. }), "{error}");
    });
}

#[test]
fn the_front_end_sees_a_client_go() {
    let folder = Folder::new("left");
    let (host, client, _) = pair(&folder, false);
    client.send(b"last", None).unwrap();
    drop(client);
    assert_eq!(host.recv(16, Some(PATIENCE)).unwrap()[0].envelope, b"last");
    let error = host.recv(16, Some(PATIENCE)).unwrap_err();
    assert!(matches!(error, ArenaError::PeerGone { .. }), "{error}");
}

#[test]
fn a_client_that_goes_before_it_attaches_leaves_no_names() {
    let folder = Folder::new("early");
    let listener = Listener::bind(&folder.socket()).unwrap();
    let path = folder.socket();
    let asking = std::thread::spawn(move || Invitation::request(&path, false, PATIENCE).unwrap());
    let (connection, _) = greeted(&listener);
    let host = connection
        .offer(&Config::client("client 1", 1, false))
        .map_err(|(e, _)| e)
        .unwrap();
    let invitation = asking.join().unwrap();
    let names = vec![
        invitation.requests().to_owned(),
        invitation.results().to_owned(),
        format!("sem.{}", invitation.bell()),
    ];
    drop(invitation);
    until(|| (host.poll_socket().unwrap() == Link::Gone).then_some(()));
    assert!(left_of(&names).is_empty());
}

#[test]
fn a_client_that_cannot_attach_says_why() {
    let folder = Folder::new("cannot");
    let listener = Listener::bind(&folder.socket()).unwrap();
    let path = folder.socket();
    let asking = std::thread::spawn(move || Invitation::request(&path, false, PATIENCE).unwrap());
    let (connection, _) = greeted(&listener);
    let host = connection
        .offer(&Config::client("client 1", 1, false))
        .map_err(|(e, _)| e)
        .unwrap();
    // Descriptors of something else.
    let other = std::fs::File::open("/dev/null").unwrap();
    let error = asking
        .join()
        .unwrap()
        .attach_opened(other.as_raw_fd(), other.as_raw_fd())
        .map(drop)
        .unwrap_err();
    assert!(matches!(error, ArenaError::BadObject { .. }), "{error}");
    let told = until(|| host.poll_socket().err());
    let ArenaError::AttachRefused { reason, .. } = &told else {
        panic!("{told}")
    };
    assert!(reason.contains("not a regular file"), "{reason}");
}

#[test]
fn a_refusal_reaches_the_client() {
    let folder = Folder::new("refused");
    let listener = Listener::bind(&folder.socket()).unwrap();
    let path = folder.socket();
    let asking = std::thread::spawn(move || Invitation::request(&path, false, PATIENCE).map(drop));
    // Before the client has said anything.
    accept(&listener).refuse("64 clients are connected already");
    let error = asking.join().unwrap().unwrap_err();
    assert!(matches!(&error, ArenaError::Uninvited(reason) if reason.starts_with("64 ")));
}

#[test]
fn a_peer_is_known_by_the_kernel() {
    let folder = Folder::new("known");
    let listener = Listener::bind(&folder.socket()).unwrap();
    let path = folder.socket();
    let asking = std::thread::spawn(move || Invitation::request(&path, false, PATIENCE).map(drop));
    let connection = accept(&listener);
    assert_eq!(connection.pid(), std::process::id() as i32);
    assert_eq!(connection.uid(), rustix::process::geteuid().as_raw());
    drop(connection);
    assert!(asking.join().unwrap().is_err());
}

#[test]
fn nobody_at_the_path_is_told_apart_from_a_refusal() {
    let folder = Folder::new("nobody");
    let missing = Invitation::request(&folder.socket(), false, PATIENCE).map(drop);
    assert!(matches!(missing, Err(ArenaError::NoServer { .. })));
    // A file that a killed server left behind.
    let file = std::os::unix::net::UnixDatagram::bind(folder.socket()).unwrap();
    drop(file);
    let left = Invitation::request(&folder.socket(), false, PATIENCE).map(drop);
    assert!(matches!(left, Err(ArenaError::NoServer { .. })), "{left:?}");
}

#[test]
fn a_name_has_one_living_server_and_a_dead_one_is_replaced() {
    let folder = Folder::new("taken");
    let first = Listener::bind(&folder.socket()).unwrap();
    let second = Listener::bind(&folder.socket()).map(drop).unwrap_err();
    assert!(matches!(second, ArenaError::NameTaken { .. }), "{second}");
    drop(first);
    assert!(!folder.socket().exists(), "removed by its server");

    // A server that was killed leaves its file.
    let left = std::os::unix::net::UnixDatagram::bind(folder.socket()).unwrap();
    drop(left);
    let third = Listener::bind(&folder.socket()).unwrap();
    // Somebody removed the file by hand, and another server came: it is not ours to remove.
    std::fs::remove_file(folder.socket()).unwrap();
    let fourth = Listener::bind(&folder.socket()).unwrap();
    drop(third);
    assert!(folder.socket().exists());
    drop(fourth);

    std::fs::write(folder.socket(), "notes").unwrap();
    let file = Listener::bind(&folder.socket()).map(drop).unwrap_err();
    assert!(file.to_string().contains("is no socket"), "{file}");
    assert!(folder.socket().exists());
}

#[test]
fn a_path_beyond_a_sockets_limit_is_an_error() {
    let long = std::env::temp_dir().join("x".repeat(120));
    let error = Listener::bind(&long).map(drop).unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
    let error = Invitation::request(&long, false, PATIENCE)
        .map(drop)
        .unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
}

#[test]
fn dozens_of_clients_fit_beside_a_worker() {
    let mib = |config: Config| config.bytes().unwrap() as f64 / f64::from(1 << 20);
    assert!(mib(Config::client("c", 1, false)) < 1.1);
    assert!(mib(Config::client("c", 1, true)) < 5.1);
    let worker = mib(Config::text("w", 1));
    assert!(worker + 40.0 * mib(Config::client("c", 1, false)) < 64.0);
}
