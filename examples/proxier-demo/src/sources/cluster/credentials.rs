//! Credentials for an API server. They are read from files and programs here, checked, and passed to the client library
//! as text: it reads no file and starts no program itself.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::ByteString;
use k8s_openapi::jiff::Timestamp;
use kube::config::{AuthInfo, ExecConfig, ExecInteractiveMode};
use serde::Deserialize;
use serde_json::{Value, json};
use serde_saphyr::options::DuplicateKeyPolicy;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::timeout;

use super::requests;
use crate::yaml;

/// Largest credentials in bytes.
const BYTES: usize = 1 << 20;
/// Bytes of a program's error output to keep.
const SAID: usize = 64 << 10;
/// Longest run of a program without a terminal.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest run of a program that a person uses at a terminal.
const PATIENCE_OF_PERSONS: Duration = Duration::from_secs(600);
/// How long before credentials expire programs get new ones.
const AHEAD: Duration = Duration::from_secs(60);

/// Replaces files and programs in `user` by their contents and output. Returns when these expire, if known.
/// Errors: a file or program cannot be used, and why. Never contains the credentials themselves.
pub(super) async fn settle(user: &mut AuthInfo) -> Result<Option<Instant>, String> {
    // The client library's order of precedence.
    if let Some(provider) = user.auth_provider.take() {
        let token = provider.config.get("id-token").or_else(|| provider.config.get("access-token"));
        let token = token
            .ok_or_else(|| format!("auth-provider {} is not supported without an id-token; use exec", provider.name))?;
        user.token = Some(of_header(token, "of auth-provider")?.to_owned().into());
    }
    if user.username.is_some() && user.password.is_some() {
        return Ok(None);
    }
    let whole = serde_json::to_value(&*user).unwrap_or_default();
    let token = whole.get("token").and_then(Value::as_str).filter(|token| !token.is_empty());
    // As in client-go, a file precedes a token, which counts if the file cannot be read.
    if let Some(path) = user.token_file.take().filter(|path| !path.is_empty()) {
        match (read_token(Path::new(&path)), token) {
            (Ok(found), _) => {
                user.token = Some(found.into());
                return Ok(None);
            }
            (Err(reason), None) => return Err(reason),
            (Err(_), Some(_)) => {}
        }
    }
    if let Some(token) = token {
        of_header(token, "in the kubeconfig")?;
        return Ok(None);
    }
    user.token = None;
    let Some(exec) = user.exec.take() else { return Ok(None) };
    let given = started(&exec).await.map_err(|reason| {
        let name = exec.command.unwrap_or_default();
        format!("the program {name:?} that gets credentials (exec in the kubeconfig) {reason}")
    })?;
    user.token = given.token.map(Into::into);
    if let Some((certificate, key)) = given.identity {
        user.client_certificate_data = base64(certificate);
        user.client_key_data = base64(key).map(Into::into);
    }
    Ok(given.until)
}

/// A token in the form for a header. `which`: where it is from.
fn of_header<'a>(token: &'a str, which: &str) -> Result<&'a str, String> {
    match token.bytes().position(|byte| !(b' '..=b'~').contains(&byte)) {
        None => Ok(token),
        Some(at) => {
            let (number, length) = (at.saturating_add(1), token.len());
            Err(format!(
                "the token {which} cannot be sent: byte {number} of {length} is a control character, or not ASCII"
            ))
        }
    }
}

/// The token in a file, without surrounding blanks.
fn read_token(path: &Path) -> Result<String, String> {
    let place = path.display();
    let unread = |error: std::io::Error| format!("the token cannot be read from {place}: {error}");
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(BYTES as u64).read_to_string(&mut text));
    if read.map_err(unread)? == BYTES {
        return Err(format!("{place} is not a token: it has {BYTES} bytes or more"));
    }
    match text.trim() {
        "" => Err(format!("the token's file {place} is empty")),
        token => of_header(token, &format!("in {place}")).map(str::to_owned),
    }
}

fn base64(bytes: String) -> Option<String> {
    let value = serde_json::to_value(ByteString(bytes.into_bytes())).ok()?;
    value.as_str().map(str::to_owned)
}

