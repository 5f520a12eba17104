//! `cargo mk bench block`: disks of sidecore-vhost against QEMU's storage daemon and a bare copy loop. Each has one core.
//! `tools/block-bench` reads from all of them by libblkio in the same run. Every figure stands next to its aim.

use std::env;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::peers::Process;
use super::results::{against, apart, by_distance, contestant, number};
use super::table::{Aim, Table};
use super::two_processors;
use crate::emulator::vhost::build;
use crate::{callgrind, fetch, tools, ui};

/// MiB of each disk.
const MIB: u64 = 64;
/// Requests in flight, and requests of a batch whose instructions are counted.
const DEPTH: u64 = 32;
/// Requests whose instructions are counted.
const COUNTED: u64 = 1000 * DEPTH;
/// Percent by which two counts of the same may differ.
const SETTLED: f64 = 2.0;
/// Milliseconds for which the front-end stays without requests, to count what a turn without requests takes.
const HOLD: u64 = 1000;
/// Rounds, and milliseconds of each turn.
const SHORT: (u64, u64) = (7, 300);
const FULL: (u64, u64) = (25, 1000);

/// SPDK's vhost and its script, in the folder in which it is built.
const SPDK_VHOST: &str = "build/bin/vhost";
const SPDK_RPC: &str = "scripts/rpc.py";

/// The programs and the folder of a contest.
struct Contest {
    folder: PathBuf,
    /// In memory, for the daemon's second disk.
    memory: PathBuf,
    vhost: PathBuf,
    bench: PathBuf,
    cores: [usize; 2],
}

impl Drop for Contest {
    fn drop(&mut self) {
        // Sockets, logs and the disk of this run; nothing is lost if they stay.
        let _ = fs::remove_dir_all(&self.folder);
        let _ = fs::remove_file(&self.memory);
    }
}

/// What was counted of a back-end. Only of ours there is more than the instructions.
#[derive(Default)]
struct Counted {
    instructions: u64,
    /// Those in the copy routine.
    copies: u64,
    reads: f64,
    /// Turns of the engine without a request while the disk was attached, and while it was not.
    idle: f64,
    idle_apart: f64,
}

/// A back-end, and how it is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// sidecore-vhost with a RAM disk.
    Ours,
    /// The bare copy loop.
    Floor,
    /// QEMU's storage daemon with a disk that has no contents.
    Null,
    /// The same with a file in memory.
    Memory,
    /// SPDK's vhost with a RAM disk.
    Spdk,
}

impl Peer {
    const fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Floor => "floor",
            Self::Null => "null-co",
            Self::Memory => "memory file",
            Self::Spdk => "spdk",
        }
    }
}

impl Contest {
    fn socket(&self, peer: Peer) -> PathBuf {
        self.folder.join(peer.name().replace(' ', "-"))
    }

    /// A command that starts a back-end. `counted`: its instructions are to be counted, so it should not poll.
    fn command(&self, peer: Peer, counted: bool) -> Result<Command> {
        let socket = self.socket(peer);
        let bytes = MIB << 20;
        let daemon = |disk: String| {
            let mut command = tools::storage_daemon();
            // While it is measured, the daemon polls as the others do. Waiting for a kick would only cost it.
            let poll = if counted { 0 } else { 1_000_000_000 };
            command.args(["--object", &format!("iothread,id=io,poll-max-ns={poll}"), "--blockdev", &disk]);
            let export = "type=vhost-user-blk,id=export,node-name=disk,writable=on,iothread=io,addr.type=unix";
            command.args(["--export", &format!("{export},addr.path={}", socket.display())]);
            command
        };
        Ok(match peer {
            Peer::Ours => {
                let config = self.folder.join("config");
                fs::write(&config, format!("[[disk]]\nsocket = {socket:?}\nsize = \"{MIB}M\"\n"))?;
                let mut command = Command::new(&self.vhost);
                command.arg("--json").arg("--config").arg(config);
                if !counted {
                    command.args(["--core", &self.cores[1].to_string()]);
                }
                command
            }
            Peer::Floor => {
                let mut command = Command::new(&self.bench);
                command.arg("floor").arg("--socket").arg(socket);
                command.args(["--bytes", &bytes.to_string(), "--core", &self.cores[1].to_string()]);
                command
            }
            Peer::Null => daemon(format!("driver=null-co,node-name=disk,size={bytes},read-zeroes=on")),
            Peer::Memory => daemon(format!("driver=file,node-name=disk,filename={}", self.memory.display())),
            Peer::Spdk => bail!("started by its own script"),
        })
    }

