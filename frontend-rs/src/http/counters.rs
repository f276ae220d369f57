//! Counts of the HTTP side, for `/metrics`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;

use axum::http::StatusCode;

#[derive(Default)]
pub struct Counters {
    requests: Mutex<BTreeMap<(String, u16), u64>>,
    aborted: Mutex<BTreeMap<&'static str, u64>>,
}

impl Counters {
    /// An answered request; `route` is the route's pattern, never a client's path.
    pub fn request(&self, route: &str, status: StatusCode) {
        let mut requests = self.requests.lock().unwrap_or_else(|e| e.into_inner());
        *requests
            .entry((route.to_owned(), status.as_u16()))
            .or_default() += 1;
    }

    /// A generation that ended before its time.
    pub fn aborted(&self, reason: &'static str) {
        let mut aborted = self.aborted.lock().unwrap_or_else(|e| e.into_inner());
        *aborted.entry(reason).or_default() += 1;
    }

    /// Prometheus' text form.
    pub fn render(&self, in_flight: usize, text_waiting: usize) -> String {
        let mut out = String::new();
        let mut family = |name: &str, kind: &str, help: &str, samples: Vec<(String, u64)>| {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(out, "{name}{labels} {value}");
            }
        };
        let requests = self.requests.lock().unwrap_or_else(|e| e.into_inner());
        let samples = requests.iter().map(|((route, status), count)| {
            (format!("{{route=\"{route}\",status=\"{status}\"}}"), *count)
        });
        family(
            "denizen_http_requests_total",
            "counter",
            "Requests answered, by route and status.",
            samples.collect(),
        );
        let aborted = self.aborted.lock().unwrap_or_else(|e| e.into_inner());
        let samples = aborted
            .iter()
            .map(|(reason, count)| (format!("{{reason=\"{reason}\"}}"), *count));
        family(
            "denizen_http_aborted_total",
            "counter",
            "Generations given up, by reason.",
            samples.collect(),
        );
        let gauge = |value: usize| vec![(String::new(), value as u64)];
        family(
            "denizen_http_in_flight",
            "gauge",
            "Requests being handled.",
            gauge(in_flight),
        );
        family(
            "denizen_http_text_waiting",
            "gauge",
            "Requests waiting for tokenization.",
            gauge(text_waiting),
        );
        out
    }
}
