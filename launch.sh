#!/usr/bin/env bash
# The one way in: makes a Python environment on first use, then runs what was asked for.
# Runs on bash 3.2 (macOS): no associative arrays, no empty arrays under `set -u`, braces before Chinese text.
set -u

here=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P) || exit 1
cpu_index=${TORCH_INDEX_URL:-https://download.pytorch.org/whl/cpu}
child=

usage() {
  cat <<'EOF'
usage: ./launch.sh COMMAND [options]
用法：./launch.sh 命令 [选项]

  help               print this text
                     显示本说明
  setup              make the Python environment now (every other command makes it on first use)
                     现在就建好 Python 环境（其他命令在首次使用时也会自动建好）
  train [options]    train on every local GPU, or with 2 ranks on the CPU; `train --help` lists the options
                     用本机的全部 GPU 训练，没有 GPU 时在 CPU 上用 2 个 rank；`train --help` 列出选项
  lab [zh|en]        open the chapters in JupyterLab, on this machine only
                     在 JupyterLab 中打开各章，只有本机能访问
  test [options]     run every test and both languages' notebooks; options go to pytest; `test --breaks` plants
                     known mistakes in copies of the code and shows that the tests catch them; `test --stress`
                     launches 1,500 times, 300 of them with a fault, and counts what is not right
                     运行全部测试和两种语言的 notebook，选项交给 pytest；`test --breaks` 在代码的副本里
                     埋下已知的错误，看测试能否发现；`test --stress` 连续启动 1500 次，其中 300 次带有故障，
                     统计有多少次不对
  notebooks [NN…]    build the chapters from notebooks/src and run again what is stale
                     由 notebooks/src 生成各章，并重新运行已过期的部分
  bench [--quick]    measure launch times, feeding and memory against their goals; writes bench.json
                     测量启动时间、数据供给和内存，与目标对照；结果写入 bench.json

variables of the first use | 首次使用时可设的变量
  PYTHON             the Python to use, 3.10 or newer | 要用的 Python，3.10 或更新
  TORCH_INDEX_URL    where to get torch without CUDA | 从哪里取不带 CUDA 的 torch
  PIP_INDEX_URL      a mirror for all packages | 全部软件包的镜像
  PIP_FIND_LINKS     a folder of wheels; with PIP_NO_INDEX=1 no network is needed
                     存放 wheel 的文件夹；再加 PIP_NO_INDEX=1，就完全不用网络
EOF
}

# Each message is an English line and a Chinese line.
say() { printf '%s\n' "$@" >&2; }
fail() { say "$@"; exit 1; }
refuse() { say "$@"; exit 2; }

# ---- which Python ----

# Sets base_python, from which the environment is made.
find_python() {
  local candidate version old='' bare=''
  if [ -n "${PYTHON:-}" ]; then set -- "$PYTHON"; else
    set -- python3 python3.13 python3.12 python3.11 python3.10 python
  fi
  for candidate; do
    version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    case $version in
      3.[1-9][0-9]) ;;
      *) old="$version ($candidate)"; continue ;;
    esac
    "$candidate" -c 'import ensurepip, venv' 2>/dev/null || { bare="$version ($candidate)"; continue; }
    base_python=$candidate
    return
  done
  no_python "$bare" "$old"
}

no_python() {
  local bare=$1 old=$2
  [ -z "$bare" ] || fail \
    "Python ${bare} lacks its venv module: install it (Debian, Ubuntu: apt install python3-venv), or set PYTHON to another Python." \
    "Python ${bare} 缺少 venv 模块：请安装它（Debian、Ubuntu：apt install python3-venv），或用 PYTHON 指定另一个 Python。"
  [ -z "$old" ] || fail \
    "Python ${old} is too old: install Python 3.10 or newer, or set PYTHON to the path of one." \
    "Python ${old} 版本太旧：请安装 Python 3.10 或更新的版本，或用 PYTHON 指定它的路径。"
  [ -z "${PYTHON:-}" ] || fail \
    "PYTHON=${PYTHON} does not run: set it to the path of Python 3.10 or newer." \
    "PYTHON=${PYTHON} 无法运行：请把它设为 Python 3.10 或更新版本的路径。"
  fail "There is no Python on this machine's PATH: install Python 3.10 or newer, or set PYTHON to the path of one." \
    "PATH 中找不到 Python：请安装 Python 3.10 或更新的版本，或用 PYTHON 指定它的路径。"
}

