//! The Python interpreter that runs the workers: found, and asked what it offers.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::process::Command;

/// How long an interpreter may take to answer; importing torch from a cold disk takes its time.
const PATIENCE: Duration = Duration::from_secs(120);

/// Why there is no usable interpreter. One line that says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PythonError(pub String);

/// Answer of `denizen.worker.probe`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Probe {
    pub python: String,
    pub denizen: String,
    /// Why the extension cannot be imported.
    pub native: Option<String>,
    pub missing: Vec<String>,
    pub torch: Option<String>,
    pub flashinfer: Option<String>,
    pub architectures: Vec<String>,
    pub torch_error: Option<String>,
    pub cuda: Option<String>,
    pub devices: Vec<String>,
}

/// The interpreter: the flag's, else that of `VIRTUAL_ENV`, else the one beside this program.
pub fn find(flag: Option<&Path>) -> Result<PathBuf, PythonError> {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|program| Some(program.parent()?.to_owned()));
    find_in(flag, std::env::var_os("VIRTUAL_ENV"), beside.as_deref())
}

fn find_in(
    flag: Option<&Path>,
    venv: Option<OsString>,
    beside: Option<&Path>,
) -> Result<PathBuf, PythonError> {
    if let Some(python) = flag {
        return match python.is_file() {
            true => Ok(python.to_owned()),
            false => Err(PythonError(format!(
                "--python {}: there is no such file",
                python.display()
            ))),
        };
    }
    if let Some(venv) = venv.filter(|venv| !venv.is_empty()) {
        let python = Path::new(&venv).join("bin/python");
        return match python.is_file() {
            true => Ok(python),
            false => Err(PythonError(format!(
                "VIRTUAL_ENV is set, but {} does not exist; activate the environment anew, or give --python PATH",
                python.display()
            ))),
        };
    }
    let names = ["python3", "python"].into_iter();
    let found = names
        .filter_map(|name| Some(beside?.join(name)))
        .find(|path| path.is_file());
    found.ok_or_else(|| {
        PythonError(
            "no Python interpreter found; activate the environment that Denizen is installed in, or give --python PATH"
                .to_owned(),
        )
    })
}

/// Asks the interpreter what it offers; with `cuda`, imports torch and lists the GPUs.
pub async fn probe(python: &Path, cuda: bool) -> Result<Probe, PythonError> {
    let mut command = Command::new(python);
    command
        .args(["-P", "-m", "denizen.worker.probe"])
        .stdin(Stdio::null())
        .kill_on_drop(true);
    if cuda {
        command.arg("--cuda");
    }
    let shown = python.display();
    let output = tokio::time::timeout(PATIENCE, command.output())
        .await
        .map_err(|_| {
            PythonError(format!(
                "{shown} did not answer within {} s",
                PATIENCE.as_secs()
            ))
        })?
        .map_err(|error| PythonError(format!("{shown} cannot be started: {error}")))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("it printed nothing");
    if !output.status.success() {
        return Err(PythonError(format!(
            "{shown} cannot import Denizen ({last}); install it there with pip, or give --python PATH"
        )));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| {
        PythonError(format!(
            "{shown} gave an answer that is not understood: {error}"
        ))
    })
}

impl Probe {
    /// Whether workers can run; `real` = not the stub, which needs no torch.
    pub fn check(&self, python: &Path, real: bool) -> Result<(), PythonError> {
        let shown = python.display();
        if let Some(why) = &self.native {
            return Err(PythonError(format!(
                "{shown} cannot import denizen._native ({why}); reinstall Denizen there with pip"
            )));
        }
        let missing: Vec<&str> = self.missing.iter().map(String::as_str).collect();
        if real && !missing.is_empty() {
            return Err(PythonError(format!(
                "{shown} lacks {}; install with: {shown} -m pip install 'denizen[serve]'",
                missing.join(", ")
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }

    #[test]
    fn flag_goes_before_venv_and_venv_before_the_programs_folder() {
        let folder = std::env::temp_dir().join(format!("denizen-python-{}", std::process::id()));
        let (flag, venv, beside) = (folder.join("mine"), folder.join("venv"), folder.join("bin"));
        touch(&flag);
        touch(&venv.join("bin/python"));
        touch(&beside.join("python3"));
        let venv_value = || Some(venv.clone().into_os_string());
        assert_eq!(
            find_in(Some(&flag), venv_value(), Some(&beside)),
            Ok(flag.clone())
        );
        assert_eq!(
            find_in(None, venv_value(), Some(&beside)),
            Ok(venv.join("bin/python"))
        );
        assert_eq!(
            find_in(None, None, Some(&beside)),
            Ok(beside.join("python3"))
        );
        assert_eq!(
            find_in(None, Some(OsString::new()), Some(&beside)),
            Ok(beside.join("python3"))
        );
        for (flag, venv) in [
            (Some(folder.join("no")), None),
            (None, Some(folder.join("no").into_os_string())),
        ] {
            let error = find_in(flag.as_deref(), venv, Some(&beside)).unwrap_err();
            assert!(error.0.contains("no"), "{error}");
        }
        assert!(find_in(None, None, Some(&folder))
            .unwrap_err()
            .0
            .contains("--python"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
