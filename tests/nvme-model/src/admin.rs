//! Admin commands (NVMe Base 2.0, 5).

use crate::model::{Command, Completion, Model, Submission};

const INVALID_OPCODE: u16 = 0x01;
const INVALID_FIELD: u16 = 0x02;
const DATA_TRANSFER: u16 = 0x04;
const ABORT_REQUESTED: u16 = 0x07;
const INVALID_NAMESPACE: u16 = 0x0b;
const INVALID_QUEUE: u16 = 0x101;

impl Model {
    pub(crate) fn admin(&mut self, command: &Command) {
        let cid = command.cid();
        if let Some(status) = self.faults.admin_status.get(&command.opcode()) {
            self.complete(0, cid, 0, *status);
            return;
        }
        let d = &command.dwords;
        let (id, low, high) = (d[10] as u16, d[10] & 0xff, (d[10] >> 16) as u16);
        let (result, status) = match command.opcode() {
            0x00 => (0, self.delete_submission(id)),
            0x01 => (0, self.create_submission(command)),
            0x02 => (0, self.log_page(command, low)),
            0x04 => (0, self.delete_completion(id)),
            0x05 => (0, self.create_completion(command)),
            0x06 => (0, self.identify(command, low)),
            0x08 => (self.abort(id, high), 0),
            0x09 if low == 7 => {
                let granted = |wanted: u32| (wanted & 0xffff).min(u32::from(self.config.queues) - 1);
                (granted(d[11]) | granted(d[11] >> 16) << 16, 0)
            }
            0x09 if low == 0xb => (0, 0),
            0x0a if low == 6 => (u32::from(self.config.cache), 0),
            0x09 | 0x0a => (0, INVALID_FIELD),
            0x0c => {
                self.event_requests.push_back(cid);
                return;
            }
            _ => (0, INVALID_OPCODE),
        };
        self.complete(0, cid, result, status);
    }

    fn create_completion(&mut self, command: &Command) -> u16 {
        let (id, entries) = (command.dwords[10] as u16, (command.dwords[10] >> 16) as u16 + 1);
        if id == 0 || id > self.config.queues || self.completions.contains_key(&id) {
            self.wrong(format!("completion queue {id} is created"));
            return INVALID_QUEUE;
        }
        if command.dwords[11] & 3 != 1
            || !command.prp1().is_multiple_of(4096)
            || !(2..=self.config.mqes + 1).contains(&entries)
        {
            self.wrong(format!("completion queue {id} is malformed"));
            return INVALID_FIELD;
        }
        let queue = Completion { base: command.prp1(), entries, head: 0, tail: 0, phase: true };
        self.completions.insert(id, queue);
        0
    }

    fn create_submission(&mut self, command: &Command) -> u16 {
        let (id, entries) = (command.dwords[10] as u16, (command.dwords[10] >> 16) as u16 + 1);
        let completion = (command.dwords[11] >> 16) as u16;
        if id == 0
            || id > self.config.queues
            || self.submissions.contains_key(&id)
            || !self.completions.contains_key(&completion)
        {
            self.wrong(format!("submission queue {id} is created"));
            return INVALID_QUEUE;
        }
        if command.dwords[11] & 1 != 1
            || !command.prp1().is_multiple_of(4096)
            || !(2..=self.config.mqes + 1).contains(&entries)
        {
            self.wrong(format!("submission queue {id} is malformed"));
            return INVALID_FIELD;
        }
        self.submissions.insert(id, Submission { base: command.prp1(), entries, head: 0, tail: 0, completion });
        0
    }

    fn delete_submission(&mut self, id: u16) -> u16 {
        if id == 0 || self.submissions.remove(&id).is_none() {
            self.wrong(format!("submission queue {id} is deleted"));
            return INVALID_QUEUE;
        }
        self.held.retain(|command| command.queue != id);
        0
    }

    fn delete_completion(&mut self, id: u16) -> u16 {
        if self.submissions.values().any(|q| q.completion == id) || self.completions.remove(&id).is_none() {
            self.wrong(format!("completion queue {id} is deleted"));
            return INVALID_QUEUE;
        }
        0
    }

