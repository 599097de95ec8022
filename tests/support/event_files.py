"""What event files hold, read without tensorboardX: records of TFRecord, messages of protobuf."""

import struct
from collections import defaultdict

START = 1  # of SessionLog.SessionStatus
POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected


def shift_crc(crc, bits=8):
    for _ in range(bits):
        crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
    return crc


CRC_TABLE = [shift_crc(byte) for byte in range(256)]


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def masked_crc32c(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read_records(content):
    """The records; one that is cut off at the end is left out, as TensorBoard does."""
    while len(content) >= 12:
        length = struct.unpack("<Q", content[:8])[0]
        assert struct.unpack("<I", content[8:12])[0] == masked_crc32c(content[:8])
        if len(content) < 16 + length:
            return
        record, crc = content[12 : 12 + length], content[12 + length : 16 + length]
        assert struct.unpack("<I", crc)[0] == masked_crc32c(record)
        yield record
        content = content[16 + length :]


def read_varint(data, place):
    value = shift = 0
    while True:
        byte = data[place]
        value, shift, place = value | (byte & 127) << shift, shift + 7, place + 1
        if byte < 128:
            return value, place


def read_message(data):
    """Field number -> values: numbers as they are, all else as bytes."""
    found, place = defaultdict(list), 0
    while place < len(data):
        key, place = read_varint(data, place)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, place = read_varint(data, place)
        else:
            length, place = {1: (8, place), 5: (4, place)}.get(kind) or read_varint(data, place)
            value, place = data[place : place + length], place + length
        found[number].append(value)
    return found


def read_events(folder):
    """(wall time, step, fields of the Event) of all event files, in the order of their names."""
    for file in sorted(folder.glob("*.tfevents.*")):
        for record in read_records(file.read_bytes()):
            event = read_message(record)
            yield struct.unpack("<d", event[1][0])[0], (event[2] or [0])[0], event


def read_scalars(folder):
    """Tag -> [(step, value)], without what a later file purges, as TensorBoard shows them."""
    found = defaultdict(list)
    for _, step, event in read_events(folder):
        if event[7] and read_message(event[7][0])[1] == [START]:
            for tag, points in found.items():
                found[tag] = [point for point in points if point[0] < step]
        for summary in event[5]:
            for value in map(read_message, read_message(summary)[1]):
                if value[2]:
                    number = struct.unpack("<f", value[2][0])[0]
                    found[value[1][0].decode()].append((step, number))
    return dict(found)


def read_settings_text(folder):
    """The last text."""
    last = None
    for _, _, event in read_events(folder):
        for summary in event[5]:
            for value in map(read_message, read_message(summary)[1]):
                if value[1] == [b"settings/text_summary"]:
                    last = read_message(value[8][0])[8][0].decode()
    return last
