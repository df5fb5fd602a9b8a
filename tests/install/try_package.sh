#!/usr/bin/env bash
# Installs a Debian package of FastStream with apt, uses it as its users do and removes it again, as root,
# in a system that nobody needs afterwards: a fresh container or chroot of the Debian release that the
# package was built on.
#
#   tests/install/try_package.sh FILE    or - for standard input
set -euo pipefail
(($# == 1)) || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
if dpkg-query -W build-essential >/dev/null 2>&1; then
  echo "This system has compilers: it is not fresh, and somebody may need it." >&2
  exit 1
fi
at=$(mktemp -d)
trap 'rm -r "$at"' EXIT
chmod 755 "$at"  # apt reads packages as a user of its own
cat -- "$1" >"$at/faststream.deb"
cd "$(dirname "$0")/../.."

apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$at/faststream.deb" >/dev/null
for program in faststream-run faststream-convert faststream-serve faststream-bench; do "$program" --version; done
faststream-convert demo -o "$at/demo.bin" --dtype int8 --quiet
faststream-run -m "$at/demo.bin" --temp 0 -p $'User: What is 128 plus 345?\nAssistant:' | tee "$at/answer"
grep -q 473 "$at/answer"
apt-get remove -y -qq faststream >/dev/null
[[ ! -e /usr/bin/faststream-run ]]
echo "Package installed, used and removed."
