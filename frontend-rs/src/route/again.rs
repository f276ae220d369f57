//! Workers whose arena had no room are asked again.

use std::time::Duration;

use super::router::{Router, State};
use super::worker::Worker;

/// A worker takes messages out of its arena without a sign. This long after it had no room it is asked again.
const FULL_PAUSE: Duration = Duration::from_millis(2);

impl Router {
    /// Sees to it that sequences that wait for room in an arena are tried again soon: audio fills one quickly, and its
    /// worker empties it as quickly.
    pub(super) fn ask_again(&self, state: &mut State) {
        let waiting = !state.queue.is_empty() && state.workers.iter().any(Worker::is_full);
        if !waiting || state.asking_again {
            return;
        }
        // Without a runtime the supervisor's tick is what is left.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        state.asking_again = true;
        let router = self.clone();
        runtime.spawn(async move {
            tokio::time::sleep(FULL_PAUSE).await;
            router.shared().lock().asking_again = false;
            router.pump();
        });
    }
}
