//! From a worker's heartbeat to a verdict: does it make progress?
//!
//! The beat says that the process is scheduled at all; the phase says what its engine does, and each phase may take its
//! own time. No request is sent to find out, and a long prefill is not mistaken for a fault.

use std::time::{Duration, Instant};

use denizen_shm::{Heartbeat, Phase};

/// How often each worker is looked at.
pub const INTERVAL: Duration = Duration::from_millis(250);

/// A worker beats four times a second; this many seconds without one means that it is stopped or starved.
const BEAT_STALLED: Duration = Duration::from_millis(1250);
/// The same, for the interpreter's start.
const FIRST_BEAT: Duration = Duration::from_secs(120);

/// When a worker counts as stalled (not ready), and when as hung (killed).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// No beat, as when the process is stopped.
    pub beat: Duration,
    pub load: Duration,
    pub capture: Duration,
    /// One prefill step: a chunk of prompt tokens.
    pub prefill: Duration,
    /// One decode step.
    pub decode: Duration,
    /// Idle although sequences are in flight.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            beat: Duration::from_secs(30),
            load: Duration::from_secs(1800),
            capture: Duration::from_secs(900),
            prefill: Duration::from_secs(300),
            decode: Duration::from_secs(120),
            idle: Duration::from_secs(120),
        }
    }
}

impl Limits {
    /// One limit for everything.
    pub fn all(limit: Duration) -> Self {
        Self {
            beat: limit,
            load: limit,
            capture: limit,
            prefill: limit,
            decode: limit,
            idle: limit,
        }
    }

    fn of(&self, phase: Phase) -> Duration {
        match phase {
            Phase::Load => self.load,
            Phase::Capture => self.capture,
            Phase::Prefill => self.prefill,
            Phase::Decode => self.decode,
            Phase::Idle => self.idle,
        }
    }
}

/// A look that comes so late says that this process, and perhaps the whole machine, stood still.
const LATE: Duration = Duration::from_millis(750);

/// When to look. After a pause of our own the workers get one interval to beat again before they are judged.
#[derive(Debug)]
pub struct Looks {
    last: Instant,
    excused: bool,
}

impl Looks {
    pub fn new(now: Instant) -> Self {
        Self {
            last: now,
            excused: false,
        }
    }

