"""Rules for the modules of gluonlab: imports only go down; only the engine touches its environment
variables; data is never run as code; everything public has a docstring.

The rules read the source of every module, with imports inside functions and under TYPE_CHECKING.
Each rule also runs on lines that break it, to see that it finds them.
"""

import ast
import importlib
import inspect
import re
from functools import lru_cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "gluonlab"

# A part may import those in the lines above its own, and itself.
LAYERS = [
    {"renamed"},
    {"errors", "plain_text"},
    {"host", "config"},
    {"engine"},
    {"drawing", "files", "divergence_checks", "gpu"},
    {"devices"},
    {"data", "models", "collectives", "optimizers", "runs", "timeline"},
    {"kvstores", "export"},
    {"bucketed_trainer"},
    {"parallel"},
    {"training", "scratch", "performance_model"},
    {"launch"},
    {"bench"},
    {"study", "report", "exercises", "labs", "inference"},
    {"doctor"},
    {"cli"},
    {"allreduce"},
    {"run", "predict", "__main__"},
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
# modules of ``config`` without TrainConfig
WITHOUT_SETTINGS = ("config.option_hints", "config.option_checks", "config.renamed_settings")
PICKLES = ("pickle", "dill", "cloudpickle", "shelve", "marshal")
RUN_FILES = {"config.json", "metrics.jsonl", "curves.png", "parameters.params", "compare.json", "confusion.png"}
LINE_KEYS = {"kind", "event", "loss", "lr", "val_accuracy", "val_loss", "training_seconds", "waiting"}
ENGINE_VARIABLE = re.compile(r"(MXNET|G?OMP|DMLC)_[A-Z0-9_]+")


def module_name(path):
    """Return data.sets.idx for gluonlab/data/sets/idx.py, and "" for gluonlab/__init__.py."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
tree_of = lru_cache(maxsize=1)(ast.parse)  # for one rule after the other


@lru_cache(maxsize=1)
def nodes_of(source):
    return list(ast.walk(tree_of(source)))


@lru_cache(maxsize=None)
def all_imports(source, only_at_module_level=False):
    """Return (line, dots, module, names) of every import; no names for ``import module``."""
    nodes = walk_at_module_level(tree_of(source)) if only_at_module_level else nodes_of(source)
    imports = []
    for node in nodes:
        if isinstance(node, ast.Import):
            imports += [(node.lineno, 0, alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports.append((node.lineno, node.level, node.module, tuple(alias.name for alias in node.names)))
    return imports


def layer_name(module):
    """Return the part of LAYERS of a module. A package's __main__ is a command."""
    first, *_, last = module.split(".") * 2
    return "__main__" if last == "__main__" else first


def gluonlab_imports(module, source, modules=SOURCES, only_at_module_level=False):
    """Yield (line, module of gluonlab, imported name or "") for every import."""
    is_package = any(other.startswith(f"{module}.") for other in modules)
    package = ["gluonlab", *module.split(".")] if is_package else ["gluonlab", *module.split(".")[:-1]]
    for line, dots, imported, names in all_imports(source, only_at_module_level):
        base = ".".join([*package[: len(package) - dots + 1]] * bool(dots) + [imported] * bool(imported))
        for name in names or [""]:
            if base.split(".")[0] == "gluonlab":
                inside = base[len("gluonlab.") :]
                below = ".".join(filter(None, [inside, name]))
                yield (line, below, "") if below in modules else (line, inside, name)


def walk_at_module_level(tree):
    """Yield the nodes that run when the module is imported."""
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            kinds = (ast.stmt, ast.ExceptHandler)
            waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, kinds)]


def upward_imports(module, source, modules=SOURCES):
    """Yield imports of parts that do not lie below, except gluonlab.__version__."""
    own = layer_name(module)
    for line, target, name in gluonlab_imports(module, source, modules) if module else ():
        part = layer_name(target)
        if part != own and LEVEL[part] >= LEVEL[own] if target else name not in ("", "__version__"):
            yield f"{module}:{line} imports {name} of {target}"


def config_violations(module, source, modules=SOURCES):
    """Yield imports of a TrainConfig below training, where functions take single values."""
    if module and LEVEL[layer_name(module)] < LEVEL["training"] and layer_name(module) != "config":
        for line, target, name in gluonlab_imports(module, source, modules):
            if layer_name(target) == "config" and target not in WITHOUT_SETTINGS:
                yield f"{module}:{line} imports {name} of {target}"


