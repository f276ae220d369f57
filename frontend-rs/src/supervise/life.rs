//! One life of a worker: arena, process, link, watch, death.

use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use denizen_shm::{Config, HostEnd};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::sync::{mpsc, watch as signal};
use tokio::time::{interval, MissedTickBehavior};

use super::link::{self, LinkEnd};
use super::output::Output;
use super::plan::WorkerPlan;
use super::spawn::Spawner;
use super::watch::{judge, Looks, Verdict, INTERVAL};
use super::{Launch, Stop, WorkerEvent};
use crate::route::envelope::{ToWorker, WorkerError, WorkerHello, SCHEMA};
use crate::route::{Notice, Router};

/// How long a worker may take from SIGTERM to its end, and from the dump of its stacks to SIGTERM.
const TERM_PATIENCE: Duration = Duration::from_secs(5);
const DUMP_PATIENCE: Duration = Duration::from_millis(300);
/// How long a worker whose socket has closed may take to exit.
const EXIT_PATIENCE: Duration = Duration::from_secs(2);
/// How long the last messages of a process that has ended may take.
const LINK_PATIENCE: Duration = Duration::from_millis(500);

/// How a life ended.
pub enum Ending {
    /// The server asked for it.
    Asked,
    /// It died. `served`: how long it was ready, if it ever was.
    Died {
        why: String,
        served: Option<Duration>,
    },
    /// It cannot be started, and trying again is useless.
    Hopeless(String),
}

pub struct Life<'a> {
    pub index: usize,
    pub epoch: u64,
    pub router: &'a Router,
    pub plan: &'a WorkerPlan,
    pub launch: &'a Launch,
    pub spawner: &'a Spawner,
    pub events: &'a mpsc::UnboundedSender<WorkerEvent>,
}