    /// Starts a back-end on the second processor.
    fn start(&self, peer: Peer) -> Result<Process> {
        let command = self.command(peer, false)?;
        let mut pinned = tools::dying_with_us(Path::new("/usr/bin/taskset"));
        pinned.args(["--cpu-list", &self.cores[1].to_string()]).arg(command.get_program()).args(command.get_args());
        pinned.stdout(Stdio::null());
        let mut process = Process::start(pinned, self.folder.join(format!("{}.words", peer.name())))?;
        process.until_there(&[self.socket(peer)]).with_context(|| peer.name())?;
        Ok(process)
    }

    /// Runs block-bench. Returns what it printed.
    fn bench(&self, arguments: &[String]) -> Result<String> {
        let output =
            tools::dying_with_us(&self.bench).args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
        let output = output.context("cannot start block-bench")?;
        ensure!(output.status.success(), "block-bench has failed; its words are above");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn throughput(&self, (rounds, milliseconds): (u64, u64)) -> Result<Value> {
        ui::step("bench", "random reads of 4 KiB, 32 in flight: ours, QEMU's storage daemon, and a bare copy loop");
        let mut peers = vec![Peer::Ours, Peer::Floor, Peer::Null, Peer::Memory];
        let mut processes: Vec<Process> = peers.iter().map(|peer| self.start(*peer)).collect::<Result<_>>()?;
        match spdk_folder()? {
            Some(folder) => {
                processes.push(self.spdk(&folder)?);
                peers.push(Peer::Spdk);
            }
            None => ui::step("bench", "without SPDK's vhost: SIDECORE_SPDK=FOLDER names a folder in which it is built"),
        }
        // A RAM disk that was never written is one page of zeroes.
        let ours = self.socket(Peer::Ours).display().to_string();
        self.bench(&["verify".to_owned(), format!("--socket={ours}"), "--rounds=1".to_owned()])?;
        self.bench(&["fill".to_owned(), format!("--socket={ours}")])?;
        let mut arguments = vec!["measure".to_owned()];
        for (peer, process) in peers.iter().zip(&processes) {
            arguments.push(format!("--disk={},{},{}", peer.name(), process.id(), self.socket(*peer).display()));
        }
        let numbers = [("depth", DEPTH), ("rounds", rounds), ("milliseconds", milliseconds)];
        arguments.extend(numbers.map(|(name, number)| format!("--{name}={number}")));
        arguments.extend([format!("--core={}", self.cores[0]), format!("--disk-core={}", self.cores[1])]);
        let said = self.bench(&arguments)?;
        serde_json::from_str(&said).with_context(|| format!("block-bench said {said:?}"))
    }

    /// Starts SPDK's vhost with a RAM disk, by its program and its script `rpc.py`.
    fn spdk(&self, spdk: &Path) -> Result<Process> {
        let mut command = tools::dying_with_us(&spdk.join(SPDK_VHOST));
        command.args(["-m", &format!("{:#x}", 1_u64 << self.cores[1]), "-S"]).arg(&self.folder);
        let rpc = self.folder.join("rpc");
        command.arg("-r").arg(&rpc).stdout(Stdio::null());
        let mut process = Process::start(command, self.folder.join("spdk.words"))?;
        process.until_there(std::slice::from_ref(&rpc)).context("SPDK's vhost")?;
        for words in [
            &["bdev_malloc_create", "-b", "disk", &MIB.to_string(), "512"][..],
            &["vhost_create_blk_controller", "spdk", "disk"],
        ] {
            let mut command = Command::new(spdk.join(SPDK_RPC));
            tools::quietly(command.arg("-s").arg(&rpc).args(words), "rpc.py")?;
        }
        process.until_there(&[self.socket(Peer::Spdk)]).context("SPDK's vhost")?;
        Ok(process)
    }

    /// Counts the instructions of a back-end in user space, set-up included. `load`: how many reads a front-end makes, in
    /// batches, and for how many milliseconds it stays then.
    fn counted(&self, peer: Peer, load: Option<(u64, u64)>) -> Result<Counted> {
        let socket = self.socket(peer);
        // The socket of an earlier back-end.
        let _ = fs::remove_file(&socket);
        let command = self.command(peer, true)?;
        let (output, words) = (self.folder.join("counted"), self.folder.join("callgrind.words"));
        let only = (peer == Peer::Ours).then_some("sidecore_vhost::server::turn*");
        let mut valgrind = callgrind::around(&command, only)?;
        valgrind.command.stdout(File::create(&output)?);
        let mut process = Process::start(valgrind.command, words.clone())?;
        process.until_there(std::slice::from_ref(&socket)).with_context(|| peer.name())?;
        match load {
            Some((requests, hold)) => {
                let id = u64::from(process.id());
                let numbers = [("requests", requests), ("depth", DEPTH), ("hold", hold), ("process", id)];
                let numbers = numbers.map(|(name, number)| format!("--{name}={number}"));
                self.bench(&[&["count".to_owned(), format!("--socket={}", socket.display())], &numbers[..]].concat())?;
            }
            None => thread::sleep(Duration::from_millis(HOLD)),
        }
        process.terminate()?;
        let said = fs::read_to_string(&words)?;
        let instructions =
            callgrind::collected(&said).with_context(|| format!("callgrind has counted nothing:\n{said}"))?;
        let copies = callgrind::within(&fs::read_to_string(&valgrind.profile)?, "sidecore_copy_");
        if peer != Peer::Ours {
            return Ok(Counted { instructions, ..Counted::default() });
        }
        let text = fs::read_to_string(&output)?;
        let counters: Value = serde_json::from_str(text.lines().last().unwrap_or_default())
            .with_context(|| format!("sidecore-vhost said {text:?}"))?;
        let (engine, disk) = (&counters["engine"], &counters["disks"][0]);
        let idle = number(disk, "attached_turns")? - number(engine, "busy_turns")?;
        let idle_apart = number(engine, "idle_turns")? - idle;
        Ok(Counted { instructions, copies, reads: number(disk, "reads")?, idle, idle_apart })
    }

    /// Instructions of QEMU's storage daemon for a read, counted twice.
    fn theirs(&self, peer: Peer) -> Result<[f64; 2]> {
        let run =
            |quarters: u64| Ok::<_, anyhow::Error>(self.counted(peer, Some((quarters * COUNTED / 4, 0)))?.instructions);
        let [few, more, most]: [u64; 3] = [run(1)?, run(2)?, run(3)?];
        Ok([(few, more), (more, most)].map(|(few, many)| many.saturating_sub(few) as f64 / (COUNTED / 4) as f64))
    }

    /// Instructions of our engine for a read, counted twice: outside the copy routine, and in it. Turns without a request are left out.
    /// A run without a front-end, and one with a front-end that asks nothing, say what these turns take.
    fn ours(&self) -> Result<[(f64, f64); 2]> {
        let apart = self.counted(Peer::Ours, None)?;
        let turn_apart = apart.instructions as f64 / apart.idle_apart;
        let idle = self.counted(Peer::Ours, Some((0, HOLD)))?;
        let turn = (idle.instructions as f64 - turn_apart * idle.idle_apart) / idle.idle;
        let count = || {
            let all = self.counted(Peer::Ours, Some((COUNTED, 0)))?;
            ensure!(all.reads >= COUNTED as f64, "{} reads: expected {COUNTED}", all.reads);
            let outside = (all.instructions - all.copies) as f64 - turn_apart * all.idle_apart - turn * all.idle;
            Ok::<_, anyhow::Error>((outside / all.reads, all.copies as f64 / all.reads))
        };
        Ok([count()?, count()?])
    }
}

/// Measures and prints the figures. Returns the results as JSON.
pub fn run(full: bool, only_count: bool) -> Result<Value> {
    // Before anything that takes time.
    spdk_folder()?;
    fetch::ensure(false)?;
    fetch::ensure_storage_daemon()?;
    let cores = two_processors(&tools::processors()?)?;
    let (vhost, bench) = (build("sidecore-vhost")?, build("block-bench")?);
    let folder = env::temp_dir().join(format!("sidecore-disks-{}", std::process::id()));
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let memory = PathBuf::from(format!("/dev/shm/sidecore-disks-{}", std::process::id()));
    let contest = Contest { folder, memory, vhost, bench, cores };
    let mut file = File::create(&contest.memory).context("cannot create a file in /dev/shm")?;
    (0..MIB).try_for_each(|n| file.write_all(&vec![n as u8 + 1; 1 << 20]))?;

    let mut table = Table::default();
    ui::step("bench", "instructions for a read, by callgrind: ours, QEMU's storage daemon");
    let [(outside, copies), (again, _)] = contest.ours()?;
    let theirs = [Peer::Null, Peer::Memory].map(|peer| contest.theirs(peer));
    let [null, memory_file] = theirs;
    let (null, memory_file) = (null?, memory_file?);
    for (name, counts) in [("ours", [outside, again]), ("null-co", null), ("memory file", memory_file)] {
        settled(&mut table, name, counts);
    }
    let ([null, _], [memory_file, _]) = (null, memory_file);
    table.note(&format!("instructions for a read, ours: {outside:.0} outside the copy routine, {copies:.0} in it"));
    table.note(&format!("instructions for a read, storage daemon over null-co: {null:.0}, zeroing included"));
    table.note(&format!("instructions for a read, storage daemon over a file: {memory_file:.0}, without the kernel's"));
    table.figure("instructions for a read, ours, batches of 32, outside the copy", outside, "", Aim::AtMost(250.0));
    let counts = json!({ "ours": outside, "copy": copies, "null_co": null, "memory_file": memory_file });
    let mut measured = Value::Null;
    if !only_count {
        measured = contest.throughput(if full { FULL } else { SHORT })?;
        rates(&mut table, &measured)?;
    }
    print!("{table}");
    Ok(json!({ "bench": "block", "instructions": counts, "throughput": measured, "figures": table.to_json() }))
}

/// The folder in which SPDK is built, if the user has one.
fn spdk_folder() -> Result<Option<PathBuf>> {
    let Some(folder) = env::var_os("SIDECORE_SPDK").map(PathBuf::from) else { return Ok(None) };
    check_spdk(&folder)?;
    Ok(Some(folder))
}

/// Checks that a folder has what is started of SPDK.
fn check_spdk(folder: &Path) -> Result<()> {
    for file in [SPDK_VHOST, SPDK_RPC] {
        ensure!(
            folder.join(file).is_file(),
            "SIDECORE_SPDK={}: there is no {file}; expected a folder in which SPDK is built (./configure && make)",
            folder.display()
        );
    }
    Ok(())
}

/// Says how far two counts of the same are apart.
fn settled(table: &mut Table, name: &str, [first, second]: [f64; 2]) {
    let apart = 100.0 * (second - first).abs() / first.max(1.0);
    let word = if apart <= SETTLED { "settled" } else { "NOT settled" };
    table.note(&format!(
        "instructions for a read, {name}, counted twice: {first:.0} and {second:.0}, {word} ({apart:.1} %)"
    ));
}

fn rates(table: &mut Table, result: &Value) -> Result<()> {
    let ours = contestant(result, "ours").context("no result of ours")?;
    for one in result["contestants"].as_array().into_iter().flatten() {
        table.note(&format!(
            "4 KiB reads, {:<12} p50 {:>8.0}  p95 {:>8.0} thousand a second; libblkio waits for {:>3.0} % of the time",
            one["name"].as_str().unwrap_or("?"),
            number(one, "p50")? / 1e3,
            number(one, "p95")? / 1e3,
            number(one, "waited")? * 100.0,
        ));
    }
    apart(table, "4 KiB reads", result);
    by_distance(table, "4 KiB reads", result, ours);
    for (name, what, aim) in [
        ("null-co", "QEMU's storage daemon over null-co", 2.0),
        ("memory file", "QEMU's storage daemon over a memory file", 4.0),
        ("floor", "a bare copy loop", 0.8),
    ] {
        let what = format!("4 KiB reads: ours against {what}, median of rounds");
        against(table, result, ours, name, (&what, aim));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_spdk_is_refused_with_what_is_missing() {
        let folder = env::temp_dir().join(format!("sidecore-spdk-{}", std::process::id()));
        fs::create_dir_all(folder.join("build/bin")).unwrap();
        let error = check_spdk(&folder).unwrap_err().to_string();
        assert!(error.contains(&folder.display().to_string()) && error.contains("no build/bin/vhost"), "{error}");
        fs::write(folder.join(SPDK_VHOST), "").unwrap();
        let error = check_spdk(&folder).unwrap_err().to_string();
        assert!(error.contains("no scripts/rpc.py"), "{error}");
        fs::create_dir_all(folder.join("scripts")).unwrap();
        fs::write(folder.join(SPDK_RPC), "").unwrap();
        assert!(check_spdk(&folder).is_ok());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn counts_that_differ_by_more_than_two_percent_are_called_so() {
        let said = |counts| {
            let mut table = Table::default();
            settled(&mut table, "ours", counts);
            table.to_string()
        };
        assert!(said([1000.0, 1019.0]).contains(", settled (1.9 %)"));
        assert!(said([1000.0, 979.0]).contains("NOT settled (2.1 %)"));
    }
}
