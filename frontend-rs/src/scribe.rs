//! `denizen transcribe`: files to text without a server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use futures_util::{stream, StreamExt};
use tokio::sync::mpsc;

use crate::audio::{language, Budget, Limits, Transcript};
use crate::cli::{Cli, Command, ServeArgs, TranscribeArgs};
use crate::gpu;
use crate::launch::{self, Ground, Started};
use crate::listen::{Recording, Windows};
use crate::model::ModelEntry;
use crate::progress::{Progress, Unit};
use crate::route::Router;
use crate::shutdown::Signals;
use crate::speech::{SpeechModel, Task};
use crate::supervise::WorkerEvent;
use crate::terminal::Terminal;
use crate::transcribe::{Job, Mode, Pauses, Settings, Tally};

/// Files that are written down at once: one is decoded while others are listened to.
const AT_ONCE: usize = 4;
/// Without `--model`.
const ON_GPU: &str = "openai/whisper-large-v3-turbo";
const ON_CPU: &str = "openai/whisper-base";
/// How long workers may take to end.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// Writes down all files. An error is one line; those of single files have been told by then.
pub async fn run(args: TranscribeArgs) -> Result<(), String> {
    let outputs = outputs(&args)?;
    // A slip of the pen is told before a model is fetched. Where there is any file, each speaks for itself.
    if let (false, Some(first)) = (
        args.files.iter().any(|file| is_there(file)),
        args.files.first(),
    ) {
        return Err(format!("{}: there is no such file", first.display()));
    }
    if let Some(folder) = &args.output {
        std::fs::create_dir_all(folder)
            .map_err(|error| format!("--output {}: {error}", folder.display()))?;
    }
    let serve = as_serve(&args)?;
    let ground = Ground::survey(&serve).await?;
    let mut signals =
        Signals::new().map_err(|error| format!("signals cannot be received: {error}"))?;
    launch::sweep();
    let interrupted = || Err("interrupted".to_owned());
    let prepared = tokio::select! {
        prepared = ground.prepare(&serve) => prepared?,
        () = signals.next() => return interrupted(),
    };
    let model = prepared.models[0].clone();
    let Some(speech) = &model.speech else {
        let name = &model.name;
        return Err(format!(
            "--model: {name} does not hear; give a Whisper checkpoint"
        ));
    };
    let settings = settings(&args, &model, speech)?;
    let router = Router::new(serve.max_in_flight as usize);
    let mut started = ground.start(&serve, prepared, &router)?;
    let outcome = tokio::select! {
        outcome = write_all(&args, &outputs, &model, speech, &settings, &router, &mut started) => outcome,
        () = signals.next() => interrupted(),
    };
    let patience = if outcome.is_ok() {
        CLOSE_PATIENCE
    } else {
        Duration::ZERO
    };
    started.supervisor.stop(patience).await;
    outcome
}

/// `-` is stdin.
fn is_there(file: &Path) -> bool {
    file == Path::new("-") || file.exists()
}

/// The workers are those of `denizen serve` with the same options.
fn as_serve(args: &TranscribeArgs) -> Result<ServeArgs, String> {
    let default = if gpu::count() > 0 && args.devices != "cpu" {
        ON_GPU
    } else {
        ON_CPU
    };
    let model = args.model.as_deref().unwrap_or(default);
    let mut words: Vec<std::ffi::OsString> = [
        "denizen",
        "serve",
        "--model",
        model,
        "--devices",
        &args.devices,
    ]
    .map(Into::into)
    .into();
    words.extend(
        [
            "--log-level",
            &args.log_level,
            "--worker-module",
            &args.worker_module,
        ]
        .map(Into::into),
    );
    if let Some(python) = &args.python {
        words.extend(["--python".into(), python.into()]);
    }
    match Cli::try_parse_from(words)
        .map_err(|error| error.to_string())?
        .command
    {
        Command::Serve(serve) => Ok(*serve),
        _ => unreachable!("the word 'serve' was given"),
    }
}

