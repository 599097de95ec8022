"""Program that updates the tables of measurements in docs from the records in tools/figures.

`make bench` writes the records:

    make bench RECORDS=tools/figures && .venv/bin/python tools/figures.py

Each table stands between the lines `<!-- figures: NAME -->` and `<!-- end of figures -->`. Its
record is NAME.json. Records of other kinds of CPU are NAME@avx2.json, NAME@zen3.json and so on.
The kind is read from the record.
"""

import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this gluonlab

from benchmarks import checkpoints, frameworks, images, optimize, overhead, threads  # noqa: E402
from gluonlab.bench import scaling, splits  # noqa: E402
from gluonlab.bench.harness.confidence_interval import median_ratio  # noqa: E402
from gluonlab.bench.harness.measurement_record import read_record  # noqa: E402
from kinds_of_cpu import CASCADE_LAKE, ZEN_3, ZEN_4, ZEN_4_AVX2, cpu_kind  # noqa: E402

RECORDS = Path(__file__).resolve().parent / "figures"
PAGES = sorted((ROOT / "docs").glob("*.md"))
BLOCK = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end of figures -->\n)", re.S)
RIGHT, LEFT = "---:", "---"

LABELS = {
    "classic": "the classic Gluon loop, 2 devices, MXNet's defaults", "torch-eager": "PyTorch, 2 threads",
    "torch-channels-last": "PyTorch, 2 threads, channels last",
    "torch-compile": "PyTorch, 2 threads, torch.compile", "torch-ddp": "PyTorch DDP, gloo, 2 processes",
    "gluonlab-2x1": "gluonlab, 2 devices",
    "gluonlab-2x1-sharded-optimizer": "gluonlab, 2 devices, `sharded-optimizer`",
    "gluonlab-1x2": "gluonlab, 1 device, 2 threads", "gluonlab-1x1": "gluonlab, 1 device, 1 thread",
    "decoders": "gluonlab, 2 decoders", "packed": "gluonlab, packed",
    "record": "MXNet's ImageRecordIter, a .rec of the JPEGs",
    "gluon": "gluon's DataLoader, 2 workers, gluonlab's way to decode",
    "torch": "PyTorch's DataLoader, 2 workers, Pillow",
}  # fmt: skip


def format_table(heads, rows, right_from=1):
    """Return a Markdown table; its columns from `right_from` on are numbers."""
    rules = [LEFT] * right_from + [RIGHT] * (len(heads) - right_from)
    lines = [" | ".join(heads), "|".join(rules), *(" | ".join(row) for row in rows)]
    return re.sub(r"\|  (?=\|)", "| ", "".join(f"|{line if line is lines[1] else f' {line} '}|\n" for line in lines))


def format_columns_by_kind(records, head, heads_and_rows):
    """Return a Markdown table with separate columns for each record.

    `heads_and_rows(record)` returns the heads of the columns, and their cells by the row's label.
    """
    columns = [(cpu_kind(record.about), *heads_and_rows(record)) for record in records]
    heads = [head]
    for kind, (first, *others), _ in columns:
        heads += [f"{kind.short_name}: {first}", *others]
    labels = dict.fromkeys(label for _, _, rows in columns for label in rows)
    lines = [
        [label, *(cell for _, own, rows in columns for cell in rows.get(label, ["-"] * len(own)))] for label in labels
    ]
    return format_table(heads, lines)


def peers_table(*records):
    return format_columns_by_kind(records, "", _peers_rows)


def _peers_rows(record):
    rows = frameworks.make_rows(record.series)
    cells = {
        LABELS[row.name]: [f"{row.images_per_second:,.0f}", "" if row is rows[0] else f"{row.ratio:.2f}x"]
        for row in rows
        if row.images_per_second is not None
    }
    return ["images/s", f"speed-up of {LABELS[rows[0].name]}"], cells


def optimize_table(*records):
    return format_columns_by_kind(records, "images/s", _optimize_rows)


