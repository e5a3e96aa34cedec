#!/bin/sh
# Builds the device check, one program that needs no other file, and says how to run it on a machine with a GPU.
set -eu
cd "$(dirname "$0")/.."
cargo build --release --example device_check
program=${CARGO_TARGET_DIR:-target}/release/examples/device_check
cat <<TEXT

Built $program for $(uname -m). On a Linux machine with an NVIDIA GPU and its driver:

    scp $program GPU_MACHINE:
    ssh GPU_MACHINE ./device_check

It takes up to eight minutes, prints what it is at, and ends with 'N passed, N failed': exit code 0, or 1 if anything
failed, 2 where there is no CUDA to check. '--quick' does less of everything, '--parts ops,speed' does these parts only.

Beside the driver it needs NVRTC and cuBLAS. Where the CUDA toolkit is not on the library path, take pip's wheels, put
their libraries in one folder and name it:

    pip install --target wheels nvidia-cuda-nvrtc nvidia-cublas             # a driver of CUDA 13
    pip install --target wheels nvidia-cuda-nvrtc-cu12 nvidia-cublas-cu12   # a driver of CUDA 12
    mkdir -p libs && find "\$PWD/wheels" -name 'lib*.so*' -exec ln -sf {} libs/ \;
    TURRET_CUDA_LIBS=\$PWD/libs ./device_check
TEXT