impl Life<'_> {
    pub async fn run(self, stop: &mut signal::Receiver<Stop>) -> Ending {
        if *stop.borrow() != Stop::No {
            return Ending::Asked;
        }
        let name = self.plan.name();
        let sizes = if self.plan.audio {
            Config::audio
        } else {
            Config::text
        };
        let (host, socket) = match HostEnd::create(&sizes(&name, self.epoch)) {
            Ok((host, socket)) => (Arc::new(host), socket),
            Err(error) => return Ending::Hopeless(error.to_string()),
        };
        let launch = self.launch;
        let config = self.plan.to_json();
        let mut child = match self
            .spawner
            .spawn(
                &launch.python,
                &launch.module,
                &config,
                &launch.log_level,
                socket,
            )
            .await
        {
            Ok(child) => child,
            Err(error) => {
                let python = launch.python.display();
                return Ending::Hopeless(format!("{python} cannot be started: {error}"));
            }
        };
        let output = Output::follow(&mut child, &name);
        self.router
            .worker_started(self.index, self.epoch, host.clone());
        let hello = ToWorker::Hello {
            abi: &abi(),
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            tokenizers: &launch.tokenizers,
        };
        self.router.greet(self.index, &hello);
        let mut watched = Watched {
            started: Instant::now(),
            ready: None,
            mismatched: false,
            failed: None,
            heard: Arc::new(Mutex::new(Instant::now())),
            hung: None,
        };
        let ending = self.serve(&host, &mut child, &mut watched, stop).await;
        host.close();
        self.explain(ending, child, output, watched).await
    }

    /// Until the process ends, the link breaks, it hangs, or it is asked to go.
    async fn serve(
        &self,
        host: &Arc<HostEnd>,
        child: &mut Child,
        watched: &mut Watched,
        stop: &mut signal::Receiver<Stop>,
    ) -> Served {
        let (sender, mut notices) = mpsc::unbounded_channel();
        let heard = watched.heard.clone();
        let drain = link::drain(
            host.clone(),
            self.router.clone(),
            self.index,
            self.epoch,
            sender,
            heard,
        );
        let mut drain = AbortOnDrop(tokio::spawn(drain));
        let mut tick = interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looks = Looks::new(Instant::now());
        let mut asked = Stop::No;
        loop {
            tokio::select! {
                biased;
                Some(notice) = notices.recv() => {
                    self.note(notice, watched);
                    if watched.mismatched {
                        return Served::Broken("it is of another version".to_owned());
                    }
                }
                ended = &mut drain.0 => {
                    while let Ok(notice) = notices.try_recv() {
                        self.note(notice, watched);
                    }
                    return match ended {
                        Ok(LinkEnd::Broken(why)) => Served::Broken(why),
                        Ok(LinkEnd::Gone) if asked != Stop::No => Served::Asked,
                        Ok(LinkEnd::Gone) => Served::Gone,
                        Err(error) => Served::Broken(format!("its link failed: {error}")),
                    };
                }
                changed = stop.changed() => {
                    let now = if changed.is_err() { Stop::Kill } else { *stop.borrow_and_update() };
                    // A worker that still loads has nothing to finish.
                    if now == Stop::Kill || watched.ready.is_none() {
                        return Served::Asked;
                    }
                    asked = now;
                    self.router.drain_worker(self.index);
                }
                _ = child.wait() => {
                    // The end of the socket says the same, after the last messages. A process that the worker started
                    // may hold the socket open, though.
                    let _ = tokio::time::timeout(LINK_PATIENCE, &mut drain.0).await;
                    while let Ok(notice) = notices.try_recv() {
                        self.note(notice, watched);
                    }
                    return if asked == Stop::No { Served::Gone } else { Served::Asked };
                }
                _ = tick.tick() => {
                    if !looks.due(Instant::now()) {
                        continue;
                    }
                    if let Some(why) = self.look(host, watched) {
                        watched.hung = Some(why);
                        return Served::Hung;
                    }
                }
            }
        }
    }

    fn note(&self, notice: Notice, watched: &mut Watched) {
        match notice {
            Notice::Hello(hello) => self.check(&hello, watched),
            Notice::Loading(load) => {
                let _ = self.events.send(WorkerEvent::Loading {
                    worker: self.index,
                    load,
                });
            }
            Notice::Ready => {
                watched.ready = Some(Instant::now());
                let _ = self.events.send(WorkerEvent::Ready { worker: self.index });
            }
            Notice::Failed(error) => watched.failed = Some(error),
            Notice::Bye { why } => tracing::debug!(why, "{} says goodbye", self.plan.name()),
        }
    }

    /// Both sides must be of one version.
    fn check(&self, hello: &WorkerHello, watched: &mut Watched) {
        tracing::debug!(?hello, "{}", self.plan.name());
        if hello.schema != SCHEMA {
            let message = format!(
                "the worker speaks schema {}, this program {SCHEMA}; install one version of Denizen for both",
                hello.schema
            );
            watched.mismatched = true;
            watched.failed = Some(WorkerError {
                message,
                ..WorkerError::default()
            });
        }
    }

    /// Looks at the heartbeat; `Some` if the worker hangs.
    fn look(&self, host: &HostEnd, watched: &Watched) -> Option<String> {
        let quiet = watched
            .heard
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .elapsed();
        let busy = self.router.worker_busy(self.index);
        match judge(
            &host.heartbeat(),
            watched.started.elapsed(),
            busy,
            quiet,
            &self.launch.limits,
        ) {
            Verdict::Hung(why) => {
                tracing::error!(
                    "{} hangs: {why}; its stacks follow, then it is ended",
                    host.peer()
                );
                return Some(why);
            }
            Verdict::Stalled(why) => self.router.worker_stalled(self.index, Some(why)),
            Verdict::Progress => self.router.worker_stalled(self.index, None),
        }
        self.router.pump();
        None
    }

    /// Ends the process if it still runs, and finds words for what happened.
    async fn explain(
        &self,
        served: Served,
        mut child: Child,
        output: Output,
        watched: Watched,
    ) -> Ending {
        let why = match served {
            Served::Asked => {
                // Its socket is closed, so it goes by itself, if it is well.
                if tokio::time::timeout(EXIT_PATIENCE, child.wait())
                    .await
                    .is_err()
                {
                    end(&mut child, Duration::ZERO).await;
                }
                return Ending::Asked;
            }
            Served::Hung => {
                let why = watched.hung.clone().unwrap_or_default();
                self.router
                    .worker_died(self.index, &format!("it hung: {why}"));
                signal_to(&child, Signal::SIGUSR1);
                tokio::time::sleep(DUMP_PATIENCE).await;
                end(&mut child, TERM_PATIENCE).await;
                format!("it hung: {why}")
            }
            Served::Broken(why) => {
                self.router.worker_died(self.index, &why);
                end(&mut child, TERM_PATIENCE).await;
                why
            }
            Served::Gone => match tokio::time::timeout(EXIT_PATIENCE, child.wait()).await {
                Ok(Ok(status)) => describe(status),
                _ => {
                    end(&mut child, TERM_PATIENCE).await;
                    "it closed its socket".to_owned()
                }
            },
        };
        let last_line = output.last_line().await;
        if let Some(WorkerError {
            message, retryable, ..
        }) = watched.failed
        {
            return match (watched.ready, retryable) {
                (None, false) => Ending::Hopeless(message),
                (ready, _) => Ending::Died {
                    why: message,
                    served: ready.map(|ready| ready.elapsed()),
                },
            };
        }
        let why = match last_line {
            Some(line) if watched.ready.is_none() => format!("{why}: {line}"),
            _ => why,
        };
        Ending::Died {
            why,
            served: watched.ready.map(|ready| ready.elapsed()),
        }
    }
}

/// What is noticed during a life.
struct Watched {
    started: Instant,
    ready: Option<Instant>,
    /// It is of another version than this program.
    mismatched: bool,
    /// The worker's own last words.
    failed: Option<WorkerError>,
    heard: Arc<Mutex<Instant>>,
    hung: Option<String>,
}

enum Served {
    Asked,
    Gone,
    Broken(String),
    Hung,
}

struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn abi() -> String {
    format!(
        "{}.{}",
        denizen_shm::layout::ABI_MAJOR,
        denizen_shm::layout::ABI_MINOR
    )
}

fn signal_to(child: &Child, signal: Signal) {
    if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
        // It may have ended by itself meanwhile; it is a zombie until waited for, so the id is still its own.
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// SIGTERM, patience, SIGKILL. Returns when the process has ended.
async fn end(child: &mut Child, patience: Duration) {
    if !patience.is_zero() {
        signal_to(child, Signal::SIGTERM);
    }
    if tokio::time::timeout(patience, child.wait()).await.is_err() {
        signal_to(child, Signal::SIGKILL);
        let _ = child.wait().await;
    }
}

fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (
        status.code(),
        status
            .signal()
            .and_then(|number| Signal::try_from(number).ok()),
    ) {
        (Some(code), _) => format!("it exited with status {code}"),
        (None, Some(signal)) => format!("it was killed by {}", signal.as_str()),
        (None, None) => "it ended".to_owned(),
    }
}
