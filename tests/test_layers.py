"""Imports only go down; the environment belongs to the engine; nothing runs code that it was given
as data; everything public has a docstring.

Read from the source of every module, imports inside functions and under TYPE_CHECKING included.
Each rule is also tried on a line that breaks it, so that a rule that finds nothing is known to
look.
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
    {"run", "predict", "__main__"},
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
# of ``config``: what knows no TrainConfig
WITHOUT_SETTINGS = ("config.option_hints", "config.option_types")
PICKLES = ("pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve")
RUN_FILES = {
    "config.json", "metrics.jsonl", "curves.png", "parameters.params", "compare.json",
    "confusion.png",
}  # fmt: skip
LINE_KEYS = {
    "kind", "event", "loss", "lr", "accuracy", "validation_loss", "training_seconds", "waiting",
}  # fmt: skip
ENGINE_VARIABLE = re.compile(r"(MXNET|G?OMP|DMLC)_[A-Z0-9_]+")


def module_name(path):
    """gluonlab/data/sets/idx.py -> data.idx; a package has its own name, and gluonlab/__init__.py
    the empty one.
    """
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


tree_of = lru_cache(maxsize=1)(ast.parse)  # for one rule after the other


@lru_cache(maxsize=1)
def nodes_of(source):
    return list(ast.walk(tree_of(source)))


@lru_cache(maxsize=None)
def all_imports(source, only_at_module_level=False):
    """(line, dots, module, names) of every import; without names for ``import module``."""
    nodes = walk_at_module_level(tree_of(source)) if only_at_module_level else nodes_of(source)
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [(node.lineno, 0, alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            found.append((node.lineno, node.level, node.module, names))
    return found


def layer_name(module):
    """The name in LAYERS: what comes first, but a package's __main__ is a command like any
    other.
    """
    first, *_, last = module.split(".") * 2
    return "__main__" if last == "__main__" else first


def gluonlab_imports(module, source, modules=SOURCES, only_at_module_level=False):
    """(line, module of gluonlab, name taken from it or "") for everything that is imported."""
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
    """The nodes that run when the module is imported."""
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            waiting += [
                child for child in ast.iter_child_nodes(node) if isinstance(child, (ast.stmt, ast.ExceptHandler))
            ]


def upward_imports(module, source, modules=SOURCES):
    """Imports of a part that does not lie below.

    `import gluonlab` may stand anywhere, for __version__ and nothing else.
    """
    own = layer_name(module)
    for line, target, name in gluonlab_imports(module, source, modules) if module else ():
        part = layer_name(target)
        if part != own and LEVEL[part] >= LEVEL[own] if target else name not in ("", "__version__"):
            yield f"{module}:{line} imports {name} of {target}"


def config_violations(module, source, modules=SOURCES):
    """Below training nobody sees a TrainConfig: a part takes the values that it needs."""
    if module and LEVEL[layer_name(module)] < LEVEL["training"] and layer_name(module) != "config":
        for line, target, name in gluonlab_imports(module, source, modules):
            if layer_name(target) == "config" and target not in WITHOUT_SETTINGS:
                yield f"{module}:{line} imports {name} of {target}"


def mxnet_imports(source):
    for line, _, imported, _ in all_imports(source):
        if (imported or "").split(".")[0] == "mxnet":
            yield line


def collective_violations(module, source):
    """Schedules are data: only the modules that run them import MXNet."""
    runs_schedules = (
        "collectives.schedule_executor",
        "parallel.pipeline.network_stages",
        "parallel.pipeline.pipeline_executor",
        "parallel.pipeline.strategy",
    )
    in_scope = f"{module}.".startswith(("collectives.", "parallel.pipeline."))
    if in_scope and module not in runs_schedules:
        yield from (f"{module}:{line} imports mxnet" for line in mxnet_imports(source))


def environment_violations(module, source):
    """Names of engine variables: in the engine's setup.py, openmp.py and parameter_server.py alone;
    in bench also for what a child gets, and in the launcher for what its processes get.
    """
    if module in ("engine.mxnet_setup", "engine.openmp_settings", "engine.parameter_server_role"):
        return
    if module == "launch.group_processes":
        return
    nodes = nodes_of(source)
    if module.split(".")[0] == "bench":
        places = [node for node in nodes if reads_own_environment(node)]
        nodes = [node for place in places for node in ast.walk(place)]
    for node in nodes:
        name = node.value if isinstance(node, ast.Constant) else node.arg if isinstance(node, ast.keyword) else None
        if isinstance(name, str) and ENGINE_VARIABLE.fullmatch(name):
            yield f"{module} names {name}"


def reads_own_environment(node):
    """os.environ[...], os.environ.get(...), os.getenv(...), os.putenv(...) and the like."""
    if isinstance(node, ast.Subscript):
        return dotted_name(node.value).split(".")[-1] == "environ"
    name = dotted_name(node.func).split(".") if isinstance(node, ast.Call) else [""]
    return "environ" in name or name[-1] in ("getenv", "putenv", "unsetenv")


def dotted_name(node):
    """os.environ.get for the tree of it; an empty string for what is no such name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


