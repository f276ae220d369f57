//! Counts of the audio endpoints, for `/metrics`, and the memory that their audio may take.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::audio::Budget;
use crate::transcribe::Tally;

pub struct Counters {
    /// What the audio of all requests may take.
    pub memory: Arc<Budget>,
    pub tally: Tally,
    files: AtomicU64,
    milliseconds: AtomicU64,
}

impl Counters {
    /// `memory`: bytes for the audio of all requests.
    pub fn new(memory: usize) -> Self {
        Self {
            memory: Budget::new(memory),
            tally: Tally::default(),
            files: AtomicU64::new(0),
            milliseconds: AtomicU64::new(0),
        }
    }

    /// A file that was decoded.
    pub fn file(&self, seconds: f64) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.milliseconds
            .fetch_add((seconds * 1000.0) as u64, Ordering::Relaxed);
    }

    /// Prometheus' text form.
    pub fn render(&self) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed).to_string();
        let milliseconds = self.milliseconds.load(Ordering::Relaxed);
        let seconds = format!("{}.{:03}", milliseconds / 1000, milliseconds % 1000);
        let mut out = String::new();
        for (name, help, value) in [
            ("files", "Audio files decoded.", count(&self.files)),
            ("seconds", "Seconds of audio in them.", seconds),
            (
                "windows",
                "Windows of up to 30 s written down.",
                count(&self.tally.windows),
            ),
            (
                "fallbacks",
                "Windows listened to again at a higher temperature.",
                count(&self.tally.fallbacks),
            ),
            (
                "silent_windows",
                "Windows in which nobody spoke.",
                count(&self.tally.silent),
            ),
        ] {
            let name = format!("denizen_audio_{name}_total");
            let _ = writeln!(
                out,
                "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}"
            );
        }
        let (name, used) = ("denizen_audio_memory_bytes", self.memory.used());
        let _ = writeln!(
            out,
            "# HELP {name} Bytes that uploads and decoded audio take now.\n# TYPE {name} gauge\n{name} {used}"
        );
        out
    }
}
