//! Which blocks of a namespace a block device has: a partition, or all.

use alloc::format;
use alloc::string::{String, ToString};

use gpt::Guid;

use crate::disk::{Block, Disk};
use crate::disk_name::{FoundController, FoundNamespace};
use crate::mistake::Place;

/// Blocks of a namespace, in its own block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Index of the controller among those found.
    pub controller: usize,
    /// Index of the namespace at its controller.
    pub namespace: usize,
    /// First block.
    pub first: u64,
    /// Number of blocks, 1 or more.
    pub blocks: u64,
}

impl Extent {
    /// Finds the blocks of a device. Returns `None` if it is a RAM disk. `booted`: the unique GUID of the partition
    /// from which sidecore was booted, if it is known.
    ///
    /// # Errors
    /// Its disk or its partition does not exist, is ambiguous or cannot be used. Or it would have all of the disk that
    /// sidecore was booted from. Returns the place of the value and what is wrong.
    pub fn of(block: &Block, found: &[FoundController], booted: Option<Guid>) -> Result<Option<Self>, (Place, String)> {
        let Disk::Machine(name) = &block.disk else { return Ok(None) };
        let (controller, namespace, at) = name.locate(found).map_err(|why| (block.place.clone(), why))?;
        let Some(partition) = &block.partition else {
            if booted.is_some_and(|guid| has(at, guid)) {
                let message = "sidecore was booted from this disk, so no guest gets all of it; expected a `partition`";
                return Err((block.place.clone(), message.into()));
            }
            return Ok(Some(Self { controller, namespace, first: 0, blocks: at.blocks }));
        };
        let found = match &at.table {
            Some(Ok(table)) => table.find(&partition.name),
            Some(Err(why)) => Err(why.to_string()),
            None => Err("its partition table was not read".into()),
        };
        match found {
            Ok(found) => Ok(Some(Self { controller, namespace, first: found.first, blocks: found.blocks })),
            Err(why) => Err((partition.place.clone(), format!("no partition is taken from this disk: {why}"))),
        }
    }

    /// Whether both have some block in common.
    #[must_use]
    pub fn overlaps(&self, other: &Self, found: &[FoundController]) -> bool {
        let is_same = (self.controller, self.namespace) == (other.controller, other.namespace)
            || self.namespace_in(found).zip(other.namespace_in(found)).is_some_and(|(one, other)| is_twin(one, other));
        let end = |extent: &Self| extent.first.saturating_add(extent.blocks);
        is_same && self.first < end(other) && other.first < end(self)
    }

    fn namespace_in<'a>(&self, found: &'a [FoundController]) -> Option<&'a FoundNamespace> {
        found.get(self.controller)?.namespaces.get(self.namespace)
    }
}

/// Whether two controllers show the same namespace: both say that it is shared, and its identifier is the same.
/// Identifiers alone say nothing, because some disks of a model all have the same one.
fn is_twin(one: &FoundNamespace, other: &FoundNamespace) -> bool {
    one.shared && other.shared && one.unique.iter().any(|identifier| other.unique.contains(identifier))
}

/// Whether a namespace has a partition with this GUID.
fn has(namespace: &FoundNamespace, guid: Guid) -> bool {
    let Some(Ok(table)) = &namespace.table else { return false };
    table.partitions.iter().any(|partition| partition.guid == guid)
}
