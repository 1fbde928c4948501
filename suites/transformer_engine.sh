#!/bin/bash
# Wheels of Transformer Engine for a base environment: transformer_engine.sh VERSION PYTHON FOLDER
# PYTHON holds the torch to build against; nvcc of the same CUDA is on PATH or in CUDA_HOME. GPU architecture: ARCH (90).
set -euo pipefail
version=$1 python=$(realpath -s "$2") folder=$3
mkdir -p "$folder"
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cuda=$("$python" -c 'import torch; print(torch.version.cuda.partition(".")[0])')
uv venv -q --python "$python" "$build/env"
uv pip install -q --python "$build/env" pip setuptools wheel pybind11 ninja cmake
# The headers of cuDNN, NCCL and cuBLAS are inside the packages that torch depends on.
echo "$site" > "$(echo "$build"/env/lib/python3.*/site-packages)/base.pth"
# nvcc on PATH may be a script that calls the real one, which knows where its headers are.
export CUDA_HOME=${CUDA_HOME:-$(realpath "$(nvcc --dryrun -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')")}
export CPATH=$site/nvidia/cu$cuda/include:$site/nvidia/cudnn/include:$site/nvidia/nccl/include
export NVTE_FRAMEWORK=pytorch NVTE_CUDA_ARCHS=${ARCH:-90} MAX_JOBS=${MAX_JOBS:-$(nproc)} PATH=$build/env/bin:$CUDA_HOME/bin:$PATH
pip=$build/env/bin/pip
"$pip" download -q --no-deps -d "$folder" "transformer-engine==$version" "transformer-engine-cu$cuda==$version"
"$pip" wheel --no-build-isolation --no-deps --no-binary transformer-engine-torch -w "$folder" "transformer-engine-torch==$version"
ls -l "$folder"