def _optimize_rows(record):
    cells = {
        f"{row.label}, batches of {row.batch}": [
            f"{row.plain:,.0f}",
            f"{row.optimized:,.0f}",
            f"{row.faster.value:.2f}x",
        ]
        for row in optimize.make_rows(record.series)
        if row.plain is not None
    }
    return ["original", "optimized", "speed-up"], cells


def host_table(record):
    rows = overhead.make_rows(record.series)
    return format_table(
        ["µs per step and device", "devices", *overhead.COLUMNS[:-1], "load and log"],
        [
            [row.label, str(row.devices), *(_format_whole(row.microseconds.get(name)) for name in overhead.COLUMNS)]
            for row in rows
            if row.microseconds
        ],
    )


def _format_whole(value):
    return "-" if value is None else f"{value:.0f}"


def images_table(record):
    cells = {}
    for row in images.make_rows(record.series):
        of_set, _, name = row.name.partition(": ")
        cells.setdefault(name, {})[of_set] = _images_cell(name, row)
    sets = list(dict.fromkeys(of_set for own in cells.values() for of_set in own))
    return format_table(
        ["images/s, compared with PyTorch", *sets],
        [[LABELS[name], *(own[of_set] for of_set in sets)] for name, own in cells.items()],
    )


def _images_cell(name, row):
    if row.images_per_second is None:
        return "-"
    beside = f" ({row.ratio:.2f}x)" if row.ratio is not None and name != images.PEER else ""
    return f"{row.images_per_second:,.0f}{beside}"


THREADS = {
    threads.OURS: "1,000 spins, gluonlab's setting",
    threads.REFERENCE: "300,000 spins, OpenMP's default",
    "passive": "`OMP_WAIT_POLICY=passive`",
    threads.SHARING: "two `dist_sync` workers that share the cores",
    threads.NOT_SHARING: "two that use all cores each, OpenMP's default",
}
NETWORKS = {"lenet": "LeNet", "mlp": "MLP"}
COMPANY = {"quiet": "on an idle machine", "beside": "with another process computing"}


def threads_table(record):
    heads = ["images/s, and relative to OpenMP's default"]
    heads += [f"{NETWORKS[network]} {COMPANY[company]}" for network, company in map(str.split, threads.column_names())]
    rows = threads.make_rows(record.series)
    cells = [
        [
            THREADS.get(row.name, row.label.replace("looks", "spins")),
            *(_threads_cell(row, name) for name in threads.column_names()),
        ]
        for row in rows
    ]
    busy = record.about.get("others", 0.0)
    note = (
        (f"\nOther programs kept {busy:.1f} of {record.about.get('cores')} cores busy during all of it.\n")
        if busy > 0.2
        else ""
    )
    return format_table(heads, cells) + note


def _threads_cell(row, column):
    if column not in row.rates:
        return ""
    beside = f" ({row.ratios[column]:.2g}x)" if column in row.ratios and row.name != threads.REFERENCE else ""
    return f"{row.rates[column]:,.0f}{beside}"


def gradients_table(record):
    series = [(one.name.split(" ", 3), one.values) for one in record.series if one.values]
    lines = []
    for world_size in dict.fromkeys(words[1] for words, _ in series):
        for arrays, what in (("1", "one array"), ("16", "16 arrays")):
            sums = {words[3]: v for words, v in series if words[:3] == ["allreduce", world_size, arrays]}
            ours = {name: v for name, v in sums.items() if name not in (*PEERS, LIMIT)}
            best = min(ours, key=lambda name: statistics.median(ours[name]))
            lines.append(
                [
                    (
                        f"{world_size} devices: allreduce, "
                        f"{record.options['size'].replace('MB', ' MB')} in {what}, `{best}`"
                    ),
                    _format_milliseconds(ours[best]),
                    _format_ratio(sums.get("device"), ours[best]),
                    _format_ratio(sums.get("chapter"), ours[best]),
                    f"{median_ratio(sums[LIMIT], ours[best]):.0%}" if LIMIT in sums else "",
                ]
            )
        steps = {(words[2], words[3]): v for words, v in series if words[:2] == ["step", world_size]}
        ours = {key: v for key, v in steps.items() if key[1] not in PEERS}
        best = min(ours, key=lambda key: statistics.median(ours[key]))
        beside = [
            f"{_format_ratio(steps.get((kind, 'device')), ours[best])} {words}"
            for kind, words in (("gluon.Trainer", "over gluon.Trainer"), ("BucketedTrainer", "over BucketedTrainer"))
        ]
        what = f"{world_size} devices: allreduce and update, SGD with momentum, `{best[1]}`"
        lines.append([what, _format_milliseconds(ours[best]), ", ".join(beside), "", ""])
    heads = ["", "time", "speed-up over `device`", "over the code of Dive into Deep Learning", "of the memory limit"]
    return format_table(heads, lines)


