//! Fast path: takes requests of the form that drivers send, many in one visit. The ring is looked up once for all of
//! them.
//!
//! The form: a header of 16 bytes in a descriptor of its own, data of one direction, and a status byte in a descriptor
//! of its own; in an indirect table, or in the table of a split ring. Requests whose data are one buffer have loops of
//! their own ([`Form`]). The parts of any other chain are found by
//! [`crate::header`], one request at a time. Checks and storage are the same on both paths. A request that is not
//! for the storage after the checks goes to the other path too, which answers it.

use engine::device::Device;
use engine::schedule::{Portion, Served};
use memory::span::{Piece, Prefix};
use virtio::chain::{ChainDescriptor, ChainLimits, Segment, Segments, Span};
use virtio::queue::{Batch, Entries, Peek, Purpose, Regions, RingDescriptor, Used as _};

use crate::check::{Data, Driver, Rules};
use crate::counters::BlockCounters;
use crate::flushes::Flushes;
use crate::header::HEADER_BYTES;
use crate::in_flight::{Entry, InFlight, MAX_IN_FLIGHT};
use crate::outcome;
use crate::storage::{Geometry, Operation, Request, Status, Submitted, Target};

/// Why the fast path has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// No request is left.
    Empty,
    /// The portion is used up, or the ring begins anew after the requests that were seen.
    GoOn,
    /// There is no room for the next request.
    Busy,
    /// The next request is for the other path.
    Unusual,
}

/// Most bytes of a request's data: those of the whole chain fit in 32 bits.
const MOST_BYTES: u32 = u32::MAX - HEADER_BYTES as u32 - 1;

/// The parts of a request of the usual form. Its data are the bytes of the list of buffers.
struct Usual<'d> {
    /// The header.
    header: Prefix<'d, HEADER_BYTES>,
    /// Bytes of the data.
    bytes: u32,
    data: Data,
    /// The status byte, and its guest-physical address.
    status: Prefix<'d, 1>,
    status_at: u64,
}

/// Which requests a loop takes. Each loop is compiled for its form.
trait Form {
    /// The data are one buffer, so the chain has three descriptors.
    const SINGLE: bool;
    /// With `SINGLE`: the chain is in the table of a split ring, not in an indirect table.
    const LINKED: bool;
}

/// Requests with one buffer of data, in an indirect table.
struct Table;
impl Form for Table {
    const SINGLE: bool = true;
    const LINKED: bool = false;
}

/// Requests with one buffer of data, in the table of a split ring.
struct Linked;
impl Form for Linked {
    const SINGLE: bool = true;
    const LINKED: bool = true;
}

/// All requests of the usual form.
struct Any;
impl Form for Any {
    const SINGLE: bool = false;
    const LINKED: bool = false;
}

/// Finds the parts of a chain of three descriptors: the form of a request with one buffer. Returns the buffer too. Returns
/// `None` if the chain has another form, or breaks a rule.
#[inline(always)]
fn usual_single<'d, L: Entries<'d>, F: Form>(
    batch: &mut Batch<'d>,
    entries: &L,
    first: &RingDescriptor,
    regions: &mut Regions<'d>,
) -> Option<(Usual<'d>, [Segment; 1], Piece<'d>)> {
    let is_good = |number, descriptor: &ChainDescriptor| match number {
        0 => descriptor.is_readable() & (descriptor.len == HEADER_BYTES as u32),
        1 => descriptor.is_readable() | descriptor.is_writable(),
        _ => descriptor.is_writable() & (descriptor.len == 1),
    };
    let [head, body, status] = if F::LINKED {
        batch.chain_of_three(entries, first, is_good)?
    } else {
        batch.table_of_three::<L>(first, regions, is_good)?
    };
    let data = if body.is_writable() { Data::ToGuest } else { Data::FromGuest };
    // 1 to `MOST_BYTES` bytes.
    if body.len.wrapping_sub(1) >= MOST_BYTES {
        return None;
    }
    let header = batch.buffer_at(head.addr, HEADER_BYTES as u32, Purpose::Control, regions)?.first::<HEADER_BYTES>()?;
    let piece = batch.buffer_at(body.addr, body.len, Purpose::Data, regions)?;
    let status_byte = batch.buffer_at(status.addr, 1, Purpose::Control, regions)?.first::<1>()?;
    let usual = Usual { header, bytes: body.len, data, status: status_byte, status_at: status.addr };
    Some((usual, [Segment { gpa: body.addr, len: body.len }], piece))
}

