# shellcheck shell=bash disable=SC2034
# What FastStream needs from Debian 12 or 13, for the other scripts to source.

# libprotobuf-dev: the pkg-config file of 13's libsentencepiece-dev asks for it, but the package does
# not depend on it.
build_packages=(
  build-essential cmake ninja-build pkg-config
  libboost-dev libcli11-dev libedit-dev libpcre2-dev libsentencepiece-dev libssl-dev libutf8proc-dev libxxhash-dev
  nlohmann-json3-dev
  libprotobuf-dev
)
# file: CPack asks it which files are programs.
package_packages=(file)
# libopenmpi-dev, openmpi-bin: several processes run a model together; the build uses MPI where it is.
# sentencepiece: the programs that the tokenizer is compared with. fish, zsh: for which there are completions.
test_packages=(ccache clang clang-format clang-tidy fish libgtest-dev libopenmpi-dev lld openmpi-bin python3 sentencepiece zsh)

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
  if ! "${as_root[@]}" apt-get update -qq ||
    ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; then
    echo "Installing packages failed; apt-get says above why." >&2
    return 1
  fi
}
