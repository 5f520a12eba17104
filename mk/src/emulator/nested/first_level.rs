//! The first-level Linux: a machine of QEMU's translator with SVM, Debian's cloud kernel with KVM, and QEMU in its initramfs.
//!
//! It is started when first needed, and runs one machine after another. Its first process (`tests/guest/first-level`) obeys lines
//! on a virtio port. Two more ports are the serial ports of the machine that runs. The machine's CD is a disk of the Linux, whose
//! file is written anew before each run.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use scenarios::initramfs;
use scenarios::machine::Machine as _;
use serde_json::json;

use super::super::monitor::Monitor;
use super::super::process::{Process, SocketPath, fresh};
use super::super::qemu::{self, accept};
use super::kernel_log;
use super::marked::{mark, skip_past};
use crate::{image, paths, ui};

/// Its processors.
const CPUS: u32 = 4;
/// Its memory in MiB.
const MEMORY_MIB: u32 = 3072;
/// What it needs of that for itself, QEMU included, in MiB.
const OWN_MIB: u32 = 512;
/// The size of the disk with the machine's CD.
const CD_BYTES: u64 = 512 << 20;
/// Time for its boot, and for an answer. They only end a hang.
const BOOT: Duration = Duration::from_secs(180);
const ANSWER: Duration = Duration::from_secs(60);

/// The one that runs no machine at the moment.
static IDLE: Mutex<Option<FirstLevel>> = Mutex::new(None);

/// A first-level Linux. Dropping it ends it.
pub struct FirstLevel {
    process: Process,
    /// The lines of the port `control`.
    answers: Receiver<String>,
    control: UnixStream,
    /// The sockets of its ports `com1` and `com2`.
    serial: [SocketPath; 2],
    /// The file of the disk with the CD.
    cd: PathBuf,
    /// The number of runs so far.
    runs: u32,
    /// The thread that has started the process ends when this is dropped.
    _parent: Sender<()>,
}

/// What is left to say of a run that has ended.
pub struct Ended {
    /// What QEMU has said, one line each, and last its exit code.
    pub said: Vec<String>,
    /// The kernel's log meanwhile, one line each.
    pub log: Vec<String>,
}

