"""Mistakes of options: a message of one line, and nothing is computed or written."""

import pytest
from support.commands import read_error_line

MISTAKES = {
    "allreduce": [
        ("--sizes 5..2", "--sizes 5..2: give sizes such as 46MB"),
        ("--sizes 2B", "--sizes 2B are 0 elements of float32"),
        ("--sizes 1KiB --arrays 257", "and --arrays is 257"),
        ("--algorithms rign", "unknown algorithm 'rign'"),
        ("--algorithms nccl", "kvstore 'nccl'"),
        ("--chunks 0", "--chunks 0: give a whole number"),
        ("--dtype int8", "unknown dtype 'int8': choose float16"),
        ("--rounds 0", "--rounds 0: give a whole number from 1 up"),
        ("--repeat x", "--repeat x: give a whole number from 1 up"),
        ("--topology p5", "unknown topology 'p5'"),
        ("--topology p3.16xlarge --devices cpu*9", "p3.16xlarge has 8 devices"),
        ("--plot nowhere/speed.png", "there is no folder nowhere"),
        ("--out ring.html", "--out has no effect when measuring"),
        ("--hosts 2", "--hosts has no effect when measuring; it belongs to --simulate"),
        ("--language ja", "--language has no effect when measuring; it belongs to --draw"),
        ("--seconds 3", "--seconds has no effect when measuring; it belongs to --synthesise"),
        ("--processes gloo", "unknown backend 'gloo'"),
        ("--processes dist_sync --dtype float64", "leave --dtype out"),
        ("--processes dist_sync --devices cpu", "two or more with --devices cpu*N"),
        ("--processes dist_sync --simulate p3.16xlarge", "has no effect with --simul"),
        ("--simulate p3.16xlarge --devices 0", "--devices 0: give a whole number"),
        ("--simulate p3.16xlarge --algorithms device", "unknown algorithm 'device'"),
        ("--simulate p3.16xlarge --dtype float16", "--dtype has no effect with --simulate"),
        ("--draw ring --devices -1", "--devices -1: give a whole number"),
        ("--draw ring --sizes 1KiB", "--sizes has no effect with --draw"),
        ("--draw ring --json", "--json has no effect with --draw"),
        ("--draw ring --language ja", "--language is for a page: give --out FILE.html"),
        ("--draw ring --out ring.svg --language ja", "texts and pictures are English"),
        ("--draw ring --out nowhere/ring.html", "there is no folder nowhere"),
        ("--draw ring --topology pcie --out a.svg", "--topology has no effect on pages"),
        ("--draw multi_ring --chunks 3", "--chunks has no effect on multi_ring"),
        ("--synthesise p3.8xlarge --seconds 0", "--seconds 0: give a whole number"),
        ("--synthesise p3.8xlarge --chunks 2", "no effect with --synthesise"),
        ("--synthesise p3.8xlarge --out found.txt", "--out found.txt: give a name that ends in .j"),
        ("--choose --plot p.png", "--plot has no effect with --choose"),
        ("--choose --algorithms ring", "--algorithms has no effect with --choose"),
        ("--choose --simulate p3.8xlarge --rounds 3", "--rounds has no effect with --simulate"),
    ],
    "allreduce --simulate g4dn.12xlarge": [
        ("--hosts 1:129", "--hosts"),
        ("--hosts 4:2", "--hosts 4:2: write the smaller number first, 2:4"),
        ("--hosts 1 --devices 4", "--devices has no effect with --hosts"),
        ("--hosts 1 --sizes 1KiB,2KiB", "--sizes 1KiB,2KiB: with --hosts one size"),
        ("--hosts 8 --algorithms synthesised", "--algorithms synthesised: there are"),
        ("--hosts 1 --algorithms auto", "--algorithms auto is always one"),
        ("--algorithms auto --chunks 8", "auto cuts buffers itself"),
    ],
    "pipeline": [
        ("--devices 0", "--devices 0: give a whole number"),
        ("--devices nonsense", "'nonsense' is not a device"),
        ("--microbatches x", "--microbatches x: give a whole number from 1 to 4096"),
        ("--stages-per-device 0", "--stages-per-device 0: give a whole number"),
        ("--devices 100 --microbatches 4000", "100 stages x 4000 microbatches: up to"),
        ("--costs 1", "--costs 1: give the milliseconds of forward and backward"),
        ("--costs 0,2", "--costs 0: give a number above 0"),
        ("--costs 1,2,-1", "--costs -1: give a number from 0"),
        ("--costs 1,2/1,2", "--costs gives those of 2 stages, and sequential has 4: give one"),
        ("--draw 1f1b --costs 1,2/1,2", "of 2 stages, and 1f1b has 4"),
        ("--draw 1f2b", "unknown pipeline schedule '1f2b': choose 1f1b, gpipe"),
        ("--draw 1f1b --json", "--json has no effect with --draw"),
        ("--out p.html", "--out is for a drawing: give --draw SCHEDULE"),
        ("--language ja", "--language is for a drawing: give --draw SCHEDULE"),
        ("--draw gpipe --language ja", "--language is for a page: give --out FILE.html"),
        ("--draw gpipe --devices 17 --out p.svg", "too large to draw"),
        ("--draw gpipe --out nowhere/p.html", "there is no folder nowhere"),
    ],
    "scaling": [
        ("--network lenet5", "unknown network 'lenet5'"),
        ("--scaling week", "unknown scaling 'week'"),
        ("--backends dist_sync,gloo", "unknown backend 'gloo'"),
        ("--processes 0", "--processes 0: give a whole number"),
        ("--gpus 1,x", "--gpus x: give a whole number"),
    ],
    "splits": [
        ("--network lanet", "unknown network 'lanet': choose alexnet, "),
        ("--network lenet --microbatches 0", "--microbatches 0: give a whole number"),
        ("--network lenet --microbatches 129", "--microbatches 129: give a whole number"),
        ("--devices cpu:0", "a network is split over 2 to 8 devices"),
        ("--devices cpu*9", "a network is split over 2 to 8 devices"),
    ],
    "links": [
        ("--save m.txt", "--save m.txt: give a name that ends in .json"),
        ("--save nowhere/m.json", "there is no folder nowhere"),
        ("--sizes 1MiB", "latency and bandwidth need two sizes"),
        ("--rounds 0", "--rounds 0"),
        ("--devices cpu", "links are between two devices: give two or more"),
        ("--nvml", "--nvml writes what the driver reports: give a file, --save m.json"),
        ("--nvml --save m.json --rounds 7", "--rounds has no effect with --nvml"),
        ("--nvml --save m.json --devices cpu*2", "--devices has no effect with --nvml"),
    ],
}


@pytest.mark.cpu_only("mistakes are found before anything is computed")
@pytest.mark.parametrize(
    ("words", "message"), [(f"{name} {words}", message) for name, rows in MISTAKES.items() for words, message in rows]
)
def test_a_mistake_is_one_line_and_leaves_nothing(words, message, bench, empty_cwd):
    assert message in read_error_line(bench(*words.split()), empty_cwd)