SPLITS = {
    "one": "one device",
    "data": "`data`",
    "layers": "`layers`",
    "channels": "`tensor`",
    "tensor": "`tensor`",
    "gpipe": "pipeline, `gpipe`",
    "1f1b": "pipeline, `1f1b`",
    "interleaved": "pipeline, `interleaved`",
}


def splits_table(record):
    heads = ["", "step", "speed-up", "traffic", "time on NVLinks", "memory per device"]
    heads += ["bubble, measured", "simulated", "ideal"]
    microbatches = record.options["microbatches"]
    pipelines = {row.name: row for row in splits.make_pipeline_rows(record.series, microbatches)}
    return format_table(
        heads,
        [
            [
                SPLITS.get(row.name, row.name),
                _format_milliseconds(row.seconds),
                f"{row.speed:.2f}x",
                f"{row.moved_bytes / 1e6:,.1f} MB" if row.moved_bytes else "",
                f"{row.links_s * 1e3:.2f} ms" if row.moved_bytes else "",
                f"{splits.format_megabytes(row.memory)} MB",
                *_bubble_cells(pipelines.get(row.name)),
            ]
            for row in splits.make_rows(record.series)
            if row.seconds
        ],
    )


def _bubble_cells(row):
    if row is None:
        return ["", "", ""]
    return [f"{share:.0%}" for share in (row.bubble, row.predicted_bubble, row.ideal_bubble)]


CHECKPOINTS = {
    "none": "no checkpoints",
    "files": "`net.save_parameters` and `trainer.save_states` in the loop, every 50 steps",
}


def checkpoints_table(record):
    return format_table(
        ["", "step", "overhead", "95 % interval"],
        [
            [
                CHECKPOINTS.get(row.name, f"`{checkpoints.LABELS[row.name]}`"),
                f"{row.step_s * 1e3:.1f} ms",
                checkpoints.format_percent(row.relative_overhead),
                row.overhead_interval,
            ]
            for row in checkpoints.make_rows(record.series)
            if row.step_s is not None
        ],
    )


BACKENDS = {"dist_sync": "`dist_sync`, one server", "horovod": "`horovod`, gloo", "": ""}


def scaling_table(record):
    heads = ["processes", "backend", "devices", "global batch size", "images/s", "speed-up"]
    heads += ["efficiency", "relative to one process"]
    names = ("network", "scaling", "processes", "gpus", "backends")  # keys of the records
    model, kind, processes, device_counts, backends = (record.options[name] for name in names)
    rows = scaling.make_rows(scaling.parse_layouts(model, kind, processes, device_counts, backends), record.series)
    return format_table(
        heads,
        [
            [
                str(row.layout.processes),
                BACKENDS[row.layout.backend],
                str(row.layout.all_devices),
                str(row.layout.global_batch_size),
                f"{row.images_per_second:,.0f}",
                f"{row.speedup:.2f}x",
                f"{row.efficiency:.0%}",
                f"{row.one_process_ratio:.2f}x" if row.layout.backend else "",
            ]
            for row in rows
            if row.images_per_second
        ],
        right_from=2,
    )


def _format_ratio(slow, fast):
    return "" if slow is None else f"{median_ratio(slow, fast):.2f}x"


