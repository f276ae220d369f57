//! `denizen serve`: from the command line to a serving process, and to its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::resource::{getrlimit, setrlimit, Resource};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::cli::ServeArgs;
use crate::clients::{Clients, Place, DEFAULT_NAME};
use crate::http::{App, HttpConfig, Server};
use crate::launch::{self, Ground, Prepared, Started};
use crate::model::ModelEntry;
use crate::progress::Progress;
use crate::route::{Failure, Router};
use crate::shutdown::Signals;
use crate::supervise::{Device, WorkerEvent};
use crate::terminal::Terminal;

/// How long open connections may take to end, and workers, once nothing is generated any more.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// File descriptors that are not for connections, as far as they are less than half: workers, clients over shared memory,
/// files.
const KEPT_FILES: u64 = 1024;

/// Serves until it is told to stop. An error is one line that says what to do.
pub async fn run(args: ServeArgs) -> Result<(), String> {
    let http_config = http_config(&args)?;
    let mut signals =
        Signals::new().map_err(|error| format!("signals cannot be received: {error}"))?;
    // Early, so that a port in use is found before anything slow.
    let listener = bind(&args.host, args.port).await?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    let ground = tokio::select! {
        ground = Ground::survey(&args) => ground?,
        () = signals.next() => return Ok(()),
    };
    launch::sweep();
    let place = shm_place(&args)?;
    let router = Router::new(args.max_in_flight as usize);
    let app = App::new(http_config, Arc::new(router.clone()));
    let server = Server::start(listener, app.clone());
    let clients = place.map(|place| Clients::start(app, place, args.shm_clients as usize));

    let prepared = tokio::select! {
        prepared = ground.prepare(&args) => prepared.map(Some),
        () = signals.next() => Ok(None),
    };
    let started = prepared.and_then(|prepared| {
        let start = |prepared: Prepared| {
            let models = prepared.models.clone();
            Ok((models, ground.start(&args, prepared, &router)?))
        };
        prepared.map(start).transpose()
    });
    let (models, started) = match started {
        Ok(Some(started)) => started,
        other => {
            dismiss(clients, Duration::ZERO).await;
            return other.map(drop);
        }
    };
    let Started {
        supervisor,
        mut events,
        workers,
    } = started;

    let outcome = serve(&args, &router, &mut signals, &mut events, workers, || {
        announce(&args, address, &models, &ground.devices)
    })
    .await;
    let patience = match outcome {
        Outcome::Drained => CLOSE_PATIENCE,
        Outcome::Cut(_) | Outcome::Fatal(_) => Duration::ZERO,
    };
    let goodbye = patience.max(Duration::from_secs(1));
    tokio::join!(server.stop(goodbye), dismiss(clients, goodbye));
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
                    let label = if workers > 1 {
                        format!("worker {worker}: {}", load.model)
                    } else {
                        format!("loading {}", load.model)
                    };
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
    let max_connections = connections();
    if max_connections <= args.max_in_flight as usize {
        tracing::warn!(
            "the limit on open files leaves {max_connections} connections, and --max-in-flight is {}: probes may have to \
             wait; raise the limit (ulimit -n)",
            args.max_in_flight
        );
    }
    Ok(HttpConfig {
        api_key: args.api_key.clone(),
        max_body: (args.max_body as usize) << 20,
        max_upload: (args.max_upload as usize) << 20,
        max_audio: Duration::from_secs(args.max_audio_seconds.into()),
        max_audio_memory: (args.max_audio_memory as usize) << 20,
        max_in_flight: args.max_in_flight as usize,
        request_timeout: Duration::from_secs(args.request_timeout.into()),
        max_connections,
        ..HttpConfig::default()
    })
}

/// How many connections there may be: each takes a file descriptor, and the usual soft limit of 1,024 is a handful of
/// clients.
fn connections() -> usize {
    let limit = Resource::RLIMIT_NOFILE;
    let raised = getrlimit(limit).and_then(|(_, hard)| setrlimit(limit, hard, hard));
    if let Err(error) = raised {
        tracing::warn!("the limit on open files cannot be raised: {error}");
    }
    let files = getrlimit(limit).map_or(KEPT_FILES, |(soft, _)| soft);
    usize::try_from(files - KEPT_FILES.min(files / 2)).unwrap_or(usize::MAX)
}

/// Lets clients over shared memory go, and their rendezvous with them.
async fn dismiss(clients: Option<Clients>, patience: Duration) {
    if let Some(clients) = clients {
        clients.stop(patience).await;
    }
}

/// The name under which clients find the server. One that was not asked for, and is not to be had, is no fault.
fn shm_place(args: &ServeArgs) -> Result<Option<Place>, String> {
    if args.no_shm {
        return Ok(None);
    }
    match (
        &args.shm_name,
        Place::take(args.shm_name.as_deref().unwrap_or(DEFAULT_NAME)),
    ) {
        (_, Ok(place)) => Ok(Some(place)),
        (Some(_), Err(why)) => Err(why),
        (None, Err(why)) => {
            tracing::warn!("no clients over shared memory: {why}");
            Ok(None)
        }
    }
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

/// Says where the server is, with a line to try it.
fn announce(args: &ServeArgs, address: SocketAddr, models: &[Arc<ModelEntry>], devices: &[Device]) {
    let mut reachable = address;
    if address.ip().is_unspecified() {
        reachable.set_ip(if address.is_ipv4() {
            [127, 0, 0, 1].into()
        } else {
            std::net::Ipv6Addr::LOCALHOST.into()
        });
    }
    // The key itself is not for the screen.
    let key = match (&args.api_key, std::env::var_os("DENIZEN_API_KEY")) {
        (None, _) => "",
        (Some(_), Some(_)) => " -H \"Authorization: Bearer $DENIZEN_API_KEY\"",
        (Some(_), None) => " -H 'Authorization: Bearer YOUR_KEY'",
    };
    let try_it = match models.first() {
        Some(model) if model.speech.is_some() => format!(
            "curl http://{reachable}/v1/audio/transcriptions{key} -F model='{}' -F file=@speech.wav",
            model.name
        ),
        Some(model) if model.speaker().is_some() => format!(
            "curl http://{reachable}/v1/audio/speech{key} -H 'Content-Type: application/json' -o speech.wav -d '{}'",
            serde_json::json!({"model": model.name, "input": "Hello."})
        ),
        model => {
            let body = serde_json::json!({
                "model": model.map(|model| &model.name),
                "messages": [{"role": "user", "content": "What is the capital of France?"}],
            });
            format!(
                "curl http://{reachable}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'"
            )
        }
    };
    let version = env!("CARGO_PKG_VERSION");
    let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
    let names = names.join(", ");
    let devices: Vec<String> = devices.iter().map(ToString::to_string).collect();
    let devices = devices.join(", ");
    Terminal::say(&format!(
        "\nDenizen {version} serves {names} from {devices} on http://{address}\n\n  {try_it}\n"
    ));
    if args.api_key.is_none() && !address.ip().is_loopback() {
        tracing::warn!("anyone who reaches {address} can use this server; --api-key sets a key");
    }
}
