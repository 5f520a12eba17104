//! I/O commands (NVM Command Set 1.0, 3).

use crate::model::{Command, Executed, Model};

const INVALID_OPCODE: u16 = 0x01;
const INVALID_FIELD: u16 = 0x02;
const DATA_TRANSFER: u16 = 0x04;
const INVALID_NAMESPACE: u16 = 0x0b;
const LBA_RANGE: u16 = 0x80;
const FUA: u32 = 1 << 30;

impl Model {
    pub(crate) fn io(&mut self, command: &Command) {
        let status = match self.faults.io_status.pop() {
            Some(status) => status,
            None => self.execute(command),
        };
        self.complete(command.queue, command.cid(), 0, status);
    }

    fn execute(&mut self, command: &Command) -> u16 {
        let d = command.dwords;
        let opcode = command.opcode();
        if d[0] >> 8 & 0xff != 0 || d[4] != 0 || d[5] != 0 {
            self.wrong("a command has fused bits, SGLs or metadata");
        }
        let Some(index) = self.namespaces.iter().position(|n| n.id == d[1]) else { return INVALID_NAMESPACE };
        let (shift, capacity) = (self.namespaces[index].shift, self.namespaces[index].blocks());
        let (mut first, mut blocks) = (u64::from(d[11]) << 32 | u64::from(d[10]), u64::from(d[12] & 0xffff) + 1);
        match opcode {
            0 => (first, blocks) = (0, 0),
            9 => {
                if d[10] & 0xff != 0 || d[11] != 4 {
                    self.wrong("Dataset Management has other than one range to deallocate");
                    return INVALID_FIELD;
                }
                let Some(range) = self.gather(command.prp1(), command.prp2(), 16) else { return DATA_TRANSFER };
                let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| range[at + i]));
                (blocks, first) = (word(0) >> 32, word(8));
            }
            _ => {}
        }
        let prp = (command.prp1(), command.prp2());
        self.executed.push(Executed {
            queue: command.queue,
            opcode,
            namespace: d[1],
            first,
            blocks,
            prp,
            dword12: d[12],
        });
        if first.checked_add(blocks).is_none_or(|end| end > capacity) {
            return LBA_RANGE;
        }
        let bytes = blocks << shift;
        if matches!(opcode, 1 | 2) && self.config.mdts != 0 && bytes > 4096 << self.config.mdts {
            self.wrong(format!("a transfer has {bytes} bytes; MDTS is {}", self.config.mdts));
            return INVALID_FIELD;
        }
        let range = (first << shift) as usize..((first + blocks) << shift) as usize;
        match opcode {
            0 => {
                self.flushes += 1;
                self.namespaces[index].volatile.clear();
            }
            1 => {
                let Some(data) = self.gather(prp.0, prp.1, bytes) else { return DATA_TRANSFER };
                let namespace = &mut self.namespaces[index];
                namespace.data[range].copy_from_slice(&data);
                if self.config.cache && d[12] & FUA == 0 {
                    namespace.volatile.extend(first..first + blocks);
                }
            }
            2 => {
                let data = self.namespaces[index].data[range].to_vec();
                if !self.scatter(prp.0, prp.1, &data) {
                    return DATA_TRANSFER;
                }
            }
            8 if self.config.oncs & 8 != 0 => self.namespaces[index].data[range].fill(0),
            9 if self.config.oncs & 4 != 0 => self.namespaces[index].data[range].fill(0xde),
            _ => return INVALID_OPCODE,
        }
        0
    }
}
