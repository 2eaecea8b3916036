"""`spawn` from where people call it: a script without main guard, a notebook cell, a bare process."""

import os
import shlex
import subprocess
import sys
import tempfile

import nbformat
import pytest
from nbclient import NotebookClient

BARE_SCRIPT = """
import sys
print("the script runs")
import torch, torch.distributed as dist
from ddp_src import spawn

def work(rank):
    total = torch.tensor(1.0 + rank)
    dist.all_reduce(total)
    return total.item(), sys.stdin.read()

for start_method in ("forkserver", "spawn"):
    results = spawn(work, start_method=start_method)
    print(results)
    with open(sys.argv[1], "a") as file:
        print(results, file=file)
"""


@pytest.mark.parametrize("streams", ["", "0<&- 1>&- 2>&-"])
def test_a_script_without_main_guard_runs_once(streams, tmp_path):
    (tmp_path / "script.py").write_text(BARE_SCRIPT)
    command = f"{shlex.quote(sys.executable)} script.py results.txt {streams}"
    with tempfile.TemporaryDirectory(prefix="临时 ") as temporary:
        environment = os.environ | {"TMPDIR": temporary, "PYTHONIOENCODING": "utf-8"}
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, encoding="utf-8"
        )
    assert done.returncode == 0
    assert (tmp_path / "results.txt").read_text() == "[(3.0, ''), (3.0, '')]\n" * 2
    if not streams:
        assert done.stdout == "the script runs\n2 ranks · gloo · CPU\n" + "[(3.0, ''), (3.0, '')]\n" * 2


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_a_module_that_launches_when_it_is_imported_does_so_once(start_method, tmp_path):
    (tmp_path / "lesson.py").write_text(
        f"from ddp_src import spawn\ndef work(rank):\n    pass\nspawn(work, start_method={start_method!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", "import lesson"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    said = done.stderr[done.stderr.index("LaunchRefused: ") :].splitlines()
    assert said[:4] == [
        "LaunchRefused: a rank met this call of spawn while it imported the module, and would launch ranks "
        'of its own without end: put the call under `if __name__ == "__main__":`.',
        "rank 导入这个模块时又遇到了这次 spawn 调用，这样会无穷无尽地启动下去："
        '请把它放到 `if __name__ == "__main__":` 之下。',
        "  File lesson.py, line 4, in <module>",
        f"    spawn(work, start_method={start_method!r})",
    ]


def test_a_stream_without_these_characters_gets_escapes(tmp_path):
    program = "from ddp_src import spawn; spawn(abs)"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, timeout=60)
    assert done.stdout == b"2 ranks \\xb7 gloo \\xb7 CPU\n"


def test_a_temporary_path_too_long_for_a_socket_is_one_sentence(tmp_path):
    long_path = tmp_path / ("x" * 100)
    long_path.mkdir()
    program = "from ddp_src import spawn; spawn(print)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"TMPDIR": str(long_path)},
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-2:] == [
        "ddp_src._failures.LaunchRefused: the warm server cannot start (AF_UNIX path too long): "
        'set a shorter TMPDIR, or use start_method="spawn".',
        "热启动服务无法启动（AF_UNIX path too long）："
        '请换一个路径较短的 TMPDIR，或使用 start_method="spawn"。',
    ]
    assert list(long_path.iterdir()) == []


# --- a notebook -------------------------------------------------------------------------------------------

CELLS = [
    """
import time, torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from ddp_src import spawn
""",
    """
class Numbers(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return index

def work(rank):
    print(f"hello from {rank}")
    total = torch.tensor(1.0 + rank)
    dist.all_reduce(total)
    return total.item(), list(DataLoader(Numbers(), num_workers=1)), Numbers()

results = spawn(work)
[(total, len(batches), isinstance(numbers, Numbers)) for total, batches, numbers in results]
""",
    """
def fails(rank):
    if rank == 1:
        raise ValueError("the loss is nan")
    dist.barrier()

spawn(fails)
""",
    """
def asleep(rank):
    if rank == 0:
        dist.barrier()
    time.sleep(1000)

spawn(asleep, timeout=0.5)
""",
]


@pytest.fixture(scope="module")
def executed():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source.strip()) for source in CELLS])
    NotebookClient(notebook, timeout=60, kernel_name="python3", allow_errors=True).execute()
    return notebook.cells


def test_a_function_from_a_cell_runs_and_its_prints_appear_below(executed):
    printed = "".join(output.text for output in executed[1].outputs if output.output_type == "stream")
    assert sorted(printed.splitlines()) == [
        "2 ranks · gloo · CPU",
        "[rank 0] hello from 0",
        "[rank 1] hello from 1",
    ]
    (value,) = [output for output in executed[1].outputs if output.output_type == "execute_result"]
    assert value.data["text/plain"] == "[(3.0, 2, True), (3.0, 2, True)]"


def test_an_error_in_a_cell_is_short_and_names_its_line(executed):
    (error,) = executed[2].outputs
    assert (error.output_type, error.ename) == ("error", "RankFailed")
    *lines, log = "\n".join(error.traceback).splitlines()
    assert lines == [
        "RankFailed: rank 1 failed first · rank 1 最先出错",
        "ValueError: the loss is nan",
        "  Cell In[3], line 3, in fails",
        '    raise ValueError("the loss is nan")',
        "rank 0 was ended with it · rank 0 随之结束",
    ]
    assert log.startswith("log · 日志: ")


def test_a_hang_in_a_cell_names_its_line(executed):
    (error,) = executed[3].outputs
    assert "\n".join(error.traceback).splitlines() == [
        "RanksStuck: a rank waited more than 0.5 s in a collective that the others did not join",
        "有 rank 在一次集合通信里等了超过 0.5 秒，而别的 rank 没有来",
        "rank 0: in barrier, Cell In[4], line 3, in asleep",
        "    dist.barrier()",
        "    last collective · 最后的集合通信: #1 barrier",
        "rank 1: Cell In[4], line 4, in asleep",
        "    time.sleep(1000)",
    ]
