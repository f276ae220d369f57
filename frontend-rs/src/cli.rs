//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  denizen serve
      the built-in model on 127.0.0.1:8000
  denizen serve --model Qwen/Qwen3.5-0.8B --devices cuda:0
      a model from the Hugging Face hub, on one GPU
  denizen transcribe talk.mp3 --format srt
      subtitles of an audio file
  denizen doctor
      what this machine offers, and what is missing";

const SERVE_EXAMPLES: &str = "\
Examples:
  denizen serve
      the built-in model on 127.0.0.1:8000
  denizen serve --model Qwen/Qwen3.5-0.8B --devices cuda:0
      a model from the Hugging Face hub, on one GPU
  denizen serve --model small=./SmolLM2 --model big=./Qwen3.5-2B@cuda:1 --devices cuda:0,cuda:1
      two local models: 'small' on both GPUs, 'big' on the second
  denizen serve --model openai/whisper-base
      speech recognition

Environment:
  DENIZEN_CACHE    folder of the built-in model; ~/.cache/denizen by default
  HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE
                   for models of the hub, as huggingface_hub reads them
  DENIZEN_RUN_DIR  folder where programs on this machine find the server";

const TRANSCRIBE_EXAMPLES: &str = "\
Examples:
  denizen transcribe talk.mp3
      the text, on stdout
  denizen transcribe *.flac --model openai/whisper-small --format srt --output subtitles/
      a file of subtitles for each";

/// Serve small autoregressive models over an OpenAI-compatible API.
#[derive(Debug, Parser)]
#[command(name = "denizen", version, after_help = EXAMPLES, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve models over HTTP
    Serve(Box<ServeArgs>),
    /// Write down what audio files say, without a server
    Transcribe(Box<TranscribeArgs>),
    /// Show what this machine offers and what is missing
    Doctor(DoctorArgs),
}

#[derive(Debug, Args)]
#[command(after_help = SERVE_EXAMPLES)]
pub struct ServeArgs {
    /// A model: a checkpoint folder or a hub id, optionally with a name and devices of its own; repeatable. Without it,
    /// the built-in SmolLM2-135M-Instruct
    #[arg(
        long = "model",
        value_name = "[NAME=]PATH_OR_HUB_ID[@DEVICES]",
        help_heading = "Models"
    )]
    pub models: Vec<String>,
    /// Devices to use: cpu, or cuda:0,cuda:1,…; auto takes every GPU if FlashInfer is installed, else cpu
    #[arg(
        long,
        value_name = "DEVICES",
        default_value = "auto",
        help_heading = "Models"
    )]
    pub devices: String,
    /// Worker processes per device; more than one only on cpu
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive(), help_heading = "Models")]
    pub workers_per_device: u32,
    /// Longest prompt + output in tokens; the checkpoint's by default
    #[arg(long, value_name = "TOKENS", value_parser = positive(), help_heading = "Models")]
    pub max_context: Option<u32>,

    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1", help_heading = "HTTP")]
    pub host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8000, help_heading = "HTTP")]
    pub port: u16,
    /// Key that clients must send as 'Authorization: Bearer KEY'
    #[arg(
        long,
        value_name = "KEY",
        env = "DENIZEN_API_KEY",
        hide_env_values = true,
        help_heading = "HTTP"
    )]
    pub api_key: Option<String>,
    /// Most sequences queued or running; more get 429
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = positive(), help_heading = "HTTP")]
    pub max_in_flight: u32,
    /// Largest request body in MiB; larger ones get 413
    #[arg(long, value_name = "MIB", default_value_t = 32, value_parser = positive(), help_heading = "HTTP")]
    pub max_body: u32,
    /// Largest upload of an audio file in MiB; larger ones get 413
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = positive(), help_heading = "HTTP")]
    pub max_upload: u32,
    /// Longest audio of one file in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 7200, value_parser = positive(), help_heading = "HTTP")]
    pub max_audio_seconds: u32,
    /// Memory for uploaded and decoded audio in MiB (an hour takes 220); more get 429
    #[arg(long, value_name = "MIB", default_value_t = 2048, value_parser = positive(), help_heading = "HTTP")]
    pub max_audio_memory: u32,
    /// Seconds after which a request is given up
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = positive(), help_heading = "HTTP")]
    pub request_timeout: u32,
    /// Seconds that running requests get to finish after SIGTERM
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        help_heading = "HTTP"
    )]
    pub drain_timeout: u32,

    /// Name under which programs on this machine find the server without HTTP [default: default]
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with = "no_shm",
        help_heading = "Shared memory"
    )]
    pub shm_name: Option<String>,
    /// Serve HTTP alone
    #[arg(long, help_heading = "Shared memory")]
    pub no_shm: bool,
    /// Most programs connected at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = positive(), help_heading = "Shared memory")]
    pub shm_clients: u32,

    /// Requests that run at once, per worker and model [default: 64 on cpu, 256 on cuda]
    #[arg(long, value_name = "N", value_parser = positive(), help_heading = "Workers")]
    pub max_rows: Option<u32>,
    /// KV cache per worker and model in tokens; what the memory allows by default
    #[arg(long, value_name = "TOKENS", value_parser = positive(), help_heading = "Workers")]
    pub kv_tokens: Option<u32>,
    /// Tokens in a KV page [default: 16]
    #[arg(long, value_name = "TOKENS", value_parser = positive(), help_heading = "Workers")]
    pub page_size: Option<u32>,
    /// Type of recurrent states that a model would keep in float32; bfloat16 moves half the bytes
    #[arg(long, value_name = "TYPE", value_parser = ["float32", "bfloat16"], help_heading = "Workers")]
    pub state_dtype: Option<String>,
    /// Most prompt tokens in one prefill step [default: 512 on cpu, 1024 on cuda]
    #[arg(long, value_name = "TOKENS", value_parser = positive(), help_heading = "Workers")]
    pub prefill_chunk: Option<u32>,
    /// CPU threads for the math of all cpu workers together; all cores by default
    #[arg(long, value_name = "N", value_parser = positive(), help_heading = "Workers")]
    pub threads: Option<u32>,
    /// Do not prepare a step while the one before it runs
    #[arg(long, help_heading = "Workers")]
    pub no_overlap: bool,
    /// Plan every step on the host instead of keeping requests on the device
    #[arg(long, help_heading = "Workers")]
    pub no_resident: bool,
    /// Python interpreter for the workers [default: the one of VIRTUAL_ENV, else the one beside this program]
    #[arg(long, value_name = "PATH", help_heading = "Workers")]
    pub python: Option<PathBuf>,

    /// How much is said on stderr
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = ["error", "warn", "info", "debug", "trace"])]
    pub log_level: String,

    /// Module that workers run
    #[arg(long, default_value = "denizen.worker", hide = true)]
    pub worker_module: String,
    /// Seconds without progress after which a worker is killed, whatever it does
    #[arg(long, value_name = "SECONDS", hide = true, value_parser = positive())]
    pub hang_limit: Option<u32>,
}

