//! Which workers there are, and what each is told.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::Serialize;

/// Where a worker computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Device {
    Cpu,
    Cuda(u32),
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a device; write cpu or cuda:N, such as cuda:0");
        match text.split_once(':') {
            None if text == "cpu" => Ok(Self::Cpu),
            Some(("cuda", index)) if index.bytes().all(|b| b.is_ascii_digit()) => {
                index.parse().map(Self::Cuda).map_err(|_| wrong())
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// A model as a worker is told of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkerModel {
    pub name: String,
    pub path: PathBuf,
}

/// The limits that every worker gets; `None` = the worker's own default. Meanings: `docs/design/protocol.md`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkerLimits {
    pub page_size: Option<u32>,
    pub kv_tokens: Option<u64>,
    pub state_dtype: Option<String>,
    pub max_rows: Option<u32>,
    pub max_context: Option<u32>,
    pub prefill_chunk: Option<u32>,
    pub overlap: bool,
    pub resident: bool,
}

/// One worker: the `--config` of its process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkerPlan {
    pub worker: usize,
    #[serde(serialize_with = "as_text")]
    pub device: Device,
    pub threads: Option<u32>,
    pub models: Vec<WorkerModel>,
    /// One of its models hears, so that its arena must hold audio; the worker itself knows.
    #[serde(skip)]
    pub audio: bool,
    #[serde(flatten)]
    pub limits: WorkerLimits,
}

fn as_text<S: serde::Serializer>(device: &Device, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(device)
}

impl WorkerPlan {
    pub fn name(&self) -> String {
        format!("worker {} ({})", self.worker, self.device)
    }

    pub fn model_names(&self) -> Vec<String> {
        self.models.iter().map(|model| model.name.clone()).collect()
    }

    /// The value of `--config`.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers can be written as JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_and_written() {
        for text in ["cpu", "cuda:0", "cuda:15"] {
            assert_eq!(text.parse::<Device>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "gpu",
            "cuda",
            "cuda:",
            "cuda:x",
            "cuda:-1",
            "cuda:+1",
            "CPU",
            "cuda:99999999999",
        ] {
            assert!(
                text.parse::<Device>()
                    .unwrap_err()
                    .contains("write cpu or cuda:N"),
                "{text}"
            );
        }
    }

    #[test]
    fn config_is_what_the_protocol_says() {
        let plan = WorkerPlan {
            worker: 1,
            device: Device::Cuda(3),
            threads: None,
            models: vec![WorkerModel {
                name: "m".into(),
                path: "/p".into(),
            }],
            audio: true,
            limits: WorkerLimits {
                page_size: Some(16),
                kv_tokens: None,
                state_dtype: None,
                max_rows: None,
                max_context: Some(4096),
                prefill_chunk: None,
                overlap: true,
                resident: false,
            },
        };
        let json: serde_json::Value = serde_json::from_str(&plan.to_json()).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "worker": 1, "device": "cuda:3", "threads": null, "models": [{"name": "m", "path": "/p"}],
                "page_size": 16, "kv_tokens": null, "state_dtype": null, "max_rows": null, "max_context": 4096,
                "prefill_chunk": null, "overlap": true, "resident": false,
            })
        );
    }
}
