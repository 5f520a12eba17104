//! The CPU's part of posted interrupts, written from the manual: SDM vol. 3C, chapter "APIC Virtualization and Virtual
//! Interrupts". It shares no code with the sender's and the host's part.
//!
//! The guest that it runs takes each interrupt at once if IF is set, reads in the handler what the sender has to tell,
//! and ends the interrupt.

use loom::sync::atomic::{AtomicU64 as Work, Ordering::SeqCst};

use super::descriptor::Descriptor;
use crate::{lapic::msr, posted::ApicPage};

/// What is wrong with a CPU or with the code on either side. Each is planted once, and the model must find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Nothing,
    /// The CPU takes PIR before it clears ON.
    CpuClearsOnLast,
    /// The host takes PIR before it clears ON.
    HostClearsOnLast,
    /// The sender sends no notification.
    NoNotification,
    /// The sender does not kick a core that waits in the host.
    NoKick,
    /// The host enters although something was posted after its drain.
    NoSecondLook,
    /// The host puts interrupts into VIRR and does not tell the CPU by RVI.
    StaleRvi,
    /// A virtual interrupt does not wake a guest that is halted in guest mode, as on Bochs 3.0.
    AsleepInHlt,
}

/// What a guest does while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// It computes, with IF set.
    Computes,
    /// It has executed HLT with IF set. HLT does not exit.
    Halts,
    /// It computes with IF clear until the next exit.
    KeepsInterruptsOff,
    /// It has executed HLT with IF set, and HLT exits. The core waits in the host.
    HaltsInHost,
}

/// A logical processor with virtual-interrupt delivery, from VM entry to VM exit and beyond.
pub struct Cpu {
    /// Guest interrupt status: the requesting and the servicing virtual interrupt.
    pub rvi: u8,
    svi: u8,
    vppr: u8,
    /// A pending virtual interrupt is recognized.
    recognized: bool,
    interrupt_flag: bool,
    halted: bool,
    fault: Fault,
    /// The vectors whose handlers have run.
    pub delivered: Vec<u8>,
    /// What the last handler has read.
    pub seen: u64,
}

impl Cpu {
    pub fn new(fault: Fault) -> Self {
        Self {
            rvi: 0,
            svi: 0,
            vppr: 0,
            recognized: false,
            interrupt_flag: false,
            halted: false,
            fault,
            delivered: Vec::new(),
            seen: 0,
        }
    }

    /// VM entry: RVI and SVI are loaded, PPR virtualization, then evaluation of pending virtual interrupts.
    pub fn enter(&mut self, page: &ApicPage, does: Does) {
        self.interrupt_flag = does != Does::KeepsInterruptsOff;
        self.halted = does == Does::Halts;
        self.virtualize_ppr(page);
        self.evaluate();
    }

    /// "PPR Virtualization".
    fn virtualize_ppr(&mut self, page: &ApicPage) {
        let vtpr = page.register(msr::TPR) as u8;
        self.vppr = if vtpr >> 4 >= self.svi >> 4 { vtpr } else { self.svi & 0xf0 };
    }

    /// "Evaluation of Pending Virtual Interrupts". There is no interrupt-window exiting here.
    fn evaluate(&mut self) {
        self.recognized = self.rvi >> 4 > self.vppr >> 4;
    }

    /// "Posted-Interrupt Processing", after the notification vector was acknowledged: steps 3 to 7. Step 4, EOI, has no
    /// effect here.
    pub fn process_posted(&mut self, page: &ApicPage, descriptor: &Descriptor) {
        let (pir, on) = descriptor.words();
        if self.fault != Fault::CpuClearsOnLast {
            on.fetch_and(!1, SeqCst); // step 3
        }
        for (index, word) in pir.iter().enumerate() {
            let bits = word.swap(0, SeqCst); // step 5
            for bit in (0..64).filter(|bit| bits >> bit & 1 != 0) {
                let vector = (index * 64 + bit) as u8;
                set(page, msr::IRR, vector, true);
                self.rvi = self.rvi.max(vector); // step 6
            }
        }
        if self.fault == Fault::CpuClearsOnLast {
            on.fetch_and(!1, SeqCst);
        }
        self.evaluate(); // step 7
    }

    /// "Virtual-Interrupt Delivery", for all that can be delivered now. Each handler reads `work` and ends its interrupt.
    pub fn deliver(&mut self, page: &ApicPage, work: &Work) {
        while self.recognized && self.interrupt_flag {
            if self.halted && self.fault == Fault::AsleepInHlt {
                return;
            }
            self.halted = false;
            let vector = self.rvi;
            set(page, msr::ISR, vector, true);
            self.svi = vector;
            self.vppr = vector & 0xf0;
            set(page, msr::IRR, vector, false);
            self.rvi = highest(page, msr::IRR);
            self.recognized = false;
            self.delivered.push(vector);
            self.seen = work.load(SeqCst);
            self.end_of_interrupt(page);
        }
    }

    /// "EOI Virtualization". No bit of the EOI-exit bitmap is set, because all interrupts here are edge-triggered.
    fn end_of_interrupt(&mut self, page: &ApicPage) {
        set(page, msr::ISR, self.svi, false);
        self.svi = highest(page, msr::ISR);
        self.virtualize_ppr(page);
        self.evaluate();
    }
}

/// Changes a bit of VIRR or VISR.
fn set(page: &ApicPage, group: u32, vector: u8, to: bool) {
    let (number, bit) = (group + u32::from(vector / 32), 1 << (vector % 32));
    let old = page.register(number);
    page.show(number, u64::from(if to { old | bit } else { old & !bit }));
}

/// The highest bit of VIRR or VISR, or 0.
fn highest(page: &ApicPage, group: u32) -> u8 {
    (0..=255).rev().find(|vector| page.register(group + u32::from(vector / 32)) >> (vector % 32) & 1 != 0).unwrap_or(0)
}