# Prints the first requirement of pyproject.toml that the Python $1 lacks; fails if there is one.
lacks_nothing() {
  "$1" - "$here/pyproject.toml" 2>&1 <<'EOF'
import sys
from importlib.metadata import PackageNotFoundError, version

try:
    from packaging.requirements import Requirement  # it and tomli come with JupyterLab

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
except ImportError as error:
    sys.exit(error.name)
with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)["project"]
for line in project["dependencies"] + project["optional-dependencies"]["dev"]:
    wanted = Requirement(line)
    try:
        found = version(wanted.name)
    except PackageNotFoundError:
        sys.exit(line)
    if not wanted.specifier.contains(found, prereleases=True):
        sys.exit(line)
EOF
}

# ---- where the environment lies, and whether it is there ----

fingerprint() { printf '%s %s\n' "$(cksum <"$here/pyproject.toml")" "$here"; }

# The stamp is all that a later call reads; no Python is started to find out.
ready() { [ -x "$venv/bin/python" ] && [ "$(cat "$venv/ddp-setup" 2>/dev/null)" = "$(fingerprint)" ]; }

choose_venv() {
  local cache=${XDG_CACHE_HOME:-${HOME:-}/.cache}/ddp-tutorial key
  venv=$here/.venv
  if ready || [ -w "$here" ]; then return; fi
  key=$(printf %s "$here" | cksum | tr ' ' -)
  venv=$cache/$key/venv
  if ready || { mkdir -p "$cache/$key" 2>/dev/null && [ -w "$cache/$key" ]; }; then return; fi
  fail "Neither ${here} nor ${cache} can be written to: copy the project to a folder of yours, or set XDG_CACHE_HOME to one." \
    "${here} 和 ${cache} 都无法写入：请把项目复制到自己的文件夹，或用 XDG_CACHE_HOME 指定一个可写的文件夹。"
}

