//! `denizen serve`: from the command line to a serving process, and to its end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::cli::ServeArgs;
use crate::config::{self, ModelSpec};
use crate::http::{self, HttpConfig};
use crate::model::ModelEntry;
use crate::progress::{Progress, Terminal};
use crate::route::{Failure, Router};
use crate::shutdown::Signals;
use crate::supervise::{Device, Launch, Limits, Supervisor, WorkerEvent};
use crate::text::TextModel;
use crate::{checkpoint, fetch, gpu, python};

/// How long open connections may take to end, and workers, once nothing is generated any more.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// Serves until it is told to stop. An error is one line that says what to do.
pub async fn run(args: ServeArgs) -> Result<(), String> {
    let specs = config::models(&args).map_err(|error| error.to_string())?;
    let http_config = http_config(&args)?;
    let mut signals =
        Signals::new().map_err(|error| format!("signals cannot be received: {error}"))?;
    // Early, so that a port in use is found before anything slow.
    let listener = bind(&args.host, args.port).await?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    let python = python::find(args.python.as_deref()).map_err(|error| error.to_string())?;
    let probe = python::probe(&python, false)
        .await
        .map_err(|error| error.to_string())?;
    let gpus = gpu::count();
    let auto = gpu::auto(gpus, probe.flashinfer.is_some());
    let devices = config::devices(&args, &specs, &auto).map_err(|error| error.to_string())?;
    gpu::check(&devices, gpus)?;
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
    let router = Router::new(args.max_in_flight as usize);
    let server = Server::start(listener, http_config, router.clone());

    let prepared = tokio::select! {
        prepared = prepare(&args, &specs, python, &probe) => prepared?,
        () = signals.next() => return Ok(()),
    };
    let plans = config::workers(&args, &specs, &prepared.folders, &devices, cores());
    let models: Vec<String> = specs.iter().map(|spec| spec.name.clone()).collect();
    router.set_models(prepared.models);
    let (sender, mut events) = mpsc::unbounded_channel();
    let count = plans.len();
    let supervisor = Supervisor::start(&router, prepared.launch, plans, &sender)
        .map_err(|error| format!("a thread cannot be started: {error}"))?;

    let outcome = serve(&args, &router, &mut signals, &mut events, count, || {
        announce(&args, address, &models, &devices)
    })
    .await;
    let patience = match outcome {
        Outcome::Drained => CLOSE_PATIENCE,
        Outcome::Cut(_) | Outcome::Fatal(_) => Duration::ZERO,
    };
    server
        .stop(if patience.is_zero() {
            Duration::from_secs(1)
        } else {
            patience
        })
        .await;
    supervisor.stop(patience).await;
    match outcome {
        Outcome::Drained => Ok(()),
        Outcome::Cut(count) => Err(format!("{count} requests were cut off")),
        Outcome::Fatal(why) => Err(why),
    }
}

enum Outcome {
    Drained,
    /// This many sequences had to be ended.
    Cut(usize),
    Fatal(String),
}

/// Shows how loading goes, then serves, until a signal or a fault that ends everything.
async fn serve(
    args: &ServeArgs,
    router: &Router,
    signals: &mut Signals,
    events: &mut mpsc::UnboundedReceiver<WorkerEvent>,
    workers: usize,
    announce: impl Fn(),
) -> Outcome {
    let progress = Progress::default();
    let mut waiting: Vec<usize> = (0..workers).collect();
    loop {
        tokio::select! {
            () = signals.next() => break,
            event = events.recv() => match event {
                Some(WorkerEvent::Loading { worker, load }) => {
                    let label = if workers > 1 { format!("worker {worker}: {}", load.model) } else { load.model };
                    progress.update(&label, load.done, load.total);
                }
                Some(WorkerEvent::Ready { worker }) => {
                    let before = waiting.len();
                    waiting.retain(|index| *index != worker);
                    if before > 0 && waiting.is_empty() {
                        progress.clear();
                        announce();
                    }
                }
                Some(WorkerEvent::Fatal(why)) => {
                    router.drain();
                    router.fail_all(&failure("worker_died", "the server is going down because its worker died"));
                    return Outcome::Fatal(why);
                }
                None => return Outcome::Fatal("all workers have ended".to_owned()),
            },
        }
    }
    progress.clear();
    router.drain();
    Terminal::line("shutting down: running requests may finish; a second signal ends them");
    let finished = tokio::select! {
        () = router.idle() => true,
        () = tokio::time::sleep(Duration::from_secs(args.drain_timeout.into())) => false,
        () = signals.next() => false,
    };
    match router.fail_all(&failure(
        "shutting_down",
        "the server is shutting down; send the request again",
    )) {
        0 if finished => Outcome::Drained,
        cut => Outcome::Cut(cut),
    }
}

