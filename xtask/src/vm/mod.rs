//! A virtual machine for one command: QEMU, a Debian kernel, and the host's root file system below a temporary overlay.
//!
//! Every file of the host is visible at the same path. What the machine writes is discarded, except in [`Vm::shares`].
//! Standard output and standard error leave through separate serial ports, so they do not mix with the kernel's log.
//! Scripts and the exit code are exchanged in a directory.

mod accel;

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use crate::kernel::Kernel;
use crate::tools;

/// How long the machine may take to power off after the exit code has arrived.
const POWER_OFF_LIMIT: Duration = Duration::from_secs(10);

/// A machine to run commands in. It boots for each run.
#[derive(Clone, Debug)]
pub(crate) struct Vm {
    /// Kernel that it boots.
    pub(crate) kernel: Kernel,
    /// Memory in MiB, including files that the command writes.
    pub(crate) memory: u32,
    /// Number of processors. In QEMU without KVM each of two is slower than a single one, since they wait for each
    /// other.
    pub(crate) processors: u32,
    /// From power-on to power-off.
    pub(crate) timeout: Duration,
    /// QEMU's backend of the network card: `user` (the host is 10.0.2.2), or `tap` with its options.
    pub(crate) network: Option<String>,
    /// Directories of the host that the command may write, at the same path.
    pub(crate) shares: Vec<PathBuf>,
    /// Environment of the command, in addition to a small fixed one.
    pub(crate) env: Vec<(String, String)>,
    /// Working directory of the command.
    pub(crate) folder: PathBuf,
    /// Whether QEMU's own errors are shown. Not while KVM is tried, since a failure is an answer.
    pub(crate) shows_errors: bool,
}

/// Outcome of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The command's exit code; `None` if the machine ended before the command.
    pub(crate) exit: Option<i32>,
    /// The time was up.
    timed_out: bool,
    /// The kernel's log.
    pub(crate) console: String,
    /// From power-on to power-off.
    elapsed: Duration,
}

impl Outcome {
    /// A line about a run that did not end with the command's exit code.
    pub(crate) fn trouble(&self) -> Option<String> {
        let seconds = self.elapsed.as_secs();
        match (self.exit, self.timed_out) {
            (Some(_), _) => None,
            (None, true) => Some(format!("no end after {seconds} s: the machine was switched off")),
            (None, false) if self.console.contains("Kernel panic") => Some("the kernel panicked".to_owned()),
            (None, false) => Some(format!("the machine ended after {seconds} s, before the command did")),
        }
    }

    /// The exit code of such a run; prints the reason, below the kernel's log.
    pub(crate) fn failed(&self) -> Option<ExitCode> {
        let trouble = self.trouble()?;
        eprintln!("{}\nxtask: {trouble}", self.console.trim_end());
        Some(ExitCode::from(if self.timed_out { 124 } else { 125 }))
    }
}

/// The emulated processor, without features that are slow to emulate: at each system call (SMAP, SMEP), page fault
/// (five-level tables) and copy (`rep movsb`, which goes byte by byte).
const EMULATED_CPU: &str = "max,-erms,-la57,-smap,-smep";

/// Boot parameters for QEMU without KVM: no mitigations, which an emulated processor does not need, and no clearing of
/// pages that are overwritten anyway. The kernel distrusts the emulated time stamp counter and falls back to a clock
/// that halves the speed of every program, hence `tsc=reliable`.
const EMULATED_BOOT: &str = " mitigations=off init_on_alloc=0 audit=0";

/// Creates the kernel's initial file system in directory $1: busybox $2, the script init, and the modules for the
/// host's files and serial ports, in loading order. The kernel provides /dev/console.
const INITRAMFS: &str = r#"
mkdir -p first/bin first/dev first/proc first/lower first/upper first/newroot first/modules
cp "$2" first/bin/busybox
cp init first/init
number=100
modules=$(modprobe -d "$1" -S "$3" --show-depends -a virtio_pci virtio_console 9pnet_virtio 9p overlay)
for module in $(echo "$modules" | awk '$1 == "insmod" && !seen[$2]++ { print $2 }'); do
    cp "$module" "first/modules/$number-${module##*/}"
    number=$((number + 1))