def _format_milliseconds(seconds):
    return f"{statistics.median(seconds) * 1e3:.1f} ms"


# those of gluonlab.bench.allreduce.measure_allreduce, benchmarks.gradients
PEERS, LIMIT = ("chapter", "local", "device", "nccl"), "of the memory limit"


def captioned_tables(table):
    """Return a function that makes a table for each record, captioned with its CPU and day."""

    def tables(*records):
        return "\n".join(f"{format_caption(record)}\n\n{table(record)}" for record in records)

    return tables


def format_caption(record):
    cores = record.about.get("cores")
    words = [str(cpu_kind(record.about)), f"{cores} cores" if cores else "", measurement_day(record)]
    return f"{', '.join(filter(None, words))}:"


def measurement_day(record):
    return record.about.get("began", "")[:10]


TABLES = {
    "peers-lenet": peers_table, "peers-resnet18": peers_table, "optimize": optimize_table,
    "host": captioned_tables(host_table), "images": captioned_tables(images_table),
    "gradients": captioned_tables(gradients_table), "threads": captioned_tables(threads_table),
    "splits": captioned_tables(splits_table), "checkpoints": captioned_tables(checkpoints_table),
    **dict.fromkeys(("scaling-lenet", "scaling-resnet18", "scaling-strong"), captioned_tables(scaling_table)),
}  # fmt: skip

# The rows of the overview. "overlap" has no record, only the table in the text.
OVERVIEW = "overview"
TITLES = {
    "peers-lenet": "LeNet compared with other frameworks", "peers-resnet18": "ResNet-18 compared with other frameworks",
    "optimize": "Tutorial models, optimized", "overlap": "Allreduce during backward",
    "host": "Launch overhead of a step", "gradients": "Allreduce",
    "splits": "Parallel strategies", "checkpoints": "Checkpoints",
    "scaling-lenet": "LeNet with several processes", "scaling-resnet18": "ResNet-18 with several processes",
    "scaling-strong": "LeNet with several processes, strong scaling", "threads": "Idle OpenMP threads",
    "images": "JPEG decoding",
}  # fmt: skip
# Columns that the overview has at least, and figures that the text of docs gives without a record.
KINDS = (ZEN_4, ZEN_4_AVX2, CASCADE_LAKE, ZEN_3)
QUOTED = {("peers-lenet", CASCADE_LAKE), ("peers-lenet", ZEN_3)}
QUOTED |= {("host", CASCADE_LAKE), ("overlap", ZEN_4)}


def overview_table(records):
    """Return a table of the day on which each figure was measured on each kind of CPU."""
    days = {
        (name, cpu_kind(record.about)): measurement_day(record)
        for name in TITLES
        for record in read_records(name, records)
    }
    kinds = dict.fromkeys([*KINDS, *sorted(kind for _, kind in days)])
    lines = []
    for name, title in TITLES.items():
        cells = [days.get((name, kind)) or ("quoted" if (name, kind) in QUOTED else "not measured") for kind in kinds]
        lines.append([title, *cells])
    return format_table(["measured on", *map(str, kinds)], lines, right_from=1 + len(kinds))


def read_records(name, records=RECORDS):
    """Return the records of a figure, NAME.json first, each of another kind of CPU."""
    paths = [records / f"{name}.json", *sorted(records.glob(f"{name}@*.json"))]
    figure_records = [read_record(path) for path in paths if path.exists()]
    kinds = [str(cpu_kind(record.about)) for record in figure_records]
    if len(set(kinds)) < len(kinds):
        raise ValueError(f"{name}: two records are of one kind of CPU: {'; '.join(kinds)}")
    return figure_records


def replace_tables(text, records=RECORDS):
    """Return a page with updated tables; a table without a record remains unchanged."""

    def replace_block(block):
        if block[2] == OVERVIEW:
            return block[1] + overview_table(records) + block[3]
        figure_records = read_records(block[2], records)
        if not figure_records:
            return block[0]
        return block[1] + TABLES[block[2]](*figure_records) + block[3]

    return BLOCK.sub(replace_block, text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(replace_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
