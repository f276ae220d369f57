//! From the command line to running workers: what `denizen serve` and `denizen transcribe` have in common.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::cli::ServeArgs;
use crate::config::{self, ModelSpec};
use crate::model::ModelEntry;
use crate::route::Router;
use crate::supervise::{Device, Launch, Limits, Supervisor, WorkerEvent};
use crate::{checkpoint, fetch, gpu, python};

/// What this machine and the command line offer.
pub struct Ground {
    pub specs: Vec<ModelSpec>,
    pub devices: Vec<Device>,
    python: PathBuf,
    probe: python::Probe,
}

/// What is known before workers start.
pub struct Prepared {
    pub models: Vec<Arc<ModelEntry>>,
    folders: Vec<PathBuf>,
    launch: Launch,
}

/// Workers that start or run.
pub struct Started {
    pub supervisor: Supervisor,
    pub events: mpsc::UnboundedReceiver<WorkerEvent>,
    /// How many there are.
    pub workers: usize,
}

impl Ground {
    /// Looks for Python and devices. An error is one line that says what to do.
    pub async fn survey(args: &ServeArgs) -> Result<Self, String> {
        let specs = config::models(args).map_err(|error| error.to_string())?;
        let python = python::find(args.python.as_deref()).map_err(|error| error.to_string())?;
        let probe = python::probe(&python, false)
            .await
            .map_err(|error| error.to_string())?;
        let real = args.worker_module == "denizen.worker";
        probe
            .check(&python, real)
            .map_err(|error| error.to_string())?;
        let gpus = gpu::count();
        let auto = gpu::auto(gpus, probe.flashinfer.is_some());
        let devices = config::devices(args, &specs, &auto).map_err(|error| error.to_string())?;
        gpu::check(&devices, gpus)?;
        if gpus > 0 && auto == [Device::Cpu] && devices == auto && args.devices == config::AUTO {
            tracing::warn!(
                "{gpus} GPU(s) stay idle, as FlashInfer is not installed; install it with: {} -m pip install \
                 'denizen[cuda]', or say --devices cpu",
                python.display()
            );
        }
        Ok(Self {
            specs,
            devices,
            python,
            probe,
        })
    }

    /// Downloads what is missing, and reads the front end's side of the checkpoints.
    pub async fn prepare(&self, args: &ServeArgs) -> Result<Prepared, String> {
        let mut folders = Vec::new();
        for spec in &self.specs {
            folders.push(fetch::resolve(&self.python, &spec.source).await?);
        }
        let (mut models, mut tokenizers) = (Vec::new(), BTreeMap::new());
        for (spec, folder) in self.specs.iter().zip(&folders) {
            checkpoint::check(folder, &self.probe.architectures)?;
            let (name, path, limit) = (spec.name.clone(), folder.clone(), args.max_context);
            let load = move || ModelEntry::load(&name, &path, limit);
            let model = tokio::task::spawn_blocking(load)
                .await
                .map_err(|error| format!("{}: {error}", folder.display()))?
                .map_err(|error| error.to_string())?;
            tokenizers.insert(spec.name.clone(), model.text.tokenizer_sha256.clone());
            models.push(Arc::new(model));
        }
        let limits = args.hang_limit.map_or_else(Limits::default, |limit| {
            Limits::all(Duration::from_secs(limit.into()))
        });
        let launch = Launch {
            python: self.python.clone(),
            module: args.worker_module.clone(),
            tokenizers,
            log_level: worker_log_level(&args.log_level).to_owned(),
            limits,
        };
        Ok(Prepared {
            folders,
            models,
            launch,
        })
    }

    /// Starts the workers.
    pub fn start(
        &self,
        args: &ServeArgs,
        prepared: Prepared,
        router: &Router,
    ) -> Result<Started, String> {
        let Prepared {
            models,
            folders,
            launch,
        } = prepared;
        let mut plans = config::workers(args, &self.specs, &folders, &self.devices, cores());
        for plan in &mut plans {
            plan.audio = models.iter().any(|model| {
                model.speech.is_some() && plan.models.iter().any(|hosted| hosted.name == model.name)
            });
        }
        router.set_models(models);
        let (sender, events) = mpsc::unbounded_channel();
        let workers = plans.len();
        let supervisor = Supervisor::start(router, launch, plans, &sender)
            .map_err(|error| format!("a thread cannot be started: {error}"))?;
        Ok(Started {
            supervisor,
            events,
            workers,
        })
    }
}

/// Removes what dead processes left in `/dev/shm`.
pub fn sweep() {
    match denizen_shm::sweep() {
        Ok(swept) if !swept.removed.is_empty() => {
            tracing::info!(
                "removed {} objects of dead processes from /dev/shm",
                swept.removed.len()
            );
        }
        Ok(_) => {}
        Err(error) => tracing::warn!("{error}"),
    }
}

/// Python's name for a level.
fn worker_log_level(level: &str) -> &str {
    match level {
        "warn" => "warning",
        "trace" => "debug",
        other => other,
    }
}

fn cores() -> u32 {
    std::thread::available_parallelism()
        .map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}