done
(cd first && find . | "$2" cpio -o -H newc 2>/dev/null) >initramfs
rm -r first
"#;

impl Vm {
    /// A machine with this kernel, 1 GiB of memory, two processors, ten minutes, and the current directory.
    pub(crate) fn new(kernel: Kernel) -> Result<Self> {
        Ok(Self {
            kernel,
            memory: 1024,
            processors: 2,
            timeout: Duration::from_secs(600),
            network: None,
            shares: Vec::new(),
            env: Vec::new(),
            folder: std::env::current_dir().context("the current folder is gone")?,
            shows_errors: true,
        })
    }

    /// Runs a command and passes on its output as it arrives.
    pub(crate) fn run(&self, command: &[String]) -> Result<Outcome> {
        let accelerator = accel::choose(&self.kernel)?;
        self.boot(accelerator, command)
    }

    /// Determines how this kernel runs here, so that machines started concurrently later need not all try.
    pub(crate) fn try_out(&self) -> Result<()> {
        accel::choose(&self.kernel).map(drop)
    }

    /// Runs a command on the console with the keyboard until it ends: a shell. The time limit does not apply.
    pub(crate) fn shell(&self, command: &[String]) -> Result<ExitCode> {
        let accelerator = accel::choose(&self.kernel)?;
        let run = tools::scratch()?;
        let mut qemu = self.qemu(accelerator, run.path(), command, true)?;
        ensure!(tools::succeeds(qemu.args(["-serial", "mon:stdio"]))?, "QEMU failed");
        Ok(ExitCode::SUCCESS)
    }

    fn boot(&self, accelerator: &str, command: &[String]) -> Result<Outcome> {
        let run = tools::scratch()?;
        let place = |name: &str| run.path().join(name);
        let mut qemu = self.qemu(accelerator, run.path(), command, false)?;
        qemu.args(["-serial", &option("file:", &place("console")), "-device", "virtio-serial-pci,id=ports"]);
        // The numbers are those in stage2.sh.
        for (number, name) in [(1, "stdout"), (2, "stderr")] {
            qemu.args(["-chardev", &format!("file,id={name},path=/dev/{name},append=on")]);
            qemu.args(["-device", &format!("virtserialport,bus=ports.0,nr={number},chardev={name},name={name}")]);
        }
        let start = Instant::now();
        let mut child = qemu
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start qemu-system-x86_64")?;
        // Pipes, since QEMU opens them by name, which sockets do not allow. A reader that disappears (`| head`) blocks
        // nothing: QEMU discards the rest.
        let (stdout, stderr, shows_errors) = (child.stdout.take(), child.stderr.take(), self.shows_errors);
        let copies = [
            thread::spawn(move || stdout.map(|mut pipe| io::copy(&mut pipe, &mut io::stdout()))),
            thread::spawn(move || {
                stderr.map(|mut pipe| {
                    let mut to: Box<dyn io::Write> =
                        if shows_errors { Box::new(io::stderr()) } else { Box::new(io::sink()) };
                    io::copy(&mut pipe, &mut to)
                })
            }),
        ];
        let timed_out = wait(&mut child, start + self.timeout, &place("exit"));
        // Kills it if it still runs, and reaps it in any case.
        drop(child.kill());
        let status = child.wait().context("QEMU cannot be waited for")?;
        for copy in copies {
            drop(copy.join());
        }
        let exit = exit_code(&place("exit"));
        ensure!(exit.is_some() || timed_out || status.success(), "QEMU failed ({status})");
        let console = fs::read(place("console")).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let console = console.unwrap_or_default();
        Ok(Outcome { exit, timed_out: timed_out && exit.is_none(), console, elapsed: start.elapsed() })
    }

