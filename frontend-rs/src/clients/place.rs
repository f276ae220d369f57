//! Where clients find a server: the run directory and the names in it.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The name of a server that was not given one.
pub const DEFAULT_NAME: &str = "default";

/// `$DENIZEN_RUN_DIR`, else `$XDG_RUNTIME_DIR/denizen`, else `/tmp/denizen-UID`.
pub fn run_dir(variable: impl Fn(&str) -> Option<PathBuf>, uid: u32) -> PathBuf {
    let set = |name: &str| variable(name).filter(|path| !path.as_os_str().is_empty());
    set("DENIZEN_RUN_DIR")
        .or_else(|| set("XDG_RUNTIME_DIR").map(|runtime| runtime.join("denizen")))
        .unwrap_or_else(|| PathBuf::from(format!("/tmp/denizen-{uid}")))
}

/// Makes the run directory if it is not there. Others must not be able to put a socket of their own into it.
pub fn make(folder: &Path, uid: u32) -> Result<(), String> {
    let shown = folder.display();
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => {
            return Err(format!(
                "the run directory {shown} cannot be made: {error}; set DENIZEN_RUN_DIR to another"
            ))
        }
    }
    // Not through a link, which its owner could turn elsewhere.
    let found = fs::symlink_metadata(folder).map_err(|error| format!("{shown}: {error}"))?;
    let mode = found.mode() & 0o7777;
    if !found.is_dir() || found.uid() != uid || mode & 0o077 != 0 {
        return Err(format!(
            "the run directory {shown} must be a folder of user {uid} and closed to others (mode 0700); it is {}one of \
             user {} with mode {mode:04o}. Remove it, or set DENIZEN_RUN_DIR to another",
            if found.is_dir() { "" } else { "none but " },
            found.uid(),
        ));
    }
    Ok(())
}

/// The socket of the server called `name`.
pub fn socket(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(plain) {
        return Err(format!(
            "--shm-name {name:?}: a name has 1 to 64 letters, digits, '.', '_' or '-', and does not begin with '.'"
        ));
    }
    Ok(folder.join(format!("{name}.sock")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn own_uid() -> u32 {
        denizen_shm::user()
    }

    #[test]
    fn the_run_directory_follows_the_environment() {
        let dir = |set: &[(&str, &str)]| {
            let find = |name: &str| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| PathBuf::from(value))
            };
            run_dir(find, 7).display().to_string()
        };
        assert_eq!(dir(&[]), "/tmp/denizen-7");
        assert_eq!(
            dir(&[("XDG_RUNTIME_DIR", "/run/user/7")]),
            "/run/user/7/denizen"
        );
        let both = [
            ("XDG_RUNTIME_DIR", "/run/user/7"),
            ("DENIZEN_RUN_DIR", "/a"),
        ];
        assert_eq!(dir(&both), "/a");
        assert_eq!(dir(&[("DENIZEN_RUN_DIR", "")]), "/tmp/denizen-7");
    }

    #[test]
    fn a_run_directory_that_others_could_use_is_refused() {
        let folder = std::env::temp_dir().join(format!("denizen-place-{}", std::process::id()));
        make(&folder, own_uid()).unwrap();
        make(&folder, own_uid()).unwrap();
        let error = make(&folder, own_uid() + 1).unwrap_err();
        assert!(error.contains("must be a folder of user"), "{error}");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o750)).unwrap();
        let error = make(&folder, own_uid()).unwrap_err();
        assert!(
            error.contains("mode 0750") && error.contains("DENIZEN_RUN_DIR"),
            "{error}"
        );
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        let link = folder.join("link");
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        assert!(make(&link, own_uid()).is_err(), "a link");
        fs::remove_dir_all(&folder).unwrap();
        assert!(make(&folder.join("a/b"), own_uid())
            .unwrap_err()
            .contains("cannot be made"));
    }

    #[test]
    fn names_are_plain() {
        let folder = Path::new("/run");
        assert_eq!(
            socket(folder, "gpu-0.a_b").unwrap(),
            Path::new("/run/gpu-0.a_b.sock")
        );
        for name in ["", ".", "..", "a/b", "a b", "ü", &"x".repeat(65)] {
            assert!(
                socket(folder, name).unwrap_err().contains("--shm-name"),
                "{name}"
            );
        }
    }
}