fn failure(code: &str, message: &str) -> Failure {
    Failure {
        code: code.to_owned(),
        message: message.to_owned(),
        param: None,
        retryable: true,
    }
}

/// What is known before workers start.
struct Prepared {
    folders: Vec<PathBuf>,
    models: Vec<Arc<ModelEntry>>,
    launch: Launch,
}

async fn prepare(
    args: &ServeArgs,
    specs: &[ModelSpec],
    python: PathBuf,
    probe: &python::Probe,
) -> Result<Prepared, String> {
    let real = args.worker_module == "denizen.worker";
    probe
        .check(&python, real)
        .map_err(|error| error.to_string())?;
    let mut folders = Vec::new();
    for spec in specs {
        folders.push(fetch::resolve(&python, &spec.source).await?);
    }
    let (mut models, mut tokenizers) = (Vec::new(), BTreeMap::new());
    for (spec, folder) in specs.iter().zip(&folders) {
        checkpoint::check(folder, &probe.architectures)?;
        let path = folder.clone();
        let text = tokio::task::spawn_blocking(move || TextModel::load(&path))
            .await
            .map_err(|error| format!("{}: {error}", folder.display()))?
            .map_err(|error| error.to_string())?;
        tokenizers.insert(spec.name.clone(), text.tokenizer_sha256.clone());
        let created = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        models.push(Arc::new(ModelEntry {
            name: spec.name.clone(),
            path: folder.clone(),
            created,
            context: args
                .max_context
                .map_or(text.context, |limit| limit.min(text.context)),
            vocab: text.vocab,
            text,
        }));
    }
    let limits = args.hang_limit.map_or_else(Limits::default, |limit| {
        Limits::all(Duration::from_secs(limit.into()))
    });
    let launch = Launch {
        python,
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

fn http_config(args: &ServeArgs) -> Result<HttpConfig, String> {
    if args
        .api_key
        .as_ref()
        .is_some_and(|key| key.trim().is_empty())
    {
        return Err(
            "--api-key: the key is empty; give one, or leave --api-key and DENIZEN_API_KEY away"
                .to_owned(),
        );
    }
    Ok(HttpConfig {
        api_key: args.api_key.clone(),
        max_body: (args.max_body as usize) << 20,
        max_in_flight: args.max_in_flight as usize,
        request_timeout: Duration::from_secs(args.request_timeout.into()),
        ..HttpConfig::default()
    })
}

async fn bind(host: &str, port: u16) -> Result<TcpListener, String> {
    TcpListener::bind((host, port)).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            format!("port {port} on {host} is in use; stop the program that has it, or give another with --port")
        }
        std::io::ErrorKind::PermissionDenied => {
            format!("port {port} on {host} is not permitted; take one from 1024 on with --port")
        }
        _ => format!("cannot listen on {host}:{port}: {error}; check --host and --port"),
    })
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

/// Says where the server is, with a line to try it.
fn announce(args: &ServeArgs, address: SocketAddr, models: &[String], devices: &[Device]) {
    let mut reachable = address;
    if address.ip().is_unspecified() {
        reachable.set_ip(if address.is_ipv4() {
            [127, 0, 0, 1].into()
        } else {
            std::net::Ipv6Addr::LOCALHOST.into()
        });
    }
    let key = if args.api_key.is_some() {
        " -H \"Authorization: Bearer $DENIZEN_API_KEY\""
    } else {
        ""
    };
    let body = serde_json::json!({
        "model": models.first(),
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    });
    let version = env!("CARGO_PKG_VERSION");
    let names = models.join(", ");
    let devices: Vec<String> = devices.iter().map(ToString::to_string).collect();
    let devices = devices.join(", ");
    let url = format!("http://{reachable}/v1/chat/completions");
    Terminal::say(&format!(
        "\nDenizen {version} serves {names} from {devices} on http://{address}\n\n  \
         curl {url}{key} -H 'Content-Type: application/json' -d '{body}'\n"
    ));
    if args.api_key.is_none() && !address.ip().is_loopback() {
        tracing::warn!("anyone who reaches {address} can use this server; --api-key sets a key");
    }
}

/// The HTTP server's task.
struct Server {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Server {
    fn start(listener: TcpListener, config: HttpConfig, router: Router) -> Self {
        let app = http::app(config, Arc::new(router));
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            // A token is a small write; waiting to fill a packet would hold it back.
            let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
            let serve = axum::serve(listener, app).with_graceful_shutdown(async {
                let _ = stopped.await;
            });
            if let Err(error) = serve.await {
                tracing::error!("HTTP: {error}");
            }
        });
        Self { stop, task }
    }

    /// Takes no more connections, and gives open ones `patience` to end.
    async fn stop(mut self, patience: Duration) {
        let _ = self.stop.send(());
        if tokio::time::timeout(patience, &mut self.task)
            .await
            .is_err()
        {
            self.task.abort();
        }
    }
}
