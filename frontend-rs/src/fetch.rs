//! Downloads and conversions: a Python process that tells how far it is in JSON lines.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Command;

use crate::config::Source;
use crate::progress::Progress;
use crate::terminal::Terminal;

/// A line of the fetch process's stdout.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum FetchEvent {
    Status {
        message: String,
    },
    Progress {
        file: String,
        done: u64,
        total: u64,
    },
    Done {
        path: PathBuf,
    },
    Error {
        message: String,
    },
    /// A newer fetch process's.
    #[serde(other)]
    Unknown,
}

/// The checkpoint folder of a source, fetched if need be. An error is one line that says what to do.
pub async fn resolve(python: &Path, source: &Source) -> Result<PathBuf, String> {
    match source {
        Source::Folder(folder) => folder
            .canonicalize()
            .map_err(|error| format!("{}: {error}", folder.display())),
        Source::Hub(id) => fetch(python, &["hub", id], id).await,
        Source::Builtin => fetch(python, &["builtin"], "the built-in model").await,
    }
}

async fn fetch(python: &Path, what: &[&str], label: &str) -> Result<PathBuf, String> {
    let mut command = Command::new(python);
    command
        .args(["-P", "-m", "denizen.worker.fetch"])
        .args(what);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let failed = |why: String| format!("{label} cannot be fetched: {why}");
    let mut child = command
        .spawn()
        .map_err(|error| failed(format!("{}: {error}", python.display())))?;
    let (Some(stdout), Some(mut stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(failed("its output is not to be had".to_owned()));
    };
    let errors = tokio::spawn(async move {
        let mut text = Vec::new();
        let _ = stderr.read_to_end(&mut text).await;
        String::from_utf8_lossy(&text).into_owned()
    });
    let progress = Progress::default();
    let mut lines = BufReader::new(stdout).lines();
    let mut outcome = None;
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            Ok(FetchEvent::Status { message }) => Terminal::line(&message),
            Ok(FetchEvent::Progress { file, done, total }) => progress.update(&file, done, total),
            Ok(FetchEvent::Done { path }) => outcome = Some(Ok(path)),
            Ok(FetchEvent::Error { message }) => outcome = Some(Err(message)),
            Ok(FetchEvent::Unknown) => {}
            Err(_) => tracing::debug!("fetch: {line}"),
        }
    }
    drop(progress);
    let status = child
        .wait()
        .await
        .map_err(|error| failed(error.to_string()))?;
    let errors = errors.await.unwrap_or_default();
    match outcome {
        Some(Ok(path)) if status.success() => Ok(path),
        Some(Err(message)) => Err(message),
        _ => {
            let last = errors.lines().rev().find(|line| !line.trim().is_empty());
            Err(failed(last.map_or_else(
                || format!("the fetch process ended with {status}"),
                str::to_owned,
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A "Python" that prints `script`'s output.
    async fn fetched(script: &str) -> Result<PathBuf, String> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let python =
            std::env::temp_dir().join(format!("denizen-fetch-{}-{number}", std::process::id()));
        std::fs::write(&python, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o700)).unwrap();
        let result = resolve(&python, &Source::Hub("owner/name".to_owned())).await;
        std::fs::remove_file(&python).unwrap();
        result
    }

    #[tokio::test]
    async fn the_folder_of_done_is_the_result() {
        let script = r#"echo '{"event":"progress","file":"a","done":1,"total":2}'
            echo 'noise'; echo '{"event":"later"}'; echo '{"event":"done","path":"/x"}'"#;
        assert_eq!(fetched(script).await, Ok(PathBuf::from("/x")));
    }

    #[tokio::test]
    async fn the_message_of_error_is_the_error() {
        let script =
            r#"echo '{"event":"error","message":"no such model","code":"not_found"}'; exit 1"#;
        assert_eq!(fetched(script).await, Err("no such model".to_owned()));
    }

    #[tokio::test]
    async fn a_fetch_that_just_dies_is_told_by_its_last_line() {
        let error = fetched("echo first >&2; echo 'Boom: last' >&2; exit 3")
            .await
            .unwrap_err();
        assert!(
            error.contains("owner/name") && error.contains("Boom: last"),
            "{error}"
        );
        let error = fetched("exit 3").await.unwrap_err();
        assert!(error.contains("exit status: 3"), "{error}");
    }
}
