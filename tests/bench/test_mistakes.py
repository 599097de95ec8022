"""Mistakes of options: a message of one line, and nothing is computed or written."""

import pytest
from support.commands import read_error_line

MISTAKES = {
    "allreduce bench": [
        ("--bytes 5..2", "--bytes 5..2: use a size such as 46MB"),
        ("--bytes 2B", "--bytes 2B contains only 0 float32 elements"),
        ("--bytes 1KiB --arrays 257", "which is too few for --arrays 257"),
        ("--algorithms rign", "unknown algorithm 'rign'"),
        ("--algorithms nccl", "kvstore 'nccl'"),
        ("--algorithms auto --chunks 8", "algorithm auto chooses its own chunks"),
        ("--chunks 0", "--chunks 0: must be a whole number"),
        ("--dtype int8", "unknown dtype 'int8': choose float16"),
        ("--rounds 0", "--rounds 0: must be a whole number of at least 1"),
        ("--iters x", "--iters x: must be a whole number of at least 1"),
        ("--warmup -1", "--warmup -1: must be a whole number of at least 0"),
        ("--topology p5", "unknown topology 'p5'"),
        ("--topology p3.16xlarge --devices cpu*9", "p3.16xlarge has 8 devices"),
        ("--plot nowhere/speed.png", "the folder nowhere does not exist"),
        ("--out-file ring.html", "unknown option '--out-file'"),
        ("--hosts 2", "unknown option '--hosts'"),
        ("--processes gloo", "unknown backend 'gloo'"),
        ("--processes dist_sync --dtype float64", "omit --dtype"),
        ("--processes dist_sync --devices cpu", "use --devices cpu*N"),
    ],
    "allreduce simulate": [
        ("", "TOPOLOGY is missing"),
        ("p3.16xlarge --devices 0", "--devices 0: must be a whole number"),
        ("p3.16xlarge --algorithms device", "unknown algorithm 'device'"),
        ("p3.16xlarge --dtype float16", "unknown option '--dtype'"),
    ],
    "allreduce draw": [
        ("", "ALGORITHM is missing"),
        ("ring --devices -1", "--devices -1: must be a whole number"),
        ("ring --bytes 1KiB", "unknown option '--bytes'"),
        ("ring --json", "unknown option '--json'"),
        ("ring --language ja", "--language only applies to HTML pages"),
        ("ring --out-file ring.svg --language ja", "text and images are always in English"),
        ("ring --out-file nowhere/ring.html", "the folder nowhere does not exist"),
        ("ring --topology pcie --out-file a.svg", "not to pages or images"),
        ("multi_ring --chunks 3", "--chunks has no effect on multi_ring"),
    ],
    "allreduce solve": [
        ("p3.8xlarge --seconds 0", "--seconds 0: must be a whole number"),
        ("p3.8xlarge --chunks 2", "unknown option '--chunks'"),
        ("p3.8xlarge --out-file found.txt", "--out-file found.txt: must end in .json"),
    ],
    "allreduce choose": [
        ("--plot p.png", "unknown option '--plot'"),
        ("--algorithms ring", "unknown option '--algorithms'"),
        ("--simulate p3.8xlarge --rounds 3", "--rounds has no effect with --simulate"),
    ],
    "allreduce simulate g4dn.12xlarge": [
        ("--hosts 1:129", "--hosts"),
        ("--hosts 4:2", "--hosts 4:2: the smaller number must come first: use 2:4"),
        ("--hosts 1 --devices 4", "--devices has no effect with --hosts"),
        ("--hosts 1 --bytes 1KiB,2KiB", "--bytes 1KiB,2KiB: --hosts predicts times for only one size"),
        ("--hosts 8 --algorithms synthesized", "--algorithms synthesized: none of these algorithms"),
        ("--hosts 1 --algorithms auto", "--hosts does not support algorithm auto"),
    ],
    "pipeline": [
        ("--devices 0", "--devices 0: must be a whole number"),
        ("--devices nonsense", "'nonsense' is not a device"),
        ("--microbatches x", "--microbatches x: must be a whole number from 1 to 4096"),
        ("--stages-per-device 0", "--stages-per-device 0: must be a whole number"),
        ("--devices 100 --microbatches 4000", "100 stages and 4000 microbatches, but"),
        ("--costs 1", "--costs 1: must be 2 to 4 numbers"),
        ("--costs 0,2", "--costs 0: must be a number greater than 0"),
        ("--costs 1,2,-1", "--costs -1: must be a number of at least 0"),
        ("--costs 1,2/1,2", "--costs describes 2 stages, but sequential has 4: pass costs"),
        ("--draw 1f1b --costs 1,2/1,2", "2 stages, but 1f1b has 4"),
        ("--draw 1f2b", "unknown pipeline schedule '1f2b': choose 1f1b, gpipe"),
        ("--draw 1f1b --json", "--json has no effect with --draw"),
        ("--out-file p.html", "--out-file only applies to drawings: add --draw SCHEDULE"),
        ("--language ja", "--language only applies to drawings: add --draw SCHEDULE"),
        ("--draw gpipe --language ja", "--language only applies to HTML pages"),
        ("--draw gpipe --devices 17 --out-file p.svg", "too large to draw"),
        ("--draw gpipe --out-file nowhere/p.html", "the folder nowhere does not exist"),
    ],
    "processes": [
        ("--model lenet5", "unknown model 'lenet5'"),
        ("--scaling week", "unknown scaling 'week'"),
        ("--backends dist_sync,gloo", "unknown backend 'gloo'"),
        ("--processes 0", "--processes 0: must be a whole number"),
        ("--device-counts 1,x", "--device-counts x: must be a whole number"),
    ],
    "strategies": [
        ("--model lanet", "unknown model 'lanet': choose alexnet, "),
        ("--model lenet --microbatches 0", "--microbatches 0: must be a whole number"),
        ("--model lenet --microbatches 129", "--microbatches 129: must be a whole number"),
        ("--devices cpu:0", "the number of devices must be from 2 to 8"),
        ("--devices cpu*9", "the number of devices must be from 2 to 8"),
    ],
    "links": [
        ("--save m.txt", "--save m.txt: must end in .json"),
        ("--save nowhere/m.json", "the folder nowhere does not exist"),
        ("--bytes 1MiB", "latency and bandwidth requires at least two sizes"),
        ("--rounds 0", "--rounds 0"),
        ("--devices cpu", "a link connects two devices: pass at least two devices"),
        ("--nvml", "--nvml saves the links that the driver reports: set the output file"),
        ("--nvml --save m.json --rounds 7", "--rounds has no effect with --nvml"),
        ("--nvml --save m.json --devices cpu*2", "--devices has no effect with --nvml"),
    ],
}


@pytest.mark.cpu_only("mistakes are found before anything is computed")
@pytest.mark.parametrize(
    ("words", "message"), [(f"{name} {words}", message) for name, rows in MISTAKES.items() for words, message in rows]
)
def test_a_mistake_is_one_line_and_leaves_nothing(words, message, bench, allreduce, empty_cwd):
    group, _, rest = words.partition(" ")
    result = allreduce(*rest.split()) if group == "allreduce" else bench(*words.split())
    assert message in read_error_line(result, empty_cwd)