#[derive(Debug, Args)]
#[command(after_help = TRANSCRIBE_EXAMPLES)]
pub struct TranscribeArgs {
    /// Audio files: WAV, FLAC, MP3, OGG, Opus, WebM, M4A, AAC; - is stdin
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// A Whisper checkpoint: a folder or a hub id [default: openai/whisper-large-v3-turbo with a GPU, else
    /// openai/whisper-base]
    #[arg(long, value_name = "PATH_OR_HUB_ID")]
    pub model: Option<String>,
    /// What to write
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = ["text", "srt", "vtt", "json", "verbose_json"])]
    pub format: String,
    /// Spoken language, such as de or german; found out by default
    #[arg(long)]
    pub language: Option<String>,
    /// Write down what is said, or translate it into English
    #[arg(long, default_value = "transcribe", value_parser = ["transcribe", "translate"])]
    pub task: String,
    /// Folder for one text file per audio file; stdout by default
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Give each word its times; verbose_json shows them
    #[arg(long)]
    pub word_timestamps: bool,
    /// Cut long audio at pauses and write down all pieces at once; faster, but no piece knows the text before it
    #[arg(long)]
    pub parallel: bool,
    /// Devices to use: cpu, or cuda:0,cuda:1,…; auto takes every GPU if FlashInfer is installed, else cpu
    #[arg(long, value_name = "DEVICES", default_value = "auto")]
    pub devices: String,
    /// Python interpreter for the workers [default: the one of VIRTUAL_ENV, else the one beside this program]
    #[arg(long, value_name = "PATH")]
    pub python: Option<PathBuf>,

    /// How much is said on stderr
    #[arg(long, value_name = "LEVEL", default_value = "warn", value_parser = ["error", "warn", "info", "debug", "trace"])]
    pub log_level: String,

    /// Module that workers run
    #[arg(long, default_value = "denizen.worker", hide = true)]
    pub worker_module: String,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Python interpreter to look at [default: the one of VIRTUAL_ENV, else the one beside this program]
    #[arg(long, value_name = "PATH")]
    pub python: Option<PathBuf>,
}

fn positive() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
