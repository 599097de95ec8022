# gluonlab in an image, for the CPU or for NVIDIA GPUs:
#
#   docker build -t gluonlab .
#   docker run --rm gluonlab run --gpus 2
#
#   docker build -t gluonlab:cu112 --build-arg BUILD=cu112 .
#   docker run --rm --gpus all --shm-size 1g gluonlab:cu112 doctor
#
# The CUDA image needs the NVIDIA Container Toolkit on the host, and nothing of CUDA in its base: the libraries come from wheels.
# Labs: docker run --rm -it -p 127.0.0.1:8888:8888 -v "$PWD/work:/work" --entrypoint jupyter gluonlab lab --ip 0.0.0.0
# Grading: docker build --target grading -t gluonlab-grading:0.3.0 .   for gluonlab exercises grade --container, docs/labs.md
# Of the three, grading was built and tried, with Podman (make check-isolated); what the others run is what make runs and .ci/run
# tests, on Debian 12.
FROM python:3.11-slim-bookworm AS base

# two libraries that MXNet is linked with; OpenSSH's client, for gluonlab.launch --hosts
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 libquadmath0 openssh-client \
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
ENTRYPOINT ["gluonlab"]
CMD ["--help"]
