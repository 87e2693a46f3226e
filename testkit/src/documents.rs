//! The project's Markdown pages: those that are made from the code, and the commands that they show.

#![allow(clippy::panic, reason = "tests stop at the first surprise")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Folder of the whole project.
pub fn root() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}

/// All tracked pages but results of measurements, by path from [`root`], with their text.
///
/// # Panics
///
/// Panics if git does not list them, or one cannot be read.
pub fn pages() -> Vec<(PathBuf, String)> {
    let git = Command::new("git").args(["ls-files", "*.md"]).current_dir(root()).output();
    let listed = String::from_utf8(git.unwrap_or_else(|error| panic!("git ls-files: {error}")).stdout);
    let listed = listed.unwrap_or_else(|error| panic!("git ls-files: {error}"));
    let paths = listed.lines().filter(|path| !path.contains("/results/") && root().join(path).is_file());
    let pages: Vec<_> = paths.map(|path| (path.into(), read(Path::new(path)))).collect();
    assert!(!pages.is_empty(), "git lists no pages in {}", root().display());
    pages
}

fn read(page: &Path) -> String {
    fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{}: {error}", page.display()))
}

/// Holds a page to what the code says. `PROXIER_BLESS=1` writes the page instead.
///
/// # Panics
///
/// Panics if the page differs.
pub fn is_current(page: &str, text: &str) {
    let text = format!("{}\n", text.trim_end());
    if env::var_os("PROXIER_BLESS").is_some() {
        fs::write(root().join(page), text).unwrap_or_else(|error| panic!("{page}: {error}"));
        return;
    }
    let current = read(Path::new(page));
    let differs = current.lines().zip(text.lines()).find(|(old, new)| old != new);
    assert!(
        current == text,
        "{page} is stale; this test writes it with PROXIER_BLESS=1. First difference: {differs:?}"
    );
}

/// A line of a page, and whether it is in a block of code.
pub fn lines(text: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut inside = false;
    text.lines().map(move |line| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        (line, inside || fence)
    })
}

/// Commands that a page shows, each as words: at a prompt in blocks of code, and in backticks. Left out are those with a gap (`…`).
pub fn commands(text: &str) -> Vec<Vec<String>> {
    let mut shown = Vec::new();
    let joined = text.replace("\\\n", " ");
    for (line, code) in lines(&joined) {
        let line = line.trim_start();
        if !code {
            shown.extend(line.split('`').skip(1).step_by(2));
        } else if let Some(command) = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")) {
            shown.push(command.split(" #").next().unwrap_or(command));
        }
    }
    shown.into_iter().filter(|line| !line.contains('…')).flat_map(simple_commands).collect()
}

/// The commands of a shell's line, without redirections.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words, mut quote) = (vec![], vec![String::new()], None);
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (None, '"' | '\'') => quote = Some(letter),
            (None, ' ') => words.push(String::new()),
            (None, '|' | ';' | '&' | '(' | ')') => commands.push(std::mem::replace(&mut words, vec![String::new()])),
            _ => words.last_mut().into_iter().for_each(|word| word.push(letter)),
        }
    }
    commands.push(words);
    let read = commands.into_iter().map(|words| words.into_iter().take_while(|word| !word.starts_with('>')));
    let read = read.map(|words| words.filter(|word| !word.is_empty()).collect::<Vec<_>>());
    read.filter(|words| !words.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_those_at_a_prompt_and_in_backticks() {
        let text = "Run `a b`.\n```console\n$ c 'd e' \\\n    f | g      # why\n# h > i &\nprinted\n```\n`j …`\n";
        let words = commands(text).into_iter().map(|words| words.join("+"));
        assert_eq!(words.collect::<Vec<_>>(), ["a+b", "c+d e+f", "g", "h"]);
    }
}
