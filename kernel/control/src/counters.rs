//! All counters, as they are sent on COM2 and shown on COM1. A value counts from the start of the hypervisor, or of the
//! guest's present life. It never decreases in that time.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::{GuestState, Text};

/// A reading of all counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// The `id` of the command that asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Time stamp counter at the reading.
    pub tsc: u64,
    /// Its frequency in Hz.
    pub tsc_hz: u64,
    /// The hypervisor itself.
    pub hypervisor: Hypervisor,
    /// Guests in the order of the configuration.
    pub guests: Vec<Guest>,
    /// Engines in the order of their cores.
    pub engines: Vec<Engine>,
}

/// The hypervisor itself: its memory, and what it missed or did not expect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hypervisor {
    /// Bytes that it keeps for itself. Guests' tables are included, guests' RAM is not.
    pub memory: u64,
    /// The part of these bytes that it would keep without any guest.
    pub memory_without_guests: u64,
    /// Its heap.
    #[serde(default)]
    pub heap: Heap,
    /// Lines of the log from other cores that were dropped because the queue was full.
    #[serde(default)]
    pub log_dropped: u64,
    /// The serial ports: COM1, COM2.
    #[serde(default)]
    pub serial: [SerialPort; 2],
    /// Interrupts on vectors that nobody uses.
    #[serde(default)]
    pub stray_interrupts: u64,
    /// NMIs of the chipset: SERR#, an error of a PCI device or of memory.
    #[serde(default)]
    pub system_errors: u64,
    /// NMIs of the chipset: IOCHK#, an error of a device on the LPC bus.
    #[serde(default)]
    pub io_checks: u64,
    /// NMIs that no core has sent and of which the chipset has no cause.
    #[serde(default)]
    pub other_nmis: u64,
    /// Errors that the machine-check banks told.
    #[serde(default)]
    pub machine_checks: MachineChecks,
}

/// The heap, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heap {
    /// All that it has.
    pub size: u64,
    /// What is in use.
    pub used: u64,
}

/// What the machine-check banks told. An error that stops the machine is not in here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineChecks {
    /// Machine checks that cores have handled, in the hypervisor or in a guest: one for each core that was interrupted. Counted
    /// when the core can take the next one.
    pub interrupts: u64,
    /// Times that the cores that a machine check had interrupted were judged together.
    pub judged: u64,
    /// Corrected errors.
    pub corrected: u64,
    /// Uncorrected errors for which nothing had to be done.
    pub deferred: u64,
    /// Uncorrected errors because of which a guest ended.
    pub ended: u64,
    /// Errors that the firmware had left in the banks.
    pub left_by_firmware: u64,
}

/// A serial port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SerialPort {
    /// Pieces of output that were dropped whole because too much waited. Guests' lines are counted at the guests.
    pub dropped: u64,
    /// Their bytes.
    pub dropped_bytes: u64,
    /// Times that the UART lost input, because it came faster than sidecore reads.
    pub overruns: u64,
}

/// One guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guest {
    /// Name.
    pub name: String,
    /// State at the reading.
    pub state: GuestState,
    /// Times it was started.
    pub starts: u64,
    /// RAM in bytes.
    pub memory: u64,
    /// Bytes that the hypervisor keeps for the guest beside the guest's RAM.
    pub kept: u64,
    /// Its vCPUs.
    pub vcpus: Vec<VcpuCounters>,
    /// Bytes of its console's output that were dropped because the queue was full.
    #[serde(default)]
    pub console_dropped: u64,
    /// Lines of its console's output that COM2 had no room for, and that could not wait.
    #[serde(default)]
    pub lines_dropped: u64,
    /// Bytes typed into its console that were dropped because it does not read.
    #[serde(default)]
    pub input_dropped: u64,
    /// Counts of its shadow IDT, by kind. Empty for a guest without one.
    #[serde(default)]
    pub shadow_idt: Vec<Count>,
    /// What it tried and was refused, by kind.
    pub refusals: Vec<Count>,
    /// Its network ports.
    pub ports: Vec<Port>,
    /// Its block devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<Block>,
    /// Its entropy devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entropy: Vec<Entropy>,
    /// Its console devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub consoles: Vec<Console>,
}

/// One vCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuCounters {
    /// The core it runs on.
    pub core: u64,
    /// Exits by reason.
    pub exits: Vec<ExitCount>,
}

/// Exits for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitCount {
    /// Reason.
    pub reason: Text,
    /// How many.
    pub count: u64,
    /// TSC cycles from exit to the next entry, summed.
    pub cycles: u64,
}

/// How often something happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// What happened.
    pub kind: Text,
    /// How often.
    pub count: u64,
}

