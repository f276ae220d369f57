//! Worker processes: started, watched, restarted, drained, ended.
//!
//! # Layout
//!
//! - `plan`: which workers there are and what each is told
//! - `spawn`: the one thread that starts processes
//! - `link`: the task that drains a worker's arena into the router
//! - `watch`: heartbeat → stalled, hung
//! - `output`: a worker's stderr, passed on with its name in front
//! - `life`: one life of a worker, from start to death
//!
//! Each worker has one task that runs its lives one after the other, with a pause that grows. A worker that dies again
//! and again, or says that trying again is useless, ends the server.

mod life;
mod link;
mod output;
mod plan;
mod spawn;
mod watch;

pub use plan::{Device, WorkerLimits, WorkerModel, WorkerPlan};
pub use watch::Limits;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch as signal};
use tokio::task::JoinSet;

use crate::route::envelope::Load;
use crate::route::Router;
use life::{Ending, Life};
use spawn::Spawner;

/// Deaths in a row after which the server gives up.
const MAX_DEATHS: u32 = 5;
/// A worker that has served this long starts anew with its count.
const GOOD_LIFE: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How to start a worker process.
#[derive(Debug, Clone)]
pub struct Launch {
    pub python: std::path::PathBuf,
    /// `denizen.worker`, or the stub.
    pub module: String,
    /// Model name → sha256 of its tokenizer, for HELLO.
    pub tokenizers: BTreeMap<String, String>,
    /// Of the workers: debug, info, warning or error.
    pub log_level: String,
    pub limits: Limits,
}

/// What happens in the workers, for whoever starts the server.
#[derive(Debug)]
pub enum WorkerEvent {
    Loading {
        worker: usize,
        load: Load,
    },
    Ready {
        worker: usize,
    },
    /// The server cannot go on; one line that says why.
    Fatal(String),
}

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Stop {
    No,
    /// Finish, then go.
    Drain,
    /// Go now.
    Kill,
}

/// Owns all workers. Dropping it leaves them to notice the end of their sockets; call [`Supervisor::stop`].
pub struct Supervisor {
    stop: signal::Sender<Stop>,
    workers: JoinSet<()>,
}

impl Supervisor {
    /// Starts a task per planned worker; they report to `events`.
    pub fn start(
        router: &Router,
        launch: Launch,
        plans: Vec<WorkerPlan>,
        events: &mpsc::UnboundedSender<WorkerEvent>,
    ) -> std::io::Result<Self> {
        let spawner = Spawner::start()?;
        let stop = signal::Sender::new(Stop::No);
        let launch = Arc::new(launch);
        let mut workers = JoinSet::new();
        for plan in plans {
            let index = router.add_worker(plan.name(), plan.model_names());
            let keeper = Keeper {
                index,
                router: router.clone(),
                plan,
                launch: launch.clone(),
                spawner: spawner.clone(),
                events: events.clone(),
                stop: stop.subscribe(),
            };
            workers.spawn(keeper.run());
        }
        Ok(Self { stop, workers })
    }

    /// Ends all workers: at once, or after they had `patience` to finish. Returns when no process is left.
    pub async fn stop(mut self, patience: Duration) {
        if !patience.is_zero() {
            self.stop.send_replace(Stop::Drain);
            let all = async { while self.workers.join_next().await.is_some() {} };
            if tokio::time::timeout(patience, all).await.is_ok() {
                return;
            }
        }
        self.stop.send_replace(Stop::Kill);
        while self.workers.join_next().await.is_some() {}
    }
}

/// The task of one worker.
struct Keeper {
    index: usize,
    router: Router,
    plan: WorkerPlan,
    launch: Arc<Launch>,
    spawner: Spawner,
    events: mpsc::UnboundedSender<WorkerEvent>,
    stop: signal::Receiver<Stop>,
}

impl Keeper {
    async fn run(mut self) {
        let (mut deaths, mut epoch) = (0, 0);
        let mut first_death = Instant::now();
        loop {
            epoch += 1;
            let life = Life {
                index: self.index,
                epoch,
                router: &self.router,
                plan: &self.plan,
                launch: &self.launch,
                spawner: &self.spawner,
                events: &self.events,
            };
            let (why, served, hopeless) = match life.run(&mut self.stop).await {
                Ending::Asked => {
                    return self
                        .router
                        .worker_died(self.index, "the server is shutting down")
                }
                Ending::Died { why, served } => (why, served, false),
                // What there was for an earlier life (descriptors, room in /dev/shm, memory) may be short for a moment.
                Ending::Hopeless(why) => (why, None, epoch == 1),
            };
            self.router.worker_died(self.index, &why);
            if hopeless {
                return self.give_up(format!("{}: {why}", self.plan.name()));
            }
            deaths = if served.is_some_and(|served| served >= GOOD_LIFE) {
                1
            } else {
                deaths + 1
            };
            if deaths == 1 {
                first_death = Instant::now();
            }
            tracing::error!("{}: {why}", self.plan.name());
            if deaths >= MAX_DEATHS {
                let seconds = first_death.elapsed().as_secs();
                return self.give_up(format!(
                    "{} died {deaths} times in a row ({seconds} s); the last time: {why}",
                    self.plan.name()
                ));
            }
            let pause = (FIRST_PAUSE * 2u32.pow(deaths - 1)).min(LONGEST_PAUSE);
            tracing::warn!(
                "{}: starting it again in {} ms",
                self.plan.name(),
                pause.as_millis()
            );
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = self.stop.wait_for(|stop| *stop != Stop::No) => return,
            }
        }
    }

    fn give_up(&self, why: String) {
        // Nobody listens when the server ends already.
        let _ = self.events.send(WorkerEvent::Fatal(why));
    }
}
