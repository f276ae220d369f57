//! Clients that send what no client sends: they are cut off, others are not.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use denizen_frontend::route::FinishReason;
use denizen_shm::{Invitation, PeerEnd};
use nix::sys::socket::{
    connect, recv, send, socket, AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::json;

use crate::audio::{bytes, done, tiny, Scripted};
use crate::support::{pack, until, Client, Served, CALL, PART, PATIENCE};

fn served() -> Served {
    Served::start(Scripted::new(vec![tiny()], |_| {
        [bytes("ab"), vec![done(FinishReason::Stop)]].concat()
    }))
}

fn works(client: &mut Client) {
    let body = client.result("completions", json!({"model": "tiny", "prompt": "x"}));
    assert_eq!(body["result"]["choices"][0]["text"], "ab");
}

/// Sends these bytes as an envelope, and is cut off with a word why.
fn cut_off(served: &Served, envelope: &[u8]) {
    let mut client = served.client();
    client.arena.send(envelope, None).unwrap();
    assert_eq!(
        client.until_gone().as_deref(),
        Some("protocol"),
        "{envelope:?}"
    );
}

#[test]
fn broken_envelopes_cut_their_client_off_and_no_other() {
    let served = served();
    let mut good = served.client();
    let cases: [&[u8]; 9] = [
        b"",
        b"\xc1",
        b"hello",
        &[0x94, 1, 33, 1, 0],
        &[0x95, 2, 33, 1, 0, 0x80],
        &[0x95, 1, 1, 1, 0, 0x80],
        &[0x95, 1, 34, 0, 0, 0x80],
        &[0x95, 1, 33, 1, 0, 0x80],
        &[0x95, 1, 33, 1, 0, 0xdf, 0xff, 0xff, 0xff, 0xff],
    ];
    for case in cases {
        cut_off(&served, case);
        works(&mut good);
    }
    served.until_metric("denizen_shm_cut_off_total{reason=\"envelope\"} 9");
    served.until_metric("denizen_shm_clients 1");
}

#[test]
fn a_number_in_use_and_parts_beyond_the_announced_cut_off() {
    let served = served();
    let waiting = json!({"endpoint": "completions", "body_len": 10});
    let mut client = served.client();
    client.send(CALL, 1, &waiting, None);
    client.send(CALL, 1, &waiting, None);
    assert_eq!(client.until_gone().as_deref(), Some("protocol"));
    let mut client = served.client();
    client.send(CALL, 1, &waiting, Some(&[0; 6]));
    client.send(PART, 1, &json!({}), Some(&[0; 5]));
    assert_eq!(client.until_gone().as_deref(), Some("protocol"));
    let mut client = served.client();
    let nothing_more = json!({"endpoint": "completions", "body_len": 10, "audio_len": 0});
    client.send(CALL, 1, &nothing_more, Some(&[0; 11]));
    assert_eq!(client.until_gone().as_deref(), Some("protocol"));
    works(&mut served.client());
}

#[test]
fn parts_of_a_call_that_has_ended_are_ignored() {
    let served = served();
    let mut client = served.client();
    let too_long = json!({"endpoint": "completions", "body_len": 1u64 << 40});
    client.send(CALL, 1, &too_long, None);
    let (_, end) = client.whole(1);
    assert_eq!(end.body["status"], 413);
    client.send(PART, 1, &json!({}), Some(&[0; 1000]));
    client.send(PART, 99, &json!({}), Some(&[0; 1000]));
    works(&mut client);
}

/// A body that is no body fails its call; its client goes on.
#[test]
fn broken_bodies_fail_their_call_alone() {
    let served = served();
    let mut client = served.client();
    let mut number = 0;
    let mut fails = |body: &[u8], status: u64| {
        number += 1;
        let mut packed = vec![0x82];
        pack(&mut packed, &json!("endpoint"));
        pack(&mut packed, &json!("completions"));
        pack(&mut packed, &json!("body"));
        packed.extend(body);
        client.send_packed(CALL, number, &packed, None);
        let (_, end) = client.whole(number);
        assert_eq!(end.body["status"], status, "{end:?}");
    };
    fails(&[0x80], 400);
    fails(&[0x01], 400);
    fails(&[&[0x91; 5000][..], &[0xc0]].concat(), 400);
    fails(
        &[&[0x81, 0xa1, b'x'][..], &[0x91; 5000], &[0xc0]].concat(),
        400,
    );
    fails(
        &[
            0x81, 0xa6, b'p', b'r', b'o', b'm', b'p', b't', 0xc4, 3, 1, 2, 3,
        ],
        400,
    );
    works(&mut client);
}

#[test]
fn whoever_greets_badly_is_refused() {
    let served = served();
    // A stream socket does not connect to one of packets.
    assert!(UnixStream::connect(served.path()).is_err());
    let address = UnixAddr::new(&served.path()).unwrap();
    let connected = || {
        let (family, kind) = (AddressFamily::Unix, SockType::SeqPacket);
        let socket = socket(family, kind, SockFlag::empty(), None).unwrap();
        connect(socket.as_raw_fd(), &address).unwrap();
        socket
    };
    let greet = |packet: &[u8]| {
        let socket = connected();
        send(socket.as_raw_fd(), packet, MsgFlags::MSG_NOSIGNAL).unwrap();
        let mut answer = [0; 1024];
        let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty()).unwrap();
        String::from_utf8_lossy(&answer[..length]).into_owned()
    };
    for packet in [&b"GET / HTTP/1.1"[..], b"DZCL", &[0; 1000]] {
        assert!(greet(packet).starts_with("DZNO"));
    }
    let other_version = [&b"DZCL"[..], &9u32.to_le_bytes(), &[0; 16]].concat();
    assert!(greet(&other_version).contains("ABI 9."));
    served.until_metric("denizen_shm_refused_total{reason=\"hello\"} 3");
    served.until_metric("denizen_shm_refused_total{reason=\"version\"} 1");
    // Gone before a word.
    drop(connected());
    served.until_metric("denizen_shm_refused_total{reason=\"hello\"} 4");
    works(&mut served.client());
}