# Sets python, and lets it and what it starts find the project and each other.
enter_environment() {
  local active=${VIRTUAL_ENV:-${CONDA_PREFIX:-}} lacking
  python=$active/bin/python
  if [ -n "${PYTHON:-}" ] || [ ! -x "$python" ] || [ "$active" = "$here/.venv" ] ||
    ! lacking=$(lacks_nothing "$python"); then
    choose_venv
    ready || set_up "${lacking:+$active: ${lacking##*$'\n'}}"
    python=$venv/bin/python
  fi
  # Also where the project was moved, or the folder's name is one that this locale cannot write in a .pth file.
  export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" PATH="${python%/*}:$PATH"
}

# ---- making it ----

set_up() {
  [ -z "$1" ] || say "The active environment lacks what the project needs (${1}); using ${venv} instead." \
    "当前激活的环境缺少项目需要的软件包（${1}），改用 ${venv}。"
  find_python
  trap 'stopped 129' HUP; trap 'stopped 130' INT; trap 'stopped 143' TERM
  take_turn
  ready || { make_venv && install_packages && finish; } || explain_failure
  exec 9<&-
  trap - HUP INT TERM
}

# One setup at a time: a lock on the folder itself leaves no file, and goes when its holders end, however they end.
take_turn() {
  exec 9<"${venv%/*}"
  "$base_python" -c '
import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(75)' 2>/dev/null
  [ $? = 75 ] || return 0 # ours now, or a file system that has no locks
  say "Another setup is at work on ${venv}; waiting for it." "另一个安装进程正在处理 ${venv}，等它完成。"
  "$base_python" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)' 2>/dev/null
}

# A setup that was cut off leaves `unfinished`, and is begun again. An environment made by hand is kept.
make_venv() {
  log=$venv/ddp-setup.log unfinished=$venv/ddp-setup.unfinished
  say "Preparing ${venv}, once; this takes a few minutes. Log: ${log}" \
    "正在准备 ${venv}，只需一次，要几分钟。日志：${log}"
  if [ -x "$venv/bin/python" ] && [ ! -e "$unfinished" ]; then
    [ ! -e "$venv/ddp-setup" ] || mv "$venv/ddp-setup" "$unfinished"
    return
  fi
  rm -rf "$venv" && mkdir "$venv" && : >"$unfinished" &&
    logged "$base_python" -m venv --without-pip "$venv" && logged "$venv/bin/python" -m ensurepip
}

install_packages() {
  # Older ones, as in Python 3.10.0, cannot install a folder that has no setup.py.
  pip 'pip>=21.3' || return
  # shellcheck disable=SC2046 # one word per requirement
  ! cpu_build || pip --index-url "$cpu_index" $(sed -n 's/^ *"\(torch[^"]*\)",$/\1/p' "$here/pyproject.toml") || return
  pip --editable "${here}[dev]"
}

finish() { fingerprint >"$unfinished" && mv "$unfinished" "$venv/ddp-setup"; }

pip() { PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 logged "$venv/bin/python" -m pip install "$@"; }

# Whether torch without CUDA, a tenth of the size, is what this machine wants and can get.
cpu_build() {
  case ${PIP_NO_INDEX:-} in '' | 0 | [Ff]alse | no | off) ;; *) return 1 ;; esac
  [ "$(uname)" != Darwin ] || return 1
  if nvidia-smi -L >/dev/null 2>&1; then
    say "Taking torch with CUDA for this machine's GPU, a download of about 3 GB." \
      "本机有 NVIDIA GPU，安装带 CUDA 的 torch，下载约 3 GB。"
    return 1
  fi
  answers "${cpu_index%/}/torch/" && return
  say "PyTorch's CPU index (${cpu_index}) did not answer within 5 s; taking torch from the default index, whose CUDA libraries make it a download of about 3 GB. TORCH_INDEX_URL names another CPU index." \
    "PyTorch 的 CPU 软件源（${cpu_index}）5 秒内没有应答，改从默认源安装 torch；它带有 CUDA 库，下载约 3 GB。可用 TORCH_INDEX_URL 指定别的 CPU 软件源。"
  return 1
}

answers() {
  if command -v curl >/dev/null; then
    curl -fsSIL --max-time 5 -o /dev/null "$1" 2>/dev/null
  else
    "$base_python" -c 'import sys, urllib.request as r; r.urlopen(r.Request(sys.argv[1], method="HEAD"), timeout=5)' \
      "$1" 2>/dev/null
  fi
}

# Runs a command as a job of its own, so that a signal to this script can end it and all that it started.
logged() {
  local status
  set -m
  (set -o pipefail; "$@" 2>&1 </dev/null | keep_log) &
  child=$!
  set +m
  wait "$child"
  status=$?
  child=
  return "$status"
}

# Everything goes to the log; what a person waits for, the downloads of 10 MB and more, is shown too.
keep_log() {
  local line
  trap '' INT TERM HUP
  while IFS= read -r line; do
    { printf '%s\n' "$line" >>"$log"; } 2>/dev/null # a full disk is told later
    case $line in
      *Downloading\ *\([0-9][0-9]*.[0-9]\ MB\)* | *Downloading\ *\ GB\)*) say "  ${line#"${line%%[! ]*}"}" ;;
    esac
  done
}

stopped() {
  trap '' HUP INT TERM
  [ -z "$child" ] || { kill -INT -- "-$child"; wait "$child"; } 2>/dev/null
  say "Setup was stopped; the next call begins it again." "安装被中断，下次运行时会重新开始。"
  exit "$1"
}

# ---- when it goes wrong ----

explain_failure() {
  local python_version package
  # pip failed by itself, so an environment that was complete before still is.
  [ ! -s "$unfinished" ] || mv "$unfinished" "$venv/ddp-setup"
  grep '^ *ERROR' "$log" 2>/dev/null | tail -n 3 | cut -c 1-300 >&2
  if log_says 'No space left on device|Disk quota exceeded' || disk_full; then
    fail "The disk is full (${venv} or ${TMPDIR:-/tmp}): free about 7 GB there, then try again. Log: ${log}" \
      "磁盘已满（${venv} 或 ${TMPDIR:-/tmp}）：请腾出约 7 GB 空间后再试。日志：${log}"
  elif log_says 'new connection|[Cc]onnection (broken|refused|reset|aborted)|[Tt]imed out|[Tt]imeout|unreachable|name resolution|ProxyError|SSLError|HTTP error'; then
    fail "Packages cannot be downloaded: connect to a network, or set PIP_INDEX_URL to a mirror, or PIP_FIND_LINKS to a folder of wheels with PIP_NO_INDEX=1. Log: ${log}" \
      "无法下载软件包：请连接网络，或用 PIP_INDEX_URL 指定镜像，或用 PIP_FIND_LINKS 指定存放 wheel 的文件夹并设 PIP_NO_INDEX=1。日志：${log}"
  elif log_says 'Permission denied|Read-only file system' || [ ! -w "$venv" ]; then
    fail "${venv} cannot be written to: remove it or change its owner, then try again. Log: ${log}" \
      "${venv} 无法写入：请删除它，或修改其所有者，然后再试。日志：${log}"
  elif log_says 'No matching distribution found for'; then
    package=$(sed -n 's/.*No matching distribution found for \([^ ;(]*\).*/\1/p' "$log" | tail -n 1)
    python_version=$("$base_python" -c 'import platform; print(platform.python_version())')
    fail "There is no ${package} for Python ${python_version} where pip looked: add it there, or set PYTHON to another Python. Log: ${log}" \
      "pip 查找的地方没有适用于 Python ${python_version} 的 ${package}：请补上它，或用 PYTHON 指定另一个 Python。日志：${log}"
  fi
  tail -n 5 "$log" 2>/dev/null | cut -c 1-300 >&2
  fail "Setup failed: the last lines of ${log}, above, say why." "安装失败，原因见上面几行，即 ${log} 的末尾。"
}

log_says() { grep -qE "$1" "$log" 2>/dev/null; }

disk_full() { [ "$(df -Pk "${venv%/*}" 2>/dev/null | awk 'NR == 2 { print $4 }')" -lt 10240 ] 2>/dev/null; }

# ---- the commands ----

setup() {
  [ $# -eq 0 ] || refuse "setup takes no options, got: $*" "setup 不接受选项，收到的是：$*"
  enter_environment
  say "Ready: ${python}" "环境已就绪：${python}"
}

train() {
  [ "${NNODES:-1}" = 1 ] || refuse \
    "NNODES=${NNODES}: launch.sh trains on one machine; on each of several, run: torchrun --nnodes=${NNODES} --nproc-per-node=gpu --node-rank=N --master-addr=HOST --master-port=29500 -m ddp_src.train" \
    "NNODES=${NNODES}：launch.sh 只在一台机器上训练；要用多台机器，请在每一台上运行：torchrun --nnodes=${NNODES} --nproc-per-node=gpu --node-rank=编号 --master-addr=主机名 --master-port=29500 -m ddp_src.train"
  enter_environment
  exec "$python" -m ddp_src.train "$@"
}

lab() {
  local language=${1:-}
  if [ -z "$language" ]; then
    case ${LC_ALL:-${LC_MESSAGES:-${LANG:-}}} in zh*) language=zh ;; *) language=en ;; esac
  fi
  case $#:$language in 0:* | 1:zh | 1:en) ;; *) refuse "lab takes zh or en, got: $*" "lab 后面写 zh 或 en，收到的是：$*" ;; esac
  enter_environment
  set -- --ip=127.0.0.1 --ServerApp.root_dir="$here" --LabApp.default_url="/lab/tree/notebooks/$language"
  [ "$(id -u)" != 0 ] || set -- "$@" --allow-root
  has_display || set -- "$@" --no-browser
  exec "$python" -m jupyterlab "$@"
}

has_display() {
  [ -n "${DISPLAY:-}${WAYLAND_DISPLAY:-}" ] || { [ "$(uname)" = Darwin ] && [ -z "${SSH_CONNECTION:-}" ]; }
}

# Everything is one pytest run, static checks and notebooks too: see pyproject.toml and tests/conftest.py.
run_tests() {
  enter_environment
  cd "$here" || exit 1
  case ${1:-} in
    --breaks) shift; exec "$python" tests/breaks.py "$@" ;;
    --stress) shift; exec "$python" tests/stress/soak.py "$@" ;;
  esac
  exec "$python" -m pytest "$@"
}

notebooks() {
  enter_environment
  exec "$python" "$here/notebooks/build.py" run "$@"
}

bench() {
  enter_environment
  exec "$python" -m ddp_src.bench "$@"
}

main() {
  local command=${1-help}
  [ $# -eq 0 ] || shift
  case $command in
    help | -h | --help) usage ;;
    setup | train | lab | notebooks | bench) "$command" "$@" ;;
    test) run_tests "$@" ;;
    *)
      usage >&2
      refuse "" "launch.sh has no command ${command}; the commands stand above." "launch.sh 没有 ${command} 这个命令，可用的命令见上。"
      ;;
  esac
}

main "$@"
