//! A checkpoint folder, looked at before anything is started: what is missing is said in one line.

use std::path::Path;

use serde_json::Value;

/// Checks `config.json` and that the weight files are there. `architectures`: what the workers support; empty = any.
pub fn check(folder: &Path, architectures: &[String]) -> Result<(), String> {
    let shown = folder.display();
    let config = folder.join("config.json");
    let text = match std::fs::read_to_string(&config) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let hint = if has_suffix(folder, ".gguf") {
                "; GGUF files are not served"
            } else if folder.join("adapter_config.json").exists() {
                "; this is a LoRA adapter: merge it into its base model first"
            } else {
                ""
            };
            return Err(format!(
                "{shown} is no checkpoint: config.json is missing; give the folder of a Hugging Face checkpoint{hint}"
            ));
        }
        Err(error) => {
            return Err(format!(
                "{} cannot be read: {error}; make the folder and its files readable",
                config.display()
            ))
        }
    };
    let parsed: Value = serde_json::from_str(&text).map_err(|error| {
        format!(
            "{} is not valid JSON ({error}); download the checkpoint again",
            config.display()
        )
    })?;
    let Some(name) = parsed["architectures"][0].as_str() else {
        return Err(format!(
            "{} does not name its model in 'architectures'; give the folder of a Hugging Face checkpoint",
            config.display()
        ));
    };
    if !architectures.is_empty() && !architectures.iter().any(|known| known == name) {
        return Err(format!(
            "{}: the model {name} is not supported; supported: {}",
            config.display(),
            architectures.join(", ")
        ));
    }
    weights(folder)
}

fn weights(folder: &Path) -> Result<(), String> {
    let shown = folder.display();
    let index = folder.join("model.safetensors.index.json");
    if index.is_file() {
        let broken =
            |why: String| format!("{} {why}; download the checkpoint again", index.display());
        let text = std::fs::read_to_string(&index)
            .map_err(|error| broken(format!("cannot be read: {error}")))?;
        let parsed: Value = serde_json::from_str(&text)
            .map_err(|error| broken(format!("is not valid JSON ({error})")))?;
        let map = parsed["weight_map"]
            .as_object()
            .ok_or_else(|| broken("has no 'weight_map'".to_owned()))?;
        let files: std::collections::BTreeSet<&str> =
            map.values().filter_map(Value::as_str).collect();
        return match files.iter().find(|file| !folder.join(file).is_file()) {
            Some(file) => Err(format!(
                "{shown}: the weight file {file} is missing; download the checkpoint again"
            )),
            None => Ok(()),
        };
    }
    if has_suffix(folder, ".safetensors") {
        return Ok(());
    }
    let hint =
        if has_suffix(folder, ".bin") || has_suffix(folder, ".pt") || has_suffix(folder, ".pth") {
            "; convert the PyTorch files to safetensors"
        } else {
            "; download the checkpoint again"
        };
    Err(format!(
        "{shown} has no weights: no *.safetensors file{hint}"
    ))
}

fn has_suffix(folder: &Path, suffix: &str) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .into_iter()
        .any(|entry| entry.file_name().to_string_lossy().ends_with(suffix))
}
