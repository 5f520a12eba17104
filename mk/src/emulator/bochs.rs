//! Bochs: a platform with VT-x on machines without that hardware.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use scenarios::setup::Feature;

use super::process::{Process, Run};
use crate::{paths, tools};

/// A processor with EPT, VPID, unrestricted guest and posted interrupts.
const MODEL: &str = "corei7_skylake_x";

type Started = (Process, Box<dyn Read + Send>, Box<dyn Write + Send>);

/// Starts Bochs. COM1 is a file, or a TCP port of ours if somebody types. Returns both directions of COM2, which Bochs connects to a
/// TCP port of ours.
pub fn start(run: &Run<'_>) -> Result<Started> {
    let listen = || TcpListener::bind(("127.0.0.1", 0));
    let (com2, com1) = (listen()?, run.setup.typed.then(listen).transpose()?);
    let at =
        |listener: &TcpListener| anyhow::Ok(format!("socket-client, dev=127.0.0.1:{}", listener.local_addr()?.port()));
    let file = format!("file, dev={}/com1", run.folder.display());
    let com1_at = com1.as_ref().map_or(Ok(file), at)?;
    let configuration = run.folder.join("bochsrc");
    fs::write(&configuration, bochsrc(run, &com1_at, &at(&com2)?))?;
    let tree = paths::tree();
    let mut command = tools::program("usr/bin/bochs-bin");
    command.args(["-q", "-f"]).arg(&configuration);
    command.env("LTDL_LIBRARY_PATH", tree.join("usr/lib/x86_64-linux-gnu/bochs/plugins"));
    command.env("BXSHARE", tree.join("usr/share/bochs")).current_dir(run.folder);
    let record = run.setup.record_exits.then(|| (run.folder.join("bochs.log"), "VMEXIT reason = "));
    let mut process = Process::start(&mut command, run, record)?;
    if let Some(com1) = com1 {
        let stream = accept(&com1, &mut process, run)?;
        process.connect_com1(stream.try_clone()?, stream)?;
    }
    let stream = accept(&com2, &mut process, run)?;
    Ok((process, Box::new(stream.try_clone()?), Box::new(stream)))
}

/// Waits until Bochs has connected.
fn accept(listener: &TcpListener, process: &mut Process, run: &Run<'_>) -> Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + Duration::from_secs(30);
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return Err(error.into()),
            Err(_) if process.child.try_wait()?.is_some() || Instant::now() > deadline => {
                let words = fs::read_to_string(run.folder.join("bochs.log")).unwrap_or_default();
                bail!("Bochs did not start:\n{words}");
            }
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    };
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Bochs's configuration. `com1`, `com2`: the UARTs' modes and devices.
fn bochsrc(run: &Run<'_>, com1: &str, com2: &str) -> String {
    let Run { setup, folder, disc, .. } = run;
    let share = paths::tree().join("usr/share");
    let share = share.display();
    let folder = folder.display();
    let without = if setup.lacks == Some(Feature::Virtualization) { ", exclude_features=vmx" } else { "" };
    // Bochs names them by hexadecimal numbers.
    let each_cpu = |action| (0..setup.cpus).map(|cpu| format!(", cpu{cpu:x}={action}")).collect::<String>();
    let record = if setup.record_exits { each_cpu("report") } else { String::new() };
    // Bochs would log a line at each entry into a guest with a virtual APIC.
    let silent = each_cpu("ignore");
    // ignore_bad_msrs=1: Bochs's CPUID has MCA, but Bochs has no IA32_MCG_CAP (0x179) and would raise #GP when sidecore reads
    // it. It is the only one.
    format!(
        "display_library: rfb, options=\"timeout=0, no_gui_console\"\n\
         panic: action=fatal\nerror: action=ignore\ninfo: action=report{silent}\ndebug: action=ignore{record}\n\
         log: {folder}/bochs.log\n\
         cpu: model={MODEL}{without}, count={}, ips=100000000, quantum=32, reset_on_triple_fault=0, ignore_bad_msrs=1\n\
         memory: guest={}, host={}\n\
         clock: sync=none\n\
         romimage: file={share}/bochs/BIOS-bochs-latest\n\
         vgaromimage: file={share}/bochs/VGABIOS-lgpl-latest\n\
         pci: enabled=1, chipset=i440fx\n\
         ata0-master: type=cdrom, path={}, status=inserted\n\
         boot: cdrom\n\
         com1: enabled=1, mode={com1}\n\
         com2: enabled=1, mode={com2}\n\
         sound: driver=dummy\nspeaker: enabled=0\nport_e9_hack: enabled=0\n",
        setup.cpus,
        setup.memory_mib,
        setup.memory_mib,
        disc.display(),
    )
}
