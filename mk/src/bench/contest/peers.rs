//! Starts the switches of the contest, each with two vhost-user ports and its thread on the same processor.
//!
//! Open vSwitch has its database, sockets and logs in the run's folder, and a network namespace of its own. So it finds
//! nothing on the host and creates nothing there.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;

use crate::tools;

const LIMIT: Duration = Duration::from_secs(60);
/// Number of 2 MiB pages for the guests, testpmd and Open vSwitch.
const PAGES: u64 = 900;

/// Reserved huge pages, for as long as this lives. A keeper process gives them back when its input ends. It does so
/// even if this process is killed.
pub struct HugePages {
    keeper: Child,
}

const NR_HUGEPAGES: &str = "/proc/sys/vm/nr_hugepages";

impl HugePages {
    /// Reserves the pages. `None`: we are not root, or there is not enough memory.
    pub fn reserve() -> Option<Self> {
        let read = || fs::read_to_string(NR_HUGEPAGES).ok()?.trim().parse::<u64>().ok();
        if !geteuid().is_root() {
            return None;
        }
        let before = read()?;
        let keep = format!("trap '' HUP INT TERM; cat >/dev/null; echo {before} >{NR_HUGEPAGES}");
        let keeper = Command::new("sh").args(["-c", &keep]).stdin(Stdio::piped()).spawn().ok()?;
        let pages = Self { keeper };
        fs::write(NR_HUGEPAGES, (before + PAGES).to_string()).ok()?;
        // The kernel reserves as many pages as it finds. If there are too few, dropping `pages` gives them back.
        (read()? >= before + PAGES).then_some(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        // An error means that the keeper was killed. Then nobody gives the pages back.
        let _ = self.keeper.wait();
    }
}

/// A process. Dropping it ends the process, even if it is stopped.
pub struct Process {
    child: Child,
    words: PathBuf,
}

impl Process {
    /// Starts it. Its standard error goes to the file `words`.
    pub fn start(mut command: Command, words: PathBuf) -> Result<Self> {
        let file = File::create(&words).with_context(|| format!("cannot create {}", words.display()))?;
        // The input stays open, because testpmd ends when its input ends.
        command.stdin(Stdio::piped()).stderr(file.try_clone()?);
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self { child, words })
    }

