//! Tests that compare a crate with another project's own tests, from the folder of its unpacked source.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The files with this extension in a folder and the folders in it, sorted.
pub fn files(folder: &Path, extension: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
    for entry in fs::read_dir(folder).map_err(named)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path, extension)?);
        } else if path.extension().is_some_and(|of| of == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// How many inputs were tried, and what became of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Inputs given to the program.
    pub tried: usize,
    /// Those that the program and this kernel take.
    pub loaded: usize,
    /// Those of them without a fault.
    pub back: usize,
    /// Those with a fault that begins with `WRONG`: something else came back.
    pub wrong: usize,
}

impl Figures {
    /// Counts an input and prints its faults. `None`: it does not load.
    pub fn count(&mut self, what: &str, faults: Option<Vec<String>>) {
        self.tried = self.tried.saturating_add(1);
        let Some(faults) = faults else { return };
        let add = |to: &mut usize, one: bool| *to = to.saturating_add(usize::from(one));
        add(&mut self.loaded, true);
        add(&mut self.back, faults.is_empty());
        add(&mut self.wrong, faults.iter().any(|fault| fault.starts_with("WRONG")));
        for fault in faults {
            println!("{what}\n    {fault}");
        }
    }

    /// Prints the figures of these inputs.
    pub fn print(&self, of: &str) {
        let Self { tried, loaded, back, wrong } = self;
        let not = tried.saturating_sub(*loaded);
        println!("{of}: {tried} tried, {loaded} loaded, {back} came back, {wrong} wrong; {not} do not load here");
    }
}
