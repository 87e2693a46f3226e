//! A virtual machine for one command: QEMU, a Debian kernel, and the host's own root file system below a throw-away
//! overlay.
//!
//! Every file of the host is there, at the same path; what the machine writes is gone when it ends, except in
//! [`Vm::shares`]. Standard output, standard error and the exit code leave over serial ports of their own, so that
//! nothing of the kernel's log gets between them.

mod accel;
mod initramfs;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::{Context as _, Error, Result};
use crate::kernel::Kernel;
use crate::scratch::Scratch;
use crate::tools;

/// After the exit code has arrived, the machine has this long to power off.
const POWER_OFF_LIMIT: Duration = Duration::from_secs(10);

/// A machine to run commands in; it boots for each run.
#[derive(Clone, Debug)]
pub(crate) struct Vm {
    /// Kernel that it boots.
    pub(crate) kernel: Kernel,
    /// Memory in MiB. What the command writes to files lies in it too.
    pub(crate) memory: u32,
    /// Number of processors. Emulated, each of two is slower than one alone: they wait for each other.
    pub(crate) processors: u32,
    /// From power-on to power-off.
    pub(crate) timeout: Duration,
    /// Whether there is a network card with the host at 10.0.2.2 (user-mode networking).
    pub(crate) network: bool,
    /// Whether the command reads this process's standard input; else it reads nothing.
    pub(crate) stdin: bool,
    /// Folders of the host that the command may write to, at the same path.
    pub(crate) shares: Vec<PathBuf>,
    /// Environment of the command, over a small fixed one.
    pub(crate) env: Vec<(OsString, OsString)>,
    /// Working directory of the command.
    pub(crate) folder: PathBuf,
}

/// Outcome of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The command's exit code; `None` when the machine ended before the command did.
    pub(crate) exit: Option<i32>,
    /// The time was up.
    pub(crate) timed_out: bool,
    /// The kernel panicked.
    pub(crate) panicked: bool,
    /// The kernel's log.
    pub(crate) console: String,
    /// From power-on to power-off.
    pub(crate) elapsed: Duration,
}

impl Outcome {
    /// One line on a run that did not end with the command's own exit code.
    pub(crate) fn trouble(&self) -> Option<String> {
        let seconds = self.elapsed.as_secs();
        match (self.exit, self.timed_out, self.panicked) {
            (_, _, true) => Some("the kernel panicked".to_owned()),
            (None, true, _) => Some(format!("no end after {seconds} s: the machine was switched off")),
            (None, false, _) => Some(format!("the machine ended after {seconds} s, before the command did")),
            (Some(_), ..) => None,
        }
    }

    /// The exit code of a run that did not end with the command's own; prints why, below the kernel's log.
    pub(crate) fn failed(&self) -> Option<ExitCode> {
        let trouble = self.trouble()?;
        eprintln!("{}\nxtask: {trouble}", self.console.trim_end());
        Some(ExitCode::from(if self.timed_out { 124 } else { 125 }))
    }
}

/// The emulated processor. Without what costs an emulator time at each system call (SMAP, SMEP), page fault (five-level tables)
/// and copy (`rep movsb`, which goes byte by byte).
const EMULATED_CPU: &str = "max,-erms,-la57,-smap,-smep";

/// Further boot parameters of an emulated machine: no defences against what an emulated processor does not do, no clearing of pages
/// that are overwritten anyway. The kernel distrusts the emulated time stamp counter without reason and falls back to a clock that
/// makes every program half as fast, hence `tsc=reliable` too.
const EMULATED_BOOT: &str = " mitigations=off init_on_alloc=0 audit=0";

/// Receiver of a stream of the command.
pub(crate) type Sink = Box<dyn Write + Send>;

impl Vm {
    /// A machine with this kernel, 1 GiB of memory, two processors, ten minutes, and the current folder.
    pub(crate) fn new(kernel: Kernel) -> Result<Self> {
        Ok(Self {
            kernel,
            memory: 1024,
            processors: 2,
            timeout: Duration::from_secs(600),
            network: false,
            stdin: false,
            shares: Vec::new(),
            env: Vec::new(),
            folder: std::env::current_dir().context(|| "the current folder is gone".to_owned())?,
        })
    }

    /// Runs a command; its output goes to this process's, as it comes.
    pub(crate) fn run(&self, command: &[OsString]) -> Result<Outcome> {
        self.run_with(command, Box::new(io::stdout()), Box::new(io::stderr()))
    }

    /// Runs a command; its output goes to the two sinks, as it comes.
    pub(crate) fn run_with(&self, command: &[OsString], stdout: Sink, stderr: Sink) -> Result<Outcome> {
        let accelerator = accel::choose(&self.kernel)?;
        self.boot(accelerator, command, stdout, stderr)
    }

    /// Finds out how this kernel runs here, so that machines which start at the same time later need not all try.
    pub(crate) fn try_out(&self) -> Result<()> {
        accel::choose(&self.kernel).map(drop)
    }