    /// Its process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end, and waits until it has.
    pub fn terminate(mut self) -> Result<()> {
        let number = i32::try_from(self.id()).ok().and_then(Pid::from_raw).context("no such process number")?;
        kill_process(number, Signal::TERM)?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits until all these files exist.
    pub fn until_there(&mut self, paths: &[PathBuf]) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        while !paths.iter().all(|path| path.exists()) {
            if self.child.try_wait()?.is_some() || Instant::now() > deadline {
                bail!("it did not start:\n{}", fs::read_to_string(&self.words).unwrap_or_default());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes an empty folder for a switch.
fn fresh(folder: &Path, name: &str) -> Result<PathBuf> {
    let folder = folder.join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}

/// Our engine as a process.
pub struct Ours {
    /// The process.
    pub process: Process,
    /// Its ports.
    pub sockets: Vec<PathBuf>,
}

/// A stage that allows all frames of the contest.
const STAGE: &str = "[[stage]]\nname = \"discard\"\naction = \"allow\"\nprotocol = \"udp\"\ndestination_port = 9\n";

/// Starts ours with a polled port for each of these weights. Such a port may send only from its own MAC and IP
/// addresses, and its frames pass one stage. After them come `notified` ports that are notified.
pub fn ours(program: &Path, folder: &Path, core: usize, weights: &[u16], notified: usize) -> Result<Ours> {
    ours_from(program, folder, core, (weights, notified), |n| n)
}

/// The same, where port `n` sends from IP address `address(n)`. Ports are counted from 1.
pub fn ours_from(
    program: &Path,
    folder: &Path,
    core: usize,
    (weights, notified): (&[u16], usize),
    address: impl Fn(usize) -> usize,
) -> Result<Ours> {
    let folder = fresh(folder, if notified == 0 { "ours" } else { "crowded" })?;
    let sockets: Vec<PathBuf> = (0..weights.len() + notified).map(|n| folder.join(format!("port{n}"))).collect();
    let port = |(n, (socket, weight)): (usize, (&PathBuf, &u16))| {
        let (socket, number, address) = (socket.display(), n + 1, address(n + 1));
        format!(
            "[[port]]\nsocket = \"{socket}\"\nmac = \"02:00:00:00:00:{number:02x}\"\nweight = {weight}\n\
             addresses = [\"10.0.0.{address}\"]\ntx = [\"discard\"]\n"
        )
    };
    let ports: String = sockets.iter().zip(weights).enumerate().map(port).collect();
    let others = sockets.iter().skip(weights.len());
    let others = others.map(|socket| format!("[[port]]\nsocket = \"{}\"\nrequests = \"notify\"\n", socket.display()));
    fs::write(folder.join("config"), format!("{STAGE}{ports}{}", others.collect::<String>()))?;
    let mut command = tools::dying_with_us(program);
    command.arg("--json").arg("--config").arg(folder.join("config")).args(["--core", &core.to_string()]);
    command.stdout(Stdio::piped());
    let mut process = Process::start(command, folder.join("words"))?;
    process.until_there(&sockets).context("sidecore-vhost")?;
    Ok(Ours { process, sockets })
}

impl Ours {
    /// Ends it. Returns its counters, with the members `engine` and `ports`.
    pub fn end(mut self) -> Result<Value> {
        let number = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw).context("no such process number")?;
        kill_process(number, Signal::TERM)?;
        let mut text = String::new();
        self.process.child.stdout.take().context("no output")?.read_to_string(&mut text)?;
        serde_json::from_str(text.trim()).with_context(|| format!("sidecore-vhost said {text:?}"))
    }
}

/// DPDK's testpmd between two net_vhost ports.
pub struct Testpmd {
    /// The process.
    pub process: Process,
    /// Its ports.
    pub sockets: Vec<PathBuf>,
}

impl Testpmd {
    /// Starts it. It forwards on the second processor.
    pub fn start(folder: &Path, cores: [usize; 2], huge: bool) -> Result<Self> {
        let folder = fresh(folder, "testpmd")?;
        let sockets: Vec<PathBuf> = (0..2).map(|n| folder.join(format!("port{n}"))).collect();
        let mut command = tools::testpmd();
        command.args(["--lcores", &format!("0@{},1@{}", cores[0], cores[1])]);
        command.args(if huge { &["--in-memory"][..] } else { &["--no-huge", "--no-shconf"] }).args(["-m", "256"]);
        for (n, socket) in sockets.iter().enumerate() {
            command.arg(format!("--vdev=net_vhost{n},iface={}", socket.display()));
        }
        command.args(["--", "--auto-start", "--forward-mode=mac", "--nb-cores=1", "--total-num-mbufs=32768"]);
        command.args(["--eth-peer=0,02:00:00:00:00:01", "--eth-peer=1,02:00:00:00:00:02"]);
        command.stdout(Stdio::null());
        let mut process = Process::start(command, folder.join("words"))?;
        process.until_there(&sockets).context("testpmd")?;
        Ok(Self { process, sockets })
    }
}

/// testpmd on the guests' processor, with a virtio-user port at each of a switch's two ports. It forwards after a
/// command.
pub struct VirtioUser {
    /// The process.
    pub process: Process,
    /// The files with its standard output and its standard error.
    pub said: [PathBuf; 2],
}

impl VirtioUser {
    /// Starts it at the switch with this name. Frames have the source address 10.0.0.1, and the MAC address of their
    /// port.
    pub fn start(folder: &Path, name: &str, core: usize, sockets: &[PathBuf], huge: bool) -> Result<Self> {
        let folder = fresh(folder, &format!("virtio-user-{name}"))?;
        let said = ["output", "words"].map(|file| folder.join(file));
        let mut command = tools::testpmd();
        command.args(["--lcores", &format!("(0,1)@{core}"), "--log-level=pmd.net.virtio.init:debug", "-m", "128"]);
        let memory = if huge { ["--in-memory", "--single-file-segments"] } else { ["--no-huge", "--no-shconf"] };
        command.args(memory);
        for (n, socket) in sockets.iter().enumerate() {
            let mac = format!("mac=02:00:00:00:00:{:02x}", n + 1);
            command.arg(format!("--vdev=virtio_user{n},path={},{mac},queue_size=1024", socket.display()));
        }
        command.args(["--", "-i", "--forward-mode=io", "--txpkts=60", "--tx-ip=10.0.0.1,10.0.0.2"]);
        command.args(["--record-core-cycles", "--total-num-mbufs=16384", "--rxd=1024", "--txd=1024"]);
        command.args(["--eth-peer=0,02:00:00:00:00:02", "--eth-peer=1,02:00:00:00:00:01"]);
        command.stdout(File::create(&said[0])?);
        Ok(Self { process: Process::start(command, said[1].clone())?, said })
    }
}

/// Open vSwitch with DPDK, one bridge that learns.
pub struct Open {
    /// The switch's process.
    pub process: Process,
    /// Its ports.
    pub sockets: Vec<PathBuf>,
    _database: Process,
}

impl Open {
    /// Starts it. It polls on the second processor.
    pub fn start(folder: &Path, cores: [usize; 2], huge: bool) -> Result<Self> {
        let folder = fresh(folder, "ovs")?;
        let at_home = |command: &mut Command| {
            for variable in ["OVS_RUNDIR", "OVS_DBDIR", "OVS_SYSCONFDIR", "OVS_LOGDIR"] {
                command.env(variable, &folder);
            }
            command.env("OVS_PKGDATADIR", crate::paths::peers().join("usr/share/openvswitch"));
        };
        let schema = crate::paths::peers().join("usr/share/openvswitch/vswitch.ovsschema");
        let mut create = tools::peer("usr/bin/ovsdb-tool");
        at_home(&mut create);
        tools::quietly(create.arg("create").arg(folder.join("conf.db")).arg(schema), "ovsdb-tool create")?;

        let socket = folder.join("db.sock");
        let mut database = tools::peer("usr/sbin/ovsdb-server");
        at_home(&mut database);
        database.arg(folder.join("conf.db")).arg(format!("--remote=punix:{}", socket.display()));
        database.arg(format!("--unixctl={}", folder.join("db.ctl").display())).stdout(Stdio::null());
        let mut database = Process::start(database, folder.join("database"))?;
        database.until_there(std::slice::from_ref(&socket)).context("ovsdb-server")?;

        let set = |arguments: &[&str]| {
            let mut command = tools::peer("usr/bin/ovs-vsctl");
            at_home(&mut command);
            command.arg(format!("--db=unix:{}", socket.display())).args(["--no-wait", "--timeout=30"]).args(arguments);
            tools::quietly(&mut command, "ovs-vsctl").map(drop)
        };
        let memory = if huge { "-m 1024" } else { "--no-huge --legacy-mem --no-shconf -m 1024" };
        set(&["init"])?;
        set(&[
            "set",
            "Open_vSwitch",
            ".",
            "other_config:dpdk-init=true",
            "other_config:vhost-sock-dir=.",
            &format!("other_config:dpdk-lcore-mask={:#x}", 1_u64 << cores[0]),
            &format!("other_config:pmd-cpu-mask={:#x}", 1_u64 << cores[1]),
            &format!("other_config:dpdk-extra=-d librte_mempool_ring.so.25 --no-telemetry --no-pci {memory}"),
        ])?;
        set(&["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"])?;
        for port in ["port0", "port1"] {
            set(&["add-port", "br0", port, "--", "set", "Interface", port, "type=dpdkvhostuser"])?;
        }

        let sockets: Vec<PathBuf> = (0..2).map(|n| folder.join(format!("port{n}"))).collect();
        let switch = tools::peer("usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk");
        let mut command = Command::new("unshare");
        if !geteuid().is_root() {
            command.arg("--map-root-user");
        }
        command.args(["--net", "--"]).arg(switch.get_program()).args(switch.get_args());
        at_home(&mut command);
        command.arg(format!("unix:{}", socket.display()));
        command.arg(format!("--unixctl={}", folder.join("switch.ctl").display())).stdout(Stdio::null());
        let mut process = Process::start(command, folder.join("words"))?;
        process.until_there(&sockets).context("ovs-vswitchd")?;
        Ok(Self { process, sockets, _database: database })
    }
}
