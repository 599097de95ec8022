"""Reader of TensorBoard event files without tensorboardX: TFRecord records, protobuf messages."""

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
    """Yield the records, without a truncated last one, as TensorBoard does."""
    while len(content) >= 12:
        length = struct.unpack("<Q", content[:8])[0]
        assert struct.unpack("<I", content[8:12])[0] == masked_crc32c(content[:8])
        if len(content) < 16 + length:
            return
        record, crc = content[12 : 12 + length], content[12 + length : 16 + length]
        assert struct.unpack("<I", crc)[0] == masked_crc32c(record)
        yield record
        content = content[16 + length :]


def read_varint(data, offset):
    value = shift = 0
    while True:
        byte = data[offset]
        value, shift, offset = value | (byte & 127) << shift, shift + 7, offset + 1
        if byte < 128:
            return value, offset


def read_message(data):
    """Return {field number: values} of a message; values are integers or bytes."""
    fields, offset = defaultdict(list), 0
    while offset < len(data):
        key, offset = read_varint(data, offset)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, offset = read_varint(data, offset)
        else:
            length, offset = {1: (8, offset), 5: (4, offset)}.get(kind) or read_varint(data, offset)
            value, offset = data[offset : offset + length], offset + length
        fields[number].append(value)
    return fields


def read_events(folder):
    """Yield (wall time, step, fields) of the events of all files, in the order of file names."""
    for file in sorted(folder.glob("*.tfevents.*")):
        for record in read_records(file.read_bytes()):
            event = read_message(record)
            yield struct.unpack("<d", event[1][0])[0], (event[2] or [0])[0], event


def read_scalars(folder):
    """Return {tag: [(step, value)]} as TensorBoard shows them, without purged values."""
    points_by_tag = defaultdict(list)
    for _, step, event in read_events(folder):
        if event[7] and read_message(event[7][0])[1] == [START]:
            for tag, points in points_by_tag.items():
                points_by_tag[tag] = [point for point in points if point[0] < step]
        for summary in event[5]:
            for value in map(read_message, read_message(summary)[1]):
                if value[2]:
                    number = struct.unpack("<f", value[2][0])[0]
                    points_by_tag[value[1][0].decode()].append((step, number))
    return dict(points_by_tag)


def read_settings_text(folder):
    """Return the last text of the settings."""
    last = None
    for _, _, event in read_events(folder):
        for summary in event[5]:
            for value in map(read_message, read_message(summary)[1]):
                if value[1] == [b"settings/text_summary"]:
                    last = read_message(value[8][0])[8][0].decode()
    return last