/// Finds the parts of the chain that starts with `first`. `buffers` gets those of its data. Returns `None` if it has
/// another form, or breaks a rule.
#[inline(always)]
fn usual<'d, L: Entries<'d>>(
    batch: &mut Batch<'d>,
    entries: &L,
    limits: ChainLimits,
    first: &RingDescriptor,
    regions: &mut Regions<'d>,
    buffers: &mut Segments,
) -> Option<Usual<'d>> {
    let mut chain = batch.descriptors(entries, limits, first, regions)?;
    let head = chain.read()?;
    if !head.is_readable() || head.len != HEADER_BYTES as u32 || head.last {
        return None;
    }
    let header = batch.buffer_at(head.addr, head.len, Purpose::Control, regions)?.first::<HEADER_BYTES>()?;
    let mut descriptor = chain.read()?;
    let data = if descriptor.is_writable() { Data::ToGuest } else { Data::FromGuest };
    let mut bytes = 0_u32;
    buffers.clear();
    // A loop of descriptors ends when the list is full.
    while !descriptor.last {
        let fits = match data {
            Data::ToGuest => descriptor.is_writable(),
            Data::FromGuest => descriptor.is_readable(),
        };
        if !fits || descriptor.len == 0 {
            return None;
        }
        bytes = bytes.checked_add(descriptor.len)?;
        batch.buffer_at(descriptor.addr, descriptor.len, Purpose::Data, regions)?;
        if !buffers.push(Segment { gpa: descriptor.addr, len: descriptor.len }) {
            return None;
        }
        descriptor = chain.read()?;
    }
    // The rules for chains: their bytes fit in 32 bits, and they have no more descriptors than the queue.
    let fits = bytes <= MOST_BYTES && buffers.all().len().saturating_add(2) <= usize::from(limits.descriptors);
    if !fits || !descriptor.is_writable() || descriptor.len != 1 {
        return None;
    }
    let status = batch.buffer_at(descriptor.addr, 1, Purpose::Control, regions)?.first::<1>()?;
    Some(Usual { header, bytes, data, status, status_at: descriptor.addr })
}

/// What the fast path needs beside the queue.
pub struct Volume<'b, T> {
    /// What takes its requests.
    pub target: &'b mut T,
    pub in_flight: &'b mut InFlight,
    /// Requests of the device that are in flight.
    pub own_in_flight: &'b mut u16,
    pub segments: &'b mut Segments,
    pub geometry: &'b Geometry,
    pub counters: &'b BlockCounters,
    pub flushes: &'b mut Flushes,
    pub slot: usize,
}

/// Takes requests of the usual form from the beginning of a queue, up to a portion. `SINGLE`: only those whose data are
/// one buffer, in indirect tables if the driver has negotiated them. Returns what it took, and why it stopped.
#[inline(always)]
pub fn serve<T: Target, const SINGLE: bool>(
    volume: &mut Volume<'_, T>,
    device: &mut Device,
    queue: u16,
    portion: &Portion,
) -> (Served, Stopped) {
    let unusual = (Served::default(), Stopped::Unusual);
    let driver = Driver::of(device);
    let Some(mut batch) = device.batch(queue) else { return unusual };
    let limits = batch.limits();
    let Some(peek) = batch.peek(portion.requests as usize) else { return unusual };
    if peek.is_empty() {
        return (Served::default(), Stopped::Empty);
    }
    match peek {
        Peek::Split(entries) if !SINGLE => serve_entries::<_, _, Any>(volume, batch, &entries, &driver, portion),
        Peek::Packed(entries) if !SINGLE => serve_entries::<_, _, Any>(volume, batch, &entries, &driver, portion),
        Peek::Split(entries) if limits.allows_table(3) => {
            serve_entries::<_, _, Table>(volume, batch, &entries, &driver, portion)
        }
        Peek::Packed(entries) if limits.allows_table(3) => {
            serve_entries::<_, _, Table>(volume, batch, &entries, &driver, portion)
        }
        Peek::Split(entries) if limits.descriptors >= 3 => {
            serve_entries::<_, _, Linked>(volume, batch, &entries, &driver, portion)
        }
        Peek::Split(_) | Peek::Packed(_) => unusual,
    }
}