def collective_violations(module, source):
    """Yield imports of MXNet by modules of schedules that do not run them."""
    runs_schedules = (
        "collectives.schedule_executor",
        "parallel.pipeline.network_stages",
        "parallel.pipeline.pipeline_executor",
        "parallel.pipeline.strategy",
    )
    if f"{module}.".startswith(("collectives.", "parallel.pipeline.")) and module not in runs_schedules:
        for line, _, imported, _ in all_imports(source):
            if (imported or "").split(".")[0] == "mxnet":
                yield f"{module}:{line} imports mxnet"


def environment_violations(module, source):
    """Yield names of engine variables outside three modules of the engine.

    The launcher and bench may name variables of their child processes.
    """
    engine = ("engine.mxnet_setup", "engine.openmp_settings", "engine.parameter_server_role")
    if module in (*engine, "launch.group_processes"):
        return
    nodes = nodes_of(source)
    if module.split(".")[0] == "bench":
        nodes = [node for access in nodes if reads_own_environment(access) for node in ast.walk(access)]
    for node in nodes:
        name = node.value if isinstance(node, ast.Constant) else node.arg if isinstance(node, ast.keyword) else None
        if isinstance(name, str) and ENGINE_VARIABLE.fullmatch(name):
            yield f"{module} names {name}"


def reads_own_environment(node):
    """Return whether a node is os.environ[...], os.environ.get(...), os.getenv(...) or similar."""
    if isinstance(node, ast.Subscript):
        return dotted_name(node.value).split(".")[-1] == "environ"
    name = dotted_name(node.func).split(".") if isinstance(node, ast.Call) else [""]
    return "environ" in name or name[-1] in ("getenv", "putenv", "unsetenv")


def dotted_name(node):
    """Return "os.environ.get" for such a node, and "" for other nodes."""
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


# A cache of the code that MXNet generates for operators, in a file that only this user writes.
BYTECODE = ("engine.faster_import", "marshal")


def code_execution_violations(module, source):
    """Yield uses of pickle, eval, exec, os.system, and shell=True."""
    for node in nodes_of(source):
        found = ""
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [getattr(node, "module", None) or "", *[alias.name for alias in node.names]]
            found = next((name for name in names if name.split(".")[0] in PICKLES), "")
        elif isinstance(node, ast.Name) and node.id in ("eval", "exec"):
            found = node.id
        elif dotted_name(node) in ("os.system", "os.popen"):
            found = dotted_name(node)
        elif isinstance(node, ast.keyword) and node.arg in ("shell", "allow_pickle"):
            found = "" if isinstance(node.value, ast.Constant) and not node.value.value else node.arg
        if found and (module, found) != BYTECODE:
            yield f"{module}:{getattr(node, 'lineno', '?')} uses {found}"


def run_folder_violations(module, source):
    """Yield names of files of a run folder, and keys of their lines, outside runs/."""
    part = module.split(".")[0]
    for node in nodes_of(source) if part != "runs" else ():
        name = node.value if isinstance(node, ast.Constant) else None
        if isinstance(name, str) and name.split("/")[-1] in RUN_FILES:
            yield f"{module}:{node.lineno} names {name}"
        key = read_key(node) if part in ("training", "launch", "study", "report") else ""
        if key:
            yield f"{module}:{node.lineno} reads {key}"


def read_key(node):
    """Return the key of a line that x[key] or x.get(key) reads, and "" for other nodes."""
    key = None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        key = node.slice
        if type(key).__name__ == "Index":  # Python 3.8
            key = key.value
    elif isinstance(node, ast.Call) and dotted_name(node.func).endswith(".get") and node.args:
        key = node.args[0]
    return key.value if isinstance(key, ast.Constant) and key.value in LINE_KEYS else ""


def docstring_violations(module, source):
    """Yield modules, public functions, classes and methods without a docstring."""
    tree = tree_of(source)
    if ast.get_docstring(tree) is None:
        yield f"{module} has no docstring"
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            if ast.get_docstring(node) is None:
                yield f"{module}.{node.name} has no docstring"
            for method in node.body if isinstance(node, ast.ClassDef) else ():
                is_public = isinstance(method, ast.FunctionDef) and method.name[0] != "_"
                if is_public and not (ast.get_docstring(method) or inherits_docstring(module, node.name, method.name)):
                    yield f"{module}.{node.name}.{method.name} has no docstring"


