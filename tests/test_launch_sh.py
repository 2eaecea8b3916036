"""launch.sh, with stand-ins for Python and pip: what it runs, and what it says when it cannot.

A stand-in is a small script that stands first on PATH and is copied into the environments that it "makes". It
notes its arguments in a file; so each test takes a moment, not the minutes and gigabytes of a real install.
"""

import functools
import http.server
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import venv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# All that launch.sh may use of a system, beside bash and Python.
TOOLS = ["awk", "bash", "cat", "cksum", "cut", "df", "dirname", "env", "grep", "id"]
TOOLS += ["mkdir", "mv", "rm", "sed", "tail", "tr", "uname"]

pytestmark = pytest.mark.timeout(60)

# `{pip}` is what `pip install` does, once its arguments are noted.
STAND_IN = """#!{bash}
printf '%s\\n' "$*" >>'{calls}'
case "$1 $2" in
  "-m venv") mkdir -p "$4/bin" && '{cp}' "$0" "$4/bin/python" ;;
  "-m ensurepip" | "-m pytest" | "-m jupyterlab") ;;
  "-m pip") {pip} ;;
  "-m ddp_src.train") echo "trained in $PWD with: ${{*:3}}" ;;
  *version_info*) echo {version} ;;
  *ensurepip*) {venv_module} ;;
  -*) exec '{python}' "$@" ;;
esac
"""


