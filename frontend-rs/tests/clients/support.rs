//! A server with clients over shared memory, and a client that speaks the protocol by hand.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use denizen_frontend::clients::{Clients, Place};
use denizen_frontend::http::{App, HttpConfig};
use denizen_frontend::route::Backend;
use denizen_shm::{ArenaError, Invitation, PeerEnd};
use rmp::encode as put;
use rmp::Marker;
use serde_json::{json, Map, Value};

pub const PATIENCE: Duration = Duration::from_secs(20);

pub const WELCOME: u64 = 32;
pub const CALL: u64 = 33;
pub const CANCEL: u64 = 34;
pub const CHUNK: u64 = 35;
pub const RESULT: u64 = 36;
pub const FAILED: u64 = 37;
pub const BYE: u64 = 38;
pub const PART: u64 = 39;

/// A server's side. Its tasks run on threads of their own, so that a test may block.
pub struct Served {
    runtime: tokio::runtime::Runtime,
    clients: Option<Clients>,
    app: Arc<App>,
    folder: PathBuf,
}

impl Served {
    pub fn start(backend: Arc<dyn Backend>) -> Self {
        Self::with(HttpConfig::default(), backend, 64)
    }

    pub fn with(config: HttpConfig, backend: Arc<dyn Backend>, limit: usize) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("denizen-clients-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let app = App::new(config, backend);
        let place = Place::at(&folder.join("test.sock")).unwrap();
        let clients = {
            let _inside = runtime.enter();
            Clients::start(app.clone(), place, limit)
        };
        Self {
            runtime,
            clients: Some(clients),
            app,
            folder,
        }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.join("test.sock")
    }

    pub fn client(&self) -> Client {
        self.try_client(false).unwrap()
    }

    pub fn try_client(&self, audio: bool) -> Result<Client, ArenaError> {
        let arena = Invitation::request(&self.path(), audio, PATIENCE)?.attach()?;
        let mut client = Client {
            arena,
            request: 0,
            sequence: 0,
            early: Vec::new(),
        };
        let welcome = client.next();
        assert_eq!((welcome.kind, welcome.request), (WELCOME, 0));
        client.early.push(welcome);
        Ok(client)
    }

    pub fn metrics(&self) -> String {
        self.app.metrics()
    }

    /// Waits until `/metrics` has this line.
    pub fn until_metric(&self, line: &str) {
        until(line, || self.metrics().lines().any(|found| found == line));
    }

    /// Stops as a server does; open calls get `patience`.
    pub fn stop(&mut self, patience: Duration) {
        let clients = self.clients.take().unwrap();
        self.runtime.block_on(clients.stop(patience));
    }