/// A network port. `rx` is towards the guest, as in the guest's own counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// MAC address, six hexadecimal pairs.
    pub mac: String,
    /// Packets given to the guest.
    pub rx_packets: u64,
    /// Their bytes, without virtio headers.
    pub rx_bytes: u64,
    /// Packets taken from the guest.
    pub tx_packets: u64,
    /// Their bytes, without virtio headers.
    pub tx_bytes: u64,
    /// Packets dropped, by cause.
    pub drops: Vec<Count>,
    /// Checksums computed because the guest does not take a packet without one.
    #[serde(default)]
    pub checksums: u64,
    /// TCP segments cut because the guest does not take several segments as one packet.
    #[serde(default)]
    pub segments: u64,
    /// Completion interrupts sent.
    pub interrupts: u64,
    /// Notifications received from the driver.
    pub kicks: u64,
    /// Times that polling of a queue ended, and its driver's notifications were enabled.
    #[serde(default)]
    pub arms: u64,
    /// Times that polling of a queue began, because it had many notifications.
    #[serde(default)]
    pub polls: u64,
    /// TSC cycles that its engine has spent on its queues.
    #[serde(default)]
    pub engine_cycles: u64,
    /// Commands that the driver sent to its control queue. The queue is not polled, so each has cost a notification.
    #[serde(default)]
    pub commands: u64,
    /// Times the driver reset the device.
    #[serde(default)]
    pub resets: u64,
    /// Requests that came back, for instance from a NIC, after a reset had ended them. Their driver is not told.
    #[serde(default)]
    pub stale_tokens: u64,
    /// Times the driver broke the rules of a ring.
    pub ring_errors: u64,
    /// What its stages counted, in their order. The stages for frames from the guest come first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageCounters>,
}

/// A block device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Its serial number.
    pub serial: String,
    /// Size in bytes.
    pub size: u64,
    /// What the guest asked for, by kind: requests, bytes, errors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<Count>,
    /// Blocks of 4 KiB that the copy-on-write overlay has; 0 if there is none.
    #[serde(default)]
    pub overlay_blocks: u64,
    /// Blocks of it in use.
    #[serde(default)]
    pub overlay_used: u64,
    /// Most blocks of it that were in use at the same time.
    #[serde(default)]
    pub overlay_most_used: u64,
    /// Writes that failed because it was full.
    #[serde(default)]
    pub overlay_full: u64,
    /// Completion interrupts sent.
    pub interrupts: u64,
    /// Notifications received from the driver.
    pub kicks: u64,
    /// Times that polling of a queue ended, and its driver's notifications were enabled.
    pub arms: u64,
    /// Times that polling of a queue began, because it had many notifications.
    pub polls: u64,
    /// TSC cycles that its engine has spent on its queues.
    pub engine_cycles: u64,
    /// Times the driver reset the device.
    pub resets: u64,
    /// Requests that came back after a reset had ended them.
    pub stale_tokens: u64,
    /// Times the driver broke the rules of a ring or of the device.
    pub ring_errors: u64,
}

impl Block {
    /// Returns the count of that name, or 0 if there is none.
    #[must_use]
    pub fn count(&self, kind: &str) -> u64 {
        self.counts.iter().find(|count| count.kind == kind).map_or(0, |count| count.count)
    }
}

/// An entropy device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entropy {
    /// Requests that were completed with random bytes.
    pub requests: u64,
    /// Random bytes given to the guest.
    pub bytes: u64,
    /// Requests that had to wait because there were no random bytes.
    pub starved: u64,
    /// Requests that had to wait because the guest's rate was used up.
    #[serde(default)]
    pub limited: u64,
    /// Completion interrupts sent.
    pub interrupts: u64,
    /// Notifications received from the driver. Its queue is not polled, so a request costs one, unless others came just
    /// before.
    pub kicks: u64,
    /// TSC cycles that its engine has spent on its queue.
    pub engine_cycles: u64,
    /// Times the driver reset the device.
    pub resets: u64,
    /// Requests that came back after a reset had ended them.
    pub stale_tokens: u64,
    /// Times the driver broke the rules of the ring or of the device.
    pub ring_errors: u64,
}

/// A console device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Console {
    /// Its ports, by number. The first one is the console.
    pub ports: Vec<ConsolePort>,
    /// Control messages of the driver that were understood.
    pub messages: u64,
    /// Control messages of the driver that were ignored because they mean nothing.
    pub refused: u64,
    /// Completion interrupts sent.
    pub interrupts: u64,
    /// Notifications received from the driver. Each costs an exit.
    pub kicks: u64,
    /// TSC cycles that its engine has spent on its queues.
    pub engine_cycles: u64,
    /// Times the driver reset the device.
    pub resets: u64,
    /// Times the driver broke the rules of the ring or of the device.
    pub ring_errors: u64,
}

