//! QEMU: with its own translator (SVM), or with KVM where the host's virtualization nests.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use scenarios::setup::{Feature, HOST_ADDRESS, Iommu, Medium, SECOND_HOST_ADDRESS, Setup, Uarts, Uplink};

use super::monitor::Monitor;
use super::process::{Process, Run, SocketPath};
use super::shared_line::{Commands, Records};
use super::{boot_network, nic, nvme, virtio_disk};
use crate::{paths, tools};

/// The port that ends QEMU when written (isa-debug-exit). sidecore on QEMU writes to it last.
const EXIT_PORT: &str = "isa-debug-exit,iobase=0xf4,iosize=0x04";

/// Addresses of the hypervisor's image where GRUB puts it on an emulated machine with BIOS, and many more after it.
const IMAGE: &str = "0x200000+0x2000000";

type Started = (Process, Box<dyn Read + Send>, Box<dyn Write + Send>);

/// A command that starts QEMU with the path of its files.
pub fn command() -> Command {
    let mut command = tools::program("usr/bin/qemu-system-x86_64");
    command.arg("-L").arg(paths::tree().join("usr/share/qemu"));
    command.arg("-L").arg(paths::tree().join("usr/share/seabios"));
    command
}

/// Starts QEMU. COM1 is a file, or the socket `console`. Returns both directions of COM2.
pub fn start(run: &Run<'_>, kvm: bool, console: Option<&Path>) -> Result<Started> {
    let setup = run.setup;
    let [socket, monitor] = ["com2", "monitor"].map(SocketPath::new);
    let listen =
        |at: &SocketPath| UnixListener::bind(&at.0).with_context(|| format!("cannot listen on {}", at.0.display()));
    let (listener, monitor_listener) = (listen(&socket)?, listen(&monitor)?);
    let typed = (setup.typed || setup.uarts == Uarts::One).then(|| SocketPath::new("com1"));
    let typed_listener = typed.as_ref().map(listen).transpose()?;
    let console = console.or(typed.as_ref().map(|path| path.0.as_path()));
    let com1 = run.folder.join("com1").display().to_string();

    let mut command = command();
    let accelerator = match (kvm, setup.logs_instructions) {
        (true, _) => "kvm",
        (false, false) => "tcg",
        (false, true) => "tcg,one-insn-per-tb=on",
    };
    machine(&mut command, setup, accelerator, if kvm { "host" } else { "max" });
    if let Some(iommu) = setup.iommu {
        add_iommu(&mut command, iommu);
    }
    if setup.bmc {
        command.args(["-device", "ipmi-bmc-sim,id=bmc", "-device", "isa-ipmi-kcs,bmc=bmc,ioport=0xca2"]);
    }
    if setup.tco {
        command.args(["-global", "ICH9-LPC.noreboot=off", "-trace", "tco_timer_expired"]);
    }
    if setup.logs_instructions {
        command.args(["-dfilter", IMAGE, "-D"]).arg(run.folder.join("executed"));
    }
    boot_from(&mut command, run)?;
    let first = match console {
        // QEMU's log has a byte twice if the socket was full. So whoever types keeps what comes out.
        Some(path) if typed.is_some() => format!("socket,id=com1,path={}", path.display()),
        Some(path) => format!("socket,id=com1,path={},logfile={com1}", path.display()),
        None => format!("file,id=com1,path={com1}"),
    };
    command.args(["-chardev", &first]);
    let uarts: &[&str] = match setup.uarts {
        Uarts::Two => &["com1", "com2"],
        Uarts::Swapped => &["com2", "com1"],
        Uarts::One => &["com1"],
        Uarts::None | Uarts::Pci => &[],
    };
    if setup.uarts != Uarts::One {
        command.args(["-chardev", &format!("socket,id=com2,path={}", socket.0.display())]);
    }
    for uart in uarts {
        command.args(["-serial", &format!("chardev:{uart}")]);
    }
    if setup.uarts == Uarts::Pci {
        command.args([
            "-device",
            "pci-serial,chardev=com1,addr=0x15",
            "-device",
            "isa-serial,chardev=com2,iobase=0x2f8,irq=3",
        ]);
    }
    if let Some(table) = &setup.acpi_table {
        let file = run.folder.join("acpi-table");
        fs::write(&file, table).with_context(|| format!("cannot write {}", file.display()))?;
        command.args(["-acpitable", &format!("file={}", file.display())]);
    }
    if setup.store {
        let file = run.folder.join("store").display().to_string();
        command.args(["-object", &format!("memory-backend-file,id=store,mem-path={file},size=64K,share=on")]);
        command.args(["-device", "acpi-erst,memdev=store"]);
    }
    if setup.post_codes {
        let file = run.folder.join("post");
        command.args(["-chardev", &format!("file,id=post,path={}", file.display())]);
        command.args(["-device", "isa-debugcon,iobase=0x80,chardev=post"]);
    }
    if !run.nics.is_empty() {
        nic::connect(&mut command, run.nics, setup.memory_mib);
    }
    for (n, ((own, device), host)) in run.wires.iter().zip([SECOND_HOST_ADDRESS, HOST_ADDRESS]).enumerate() {
        if setup.uplink == Uplink::Igb {
            nic::igb(&mut command, n, [&own.0, device]);
        } else {
            nic::answer(&mut command, n, [&own.0, device], host);
        }
    }
    let first = (HOST_ADDRESS, "");
    let uplinks: &[(&str, &str)] = match setup.uplink {
        Uplink::Virtio => &[first],
        Uplink::TwoVirtio => &[(HOST_ADDRESS, ",addr=0x11"), (SECOND_HOST_ADDRESS, ",addr=0x10")],
        Uplink::Igb => &[(SECOND_HOST_ADDRESS, ",addr=0x11")],
        Uplink::None | Uplink::X520 | Uplink::X520Backplane | Uplink::TwoX520 => &[],
    };
    for (n, (host, at)) in uplinks.iter().enumerate() {
        let net = host.trim_end_matches("254");
        let mut user = format!("user,id=up{n},net={net}0/24,host={host},dhcpstart={net}200");
        if n == 0 {
            for (port, guest, to) in &setup.forwards {
                user += &format!(",hostfwd=tcp:127.0.0.1:{port}-{guest}:{to}");
            }
        }
        command.args(["-netdev", &user]);
        // Otherwise a virtio device goes round the IOMMU.
        let behind = if setup.iommu.is_some() { ",iommu_platform=on" } else { "" };
        command.args(["-device", &format!("virtio-net-pci,netdev=up{n},disable-legacy=on{behind}{at}")]);
    }
    command.args(["-chardev", &format!("socket,id=monitor,path={}", monitor.0.display())]);
    command.args(["-mon", "chardev=monitor,mode=control"]);
    if setup.idle_usb {
        command.args(["-device", "qemu-xhci,id=usb", "-device", "usb-kbd,bus=usb.0", "-device", "usb-ehci,addr=0x16"]);
        command.args(["-device", "piix3-usb-uhci,addr=0x17"]);
    }
    nvme::add(&mut command, run.folder, setup)?;
    virtio_disk::add(&mut command, run.folder, setup)?;
    let record = setup.record_exits.then(|| run.folder.join("exits"));
    if let Some(path) = &record {
        // Nothing runs in this address range, so only the lines about entries and exits remain.
        command.args(["-d", "in_asm", "-dfilter", "0xffff0000deadb000+1", "-D"]).arg(path);
    }
    let mut process = Process::start(&mut command, run, record.map(|path| (path, "vmrun!")))?;

    let words = run.folder.join("emulator");
    let com2 = if setup.uarts == Uarts::One { None } else { Some(accept(&listener, &mut process, &words)?) };
    process.monitor = Some(Monitor::new(accept(&monitor_listener, &mut process, &words)?)?);
    let com1 = typed_listener.map(|listener| accept(&listener, &mut process, &words)).transpose()?;
    match (com2, com1) {
        (Some(com2), com1) => {
            if let Some(com1) = com1 {
                process.connect_com1(com1.try_clone()?, com1)?;
            }
            Ok((process, Box::new(com2.try_clone()?), Box::new(com2)))
        }
        (None, Some(com1)) => {
            let file = fs::File::create(&process.com1)?;
            process.typed = Some(Box::new(com1.try_clone()?));
            Ok((process, Box::new(Records::new(com1.try_clone()?, file)), Box::new(Commands(com1))))
        }
        (None, None) => bail!("a machine without any UART"),
    }
}