    /// Runs a command on the console, with the keyboard, until it ends: a shell. The time limit does not apply.
    pub(crate) fn shell(&self, command: &[OsString]) -> Result<()> {
        let accelerator = accel::choose(&self.kernel)?;
        let run = Scratch::new()?;
        let initramfs = self.write_initramfs(&run, command, true)?;
        let mut qemu = self.qemu(accelerator, &initramfs);
        qemu.args(["-serial", "mon:stdio"]);
        let status = qemu.status().context(|| "cannot start qemu-system-x86_64".to_owned())?;
        if status.success() { Ok(()) } else { Err(Error::new(format!("QEMU failed ({status})"))) }
    }

    fn boot(&self, accelerator: &str, command: &[OsString], stdout: Sink, stderr: Sink) -> Result<Outcome> {
        let run = Scratch::new()?;
        let initramfs = self.write_initramfs(&run, command, false)?;
        let console = run.path().join("console");
        let mut qemu = self.qemu(accelerator, &initramfs);
        qemu.arg("-serial").arg(option("file:", &console));
        qemu.args(["-device", "virtio-serial-pci,id=ports"]);
        let (sender, exit_codes) = mpsc::channel();
        let mut copies = Vec::new();
        // The numbers are the ones that stage2.sh knows.
        for (number, name, end) in [
            (1, "stdout", End::Copy(stdout)),
            (2, "stderr", End::Copy(stderr)),
            (3, "exit", End::Code(sender)),
            (4, "stdin", End::Feed(self.stdin)),
        ] {
            let socket = run.path().join(name);
            let listener = UnixListener::bind(&socket).context(|| format!("cannot listen on {}", socket.display()))?;
            qemu.arg("-chardev").arg(option(&format!("socket,id={name},path="), &socket));
            qemu.arg("-device").arg(format!("virtserialport,bus=ports.0,nr={number},chardev={name},name={name}"));
            if let Some(copy) = end.serve(listener) {
                copies.push((socket, copy));
            }
        }
        let start = Instant::now();
        qemu.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = qemu.spawn().context(|| "cannot start qemu-system-x86_64".to_owned())?;
        let ended = wait(&mut child, start + self.timeout, &exit_codes);
        // Kills it where it is still running, and takes its exit status in any case.
        drop(child.kill());
        let output = child.wait_with_output().context(|| "QEMU cannot be waited for".to_owned())?;
        for (socket, copy) in copies {
            // Wakes the thread that still waits for QEMU to connect, if it never did.
            drop(UnixStream::connect(&socket));
            drop(copy.join());
        }
        let exit = ended.exit.or_else(|| exit_codes.try_recv().ok());
        let console = fs::read(&console).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        if exit.is_none() && !ended.timed_out && !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::new(format!("QEMU failed ({}): {said}", output.status)));
        }
        let panicked = exit.is_none() && console.contains("Kernel panic");
        Ok(Outcome { exit, timed_out: ended.timed_out, panicked, console, elapsed: start.elapsed() })
    }

    fn qemu(&self, accelerator: &str, initramfs: &Path) -> Command {
        // The machine ends with this process, even when this process is killed.
        let mut qemu = Command::new("setpriv");
        qemu.env("PATH", tools::search_path());
        qemu.args(["--pdeathsig", "KILL", "--", "qemu-system-x86_64", "-M", "q35", "-accel", accelerator]);
        qemu.args(["-cpu", if accelerator == "kvm" { "host" } else { EMULATED_CPU }]);
        qemu.args(["-smp", &self.processors.to_string()]);
        qemu.args(["-m", &format!("{}M", self.memory)]);
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        qemu.arg("-kernel").arg(&self.kernel.image).arg("-initrd").arg(initramfs);
        let more = if accelerator == "kvm" { "" } else { EMULATED_BOOT };
        qemu.args(["-append", &format!("console=ttyS0 quiet panic=-1 oops=panic tsc=reliable{more}")]);
        let mut share = |id: &str, path: &Path, suffix: &str| {
            let mut value = option("local,path=", path);
            value.push(format!(",mount_tag={id},id={id},security_model=none,multidevs=remap{suffix}"));
            qemu.arg("-virtfs").arg(value);
        };
        share("root", Path::new("/"), ",readonly=on");
        share("modules", &self.kernel.modules, ",readonly=on");
        for (number, path) in self.shares.iter().enumerate() {
            share(&format!("share{number}"), path, "");
        }
        if self.network {
            qemu.args(["-netdev", "user,id=network", "-device", "virtio-net-pci,netdev=network,romfile="]);
        }
        qemu
    }

    fn write_initramfs(&self, run: &Scratch, command: &[OsString], interactive: bool) -> Result<PathBuf> {
        let yes_no = |flag: bool| if flag { "yes" } else { "no" };
        let mut stage2 = format!(
            "modules_release={}\nnetwork={}\nstdin={}\ninteractive={}\nshares={}\n",
            self.kernel.release,
            yes_no(self.network),
            yes_no(self.stdin),
            yes_no(interactive),
            self.shares.len()
        )
        .into_bytes();
        for (number, path) in self.shares.iter().enumerate() {
            stage2.extend_from_slice(format!("share_{number}=").as_bytes());
            stage2.extend_from_slice(&quote(path.as_os_str()));
            stage2.push(b'\n');
        }
        stage2.extend_from_slice(include_bytes!("stage2.sh"));
        let initramfs = initramfs::build(&self.kernel, &stage2, &self.command_script(command))?;
        let path = run.path().join("initramfs");
        fs::write(&path, initramfs).context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// The command as a shell script: nothing in it is left for the shell to interpret.
    fn command_script(&self, command: &[OsString]) -> Vec<u8> {
        let mut script = b"cd ".to_vec();
        script.extend_from_slice(&quote(self.folder.as_os_str()));
        script.extend_from_slice(b" || exit 127\n");
        for (name, value) in &self.env {
            script.extend_from_slice(b"export ");
            script.extend_from_slice(name.as_bytes());
            script.push(b'=');
            script.extend_from_slice(&quote(value));
            script.push(b'\n');
        }
        script.extend_from_slice(b"exec");
        for word in command {
            script.push(b' ');
            script.extend_from_slice(&quote(word));
        }
        script.push(b'\n');
        script
    }
}

