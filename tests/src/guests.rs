//! The guests that scenarios boot, and the sidecore.toml that describes them.

use std::fmt::Write as _;

use crate::setup::{Content, Image, Module, Setup};

/// Words on every Linux guest's command line: console on COM1, only errors on it, a reset after a panic.
pub const BASE_CMDLINE: &str = "console=ttyS0 quiet loglevel=3 panic=-1";

/// Least memory of a guest in MiB: Debian's cloud kernel needs it to unpack itself and the small initramfs.
pub const LEAST_MEMORY_MIB: u32 = 96;

/// A Linux guest whose init does what [`Guest::then`] says.
#[derive(Clone, Debug)]
pub struct Guest {
    name: String,
    /// The guest's number, from 1. Guest 1 has the address 10.0.0.1, and so on.
    number: usize,
    vcpus: u32,
    memory_mib: u32,
    kernel: Content,
    initrd: Content,
    restart: bool,
    waits: bool,
    core: Option<u32>,
    completion: Option<String>,
    requests: Option<String>,
    queues: u16,
    net: String,
    entropy: bool,
    disks: String,
    disks_mib: u32,
    console: Option<String>,
    notify_bar: Option<String>,
    mtu: Option<u16>,
    peer: Option<usize>,
    actions: Vec<String>,
    extra: String,
}

impl Guest {
    /// Guest number `number` (from 1), with one vCPU, busybox only, and nothing to do.
    pub fn new(number: usize) -> Self {
        let letter = char::from(b'a' + u8::try_from(number - 1).expect("there are at most 26 guests"));
        Self {
            name: letter.to_string(),
            number,
            vcpus: 1,
            memory_mib: LEAST_MEMORY_MIB,
            kernel: Content::GuestKernel,
            initrd: Content::SmallInitrd,
            restart: false,
            waits: false,
            core: None,
            completion: None,
            requests: None,
            queues: 1,
            net: String::new(),
            entropy: false,
            disks: String::new(),
            disks_mib: 0,
            console: None,
            notify_bar: None,
            mtu: None,
            peer: None,
            actions: Vec::new(),
            extra: String::new(),
        }
    }

    /// Its name in sidecore.toml: a for number 1, and so on.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address.
    pub fn address(&self) -> String {
        address(self.number)
    }

    /// Sets the number of vCPUs.
    #[must_use]
    pub fn vcpus(self, vcpus: u32) -> Self {
        Self { vcpus, ..self }
    }

    /// Sets the memory in MiB.
    #[must_use]
    pub fn memory_mib(self, memory_mib: u32) -> Self {
        Self { memory_mib, ..self }
    }

    /// Gives it the full initramfs, with iperf3.
    #[must_use]
    pub fn full(self) -> Self {
        Self { initrd: Content::Initrd, memory_mib: self.memory_mib.max(192), ..self }
    }

    /// Starts its kernel as an ELF file, by the PVH entry.
    #[must_use]
    pub fn pvh(self) -> Self {
        Self { kernel: Content::GuestVmlinux, ..self }
    }

    /// Sets its `notify_bar`: where its devices have their notification words.
    #[must_use]
    pub fn notify_bar(self, word: &str) -> Self {
        Self { notify_bar: Some(word.to_owned()), ..self }
    }

    /// Has it started again whenever it ends.
    #[must_use]
    pub fn restarted(self) -> Self {
        Self { restart: true, ..self }
    }

    /// Has it started by a command, not with the server.
    #[must_use]
    pub fn started_later(self) -> Self {
        Self { waits: true, ..self }
    }

    /// Gives it this core.
    #[must_use]
    pub fn core(self, core: u32) -> Self {
        Self { core: Some(core), ..self }
    }

    /// Sets its `completion`.
    #[must_use]
    pub fn completion(self, completion: &str) -> Self {
        Self { completion: Some(completion.to_owned()), ..self }
    }

