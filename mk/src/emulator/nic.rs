//! The 82599 of a machine in QEMU. A separate process serves the model by vfio-user (`tests/x520-model`).

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use scenarios::nic::{Nic, Parts};

use super::process::{Process, SocketPath};
use crate::{paths, tools};

const LIMIT: Duration = Duration::from_secs(60);

/// Builds the server, once.
pub fn server() -> Result<&'static Path> {
    static SERVER: OnceLock<PathBuf> = OnceLock::new();
    if let Some(server) = SERVER.get() {
        return Ok(server);
    }
    let target = paths::target();
    let folder = target.display().to_string();
    let build = ["build", "--quiet", "--release", "--package", "x520-model", "--features", "server", "--target-dir"];
    if !tools::cargo(&[&build[..], &[folder.as_str()]].concat(), &[])? {
        bail!("the device's server does not build; the compiler's words are above");
    }
    Ok(SERVER.get_or_init(|| target.join("release/x520-server")))
}

/// A device to serve.
pub struct Device<'a> {
    /// The folder of its logs.
    pub folder: &'a Path,
    /// Its address.
    pub mac: [u8; 6],
    /// Its end of the wire.
    pub wire: SocketPath,
    /// The other end.
    pub peer: &'a Path,
    /// Whether to record the frames on the wire.
    pub capture: bool,
    /// Whether it is a card for a backplane, which offers all modes.
    pub backplane: bool,
}

/// Starts a device's server and waits until QEMU can connect. Returns the path of its socket.
pub fn serve(device: Device<'_>) -> Result<(Nic, PathBuf)> {
    let socket = SocketPath::new("nic");
    let mac = device.mac.map(|byte| format!("{byte:02x}")).join(":");
    let mut server = tools::dying_with_us(server()?);
    server.arg(&socket.0).arg("--wire").args([&device.wire.0, device.peer]).args(["--mac", &mac]);
    if device.backplane {
        server.args(["--backplane", "kr,kx4,kx"]);
    }
    let capture = device.capture.then(|| device.folder.join("wire.pcap"));
    if let Some(path) = &capture {
        server.arg("--pcap").arg(path);
    }
    let complaints = device.folder.join("complaints");
    server.stderr(File::create(&complaints)?).stdout(Stdio::piped());
    fs::write(device.folder.join("device"), format!("{server:?}\n"))?;
    let (mut process, commands, answers) = spawn(&mut server, &complaints)?;
    let answers = answers.context("a server without standard output")?;
    let deadline = Instant::now() + LIMIT;
    while !socket.0.exists() {
        if process.child.try_wait()?.is_some() || Instant::now() > deadline {
            bail!("the device's server did not start:\n{}", fs::read_to_string(&complaints).unwrap_or_default());
        }
        thread::sleep(Duration::from_millis(10));
    }
    let path = socket.0.clone();
    process.sockets = vec![socket, device.wire];
    let parts = Parts { server: Box::new(process), commands, answers: Box::new(answers), complaints, capture };
    Ok((Nic::new(parts), path))
}

/// Adds devices to a machine, the first at 01:00.0, the second at 02:00.0. Sets the machine type (`-M`), with
/// `memory_mib` of memory that the devices' servers can reach.
pub fn connect(command: &mut Command, sockets: &[&Path], memory_mib: u32) {
    command.args(["-object", &format!("memory-backend-memfd,id=mem,size={memory_mib}M,share=on")]);
    command.args(["-machine", "memory-backend=mem"]);
    for (n, path) in sockets.iter().enumerate() {
        let path = path.display();
        command.args(["-device", &format!("pcie-root-port,id=rp{n},chassis={n},addr=0x1{n}")]);
        command.args([
            "-device",
            &format!(r#"{{"driver":"vfio-user-pci","bus":"rp{n}","socket":{{"type":"unix","path":"{path}"}}}}"#),
        ]);
    }
}

/// Connects QEMU's own network to the other end of a device's wire, so that the emulator answers there at the address
/// `host`. `n`: the number of the wire.
pub fn answer(command: &mut Command, n: usize, ends: [&Path; 2], host: &str) {
    let net = host.trim_end_matches("254");
    command.args(["-netdev", &format!("user,id=net{n},net={net}0/24,host={host},dhcpstart={net}200")]);
    wire(command, n, ends);
    for end in ["net", "wire"] {
        command.args(["-netdev", &format!("hubport,id=hub{n}{end},hubid={n},netdev={end}{n}")]);
    }
}

/// One end of a wire, as QEMU's network device `wireN`.
fn wire(command: &mut Command, n: usize, [own, other]: [&Path; 2]) {
    let (own, other) = (own.display(), other.display());
    let ends = format!("local.type=unix,local.path={own},remote.type=unix,remote.path={other}");
    command.args(["-netdev", &format!("dgram,id=wire{n},{ends}")]);
}

/// Connects an 82576 of QEMU's to a wire. `n`: the number of the wire. QEMU writes among its messages what it has against
/// the device's driver, and each reset.
pub fn igb(command: &mut Command, n: usize, ends: [&Path; 2]) {
    wire(command, n, ends);
    let slot = scenarios::setup::IGB_SLOT;
    command.args(["-device", &format!("igb,netdev=wire{n},mac=02:1b:21:00:00:fe,addr=0x{slot}")]);
    command.args(["-d", "guest_errors"]);
    command.args(scenarios::setup::IGB_EVENTS.iter().flat_map(|event| ["-trace", event]));
}

type Spawned = (Process, Box<dyn Write + Send>, Option<ChildStdout>);

/// Starts a process. Returns it with its input and, if piped, its output. `console`: the file that explains a failure.
pub fn spawn(command: &mut Command, console: &Path) -> Result<Spawned> {
    let child = command.stdin(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("cannot start {command:?}"))?;
    let input = child.stdin.take().context("a process without standard input")?;
    let output = child.stdout.take();
    Ok((
        Process { child, com1: console.to_owned(), record: None, sockets: Vec::new(), monitor: None, typed: None },
        Box::new(input),
        output,
    ))
}
