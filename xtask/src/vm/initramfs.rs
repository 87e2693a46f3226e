//! The small root file system that the kernel starts with: busybox, a handful of modules and three scripts.

use std::fs;
use std::path::Path;

use crate::cpio::Archive;
use crate::error::{Context as _, Error, Result};
use crate::kernel::Kernel;
use crate::tools;

/// Modules to reach the host's root file system and to talk over serial ports.
const MODULES: [&str; 5] = ["virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"];

/// Builds the archive. `stage2` and `command` are shell scripts that run on the host's file system.
pub(super) fn build(kernel: &Kernel, stage2: &[u8], command: &[u8]) -> Result<Vec<u8>> {
    let busybox = tools::static_busybox()?;
    let mut archive = Archive::default();
    for folder in ["bin", "dev", "proc", "lower", "upper", "newroot", "modules"] {
        archive.directory(folder);
    }
    archive.character_device("dev/console", 5, 1);
    archive.file("bin/busybox", &read(&busybox)?);
    archive.file("init", include_bytes!("init.sh"));
    archive.file("stage2", stage2);
    archive.file("command", command);
    let index = read_text(&kernel.modules.join("modules.dep"))?;
    let builtin = read_text(&kernel.modules.join("modules.builtin"))?;
    for (number, path) in load_order(&index, &builtin, &MODULES)?.into_iter().enumerate() {
        let name = path.rsplit('/').next().unwrap_or(path);
        archive.file(&format!("modules/{number:02}-{name}"), &read(&kernel.modules.join(path))?);
    }
    Ok(archive.finish())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).context(|| format!("cannot read {}", path.display()))
}

fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).context(|| format!("cannot read {}", path.display()))
}

/// The files of `modules` and of everything they depend on, each after what it depends on.
///
/// `index` is `modules.dep`: `PATH: DEPENDENCY...`, where the last dependency has to be loaded first.
fn load_order<'a>(index: &'a str, builtin: &str, modules: &[&str]) -> Result<Vec<&'a str>> {
    let mut order: Vec<&str> = Vec::new();
    for module in modules {
        let line = index.lines().filter_map(|line| line.split_once(':')).find(|(path, _)| module_name(path) == *module);
        if let Some((path, dependencies)) = line {
            for needed in dependencies.split_whitespace().rev().chain([path]) {
                if !order.contains(&needed) {
                    order.push(needed);
                }
            }
        } else if !builtin.lines().any(|path| module_name(path) == *module) {
            return Err(Error::new(format!("the kernel has no module {module}: it cannot reach the host's files")));
        }
    }
    Ok(order)
}

fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split('.').next().unwrap_or(file).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::load_order;

    const INDEX: &str = "kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko kernel/fs/fscache/fscache.ko kernel/fs/netfs/netfs.ko\n\
        kernel/net/9p/9pnet.ko:\nkernel/fs/fscache/fscache.ko: kernel/fs/netfs/netfs.ko\nkernel/fs/netfs/netfs.ko:\n\
        kernel/net/9p/9pnet-virtio.ko: kernel/net/9p/9pnet.ko\n";

    #[test]
    fn dependencies_come_first_and_once() {
        let order = load_order(INDEX, "", &["9pnet_virtio", "9p"]).unwrap();
        assert_eq!(
            order,
            [
                "kernel/net/9p/9pnet.ko",
                "kernel/net/9p/9pnet-virtio.ko",
                "kernel/fs/netfs/netfs.ko",
                "kernel/fs/fscache/fscache.ko",
                "kernel/fs/9p/9p.ko",
            ]
        );
    }

    #[test]
    fn built_in_modules_need_no_file_and_absent_ones_are_named() {
        assert!(load_order(INDEX, "kernel/fs/overlayfs/overlay.ko\n", &["overlay"]).unwrap().is_empty());
        let error = load_order(INDEX, "", &["overlay"]).unwrap_err();
        assert!(error.to_string().contains("overlay"));
    }
}