    /// The QEMU command, with scripts and initial file system in the directory `run`.
    fn qemu(&self, accelerator: &str, run: &Path, command: &[String], interactive: bool) -> Result<Command> {
        let mut stage2 = format!(
            "modules_release={}\nnetwork={}\ninteractive={interactive}\n",
            self.kernel.release,
            quote(self.network.as_deref().unwrap_or_default())
        );
        for (number, path) in self.shares.iter().enumerate() {
            stage2.extend([&format!("share_{number}="), &quote(&path.to_string_lossy()), "\n"]);
        }
        fs::write(run.join("stage2"), stage2 + include_str!("stage2.sh"))?;
        fs::write(run.join("command"), self.script(command))?;
        fs::write(run.join("init"), include_str!("init.sh"))?;
        tools::run(Command::new("chmod").arg("755").arg(run.join("init")))?;
        let mut make = Command::new("sh");
        make.current_dir(run).env("PATH", tools::search_path()).args(["-ec", INITRAMFS, "initramfs"]);
        tools::run(make.arg(&self.kernel.folder).arg(tools::static_busybox()?).arg(&self.kernel.release))?;

        // The machine ends with this process, even if this process is killed.
        let mut qemu = Command::new("setpriv");
        qemu.env("PATH", tools::search_path());
        qemu.args(["--pdeathsig", "KILL", "--", "qemu-system-x86_64", "-M", "q35", "-accel", accelerator]);
        let is_kvm = accelerator == "kvm";
        qemu.args(["-cpu", if is_kvm { "host" } else { EMULATED_CPU }]);
        qemu.args(["-smp", &self.processors.to_string(), "-m", &format!("{}M", self.memory)]);
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        qemu.arg("-kernel").arg(self.kernel.folder.join("vmlinuz")).arg("-initrd").arg(run.join("initramfs"));
        let more = if is_kvm { "" } else { EMULATED_BOOT };
        qemu.args(["-append", &format!("console=ttyS0 quiet panic=-1 oops=panic tsc=reliable{more}")]);
        let mut share = |id: &str, path: &Path, suffix: &str| {
            let more = format!(",mount_tag={id},id={id},security_model=none,multidevs=remap{suffix}");
            qemu.args(["-virtfs", &(option("local,path=", path) + &more)]);
        };
        share("root", Path::new("/"), ",readonly=on");
        share("modules", &self.kernel.modules(), ",readonly=on");
        share("run", run, "");
        for (number, path) in self.shares.iter().enumerate() {
            share(&format!("share{number}"), path, "");
        }
        if let Some(backend) = &self.network {
            qemu.args(["-netdev", &format!("{backend},id=network")]);
            qemu.args(["-device", "virtio-net-pci,netdev=network,romfile="]);
        }
        Ok(qemu)
    }

    /// The command as a shell script in which the shell interprets nothing.
    fn script(&self, command: &[String]) -> String {
        let mut script = format!("cd {} || exit 127\n", quote(&self.folder.to_string_lossy()));
        for (name, value) in &self.env {
            script.extend(["export ", name, "=", &quote(value), "\n"]);
        }
        script + "exec " + &quote_all(command) + "\n"
    }
}

/// A word for the shell, in single quotes.
pub(crate) fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Words for the shell.
pub(crate) fn quote_all(words: &[String]) -> String {
    words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")
}

/// An option of QEMU that ends in a path: commas are doubled.
fn option(prefix: &str, path: &Path) -> String {
    prefix.to_owned() + &path.to_string_lossy().replace(',', ",,")
}

/// The command's exit code, once it is in the file.
fn exit_code(file: &Path) -> Option<i32> {
    fs::read_to_string(file).ok()?.strip_suffix('\n')?.parse().ok()
}

/// Waits for the machine's end, the time limit, or a machine that does not power off after the exit code; returns
/// whether the time was over.
fn wait(child: &mut Child, mut deadline: Instant, exit: &Path) -> bool {
    let mut has_code = false;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() >= deadline {
            return true;
        }
        if !has_code && exit_code(exit).is_some() {
            has_code = true;
            deadline = deadline.min(Instant::now() + POWER_OFF_LIMIT);
        }
        thread::sleep(Duration::from_millis(20));
    }
    false
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::{option, quote};

    #[test]
    fn the_shell_returns_every_word() {
        for word in ["", "plain", "two words", "it's", "$HOME `id` \\ \"x\"", "line\nline", "*"] {
            let output = Command::new("sh").args(["-c", &format!("printf %s {}", quote(word))]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
        assert_eq!(option("file:", Path::new("/a,b")), "file:/a,,b");
    }
}
