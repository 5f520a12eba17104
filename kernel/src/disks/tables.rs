//! Reads partition tables at start, by the I/O queue of their controller, before an engine has the queue.

use super::nvme_device::{Bit, Mmio, Page, Queue};
use alloc::{format, string::String};
use gpt::{Blocks, Refusal, Shape, Table};
use nvme::{Controller, Format, Operation, Refused, Request, Status};

/// Most microseconds that a read may take: the driver's time for a command, an Abort and a reset, and some more.
const READ_TIME: u64 = 60_000_000;
/// Identifies the only request.
const ID: u32 = 0;

/// A controller whose queue is not in use yet.
pub struct Idle<'d> {
    /// The controller.
    pub controller: &'d mut Controller<Mmio, Bit>,
    /// Its queue.
    pub queue: &'d mut Queue,
    /// Microseconds of some clock.
    pub now: fn() -> u64,
}

impl Idle<'_> {
    /// Reads the partition table of a namespace with blocks of 512 or 4,096 bytes.
    ///
    /// # Errors
    /// It has none that can be used.
    pub fn table(self, namespace: u32, format: &Format) -> Result<Table, Refusal> {
        let shape = Shape { block_bytes: format.block_bytes(), blocks: format.blocks };
        let page = Page::take().ok_or_else(|| Refusal::Unreadable("there is no memory".into()))?;
        gpt::read(&mut Reader { idle: self, namespace, shape, page, is_stuck: false }, shape)
    }
}

struct Reader<'d> {
    idle: Idle<'d>,
    namespace: u32,
    shape: Shape,
    page: Page,
    /// A read was not answered. The device may still write to the page.
    is_stuck: bool,
}

impl Blocks for Reader<'_> {
    fn read(&mut self, first: u64, into: &mut [u8]) -> Result<(), String> {
        if self.is_stuck {
            return Err("an earlier read was not answered".into());
        }
        let segment = self.page.segment(into.len()).ok_or("more than a page")?;
        let blocks = (into.len() / self.shape.block_bytes as usize) as u32;
        let request = Request { id: ID, namespace: self.namespace, operation: Operation::Read, first, blocks };
        let Idle { controller, queue, now } = &mut self.idle;
        let (begin, mut submitted, mut answer) = (now(), false, None);
        while answer.is_none() {
            if now() - begin > READ_TIME {
                self.is_stuck = true;
                return Err(format!("no answer within {} s", READ_TIME / 1_000_000));
            }
            if !submitted {
                match queue.submit(&request, &[segment], now()) {
                    Ok(()) => submitted = true,
                    Err(Refused::Busy) => {}
                    Err(why) => return Err(format!("refused: {why:?}")),
                }
                queue.notify();
            }
            controller.service(now());
            queue.poll(now(), |_, status| answer = Some(status));
            core::hint::spin_loop();
        }
        match answer {
            Some(Status::Ok) => {
                self.page.copy_to(into);
                Ok(())
            }
            status => Err(format!("{status:?}")),
        }
    }
}
