//! The inputs that fuzzing has found, from `fuzz/corpus`: some as files, the rest in one archive per target.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

/// All inputs of a target: those in the directory `fuzz/corpus/TARGET`, then those in `fuzz/corpus/TARGET.tar.gz`.
pub fn corpus(target: &str) -> io::Result<Vec<Vec<u8>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let unpacked = tempfile::tempdir()?;
    let mut tar = Command::new("tar");
    let tar = tar.arg("-xzf").arg(folder.with_extension("tar.gz")).arg("-C").arg(unpacked.path()).output()?;
    if !tar.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&tar.stderr)));
    }
    Ok([files(&folder)?, files(unpacked.path())?].concat())
}

/// Passes every input of a target's corpus to `run`, and the first `prefixes` prefixes of each. Returns the number of
/// inputs, so that an empty corpus is noticed.
pub fn replay(target: &str, prefixes: usize, run: impl Fn(&[u8])) -> io::Result<usize> {
    let inputs = corpus(target)?;
    for input in &inputs {
        run(input);
        (0..input.len().min(prefixes)).filter_map(|length| input.get(..length)).for_each(&run);
    }
    Ok(inputs.len())
}

fn files(folder: &Path) -> io::Result<Vec<Vec<u8>>> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
    fs::read_dir(folder).map_err(named)?.map(|entry| fs::read(entry?.path())).collect()
}
