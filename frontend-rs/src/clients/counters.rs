//! Counts of clients over shared memory, for `/metrics`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Why somebody who connected did not become a client.
pub const REFUSED: [&str; 5] = ["clients", "hello", "memory", "user", "version"];
/// Why a client was cut off.
pub const CUT_OFF: [&str; 4] = ["arena", "attach", "envelope", "hung"];

#[derive(Default)]
pub struct Counters {
    /// Connected now.
    pub connected: AtomicU64,
    pub total: AtomicU64,
    refused: Mutex<BTreeMap<&'static str, u64>>,
    cut_off: Mutex<BTreeMap<&'static str, u64>>,
    requests: Mutex<BTreeMap<(&'static str, u16), u64>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Counters {
    pub fn refused(&self, reason: &'static str) {
        *lock(&self.refused).entry(reason).or_default() += 1;
    }

    pub fn cut_off(&self, reason: &'static str) {
        *lock(&self.cut_off).entry(reason).or_default() += 1;
    }

    /// A call that has ended; 499 if its client did not wait for that.
    pub fn request(&self, endpoint: &'static str, status: u16) {
        *lock(&self.requests).entry((endpoint, status)).or_default() += 1;
    }

    /// Prometheus' text form.
    pub fn render(&self) -> String {
        let mut out = String::new();
        let mut family = |name: &str, kind: &str, help: &str, samples: Vec<(String, u64)>| {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(out, "{name}{labels} {value}");
            }
        };
        let one = |value: &AtomicU64| vec![(String::new(), value.load(Ordering::Relaxed))];
        let by_reason = |known: &[&'static str], counts: &BTreeMap<&'static str, u64>| {
            known
                .iter()
                .map(|reason| {
                    let count = counts.get(reason).copied().unwrap_or(0);
                    (format!("{{reason=\"{reason}\"}}"), count)
                })
                .collect()
        };
        family(
            "denizen_shm_clients",
            "gauge",
            "Clients over shared memory, connected now.",
            one(&self.connected),
        );
        family(
            "denizen_shm_clients_total",
            "counter",
            "Clients that have connected.",
            one(&self.total),
        );
        family(
            "denizen_shm_refused_total",
            "counter",
            "Connections that were refused, by reason.",
            by_reason(&REFUSED, &lock(&self.refused)),
        );
        family(
            "denizen_shm_cut_off_total",
            "counter",
            "Clients that were cut off, by reason.",
            by_reason(&CUT_OFF, &lock(&self.cut_off)),
        );
        let requests = lock(&self.requests);
        let samples = requests.iter().map(|((endpoint, status), count)| {
            (
                format!("{{endpoint=\"{endpoint}\",status=\"{status}\"}}"),
                *count,
            )
        });
        family(
            "denizen_shm_requests_total",
            "counter",
            "Calls that have ended, by endpoint and status.",
            samples.collect(),
        );
        out
    }
}