/// Where each file's text goes; `None` is stdout.
fn outputs(args: &TranscribeArgs) -> Result<Vec<Option<PathBuf>>, String> {
    let Some(folder) = &args.output else {
        return Ok(vec![None; args.files.len()]);
    };
    let mut taken: BTreeMap<PathBuf, &Path> = BTreeMap::new();
    let mut outputs = Vec::new();
    for file in &args.files {
        let stem = file.file_stem().unwrap_or(file.as_os_str());
        let mut name = stem.to_owned();
        name.push(match args.format.as_str() {
            "text" => ".txt",
            "srt" => ".srt",
            "vtt" => ".vtt",
            _ => ".json",
        });
        let output = folder.join(name);
        if let Some(other) = taken.insert(output.clone(), file) {
            return Err(format!(
                "{} and {} would both be written to {}; give them to two runs with different --output",
                other.display(),
                file.display(),
                output.display()
            ));
        }
        outputs.push(Some(output));
    }
    Ok(outputs)
}

fn settings(
    args: &TranscribeArgs,
    model: &ModelEntry,
    speech: &SpeechModel,
) -> Result<Settings, String> {
    let task = if args.task == "translate" {
        Task::Translate
    } else {
        Task::Transcribe
    };
    if task == Task::Translate && !speech.multilingual {
        return Err(format!(
            "--task translate: {} knows English alone and cannot translate",
            model.name
        ));
    }
    let language = args.language.as_deref().map(|given| {
        let known = |code: &&str| match speech.multilingual {
            true => speech.language_id(code).is_some(),
            false => *code == "en",
        };
        language(given).filter(known).ok_or_else(|| {
            format!("--language {given}: {} does not know it; give a code such as de, or an English name", model.name)
        })
    });
    Ok(Settings {
        task,
        language: language.transpose()?,
        prompt: Vec::new(),
        temperature: 0.0,
        max_tokens: model.context / 2,
        ignore_eos: false,
        words: args.word_timestamps,
        logprobs: false,
        mode: if args.parallel {
            Mode::Parallel(Pauses::default())
        } else {
            Mode::Sequential
        },
        seed: 0,
    })
}

async fn write_all(
    args: &TranscribeArgs,
    outputs: &[Option<PathBuf>],
    model: &Arc<ModelEntry>,
    speech: &SpeechModel,
    settings: &Settings,
    router: &Router,
    started: &mut Started,
) -> Result<(), String> {
    loaded(&mut started.events, started.workers).await?;
    let progress = Progress::of(Unit::Seconds);
    let scribe = Scribe {
        model,
        speech,
        settings,
        router,
        progress: &progress,
    };
    let texts = stream::iter(&args.files)
        .map(|file| scribe.file(file))
        .buffered(AT_ONCE);
    let mut texts = texts.zip(stream::iter(args.files.iter().zip(outputs)));
    let mut failed = 0;
    loop {
        let next = tokio::select! {
            next = texts.next() => next,
            why = fatal(&mut started.events) => return Err(why),
        };
        let Some((transcript, (file, output))) = next else {
            break;
        };
        let written = match (transcript, output) {
            (Ok(transcript), Some(output)) => std::fs::write(output, body(args, &transcript))
                .map_err(|error| format!("{}: {error}", output.display())),
            // Nothing more can be handed over.
            (Ok(transcript), None) => {
                print(args, file, &transcript).map_err(|error| format!("stdout: {error}"))?;
                Ok(())
            }
            (Err(error), _) => Err(error),
        };
        if let Err(error) = written {
            failed += 1;
            Terminal::line(&format!("{}: {error}", file.display()));
        }
    }
    match failed {
        0 => Ok(()),
        _ => Err(format!(
            "{failed} of {} files could not be transcribed",
            args.files.len()
        )),
    }
}

/// Waits until all workers are ready.
async fn loaded(
    events: &mut mpsc::UnboundedReceiver<WorkerEvent>,
    workers: usize,
) -> Result<(), String> {
    let progress = Progress::default();
    let mut ready = BTreeSet::new();
    while ready.len() < workers {
        match events.recv().await {
            Some(WorkerEvent::Loading { load, .. }) => {
                progress.update(&load.model, load.done, load.total)
            }
            Some(WorkerEvent::Ready { worker }) => drop(ready.insert(worker)),
            Some(WorkerEvent::Fatal(why)) => return Err(why),
            None => return Err("all workers have ended".to_owned()),
        }
    }
    Ok(())
}

/// Returns when the workers cannot go on.
async fn fatal(events: &mut mpsc::UnboundedReceiver<WorkerEvent>) -> String {
    loop {
        match events.recv().await {
            Some(WorkerEvent::Fatal(why)) => return why,
            Some(_) => {}
            None => return "all workers have ended".to_owned(),
        }
    }
}

