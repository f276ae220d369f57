//! Model folders for tests: a byte-level toy with a thinking template, and two real tokenizers.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use denizen_frontend::model::ModelEntry;
use serde_json::{json, Value};

/// A folder below the build directory, made anew; removed when dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{name}-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.0.join(name), content).unwrap();
    }

    pub fn write_json(&self, name: &str, content: &Value) {
        self.write(name, content.to_string());
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn asset(path: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/assets")
        .join(path);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn unpacked(path: &str) -> Vec<u8> {
    let mut out = Vec::new();
    lzma_rs::xz_decompress(&mut asset(path).as_slice(), &mut out).unwrap();
    out
}

/// The `tokenizer.json` of a folder of assets.
pub fn tokenizer_json(name: &str) -> Vec<u8> {
    unpacked(&format!("{name}/tokenizer.json.xz"))
}

pub fn entry(name: &str, folder: &Folder) -> Arc<ModelEntry> {
    let mut entry = ModelEntry::load(name, &folder.0, None).unwrap();
    entry.created = 1_700_000_000;
    Arc::new(entry)
}

/// The real SmolLM2 tokenizer and template.
pub fn smol() -> Arc<ModelEntry> {
    static MODEL: OnceLock<Arc<ModelEntry>> = OnceLock::new();
    let make = || {
        let folder = Folder::new("smol");
        for name in [
            "config.json",
            "generation_config.json",
            "tokenizer_config.json",
        ] {
            folder.write(name, asset(&format!("smollm2/{name}")));
        }
        folder.write("tokenizer.json", tokenizer_json("smollm2"));
        entry("smol", &folder)
    };
    MODEL.get_or_init(make).clone()
}

/// The Qwen3.5 vocabulary with a template of its style.
pub fn qwen() -> Arc<ModelEntry> {
    static MODEL: OnceLock<Arc<ModelEntry>> = OnceLock::new();
    let make = || {
        let folder = Folder::new("qwen");
        folder.write_json(
            "config.json",
            &json!({
                "model_type": "qwen3_5",
                "text_config": {"vocab_size": 248320, "max_position_embeddings": 262144, "eos_token_id": 248044},
            }),
        );
        folder.write_json("tokenizer_config.json", &json!({"eos_token": "<|im_end|>"}));
        folder.write("chat_template.jinja", template("qwen3_5_style"));
        folder.write("tokenizer.json", tokenizer_json("qwen3_5"));
        entry("qwen", &folder)
    };
    MODEL.get_or_init(make).clone()
}

/// A template of `tests/golden/chat`.
pub fn template(name: &str) -> Vec<u8> {
    let path = golden().join(format!("{name}.jinja"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/chat")
}

/// The toy's special tokens; its ids 0 to 255 are the bytes.
const TINY_TOKENS: [(&str, bool); 6] = [
    ("<|endoftext|>", true),
    ("<|im_start|>", true),
    ("<|im_end|>", true),
    ("<think>", false),
    ("</think>", false),
    ("<unused>", true),
];

pub fn tiny_id(token: &str) -> u32 {
    256 + TINY_TOKENS
        .iter()
        .position(|(name, _)| *name == token)
        .unwrap() as u32
}

/// One token a byte, so that a script says exactly how text is cut. 4096 positions, 300 rows of embedding.
pub fn tiny_tokenizer() -> Value {
    let printable = |b: u32| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut shifted = 256;
    let mut vocab = serde_json::Map::new();
    for byte in 0..256u32 {
        let c = if printable(byte) {
            char::from_u32(byte).unwrap()
        } else {
            shifted += 1;
            char::from_u32(shifted - 1).unwrap()
        };
        vocab.insert(c.to_string(), json!(byte));
    }
    let added: Vec<Value> = TINY_TOKENS
        .iter()
        .map(|(content, special)| {
            json!({
                "id": tiny_id(content), "content": content, "special": special, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false,
            })
        })
        .collect();
    json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
}

/// A folder with everything that the toy needs; tests may change it before loading.
pub fn tiny_folder() -> Folder {
    let folder = Folder::new("tiny");
    folder.write_json(
        "config.json",
        &json!({"vocab_size": 300, "max_position_embeddings": 4096}),
    );
    folder.write_json("tokenizer.json", &tiny_tokenizer());
    folder.write_json("tokenizer_config.json", &json!({"eos_token": "<|im_end|>"}));
    folder.write("chat_template.jinja", template("qwen3_5_style"));
    folder
}

pub fn tiny() -> Arc<ModelEntry> {
    static MODEL: OnceLock<Arc<ModelEntry>> = OnceLock::new();
    MODEL.get_or_init(|| entry("tiny", &tiny_folder())).clone()
}
