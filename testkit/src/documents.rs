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
    assert!(current == text, "{page} is stale; cargo xtask docs writes it. First difference: {differs:?}");
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

/// A command at a prompt of a page, and the lines that the page shows below it.
#[derive(Debug)]
pub struct Shown {
    /// Without the prompt; with its continued lines and here-document.
    pub command: String,
    /// What it prints, according to the page.
    pub output: Vec<String>,
}

impl Shown {
    /// The command without the comment at its end.
    pub fn without_comment(&self) -> &str {
        self.command.split(" #").next().unwrap_or_default().trim_end()
    }

    fn goes_on(&self) -> bool {
        self.command.ends_with('\\') || self.command.contains("<<EOF") && !self.command.ends_with("\nEOF")
    }
}

/// The commands in a page's blocks of code whose language is `console`.
pub fn shown(text: &str) -> Vec<Shown> {
    let mut all: Vec<Shown> = Vec::new();
    let mut indented = None;
    for line in text.lines() {
        let begins = line.trim_start();
        if let Some(language) = begins.strip_prefix("```") {
            indented = (language == "console").then_some(line.len() - begins.len());
        } else if let Some(line) = indented.map(|indent| line.get(indent..).unwrap_or_default()) {
            let prompt = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# "));
            match (all.last_mut(), prompt) {
                (Some(last), _) if last.goes_on() => last.command += &format!("\n{line}"),
                (_, Some(command)) => all.push(Shown { command: command.to_owned(), output: Vec::new() }),
                (Some(last), None) => last.output.push(line.to_owned()),
                (None, None) => {}
            }
        }
    }
    all
}

/// Commands that a page shows, each as words: in backticks, and those of [`shown`]. Left out are those with a gap (`…`).
pub fn commands(text: &str) -> Vec<Vec<String>> {
    let prose = lines(text).filter(|(_, code)| !code).flat_map(|(line, _)| line.split('`').skip(1).step_by(2));
    let shown = shown(text).into_iter().map(|shown| shown.without_comment().replace("\\\n", " "));
    let all =
        prose.map(str::to_owned).chain(shown.map(|command| command.lines().next().unwrap_or_default().to_owned()));
    all.filter(|line| !line.contains('…')).flat_map(|line| simple_commands(&line)).collect()
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
        let text = "Run `a b`.\n```console\n$ c 'd e' \\\n    f | g      # why\n# h > i <<EOF\n$ j\nEOF\n```\n`k …`\n";
        let words = commands(text).into_iter().map(|words| words.join("+"));
        assert_eq!(words.collect::<Vec<_>>(), ["a+b", "c+d e+f", "g", "h"]);
    }

    #[test]
    fn a_command_is_shown_with_its_here_document_and_what_it_prints() {
        let text = "# a\n```yaml\n# b\n```\n 1. c\n    ```console\n    $ d <<EOF\n      e\n    EOF\n    f\n      g\n    # h\n    ```\ni\n";
        let shown: Vec<_> = shown(text).into_iter().map(|shown| (shown.command, shown.output.join("\n"))).collect();
        assert_eq!(shown, [("d <<EOF\n  e\nEOF".to_owned(), "f\n  g".to_owned()), ("h".to_owned(), String::new())]);
    }
}