/// Gives QEMU the processors and the memory of a setup, and the devices that every setup has.
pub fn machine(command: &mut Command, setup: &Setup, accelerator: &str, cpu: &str) {
    let cpu = match setup.lacks {
        None => cpu.to_owned(),
        // Whichever the processor has.
        Some(Feature::Virtualization) => format!("{cpu},svm=off,vmx=off"),
        Some(Feature::X2apic) => format!("{cpu},x2apic=off"),
        Some(Feature::LongMode) => format!("{cpu},lm=off"),
    };
    // Family and model of a Sapphire Rapids. QEMU gives a machine check to all processors only from family 6 model 14 on.
    let cpu = if setup.says_intel { format!("{cpu},vendor=GenuineIntel,family=6,model=143") } else { cpu };
    command.args(["-M", "q35", "-accel", accelerator, "-cpu", &cpu]);
    let most = setup.cpus + setup.offline;
    let processors = format!("{},maxcpus={most},sockets={},threads={}", setup.cpus, setup.sockets, setup.threads);
    command.args(["-smp", &processors, "-m", &format!("{}M", setup.memory_mib)]);
    for (node, mib) in setup.nodes.iter().enumerate() {
        let processors = if node == 0 { format!(",cpus=0-{}", most - 1) } else { String::new() };
        command.args(["-object", &format!("memory-backend-ram,id=node{node},size={mib}M")]);
        command.args(["-numa", &format!("node,nodeid={node},memdev=node{node}{processors}")]);
    }
    command.args(["-nic", "none", "-display", "none", "-nodefaults"]);
    command.args(["-vga", if setup.no_screen { "none" } else { "std" }]);
    if setup.after_reset.is_some() {
        command.arg("-no-shutdown");
    } else if !setup.reboots {
        command.arg("-no-reboot");
    }
    command.args(["-device", EXIT_PORT]);
}