struct ExecCredentials {
    token: Option<String>,
    /// Certificate and key of a client.
    identity: Option<(String, String)>,
    until: Option<Instant>,
}

/// Starts the program of a kubeconfig and reads its output.
async fn started(exec: &ExecConfig) -> Result<ExecCredentials, String> {
    use std::io::IsTerminal as _;
    let mut command = Command::new(exec.command.as_ref().ok_or("has no command")?);
    command.args(exec.args.iter().flatten());
    for variable in exec.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            command.env(name, value);
        }
    }
    let wants_person = exec.interactive_mode != Some(ExecInteractiveMode::Never);
    let is_interactive = wants_person && std::io::stdin().is_terminal();
    if exec.interactive_mode == Some(ExecInteractiveMode::Always) && !is_interactive {
        return Err("asks for a terminal (interactiveMode Always), and there is none".to_owned());
    }
    let mut spec = json!({"interactive": is_interactive});
    if exec.provide_cluster_info {
        spec["cluster"] = serde_json::to_value(&exec.cluster).unwrap_or_default();
    }
    let info = json!({"apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec});
    command.env("KUBERNETES_EXEC_INFO", info.to_string());
    let printed = if is_interactive {
        command.stdin(Stdio::inherit()).stderr(Stdio::inherit());
        output(command, PATIENCE_OF_PERSONS).await?
    } else {
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        output(command, PATIENCE).await?
    };
    given(&printed, Timestamp::now())
}

/// Output of a program until it ends. Does not wait for children that it leaves behind with its standard output.
async fn output(command: Command, patience: Duration) -> Result<Vec<u8>, String> {
    let mut command = tokio::process::Command::from(command);
    let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().map_err(|error| {
        requests::program(1, "plugin_not_found_error");
        format!("cannot be started: {error}")
    })?;
    let (mut printed, mut said) = (Vec::new(), Vec::new());
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    let mut late = pin!(tokio::time::sleep(patience));
    let failure = loop {
        tokio::select! {
            biased;
            () = &mut late => break format!("failed: it has not ended after {} s", patience.as_secs()),
            () = read_more(&mut out, &mut printed) => {}
            ended = child.wait() => {
                let status = match ended {
                    Ok(status) => status,
                    Err(error) => break format!("is lost: {error}"),
                };
                // What it printed last may be noticed after its end.
                rest(&mut out, &mut printed, BYTES.saturating_add(1)).await;
                if !status.success() {
                    rest(&mut err, &mut said, SAID).await;
                    requests::program(status.code().unwrap_or(-1), "plugin_execution_error");
                    let said = String::from_utf8_lossy(&said);
                    let said = if said.trim().is_empty() { "it prints no error" } else { said.trim() };
                    return Err(format!("failed: {status}: {said}"));
                }
                if printed.len() <= BYTES {
                    requests::program(0, "no_error");
                    return Ok(printed);
                }
            }
            () = read_more(&mut err, &mut said) => said.truncate(SAID),
        }
        if printed.len() > BYTES {
            break format!("failed: it prints more than {BYTES} bytes");
        }
    };
    requests::program(1, "client_internal_error");
    Err(failure)
}

/// Reads what is there of an ended program's output, up to about so many bytes.
async fn rest(from: &mut Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>, most: usize) {
    while into.len() < most && timeout(Duration::ZERO, read_more(from, into)).await.is_ok() {}
}

/// Reads available bytes, or notes that there will be no more.
async fn read_more(from: &mut Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>) {
    let Some(open) = from else { return std::future::pending().await };
    if !open.read_buf(into).await.is_ok_and(|length| length > 0) {
        *from = None;
    }
}

fn given(printed: &[u8], now: Timestamp) -> Result<ExecCredentials, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Status {
        expiration_timestamp: Option<String>,
        token: Option<String>,
        client_certificate_data: Option<String>,
        client_key_data: Option<String>,
    }
    let no_credentials = |reason: String| format!("prints no ExecCredential: {reason}");
    let text = std::str::from_utf8(printed).map_err(|error| no_credentials(error.to_string()))?;
    let value = yaml::parse(text, DuplicateKeyPolicy::LastWins).map_err(no_credentials)?;
    let status = value.get("status").filter(|status| !status.is_null());
    let status = status.ok_or_else(|| no_credentials("status is missing".to_owned()))?;
    let status: Status =
        yaml::read(status).map_err(|(field, reason)| no_credentials(format!("status.{field}: {reason}")))?;
    let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
    let token = filled(status.token);
    if let Some(token) = &token {
        of_header(token, "in status.token").map_err(no_credentials)?;
    }
    let identity = match (filled(status.client_certificate_data), filled(status.client_key_data)) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => return Err(no_credentials("only one of clientCertificateData and clientKeyData is set".to_owned())),
    };
    if token.is_none() && identity.is_none() {
        return Err(no_credentials("it has neither a token nor a certificate".to_owned()));
    }
    let until = filled(status.expiration_timestamp).map(|text| until(&text, now)).transpose();
    Ok(ExecCredentials { token, identity, until: until.map_err(no_credentials)?.flatten() })
}