impl FirstLevel {
    /// The one that is idle. If there is none, it is started.
    pub fn take() -> Result<Self> {
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut idle) = idle
            && idle.process.child.try_wait()?.is_none()
        {
            return Ok(idle);
        }
        Self::start()
    }

    /// Leaves it to whoever takes it next.
    pub fn give_back(self) {
        *IDLE.lock().unwrap_or_else(PoisonError::into_inner) = Some(self);
    }

    /// Ends the one that is idle.
    pub fn end_idle() {
        IDLE.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn start() -> Result<Self> {
        ui::step("nested", "starting the first-level Linux with KVM");
        let folder = paths::runs().join("nested-first-level");
        fresh(&folder)?;
        fs::create_dir_all(&folder)?;
        let [initrd, cd, console] = ["initrd", "cd", "console"].map(|name| folder.join(name));
        fs::write(&initrd, initramfs::first_level(&paths::tree(), &paths::guest_kernel())?)?;
        File::create(&cd)?.set_len(CD_BYTES)?;

        let [control, monitor] = ["control", "monitor"].map(SocketPath::new);
        let listeners = (UnixListener::bind(&control.0)?, UnixListener::bind(&monitor.0)?);
        let serial = ["com1", "com2"].map(SocketPath::new);
        let mut command = qemu::command();
        command.args(["-M", "q35", "-accel", "tcg", "-cpu", "max", "-smp", &CPUS.to_string()]);
        command.args([
            "-m",
            &format!("{MEMORY_MIB}M"),
            "-nic",
            "none",
            "-display",
            "none",
            "-nodefaults",
            "-no-reboot",
        ]);
        command.arg("-kernel").arg(image::kernel_of(&paths::guest_kernel())?).arg("-initrd").arg(&initrd);
        // The translator's TSC is good, but it does not say so.
        command.args(["-append", "console=ttyS0 tsc=reliable panic=-1"]);
        command.args(["-serial", &format!("file:{}", console.display())]);
        command.args(["-drive", &format!("if=none,id=cd,format=raw,file={}", cd.display())]);
        command.args(["-device", "virtio-blk-pci,drive=cd,disable-legacy=on"]);
        command.args(["-device", "virtio-serial-pci,disable-legacy=on,max_ports=4"]);
        let ends = [&serial[0], &serial[1], &control];
        for (n, (name, at)) in (1..).zip(["com1", "com2", "control"].into_iter().zip(ends)) {
            // Somebody else connects to the serial ports in each run.
            let server = if name == "control" { "" } else { ",server=on,wait=off" };
            command.args(["-chardev", &format!("socket,id={name},path={}{server}", at.0.display())]);
            command.args(["-device", &format!("virtserialport,chardev={name},nr={n},name={name}")]);
        }
        command.args(["-chardev", &format!("socket,id=monitor,path={}", monitor.0.display())]);
        command.args(["-mon", "chardev=monitor,mode=control"]);
        fs::write(folder.join("command"), format!("{command:?}\n"))?;
        let words = folder.join("emulator");
        let file = File::create(&words)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);

        // The kernel ends the process when the thread ends that has started it. So that is a thread that stays.
        let (parent, stays) = mpsc::channel::<()>();
        let (sender, started) = mpsc::channel();
        thread::spawn(move || {
            // Nobody waits for it any more if this fails.
            let _ = sender.send(command.spawn());
            let _ = stays.recv();
        });
        let child = started.recv()?.context("cannot start the emulator; `cargo mk fetch --again` brings it")?;
        let mut process =
            Process { child, com1: console, record: None, sockets: Vec::new(), monitor: None, typed: None };
        let stream = accept(&listeners.0, &mut process, &words)?;
        process.monitor = Some(Monitor::new(accept(&listeners.1, &mut process, &words)?)?);
        let (sender, answers) = mpsc::channel();
        let reader = BufReader::new(stream.try_clone()?);
        thread::spawn(move || reader.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let first = Self { process, answers, control: stream, serial, cd, runs: 0, _parent: parent };
        let ready = first.answer("ready", BOOT)?;
        ensure!(ready == "ready", "the first-level Linux says {ready:?}\n{}", first.last_words());
        ensure!(!first.console().contains("there is no /dev/kvm"), "no KVM in it\n{}", first.last_words());
        Ok(first)
    }

    /// Most memory of a machine in it, in MiB.
    pub fn room() -> u32 {
        MEMORY_MIB - OWN_MIB
    }

    /// Starts QEMU in it with this CD. Returns the number of the run, and both serial ports. What the machine sends on them begins with
    /// the next byte, and ends before the mark `ends` of the run.
    pub fn run(&mut self, cd: &Path, arguments: &[String]) -> Result<(u32, [UnixStream; 2])> {
        self.runs += 1;
        let number = self.runs;
        ensure!(fs::metadata(cd)?.len() <= CD_BYTES, "a CD of at most {} MiB fits", CD_BYTES >> 20);
        let mut disk = OpenOptions::new().write(true).open(&self.cd)?;
        io::copy(&mut File::open(cd)?, &mut disk)?;
        // Cuts off what a longer one has left.
        disk.set_len(fs::metadata(cd)?.len())?;
        disk.set_len(CD_BYTES)?;

        if let Some(bad) = arguments.iter().find(|word| word.contains(char::is_whitespace)) {
            bail!("{bad:?} is not one word");
        }
        let connect = |at: &SocketPath| UnixStream::connect(&at.0).context("cannot connect to the first-level Linux");
        let mut serial = [connect(&self.serial[0])?, connect(&self.serial[1])?];
        self.tell(&format!("start {number} {}", arguments.join(" ")))?;
        for port in &mut serial {
            port.set_read_timeout(Some(ANSWER))?;
            skip_past(port, &mark(number, "begins"))
                .with_context(|| format!("a serial port does not begin\n{}", self.last_words()))?;
            port.set_read_timeout(None)?;
        }
        let started = self.answer("whether QEMU has started", ANSWER)?;
        ensure!(started == format!("started {number}"), "the first-level Linux says {started:?}");
        Ok((number, serial))
    }

    /// Kills QEMU.
    pub fn kill(&mut self) -> Result<()> {
        self.tell("kill")
    }

    /// What is left of a run if it has ended. `said`: what QEMU has said, which comes before that.
    pub fn ended(&mut self, number: u32, said: &mut Vec<String>, limit: Duration) -> Result<Option<Ended>> {
        let deadline = Instant::now() + limit;
        loop {
            let line = match self.answers.try_recv() {
                Ok(line) => line,
                Err(TryRecvError::Disconnected) => bail!(self.gone()),
                Err(TryRecvError::Empty) if Instant::now() >= deadline => return Ok(None),
                Err(TryRecvError::Empty) => {
                    thread::sleep(Duration::from_millis(10));
                    continue;
                }
            };
            if let Some(words) = line.strip_prefix("said ") {
                said.push(words.to_owned());
            } else if let Some(code) = line.strip_prefix(&format!("ended {number} ")) {
                said.push(format!("QEMU has ended with code {code}"));
                return Ok(Some(Ended { said: std::mem::take(said), log: self.log_of(number)? }));
            }
        }
    }

    /// The kernel's log of a run that has ended. Its last lines may still be on their way through the UART.
    fn log_of(&self, number: u32) -> Result<Vec<String>> {
        let deadline = Instant::now() + ANSWER;
        loop {
            let console = self.console();
            if let Some(lines) = kernel_log::of_run(&console, number) {
                return Ok(lines.into_iter().map(str::to_owned).collect());
            }
            ensure!(Instant::now() < deadline, "its kernel's log has no end of run {number}\n{}", self.last_words());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        writeln!(self.control, "{line}").map_err(|error| anyhow!("{error}: {}", self.gone()))
    }

    fn answer(&self, what: &str, limit: Duration) -> Result<String> {
        match self.answers.recv_timeout(limit) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => bail!("the first-level Linux does not say {what}\n{}", self.last_words()),
            Err(RecvTimeoutError::Disconnected) => bail!(self.gone()),
        }
    }

    fn gone(&self) -> String {
        format!("the first-level Linux has ended\n{}", self.last_words())
    }

    /// Its console, and what its processors do: for whoever wants to know why it does not answer.
    pub fn state(&mut self) -> String {
        let mut state = self.console();
        for line in ["info registers -a", "info lapic 0", "info lapic 1", "info lapic 2", "info lapic 3"] {
            let said = self.process.monitor("human-monitor-command", &json!({ "command-line": line }));
            state += &match said {
                Ok(said) => format!("\n{line}:\n{}", said.as_str().unwrap_or_default()),
                Err(error) => format!("\n{line}: {error:#}\n"),
            };
        }
        state
    }

    fn console(&self) -> String {
        // A console that cannot be read has nothing.
        fs::read(&self.process.com1).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// The last lines of its console, for an error message.
    fn last_words(&self) -> String {
        let console = self.console();
        let lines: Vec<&str> = console.lines().collect();
        format!("the last lines of its console:\n  {}", lines[lines.len().saturating_sub(15)..].join("\n  "))
    }
}