# The code that MXNet generates for its operators, as Python keeps a module's in __pycache__: read
# only from a whole file that nobody else can write.
BYTECODE = ("engine.faster_import", "marshal")


def code_execution_violations(module, source):
    """pickle, eval, exec, os.system, shell=True."""
    for node in nodes_of(source):
        found = ""
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [getattr(node, "module", None) or "", *[alias.name for alias in node.names]]
            found = next(
                (
                    name
                    for name in names
                    if name.split(".")[0] in ("pickle", "dill", "cloudpickle", "shelve", "marshal")
                ),
                "",
            )
        elif isinstance(node, ast.Name) and node.id in ("eval", "exec"):
            found = node.id
        elif dotted_name(node) in ("os.system", "os.popen"):
            found = dotted_name(node)
        elif isinstance(node, ast.keyword) and node.arg in ("shell", "allow_pickle"):
            found = "" if isinstance(node.value, ast.Constant) and not node.value.value else node.arg
        if found and (module, found) != BYTECODE:
            yield f"{module}:{getattr(node, 'lineno', '?')} uses {found}"


def run_folder_violations(module, source):
    """The files of a run's folder, and the keys of a line in them, are named in runs/ alone."""
    room = module.split(".")[0]
    for node in nodes_of(source) if room != "runs" else ():
        name = node.value if isinstance(node, ast.Constant) else None
        if isinstance(name, str) and name.split("/")[-1] in RUN_FILES:
            yield f"{module}:{node.lineno} names {name}"
        key = read_key(node) if room in ("training", "launch", "study", "report") else ""
        if key:
            yield f"{module}:{node.lineno} reads {key}"


def read_key(node):
    """The key of a line that x[key] or x.get(key) reads; an empty string for all else."""
    key = None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        key = node.slice
        if type(key).__name__ == "Index":  # Python 3.8
            key = key.value
    elif isinstance(node, ast.Call) and dotted_name(node.func).endswith(".get") and node.args:
        key = node.args[0]
    return key.value if isinstance(key, ast.Constant) and key.value in LINE_KEYS else ""


def docstring_violations(module, source):
    """Modules, public functions, classes and methods without a docstring; a method of a class with
    bases may inherit its own.
    """
    tree = tree_of(source)
    if ast.get_docstring(tree) is None:
        yield f"{module} has no docstring"
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            if ast.get_docstring(node) is None:
                yield f"{module}.{node.name} has no docstring"
            for method in node.body if isinstance(node, ast.ClassDef) else ():
                is_method = isinstance(method, ast.FunctionDef) and method.name[0] != "_"
                if (
                    is_method
                    and ast.get_docstring(method) is None
                    and not inherits_docstring(module, node.name, method.name)
                ):
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
    """Some cycle of a graph {node: successors} as a list, or an empty list."""
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


# --- the rules hold


def test_every_module_has_a_place_in_the_layers():
    assert {layer_name(module) for module in SOURCES} - set(LEVEL) == {""}
    assert len(SOURCES) > 20


@pytest.fixture(scope="module")
def violations():
    """Return {rule: its violations in all modules}; each module is parsed once."""
    kinds = {rule: [] for rule in RULES}
    for module, source in SOURCES.items():
        for rule in RULES:
            kinds[rule] += rule(module, source)
    return kinds


def test_imports_only_go_down(violations):
    assert violations[upward_imports] == []


def test_importing_gluonlab_runs_the_engine_and_what_lies_below_it_only():
    """The other names of the front page are loaded when they are asked for."""
    reached, waiting = set(), [""]
    while waiting:
        module = waiting.pop()
        reached.add(module)
        waiting += {
            target for _, target, _ in gluonlab_imports(module, SOURCES[module], only_at_module_level=True)
        } - reached
    host = {"host.command_start", "host.signals"}
    first = "mxnet_setup openmp_settings mxnet_installation mxnet_import mxnet_fixes parameter_server_role"
    engine = {f"engine.{name}" for name in first.split()}
    assert reached == {"", "errors", "renamed", *host, *engine}


