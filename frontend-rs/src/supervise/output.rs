//! What a worker writes to stdout and stderr: passed on to our stderr, line by line, with its name in front.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::Child;
use tokio::task::JoinSet;

use crate::terminal::Terminal;

/// Longest line that is passed on whole.
const MAX_LINE: usize = 16 << 10;
/// Lines kept to say why a worker died.
const KEPT: usize = 20;

/// The reader tasks of one worker process.
pub struct Output {
    tasks: JoinSet<()>,
    last: Arc<Mutex<VecDeque<String>>>,
}

impl Output {
    pub fn follow(child: &mut Child, name: &str) -> Self {
        let mut output = Self {
            tasks: JoinSet::new(),
            last: Arc::default(),
        };
        if let Some(stdout) = child.stdout.take() {
            output
                .tasks
                .spawn(pass_on(stdout, name.to_owned(), output.last.clone()));
        }
        if let Some(stderr) = child.stderr.take() {
            output
                .tasks
                .spawn(pass_on(stderr, name.to_owned(), output.last.clone()));
        }
        output
    }

    /// After the worker's death: the last line that it wrote, if any.
    pub async fn last_line(mut self) -> Option<String> {
        // A grandchild may hold the pipe open.
        let all = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(std::time::Duration::from_millis(500), all).await;
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.iter()
            .rev()
            .find(|line| !line.trim().is_empty())
            .cloned()
    }
}

async fn pass_on(stream: impl AsyncRead + Unpin, name: String, last: Arc<Mutex<VecDeque<String>>>) {
    let mut reader = BufReader::with_capacity(MAX_LINE, stream);
    let mut line = Vec::new();
    loop {
        let Ok(chunk) = reader.fill_buf().await else {
            return;
        };
        if chunk.is_empty() && line.is_empty() {
            return;
        }
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let (taken, complete) = match end {
            Some(end) => (end + 1, true),
            None => (chunk.len(), chunk.is_empty()),
        };
        line.extend_from_slice(&chunk[..taken]);
        reader.consume(taken);
        if complete || line.len() >= MAX_LINE {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            Terminal::line(&format!("{name} | {text}"));
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if last.len() == KEPT {
                last.pop_front();
            }
            last.push_back(text);
        }
    }
}