    /// Sets its `requests`: how the engine learns of its requests.
    #[must_use]
    pub fn requests(self, requests: &str) -> Self {
        Self { requests: Some(requests.to_owned()), ..self }
    }

    /// Sets the number of queue pairs.
    #[must_use]
    pub fn queues(self, queues: u16) -> Self {
        Self { queues, ..self }
    }

    /// Adds this to its `[[guest.net]]`.
    #[must_use]
    pub fn net(mut self, lines: &str) -> Self {
        self.net.push_str(lines);
        self.net.push('\n');
        self
    }

    /// Gives it an entropy device.
    #[must_use]
    pub fn entropy(self) -> Self {
        Self { entropy: true, ..self }
    }

    /// Gives it a RAM disk that takes so many MiB of memory, with these lines in its `[[guest.block]]`.
    #[must_use]
    pub fn disk(mut self, mib: u32, lines: &str) -> Self {
        self.disks += &format!("\n[[guest.block]]\ndisk = \"ram\"\n{lines}");
        self.disks_mib += mib;
        self
    }

    /// Gives it the full initramfs, and the disk with fio and e2fsprogs. Its server needs [`with_tools`].
    #[must_use]
    pub fn with_tools(self) -> Self {
        self.full()
            .disk(0, &format!("module = \"{}\"\nreadonly = true\nserial = \"tools\"\n", module_name(&Content::Tools)))
    }

    /// Gives it a disk of the machine, with these lines in its `[[guest.block]]`.
    #[must_use]
    pub fn machine_disk(mut self, lines: &str) -> Self {
        self.disks += &format!("\n[[guest.block]]\n{lines}");
        self
    }

    /// Gives it a console device with this named port.
    #[must_use]
    pub fn console(self, port: &str) -> Self {
        Self { console: Some(port.to_owned()), ..self }
    }

    /// Sets its MTU in bytes.
    #[must_use]
    pub fn mtu(self, mtu: u16) -> Self {
        Self { mtu: Some(mtu), ..self }
    }

    /// The MAC address of its network device.
    pub fn mac(&self) -> [u8; 6] {
        [0x52, 0x54, 0, 0, 0, self.number as u8]
    }

    /// Sets its peer: the guest that it talks to unless an action names another.
    #[must_use]
    pub fn peer(self, number: usize) -> Self {
        Self { peer: Some(number), ..self }
    }

    /// Adds an action of guest/init, which it does after those before.
    #[must_use]
    pub fn then(mut self, action: impl Into<String>) -> Self {
        self.actions.push(action.into());
        self
    }

    /// Adds a word to its kernel command line.
    #[must_use]
    pub fn kernel_option(mut self, option: &str) -> Self {
        self.extra.push(' ');
        self.extra.push_str(option);
        self
    }

    /// Its kernel command line.
    pub fn cmdline(&self) -> String {
        let mut line = format!("{BASE_CMDLINE}{} sc.ip={}/24", self.extra, self.address());
        if let Some(peer) = self.peer {
            let _ = write!(line, " sc.peer={}", address(peer));
        }
        if !self.actions.is_empty() {
            let _ = write!(line, " sc.do={}", self.actions.join(","));
        }
        line
    }

