//! The inputs that fuzzing has found, from `fuzz/corpus`: some as files, the rest in one archive per target.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use flate2::read::GzDecoder;

/// Size of a block in the archive's format, in bytes.
const BLOCK: usize = 512;

/// All inputs of a target: those in the directory `fuzz/corpus/TARGET`, then those in `fuzz/corpus/TARGET.tar.gz`.
pub fn corpus(target: &str) -> io::Result<Vec<Vec<u8>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let archive = folder.with_extension("tar.gz");
    let named = |path: &Path, error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let mut inputs = files(&folder).map_err(|error| named(&folder, error))?;
    let mut bytes = Vec::new();
    File::open(&archive)
        .and_then(|file| GzDecoder::new(file).read_to_end(&mut bytes))
        .and_then(|_| members(&bytes, &mut inputs))
        .map_err(|error| named(&archive, error))?;
    Ok(inputs)
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
    fs::read_dir(folder)?.map(|entry| fs::read(entry?.path())).collect()
}

/// Extracts a tar archive of plain files.
fn members(mut archive: &[u8], inputs: &mut Vec<Vec<u8>>) -> io::Result<()> {
    let short = || io::Error::new(io::ErrorKind::UnexpectedEof, "the archive ends too early");
    loop {
        let (header, rest) = archive.split_at_checked(BLOCK).ok_or_else(short)?;
        if header.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        if !matches!(header.get(156), Some(b'0' | 0)) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the archive holds more than plain files"));
        }
        // Octal digits, ended by a blank or NUL.
        let digits = header.get(124..136).unwrap_or_default();
        let size = std::str::from_utf8(digits)
            .ok()
            .and_then(|text| usize::from_str_radix(text.trim_matches(['\0', ' ']), 8).ok())
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a size in the archive is no number"))?;
        inputs.push(rest.get(..size).ok_or_else(short)?.to_vec());
        archive = rest.get(size.next_multiple_of(BLOCK)..).ok_or_else(short)?;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::members;

    /// An archive of the tool `tar` can be read, and every truncated archive is refused.
    #[test]
    fn tar_archives_are_read() {
        let folder = std::env::temp_dir().join(format!("testkit-corpus-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let contents = [Vec::new(), b"one".to_vec(), vec![7; 512], vec![8; 513]];
        for (number, bytes) in contents.iter().enumerate() {
            std::fs::File::create(folder.join(number.to_string())).unwrap().write_all(bytes).unwrap();
        }
        let mut tar = Command::new("tar");
        tar.args(["--format=ustar", "-cf", "-", "0", "1", "2", "3"]).current_dir(&folder).stderr(Stdio::inherit());
        let archive = tar.output().unwrap().stdout;
        std::fs::remove_dir_all(&folder).unwrap();
        let mut found = Vec::new();
        members(&archive, &mut found).unwrap();
        assert_eq!(found, contents);
        for length in 0..3 * 1024 {
            assert!(members(&archive[..length], &mut Vec::new()).is_err(), "{length}");
        }
    }
}
