//! Help, completion, standard input and JSON lines of `proxier-demo`, as a shell sees them.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use proxier_demo::exit::MEANINGS;
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
    let folder = Folder::new("completion");
    let script = folder.put("script", &ok(&program(&["completion", "bash"])));
    // Of each line, what bash offers for its last word. A file and a folder are there to be offered.
    let completed = |lines: &[String]| -> Vec<String> {
        let asks = lines.iter().map(|line| {
            let last = line.split(' ').count() - 1;
            format!(
                "COMP_WORDS=({line}); COMP_CWORD={last}; COMPREPLY=()\n\
                 $function proxier-demo \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{last}-1]}}\"; echo \"${{COMPREPLY[@]}}\"\n"
            )
        });
        let start = "source \"$0\"\nfunction=$(complete -p proxier-demo | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n";
        let asks = folder.put("asks", &format!("{start}{}", asks.collect::<String>()));
        let line = "cd \"${0%/*}\" && source \"$1\"";
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", line]).arg(&script).arg(asks);
        ok(&bash.output().unwrap()).lines().map(|line| line.trim().to_owned()).collect()
    };
    let one = |line: &str| completed(&[format!("proxier-demo {line}")]).remove(0);
    assert_eq!(one("ex"), "explain");
    assert_eq!(one("show --wat"), "--watch");
    assert_eq!(one("plan --output j"), "json");
    for (option, words) in [
        ("detect-local-mode", "ClusterCIDR NodeCIDR BridgeInterface InterfaceNamePrefix"),
        ("logging-format", "text json"),
        ("proxy-mode", "auto ipvs nftables iptables userspace"),
        ("status-page", "off localhost on"),
    ] {
        assert_eq!(one(&format!("run --{option} ''")), words);
    }
    assert_eq!(one("run --proxy-mode n"), "nftables");
    // Names of files are offered only where an option takes one.
    let mut options = Vec::new();
    for command in commands().iter().filter(|command| !matches!(command.as_str(), "help" | "completion")) {
        let help = ok(&program(&[command, "--help"]));
        for line in help.lines().filter(|line| line.trim_start().starts_with('-') && line.contains(" <")) {
            let option = line.split_whitespace().find(|word| word.starts_with("--")).unwrap();
            options.push((format!("proxier-demo {command} {option} ''"), line.contains(" <FILE")));
        }
    }
    assert!(options.len() > 100, "{options:?}");
    let lines: Vec<String> = options.iter().map(|(line, _)| line.clone()).collect();
    for ((line, takes_a_file), offered) in options.iter().zip(completed(&lines)) {
        assert_eq!(offered.split(' ').any(|word| word == "script"), *takes_a_file, "{line}: {offered}");
    }
    for shell in ["zsh", "fish"] {
        assert!(ok(&program(&["completion", shell])).contains("explain"), "{shell}");
    }
    assert_eq!(program(&["completion", "tcsh"]).status.code(), Some(2));
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    for (to, code) in [(">&-", 1), (">/dev/full", 1), (">/dev/null", 0), ("<>/dev/null >&0", 0)] {
        for words in ["--version", "render --manifests - --hostname-override n1", "completion bash"] {
            let line = format!("exec \"$0\" {words} </dev/null {to}");
            let ended = Command::new("sh").args(["-c", &line, PROGRAM]).output().unwrap();
            let said = text(&ended.stderr);
            assert_eq!(ended.status.code(), Some(code), "{words} {to}: {said}");
            assert_eq!(said.contains("standard output cannot be written ("), code == 1, "{words} {to}: {said}");
        }
    }
}

#[test]
fn exit_codes_are_in_the_help_and_the_manual() {
    let manual = include_str!("../../../deploy/debian/proxier-demo.8");
    let status = manual.split(".Sh EXIT STATUS").nth(1).unwrap().split(".Sh ").next().unwrap();
    assert!(status.contains(".Cm diff\n3 if something differs"), "{status}");
    assert!(ok(&program(&["diff", "--help"])).contains("Exit codes: 0 nothing differs, 3 something does"));
    let help = ok(&program(&["--help"]));
    for (code, meaning) in MEANINGS {
        assert!(help.contains(&format!("  {code}  {meaning}\n")), "{help}");
    }
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
