//! How calls and clients end.

use std::time::Duration;

use denizen_frontend::http::HttpConfig;
use denizen_frontend::route::FinishReason;
use denizen_shm::ArenaError;
use serde_json::json;

use crate::audio::{bytes, done, tiny, Scripted, Step};
use crate::support::{until, Served, BYE, CANCEL, FAILED, RESULT};

fn hangs() -> std::sync::Arc<Scripted> {
    Scripted::new(vec![tiny()], |_| [bytes("ab"), vec![Step::Hang]].concat())
}

fn body() -> serde_json::Value {
    json!({"model": "tiny", "prompt": "x", "stream": true, "max_tokens": 100})
}

#[test]
fn a_cancelled_call_gets_one_end_and_frees_its_row() {
    let backend = hangs();
    let served = Served::start(backend.clone());
    let mut client = served.client();
    let call = client.call("completions", body());
    client.next();
    client.send(CANCEL, call, &json!({}), None);
    client.send(CANCEL, call, &json!({}), None);
    let (_, end) = client.whole(call);
    assert_eq!((end.kind, &end.body["status"]), (FAILED, &json!(499)));
    assert_eq!(end.body["error"]["code"], "cancelled");
    until("the row is free", || backend.live() == 0);
    assert_eq!(backend.aborted(), 1);
    // The number is free again, and nothing else came.
    let models = client.result("models", json!({}));
    assert!(models["result"].is_object());
    served.until_metric("denizen_shm_requests_total{endpoint=\"completions\",status=\"499\"} 1");
    assert!(served.metrics().contains("denizen_http_in_flight 0"));
}

#[test]
fn cancelling_what_is_not_open_is_ignored() {
    let backend = Scripted::new(vec![tiny()], |_| {
        [bytes("ab"), vec![done(FinishReason::Stop)]].concat()
    });
    let served = Served::start(backend);
    let mut client = served.client();
    client.send(CANCEL, 77, &json!({}), None);
    let call = client.call("completions", body());
    let (_, end) = client.whole(call);
    assert_eq!(end.kind, RESULT);
    client.send(CANCEL, call, &json!({}), None);
    client.result("models", json!({}));
}

#[test]
fn a_client_that_goes_leaves_no_work_behind() {
    let backend = hangs();
    let served = Served::start(backend.clone());
    let mut client = served.client();
    for _ in 0..5 {
        client.call("completions", body());
    }
    until("all run", || backend.live() == 5);
    drop(client);
    until("none runs", || backend.live() == 0);
    served.until_metric("denizen_shm_clients 0");
    served.until_metric("denizen_http_in_flight 0");
    // One that left is no one that was cut off.
    assert!(!served
        .metrics()
        .lines()
        .any(|line| line.starts_with("denizen_shm_cut_off_total") && !line.ends_with(" 0")));
}

#[test]
fn a_request_that_takes_too_long_fails_with_504() {
    let config = HttpConfig {
        request_timeout: Duration::from_millis(100),
        ..HttpConfig::default()
    };
    let served = Served::with(config, hangs(), 4);
    let mut client = served.client();
    for stream in [true, false] {
        let mut body = body();
        body["stream"] = stream.into();
        let failed = client.failure("completions", body);
        assert_eq!(
            (&failed["status"], &failed["error"]["code"]),
            (&json!(504), &json!("timeout"))
        );
    }
}

#[test]
fn a_stopping_server_lets_calls_end_and_says_goodbye() {
    let backend = Scripted::new(vec![tiny()], |_| {
        [
            vec![Step::Gate],
            bytes("ab"),
            vec![done(FinishReason::Stop)],
        ]
        .concat()
    });
    let mut served = Served::start(backend.clone());
    let mut client = served.client();
    let idle = served.client();
    let call = client.call("completions", body());
    until("it runs", || backend.live() == 1);
    let stopping = served.stopping(Duration::from_secs(20));
    let mut idle = idle;
    assert_eq!(idle.until_gone().as_deref(), Some("shutting_down"));
    assert!(!stopping.is_finished());
    backend.gate.add_permits(1);
    let (_, end) = client.whole(call);
    assert_eq!(end.kind, RESULT);
    let bye = client.next();
    assert_eq!(
        (bye.kind, &bye.body["code"]),
        (BYE, &json!("shutting_down"))
    );
    assert!(matches!(
        client.try_next(),
        Err(ArenaError::PeerGone { .. })
    ));
    until("it has stopped", || stopping.is_finished());
    assert!(!served.path().exists());
}

#[test]
fn a_call_that_does_not_end_is_cut_off_at_last() {
    let backend = hangs();
    let mut served = Served::start(backend.clone());
    let mut client = served.client();
    client.call("completions", body());
    until("it runs", || backend.live() == 1);
    served.stop(Duration::from_millis(50));
    assert_eq!(client.until_gone().as_deref(), Some("shutting_down"));
    until("it is aborted", || backend.live() == 0);
}

#[test]
fn a_draining_server_refuses_new_calls() {
    let backend = hangs();
    let served = Served::start(backend.clone());
    let mut client = served.client();
    backend
        .draining
        .store(true, std::sync::atomic::Ordering::SeqCst);
    let failed = client.failure("completions", body());
    assert_eq!(
        (&failed["status"], &failed["error"]["code"]),
        (&json!(503), &json!("shutting_down"))
    );
    assert_eq!(failed["retry_after_s"], 5);
}

#[test]
fn clients_beyond_the_limit_are_refused_until_one_goes() {
    let served = Served::with(HttpConfig::default(), hangs(), 2);
    let (first, _second) = (served.client(), served.client());
    let refused = served.try_client(false).map(drop).unwrap_err();
    assert!(
        matches!(&refused, ArenaError::Uninvited(why) if why.contains("--shm-clients")),
        "{refused}"
    );
    served.until_metric("denizen_shm_refused_total{reason=\"clients\"} 1");
    drop(first);
    until("there is room", || served.try_client(false).is_ok());
}

#[test]
fn fifty_clients_are_served_at_once() {
    let backend = Scripted::new(vec![tiny()], |request| {
        [
            bytes([request.prompt[0] as u8; 20]),
            vec![done(FinishReason::Stop)],
        ]
        .concat()
    });
    let served = Served::start(backend);
    let mut clients: Vec<_> = (0..50).map(|_| served.client()).collect();
    served.until_metric("denizen_shm_clients 50");
    let calls: Vec<u64> = (0u8..)
        .zip(&mut clients)
        .map(|(index, client)| {
            let prompt = char::from(b'A' + index).to_string();
            client.call(
                "completions",
                json!({"model": "tiny", "prompt": prompt, "stream": true}),
            )
        })
        .collect();
    for ((index, client), call) in (0u8..).zip(&mut clients).zip(calls) {
        let (chunks, end) = client.whole(call);
        assert_eq!(end.kind, RESULT);
        let expected = char::from(b'A' + index).to_string().repeat(20);
        assert_eq!(crate::support::text_of(&chunks, "text"), expected);
    }
    drop(clients);
    served.until_metric("denizen_shm_clients 0");
}