#[test]
fn one_that_refuses_to_attach_is_counted_and_leaves_nothing() {
    let served = served();
    let invitation = Invitation::request(&served.path(), false, PATIENCE).unwrap();
    let names = [
        invitation.requests().to_owned(),
        invitation.results().to_owned(),
        format!("sem.{}", invitation.bell()),
    ];
    invitation.refuse("no");
    served.until_metric("denizen_shm_cut_off_total{reason=\"attach\"} 1");
    let gone = |name: &String| !Path::new("/dev/shm").join(name).exists();
    until("the names are gone", || names.iter().all(gone));
    // Gone instead of attached: nothing is wrong with that.
    drop(Invitation::request(&served.path(), false, PATIENCE).unwrap());
    served.until_metric("denizen_shm_clients 0");
    works(&mut served.client());
}

/// A client, and the object that it writes as a file: for what no arena end writes.
fn scribbler(served: &Served) -> (PeerEnd, File) {
    let invitation = Invitation::request(&served.path(), false, PATIENCE).unwrap();
    let path = Path::new("/dev/shm").join(invitation.results());
    let file = File::options().write(true).open(path).unwrap();
    (invitation.attach().unwrap(), file)
}

#[test]
fn scribbles_in_its_object_cut_a_client_off() {
    let served = served();
    let mut good = served.client();
    // TAIL far beyond the ring, HEAD beyond what was written, RETURNS_TAIL beyond all slots: each found by a message.
    for at in [512, 640, 896] {
        let (client, file) = scribbler(&served);
        client.recv(1, Some(PATIENCE)).unwrap();
        client.send(&[0x95, 1, 33, 1, 0, 0x80], None).unwrap();
        file.write_all_at(&u64::MAX.to_le_bytes(), at).unwrap();
        client.send(&[0x95, 1, 34, 1, 0, 0x80], None).ok();
        drop(client);
        until("it is cut off, or has gone", || {
            served.metrics().contains("denizen_shm_clients 1\n")
        });
        works(&mut good);
    }
    // A descriptor of nonsense behind a good one. The client's own end writes over it with its next message, which
    // rings the front end: so again and again, until the front end has seen it.
    let (client, file) = scribbler(&served);
    client.recv(1, Some(PATIENCE)).unwrap();
    let mut sent = 0;
    until("the descriptor is seen", || {
        if client.send(&[0x95, 1, 34, 1, 0, 0x80], None).is_ok() {
            sent += 1;
            let next = 4096 + 256 * (sent % 128);
            file.write_all_at(&[0xff; 256], next).unwrap();
            file.write_all_at(&(sent + 1).to_le_bytes(), 512).unwrap();
        }
        served.metrics().contains("denizen_shm_clients 1\n")
    });
    assert!(served.metrics().contains("cut_off_total{reason=\"arena\"}"));
    works(&mut good);
}

/// Any bytes: the client is cut off, or answered; the server lives.
#[test]
fn any_envelope_is_survived() {
    let served = served();
    let anything = proptest::collection::vec(any::<u8>(), 0..300);
    let framed = (
        30u8..42,
        0u8..3,
        proptest::collection::vec(any::<u8>(), 0..100),
    )
        .prop_map(|(kind, request, body)| [&[0x95, 1, kind, request, 0][..], &body].concat());
    let attachment = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..300));
    let envelopes = proptest::collection::vec(prop_oneof![anything, framed], 1..4);
    let mut runner = TestRunner::new(ProptestConfig::with_cases(64));
    let case = |(envelopes, attachment): (Vec<Vec<u8>>, Option<Vec<u8>>)| {
        let client = served.client();
        for envelope in &envelopes {
            // It may have been cut off meanwhile.
            let _ = client.arena.send(envelope, attachment.as_deref());
        }
        drop(client);
        works(&mut served.client());
        Ok(())
    };
    runner.run(&(envelopes, attachment), case).unwrap();
}