/// Gives the machine an IOMMU. QEMU writes among its messages what the unit does, and each access and interrupt that it refuses.
fn add_iommu(command: &mut Command, iommu: Iommu) {
    let (device, events): (_, &[&str]) = match iommu {
        Iommu::IntelNothing | Iommu::IntelIdentity => (
            "intel-iommu,intremap=on",
            &["vtd_dmar_enable", "vtd_ir_enable", "vtd_reg_write_gcmd", "vtd_dmar_fault", "vtd_frr_new"],
        ),
        Iommu::AmdNothing => (
            "amd-iommu,intremap=on",
            &["amdvi_control_status", "amdvi_page_fault", "amdvi_evntlog_fail", "amdvi_ir_err"],
        ),
    };
    command.args(["-device", device]);
    command.args(events.iter().flat_map(|event| ["-trace", event]));
}

/// Gives the machine its medium, and OVMF if it boots by UEFI.
fn boot_from(command: &mut Command, run: &Run<'_>) -> Result<()> {
    let disc = run.disc.display();
    match run.setup.medium {
        Medium::StickUefi
        | Medium::StickUefiKeeps
        | Medium::CdUefi
        | Medium::DiskUefi
        | Medium::NetworkUefi
        | Medium::NetworkHttp
        | Medium::Program => {
            uefi(command, run.folder, "")?;
        }
        Medium::StickSecureBoot => {
            // The variables are protected by system management mode.
            command.args(["-machine", "smm=on", "-global", "driver=cfi.pflash01,property=secure,value=on"]);
            uefi(command, run.folder, ".ms")?;
        }
        Medium::Disc | Medium::StickBios | Medium::NetworkBios => {}
    }
    match run.setup.medium {
        Medium::Disc | Medium::CdUefi => {
            command.args(["-boot", "d", "-cdrom"]).arg(run.disc);
        }
        Medium::StickBios | Medium::StickUefi | Medium::StickUefiKeeps | Medium::StickSecureBoot => {
            command.args(["-drive", &format!("if=none,id=stick,format=raw,file={disc}")]);
            command.args([
                "-device",
                "qemu-xhci,id=sticks",
                "-device",
                "usb-storage,bus=sticks.0,drive=stick,bootindex=0",
            ]);
        }
        Medium::DiskUefi => {
            command.args(["-drive", &format!("if=none,id=disk,format=raw,file={disc}")]);
            command.args(["-device", "ide-hd,drive=disk,bus=ide.0,bootindex=0"]);
        }
        Medium::NetworkBios | Medium::NetworkUefi | Medium::NetworkHttp | Medium::Program => {
            let network = run.setup.network.as_ref().context("a machine that boots by network, and has none")?;
            boot_network::connect(command, network);
            if run.setup.medium.is_http() {
                // As a person does in the setup of firmware that has both: OVMF would try PXE first.
                for version in ["IPv4", "IPv6"] {
                    let option = format!("name=opt/org.tianocore/{version}PXESupport,string=n");
                    command.args(["-fw_cfg", &option]);
                }
            }
        }
    }
    Ok(())
}

