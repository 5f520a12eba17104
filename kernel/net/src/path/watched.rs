//! Shows frames to whoever watches them ([`crate::watch`]). Nothing here runs while no class of [`EACH_FRAME`] is on, but for
//! [`Bridge::show_drop`].

use nic::Received;
use trace::Classes;
use trace::capture::Way;
use virtio::counters::Counter;

use crate::batch::HEADER;
use crate::bridge::Bridge;
use crate::counters::{UplinkCounters, UplinkDrop};
use crate::current::{Current, NO_PORT};
use crate::path::ingress::IngressFrame;
use crate::uplink::Watched;
use crate::watch::{Batch, EACH_FRAME, FrameWatcher, Seen, Step, UplinkStep};

impl Bridge {
    /// Returns whether somebody wants to see each frame.
    #[inline(always)]
    pub(crate) fn is_watched(&self) -> bool {
        self.watcher_of(EACH_FRAME).is_some()
    }

    /// Who watches, if somebody wants to see one of these classes.
    #[inline(always)]
    fn watcher_of(&self, classes: Classes) -> Option<&'static dyn FrameWatcher> {
        self.watch.and_then(|watch| watch.of(classes))
    }

    /// Returns whether somebody wants to see a class.
    pub(crate) fn wants(&self, class: Classes) -> bool {
        self.watcher_of(class).is_some()
    }

    /// Shows a frame to whoever captures.
    fn show(&self, seen: &Seen<'_>) {
        if let Some(watcher) = self.watcher_of(Classes::CAPTURES) {
            watcher.seen(seen);
        }
    }

    /// Shows a step of a frame on the slow path.
    #[cold]
    #[inline(never)]
    pub(crate) fn show_step(&self, step: Step, port: usize, len: u32) {
        if let Some(watcher) = self.watcher_of(Classes::FRAMES) {
            watcher.step(step, port, len);
        }
    }

    /// Shows a batch of frames to whoever follows frames.
    pub(crate) fn show_steps(&self, batch: &Batch<'_>) {
        if let Some(watcher) = self.watcher_of(Classes::FRAMES) {
            watcher.batch(batch);
        }
    }

    /// Returns the number of a cause of drops at a port.
    pub(crate) fn cause(&self, port: usize, cause: &Counter) -> Option<u8> {
        // There are fewer than 256 causes.
        self.counters(port).drops.position(cause).map(|number| number as u8)
    }

    /// Shows a step of a frame from the wire.
    #[cold]
    #[inline(never)]
    pub(crate) fn show_at_uplink(&self, uplink: usize, step: UplinkStep, received: &Received<'_>) {
        if let Some(watcher) = self.watcher_of(Classes::FRAMES) {
            watcher.at_uplink(uplink, step, &[received.len() as u32]);
        }
    }

    /// Counts a frame from the wire that is dropped at the uplink, and shows it. It was taken at `now`.
    pub(crate) fn drop_from_wire(
        &self,
        uplink: usize,
        counters: &UplinkCounters,
        drop: UplinkDrop,
        received: &Received<'_>,
        now: u64,
    ) {
        Watched { watch: self.watch, number: uplink }.drop_frame(counters, drop, received.len() as u32, None);
        if self.wants(Classes::CAPTURES) {
            self.show_from_wire(uplink, received, now, Some(drop));
        }
    }

    /// Shows a frame from the wire to whoever captures, as it was on the wire: with the tag that the NIC has removed. It was taken
    /// at `now`.
    #[cold]
    #[inline(never)]
    pub(crate) fn show_from_wire(&self, uplink: usize, received: &Received<'_>, now: u64, dropped: Option<UplinkDrop>) {
        let frame = IngressFrame::new(received);
        let watched = Watched { watch: self.watch, number: uplink };
        watched.capture(Way::In, Some(now), frame.len(), frame.first(), dropped);
    }

    /// Shows a frame that was dropped, and that is counted elsewhere.
    #[cold]
    #[inline(never)]
    pub(crate) fn show_drop(&self, port: usize, cause: &Counter, bytes: u32) {
        if let Some(watch) = self.watch
            && let Some(number) = self.cause(port, cause)
        {
            watch.watcher.dropped(port, number, bytes);
            if port == self.current.port {
                self.current.dropped.set(Some(number));
            }
        }
    }

    /// Shows the frame of [`Current`], of `len` bytes, which was taken at `now`.
    #[cold]
    #[inline(never)]
    pub(crate) fn show_current(&mut self, len: u32, now: u64) {
        let Current { port, ref bytes, taken, ref dropped } = self.current;
        let bytes = bytes.get(..taken).unwrap_or(bytes);
        self.show(&Seen { port, way: Way::In, at: Some(now), len, bytes, dropped: dropped.get() });
        self.current.port = NO_PORT;
    }

    /// Shows a frame of `len` bytes that was given to port `to`, or dropped there. `front`: its first bytes.
    #[cold]
    #[inline(never)]
    pub(crate) fn show_out(&self, to: usize, len: u32, front: &[u8], dropped: Option<&Counter>) {
        let dropped = dropped.and_then(|cause| self.cause(to, cause));
        if dropped.is_none() {
            self.show_step(Step::Given, to, len);
        }
        self.show(&Seen { port: to, way: Way::Out, at: None, len, bytes: front, dropped });
    }

    /// Shows frame `number` of a batch from port `from`, taken at `now`, and at its receiver's port. Its first bytes are those of
    /// the batch's heads, of which `read` are the frame's. `bytes`: its bytes with the virtio-net header.
    #[inline]
    pub(crate) fn show_in_batch(
        &self,
        from: usize,
        fate: &BatchFate,
        number: usize,
        read: usize,
        bytes: u32,
        now: u64,
    ) {
        let Some(head) = self.heads.get(number) else { return };
        let (len, bytes) = (bytes.saturating_sub(HEADER), head.frame(read));
        let (taken, given) = match *fate {
            BatchFate::Refused(cause) => (cause, None),
            BatchFate::Given { to, dropped } => (None, Some((to, dropped))),
        };
        self.show(&Seen { port: from, way: Way::In, at: Some(now), len, bytes, dropped: taken });
        if let Some((to, dropped)) = given {
            self.show(&Seen { port: to, way: Way::Out, at: None, len, bytes, dropped });
        }
    }
}

/// What became of the frames of a batch. Causes are by number.
pub(crate) enum BatchFate {
    /// They were dropped at their sender's port.
    Refused(Option<u8>),
    /// They have come to port `to`.
    Given {
        to: usize,
        /// The cause, if they were dropped there.
        dropped: Option<u8>,
    },
}
