//! What the router counts, in Prometheus' text format. `docs/metrics.md` lists the names.
//!
//! The `prometheus` crate, because it writes the classic text format: Kubernetes' inference gateway reads that one, and
//! an OpenMetrics exposition names counters differently.

use prometheus::{
    Counter, CounterVec, Encoder, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter,
    IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

/// Seconds; from a cached prompt on a GPU to a long prompt on a CPU.
const TTFT: &[f64] = &[
    0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
];
const ITL: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0,
];
const E2E: &[f64] = &[
    0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0,
];

/// All metrics of the router. Counters are set where things happen, gauges when they are asked for.
pub struct Metrics {
    registry: Registry,
    pub requests: IntCounterVec,
    pub prompt_tokens: IntCounterVec,
    pub output_tokens: IntCounterVec,
    pub speech_seconds: CounterVec,
    pub ttft: HistogramVec,
    pub itl: HistogramVec,
    pub e2e: HistogramVec,
    pub dropped: IntCounterVec,
    pub resubmitted: IntCounter,
    pub worker_deaths: IntCounterVec,
    pub in_flight: IntGauge,
    pub queued: IntGauge,
    pub worker_up: IntGaugeVec,
    pub worker_waiting: IntGaugeVec,
    pub worker_running: IntGaugeVec,
    pub rows: IntGaugeVec,
    pub rows_total: IntGaugeVec,
    pub kv_pages: IntGaugeVec,
    pub kv_pages_total: IntGaugeVec,
    pub state_slots: IntGaugeVec,
    pub state_slots_total: IntGaugeVec,
    pub preemptions: IntCounterVec,
    pub steps: IntCounterVec,
    pub gateway: Gateway,
}

/// The names that Kubernetes' inference gateway (and other routers made for vLLM) reads.
pub struct Gateway {
    pub waiting: IntGauge,
    pub running: IntGauge,
    /// 0 to 1.
    pub kv_usage: Gauge,
    /// The older name of `kv_usage`.
    pub gpu_cache_usage: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::new();
        let r = &registry;
        let model = &["model"];
        let worker = &["worker"];
        Self {
            requests: counters(r, "denizen_requests_total", "Sequences that ended, by outcome.", &["model", "outcome"]),
            prompt_tokens: counters(r, "denizen_prompt_tokens_total", "Prompt tokens of ended sequences.", model),
            output_tokens: counters(r, "denizen_output_tokens_total", "Tokens generated.", model),
            speech_seconds: add(
                r,
                CounterVec::new(
                    Opts::new("denizen_speech_seconds_total", "Seconds of audio spoken."),
                    model,
                ),
            ),
            ttft: histograms(r, "denizen_time_to_first_token_seconds", "From submission to the first token.", TTFT),
            itl: histograms(r, "denizen_inter_token_seconds", "Between two tokens of a sequence.", ITL),
            e2e: histograms(r, "denizen_request_seconds", "From submission to the end.", E2E),
            dropped: counters(
                r,
                "denizen_dropped_envelopes_total",
                "Messages of workers that were dropped, by reason.",
                &["reason"],
            ),
            resubmitted: add(
                r,
                IntCounter::new(
                    "denizen_resubmitted_total",
                    "Sequences given to another worker because theirs died before their first token.",
                ),
            ),
            worker_deaths: counters(r, "denizen_worker_deaths_total", "Times a worker died.", worker),
            in_flight: gauge(r, "denizen_requests_in_flight", "Sequences queued or running."),
            queued: gauge(r, "denizen_requests_queued", "Sequences that wait for a worker."),
            worker_up: gauges(r, "denizen_worker_up", "1 if the worker is ready and makes progress.", worker),
            worker_waiting: gauges(r, "denizen_worker_waiting", "Sequences waiting in the worker.", worker),
            worker_running: gauges(r, "denizen_worker_running", "Sequences running in the worker.", worker),
            rows: gauges(r, "denizen_rows", "Rows in use.", worker),
            rows_total: gauges(r, "denizen_rows_limit", "Rows that there are.", worker),
            kv_pages: gauges(r, "denizen_kv_pages", "KV pages in use.", worker),
            kv_pages_total: gauges(r, "denizen_kv_pages_limit", "KV pages that there are.", worker),
            state_slots: gauges(r, "denizen_state_slots", "Recurrent-state slots in use.", worker),
            state_slots_total: gauges(r, "denizen_state_slots_limit", "Recurrent-state slots that there are.", worker),
            preemptions: counters(r, "denizen_preemptions_total", "Sequences preempted for lack of pages.", worker),
            steps: counters(r, "denizen_steps_total", "Steps that the worker ran.", worker),
            gateway: Gateway {
                waiting: gauge(r, "vllm:num_requests_waiting", "Sequences that wait for a row."),
                running: gauge(r, "vllm:num_requests_running", "Sequences that run."),
                kv_usage: add(r, Gauge::new("vllm:kv_cache_usage_perc", "Share of KV pages in use, 0 to 1.")),
                gpu_cache_usage: add(r, Gauge::new("vllm:gpu_cache_usage_perc", "The older name of the same.")),
            },
            registry,
        }
    }
}

impl Metrics {
    /// The text exposition.
    pub fn render(&self) -> String {
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "metrics cannot be written");
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// Registers a metric. Names and labels are constants of this file, so a refusal is a bug that every test finds.
fn add<M: prometheus::core::Collector + Clone + 'static>(
    registry: &Registry,
    metric: prometheus::Result<M>,
) -> M {
    let metric = metric.expect("metric names and labels are valid");
    registry
        .register(Box::new(metric.clone()))
        .expect("metric names are unique");
    metric
}

fn counters(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    add(registry, IntCounterVec::new(Opts::new(name, help), labels))
}

fn gauge(registry: &Registry, name: &str, help: &str) -> IntGauge {
    add(registry, IntGauge::new(name, help))
}

fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    add(registry, IntGaugeVec::new(Opts::new(name, help), labels))
}

fn histograms(registry: &Registry, name: &str, help: &str, buckets: &[f64]) -> HistogramVec {
    add(
        registry,
        HistogramVec::new(
            HistogramOpts::new(name, help).buckets(buckets.to_vec()),
            &["model"],
        ),
    )
}

/// A sequence's own handles, looked up once instead of once a token.
pub struct SequenceMetrics {
    pub output_tokens: IntCounter,
    pub speech_seconds: Counter,
    pub ttft: Histogram,
    pub itl: Histogram,
    pub e2e: Histogram,
}

impl Metrics {
    /// Lets the counters of a worker begin at 0 instead of appearing with its first event.
    pub fn add_worker(&self, worker: usize) {
        let label = &[worker.to_string()];
        for counter in [&self.worker_deaths, &self.preemptions, &self.steps] {
            counter.with_label_values(label);
        }
    }

    /// The same for a model.
    pub fn add_model(&self, model: &str) {
        self.sequence(model);
        self.prompt_tokens.with_label_values(&[model]);
        for outcome in ["stop", "length", "abort", "failed", "rejected"] {
            self.requests.with_label_values(&[model, outcome]);
        }
    }

    pub fn sequence(&self, model: &str) -> SequenceMetrics {
        SequenceMetrics {
            output_tokens: self.output_tokens.with_label_values(&[model]),
            speech_seconds: self.speech_seconds.with_label_values(&[model]),
            ttft: self.ttft.with_label_values(&[model]),
            itl: self.itl.with_label_values(&[model]),
            e2e: self.e2e.with_label_values(&[model]),
        }
    }
}