@dataclass
class Workplace:
    """A copy of the project in `project`, a PATH with stand-ins in `bin`, and what was called in `notes`."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.project = self.folder / "my project 项目"
        self.bin = self.folder / "bin"
        self.notes = self.folder / "calls"
        for path in (self.project, self.bin, self.folder / "home"):
            path.mkdir()
        for name in ("launch.sh", "pyproject.toml"):
            shutil.copy2(ROOT / name, self.project / name)
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool) or pytest.fail(f"{tool} is missing"))
        self.env = {"PATH": str(self.bin), "HOME": str(self.folder / "home"), "LANG": "C.UTF-8"}
        self.env["TORCH_INDEX_URL"] = "http://127.0.0.1:9/"  # nothing listens there

    def stand_in(self, name: str = "python3", **does: str) -> None:
        does = {"version": "3.11", "pip": ":", "venv_module": ":"} | does
        does |= {tool: shutil.which(tool) for tool in ("bash", "cp")}
        text = STAND_IN.format(python=sys.executable, calls=self.notes, **does)
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def start(self, *words: str, cwd: Path | None = None, user: int | None = None, **env: str):
        process = subprocess.Popen(
            [self.project / "launch.sh", *words],
            cwd=cwd or self.folder,
            env=self.env | env,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def stop(self) -> None:
        """What a failed test left running; launch.sh then ends what it started."""
        for process in self.started:
            if process.poll() is None:
                process.terminate()
                process.communicate()

    def run(self, *words: str, **how) -> subprocess.CompletedProcess[str]:
        process = self.start(*words, **how)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def calls(self, start: str) -> list[str]:
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return [line for line in lines if line.startswith(start)]


@pytest.fixture
def place() -> Iterator[Workplace]:
    """Not tmp_path, which another user may not enter."""
    with tempfile.TemporaryDirectory(prefix="ddp-launch-") as folder:
        os.chmod(folder, 0o755)
        workplace = Workplace(Path(folder).resolve())
        yield workplace
        workplace.stop()


def said_in_both_languages(text: str, english: str, chinese: str) -> None:
    lines = text.splitlines()
    assert any(english in line for line in lines), text
    assert any(chinese in line for line in lines), text
    assert "Traceback" not in text


# ---- words ----


@pytest.mark.parametrize("word", ["trian", "--version", "doctor", "site", "kit", "run_tests", "fail", ""])
def test_a_wrong_word_gets_the_usage_and_status_2(place: Workplace, word: str):
    result = place.run(word)
    assert result.returncode == 2
    assert "usage: ./launch.sh COMMAND" in result.stderr
    said_in_both_languages(result.stderr, f"no command {word};", f"没有 {word} 这个命令")


@pytest.mark.parametrize("words", [[], ["help"], ["--help"], ["-h"]])
def test_help_lists_the_commands_that_there_are(place: Workplace, words: list[str]):
    result = place.run(*words)
    assert (result.returncode, result.stderr) == (0, "")
    listed = re.findall(r"^  ([a-z]+) ", result.stdout, flags=re.MULTILINE)
    assert listed == ["help", "setup", "train", "lab", "test", "notebooks", "bench"]


@pytest.mark.parametrize(
    ("words", "english", "chinese"),
    [
        (["lab", "fr"], "lab takes zh or en, got: fr", "收到的是：fr"),
        (["lab", "zh", "en"], "lab takes zh or en, got: zh en", "收到的是：zh en"),
        (["setup", "now"], "setup takes no options, got: now", "收到的是：now"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_made(place, words, english, chinese):
    place.stand_in()
    result = place.run(*words)
    assert result.returncode == 2
    said_in_both_languages(result.stderr, english, chinese)
    assert not place.notes.exists()


# ---- the first call and the later ones ----


def test_train_makes_the_environment_once_then_starts_at_once(place: Workplace):
    place.stand_in()
    first = place.run("train", "--epochs", "3")
    assert first.returncode == 0, first.stderr
    assert first.stdout == f"trained in {place.folder} with: --epochs 3\n"
    (place.bin / "python3").unlink()  # nothing but the environment itself is needed from here on
    place.notes.unlink()
    second = place.run("train", "--nproc-per-node", "2", cwd=Path("/"))
    assert (second.returncode, second.stderr) == (0, "")
    assert second.stdout == "trained in / with: --nproc-per-node 2\n"
    assert place.notes.read_text() == "-m ddp_src.train --nproc-per-node 2\n"


def test_nothing_is_left_in_the_project_but_the_environment(place: Workplace):
    place.stand_in()
    place.run("setup")
    assert {path.name for path in place.project.iterdir()} == {"launch.sh", "pyproject.toml", ".venv"}
    assert list((place.folder / "home").iterdir()) == []


def test_changed_requirements_are_installed_into_the_same_environment(place: Workplace):
    place.stand_in()
    place.run("setup")
    place.notes.unlink()
    with (place.project / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    assert place.run("setup").returncode == 0
    assert place.calls("-m venv") == []
    assert place.calls("-m pip")[-1] == f"-m pip install --editable {place.project}[dev]"


def test_an_environment_made_by_hand_is_kept(place: Workplace):
    place.stand_in()
    (place.project / ".venv/bin").mkdir(parents=True)
    shutil.copy2(place.bin / "python3", place.project / ".venv/bin/python")
    mine = place.project / ".venv/mine"
    mine.touch()
    assert place.run("setup").returncode == 0
    assert mine.exists()
    assert place.calls("-m venv") == []


# ---- which environment ----


def test_an_active_environment_that_has_everything_is_used(place: Workplace):
    place.stand_in()
    result = place.run("setup", VIRTUAL_ENV=sys.prefix)
    assert result.returncode == 0, result.stderr
    said_in_both_languages(
        result.stderr, f"Ready: {sys.prefix}/bin/python", f"环境已就绪：{sys.prefix}/bin/python"
    )
    assert not (place.project / ".venv").exists()
    assert not place.notes.exists()


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_active_environment_that_lacks_something_is_left_alone(place: Workplace, variable: str):
    place.stand_in()
    active = place.folder / "active"
    venv.create(active, symlinks=True)
    before = sorted(active.rglob("*"))
    result = place.run("setup", **{variable: str(active)})
    assert result.returncode == 0, result.stderr
    said_in_both_languages(
        result.stderr, f"lacks what the project needs ({active}: packaging)", "缺少项目需要的软件包"
    )
    assert (place.project / ".venv/bin/python").exists()
    assert sorted(active.rglob("*")) == before


def read_only_run(place: Workplace, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """As one who may read the project but not write there."""
    place.project.chmod(0o555)
    for path in (place.folder / "home", place.folder):
        path.chmod(0o777)
    result = place.run(*words, user=65534 if os.getuid() == 0 else None, **env)
    place.project.chmod(0o755)
    return result


def test_without_write_access_the_environment_lies_in_the_users_cache(place: Workplace):
    place.stand_in()
    result = read_only_run(place, "train")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"trained in {place.folder} with: \n"
    assert not (place.project / ".venv").exists()
    assert len(list((place.folder / "home/.cache/ddp-tutorial").glob("*/venv/bin/python"))) == 1
    place.notes.unlink()
    assert read_only_run(place, "train").returncode == 0
    assert place.notes.read_text() == "-m ddp_src.train\n"


def test_without_any_place_to_write_it_says_so(place: Workplace):
    place.stand_in()
    closed = place.folder / "closed"
    closed.mkdir(mode=0o555)
    result = read_only_run(place, "train", XDG_CACHE_HOME=str(closed))
    assert result.returncode == 1
    said_in_both_languages(result.stderr, f"Neither {place.project} nor {closed}", "都无法写入")


# ---- which Python ----


def test_no_python(place: Workplace):
    result = place.run("train")
    assert result.returncode == 1
    said_in_both_languages(
        result.stderr, "There is no Python on this machine's PATH: install", "PATH 中找不到 Python"
    )


def test_a_python_that_is_too_old(place: Workplace):
    place.stand_in(version="3.9")
    result = place.run("train")
    assert result.returncode == 1
    said_in_both_languages(
        result.stderr, "Python 3.9 (python3) is too old: install", "Python 3.9 (python3) 版本太旧"
    )
    assert not (place.project / ".venv").exists()


def test_a_newer_python_beside_an_old_one_is_found(place: Workplace):
    place.stand_in(version="3.9")
    place.stand_in("python3.12", version="3.12")
    assert place.run("setup").returncode == 0
    assert "echo 3.12" in (place.project / ".venv/bin/python").read_text()


def test_a_python_without_the_venv_module(place: Workplace):
    place.stand_in(venv_module="exit 1")
    result = place.run("train")
    assert result.returncode == 1
    said_in_both_languages(result.stderr, "(python3) lacks its venv module: install it", "缺少 venv 模块")
    assert "apt install python3-venv" in result.stderr
    assert not (place.project / ".venv").exists()


def test_the_python_that_PYTHON_names_is_taken(place: Workplace):
    place.stand_in()
    place.stand_in("my own", version="3.13")
    assert place.run("setup", PYTHON=str(place.bin / "my own")).returncode == 0
    assert "echo 3.13" in (place.project / ".venv/bin/python").read_text()
    shutil.rmtree(place.project / ".venv")
    result = place.run("setup", PYTHON="/nowhere/python")
    assert result.returncode == 1
    said_in_both_languages(
        result.stderr, "PYTHON=/nowhere/python does not run", "PYTHON=/nowhere/python 无法运行"
    )


# ---- torch and pip ----


def installs(place: Workplace) -> list[str]:
    return [call.removeprefix("-m pip install ") for call in place.calls("-m pip install ")]


def test_a_cpu_index_out_of_reach_means_the_default_index_and_a_word_about_its_size(place: Workplace):
    place.stand_in()
    result = place.run("setup")
    assert result.returncode == 0
    said_in_both_languages(result.stderr, "CPU index (http://127.0.0.1:9/) did not answer", "5 秒内没有应答")
    assert result.stderr.count("3 GB") == 2
    assert installs(place) == ["pip>=21.3", f"--editable {place.project}[dev]"]


@pytest.mark.parametrize("fetcher", ["curl", "python"])
def test_torch_comes_from_the_cpu_index_where_it_answers(
    place: Workplace, httpserver_folder: str, fetcher: str
):
    place.stand_in()
    if fetcher == "curl":
        (place.bin / "curl").symlink_to(shutil.which("curl") or pytest.skip("curl is not installed"))
    result = place.run("setup", TORCH_INDEX_URL=httpserver_folder)
    assert result.returncode == 0, result.stderr
    assert installs(place)[1] == f"--index-url {httpserver_folder} torch>=2.14,<3 torchvision>=0.29,<1"
    assert installs(place)[2] == f"--editable {place.project}[dev]"
    assert "3 GB" not in result.stderr


@pytest.fixture
def httpserver_folder(tmp_path: Path) -> Iterator[str]:
    """The address of a package index on this machine that has a page for torch."""
    (tmp_path / "torch").mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_gpu_means_the_default_index(place: Workplace, httpserver_folder: str):
    place.stand_in()
    (place.bin / "nvidia-smi").symlink_to(shutil.which("true"))
    result = place.run("setup", TORCH_INDEX_URL=httpserver_folder)
    said_in_both_languages(result.stderr, "torch with CUDA for this machine's GPU", "安装带 CUDA 的 torch")
    assert installs(place) == ["pip>=21.3", f"--editable {place.project}[dev]"]


def test_with_PIP_NO_INDEX_no_index_is_asked(place: Workplace):
    place.stand_in()
    result = place.run("setup", PIP_NO_INDEX="1", PIP_FIND_LINKS="/wheels")
    assert result.returncode == 0
    assert "index" not in result.stderr
    assert installs(place) == ["pip>=21.3", f"--editable {place.project}[dev]"]


def test_large_downloads_are_shown_and_all_else_goes_to_the_log(place: Workplace):
    place.stand_in(
        pip="echo '  Downloading torch-2.14.1.whl (899.8 MB)'; echo '  Downloading tqdm.whl (0.1 MB)'"
    )
    result = place.run("setup")
    assert "Downloading torch-2.14.1.whl (899.8 MB)" in result.stderr
    assert "tqdm" not in result.stderr
    assert "Downloading tqdm.whl" in (place.project / ".venv/ddp-setup.log").read_text()


# ---- when it goes wrong ----


def test_no_network_on_first_use(place: Workplace):
    """With the real venv and pip: their words for it are what launch.sh looks for."""
    (place.bin / "python3").symlink_to(sys.executable)
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "1"}
    result = place.run("train", **nowhere)
    assert result.returncode == 1
    said_in_both_languages(
        result.stderr, "Packages cannot be downloaded: connect to a network", "无法下载软件包：请连接网络"
    )


@pytest.mark.parametrize(
    ("words_of_pip", "english", "chinese"),
    [
        ("ERROR: [Errno 28] No space left on device", "The disk is full", "磁盘已满"),
        ("ERROR: ReadTimeoutError: Read timed out.", "Packages cannot be downloaded", "无法下载软件包"),
        ("ERROR: [Errno 13] Permission denied: x", "cannot be written to", "无法写入"),
        (
            "ERROR: No matching distribution found for tqdm>=4.66",
            "There is no tqdm>=4.66 for Python",
            "的 tqdm>=4.66",
        ),
        ("something new", "Setup failed: the last lines of", "安装失败"),
    ],
)
def test_a_failure_of_pip_becomes_a_sentence(place: Workplace, words_of_pip, english, chinese):
    place.stand_in(pip=f"for i in 1 2 3 4 5 6 7 8 9; do echo line $i; done; echo '{words_of_pip}'; exit 1")
    result = place.run("train")
    assert result.returncode == 1
    said_in_both_languages(result.stderr, english, chinese)
    assert words_of_pip in result.stderr
    assert "line 1" not in result.stderr  # the log's last lines at most
    assert f"{place.project}/.venv/ddp-setup.log" in result.stderr
    place.stand_in()
    assert place.run("train").returncode == 0


def test_an_update_that_fails_leaves_a_complete_environment_complete(place: Workplace):
    place.stand_in()
    place.run("setup")
    place.notes.unlink()
    python = place.project / ".venv/bin/python"
    whole = python.read_text()
    python.write_text(whole.replace('"-m pip") :', '"-m pip") echo no; exit 1'))
    with (place.project / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    assert place.run("setup").returncode == 1
    python.write_text(whole)
    assert place.run("setup").returncode == 0
    assert place.calls("-m venv") == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_setup_ends_what_it_started_and_is_begun_again(place: Workplace, number, status: int):
    fifo = place.folder / "fifo"
    os.mkfifo(fifo)
    place.stand_in(pip=f"exec 5>'{fifo}'; echo pip is at work >&5; exec {shutil.which('sleep')} 60")
    process = place.start("setup")
    with fifo.open() as at_work:
        assert at_work.readline() == "pip is at work\n"
        process.send_signal(number)
        assert at_work.read() == ""  # its end is closed: the process that held it has ended
    _, err = process.communicate(timeout=60)
    assert process.returncode == status
    said_in_both_languages(err, "Setup was stopped; the next call begins it again.", "安装被中断")
    place.stand_in()
    place.notes.unlink()
    assert place.run("setup").returncode == 0
    assert len(place.calls("-m venv")) == 1


def test_a_killed_setup_is_begun_again(place: Workplace):
    fifo = place.folder / "fifo"
    os.mkfifo(fifo)
    place.stand_in(pip=f"exec 5>'{fifo}'; echo $$ >&5; exec {shutil.which('sleep')} 60")
    process = place.start("setup")
    with fifo.open() as at_work:
        pip = int(at_work.readline())
        process.kill()
        process.wait()
        os.kill(pip, signal.SIGKILL)
        assert at_work.read() == ""
    process.communicate()
    place.stand_in()
    place.notes.unlink()
    assert place.run("train").returncode == 0
    assert len(place.calls("-m venv")) == 1


def test_two_setups_at_once_make_one_environment(place: Workplace):
    fifo, go_on = place.folder / "fifo", place.folder / "go on"
    os.mkfifo(fifo)
    os.mkfifo(go_on)
    place.stand_in(pip=f"[ \"$4\" = 'pip>=21.3' ] || exit 0; echo at work >'{fifo}'; cat '{go_on}'")
    first = place.start("setup")
    assert fifo.read_text() == "at work\n"
    second = place.start("train")
    assert "Another setup is at work" in second.stderr.readline()
    go_on.write_text("")
    assert first.communicate(timeout=60) and first.returncode == 0
    out, err = second.communicate(timeout=60)
    assert (second.returncode, out) == (0, f"trained in {place.folder} with: \n"), err
    assert len(place.calls("-m venv")) == 1


# ---- what is run ----


def test_several_machines_are_told_how(place: Workplace):
    result = place.run("train", NNODES="2")
    assert result.returncode == 2
    said_in_both_languages(
        result.stderr, "run: torchrun --nnodes=2 --nproc-per-node=gpu", "请在每一台上运行：torchrun"
    )


@pytest.mark.parametrize(
    ("words", "locale", "language"),
    [
        ([], "zh_CN.UTF-8", "zh"),
        ([], "en_US.UTF-8", "en"),
        (["en"], "zh_CN.UTF-8", "en"),
        (["zh"], "C", "zh"),
    ],
)
def test_lab_opens_the_chapters_of_one_language_on_this_machine_only(place, words, locale, language):
    place.stand_in()
    result = place.run("lab", *words, LANG=locale)
    assert result.returncode == 0, result.stderr
    (call,) = place.calls("-m jupyterlab")
    assert "--ip=127.0.0.1" in call
    assert f"--LabApp.default_url=/lab/tree/notebooks/{language}" in call
    assert "--no-browser" in call  # there is no display here
    assert "token" not in call  # JupyterLab's own default, on


def test_test_gives_its_options_to_pytest(place: Workplace):
    place.stand_in()
    assert place.run("test", "-k", "data and not slow").returncode == 0
    assert place.calls("-m pytest") == ["-m pytest -k data and not slow"]


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["--breaks", "data.py"], "tests/breaks.py data.py"),
        (["--stress", "--seed", "7"], "tests/stress/soak.py --seed 7"),
    ],
)
def test_test_runs_the_programs_beside_pytest(place: Workplace, words: list[str], program: str):
    place.stand_in()
    assert place.run("test", *words).returncode == 0
    assert place.calls("tests/") == [program]
    assert place.calls("-m pytest") == []


def test_the_programs_status_is_launch_shs(place: Workplace):
    place.stand_in()
    place.run("setup")
    python = place.project / ".venv/bin/python"
    python.write_text(f"#!{shutil.which('bash')}\nexit 7\n")
    assert place.run("train").returncode == 7
    assert place.run("test").returncode == 7
    assert place.run("notebooks").returncode == 7
