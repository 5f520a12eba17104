#!/usr/bin/env python3
"""Checks a Perfetto export against Perfetto's published schema, which its Python package has.

    pip install --target FOLDER perfetto protobuf
    PYTHONPATH=FOLDER judge.py FILE [--slices NAME=COUNT]...

What must hold: every packet decodes and has no field that the schema does not know; sequences are trusted, and the first
packet clears the state; tracks have unique numbers, and parents that were described before; begins and ends are paired and
nested; time stamps never go back on a track. --slices: so many slices of this name are on the tracks below `guests`.
"""

import argparse
import collections
import sys

from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent


def fail(sentence):
    sys.exit(f"judge.py: {sentence}")


def unknown(message, where):
    """Fails if the message, or one in it, has a field that is not in the schema."""
    if len(UnknownFieldSet(message)):
        fail(f"{where} has unknown fields: {[f.field_number for f in UnknownFieldSet(message)]}")
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for part in value if field.is_repeated else [value]:
            unknown(part, f"{where}.{field.name}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--slices", action="append", default=[], metavar="NAME=COUNT")
    arguments = parser.parse_args()

    trace = Trace()
    with open(arguments.file, "rb") as file:
        trace.ParseFromString(file.read())
    if not trace.packet:
        fail("no packet")

    names, parents = {}, {}
    open_slices = collections.defaultdict(list)
    last = collections.defaultdict(int)
    guests = collections.Counter()
    events = 0
    for number, packet in enumerate(trace.packet):
        where = f"packet {number}"
        unknown(packet, where)
        if packet.trusted_packet_sequence_id == 0:
            fail(f"{where} has no trusted sequence")
        if (number == 0) != bool(packet.sequence_flags & packet.SEQ_INCREMENTAL_STATE_CLEARED):
            fail(f"{where}: only the first packet clears the state")
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            if track.uuid == 0 or track.uuid in names:
                fail(f"{where}: the track's number {track.uuid} is 0 or was there before")
            if track.HasField("parent_uuid"):
                if track.parent_uuid not in names:
                    fail(f"{where}: the parent of `{track.name}` was not described")
                parents[track.uuid] = track.parent_uuid
            names[track.uuid] = track.name
        elif packet.HasField("track_event"):
            events += 1
            event = packet.track_event
            track = event.track_uuid
            if track not in names:
                fail(f"{where} is on a track that was not described")
            if not packet.HasField("timestamp") or packet.timestamp < last[track]:
                fail(f"{where}: time goes back on `{names[track]}`")
            last[track] = packet.timestamp
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                open_slices[track].append(event.name)
                root = track
                while root in parents:
                    root = parents[root]
                if names[root] == "guests":
                    guests[event.name] += 1
            elif event.type == TrackEvent.TYPE_SLICE_END:
                if not open_slices[track]:
                    fail(f"{where} ends what has not begun on `{names[track]}`")
                open_slices[track].pop()
            elif event.type != TrackEvent.TYPE_INSTANT:
                fail(f"{where} has the type {event.type}")
    for track, left in open_slices.items():
        if left:
            fail(f"{left} do not end on `{names[track]}`")
    for wanted in arguments.slices:
        name, _, count = wanted.rpartition("=")
        if guests[name] != int(count):
            fail(f"{guests[name]} slices `{name}` on the guests' tracks, expected {count}")
    print(f"{len(trace.packet)} packets, {len(names)} tracks, {events} events: all sound")


if __name__ == "__main__":
    main()
