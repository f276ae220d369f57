//! Counts of the audio endpoints, for `/metrics`.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::transcribe::Tally;

#[derive(Default)]
pub struct Counters {
    pub tally: Tally,
    files: AtomicU64,
    milliseconds: AtomicU64,
}

impl Counters {
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
        out
    }
}
