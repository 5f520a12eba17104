//! Requests at the start of the machine, before an engine has the queue: one after another, each waited for.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use nvme::dma::{Dma, Segment};
use nvme::registers::Registers;
use nvme::{BusMaster, Controller, IoQueue, Operation, Refused, Request, Status};

/// Most microseconds that a request may take: the driver's time for a command, an Abort and a reset, and some more.
const TIME: u64 = 60_000_000;
/// Most segments of a write of zeroes.
const SEGMENTS: usize = 128;

/// A controller whose queue is not in use yet.
pub struct AtStart<'d, R, D, B> {
    controller: &'d mut Controller<R, B>,
    queue: &'d mut IoQueue<R, D>,
    now: &'d mut dyn FnMut() -> u64,
    /// A request was not answered. The device may still use its memory.
    is_stuck: bool,
    /// Identifies the last request. The numbers are above those of an engine's requests.
    last: u32,
}

/// The first identifier is the one behind this.
const IDS: u32 = 1 << 31;

impl<'d, R: Registers + Clone, D: Dma, B: BusMaster> AtStart<'d, R, D, B> {
    /// Takes a controller that runs. `now` tells microseconds.
    pub fn new(
        controller: &'d mut Controller<R, B>,
        queue: &'d mut IoQueue<R, D>,
        now: &'d mut dyn FnMut() -> u64,
    ) -> Self {
        Self { controller, queue, now, is_stuck: false, last: IDS }
    }

    /// Sends a request, and waits for its end. The request's own identifier has no meaning.
    ///
    /// # Errors
    /// It was refused, has failed, or has no answer within a minute. Then all further requests fail: the device may still use
    /// the segments of that one.
    pub fn ask(&mut self, request: &Request, segments: &[Segment]) -> Result<(), String> {
        if self.is_stuck {
            return Err("an earlier request was not answered".into());
        }
        self.last = self.last.wrapping_add(1) | IDS;
        let request = Request { id: self.last, ..*request };
        let (begin, mut submitted, mut answer) = ((self.now)(), false, None);
        while answer.is_none() {
            let now = (self.now)();
            if now.saturating_sub(begin) > TIME {
                self.is_stuck = true;
                return Err(format!("no answer within {} s", TIME / 1_000_000));
            }
            if !submitted {
                match self.queue.submit(&request, segments, now) {
                    Ok(()) => submitted = true,
                    Err(Refused::Busy) => {}
                    Err(why) => return Err(format!("refused: {why:?}")),
                }
                self.queue.notify();
            }
            self.controller.service(now);
            self.queue.poll(now, |id, status| {
                // Another one's answer comes late.
                if id == request.id {
                    answer = Some(status);
                }
            });
            core::hint::spin_loop();
        }
        match answer {
            None | Some(Status::Ok) => Ok(()),
            Some(status) => Err(format!("{status:?}")),
        }
    }

    /// Makes blocks of a namespace read as zeroes, and flushes. Uses Write Zeroes; a controller without it gets data:
    /// `zeroes`, a segment of 4,096 zeroes, as often as needed.
    ///
    /// # Errors
    /// The namespace does not exist or is shorter, or a request fails. Some of the blocks are zeroes then.
    pub fn wipe(&mut self, namespace: u32, first: u64, blocks: u64, zeroes: Segment) -> Result<(), String> {
        let found = self.queue.namespace(namespace).zip(self.queue.limits(namespace));
        let (format, limits) = found.ok_or("there is no such namespace")?;
        let end = first.checked_add(blocks).filter(|end| *end <= format.blocks).ok_or("it has fewer blocks")?;
        let in_page = u64::from(zeroes.len()) >> format.shift;
        let list: Vec<Segment> = core::iter::repeat_n(zeroes, SEGMENTS.min(limits.segments as usize)).collect();
        let most = match limits.zero_blocks {
            0 => u64::from(limits.data_blocks).min(in_page.saturating_mul(list.len() as u64)),
            most => most.into(),
        };
        // Data is in whole segments, except for the last.
        let most = if limits.zero_blocks == 0 {
            most.checked_rem(in_page).map_or(0, |rest| most.saturating_sub(rest))
        } else {
            most
        };
        if most == 0 {
            return Err("it takes no writes of a page".into());
        }
        let mut at = first;
        while at < end {
            let now = end.saturating_sub(at).min(most);
            let request = |operation| Request { id: 0, namespace, operation, first: at, blocks: now as u32 };
            let done = if limits.zero_blocks != 0 {
                self.ask(&request(Operation::WriteZeroes { deallocate: true, fua: false }), &[])
            } else {
                self.write(&request(Operation::Write { fua: false }), now << format.shift, &list)
            };
            done.map_err(|why| format!("blocks {at} to {}: {why}", at.saturating_add(now).saturating_sub(1)))?;
            at = at.saturating_add(now);
        }
        let flush = Request { id: 0, namespace, operation: Operation::Flush, first: 0, blocks: 0 };
        self.ask(&flush, &[]).map_err(|why| format!("the flush: {why}"))
    }

    /// Writes the first `bytes` of segments of equal lengths.
    fn write(&mut self, request: &Request, bytes: u64, segments: &[Segment]) -> Result<(), String> {
        let mut left = bytes;
        let cut = segments.iter().map_while(|segment| {
            let len = left.min(segment.len().into());
            left = left.saturating_sub(len);
            (len != 0).then(|| segment.first(len as u32))
        });
        let cut: Vec<Segment> = cut.collect();
        self.ask(request, &cut)
    }
}
