//! What is done with disks at start, by the I/O queue of their controller, before an engine has the queue: partition tables
//! are read, and disks are wiped.

use super::nvme_device::{Bit, HostDma, Mmio, Page};
use crate::heap;
use alloc::string::{String, ToString};
use block::nvme::AtStart;
use gpt::{Blocks, Refusal, Shape, Table};
use nvme::{Format, Operation, Request};

/// A controller whose queue is not in use yet.
pub type Idle<'d> = AtStart<'d, Mmio, HostDma, Bit>;

/// Reads the partition table of a namespace with blocks of 512 or 4,096 bytes.
///
/// # Errors
/// It has none that can be used.
pub fn table(idle: Idle<'_>, namespace: u32, format: &Format) -> Result<Table, Refusal> {
    let shape = Shape { block_bytes: format.block_bytes(), blocks: format.blocks };
    let page = Page::take().ok_or_else(|| Refusal::Unreadable("there is no memory".into()))?;
    heap::ensure_room(gpt::HEAP).map_err(|e| Refusal::Unreadable(e.to_string()))?;
    gpt::read(&mut Reader { idle, namespace, shape, page }, shape)
}

/// Makes blocks of a namespace read as zeroes.
///
/// # Errors
/// They could not all be written. The text says why.
pub fn wipe(mut idle: Idle<'_>, namespace: u32, first: u64, blocks: u64) -> Result<(), String> {
    let page =
        Page::take().and_then(|page| page.segment(Page::BYTES)).ok_or_else(|| "there is no memory".to_string())?;
    idle.wipe(namespace, first, blocks, page)
}

struct Reader<'d> {
    idle: Idle<'d>,
    namespace: u32,
    shape: Shape,
    page: Page,
}

impl Blocks for Reader<'_> {
    fn read(&mut self, first: u64, into: &mut [u8]) -> Result<(), String> {
        let segment = self.page.segment(into.len()).ok_or("more than a page")?;
        let blocks = into.len().checked_div(self.shape.block_bytes as usize).ok_or("its blocks have no size")? as u32;
        let request = Request { id: 0, namespace: self.namespace, operation: Operation::Read, first, blocks };
        self.idle.ask(&request, &[segment])?;
        self.page.copy_to(into);
        Ok(())
    }
}