    fn to_toml(&self) -> String {
        let restart = if self.restart { "restart = \"always\"\n" } else { "" };
        let waits = if self.waits { "autostart = false\n" } else { "" };
        let cores = self.core.map_or(String::new(), |core| format!("cores = [{core}]\n"));
        let completion = self.completion.as_ref().map_or(String::new(), |c| format!("completion = \"{c}\"\n"));
        let requests = self.requests.as_ref().map_or(String::new(), |r| format!("requests = \"{r}\"\n"));
        let notify_bar = self.notify_bar.as_ref().map_or(String::new(), |n| format!("notify_bar = \"{n}\"\n"));
        let kernel = module_name(&self.kernel);
        let queues = if self.queues == 1 { String::new() } else { format!("queues = {}\n", self.queues) };
        let mtu = self.mtu.map_or(String::new(), |mtu| format!("mtu = {mtu}\n"));
        let entropy = if self.entropy { "\n[[guest.entropy]]\n" } else { "" };
        let console =
            self.console.as_ref().map_or(String::new(), |p| format!("\n[[guest.console]]\nports = [\"{p}\"]\n"));
        let mac = self.mac().map(|byte| format!("{byte:02x}")).join(":");
        let initrd = module_name(&self.initrd);
        format!(
            "[[guest]]\nname = \"{}\"\nvcpus = {}\nmemory = \"{}M\"\nkernel = \"{kernel}\"\ninitrd = \"{initrd}\"\n\
             cmdline = \"{}\"\n{restart}{waits}{cores}{completion}{requests}{notify_bar}\n[[guest.net]]\nmac = \"{mac}\"\n{mtu}{queues}{}{}{entropy}{console}\n",
            self.name,
            self.vcpus,
            self.memory_mib,
            self.cmdline(),
            self.net,
            self.disks,
        )
    }
}

/// Adds the guest of guest-drivers/isolation to a server: one vCPU, 64 MiB. `entry` is its entry in sidecore.toml.
#[must_use]
pub fn with_isolation(mut setup: Setup, entry: &str) -> Setup {
    setup.cpus += 1;
    setup.memory_mib += 64;
    let module = Module::new(module_name(&Content::Isolation), Content::Isolation);
    if !setup.modules.contains(&module) {
        setup.modules.push(module);
    }
    with_last_entries(setup, entry)
}

/// The IP address of guest number `number`.
pub fn address(number: usize) -> String {
    format!("10.0.0.{number}")
}

/// The module name of this content, the same in every scenario.
pub fn module_name(content: &Content) -> &'static str {
    match content {
        Content::Text(_) => "sidecore.toml",
        Content::GuestKernel => "vmlinuz",
        Content::GuestVmlinux => "vmlinux",
        Content::CloudHv => "CLOUDHV.fd",
        Content::Rhf => "hypervisor-fw",
        Content::BootDisk { .. } => "boot-disk",
        Content::Management { .. } => "management",
        Content::AgentPackage => "sidecore-agent.tar",
        Content::Initrd => "initrd",
        Content::SmallInitrd => "initrd-small",
        Content::Tools => "tools",
        Content::Isolation => "isolation",
        Content::Packed => "packed.zst",
        Content::Probe => "probe",
        Content::ProbeFirmware => "probe.elf",
    }
}

/// The sidecore.toml of these guests.
pub fn config_text(guests: &[Guest]) -> String {
    guests.iter().map(Guest::to_toml).collect()
}

/// A server just large enough for these guests: a core for each vCPU, one for control and one for the engine.
pub fn server(name: &str, guests: &[Guest]) -> Setup {
    let config = config_text(guests);
    let vcpus: u32 = guests.iter().map(|guest| guest.vcpus).sum();
    let memory: u32 = guests.iter().map(|guest| guest.memory_mib + guest.disks_mib).sum();
    let mut setup = with_config(name, &config, vcpus + 2, memory + 160);
    for guest in guests {
        for content in [&guest.kernel, &guest.initrd] {
            let module = Module::new(module_name(content), content.clone());
            if !setup.modules.contains(&module) {
                setup.modules.push(module);
            }
        }
        // The ELF file is not compressed, and it stays in memory beside the guests.
        if guest.kernel == Content::GuestVmlinux {
            setup.memory_mib += 96;
        }
    }
    setup
}

/// MiB of the disk with fio and e2fsprogs, at most.
const TOOLS_MIB: u32 = 128;

/// The same server with the module of the disk that [`Guest::with_tools`] names.
#[must_use]
pub fn with_tools(mut setup: Setup) -> Setup {
    setup.memory_mib += TOOLS_MIB;
    setup.modules.push(Module::new(module_name(&Content::Tools), Content::Tools));
    setup
}