def inherits_docstring(module, name, method):
    """Return whether a method overrides a method with a docstring."""
    if module not in SOURCES:
        return False
    cls = getattr(importlib.import_module(f"gluonlab.{module}".rstrip(".")), name)
    return inspect.getdoc(getattr(cls, method)) is not None


RULES = (
    upward_imports,
    config_violations,
    collective_violations,
    environment_violations,
    code_execution_violations,
    run_folder_violations,
    docstring_violations,
)


def find_cycle(graph):
    """Return a cycle of a graph {node: successors} as a list, or an empty list."""
    done = set()

    def visit(node, path):
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        found = next(filter(None, (visit(successor, [*path, node]) for successor in sorted(graph.get(node, ())))), [])
        done.add(node)
        return found

    return next(filter(None, (visit(node, []) for node in sorted(graph))), [])


def test_every_module_has_a_place_in_the_layers():
    assert {layer_name(module) for module in SOURCES} - set(LEVEL) == {""}
    assert len(SOURCES) > 20


def test_all_modules_follow_all_rules():
    """Each module is parsed once."""
    violations = [line for module in SOURCES for rule in RULES for line in rule(module, SOURCES[module])]
    assert violations == []


def test_importing_gluonlab_loads_only_the_engine_and_the_parts_below_it():
    """The other public names are loaded on first use."""
    reached, waiting = set(), [""]
    while waiting:
        module = waiting.pop()
        reached.add(module)
        imports = gluonlab_imports(module, SOURCES[module], only_at_module_level=True)
        waiting += {target for _, target, _ in imports} - reached
    engine = "mxnet_setup openmp_settings mxnet_and_cuda_libraries mxnet_import mxnet_fixes parameter_server_role"
    expected = {f"engine.{name}" for name in engine.split()} | {"host.startup_errors", "host.signals"}
    assert reached == {"", "errors", "renamed", *expected}


def test_no_module_imports_itself_through_others():
    """Imports inside functions and for type checkers also count."""
    graph = {
        module: {target for _, target, _ in gluonlab_imports(module, SOURCES[module]) if target}
        for module in SOURCES
        if module
    }
    assert sum(map(len, graph.values())) > 50
    assert find_cycle(graph) == []
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


