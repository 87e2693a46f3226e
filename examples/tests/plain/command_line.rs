//! Help, completion, standard input and JSON lines of `proxier-demo`, as a shell sees them.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::program::{Folder, ok, service, text};

const PROGRAM: &str = env!("CARGO_BIN_EXE_proxier-demo");

fn program(words: &[&str]) -> Output {
    Command::new(PROGRAM).args(words).output().unwrap()
}

/// Output of the program with this text on its standard input.
fn fed(words: &[&str], input: &str) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// The commands that the help lists.
fn commands() -> Vec<String> {
    let help = ok(&program(&["--help"]));
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    listed.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

#[test]
fn help_of_a_command_is_that_of_its_option_and_has_examples() {
    let commands = commands();
    assert!(commands.len() > 8, "{commands:?}");
    for command in commands.iter().filter(|command| !matches!(command.as_str(), "help" | "completion")) {
        let help = ok(&program(&["help", command]));
        assert_eq!(help, ok(&program(&[command, "--help"])));
        // Each example is a line that the program takes.
        for example in help.lines().filter_map(|line| line.split_once("  proxier-demo ")) {
            let words = example.1.split("      ").next().unwrap();
            let words: Vec<&str> = words.split_whitespace().collect();
            let usage = Command::new(PROGRAM).args(&words).arg("--help").output().unwrap();
            assert!(usage.status.success(), "{words:?}");
        }
        assert!(help.contains("Examples:") || command == "cleanup", "{command}");
    }
}

#[test]
fn a_shell_completes_commands_and_options() {
    let script = ok(&program(&["completion", "bash"]));
    let completed = |words: &str, number: usize| {
        let ask = format!(
            "{script}\nCOMP_WORDS=({words}); COMP_CWORD={number}\n\
             function=$(complete -p proxier-demo | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n\
             $function proxier-demo \"${{COMP_WORDS[{number}]}}\" \"${{COMP_WORDS[{number}-1]}}\"\necho \"${{COMPREPLY[@]}}\""
        );
        ok(&Command::new("bash").args(["--norc", "-c", &ask]).output().unwrap()).trim().to_owned()
    };
    assert_eq!(completed("proxier-demo ex", 1), "explain");
    assert_eq!(completed("proxier-demo show --wat", 2), "--watch");
    assert_eq!(completed("proxier-demo plan --output j", 3), "json");
    for shell in ["zsh", "fish"] {
        assert!(ok(&program(&["completion", shell])).contains("explain"), "{shell}");
    }
    assert_eq!(program(&["completion", "tcsh"]).status.code(), Some(2));
}

#[test]
fn standard_input_is_a_source() {
    let web = service("demo", "web", "10.96.0.10", "{addresses: [10.244.0.5]}");
    let explain = |input: &str| fed(&["explain", "demo/web", "--manifests", "-", "--hostname-override", "n1"], input);
    let explained = ok(&explain(&web));
    assert!(explained.starts_with("Service demo/web;") && explained.contains("10.244.0.5:8080"), "{explained}");
    for (input, said) in
        [("a: [", "standard input: document 1: not YAML or JSON"), ("", "there is no Service demo/web")]
    {
        let refused = explain(input);
        assert!(!refused.status.success());
        assert!(text(&refused.stderr).contains(said), "{}", text(&refused.stderr));
    }
    // A file of that name is another thing.
    let folder = Folder::new("dash");
    folder.put("-", &web);
    let of_file = Command::new(PROGRAM)
        .args(["explain", "demo/web", "--manifests", "./-", "--hostname-override", "n1"])
        .current_dir(&folder.0)
        .output();
    assert!(ok(&of_file.unwrap()).starts_with("Service demo/web;"));
}

#[test]
fn lines_on_standard_error_are_json_where_the_log_is() {
    let said = fed(&["explain", "demo/web", "--manifests", "-", "--logging-format", "json"], "");
    let lines: Vec<Value> = text(&said.stderr).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().any(|line| line["message"].as_str().unwrap().contains("no Service demo/web")), "{lines:?}");
}
