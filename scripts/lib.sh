# Sourced by the other scripts: where things are, and how to say what happens.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Debian's own tools first: another CMake or Python further up in PATH need not fit the packages.
export PATH=/usr/bin:/bin:$PATH
venv=${RINGFEED_VENV:-$root/.venv}
# Another checkout's compilations count as ours; what is not known is compiled without being preprocessed before.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1
say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }

# container_settings FILE NETNS: settings of podman, for a check that exports CONTAINERS_CONF=FILE. What it gives containers by
# default may be more than this process may hand on, and crun does not run where control groups of both versions are mounted.
container_settings() {
  local runtime
  runtime=$(command -v crun || command -v runc) || {
    echo "podman has nothing that runs containers: apt-get install runc" >&2
    return 1
  }
  [ -f /sys/fs/cgroup/cgroup.controllers ] || runtime=$(command -v runc || echo "$runtime")
  cat >"$1" <<END
[containers]
default_ulimits = ["nofile=$(ulimit -Hn):$(ulimit -Hn)", "nproc=4096:4096"]
netns = "$2"
[engine]
runtime = "$(basename "$runtime")"
END
}

# build PRESET [TARGET...]: configures when needed, then builds; one line of progress on a terminal, else nothing. What
# protoc writes is compiled in release alone, and linked by the others; sanitized tests of the client start the programs
# of release. release_is_built says that these are there.
release_is_built=
build() {
  local preset=$1 taken=()
  shift
  local needs=()
  case $preset in
    release | demo) ;;
    *san) needs=(ringfeed_proto ringfeed ringfeed-worker) taken=(-D "RINGFEED_PROGRAMS=$root/build/release/bin") ;;
    *) needs=(ringfeed_proto) ;;
  esac
  if [ ${#needs[@]} -gt 0 ]; then
    taken+=(-D "RINGFEED_PROTO_LIBRARY=$root/build/release/proto/libringfeed_proto.a")
    [ -n "$release_is_built" ] || build release "${needs[@]}"
  fi
  if [ ! -f "$root/build/$preset/build.ninja" ]; then
    (cd "$root" && cmake --preset "$preset" "${taken[@]}" >"$root/build-$preset.log" 2>&1) || {
      cat "$root/build-$preset.log" >&2
      exit 1
    }
    rm -f "$root/build-$preset.log"
  fi
  local quiet=(--quiet)
  [ ! -t 2 ] || quiet=()
  ninja -C "$root/build/$preset" "${quiet[@]}" "$@" >&2
}
