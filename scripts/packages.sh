# shellcheck shell=bash disable=SC2034
# What FastStream needs from Debian 12, for the other scripts to source.

build_packages=(
  build-essential cmake ninja-build pkg-config ccache
  libcli11-dev libdnnl-dev libedit-dev libsentencepiece-dev libxxhash-dev nlohmann-json3-dev
)
# sentencepiece: the programs that the tokenizer is compared with.
test_packages=(
  clang clang-format clang-tidy libclang-rt-14-dev libgtest-dev python3 sentencepiece
)

# Installs those of the packages named that are missing.
install_missing() {
  local package missing=()
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "This is no Debian: install what these packages hold yourself: $*" >&2
    return
  fi
  for package in "$@"; do
    if [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) != installed ]]; then
      missing+=("$package")
    fi
  done
  if ((${#missing[@]} == 0)); then return; fi

  local as_root=()
  if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
      echo "Missing packages: ${missing[*]}. Install them as root, then run this again." >&2
      return 1
    fi
    as_root=(sudo)
  fi
  echo "==> Installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}
