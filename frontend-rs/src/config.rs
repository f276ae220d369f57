//! From the command line to what is to be served: model specs, devices, workers. Nothing here touches a file, except to
//! see whether a path exists.

use std::path::{Path, PathBuf};

use crate::cli::ServeArgs;
use crate::supervise::{Device, WorkerLimits, WorkerModel, WorkerPlan};

/// A mistake in the command line: one line that says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// Name of the model that is served when none is given.
pub const BUILTIN: &str = "SmolLM2-135M-Instruct";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Folder(PathBuf),
    Hub(String),
    Builtin,
}

/// One `--model`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSpec {
    pub name: String,
    pub source: Source,
    /// `None`: all devices of `--devices`.
    pub devices: Option<Vec<Device>>,
}

/// Reads `[NAME=]PATH_OR_HUB_ID[@DEVICES]`.
pub fn parse_model(text: &str) -> Result<ModelSpec, ConfigError> {
    let (place, devices) = split_devices(text)?;
    let (name, place) = match place.split_once('=') {
        // A folder whose own name has an equals sign.
        Some(_) if Path::new(place).exists() => (None, place),
        Some((name, place)) => (Some(name), place),
        None => (None, place),
    };
    if name.is_some_and(|name| name.trim().is_empty()) || place.is_empty() {
        return Err(ConfigError(format!(
            "--model '{text}': write [NAME=]PATH_OR_HUB_ID[@DEVICES], such as small=./SmolLM2 or Qwen/Qwen3.5-0.8B"
        )));
    }
    let source = find(text, place)?;
    let derived = match &source {
        Source::Folder(folder) => folder_name(folder),
        Source::Hub(id) => id.clone(),
        Source::Builtin => BUILTIN.to_owned(),
    };
    Ok(ModelSpec {
        name: name.map_or(derived, str::to_owned),
        source,
        devices,
    })
}

/// Splits off `@cpu` or `@cuda:0,cuda:1`; any other `@` belongs to the path.
fn split_devices(text: &str) -> Result<(&str, Option<Vec<Device>>), ConfigError> {
    match text.rsplit_once('@') {
        Some((place, devices)) if devices.starts_with("cpu") || devices.starts_with("cuda") => {
            let devices = parse_devices(devices)
                .map_err(|e| ConfigError(format!("--model '{text}': {e}")))?;
            Ok((place, Some(devices)))
        }
        _ => Ok((text, None)),
    }
}

fn find(text: &str, place: &str) -> Result<Source, ConfigError> {
    // After NAME= the shell leaves a tilde alone.
    let home = std::env::var("HOME")
        .ok()
        .filter(|_| place.starts_with("~/"));
    let place = &home.map_or_else(|| place.to_owned(), |home| home + &place[1..]);
    let path = Path::new(place);
    if place.to_ascii_lowercase().ends_with(".gguf") {
        return Err(ConfigError(format!(
            "--model '{text}': GGUF files are not served; give a Hugging Face checkpoint folder (config.json, \
             tokenizer.json, *.safetensors) or a hub id"
        )));
    }
    if path.is_dir() {
        return Ok(Source::Folder(path.to_owned()));
    }
    if path.exists() {
        return Err(ConfigError(format!(
            "--model '{text}': {place} is a file; give the folder of the checkpoint"
        )));
    }
    let looks_like_path =
        place.starts_with(['.', '/']) || place.matches('/').count() != 1 || place.ends_with('/');
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match place.split_once('/') {
        Some((owner, name)) if !looks_like_path && !owner.is_empty() && (owner.to_owned() + name).chars().all(plain) => {
            Ok(Source::Hub(place.to_owned()))
        }
        _ => Err(ConfigError(format!(
            "--model '{text}': there is no folder {place}, and it is no hub id (OWNER/NAME); check the path"
        ))),
    }
}

fn folder_name(folder: &Path) -> String {
    let full = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    full.file_name().map_or_else(
        || "model".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    )
}

