#!/usr/bin/env bash
# system.sh PURPOSE...: install the system packages that building, the demo or the tests need, where root and apt
# are there; elsewhere say what is missing and what goes on without it. Quick when nothing is missing.
set -euo pipefail

# Debian keeps tc and ip in sbin, which is not on every user's path.
PATH=$PATH:/usr/sbin:/sbin
python=${PYTHON:-python3}
packages=() losses=()

need() { # PACKAGES, WHAT GOES ON WITHOUT THEM, COMMAND THAT SUCCEEDS WHEN THEY ARE THERE
  local names=$1 loss=$2
  shift 2
  "$@" >/dev/null 2>&1 && return
  packages+=("$names")
  losses+=("$loss")
}
has_venv() { "$python" -c 'import ensurepip, venv'; }
has_compiler() { printf '#include <Python.h>\n' | cc -fsyntax-only -I"$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')" -x c -; }
has_shaping() { command -v ip && command -v tc && command -v unshare; }
has_chromium() { command -v chromium || command -v chromium-browser || command -v google-chrome; }
has_prometheus() { command -v prometheus && command -v promtool; }
has_chinese_font() { command -v fc-list && [ -n "$(fc-list :lang=zh-cn)" ]; }

for purpose in "$@"; do
  case $purpose in
    build)
      need "python3-venv" "no virtual environment can be made" has_venv
      need "gcc libc6-dev python3-dev" "codecs run in plain torch instead of C, and the run's page says so" has_compiler
      ;;
    demo)
      need "iproute2 util-linux" "the demo trains over plain loopback, and says so" has_shaping
      ;;
    test)
      need "chromium" "browser tests are skipped" has_chromium
      need "prometheus" "tests against a real Prometheus are skipped" has_prometheus
      need "fontconfig fonts-noto-cjk" "the test that Chinese glyphs are drawn is skipped" has_chinese_font
      ;;
    *)
      echo "unknown purpose $purpose; known: build demo test" >&2
      exit 2
      ;;
  esac
done
[ ${#packages[@]} -eq 0 ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing ${packages[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # Unquoted on purpose: one entry may hold several packages.
  if apt-get update -qq && apt-get install -y -qq --no-install-recommends ${packages[*]} >/dev/null; then
    exit 0
  fi
  echo "apt-get could not install them."
fi
for index in "${!packages[@]}"; do
  echo "Missing: ${packages[index]}. Without it ${losses[index]}."
done
