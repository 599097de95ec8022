# gluonlab in an image, for CPUs on x86-64 and ARM, or for NVIDIA GPUs on x86-64:
#
#   docker build -t gluonlab .
#   docker run --rm gluonlab run --gpus 2
#
#   docker build -t gluonlab:cu112 --build-arg BUILD=cu112 .
#   docker run --rm --gpus all --shm-size 1g gluonlab:cu112 doctor
#
# The image has the architecture of the host. To choose another one, pass --platform linux/amd64 or --platform linux/arm64 to docker
# build and to docker run. The host then emulates the processor, which is many times slower. For both architectures in one image:
#   docker buildx build --platform linux/amd64,linux/arm64 --tag REGISTRY/gluonlab --push .
#
# The CUDA image needs the NVIDIA Container Toolkit on the host. Its base image contains no CUDA, because the libraries come from wheels.
# Labs: docker run --rm -it -p 127.0.0.1:8888:8888 -v gluonlab-work:/work --entrypoint jupyter gluonlab lab --ip 0.0.0.0
# Grading: docker build --target grading -t gluonlab-grading:0.3.0 .   for gluonlab exercises grade --container, docs/labs.md
# The CPU image (x86-64, and ARM in emulation) and the grading image (x86-64) were built and tested with Podman, not with Docker. The GPU
# image has not been built. Its build runs the same commands as make, which .ci/run tests on Debian 12.
FROM python:3.11-slim-bookworm AS base

# Libraries that MXNet needs, and OpenSSH's client for gluonlab launch --hosts. Debian has libquadmath0 only for x86. On ARM, OpenBLAS
# replaces Arm Performance Libraries (gluonlab/engine/arm_libraries.py).
RUN case "$(dpkg --print-architecture)" in \
        amd64) libraries="libquadmath0" ;; \
        arm64) libraries="libopenblas0 liblapacke" ;; \
    esac \
    && apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 $libraries openssh-client \
    && rm -rf /var/lib/apt/lists/*

COPY . /opt/gluonlab
ENV PATH=/opt/venv/bin:$PATH

# What runs one student's notebook. The command that starts it sets user, mounts and bounds once more: it trusts no image.
FROM base AS grading
RUN python /opt/gluonlab/tools/make_venv.py /opt/venv cpu labs
USER 65534:65534
WORKDIR /tmp
ENTRYPOINT ["python"]

FROM base AS gluonlab
ARG BUILD=cpu
# what plain pip cannot do is in make_venv.py; jupyter, to open the labs with
RUN python /opt/gluonlab/tools/make_venv.py /opt/venv "$BUILD" jupyter

# no one's data are root's: what runs here may write below /work only
RUN useradd --create-home --uid 1000 learner && mkdir /work && chown learner /work
USER learner
WORKDIR /work
# Store downloads in the mounted volume or folder, so that they outlive the container.
ENV GLUONLAB_DATA=/work/data
ENTRYPOINT ["gluonlab"]
CMD ["--help"]