/// The same for one ring format.
#[inline(never)]
fn serve_entries<'d, T: Target, L: Entries<'d>, F: Form>(
    volume: &mut Volume<'_, T>,
    mut batch: Batch<'d>,
    entries: &L,
    driver: &Driver,
    portion: &Portion,
) -> (Served, Stopped) {
    let Volume { target, in_flight, own_in_flight, segments, geometry, counters, flushes, slot } = volume;
    let (mut regions, limits, most) = (batch.regions(), batch.limits(), entries.len());
    // Keeps the regions in memory. In registers they would cost more instructions a request, most of them around the copy.
    core::hint::black_box(&mut regions);
    let used = entries.used().written();
    // `writeback` is read after the requests were seen: a driver may have changed it before it offered them.
    let rules = Rules::new(geometry, driver, batch.memory());
    let mut holding = entries.holding();
    // Requests that may still become in flight. At 0 none does.
    let most_in_flight = MAX_IN_FLIGHT.saturating_sub(**own_in_flight);
    let mut room = most_in_flight;
    let mut all = 0_u64;
    // Requests that have ended, and those of them that were completed.
    let (mut ended, mut completed) = (0_usize, 0_usize);
    let mut i = 0_usize;
    let mut stopped = Stopped::GoOn;
    while i < most && all < portion.bytes {
        stopped = Stopped::Unusual;
        let first = if holding { entries.first::<true>(&batch, i) } else { entries.first::<false>(&batch, i) };
        let Some(first) = first else { break };
        let (usual, buffer, data);
        if F::SINGLE {
            let found = usual_single::<L, F>(&mut batch, entries, &first, &mut regions);
            let Some((found, one, piece)) = found else { break };
            (usual, buffer) = (found, one);
            data = Span::of_one(&buffer, piece);
        } else {
            let Some(found) = self::usual(&mut batch, entries, limits, &first, &mut regions, segments) else { break };
            usual = found;
            data = Span::new(segments.all(), usual.bytes);
        }
        let (kind, sector) = (usual.header.load_u32::<0>(), usual.header.load_u64::<8>());
        let checked = rules.transfer(kind, sector, usual.data, usual.bytes);
        let Some((operation, first_block, blocks)) = checked else { break };
        let Some(vacancy) = in_flight.vacancy().filter(|_| room != 0) else {
            stopped = Stopped::Busy;
            break;
        };
        let bytes = u64::from(usual.bytes);
        let request = Request { operation, first: first_block, blocks, data, memory: rules.memory() };
        match target.submit(vacancy.tag(), &request) {
            Submitted::Done(status) => {
                let (value, len) = outcome::answer(operation, bytes, status);
                outcome::count(counters, operation, status, bytes);
                if (operation, status) == (Operation::Write { durable: false }, Status::Ok) {
                    flushes.wrote();
                }
                usual.status.store(value);
                if len == 0 {
                    batch.complete(ended.wrapping_sub(completed), true);
                    entries.used().set(ended, first.label(), 0);
                    batch.complete(1, false);
                    completed = ended.wrapping_add(1);
                } else {
                    used.set(ended, first.label(), len);
                }
                ended = ended.wrapping_add(1);
            }
            Submitted::Pending => {
                batch.complete(ended.wrapping_sub(completed), true);
                completed = ended;
                holding = true;
                let token = batch.hold_next(first.id());
                let entry = Entry { token, slot: *slot as u8, operation, bytes, status: usual.status_at };
                vacancy.insert(entry, || flushes.before());
                room = room.wrapping_sub(1);
            }
            Submitted::Busy => {
                stopped = Stopped::Busy;
                break;
            }
        }
        stopped = Stopped::GoOn;
        all = all.wrapping_add(bytes);
        i = i.wrapping_add(1);
    }
    batch.complete(ended.wrapping_sub(completed), true);
    batch.finish_held();
    **own_in_flight = own_in_flight.wrapping_add(most_in_flight.wrapping_sub(room));
    (Served::new(i as u32, all), stopped)
}
