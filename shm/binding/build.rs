//! Copies the Python packages that live outside `python/` into `OUT_DIR`, from where maturin takes them into the wheel.
//!
//! `python/denizen/{worker,kernels,bench,shm}` are links, which serve editable installs but which maturin leaves out of a
//! wheel. A copy that loses a file would ship a broken wheel in silence; `tests/packaging` compares the wheel with the
//! tracked files.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Folder in the repository → package under `denizen/`.
const PACKAGES: [(&str, &str); 4] = [
    ("worker", "worker"),
    ("kernels", "kernels"),
    ("bench", "bench"),
    ("shm/python", "shm"),
];
/// Folders that do not ship: measurements of this repository, and caches.
const LEFT_OUT: [&str; 2] = ["results", "__pycache__"];
/// What ships. Anything else in those folders stays out.
const SUFFIXES: [&str; 5] = ["py", "pyi", "typed", "json", "jinja"];

fn main() -> io::Result<()> {
    let root =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo")).join("../..");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    for (folder, package) in PACKAGES {
        let source = root.join(folder);
        println!("cargo:rerun-if-changed={}", source.display());
        let target = out.join(package);
        // A file that was removed from the repository must not live on in the wheel.
        if target.exists() {
            fs::remove_dir_all(&target)?;
        }
        copy_package(&source, &target)?;
    }
    Ok(())
}

fn copy_package(source: &Path, target: &Path) -> io::Result<()> {
    fs::create_dir_all(target)?;
    for entry in fs::read_dir(source)? {
        let path = entry?.path();
        let name = path.file_name().expect("an entry of a folder has a name");
        if path.is_dir() {
            if !LEFT_OUT.iter().any(|left_out| name == *left_out) {
                copy_package(&path, &target.join(name))?;
            }
        } else if path
            .extension()
            .is_some_and(|e| SUFFIXES.iter().any(|s| e == *s))
        {
            fs::copy(&path, target.join(name))?;
        }
    }
    Ok(())
}