    /// Begins that without waiting.
    pub fn stopping(&mut self, patience: Duration) -> tokio::task::JoinHandle<()> {
        let clients = self.clients.take().unwrap();
        self.runtime.spawn(clients.stop(patience))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Polls until `condition` holds.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "it never came to this: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[derive(Debug)]
pub struct Envelope {
    pub kind: u64,
    pub request: u64,
    pub body: Value,
    pub attachment: Option<Vec<u8>>,
}

pub struct Client {
    pub arena: PeerEnd,
    request: u64,
    sequence: u64,
    early: Vec<Envelope>,
}

impl Client {
    pub fn welcome(&self) -> &Value {
        &self.early[0].body
    }

    /// The next envelope from the front end.
    pub fn next(&mut self) -> Envelope {
        self.try_next().expect("the front end has gone")
    }

    pub fn try_next(&mut self) -> Result<Envelope, ArenaError> {
        let message = self.arena.recv(1, Some(PATIENCE))?;
        let message = message.into_iter().next().expect("nothing came");
        let mut bytes = &message.envelope[..];
        let Value::Array(parts) = unpack(&mut bytes) else {
            panic!("no array")
        };
        assert!(bytes.is_empty());
        let [version, kind, request, _sequence, body] = <[Value; 5]>::try_from(parts).unwrap();
        assert_eq!(version, 1);
        Ok(Envelope {
            kind: kind.as_u64().unwrap(),
            request: request.as_u64().unwrap(),
            body,
            attachment: message.attachment,
        })
    }

    pub fn send(&mut self, kind: u64, request: u64, body: &Value, attachment: Option<&[u8]>) {
        let mut packed = Vec::new();
        pack(&mut packed, body);
        self.send_packed(kind, request, &packed, attachment);
    }

    pub fn send_packed(&mut self, kind: u64, request: u64, body: &[u8], attachment: Option<&[u8]>) {
        let mut bytes = vec![0x95];
        for number in [1, kind, request, self.sequence] {
            put::write_uint(&mut bytes, number).unwrap();
        }
        bytes.extend_from_slice(body);
        self.sequence += 1;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.arena.send(&bytes, attachment) {
                Err(ArenaError::SlabFull { .. } | ArenaError::RingFull { .. })
                    if Instant::now() < deadline =>
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                sent => return sent.unwrap(),
            }
        }
    }

    /// Begins a call; returns its number.
    pub fn call(&mut self, endpoint: &str, body: Value) -> u64 {
        self.request += 1;
        let body = json!({"endpoint": endpoint, "body": body});
        self.send(CALL, self.request, &body, None);
        self.request
    }

    /// Everything up to the terminal of a call, parts put together.
    pub fn whole(&mut self, request: u64) -> (Vec<Envelope>, Envelope) {
        let (mut chunks, mut parts) = (Vec::new(), Vec::new());
        loop {
            let envelope = self.next();
            assert_eq!(envelope.request, request, "{envelope:?}");
            match envelope.kind {
                CHUNK => chunks.push(envelope),
                PART => parts.extend(envelope.attachment.unwrap()),
                RESULT | FAILED => return (chunks, joined(envelope, parts)),
                _ => panic!("{envelope:?}"),
            }
        }
    }

    /// The result of a call that succeeds.
    pub fn result(&mut self, endpoint: &str, body: Value) -> Value {
        let request = self.call(endpoint, body);
        let (_, terminal) = self.whole(request);
        assert_eq!(terminal.kind, RESULT, "{terminal:?}");
        terminal.body
    }

    /// The failure of one that does not.
    pub fn failure(&mut self, endpoint: &str, body: Value) -> Value {
        let request = self.call(endpoint, body);
        let (_, terminal) = self.whole(request);
        assert_eq!(terminal.kind, FAILED, "{terminal:?}");
        terminal.body
    }

    /// The front end hangs up, perhaps after a BYE, whose code is returned.
    pub fn until_gone(&mut self) -> Option<String> {
        let mut code = None;
        loop {
            match self.try_next() {
                Ok(envelope) if envelope.kind == BYE => {
                    code = Some(envelope.body["code"].as_str().unwrap().to_owned());
                }
                Ok(_) => {}
                Err(ArenaError::PeerGone { .. }) => return code,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// A terminal with the result that came in parts before it.
pub fn joined(mut terminal: Envelope, mut parts: Vec<u8>) -> Envelope {
    if let Some(length) = terminal.body.get("result_len").and_then(Value::as_u64) {
        parts.extend(terminal.attachment.take().unwrap());
        assert_eq!(parts.len() as u64, length);
        let mut bytes = &parts[..];
        terminal.body["result"] = unpack(&mut bytes);
        assert!(bytes.is_empty());
    } else {
        assert!(parts.is_empty());
    }
    terminal
}

/// All of one key's texts.
pub fn text_of(chunks: &[Envelope], key: &str) -> String {
    let texts = chunks.iter().filter_map(|chunk| chunk.body[key].as_str());
    texts.collect()
}

pub fn pack(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => put::write_nil(out).unwrap(),
        Value::Bool(value) => put::write_bool(out, *value).unwrap(),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(value), _) => drop(put::write_uint(out, value).unwrap()),
            (_, Some(value)) => drop(put::write_sint(out, value).unwrap()),
            _ => put::write_f64(out, number.as_f64().unwrap()).unwrap(),
        },
        Value::String(text) => put::write_str(out, text).unwrap(),
        Value::Array(list) => {
            put::write_array_len(out, list.len() as u32).unwrap();
            list.iter().for_each(|value| pack(out, value));
        }
        Value::Object(map) => {
            put::write_map_len(out, map.len() as u32).unwrap();
            for (key, value) in map {
                put::write_str(out, key).unwrap();
                pack(out, value);
            }
        }
    }
}

/// Another reader than the server's own.
pub fn unpack(bytes: &mut &[u8]) -> Value {
    fn number(bytes: &mut &[u8], width: usize) -> u64 {
        let (head, rest) = bytes.split_at(width);
        *bytes = rest;
        head.iter()
            .fold(0, |value, byte| value << 8 | u64::from(*byte))
    }
    fn text(bytes: &mut &[u8], length: u64) -> Value {
        let (head, rest) = bytes.split_at(length as usize);
        *bytes = rest;
        Value::String(String::from_utf8(head.to_vec()).unwrap())
    }
    fn list(bytes: &mut &[u8], length: u64) -> Value {
        (0..length).map(|_| unpack(bytes)).collect()
    }
    fn map(bytes: &mut &[u8], length: u64) -> Value {
        let mut map = Map::new();
        for _ in 0..length {
            let Value::String(key) = unpack(bytes) else {
                panic!("a key that is no string")
            };
            map.insert(key, unpack(bytes));
        }
        Value::Object(map)
    }
    match Marker::from_u8(number(bytes, 1) as u8) {
        Marker::Null => Value::Null,
        Marker::True => true.into(),
        Marker::False => false.into(),
        Marker::FixPos(value) => value.into(),
        Marker::FixNeg(value) => value.into(),
        Marker::U8 => number(bytes, 1).into(),
        Marker::U16 => number(bytes, 2).into(),
        Marker::U32 => number(bytes, 4).into(),
        Marker::U64 => number(bytes, 8).into(),
        Marker::I8 => (number(bytes, 1) as u8 as i8).into(),
        Marker::I16 => (number(bytes, 2) as u16 as i16).into(),
        Marker::I32 => (number(bytes, 4) as u32 as i32).into(),
        Marker::I64 => (number(bytes, 8) as i64).into(),
        Marker::F64 => f64::from_bits(number(bytes, 8)).into(),
        Marker::FixStr(length) => text(bytes, u64::from(length)),
        Marker::Str8 => number(bytes, 1).pipe(|length| text(bytes, length)),
        Marker::Str16 => number(bytes, 2).pipe(|length| text(bytes, length)),
        Marker::Str32 => number(bytes, 4).pipe(|length| text(bytes, length)),
        Marker::FixArray(length) => list(bytes, u64::from(length)),
        Marker::Array16 => number(bytes, 2).pipe(|length| list(bytes, length)),
        Marker::Array32 => number(bytes, 4).pipe(|length| list(bytes, length)),
        Marker::FixMap(length) => map(bytes, u64::from(length)),
        Marker::Map16 => number(bytes, 2).pipe(|length| map(bytes, length)),
        Marker::Map32 => number(bytes, 4).pipe(|length| map(bytes, length)),
        other => panic!("{other:?}"),
    }
}

trait Pipe: Sized {
    fn pipe<T>(self, f: impl FnOnce(Self) -> T) -> T {
        f(self)
    }
}
impl Pipe for u64 {}
