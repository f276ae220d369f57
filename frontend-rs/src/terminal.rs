//! What the program says: log lines on stderr, what was asked for on stdout.
//!
//! Whoever started the program may read its stderr slowly or not at all, and a write to a full pipe blocks. So lines are
//! written by a thread of their own; what it cannot get rid of is lost, and counted, rather than holding up requests.

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar};

/// Lines that may wait for stderr.
const MAX_WAITING: usize = 1024;
/// How long the end of the program, or what goes to stdout, waits for the lines before it.
const PATIENCE: Duration = Duration::from_secs(1);

/// The one place that writes to stderr, so that lines and bars do not tear each other.
pub struct Terminal {
    bars: MultiProgress,
    interactive: bool,
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Default)]
struct Lines {
    waiting: VecDeque<String>,
    /// Since the last line that found room.
    lost: usize,
    /// The thread is at a line that waits no more.
    writing: bool,
}

static TERMINAL: LazyLock<&Terminal> = LazyLock::new(|| {
    let terminal: &Terminal = Box::leak(Box::new(Terminal {
        bars: MultiProgress::new(),
        interactive: std::io::stderr().is_terminal(),
        lines: Mutex::default(),
        changed: Condvar::new(),
    }));
    std::thread::Builder::new()
        .name("denizen-log".into())
        .spawn(|| terminal.write())
        .expect("the system can start a thread");
    terminal
});

impl Terminal {
    /// Writes a line, above the bars if there are any. Never waits.
    pub fn line(text: &str) {
        let mut lines = TERMINAL.lock();
        lines.push(text);
        TERMINAL.changed.notify_all();
    }

    /// Writes to stdout: what the user asked for, as opposed to what there is to say about it.
    pub fn say(text: &str) {
        // A closed stdout is no reason to stop serving.
        let _ = Self::hand_over(text);
    }

    /// Writes to stdout what must not be lost.
    pub fn hand_over(text: &str) -> std::io::Result<()> {
        Self::flush();
        let mut written = Ok(());
        TERMINAL.above_bars(|| written = writeln!(std::io::stdout(), "{text}"));
        written
    }

    /// Waits until all lines are written, for a short time.
    pub fn flush() {
        let busy = |lines: &mut Lines| lines.writing || !lines.waiting.is_empty();
        let _ = TERMINAL
            .changed
            .wait_timeout_while(TERMINAL.lock(), PATIENCE, busy);
    }

    /// Adds a bar; `None` where nobody would see it.
    pub fn bar(make: impl FnOnce() -> ProgressBar) -> Option<ProgressBar> {
        TERMINAL.interactive.then(|| TERMINAL.bars.add(make()))
    }

    /// Runs `write` while no bar is drawn. Without bars there is nothing to wait for, not even a line that is stuck.
    fn above_bars(&self, write: impl FnOnce()) {
        if self.interactive {
            self.bars.suspend(write);
        } else {
            write();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) {
        let mut lines = self.lock();
        loop {
            lines.writing = false;
            let Some(line) = lines.waiting.pop_front() else {
                self.changed.notify_all();
                lines = self
                    .changed
                    .wait_while(lines, |lines| lines.waiting.is_empty())
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            lines.writing = true;
            drop(lines);
            self.above_bars(|| {
                // A closed stderr is no reason to stop serving.
                let _ = writeln!(std::io::stderr(), "{line}");
            });
            lines = self.lock();
        }
    }
}

impl Lines {
    fn push(&mut self, text: &str) {
        if self.waiting.len() >= MAX_WAITING {
            self.lost += 1;
            return;
        }
        if self.lost > 0 {
            let lost = std::mem::take(&mut self.lost);
            self.waiting
                .push_back(format!("({lost} lines are lost: stderr was not read)"));
        }
        self.waiting.push_back(text.to_owned());
    }
}

/// Log lines for `tracing_subscriber`.
#[derive(Default)]
pub struct LogLines(Vec<u8>);

impl Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for LogLines {
    fn drop(&mut self) {
        Terminal::line(String::from_utf8_lossy(&self.0).trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_find_no_room_are_counted_and_told_of() {
        let mut lines = Lines::default();
        for index in 0..MAX_WAITING + 7 {
            lines.push(&index.to_string());
        }
        assert_eq!(lines.waiting.len(), MAX_WAITING);
        lines.waiting.clear();
        lines.push("next");
        assert_eq!(
            lines.waiting,
            ["(7 lines are lost: stderr was not read)", "next"]
        );
        lines.push("after");
        assert_eq!(lines.waiting.len(), 3);
    }
}