/// A port of a console device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsolePort {
    /// Its name. Empty for the console.
    pub name: String,
    /// Whether it is open on sidecore's side.
    pub open: bool,
    /// Whether the guest has it open.
    pub guest_open: bool,
    /// Bytes that the guest sent and sidecore got.
    pub output_bytes: u64,
    /// Bytes that the guest sent and that were dropped, because nobody read.
    pub output_dropped: u64,
    /// Requests of the guest with output.
    pub output_requests: u64,
    /// Bytes that the guest got.
    pub input_bytes: u64,
    /// Times output had to wait because nobody read.
    pub waits: u64,
}

/// One stage at one port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageCounters {
    /// Its name.
    pub stage: String,
    /// `tx` for frames that the guest sends or that leave by an uplink. `rx` for the other direction.
    pub direction: Text,
    /// Frames that its rule matched.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames that it dropped.
    pub dropped: u64,
}

/// One engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Engine {
    /// Its id.
    #[serde(default)]
    pub id: u64,
    /// Its core.
    pub core: u64,
    /// The NUMA node of that core, if the machine says which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u64>,
    /// Turns that found work.
    pub busy_turns: u64,
    /// Turns that found none.
    pub idle_turns: u64,
    /// TSC cycles of busy turns.
    pub busy_cycles: u64,
    /// TSC cycles of idle turns.
    pub idle_cycles: u64,
    /// The busy part of its time in the last second, in thousandths, see [`Utilisation`](crate::Utilisation). Absent if no turn
    /// ended in it, and in the first second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_permille_second: Option<u64>,
    /// The same of the last minute, and in the first minute of the time so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_permille_minute: Option<u64>,
    /// Turns that took so long that a guest's timer may have been late.
    pub long_turns: u64,
    /// TSC cycles of the longest of them that found no work: something else had the core, such as firmware in system management
    /// mode or a hypervisor beneath. 0: there was none.
    #[serde(default)]
    pub longest_idle_turn: u64,
    /// Average speed of its core while it ran, in the last second, in thousandths of the TSC's rate. More than 1000 is turbo. Absent if
    /// the processor does not count it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_permille: Option<u64>,
    /// Seconds in which the core, or the processor that it is on, was slowed down.
    #[serde(default)]
    pub throttled_seconds: u64,
    /// What has slowed it down in any of them, in words. Empty: nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub throttled_by: String,
    /// System management interrupts of its core since it runs. Absent if the processor does not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smis: Option<u64>,
    /// What was counted while it was watched (`watch on`). Absent if it was never watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watched: Option<Watched>,
    /// Its uplinks, in the order of the configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uplinks: Vec<Uplink>,
}

/// What was counted of an engine while it was watched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// Visits to a queue, by the number of their requests. Entry `n` counts visits with 2^n requests or more, and fewer
    /// than twice as many. The last entry has no upper bound.
    pub visits: Vec<u64>,
    /// Visits that took no request.
    pub empty_visits: u64,
    /// TSC cycles of the longest turn.
    pub longest_turn: u64,
    /// Completions of a queue for which its driver got an interrupt.
    pub notified: u64,
    /// Completions of a queue for which its driver wanted none.
    pub suppressed: u64,
}

/// One uplink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uplink {
    /// What the configuration calls it.
    pub name: String,
    /// Its NIC's PCI address. Empty if it has no usable NIC.
    pub device: String,
    /// What the NIC says of its port: the module there, and what keeps the link down. Empty if it says nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub port: String,
    /// Its counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<Count>,
    /// What its stages counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageCounters>,
}

impl Uplink {
    /// Returns the count of that name, or 0 if there is none.
    #[must_use]
    pub fn count(&self, kind: &str) -> u64 {
        self.counts.iter().find(|count| count.kind == kind).map_or(0, |count| count.count)
    }
}

impl Counters {
    /// The uplink called `name`.
    #[must_use]
    pub fn uplink(&self, name: &str) -> Option<&Uplink> {
        self.engines.iter().flat_map(|engine| &engine.uplinks).find(|uplink| uplink.name == name)
    }

    /// The guest called `name`.
    #[must_use]
    pub fn guest(&self, name: &str) -> Option<&Guest> {
        self.guests.iter().find(|guest| guest.name == name)
    }
}

impl Guest {
    /// Exits of all vCPUs for all reasons.
    #[must_use]
    pub fn total_exits(&self) -> u64 {
        self.vcpus.iter().flat_map(|vcpu| &vcpu.exits).fold(0, |sum, exit| sum.saturating_add(exit.count))
    }

    /// Refusals of all kinds.
    #[must_use]
    pub fn total_refusals(&self) -> u64 {
        self.refusals.iter().fold(0, |sum, refusal| sum.saturating_add(refusal.count))
    }
}