    /// At every tick: whether to judge by what can be seen now. Two ticks in a row are never left out.
    pub fn due(&mut self, now: Instant) -> bool {
        let late = now.duration_since(self.last) > LATE;
        self.last = now;
        self.excused = late && !self.excused;
        !self.excused
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Progress,
    /// Not ready, but may recover by itself.
    Stalled(String),
    /// To be killed.
    Hung(String),
}

/// `age`: of the process. `busy`: sequences are in flight. `quiet`: time since its last message.
pub fn judge(
    heartbeat: &Heartbeat,
    age: Duration,
    busy: bool,
    quiet: Duration,
    limits: &Limits,
) -> Verdict {
    let Some(beat_age) = heartbeat.beat_age else {
        return if age > FIRST_BEAT.max(limits.load) {
            Verdict::Hung(format!("it has not attached within {} s", age.as_secs()))
        } else {
            Verdict::Progress
        };
    };
    if beat_age > limits.beat {
        return Verdict::Hung(format!(
            "no heartbeat for {} s; the process is stopped",
            beat_age.as_secs()
        ));
    }
    if beat_age > BEAT_STALLED {
        return Verdict::Stalled(format!("no heartbeat for {:.1} s", beat_age.as_secs_f64()));
    }
    let Some(phase) = heartbeat.phase else {
        return Verdict::Progress;
    };
    // An idle engine enters no new phase; if there is work, its silence counts.
    let phase_age = match phase {
        Phase::Idle if !busy => return Verdict::Progress,
        Phase::Idle => heartbeat.phase_age.min(quiet),
        _ => heartbeat.phase_age,
    };
    let limit = limits.of(phase);
    let what = format!(
        "{} for {:.0} s without progress",
        phase.name(),
        phase_age.as_secs_f64()
    );
    if phase_age > limit {
        Verdict::Hung(what)
    } else if phase_age > limit / 4 && phase != Phase::Load && phase != Phase::Capture {
        Verdict::Stalled(what)
    } else {
        Verdict::Progress
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: Duration = Duration::from_secs(1 << 30);

    fn at(phase: Phase, phase_age: u64) -> Heartbeat {
        let beat_age = Some(Duration::from_millis(100));
        Heartbeat {
            beat_age,
            phase: Some(phase),
            phase_age: Duration::from_secs(phase_age),
        }
    }

    fn judge_at(heartbeat: &Heartbeat, busy: bool) -> Verdict {
        judge(heartbeat, NEVER, busy, NEVER, &Limits::default())
    }

    #[test]
    fn after_a_pause_of_our_own_workers_may_beat_first() {
        let start = Instant::now();
        let mut looks = Looks::new(start);
        let mut now = start;
        let mut due = |pause: Duration| {
            now += pause;
            looks.due(now)
        };
        assert!(due(INTERVAL));
        assert!(!due(BEAT_STALLED));
        assert!(due(INTERVAL));
        // A machine that is always late is judged all the same.
        assert!(!due(BEAT_STALLED));
        assert!(due(BEAT_STALLED));
        assert!(!due(BEAT_STALLED));
    }

    #[test]
    fn an_idle_worker_without_work_makes_progress_for_ever() {
        assert_eq!(
            judge_at(&at(Phase::Idle, 1 << 20), false),
            Verdict::Progress
        );
    }

    #[test]
    fn an_idle_worker_with_work_is_stalled_and_then_hung() {
        assert_eq!(judge_at(&at(Phase::Idle, 1), true), Verdict::Progress);
        assert!(matches!(
            judge_at(&at(Phase::Idle, 60), true),
            Verdict::Stalled(_)
        ));
        assert!(matches!(
            judge_at(&at(Phase::Idle, 600), true),
            Verdict::Hung(_)
        ));
        // It said something a moment ago.
        let verdict = judge(
            &at(Phase::Idle, 600),
            NEVER,
            true,
            Duration::ZERO,
            &Limits::default(),
        );
        assert_eq!(verdict, Verdict::Progress);
    }

    #[test]
    fn a_long_prefill_step_is_not_a_fault() {
        assert_eq!(judge_at(&at(Phase::Prefill, 60), true), Verdict::Progress);
        assert!(matches!(
            judge_at(&at(Phase::Prefill, 100), true),
            Verdict::Stalled(_)
        ));
        assert!(matches!(
            judge_at(&at(Phase::Prefill, 400), true),
            Verdict::Hung(_)
        ));
    }

    #[test]
    fn a_stopped_process_is_stalled_within_two_seconds_whatever_its_phase() {
        for phase in Phase::ALL {
            let beat = |ms| Heartbeat {
                beat_age: Some(Duration::from_millis(ms)),
                ..at(phase, 0)
            };
            assert_eq!(judge_at(&beat(1000), false), Verdict::Progress);
            assert!(matches!(judge_at(&beat(1500), false), Verdict::Stalled(_)));
            assert!(matches!(judge_at(&beat(31_000), false), Verdict::Hung(_)));
        }
    }

    #[test]
    fn a_process_that_never_attaches_is_hung_in_the_end() {
        let silent = Heartbeat {
            beat_age: None,
            phase: None,
            phase_age: Duration::ZERO,
        };
        let after = |s| {
            judge(
                &silent,
                Duration::from_secs(s),
                false,
                NEVER,
                &Limits::default(),
            )
        };
        assert_eq!(after(100), Verdict::Progress);
        assert!(matches!(after(4000), Verdict::Hung(_)));
    }
}
