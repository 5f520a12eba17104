//! The messages of Perfetto's trace format that this program writes (`protos/perfetto/trace/trace_packet.proto` and the
//! files that it includes). Fields and numbers are Perfetto's. Fields that are never written are left out: a reader of the
//! format treats them as absent.

use prost::{Enumeration, Message, Oneof};

/// `Trace`: the whole file. Since `packet` is repeated, files of single packets may be put one behind the other.
#[derive(Clone, PartialEq, Message)]
pub struct Trace {
    /// The packets.
    #[prost(message, repeated, tag = "1")]
    pub packet: Vec<Packet>,
}

/// `TracePacket`.
#[derive(Clone, PartialEq, Message)]
pub struct Packet {
    /// In ns of [`CLOCK`].
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// `trusted_packet_sequence_id`: not 0. Packets of one sequence are in their order of time.
    #[prost(uint32, optional, tag = "10")]
    pub sequence: Option<u32>,
    /// `sequence_flags`: [`STATE_CLEARED`] in the first packet of the sequence.
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    /// `first_packet_on_sequence`.
    #[prost(bool, optional, tag = "87")]
    pub first: Option<bool>,
    /// What it says.
    #[prost(oneof = "Data", tags = "6, 11, 60")]
    pub data: Option<Data>,
}

/// The kinds of packets.
#[derive(Clone, PartialEq, Oneof)]
pub enum Data {
    /// `clock_snapshot`.
    #[prost(message, tag = "6")]
    Clocks(Clocks),
    /// `track_event`.
    #[prost(message, tag = "11")]
    Event(TrackEvent),
    /// `track_descriptor`.
    #[prost(message, tag = "60")]
    Track(Track),
}

/// `SEQ_INCREMENTAL_STATE_CLEARED`.
pub const STATE_CLEARED: u32 = 1;
/// `BUILTIN_CLOCK_BOOTTIME`, the clock of time stamps: ns since the TSC was 0.
pub const CLOCK: u32 = 6;
/// `BUILTIN_CLOCK_REALTIME`.
pub const WALL_CLOCK: u32 = 1;

/// `ClockSnapshot`: what several clocks showed at one moment.
#[derive(Clone, PartialEq, Message)]
pub struct Clocks {
    /// The clocks.
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<Clock>,
}

/// `ClockSnapshot.Clock`.
#[derive(Clone, PartialEq, Message)]
pub struct Clock {
    /// Which.
    #[prost(uint32, optional, tag = "1")]
    pub clock_id: Option<u32>,
    /// What it showed, in ns.
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
}

/// `TrackDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub struct Track {
    /// Not 0.
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    /// The name that the viewer shows.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// The track that this one is shown below.
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    /// `child_ordering`: [`EXPLICIT`].
    #[prost(int32, optional, tag = "11")]
    pub child_ordering: Option<i32>,
    /// `sibling_order_rank`: the place among its parent's tracks.
    #[prost(int32, optional, tag = "12")]
    pub rank: Option<i32>,
}

/// `ChildTracksOrdering.EXPLICIT`: children are shown by their ranks.
pub const EXPLICIT: i32 = 3;

/// `TrackEvent`.
#[derive(Clone, PartialEq, Message)]
pub struct TrackEvent {
    /// `debug_annotations`.
    #[prost(message, repeated, tag = "4")]
    pub annotations: Vec<Annotation>,
    /// What kind of event.
    #[prost(enumeration = "EventType", optional, tag = "9")]
    pub r#type: Option<i32>,
    /// The track it is on.
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    /// `categories`.
    #[prost(string, repeated, tag = "22")]
    pub categories: Vec<String>,
    /// The name that the viewer shows.
    #[prost(string, optional, tag = "23")]
    pub name: Option<String>,
}

/// `TrackEvent.Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum EventType {
    /// Not given.
    Unspecified = 0,
    /// Something begins, in what last began on this track and has not ended.
    SliceBegin = 1,
    /// What last began on this track ends.
    SliceEnd = 2,
    /// Something without a length.
    Instant = 3,
}

/// `DebugAnnotation`: a name and a value.
#[derive(Clone, PartialEq, Message)]
pub struct Annotation {
    /// The name.
    #[prost(string, optional, tag = "10")]
    pub name: Option<String>,
    /// The value.
    #[prost(oneof = "Value", tags = "2, 3, 6, 7")]
    pub value: Option<Value>,
}

/// The values of annotations.
#[derive(Clone, PartialEq, Oneof)]
pub enum Value {
    /// Yes or no.
    #[prost(bool, tag = "2")]
    Flag(bool),
    /// A number.
    #[prost(uint64, tag = "3")]
    Number(u64),
    /// Text.
    #[prost(string, tag = "6")]
    Text(String),
    /// An address, shown in hexadecimal.
    #[prost(uint64, tag = "7")]
    Address(u64),
}
