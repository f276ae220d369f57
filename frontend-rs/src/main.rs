//! The launch binary `denizen`.

use std::process::ExitCode;

use clap::Parser;
use denizen_frontend::cli::{Cli, Command};
use denizen_frontend::terminal::{LogLines, Terminal};
use denizen_frontend::{doctor, scribe, serve};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("threads cannot be started: {error}")),
    };
    let outcome = match cli.command {
        Command::Doctor(args) => {
            if runtime.block_on(doctor::run(&args)) {
                Ok(())
            } else {
                Err("this machine is not ready for Denizen; see BAD above".to_owned())
            }
        }
        Command::Transcribe(args) => {
            init_log(&args.log_level);
            runtime.block_on(scribe::run(*args))
        }
        Command::Serve(args) => {
            init_log(&args.log_level);
            runtime.block_on(serve::run(*args))
        }
    };
    // Threads that tokenize may still be busy; nobody waits for them.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => {
            Terminal::flush();
            ExitCode::SUCCESS
        }
        Err(message) => fail(&message),
    }
}

fn fail(message: &str) -> ExitCode {
    Terminal::line(&format!("error: {message}"));
    Terminal::flush();
    ExitCode::FAILURE
}

fn init_log(level: &str) {
    let filter = tracing_subscriber::EnvFilter::new(format!(
        "warn,denizen_frontend={level},denizen_shm={level}"
    ));
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(terminal)
        .with_writer(LogLines::default);
    // Whoever reads a file later cannot look at the clock.
    if terminal {
        log.without_time().init();
    } else {
        log.init();
    }
}
