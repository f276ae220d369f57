//! Clients that do not take their output.

use std::time::Duration;

use denizen_frontend::http::HttpConfig;
use denizen_frontend::route::FinishReason;
use serde_json::{json, Value};

use crate::audio::{bytes, done, tiny, Scripted};
use crate::support::{joined, text_of, until, Served, CHUNK, FAILED, PART, RESULT};

fn talkative(config: HttpConfig) -> (Served, std::sync::Arc<Scripted>) {
    let backend = Scripted::new(vec![tiny()], |request| match request.prompt[0] as u8 {
        b's' => [bytes("ok"), vec![done(FinishReason::Stop)]].concat(),
        _ => [bytes([b'x'; 20_000]), vec![done(FinishReason::Stop)]].concat(),
    });
    (Served::with(config, backend.clone(), 8), backend)
}

fn body(prompt: &str) -> Value {
    json!({"model": "tiny", "prompt": prompt, "stream": true, "max_tokens": 4000})
}

#[test]
fn a_client_that_stands_still_loses_its_calls_and_nobody_else_any() {
    let config = HttpConfig {
        max_buffered: 64 << 10,
        slow_client_timeout: Duration::from_millis(300),
        ..HttpConfig::default()
    };
    let (served, backend) = talkative(config);
    let (mut still, mut other) = (served.client(), served.client());
    let calls = [
        still.call("completions", body("l")),
        still.call("completions", body("l")),
    ];
    until("both run", || backend.submissions() == 2);
    while backend.live() > 0 {
        let call = other.call("completions", body("s"));
        let (chunks, end) = other.whole(call);
        assert_eq!(
            (text_of(&chunks, "text").as_str(), end.kind),
            ("ok", RESULT)
        );
    }
    served.until_metric("denizen_http_aborted_total{reason=\"slow_client\"} 2");
    served.until_metric("denizen_http_in_flight 0");
    // It wakes up: the beginning of its output, and an end of each call that says why.
    let mut ends = 0;
    let mut chunks = 0;
    while ends < 2 {
        let envelope = still.next();
        assert!(calls.contains(&envelope.request));
        match envelope.kind {
            CHUNK => chunks += 1,
            FAILED => {
                assert_eq!(envelope.body["status"], 408);
                assert_eq!(envelope.body["error"]["code"], "slow_client");
                ends += 1;
            }
            _ => panic!("{envelope:?}"),
        }
    }
    assert!(chunks < 40_000, "not all was kept");
    let call = still.call("completions", body("s"));
    assert_eq!(still.whole(call).1.kind, RESULT);
}

#[test]
fn a_client_that_takes_not_even_the_ends_is_cut_off() {
    let config = HttpConfig {
        max_buffered: 1 << 10,
        slow_client_timeout: Duration::from_millis(100),
        hung_client_timeout: Duration::from_millis(200),
        ..HttpConfig::default()
    };
    let (served, _) = talkative(config);
    let mut still = served.client();
    still.call("completions", body("l"));
    served.until_metric("denizen_shm_cut_off_total{reason=\"hung\"} 1");
    served.until_metric("denizen_shm_clients 0");
    still.until_gone();
}

#[test]
fn a_client_that_reads_slowly_gets_everything() {
    let config = HttpConfig {
        max_buffered: 1,
        ..HttpConfig::default()
    };
    let (served, _) = talkative(config);
    let mut client = served.client();
    let call = client.call("completions", body("l"));
    let (chunks, end) = client.whole(call);
    assert_eq!(end.kind, RESULT);
    assert_eq!(text_of(&chunks, "text").len(), 20_000);
}

#[test]
fn results_in_parts_of_two_calls_are_not_mixed_up() {
    let (served, _) = talkative(HttpConfig::default());
    let mut client = served.client();
    let text = "abcdefgh".repeat(10_000);
    let calls = [1, 2, 3].map(|_| {
        client.call(
            "tokenize",
            json!({"model": "tiny", "prompt": text, "return_token_strs": true}),
        )
    });
    let mut parts = vec![Vec::new(); 3];
    let mut left = 3;
    while left > 0 {
        let envelope = client.next();
        let index = calls
            .iter()
            .position(|call| *call == envelope.request)
            .unwrap();
        match envelope.kind {
            PART => parts[index].extend(envelope.attachment.unwrap()),
            RESULT => {
                let parts = std::mem::take(&mut parts[index]);
                assert!(!parts.is_empty());
                let end = joined(envelope, parts);
                assert_eq!(end.body["result"]["count"], text.len());
                left -= 1;
            }
            _ => panic!("{envelope:?}"),
        }
    }
}

#[test]
fn an_idle_client_costs_no_wake_ups() {
    let (served, _) = talkative(HttpConfig::default());
    let mut client = served.client();
    let call = client.call("completions", body("s"));
    client.whole(call);
    let before = client.arena.stats();
    // Nothing is sent, nothing is rung.
    let idle = client
        .arena
        .recv(1, Some(Duration::from_millis(200)))
        .unwrap();
    let after = client.arena.stats();
    assert!(idle.is_empty());
    assert_eq!(
        (before.received, before.rings),
        (after.received, after.rings)
    );
}
