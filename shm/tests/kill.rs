//! SIGKILL at every failpoint, on both sides, in real processes.
//!
//! This test binary starts itself again for the processes to be killed: `process` is their entry.

mod common;

use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::pattern;
use denizen_shm::{sweep, ArenaError, Config, HostEnd, Link, PeerEnd};

const PATIENCE: Duration = Duration::from_secs(30);
const FD: i32 = 3;
const SIGKILL: i32 = 9;
/// Exit codes of the echo process, so that a panic cannot pass for an orderly end.
const HOST_GONE: i32 = 42;

/// Inline, slab and chain, in turn.
fn payload(number: u64) -> Vec<u8> {
    pattern(number, [20, 5_000, 45_000][number as usize % 3])
}

/// This binary in another role, killed at `failpoint` (its Nth passage).
fn role(name: &str, failpoint: Option<&str>) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "process", "--ignored", "--nocapture"]);
    command.env("DENIZEN_TEST_ROLE", name);
    command.env_remove("DENIZEN_FAILPOINT");
    if let Some(failpoint) = failpoint {
        command.env("DENIZEN_FAILPOINT", failpoint);
    }
    command
}

#[test]
#[ignore = "the entry of the processes that the other tests start and kill"]
fn process() {
    match std::env::var("DENIZEN_TEST_ROLE").as_deref() {
        Ok("echo") => echo(),
        Ok("host") => host(),
        other => panic!("role {other:?}"),
    }
}

fn echo() -> ! {
    let peer = PeerEnd::attach_inherited(FD).unwrap();
    loop {
        match peer.recv(16, Some(PATIENCE)) {
            Ok(messages) => {
                assert!(!messages.is_empty(), "idle too long");
                for message in messages {
                    match peer.send(&message.envelope, message.attachment.as_deref()) {
                        Ok(()) | Err(ArenaError::PeerGone { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            Err(ArenaError::PeerGone { .. }) => std::process::exit(HOST_GONE),
            Err(error) => panic!("{error}"),
        }
    }
}

/// A front end with one worker; killed somewhere on the way.
fn host() {
    let (host, child) = HostEnd::create(&Config::text("echo", 1)).unwrap();
    let mut command = role("echo", None);
    child.inherit(&mut command, FD);
    let mut worker = command.spawn().unwrap();
    drop(command);
    for number in 0..100 {
        host.send(&payload(number), None).unwrap();
        let messages = host.recv(1, Some(PATIENCE)).unwrap();
        assert_eq!(messages[0].envelope, payload(number));
    }
    worker.kill().unwrap();
    worker.wait().unwrap();
    panic!("the failpoint was never passed");
}

fn start_echo(failpoint: Option<&str>) -> (HostEnd, Child) {
    let (host, child) = HostEnd::create(&Config::text("echo", 1)).unwrap();
    let mut command = role("echo", failpoint);
    command.stdout(Stdio::null());
    child.inherit(&mut command, FD);
    let process = command.spawn().unwrap();
    (host, process)
}

fn listed() -> BTreeSet<String> {
    std::fs::read_dir("/dev/shm")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter(|name| name.starts_with("denizen-") || name.starts_with("sem.denizen-"))
        .collect()
}

/// What the host receives from a worker that dies: whole messages, in order, then the notice of its death.
fn drain_until_gone(host: &HostEnd) -> u64 {
    let mut received = 0;
    loop {
        match host.recv(16, Some(PATIENCE)) {
            Ok(messages) => {
                assert!(
                    !messages.is_empty(),
                    "its death was not noticed in {PATIENCE:?}"
                );
                for message in messages {
                    assert_eq!(message.envelope, payload(received));
                    received += 1;
                }
            }
            Err(ArenaError::PeerGone { .. }) => return received,
            Err(error) => panic!("{error}"),
        }
    }
}

/// The worker dies: published messages arrive whole, unpublished ones never, nothing needs repair, no name is left.
#[test]
fn a_worker_killed_at_any_point_leaves_nothing_behind() {
    for (failpoint, arrive) in [
        ("peer.opened", 0..=0),
        ("peer.attached", 0..=0),
        ("recv.copied:7", 0..=6),
        ("recv.returned:7", 0..=6),
        ("send.stored:7", 6..=6),
        ("send.written:7", 6..=6),
        ("send.published:7", 7..=7),
    ] {
        let (host, mut process) = start_echo(Some(failpoint));
        let names = [host.names().0.to_string(), host.names().1.to_string()];
        for number in 0..12 {
            match host.send(&payload(number), None) {
                Ok(()) | Err(ArenaError::PeerGone { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        let received = drain_until_gone(&host);
        assert!(
            arrive.contains(&received),
            "{failpoint}: {received} messages"
        );
        assert_eq!(
            process.wait().unwrap().signal(),
            Some(SIGKILL),
            "{failpoint}"
        );
        assert_eq!(host.poll_socket().unwrap(), Link::Gone);
        let error = host.send(b"x", None).unwrap_err().to_string();
        assert!(
            error.contains("echo") && error.contains("died or was killed"),
            "{error}"
        );
        drop(host);
        assert!(
            listed().is_disjoint(&names.into()),
            "{failpoint} left its names"
        );
    }
}

/// The front end dies: the worker ends by itself (the pipe that both hold reaches its end), and what is left in
/// `/dev/shm` goes with the next start's sweep.
#[test]
fn a_front_end_killed_at_any_point_leaves_no_orphan_and_no_object() {
    for failpoint in [
        "host.created_one",
        "host.created",
        "host.unlinked",
        "send.stored:9",
        "send.written:9",
        "send.published:9",
        "recv.copied:9",
        "recv.returned:9",
    ] {
        let before = listed();
        let mut process = role("host", Some(failpoint))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pipe = process.stdout.take().unwrap();
        assert_eq!(
            process.wait().unwrap().signal(),
            Some(SIGKILL),
            "{failpoint}"
        );
        let started = Instant::now();
        let mut text = String::new();
        pipe.read_to_string(&mut text).unwrap();
        assert!(
            started.elapsed() < PATIENCE,
            "{failpoint}: the worker lived on"
        );
        assert!(!text.contains("panicked"), "{text}");

        let left: Vec<String> = listed().difference(&before).cloned().collect();
        sweep().unwrap();
        let alive = alive(&left);
        assert!(listed()
            .intersection(&left.into_iter().collect())
            .all(|name| alive.contains(name)));
    }
}

/// Those of `names` whose lock somebody holds: other processes' objects, made meanwhile.
fn alive(names: &[String]) -> BTreeSet<String> {
    use rustix::fs::{flock, FlockOperation};
    names
        .iter()
        .filter(|name| {
            std::fs::File::open(format!("/dev/shm/{name}"))
                .is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
        })
        .cloned()
        .collect()
}

/// Each role in a loop, as an impatient supervisor or the OOM killer would.
#[test]
fn shm_objects_do_not_pile_up_over_fifty_kills() {
    let mut names = BTreeSet::new();
    for round in 0..50u64 {
        let failpoint = format!("send.published:{}", 1 + round % 4);
        let (host, mut process) = start_echo(Some(&failpoint));
        names.extend([host.names().0.to_string(), host.names().1.to_string()]);
        for number in 0..5 {
            match host.send(&payload(number), None) {
                Ok(()) | Err(ArenaError::PeerGone { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(drain_until_gone(&host), 1 + round % 4);
        process.wait().unwrap();
    }
    assert!(listed().is_disjoint(&names));
}
