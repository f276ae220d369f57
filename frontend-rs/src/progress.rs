//! What the user sees while the server starts: bars on a terminal, plain lines elsewhere.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressStyle};

use crate::terminal::Terminal;

/// What advances.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unit {
    #[default]
    Bytes,
    /// Of audio.
    Seconds,
}

/// Several things that advance, each under its own label.
#[derive(Default)]
pub struct Progress {
    unit: Unit,
    items: Mutex<HashMap<String, Item>>,
}

struct Item {
    bar: Option<ProgressBar>,
    /// Last tenth that a plain line told of.
    told: u64,
}

impl Progress {
    pub fn of(unit: Unit) -> Self {
        Self {
            unit,
            items: Mutex::default(),
        }
    }

    /// `label` is at `done` of `total`; an unknown total is 0.
    pub fn update(&self, label: &str, done: u64, total: u64) {
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        let item = items
            .entry(label.to_owned())
            .or_insert_with(|| Item::new(label, total, self.unit));
        if let Some(bar) = &item.bar {
            bar.set_length(total.max(done));
            bar.set_position(done);
            if total > 0 && done >= total {
                bar.finish_and_clear();
            }
        }
        let tenth = (done.min(total) * 10).checked_div(total).unwrap_or(0);
        if tenth > item.told {
            item.told = tenth;
            if item.bar.is_none() || tenth == 10 {
                let total = match self.unit {
                    Unit::Bytes => size(total),
                    Unit::Seconds => format!("{total} s"),
                };
                Terminal::line(&format!("  {label}: {} % of {total}", tenth * 10));
            }
        }
    }

    /// Removes bars that have not reached their end.
    pub fn clear(&self) {
        for (_, item) in self
            .items
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain()
        {
            if let Some(bar) = item.bar {
                bar.finish_and_clear();
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Item {
    fn new(label: &str, total: u64, unit: Unit) -> Self {
        let bar = Terminal::bar(|| {
            let template = match unit {
                Unit::Bytes => "  {msg:32!} {bar:30.cyan/dim} {bytes:>10} of {total_bytes:<10} {bytes_per_sec:>12} {eta:>4}",
                Unit::Seconds => "  {msg:32!} {bar:30.cyan/dim} {pos:>6} of {len:<6} s of audio {eta:>4}",
            };
            let style = ProgressStyle::with_template(template)
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(total)
                .with_style(style)
                .with_message(label.to_owned())
        });
        Self { bar, told: 0 }
    }
}

/// `12.3 MiB`.
pub fn size(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}
