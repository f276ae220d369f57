//! `denizen doctor`: what this machine offers, and what is missing.

use std::path::{Path, PathBuf};

use denizen_shm::Config;
use nix::sys::statvfs::statvfs;

use crate::cli::DoctorArgs;
use crate::progress::size;
use crate::terminal::Terminal;
use crate::{gpu, python};

/// Bytes on the disk that making the built-in model takes (`worker/builtin.py`).
const CACHE_NEED: u64 = 900_000_000;

/// How one thing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Good,
    /// Works without it.
    Note,
    /// `denizen serve` will not work.
    Bad,
}

struct Finding {
    mark: Mark,
    what: &'static str,
    how: String,
}

fn finding(mark: Mark, what: &'static str, how: impl Into<String>) -> Finding {
    Finding {
        mark,
        what,
        how: how.into(),
    }
}

/// Prints the table; true if Denizen can serve on this machine.
pub async fn run(args: &DoctorArgs) -> bool {
    let mut findings = vec![finding(Mark::Good, "Denizen", env!("CARGO_PKG_VERSION"))];
    let gpus = gpu::count();
    findings.extend(interpreter(args, gpus).await);
    findings.push(shared_memory());
    findings.push(cache_folder());
    let width = findings
        .iter()
        .map(|finding| finding.what.len())
        .max()
        .unwrap_or(0);
    for Finding { mark, what, how } in &findings {
        let mark = match mark {
            Mark::Good => "ok  ",
            Mark::Note => "note",
            Mark::Bad => "BAD ",
        };
        Terminal::say(&format!("{mark}  {what:width$}  {how}"));
    }
    findings.iter().all(|finding| finding.mark != Mark::Bad)
}

async fn interpreter(args: &DoctorArgs, gpus: u32) -> Vec<Finding> {
    let python = match python::find(args.python.as_deref()) {
        Ok(python) => python,
        Err(error) => return vec![finding(Mark::Bad, "Python", error.to_string())],
    };
    let probe = match python::probe(&python, true).await {
        Ok(probe) => probe,
        Err(error) => return vec![finding(Mark::Bad, "Python", error.to_string())],
    };
    let mut findings = vec![finding(
        Mark::Good,
        "Python",
        format!("{} at {}", probe.python, python.display()),
    )];
    findings.push(match probe.check(&python, true) {
        Ok(()) => finding(Mark::Good, "packages", "all that a worker needs"),
        Err(error) => finding(Mark::Bad, "packages", error.to_string()),
    });
    findings.push(match (&probe.torch, &probe.torch_error) {
        (None, _) => finding(Mark::Bad, "torch", "not installed"),
        (Some(version), Some(error)) => finding(
            Mark::Bad,
            "torch",
            format!("{version} cannot be imported: {error}; reinstall torch"),
        ),
        (Some(version), None) => finding(Mark::Good, "torch", version.clone()),
    });
    if let (Some(_), None) = (&probe.torch, &probe.torch_error) {
        findings.push(match &probe.cuda {
            Some(version) => finding(Mark::Good, "CUDA", format!("torch was built for {version}")),
            None => finding(
                Mark::Note,
                "CUDA",
                "torch was built without it; models run on the CPU",
            ),
        });
    }
    findings.push(match (&probe.devices[..], gpus) {
        ([], 0) => finding(Mark::Note, "GPU", "none; models run on the CPU (--devices cpu)"),
        ([], _) => finding(
            Mark::Note,
            "GPU",
            format!("{gpus} in the driver, but torch sees none; check CUDA_VISIBLE_DEVICES and torch's CUDA build"),
        ),
        (devices, _) => finding(Mark::Good, "GPU", devices.join("; ")),
    });
    findings.push(match &probe.flashinfer {
        Some(version) => finding(Mark::Good, "FlashInfer", version.clone()),
        None if probe.devices.is_empty() => {
            finding(Mark::Note, "FlashInfer", "not installed; only GPUs need it")
        }
        None => finding(
            Mark::Note,
            "FlashInfer",
            format!(
                "not installed; install with: {} -m pip install 'denizen[cuda]'",
                python.display()
            ),
        ),
    });
    if !probe.devices.is_empty() {
        findings.push(match gpu::nvcc() {
            Some(nvcc) => finding(Mark::Good, "nvcc", nvcc.display().to_string()),
            None => finding(
                Mark::Note,
                "nvcc",
                "not found; FlashInfer compiles its kernels with it: install the CUDA toolkit, or set CUDA_HOME",
            ),
        });
    }
    findings
}

fn shared_memory() -> Finding {
    let need = Config::text("worker", 1).bytes().unwrap_or(u64::MAX);
    match denizen_shm::shm_space() {
        Err(error) => finding(Mark::Bad, "/dev/shm", error.to_string()),
        Ok((free, total)) if free < need => finding(
            Mark::Bad,
            "/dev/shm",
            format!(
                "{} of {} free, a worker needs {}; give the container more with docker run --shm-size=256m",
                size(free),
                size(total),
                size(need)
            ),
        ),
        Ok((free, total)) => finding(
            Mark::Good,
            "/dev/shm",
            format!("{} of {} free, enough for {} workers ({} each)", size(free), size(total), free / need, size(need)),
        ),
    }
}

/// `DENIZEN_CACHE`, else `~/.cache/denizen`.
fn cache_path() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    set("DENIZEN_CACHE")
        .map(PathBuf::from)
        .or_else(|| Some(Path::new(&set("HOME")?).join(".cache/denizen")))
}

fn cache_folder() -> Finding {
    let Some(path) = cache_path() else {
        return finding(
            Mark::Bad,
            "cache",
            "HOME is not set; set DENIZEN_CACHE to a folder for models",
        );
    };
    // The first part of it that exists is where it will be made.
    let place = path
        .ancestors()
        .find(|place| place.exists())
        .unwrap_or(Path::new("/"));
    let free = statvfs(place).map(|stat| stat.blocks_available() * stat.fragment_size());
    match nix::unistd::access(place, nix::unistd::AccessFlags::W_OK).and(free) {
        Ok(free) if free < CACHE_NEED => finding(
            Mark::Note,
            "cache",
            format!(
                "{}, {} free; the built-in model takes {} while it is made: make room, or set DENIZEN_CACHE",
                path.display(),
                size(free),
                size(CACHE_NEED)
            ),
        ),
        Ok(free) => finding(
            Mark::Good,
            "cache",
            format!("{}, {} free", path.display(), size(free)),
        ),
        Err(error) => finding(
            Mark::Bad,
            "cache",
            format!(
                "{} cannot be written ({error}); set DENIZEN_CACHE to another folder",
                path.display()
            ),
        ),
    }
}