/// `cpu`, `cuda:0,cuda:1`, in order, without doubles.
pub fn parse_devices(text: &str) -> Result<Vec<Device>, ConfigError> {
    let mut devices = Vec::new();
    for item in text.split(',') {
        let device: Device = item.trim().parse().map_err(ConfigError)?;
        if devices.contains(&device) {
            return Err(ConfigError(format!("device {device} is named twice")));
        }
        devices.push(device);
    }
    Ok(devices)
}

/// All `--model` options, or the built-in model.
pub fn models(args: &ServeArgs) -> Result<Vec<ModelSpec>, ConfigError> {
    if args.models.is_empty() {
        return Ok(vec![ModelSpec {
            name: BUILTIN.to_owned(),
            source: Source::Builtin,
            devices: None,
        }]);
    }
    let specs = args
        .models
        .iter()
        .map(|text| parse_model(text))
        .collect::<Result<Vec<_>, _>>()?;
    for (index, spec) in specs.iter().enumerate() {
        if specs[..index].iter().any(|other| other.name == spec.name) {
            return Err(ConfigError(format!(
                "two models are named '{}'; give each its own name: --model NAME=PATH",
                spec.name
            )));
        }
    }
    Ok(specs)
}

/// What `--devices` says when it leaves the choice to us.
pub const AUTO: &str = "auto";

/// The devices that are used: `--devices`, then what only models name. `auto`: what that word stands for here.
pub fn devices(
    args: &ServeArgs,
    specs: &[ModelSpec],
    auto: &[Device],
) -> Result<Vec<Device>, ConfigError> {
    let mut devices = Vec::new();
    if specs.iter().any(|spec| spec.devices.is_none()) {
        devices = if args.devices.trim() == AUTO {
            auto.to_vec()
        } else {
            parse_devices(&args.devices)
                .map_err(|error| ConfigError(format!("--devices: {error}")))?
        };
    }
    for device in specs.iter().flat_map(|spec| spec.devices.iter().flatten()) {
        if !devices.contains(device) {
            devices.push(*device);
        }
    }
    if args.workers_per_device > 1 {
        if let Some(device) = devices.iter().find(|device| **device != Device::Cpu) {
            return Err(ConfigError(format!(
                "--workers-per-device {}: only cpu takes more than one worker, {device} does not",
                args.workers_per_device
            )));
        }
    }
    Ok(devices)
}

/// The workers: one a device, or several on the CPU. `folders` has the checkpoint of each spec.
pub fn workers(
    args: &ServeArgs,
    specs: &[ModelSpec],
    folders: &[PathBuf],
    devices: &[Device],
    cores: u32,
) -> Vec<WorkerPlan> {
    let limits = WorkerLimits {
        page_size: args.page_size,
        kv_tokens: args.kv_tokens.map(u64::from),
        state_dtype: args.state_dtype.clone(),
        max_rows: args.max_rows,
        max_context: args.max_context,
        prefill_chunk: args.prefill_chunk,
        overlap: !args.no_overlap,
        resident: !args.no_resident,
    };
    let count = |device: &Device| {
        if *device == Device::Cpu {
            args.workers_per_device
        } else {
            1
        }
    };
    let on_cpu = devices
        .iter()
        .filter(|device| **device == Device::Cpu)
        .map(count)
        .sum::<u32>()
        .max(1);
    let threads = (args.threads.unwrap_or(cores) / on_cpu).max(1);
    let places = devices
        .iter()
        .flat_map(|device| std::iter::repeat_n(*device, count(device) as usize));
    places
        .enumerate()
        .map(|(worker, device)| WorkerPlan {
            worker,
            device,
            threads: (device == Device::Cpu).then_some(threads),
            models: specs
                .iter()
                .zip(folders)
                .filter(|(spec, _)| {
                    spec.devices
                        .as_ref()
                        .is_none_or(|devices| devices.contains(&device))
                })
                .map(|(spec, path)| WorkerModel {
                    name: spec.name.clone(),
                    path: path.clone(),
                })
                .collect(),
            audio: false,
            limits: limits.clone(),
        })
        .collect()
}