struct Scribe<'a> {
    model: &'a Arc<ModelEntry>,
    speech: &'a SpeechModel,
    settings: &'a Settings,
    router: &'a Router,
    progress: &'a Progress,
}

impl Scribe<'_> {
    async fn file(&self, file: &Path) -> Result<Transcript, String> {
        let path = file.to_owned();
        let share = Budget::new(usize::MAX).share();
        let open = move || {
            let bytes = read(&path)?;
            // The user's own file may be as large and as long as it likes.
            let limits = Limits {
                max_bytes: usize::MAX,
                max_seconds: f64::INFINITY,
                ..Limits::default()
            };
            let recording = Recording::open(&bytes, &limits, share, || true)
                .map_err(|error| error.to_string())?;
            recording.ok_or_else(|| "decoding was given up".to_owned())
        };
        let recording = tokio::task::spawn_blocking(open)
            .await
            .map_err(|error| error.to_string())??;
        let label = file
            .file_name()
            .unwrap_or(file.as_os_str())
            .to_string_lossy()
            .into_owned();
        let seconds =
            |samples: usize| (samples as u64).div_ceil(u64::from(crate::audio::SAMPLE_RATE));
        let total = seconds(recording.pcm.len());
        self.progress.update(&label, 0, total);
        let listener = Windows::new(
            Arc::new(self.router.clone()),
            self.model.clone(),
            recording.pcm.clone(),
        );
        let job = Job {
            model: self.model,
            speech: self.speech,
            listener: &listener,
            voice: &recording.voice,
            settings: self.settings,
            duration_s: recording.duration_s,
            tally: &Tally::default(),
        };
        let mut report = |_: &[_], samples| {
            self.progress
                .update(&label, seconds(samples).min(total), total)
        };
        let transcript = job
            .run(&mut report)
            .await
            .map_err(|error| error.to_string());
        self.progress.update(&label, total, total);
        transcript
    }
}

fn body(args: &TranscribeArgs, transcript: &Transcript) -> String {
    match args.format.as_str() {
        "text" => transcript.plain(),
        "srt" => transcript.srt(),
        "vtt" => transcript.vtt(),
        "json" => format!("{}\n", transcript.json()),
        _ => format!("{}\n", transcript.verbose_json(true)),
    }
}

/// To stdout, under the name of its file where there are several.
fn print(args: &TranscribeArgs, file: &Path, transcript: &Transcript) -> std::io::Result<()> {
    if args.files.len() > 1 {
        Terminal::hand_over(&format!("==> {} <==", file.display()))?;
    }
    Terminal::hand_over(body(args, transcript).trim_end_matches('\n'))
}

/// The bytes of a file; `-` is stdin.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    if path.is_dir() {
        return Err("is a folder; name the files in it".to_owned());
    }
    let path = if path == Path::new("-") {
        Path::new("/dev/stdin")
    } else {
        path
    };
    std::fs::read(path).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(words: &[&str]) -> TranscribeArgs {
        let words = ["denizen", "transcribe"].iter().chain(words);
        match Cli::try_parse_from(words).unwrap().command {
            Command::Transcribe(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn files_go_to_the_folder_under_their_own_names() {
        let args = args(&["a/x.wav", "b/y.z.mp3", "--output", "out", "--format", "srt"]);
        let outputs = outputs(&args).unwrap();
        assert_eq!(
            outputs,
            [Some("out/x.srt".into()), Some("out/y.z.srt".into())]
        );
    }

    #[test]
    fn two_files_never_go_to_one_place() {
        let args = args(&["a/x.wav", "b/x.mp3", "--output", "out"]);
        assert!(outputs(&args).unwrap_err().contains("a/x.wav and b/x.mp3"));
    }

    #[test]
    fn workers_get_what_was_given() {
        let serve = as_serve(&args(&[
            "x.wav",
            "--model",
            "a/b",
            "--devices",
            "cuda:1",
            "--python",
            "/p",
        ]))
        .unwrap();
        assert_eq!(
            (serve.models, serve.devices.as_str()),
            (vec!["a/b".to_owned()], "cuda:1")
        );
        assert_eq!(serve.python, Some("/p".into()));
        assert_eq!(
            as_serve(&args(&["x.wav", "--devices", "cpu"]))
                .unwrap()
                .models,
            [ON_CPU]
        );
    }
}