/// Adds a guest with Cloud Hypervisor's EDK2 to a server: one vCPU, 128 MiB, no device but a network device. `entry` is
/// added to its entry in sidecore.toml.
#[must_use]
pub fn with_edk2(mut setup: Setup, name: &str, entry: &str) -> Setup {
    let module = Module::new(module_name(&Content::CloudHv), Content::CloudHv);
    let text = format!(
        "[[guest]]\nname = \"{name}\"\nmemory = \"128M\"\nfirmware = \"{}\"\n{entry}\n[[guest.net]]\n\n",
        module.name
    );
    setup.cpus += 1;
    setup.memory_mib += 128 + 8;
    setup.modules.push(module);
    with_last_entries(setup, &text)
}

/// The name of the guest of [`debian`].
pub const DEBIAN: &str = "debian";

/// A server with an NVMe disk that holds this image, and one guest with two virtual CPUs, whose EDK2 boots from it.
#[must_use]
pub fn debian(name: &str, image: Image) -> Setup {
    let firmware = Module::new(module_name(&Content::CloudHv), Content::CloudHv);
    let config = format!(
        "[[guest]]\nname = \"{DEBIAN}\"\nvcpus = 2\nmemory = \"768M\"\nfirmware = \"{}\"\nrequests = \"adaptive\"\n\n[[guest.block]]\n\
         disk = \"nvme0\"\n\n[[guest.entropy]]\n",
        firmware.name
    );
    // 32 MiB are for the disk driver's buffers.
    let mut setup = with_config(name, &config, 4, 768 + 8 + 32 + 160);
    setup.modules.retain(|module| module.content != Content::GuestKernel);
    setup.modules.push(firmware);
    setup.image = Some(image);
    setup
}

/// The same server with this `scheduling` of its engine.
#[must_use]
pub fn scheduling(setup: Setup, word: &str) -> Setup {
    with_entries(setup, &format!("[[engine]]\nscheduling = \"{word}\"\n\n"))
}

/// The same server with these entries before the guests in its sidecore.toml.
#[must_use]
pub fn with_entries(mut setup: Setup, entries: &str) -> Setup {
    for module in &mut setup.modules {
        if let Content::Text(config) = &mut module.content {
            config.insert_str(0, entries);
        }
    }
    setup
}

/// The same server with these entries after all others in its sidecore.toml.
#[must_use]
pub fn with_last_entries(mut setup: Setup, entries: &str) -> Setup {
    for module in &mut setup.modules {
        if let Content::Text(config) = &mut module.content {
            config.push_str(entries);
        }
    }
    setup
}

/// A server with this configuration and the guest kernel.
pub fn with_config(name: &str, config: &str, cpus: u32, memory_mib: u32) -> Setup {
    let modules = vec![
        Module::new("sidecore.toml", Content::Text(config.to_owned())),
        Module::new("vmlinuz", Content::GuestKernel),
    ];
    Setup { modules, ..Setup::new(name, cpus, memory_mib) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_described_as_the_configuration_wants_it() {
        let guest = Guest::new(2).peer(1).then("ping:1000").then("wait").restarted();
        let toml = guest.to_toml();
        assert!(toml.contains("name = \"b\""), "{toml}");
        assert!(toml.contains("sc.ip=10.0.0.2/24 sc.peer=10.0.0.1 sc.do=ping:1000,wait\""), "{toml}");
        assert!(toml.contains("mac = \"52:54:00:00:00:02\""), "{toml}");
        assert!(toml.contains("restart = \"always\""), "{toml}");
        assert!(!toml.contains("entropy"), "{toml}");
        let toml = guest.net("mtu = 600").entropy().to_toml();
        assert!(toml.contains("mtu = 600\n\n[[guest.entropy]]\n"), "{toml}");
    }

    #[test]
    fn a_server_has_a_core_for_everything_and_each_module_once() {
        let setup = server("x", &[Guest::new(1), Guest::new(2).vcpus(2)]);
        assert_eq!(setup.cpus, 5);
        assert_eq!(setup.modules.len(), 3);
    }
}
