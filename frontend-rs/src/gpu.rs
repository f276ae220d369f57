//! How many NVIDIA GPUs the kernel driver shows, without CUDA: enough to refuse a device that cannot be there.

use std::path::{Path, PathBuf};

use crate::supervise::Device;

/// Number of GPUs that workers will see.
pub fn count() -> u32 {
    let there = count_in(Path::new("/proc/driver/nvidia/gpus"), Path::new("/dev"));
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(visible) => there.min(named(&visible)),
        Err(_) => there,
    }
}

/// How many devices a value of CUDA_VISIBLE_DEVICES leaves: those before the first that is none.
fn named(visible: &str) -> u32 {
    let names = visible.split(',').map(str::trim);
    let named = names.take_while(|name| !name.is_empty() && *name != "-1");
    u32::try_from(named.count()).unwrap_or(u32::MAX)
}

fn count_in(proc: &Path, dev: &Path) -> u32 {
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let nodes = entries(dev).filter(|entry| {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("nvidia"));
        number
            .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
    });
    // A container may see all GPUs in /proc, but only gets the nodes of its own; WSL has neither.
    let nodes = nodes.count();
    let found = if nodes > 0 {
        nodes
    } else {
        entries(proc).count()
    };
    let wsl = dev.join("dxg").exists();
    u32::try_from(found).unwrap_or(u32::MAX).max(u32::from(wsl))
}

/// The compiler that FlashInfer will find, by the rules of its own.
pub fn nvcc() -> Option<PathBuf> {
    let home = ["CUDA_HOME", "CUDA_PATH"].iter().find_map(std::env::var_os);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = match home {
        Some(home) => vec![Path::new(&home).join("bin")],
        None => std::env::split_paths(&path)
            .chain(["/usr/local/cuda/bin".into()])
            .collect(),
    };
    let files = folders.into_iter().map(|folder| folder.join("nvcc"));
    files.into_iter().find(|file| file.is_file())
}

/// What `--devices auto` means: every GPU if the workers' interpreter can use one, else the CPU.
pub fn auto(count: u32, usable: bool) -> Vec<Device> {
    if count == 0 || !usable {
        return vec![Device::Cpu];
    }
    (0..count).map(Device::Cuda).collect()
}

/// Refuses a device that this machine has not got.
pub fn check(devices: &[Device], count: u32) -> Result<(), String> {
    for device in devices {
        let Device::Cuda(index) = device else {
            continue;
        };
        if count == 0 {
            return Err(format!(
                "device {device}: this machine shows no NVIDIA GPU; use --devices cpu"
            ));
        }
        if *index >= count {
            let last = count - 1;
            return Err(format!(
                "device {device}: this machine has {count} GPU(s), cuda:0 to cuda:{last}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbered_nodes_are_gpus() {
        let dev = std::env::temp_dir().join(format!("denizen-gpu-{}", std::process::id()));
        std::fs::create_dir_all(&dev).unwrap();
        let nowhere = dev.join("nowhere");
        assert_eq!(count_in(&nowhere, &dev), 0);
        for name in ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"] {
            std::fs::write(dev.join(name), "").unwrap();
        }
        assert_eq!(count_in(&nowhere, &dev), 2);
        std::fs::remove_dir_all(dev).unwrap();
    }

    #[test]
    fn the_visible_devices_are_counted_as_cuda_counts_them() {
        for (visible, count) in [
            ("", 0),
            ("0", 1),
            ("3, 1", 2),
            ("0,-1,1", 1),
            ("GPU-8932f937", 1),
        ] {
            assert_eq!(named(visible), count, "{visible}");
        }
    }

    #[test]
    fn auto_takes_every_gpu_that_can_be_used() {
        assert_eq!(auto(0, true), [Device::Cpu]);
        assert_eq!(auto(2, false), [Device::Cpu]);
        assert_eq!(auto(2, true), [Device::Cuda(0), Device::Cuda(1)]);
    }

    #[test]
    fn a_device_that_is_not_there_is_refused() {
        assert_eq!(check(&[Device::Cpu], 0), Ok(()));
        assert_eq!(check(&[Device::Cuda(1)], 2), Ok(()));
        assert!(check(&[Device::Cuda(7)], 0)
            .unwrap_err()
            .contains("--devices cpu"));
        assert!(check(&[Device::Cuda(7)], 2)
            .unwrap_err()
            .contains("cuda:0 to cuda:1"));
    }
}