/// When credentials that expire at this time must be replaced; `None`: never.
fn until(text: &str, now: Timestamp) -> Result<Option<Instant>, String> {
    // The last two days of year 9999, which mean "never", are outside the library's range in some zones.
    let within = text.replacen("9999-12-3", "9999-12-2", 1);
    let end: Timestamp = within.parse().map_err(|_not_a_time| {
        format!("status.expirationTimestamp: {text:?} is not a time such as 2026-01-31T12:00:00Z")
    })?;
    let left = u64::try_from(end.as_second().saturating_sub(now.as_second())).unwrap_or(0);
    let left = Duration::from_secs(left);
    Ok(Instant::now().checked_add(left.saturating_sub(AHEAD.min(left / 2))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stderr(Stdio::piped());
        command
    }

    #[tokio::test]
    async fn programs_have_limits_of_output_and_time() {
        let begun = Instant::now();
        let short = Duration::from_secs(20);
        assert_eq!(output(sh("echo a; echo b >&2; echo c"), short).await.unwrap(), b"a\nc\n");
        assert_eq!(output(sh("echo no >&2; exit 7"), short).await.unwrap_err(), "failed: exit status: 7: no");
        assert_eq!(output(sh("exit 7"), short).await.unwrap_err(), "failed: exit status: 7: it prints no error");
        assert_eq!(output(sh("exec yes"), short).await.unwrap_err(), "failed: it prints more than 1048576 bytes");
        assert_eq!(output(sh("yes >&2 & echo a"), short).await.unwrap(), b"a\n");
        // A child process that is left behind holds both pipes.
        assert_eq!(output(sh("sleep 30 & echo a"), short).await.unwrap(), b"a\n");
        assert_eq!(output(sh("head -c 1000000 /dev/zero"), short).await.unwrap().len(), 1_000_000);
        assert!(begun.elapsed() < short, "{:?}", begun.elapsed());
        let brief = Duration::from_millis(300);
        assert_eq!(output(sh("exec sleep 30"), brief).await.unwrap_err(), "failed: it has not ended after 0 s");
        let missing = Command::new("/nonexistent/program");
        assert!(output(missing, brief).await.unwrap_err().starts_with("cannot be started: No such file"));
    }

    #[test]
    fn credentials_are_replaced_before_they_end() {
        let now = Timestamp::now();
        let left = |text: &str| {
            let until = until(text, now).unwrap().unwrap();
            until.saturating_duration_since(Instant::now()).as_secs()
        };
        let in_seconds = |seconds: i64| Timestamp::from_second(now.as_second() + seconds).unwrap().to_string();
        assert!((3530..=3540).contains(&left(&in_seconds(3600))), "{}", left(&in_seconds(3600)));
        assert!((15..=20).contains(&left(&in_seconds(40))), "{}", left(&in_seconds(40)));
        assert_eq!(left(&in_seconds(-40)), 0);
        for never in ["9999-12-31T23:59:59Z", "9999-12-30T23:59:59-10:00", "9999-12-31T23:59:59.999999999Z"] {
            assert!(
                until(never, now).unwrap().is_none_or(|until| until > Instant::now() + Duration::from_secs(1 << 32))
            );
        }
    }
}