BREAKING = {
    upward_imports: [
        ("errors", "from gluonlab import engine"),
        ("engine.cpu_threads", "import gluonlab.devices"),
        ("engine", "def f():\n    from gluonlab.devices import gpus"),
        ("config", "if TYPE_CHECKING:\n    from gluonlab.devices import DeviceSpec"),
        ("models.lenet", "from gluonlab.data.loading.batch_loader import Loader"),
        ("data.loader", "from ..training.loop import train"),
        ("data.loader", "from .. import kvstores"),
        ("training.loop", "import gluonlab.cli.command as c"),
        ("bench.scaling", "from gluonlab.study.compare_device_counts import compare"),
        ("cli", "from gluonlab.run import main"),
        ("run", "from gluonlab import train"),
    ],
    config_violations: [
        ("devices", "from gluonlab.config import TrainConfig"),
        ("kvstores.mxnet_stores", "def f():\n    from gluonlab.config.train_config import TrainConfig"),
        ("parallel.data.step", "import gluonlab.config.train_config"),
        ("data.sets.idx", "if TYPE_CHECKING:\n    from ...config import TrainConfig as T"),
    ],
    run_folder_violations: [
        ("training.loop", "(folder / 'metrics.jsonl').read_text()"),
        ("bench.scaling", "open(f'{folder}/config.json')"),
        ("report.run_tables", "f'{line[\"val_loss\"]:.4f}'"),
        ("study.compare_device_counts", "[each.get('lr') for each in lines]"),
    ],
    environment_violations: [
        ("engine.cpu_threads", "os.environ.get('OMP_NUM_THREADS')"),
        ("engine.cpu_threads", "NAME = 'GOMP_SPINCOUNT'"),
        ("training.loop", "os.environ['MXNET_CPU_TEMP_COPY'] = '4'"),
        ("kvstores", "import os\nos.getenv('DMLC_ROLE')"),
        ("bench.scaling", "os.environ['MXNET_CPU_TEMP_COPY'] = '4'"),
        ("bench.scaling", "os.environ.update({'OMP_NUM_THREADS': '1'})"),
        ("bench.scaling", "os.environ.update(OMP_NUM_THREADS='1')"),
        ("bench.scaling", "environ.get('DMLC_ROLE')"),
    ],
    collective_violations: [
        ("collectives.schedule", "import mxnet as mx"),
        ("collectives.cost_model", "def f():\n    from mxnet.gluon import nn"),
        ("collectives", "if TYPE_CHECKING:\n    from mxnet import nd"),
        ("parallel.pipeline.verify_pipeline_schedule", "import mxnet as mx"),
        ("parallel.pipeline", "from mxnet import nd"),
    ],
    code_execution_violations: [
        ("m", "import pickle"), ("m", "from pickle import loads"), ("m", "import os, marshal"), ("m", "eval('1')"),
        ("m", "run = exec"), ("m", "os.system('ls')"), ("m", "os.popen('ls')"), ("m", "run('ls', shell=True)"),
        ("m", "run('ls', shell=shell)"), ("m", "np.load(path, allow_pickle=True)"),
    ],
    docstring_violations: [
        ("m", ""), ("m", "'doc'\ndef h(): ..."), ("m", "'doc'\nclass B: ..."),
        ("m", "'doc'\nclass A:\n    'doc'\n    def f(self): ..."),
    ],
}  # fmt: skip
ALLOWED = {
    upward_imports: [
        ("errors", "import gluonlab"),
        ("errors", "from gluonlab import __version__"),
        ("devices", "import errno\nfrom gluonlab.errors import DeviceError"),
        ("data.registry", "from gluonlab.data import digits\nfrom . import idx\nfrom .dataset import Dataset"),
        ("data.registry", "from ..errors import DataError"),
        ("bench.__main__", "from gluonlab.cli.command import command\nfrom gluonlab.bench import scaling"),
        ("training.loop", "import gluonlabs.study, mxnet"),
    ],
    config_violations: [
        ("models", "from gluonlab.config.option_checks import is_positive_integer"),
        ("launch.__main__", "from gluonlab.config import TrainConfig"),
    ],
    run_folder_violations: [
        ("training.loop", "'Write config.json and metrics.jsonl.'"),
        ("training.trial", "answer['bytes'], {'kind': 1}, line.loss"),
        ("runs.run_reader", "json.loads((folder / 'config.json').read_text())['lr']"),
    ],
    environment_violations: [
        ("engine.mxnet_setup", "os.environ['OMP_NUM_THREADS']"),
        ("engine.cpu_threads", "raise ConfigError(f'OMP_NUM_THREADS={n} would hang: ...')"),
        ("bench.scaling", "run(env={**os.environ, 'OMP_NUM_THREADS': '1'})"),
        ("bench.scaling", "run(env=dict(os.environ, OMP_NUM_THREADS='1'))"),
        ("bench.scaling", "os.environ.get('CUDA_VISIBLE_DEVICES')"),
    ],
    collective_violations: [
        ("collectives.schedule_executor", "import mxnet as mx"),
        ("parallel.pipeline.pipeline_executor", "import mxnet as mx"),
        ("collectives.schedule", "import mxnet_free\nimport numpy"),
        ("training.loop", "import mxnet as mx"),
    ],
    code_execution_violations: [
        ("m", "model.evaluate()"), ("m", "evaluate(model)"), ("m", "run(['ls'], shell=False)"),
        ("m", "loader.exec_module(m)"),
    ],
    docstring_violations: [("m", "'doc'\nclass A:\n    'doc'\n    def _g(self): ...\ndef _i(): ...")],
}  # fmt: skip
CASES = [
    (rule, module, source, count)
    for examples, count in ((BREAKING, 1), (ALLOWED, 0))
    for rule in RULES
    for module, source in examples[rule]
]


@pytest.mark.parametrize(("rule", "module", "source", "count"), CASES)
def test_rules_find_what_breaks_them_and_allow_the_rest(rule, module, source, count):
    assert len(list(rule(module, source))) == count


def test_imports_inside_functions_make_no_cycle():
    source = (
        "import gluonlab.a\nif TYPE_CHECKING:\n    import gluonlab.b\nelse:\n"
        "    import gluonlab.c\ndef f():\n    import gluonlab.d\ntry:\n    import gluonlab.e\n"
        "except ImportError:\n    import gluonlab.f\n"
    )
    for only_at_module_level, expected in ((True, "acef"), (False, "abcdef")):
        imports = gluonlab_imports("m", source, set("abcdefm"), only_at_module_level)
        assert {target for _, target, _ in imports} == set(expected)
