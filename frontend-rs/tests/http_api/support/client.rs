//! A small HTTP/1.1 client that shows exactly what comes over the wire.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the body is UTF-8")
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// The body of a success.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// Checks an error's shape, status and parameter, and gives its message.
    #[track_caller]
    pub fn error(&self, status: u16, param: Option<&str>) -> String {
        let body = self.json();
        let error = &body["error"];
        assert_eq!(self.status, status, "{body}");
        assert_eq!(error["param"].as_str(), param, "{body}");
        assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
        let keys: Vec<&str> = error
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        assert_eq!(keys, ["message", "type", "param", "code"], "{body}");
        assert_eq!(self.header("content-type"), Some("application/json"));
        error["message"].as_str().expect("a message").to_owned()
    }

    pub fn code(&self) -> Value {
        self.json()["error"]["code"].clone()
    }
}

fn head(method: &str, path: &str, headers: &[(&str, &str)], length: usize) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let chunked = headers.iter().any(|(name, _)| *name == "transfer-encoding");
    if !chunked && (length > 0 || method == "POST") {
        head.push_str(&format!("content-length: {length}\r\n"));
    }
    head + "\r\n"
}

pub async fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Reply {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let mut bytes = head(method, path, headers, body.len()).into_bytes();
    bytes.extend_from_slice(body);
    socket.write_all(&bytes).await.unwrap();
    let mut reader = Reader {
        socket,
        buffer: Vec::new(),
    };
    reader.reply().await
}

/// Sends a request and gives back the open connection, nothing of the answer read.
pub async fn send(address: SocketAddr, path: &str, body: &Value) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let body = body.to_string();
    let head = head(
        "POST",
        path,
        &[("content-type", "application/json")],
        body.len(),
    );
    socket.write_all((head + &body).as_bytes()).await.unwrap();
    socket
}

struct Reader {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Reader {
    /// False at the end of the connection.
    async fn more(&mut self) -> bool {
        self.socket.read_buf(&mut self.buffer).await.unwrap_or(0) > 0
    }

    async fn line(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|w| w == b"\r\n") {
                let rest = self.buffer.split_off(at + 2);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.truncate(at);
                return Some(line);
            }
            if !self.more().await {
                return None;
            }
        }
    }

    async fn take(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < length {
            if !self.more().await {
                return None;
            }
        }
        let rest = self.buffer.split_off(length);
        Some(std::mem::replace(&mut self.buffer, rest))
    }

    async fn head(&mut self) -> Reply {
        let line = String::from_utf8(self.line().await.expect("a status line")).unwrap();
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = String::from_utf8(self.line().await.expect("a header")).unwrap();
            let Some((name, value)) = line.split_once(':') else {
                break;
            };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Reply {
            status,
            headers,
            body: Vec::new(),
        }
    }

    /// The next piece of a chunked body; `None` at its proper end, panics if it breaks off.
    async fn chunk(&mut self) -> Option<Vec<u8>> {
        let line = String::from_utf8(self.line().await.expect("the body broke off")).unwrap();
        let length = usize::from_str_radix(line.trim(), 16).unwrap();
        let mut chunk = self.take(length + 2).await.expect("the body broke off");
        chunk.truncate(length);
        (length > 0).then_some(chunk)
    }

    async fn reply(&mut self) -> Reply {
        let mut reply = self.head().await;
        if reply.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk().await {
                reply.body.extend(chunk);
            }
        } else if let Some(length) = reply.header("content-length") {
            let length = length.parse().unwrap();
            reply.body = self.take(length).await.expect("the body broke off");
        }
        reply
    }
}

/// A response of server-sent events. Dropping it closes the connection.
pub struct Stream {
    pub head: Reply,
    reader: Reader,
    text: Vec<u8>,
}

impl Stream {
    pub async fn open(address: SocketAddr, path: &str, body: &Value) -> Self {
        let socket = send(address, path, body).await;
        Self::on(socket).await
    }

    pub async fn on(socket: TcpStream) -> Self {
        let mut reader = Reader {
            socket,
            buffer: Vec::new(),
        };
        let mut head = reader.head().await;
        if head.status != 200 {
            if let Some(length) = head.header("content-length") {
                head.body = reader.take(length.parse().unwrap()).await.unwrap();
            }
            panic!("{}: {}", head.status, head.text());
        }
        assert_eq!(
            head.header("content-type"),
            Some("text/event-stream; charset=utf-8")
        );
        Self {
            head,
            reader,
            text: Vec::new(),
        }
    }

    /// The data of the next event; `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.text.windows(2).position(|w| w == b"\n\n") {
                let rest = self.text.split_off(at + 2);
                let mut event = std::mem::replace(&mut self.text, rest);
                event.truncate(at);
                let event = String::from_utf8(event).expect("each event is UTF-8");
                assert!(!event.contains('\n'), "an event of one line: {event:?}");
                return Some(
                    event
                        .strip_prefix("data: ")
                        .expect("a data line")
                        .to_owned(),
                );
            }
            match self.reader.chunk().await {
                Some(chunk) => self.text.extend(chunk),
                None => {
                    assert!(self.text.is_empty(), "half an event at the end");
                    return None;
                }
            }
        }
    }

    pub async fn rest(mut self) -> Vec<String> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

/// The JSON of each event but a last `[DONE]`, which must be there.
#[track_caller]
pub fn chunks(events: &[String]) -> Vec<Value> {
    let (last, chunks) = events.split_last().expect("events");
    assert_eq!(last, "[DONE]");
    chunks
        .iter()
        .map(|event| serde_json::from_str(event).expect("each event is JSON"))
        .collect()
}

/// All of a choice's text under a field of `delta` (`content`, `reasoning_content`), or of `text` for completions.
pub fn joined(chunks: &[Value], index: u64, field: &str) -> String {
    let choices = chunks
        .iter()
        .flat_map(|chunk| chunk["choices"].as_array().unwrap());
    let of_index = choices.filter(|choice| choice["index"] == index);
    of_index
        .filter_map(|choice| {
            choice["delta"]
                .get(field)
                .or_else(|| choice.get(field))?
                .as_str()
        })
        .collect()
}