/// Gives the machine UEFI firmware (OVMF), with fresh variables in the file `variables` in the folder of its logs. `kind`: empty, or
/// `.ms` for Secure Boot with Microsoft's keys.
pub fn uefi(command: &mut Command, folder: &Path, kind: &str) -> Result<()> {
    let (firmware, variables) = (paths::tree().join("usr/share/OVMF"), folder.join("variables"));
    fs::copy(firmware.join(format!("OVMF_VARS_4M{kind}.fd")), &variables).context("cannot copy OVMF's variables")?;
    let flash =
        |n: u32, file: &Path, more: &str| format!("if=pflash,unit={n},format=raw,file={}{more}", file.display());
    command.args(["-drive", &flash(0, &firmware.join(format!("OVMF_CODE_4M{kind}.fd")), ",readonly=on")]);
    command.args(["-drive", &flash(1, &variables, "")]);
    Ok(())
}

/// Waits until QEMU connects. If it ends instead, the error has its output from the file `words`.
pub fn accept(listener: &UnixListener, process: &mut Process, words: &Path) -> Result<UnixStream> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + Duration::from_secs(20);
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return Err(error.into()),
            Err(_) if process.child.try_wait()?.is_some() || Instant::now() > deadline => {
                bail!("QEMU did not start:\n{}", fs::read_to_string(words).unwrap_or_default());
            }
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    };
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Checks that KVM is here, that it nests, and that it really starts. The error says which of these failed.
pub fn kvm_is_usable() -> Result<()> {
    fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").context("/dev/kvm cannot be used")?;
    let nests = ["kvm_intel", "kvm_amd"].iter().any(|module| {
        fs::read_to_string(format!("/sys/module/{module}/parameters/nested"))
            .is_ok_and(|value| matches!(value.trim(), "Y" | "1"))
    });
    if !nests {
        bail!("KVM does not nest here: load kvm_intel or kvm_amd with nested=1");
    }
    let mut probe = command();
    probe.args(["-M", "none", "-accel", "kvm", "-cpu", "host", "-nodefaults", "-display", "none", "-monitor", "stdio"]);
    let mut child = probe.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    if let Some(mut monitor) = child.stdin.take() {
        // If QEMU has already ended, its status says so.
        let _ = monitor.write_all(b"quit\n");
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(_) => bail!("QEMU cannot use KVM here"),
            None if Instant::now() > deadline => {
                child.kill()?;
                child.wait()?;
                bail!("QEMU with KVM does not answer here");
            }
            None => thread::sleep(Duration::from_millis(20)),
        }
    }
}