    /// Returns dword 0: 1 if the command was not aborted.
    fn abort(&mut self, queue: u16, cid: u16) -> u32 {
        self.aborts.push((queue, cid));
        let found = self.held.iter().position(|c| c.queue == queue && c.cid() == cid);
        match found {
            Some(at) if !self.faults.refuse_abort => {
                self.held.remove(at);
                self.complete(queue, cid, 0, ABORT_REQUESTED);
                0
            }
            _ => 1,
        }
    }

    fn log_page(&mut self, command: &Command, id: u32) -> u16 {
        let bytes = ((command.dwords[10] >> 16) as usize + 1) * 4;
        let mut data = vec![0; bytes];
        let mut put = |at: usize, from: &[u8]| {
            if let Some(place) = data.get_mut(at..at + from.len()) {
                place.copy_from_slice(from);
            }
        };
        match id {
            1 => {
                put(0, &1_u64.to_le_bytes());
                put(8, &1_u16.to_le_bytes());
                put(12, &(0x281_u16 << 1).to_le_bytes());
                put(16, &7_u64.to_le_bytes());
                put(24, &1_u32.to_le_bytes());
            }
            2 => {
                put(0, &[self.warnings, 0x2c, 0x01, 100, 10, 3]);
                put(144, &5_u64.to_le_bytes());
            }
            4 => put(0, &u32::MAX.to_le_bytes()),
            _ => return INVALID_FIELD,
        }
        if self.scatter(command.prp1(), command.prp2(), &data) { 0 } else { DATA_TRANSFER }
    }

    fn identify(&mut self, command: &Command, cns: u32) -> u16 {
        if self.faults.identify_fails == Some(cns) {
            return INVALID_FIELD;
        }
        let mut data = vec![0; 4096];
        let id = command.dwords[1];
        match cns {
            0 => match self.namespaces.iter().find(|n| n.id == id) {
                None => return INVALID_NAMESPACE,
                Some(n) => {
                    data[..8].copy_from_slice(&n.blocks().to_le_bytes());
                    data[8..16].copy_from_slice(&n.blocks().to_le_bytes());
                    data[120..128].copy_from_slice(&n.eui64);
                    let format = n.shift << 16 | u32::from(n.metadata);
                    data[128..132].copy_from_slice(&format.to_le_bytes());
                }
            },
            1 => self.identify_controller(&mut data),
            2 => {
                let ids = self.namespaces.iter().map(|n| n.id).filter(|n| *n > id);
                for (place, id) in data.chunks_exact_mut(4).zip(ids) {
                    place.copy_from_slice(&id.to_le_bytes());
                }
            }
            _ => return INVALID_FIELD,
        }
        for (_, at, bytes) in self.faults.identify.iter().filter(|(which, ..)| *which == cns) {
            for (place, byte) in data.iter_mut().skip(*at).zip(bytes) {
                *place = *byte;
            }
        }
        if self.scatter(command.prp1(), command.prp2(), &data) { 0 } else { DATA_TRANSFER }
    }

    fn identify_controller(&self, data: &mut [u8]) {
        let text = |place: &mut [u8], text: &str| {
            place.fill(b' ');
            place.iter_mut().zip(text.bytes()).for_each(|(place, byte)| *place = byte);
        };
        data[0..2].copy_from_slice(&0x1b36_u16.to_le_bytes());
        text(&mut data[4..24], &self.config.serial);
        text(&mut data[24..64], "Model of a disk");
        text(&mut data[64..72], "1.0");
        data[77] = self.config.mdts;
        data[80..84].copy_from_slice(&0x0002_0000_u32.to_le_bytes());
        data[92..96].copy_from_slice(&(1_u32 << 8).to_le_bytes());
        data[111] = 1;
        (data[258], data[259]) = (3, 3);
        (data[512], data[513]) = (0x66, 0x44);
        data[516..520].copy_from_slice(&(self.namespaces.len() as u32).to_le_bytes());
        data[520..522].copy_from_slice(&self.config.oncs.to_le_bytes());
        data[525] = u8::from(self.config.cache);
    }
}
