"""What a step moves from device to device, told by shapes and schedules, and its price on links."""

from __future__ import annotations

from typing import Iterator, List, NamedTuple, Sequence

from mxnet import nd

from gluonlab.bench.splits.names import SUMS
from gluonlab.bench.splits.ways import Way
from gluonlab.collectives.algorithms import make_schedule
from gluonlab.collectives.cost import price, traffic
from gluonlab.collectives.links import Topology
from gluonlab.parallel.channels.replica import ChannelReplica
from gluonlab.parallel.channels.strategy import ChannelParallel
from gluonlab.parallel.data.strategy import DataParallel
from gluonlab.parallel.memory import Shards, Taken
from gluonlab.parallel.part import bytes_of
from gluonlab.parallel.pipeline.executor import Program
from gluonlab.parallel.pipeline.price import Costs
from gluonlab.parallel.pipeline.schedule import SEND_BACKWARD, SEND_FORWARD, Instruction


class Message(NamedTuple):
    """Bytes that one device sends another."""

    src: int
    dst: int
    size_bytes: int

    def seconds(self, topology: Topology) -> float:
        """Its price there."""
        route = topology.routes[self.src, self.dst]
        return route.latency_s + self.size_bytes / route.bytes_per_s


class Moves(NamedTuple):
    """Of a step: messages, and the sizes of what all ``devices`` sum by the schedule SUMS."""

    devices: int
    messages: List[Message]
    sums: List[int]

    @property
    def total_bytes(self) -> float:
        """All that devices send."""
        schedule = make_schedule(SUMS, self.devices)
        summed = (each.sent for size in self.sums for each in traffic(schedule, size))
        return sum(message.size_bytes for message in self.messages) + sum(summed)

    def seconds(self, topology: Topology) -> float:
        """The price of all, one after the other."""
        schedule = make_schedule(SUMS, self.devices)
        summed = sum(price(schedule, topology, size).seconds for size in self.sums)
        return sum(message.seconds(topology) for message in self.messages) + summed


def moves(way: Way) -> Moves:
    """What a step on several devices moves, once one has been queued."""
    assert way.plan is not None and way.strategy is not None and way.batch is not None
    devices = len(way.plan.ctxs)
    if way.staged is not None:
        return Moves(devices, list(_of_stages(way, devices)), [])
    if isinstance(way.strategy, ChannelParallel):
        [replica] = way.strategy.replicas
        assert isinstance(replica, ChannelReplica)
        inputs, sums = replica.moved()
        each = inputs // (devices - 1)
        return Moves(devices, [Message(0, other, each) for other in range(1, devices)], sums)
    assert isinstance(way.strategy, DataParallel)
    buckets = [bucket.grads[0] for bucket in way.strategy.trainer.buckets]
    return Moves(devices, [], [_bytes(bucket) for bucket in buckets])


def taken(way: Way) -> List[Taken]:
    """What each device takes, as --memory plans it."""
    assert way.plan is not None and way.strategy is not None
    of_copy = way.strategy.taken(Shards((way.plan.largest_share,)))
    return of_copy * len(way.plan.split.copies)


def _of_stages(way: Way, devices: int) -> Iterator[Message]:
    """Activations, their gradients, and the labels for the last device."""
    assert way.batch is not None
    program = way.program()
    for instruction in (each for own in program.schedule.programs for each in own):
        if instruction.op in (SEND_FORWARD, SEND_BACKWARD):
            message = _message(program, instruction)
            if message.size_bytes:
                yield message
    yield Message(0, devices - 1, _bytes(way.batch.ys[0]))


def _message(program: Program, send: Instruction) -> Message:
    to = send.stage + (1 if send.op == SEND_FORWARD else -1)
    device = program.schedule.device
    return Message(device(send.stage), device(to), program.message_bytes(send))


def _bytes(array: nd.NDArray) -> int:
    return bytes_of((array.shape, array.dtype))


def costs(
    program: Program,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    update_s: Sequence[float],
    topology: Topology,
) -> Costs:
    """Of a pipeline whose messages take such links; seconds of each stage for a microbatch."""
    transfers = []
    for stage in range(program.schedule.stages - 1):
        there, back = Instruction(SEND_FORWARD, stage, 0), Instruction(SEND_BACKWARD, stage + 1, 0)
        both = [_message(program, send).seconds(topology) for send in (there, back)]
        transfers.append((both[0], both[1]))
    return Costs(tuple(forward_s), tuple(backward_s), tuple(transfers), tuple(update_s))