def imported_modules(module):
    """The modules of gluonlab that a module imports anywhere, but for ``import gluonlab``."""
    return {target for _, target, _ in gluonlab_imports(module, SOURCES[module]) if target}


def test_no_module_imports_itself_through_others():
    """Imports inside functions and for type checkers count, too."""
    graph = {module: imported_modules(module) for module in SOURCES if module}
    assert sum(map(len, graph.values())) > 50
    assert find_cycle(graph) == []


def test_only_the_engine_names_engine_variables(violations):
    assert violations[environment_violations] == []


def test_nobody_below_training_sees_a_train_config(violations):
    assert violations[config_violations] == []


def test_only_the_executors_of_schedules_need_mxnet(violations):
    assert violations[collective_violations] == []


def test_nothing_runs_code_that_came_as_data(violations):
    assert violations[code_execution_violations] == []


def test_only_runs_knows_the_format_of_a_runs_folder(violations):
    assert violations[run_folder_violations] == []


def test_everything_public_has_a_docstring(violations):
    assert violations[docstring_violations] == []


# --- and would be noticed if they did not


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("errors", "from gluonlab import engine"),
        ("engine.cpu_threads", "import gluonlab.devices"),
        ("engine", "def f():\n    from gluonlab.devices import gpus"),
        ("config", "if TYPE_CHECKING:\n    from gluonlab.devices import DeviceSpec"),
        ("config.train_config", "from gluonlab.cli.command import command"),
        ("models.lenet", "from gluonlab.data.loading.batch_loader import Loader"),
        ("data.loader", "from ..training.loop import train"),
        ("data.loader", "from .. import kvstores"),
        ("kvstores", "from gluonlab.training import buckets"),
        ("training.loop", "import gluonlab.cli.command as c"),
        ("training.loop", "from gluonlab.study.compare_devices import compare"),
        ("bench.scaling", "from gluonlab.study.compare_devices import compare"),
        ("bench.scaling", "from gluonlab.cli.command import command"),
        ("study.compare_devices", "from gluonlab.bench.__main__ import main"),
        ("cli", "from gluonlab.run import main"),
        ("run", "from gluonlab import train"),
    ],
)
def test_an_import_that_goes_up_is_found(module, line):
    assert len(list(upward_imports(module, line))) == 1


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("devices", "from gluonlab.config import TrainConfig"),
        ("kvstores.mxnet_stores", "def f():\n    from gluonlab.config.train_config import TrainConfig"),
        ("parallel.data.step", "import gluonlab.config.train_config"),
        ("data.sets.idx", "if TYPE_CHECKING:\n    from ...config import TrainConfig as T"),
    ],
)
def test_a_train_config_below_training_is_found(module, line):
    assert len(list(config_violations(module, line))) == 1


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("models", "from gluonlab.config.option_types import is_positive_integer"),
        ("training.plan", "from gluonlab.config import TrainConfig"),
        ("launch.__main__", "from gluonlab.config import TrainConfig"),
    ],
)
def test_values_may_be_imported_below_training_and_a_train_config_from_there_up(module, line):
    assert list(config_violations(module, line)) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("errors", "import gluonlab"),
        ("errors", "from gluonlab import __version__"),
        ("devices", "import errno\nfrom gluonlab.errors import DeviceError"),
        ("data.registry", "from gluonlab.data import digits\nfrom . import idx\nfrom .dataset import Dataset"),
        ("data.registry", "from ..errors import DataError"),
        ("bench.__main__", "from gluonlab.cli.command import command\nfrom gluonlab.bench import scaling"),
        ("training.loop", "import gluonlabs.study, mxnet"),
    ],
)
def test_an_import_that_goes_down_is_not(module, line):
    assert list(upward_imports(module, line)) == []


@pytest.mark.parametrize(
    ("module", "line", "count"),
    [
        ("training.loop", "(folder / 'metrics.jsonl').read_text()", 1),
        ("bench.scaling", "open(f'{folder}/config.json')", 1),
        ("report.run_tables", "f'{line[\"validation_loss\"]:.4f}'", 1),
        ("study.compare_devices", "[each.get('lr') for each in lines if each['kind'] == 'step']", 2),
        ("training.loop", "'Write config.json and metrics.jsonl.'", 0),
        ("training.trial", "answer['bytes'], {'kind': 1}, line.loss", 0),
        ("runs.run_reader", "json.loads((folder / 'config.json').read_text())['lr']", 0),
    ],
)
def test_a_file_or_a_key_of_a_runs_folder_elsewhere_is_found(module, line, count):
    assert len(list(run_folder_violations(module, line))) == count