/// A word for the shell, in single quotes.
pub(crate) fn quote(word: &OsStr) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for byte in word.as_bytes() {
        match byte {
            b'\'' => quoted.extend_from_slice(b"'\\''"),
            byte => quoted.push(*byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

/// An option of QEMU that ends in a path: commas are doubled.
fn option(prefix: &str, path: &Path) -> OsString {
    let mut bytes = prefix.as_bytes().to_vec();
    for byte in path.as_os_str().as_bytes() {
        bytes.push(*byte);
        if *byte == b',' {
            bytes.push(b',');
        }
    }
    OsStr::from_bytes(&bytes).to_owned()
}

/// This process's end of a serial port.
enum End {
    Copy(Sink),
    Code(mpsc::Sender<i32>),
    Feed(bool),
}

impl End {
    /// Serves the port in a thread. Only those that end with the machine are handed back.
    fn serve(self, listener: UnixListener) -> Option<JoinHandle<()>> {
        match self {
            Self::Copy(sink) => Some(thread::spawn(move || {
                if let Ok((stream, _)) = listener.accept() {
                    copy(stream, sink);
                }
            })),
            Self::Code(sender) => Some(thread::spawn(move || {
                let Ok((mut stream, _)) = listener.accept() else { return };
                let mut said = Vec::new();
                let mut byte = [0];
                while let Ok(1) = stream.read(&mut byte)
                    && byte != *b"\n"
                {
                    said.extend_from_slice(&byte);
                }
                if let Some(code) = std::str::from_utf8(&said).ok().and_then(|text| text.trim().parse().ok()) {
                    sender.send(code).unwrap_or_default();
                }
                // The port stays open until the machine ends.
                drop(io::copy(&mut stream, &mut io::sink()));
            })),
            Self::Feed(feed) => {
                thread::spawn(move || {
                    if let Ok((mut stream, _)) = listener.accept() {
                        if feed {
                            drop(io::copy(&mut io::stdin(), &mut stream));
                            drop(stream.shutdown(std::net::Shutdown::Write));
                        }
                        drop(io::copy(&mut stream, &mut io::sink()));
                    }
                });
                None
            }
        }
    }
}

/// Copies until the end, without holding anything back.
fn copy(mut stream: UnixStream, mut sink: Sink) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length) = stream.read(&mut buffer)
        && length > 0
    {
        // A reader that went away (`| head`) must not stall the machine: the rest is read and dropped.
        drop(buffer.get(..length).map(|bytes| sink.write_all(bytes).and_then(|()| sink.flush())));
    }
}

struct Ended {
    exit: Option<i32>,
    timed_out: bool,
}

/// Waits for the machine's end, the time limit, or a machine that does not power off after the exit code.
fn wait(child: &mut Child, deadline: Instant, exit_codes: &mpsc::Receiver<i32>) -> Ended {
    let mut deadline = deadline;
    let mut exit = None;
    loop {
        if matches!(child.try_wait(), Ok(Some(_)) | Err(_)) {
            return Ended { exit, timed_out: false };
        }
        if Instant::now() >= deadline {
            return Ended { exit, timed_out: exit.is_none() };
        }
        match exit_codes.recv_timeout(Duration::from_millis(20)) {
            Ok(code) => {
                exit = Some(code);
                deadline = deadline.min(Instant::now() + POWER_OFF_LIMIT);
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::path::Path;
    use std::process::Command;

    use super::{option, quote};

    #[test]
    fn the_shell_gives_back_every_word() {
        for word in ["", "plain", "two words", "it's", "$HOME `id` \\ \"x\"", "line\nline", "*"] {
            let mut script = b"printf %s ".to_vec();
            script.extend_from_slice(&quote(OsStr::new(word)));
            let output = Command::new("sh").arg("-c").arg(String::from_utf8(script).unwrap()).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
    }

    #[test]
    fn commas_in_paths_are_doubled_for_qemu() {
        assert_eq!(option("file:", Path::new("/a,b")), "file:/a,,b");
    }
}
