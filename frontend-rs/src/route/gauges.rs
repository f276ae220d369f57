//! Gauges, set when they are asked for.

use super::router::Shared;
use super::worker::WorkerState;

impl Shared {
    pub(super) fn refresh_gauges(&self) {
        let state = self.lock();
        let m = &self.metrics;
        m.in_flight.set(state.table.len() as i64);
        m.queued.set(state.queued() as i64);
        let (mut waiting, mut sent, mut pages, mut pages_total) = (0, 0, 0, 0);
        for (index, worker) in state.workers.iter().enumerate() {
            let (stats, label) = (&worker.stats, index.to_string());
            let label = &[label.as_str()];
            m.worker_up
                .with_label_values(label)
                .set(i64::from(worker.state == WorkerState::Ready));
            for (gauge, value) in [
                (&m.worker_waiting, stats.waiting),
                (&m.worker_running, stats.running),
                (&m.rows, stats.rows),
                (&m.rows_total, stats.rows_total),
                (&m.kv_pages, stats.kv_pages),
                (&m.kv_pages_total, stats.kv_pages_total),
                (&m.state_slots, stats.state_slots),
                (&m.state_slots_total, stats.state_slots_total),
            ] {
                gauge
                    .with_label_values(label)
                    .set(i64::try_from(value).unwrap_or(i64::MAX));
            }
            waiting += stats.waiting;
            sent += u64::from(worker.in_flight);
            pages += stats.kv_pages;
            pages_total += stats.kv_pages_total;
        }
        // A worker's own figures are up to a quarter of a second old; what was sent to it is known at once.
        m.gateway
            .waiting
            .set((state.queued() as u64 + waiting) as i64);
        m.gateway.running.set(sent.saturating_sub(waiting) as i64);
        let usage = if pages_total == 0 {
            0.0
        } else {
            pages as f64 / pages_total as f64
        };
        m.gateway.kv_usage.set(usage);
        m.gateway.gpu_cache_usage.set(usage);
    }
}