def test_a_cycle_is_found():
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_what_is_imported_inside_functions_makes_no_cycle():
    source = (
        "import gluonlab.a\nif TYPE_CHECKING:\n    import gluonlab.b\nelse:\n"
        "    import gluonlab.c\ndef f():\n    import gluonlab.d\ntry:\n    import gluonlab.e\n"
        "except ImportError:\n    import gluonlab.f\n"
    )
    at_import = {
        target for _, target, _ in gluonlab_imports("m", source, modules=set("abcdefm"), only_at_module_level=True)
    }
    assert at_import == {"a", "c", "e", "f"}
    assert {target for _, target, _ in gluonlab_imports("m", source, modules=set("abcdefm"))} == set("abcdef")


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("engine.cpu_threads", "os.environ.get('OMP_NUM_THREADS')"),
        ("engine.cpu_threads", "NAME = 'OMP_NUM_THREADS'"),
        ("engine.cpu_threads", "os.environ.get('GOMP_SPINCOUNT')"),
        ("training.loop", "os.environ['MXNET_CPU_TEMP_COPY'] = '4'"),
        ("kvstores", "import os\nos.getenv('DMLC_ROLE')"),
        ("bench.scaling", "os.environ['MXNET_CPU_TEMP_COPY'] = '4'"),
        ("bench.scaling", "os.environ.setdefault('OMP_NUM_THREADS', '1')"),
        ("bench.scaling", "os.environ.update({'OMP_NUM_THREADS': '1'})"),
        ("bench.scaling", "os.getenv('OMP_NUM_THREADS')"),
        ("bench.scaling", "os.environ.update(OMP_NUM_THREADS='1')"),
        ("bench.scaling", "environ.get('DMLC_ROLE')"),
    ],
)
def test_an_engine_variable_elsewhere_is_found(module, line):
    assert len(list(environment_violations(module, line))) == 1


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("engine.mxnet_setup", "os.environ['OMP_NUM_THREADS']"),
        ("engine.cpu_threads", "raise ConfigError(f'OMP_NUM_THREADS={n} would hang: ...')"),
        ("bench.scaling", "run(env={**os.environ, 'OMP_NUM_THREADS': '1'})"),
        ("bench.scaling", "run(env=dict(os.environ, OMP_NUM_THREADS='1'))"),
        ("bench.scaling", "os.environ.get('CUDA_VISIBLE_DEVICES')"),
    ],
)
def test_an_engine_variable_in_its_place_is_not(module, line):
    assert list(environment_violations(module, line)) == []


@pytest.mark.parametrize(
    ("module", "line", "count"),
    [
        ("collectives.schedule", "import mxnet as mx", 1),
        ("collectives.cost_model", "def f():\n    from mxnet.gluon import nn", 1),
        ("collectives", "if TYPE_CHECKING:\n    from mxnet import nd", 1),
        ("collectives.schedule_executor", "import mxnet as mx", 0),
        ("parallel.pipeline.verify_pipeline_schedule", "import mxnet as mx", 1),
        ("parallel.pipeline", "from mxnet import nd", 1),
        ("parallel.pipeline.pipeline_executor", "import mxnet as mx", 0),
        ("parallel.strategy", "import mxnet as mx", 0),
        ("collectives.schedule", "import mxnet_free\nimport numpy", 0),
        ("training.loop", "import mxnet as mx", 0),
    ],
)
def test_mxnet_in_a_schedule_is_found(module, line, count):
    assert len(list(collective_violations(module, line))) == count


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "import os, marshal",
        "eval('1')",
        "run = exec",
        "os.system('ls')",
        "os.popen('ls')",
        "subprocess.run('ls', shell=True)",
        "subprocess.run('ls', shell=shell)",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_code_from_data_is_found(line):
    assert len(list(code_execution_violations("module", line))) == 1


@pytest.mark.parametrize(
    "line", ["model.evaluate()", "evaluate(model)", "subprocess.run(['ls'], shell=False)", "loader.exec_module(m)"]
)
def test_what_only_looks_like_it_is_not(line):
    assert list(code_execution_violations("module", line)) == []


def test_a_missing_docstring_is_found():
    source = (
        'class A:\n    "doc"\n    def f(self): ...\n    def _g(self): ...\ndef h(): ...\nclass B: ...\ndef _i(): ...\n'
    )
    names = ["m", "m.A.f", "m.h", "m.B"]
    assert list(docstring_violations("m", source)) == [f"{name} has no docstring" for name in names]
