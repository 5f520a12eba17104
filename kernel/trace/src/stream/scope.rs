//! What a trace leaves out on purpose, so that a reader neither takes it for lost nor for nothing.

use super::{
    SCOPE, SCOPE_BYTES,
    write::{Full, Writer},
};

/// `flags` of a scope: records of exits have no RIP, and no block says where a guest's kernel is.
const WITHOUT_RIPS: u32 = 1 << 0;

/// What the records have that follow in the trace. A trace without such a block has everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// A core has written one record for so many exits of a vCPU for the same reason. 1: for each of them.
    pub exits_one_of: u32,
    /// Whether records of exits have the guest's RIP. If not, it is 0 in all of them.
    pub rips: bool,
}

impl Default for Scope {
    fn default() -> Self {
        Self { exits_one_of: 1, rips: true }
    }
}

impl Scope {
    /// Writes the block into a buffer.
    ///
    /// # Errors
    /// The buffer has no room for it.
    pub fn write(self, buffer: &mut [u8]) -> Result<&[u8], Full> {
        let mut writer = Writer::new(buffer)?;
        let flags = if self.rips { 0 } else { WITHOUT_RIPS };
        writer.push(&[&self.exits_one_of.to_le_bytes(), &flags.to_le_bytes()])?;
        Ok(writer.finish(SCOPE))
    }

    /// The scope in the content of a block. None: it has another length, or says a record of none.
    pub(super) fn of_content(content: &[u8]) -> Option<Self> {
        let content: &[u8; SCOPE_BYTES] = content.try_into().ok()?;
        let (&[exits_one_of, flags], []) = content.as_chunks::<4>() else { return None };
        let [exits_one_of, flags] = [exits_one_of, flags].map(u32::from_le_bytes);
        (exits_one_of > 0).then_some(Self { exits_one_of, rips: flags & WITHOUT_RIPS == 0 })
    }
}
