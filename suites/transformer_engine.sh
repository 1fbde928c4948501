#!/bin/bash
# Wheels of Transformer Engine for a base environment: transformer_engine.sh VERSION PYTHON FOLDER
# PYTHON holds the torch to build against; nvcc of the same CUDA is on PATH or in CUDA_HOME. GPU architecture: ARCH (90).
set -euo pipefail
refuse() { echo "transformer_engine.sh: $1" >&2; exit 2; }
[ $# -eq 3 ] || refuse "takes VERSION PYTHON FOLDER, as in: suites/transformer_engine.sh 2.12.0 /path/of/python wheels/"
version=$1 folder=$3
python=$(command -v "$2") || refuse "$2 is no interpreter; name a Python 3.12 that has torch"
python=$(realpath -s "$python")
"$python" -c 'import torch' 2> /dev/null || refuse "$2 has no torch to build against; name the base environment's python"
[ -n "${CUDA_HOME:-}" ] || command -v nvcc > /dev/null || refuse "no nvcc on PATH; install CUDA's compiler or set CUDA_HOME"
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
