#!/usr/bin/env bash
# Compiles every CUDA file for every GPU that a release is for, and lists kernels that spill registers
# to memory. Nothing is linked, and no GPU is needed.
#
#   scripts/cuda.sh /usr/local/cuda     with the toolkit in this folder
#   scripts/cuda.sh 12.6                with CUDA 12, put together in build/cuda-12.6
#
# PyPI has of CUDA 12 all but the compiler's first half (nvcc, cudafe++, cicc), which Debian 13 has in
# version 12.4. So 12.x is that half beside PTXAS, headers and libraries of 12.x: who has the whole
# toolkit gives its folder. It takes apt-get, pip, unzip and 1 GB.
#
# Environment: FILES (all), of which to compile some.
set -euo pipefail
cd "$(dirname "$0")/.."
(($# == 1)) || { sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2; }

# Fetches Debian 13's nvcc, whatever system this is, into ./debian.
fetch_debian_nvcc() {
  local apt=$PWD/apt
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
    "http://deb.debian.org/debian trixie non-free" > "$apt/sources.list"
  printf '%s "%s";\n' Dir::Etc::SourceList "$apt/sources.list" Dir::Etc::SourceParts /dev/null \
    Dir::State::Lists "$apt/lists" Dir::Cache "$apt/cache" Dir::State::Status /dev/null \
    APT::Sandbox::User root > "$apt/apt.conf"
  APT_CONFIG=$apt/apt.conf apt-get update -qq
  APT_CONFIG=$apt/apt.conf apt-get download -qq nvidia-cuda-toolkit
  dpkg-deb -x nvidia-cuda-toolkit_*.deb debian
  rm -r nvidia-cuda-toolkit_*.deb "$apt"
}

# Makes ./toolkit, of CUDA $1.
compose() {
  local release=$1 wheel
  fetch_debian_nvcc
  python3 -m pip download -q --no-deps --only-binary=:all: -d wheels \
    --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux1_x86_64 \
    "nvidia-cuda-nvcc-cu12==$release.*" "nvidia-cuda-runtime-cu12==$release.*" \
    "nvidia-cuda-cccl-cu12==$release.*" "nvidia-cublas-cu12==$release.*" nvidia-curand-cu12
  for wheel in wheels/*.whl; do unzip -qo "$wheel" 'nvidia/*/include/*'; done
  unzip -qo wheels/nvidia_cuda_nvcc_cu12-*.whl nvidia/cuda_nvcc/bin/ptxas
  rm -r wheels
  mkdir -p toolkit/bin/crt toolkit/nvvm/bin toolkit/include
  cp -r nvidia/*/include/. toolkit/include
  local tools=debian/usr/lib/nvidia-cuda-toolkit
  cp debian/usr/bin/{cudafe++,fatbinary} $tools/bin/nvcc toolkit/bin
  cp $tools/bin/crt/* toolkit/bin/crt
  cp $tools/bin/cicc toolkit/nvvm/bin
  cp -r $tools/libdevice toolkit/nvvm
  install -m 755 nvidia/cuda_nvcc/bin/ptxas toolkit/bin/ptxas
  # shellcheck disable=SC2016
  printf '%s\n' 'TOP = $(_HERE_)/..' 'CICC_PATH = $(TOP)/nvvm/bin' \
    'NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice' 'PATH += $(CICC_PATH):$(_HERE_):' \
    'INCLUDES += "-I$(TOP)/include" $(_SPACE_)' > toolkit/bin/nvcc.profile
  rm -r nvidia debian
}

toolkit=$1
if [[ $1 =~ ^12\.[0-9]+$ ]]; then
  mkdir -p "build/cuda-$1"
  toolkit=$PWD/build/cuda-$1/toolkit
  [[ -e $toolkit/bin/nvcc.profile ]] || (cd "build/cuda-$1" && compose "$1")
fi
"$toolkit/bin/nvcc" --version | grep release
"$toolkit/bin/ptxas" --version | grep release

mapfile -t files < <(printf '%s\n' ${FILES:-kernels/cuda/*.cu kernels/cuda/*/*.cu})
out=$(mktemp -d)
trap 'rm -r "$out"' EXIT
failed=0
for file in "${files[@]}"; do
  targets=(-gencode arch=compute_80,code=sm_80 -gencode arch=compute_86,code=sm_86
    -gencode arch=compute_89,code=sm_89 -gencode "arch=compute_90,code=[sm_90,compute_90]")
  [[ $file == *_sm90a.cu ]] && targets=(-gencode arch=compute_90a,code=sm_90a)
  if "$toolkit/bin/nvcc" -std=c++20 -O3 -DNDEBUG --expt-relaxed-constexpr -Isrc -I. "${targets[@]}" \
      "-DFASTSTREAM_CUDA_LIBRARIES=\"$toolkit/lib64\"" \
      -Werror all-warnings -Xcompiler=-fPIC,-Wall,-Wextra,-Werror -Xptxas -v \
      -c "$file" -o "$out/object" 2> "$out/said"; then
    echo "ok $file"
    # "Compiling entry function 'NAME' for 'GPU'" stands before what the kernel needs.
    awk '/Compiling entry function/ { split($0, part, "\047"); kernel = part[2]; gpu = part[4] }
      /bytes spill stores/ && !/ 0 bytes spill stores/ {
        sub(/^ */, ""); print "  " gpu ": " kernel ": " $0 }' "$out/said" | c++filt
  else
    cat "$out/said" >&2
    echo "FAILED $file"
    failed=$((failed + 1))
  fi
done
echo "${#files[@]} files, $failed failed"
((failed == 0))
