"""The exercises: right answers, what wrong ones are told, and answers that misbehave."""

import inspect
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from ddp_src import check, hint, solution
from ddp_src.errors import ConfigError
from ddp_src.exercises import _verdict, all_exercises, quickstart
from ddp_src.exercises._exercise import Exercise, Feedback

NAME = "quickstart-1"


@pytest.fixture
def told(capsys):
    """Check an answer to quickstart-1; everything printed, in lines."""

    def run(fn, name=NAME):
        capsys.readouterr()
        assert check(name, fn) is None
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out.splitlines()

    return run


def weighted_mean(losses, counts):
    total = 0.0
    for rank in range(len(losses)):
        total += losses[rank] * counts[rank]
    return total / sum(counts)


RIGHT = [
    "✓ quickstart-1: right in all 4 cases, on 3 ranks.",
    "✓ quickstart-1：3 个 rank、4 组数据，全对。",
]
NOT_YET = [
    "○ quickstart-1: not yet: write `global_loss(losses, counts)`, then run this cell again.",
    "○ quickstart-1：还没写：写好 `global_loss(losses, counts)`，再运行一次这个单元格。",
]


@pytest.mark.parametrize("name", list(all_exercises()))
def test_the_reference_solution_is_right(name, told):
    lines = told(all_exercises()[name].solution, name)
    assert [line[0] for line in lines] == ["✓", "✓"]


@pytest.mark.parametrize(
    "fn",
    [
        lambda losses, counts: np.average(losses, weights=counts),
        lambda losses, counts: np.array(np.dot(losses, counts) / np.sum(counts)),
        lambda losses, counts: torch.tensor(losses) @ torch.tensor(counts).float() / sum(counts),
        lambda losses, counts: (
            torch.tensor(losses, requires_grad=True).double() @ torch.tensor(counts).double() / sum(counts)
        ),
        lambda *ranks: np.average(ranks[0], weights=ranks[1]),
    ],
    ids=["numpy", "array of no dimensions", "float32 tensor", "tensor with gradient", "any parameters"],
)
def test_another_right_answer_is_right(fn, told):
    assert told(fn) == RIGHT


PLAIN_MEAN = [
    "✗ quickstart-1: right for 128 and 128 samples; for 128 and 16 you give 0.606, "
    "the samples' mean is 0.518: weigh each loss by its count.",
    "✗ quickstart-1：样本数是 128 和 128 时是对的；样本数是 128 和 16 时，你给出 0.606，"
    "而全部样本的平均损失是 0.518：每个损失要按样本数加权。",
]


def test_a_mean_that_ignores_the_counts_is_told_where_it_is_right_and_where_not(told):
    assert told(lambda losses, counts: sum(losses) / len(losses)) == PLAIN_MEAN


def test_an_answer_that_changes_its_arguments_is_judged_by_its_value(told):
    def global_loss(losses, counts):
        ranks = len(losses)
        counts.clear()
        return sum(losses.pop() for _ in range(ranks)) / ranks

    assert told(global_loss) == PLAIN_MEAN


def test_a_mean_larger_than_every_loss_is_told_so(told):
    assert told(lambda losses, counts: np.dot(losses, counts) / len(losses)) == [
        "✗ quickstart-1: for 128 and 128 samples you give 98.8: your mean is larger than every loss it is "
        "the mean of (0.492 and 1.05); divide the sum over all samples by their number, 256.",
        "✗ quickstart-1：样本数是 128 和 128 时，你给出 98.8：这个平均值比参与平均的每一个损失"
        "（0.492 和 1.05）都大；所有样本的损失之和，应该除以样本总数 256。",
    ]


@pytest.mark.parametrize(("value", "shown"), [(0.125, "0.125"), (0.77, "0.77"), (float("nan"), "nan")])
def test_any_other_number_is_named_beside_the_right_one(value, shown, told):
    assert told(lambda losses, counts: value) == [
        "✗ quickstart-1: for mean losses 0.492 and 1.05 of 128 and 128 samples "
        f"you give {shown}, but the mean over the 256 samples is 0.771908.",
        f"✗ quickstart-1：平均损失是 0.492 和 1.05、样本数是 128 和 128 时，你给出 {shown}，"
        "而这 256 个样本的平均损失是 0.771908。",
    ]


def test_an_answer_for_two_ranks_only_fails_on_three(told):
    def global_loss(losses, counts):
        return (losses[0] * counts[0] + losses[1] * counts[1]) / (counts[0] + counts[1])

    english, chinese = told(global_loss)
    assert "of 128, 128 and 128 samples you give 0.771908" in english
    assert "样本数是 128、128 和 128 时，你给出 0.771908" in chinese


def left_open(losses, counts):
    """The mean loss over all samples."""
    # your code here
    ...


def blank_total(losses, counts):
    total = ...
    return total / sum(counts)


def blank_result(losses, counts):
    mean = ...
    return mean


def not_implemented(losses, counts):
    raise NotImplementedError("later")


@pytest.mark.parametrize(
    "fn", [..., left_open, lambda losses, counts: ..., blank_total, blank_result, not_implemented]
)
def test_an_unfinished_answer_is_told_that_it_is_not_written_yet(fn, told):
    assert told(fn) == NOT_YET


def test_an_open_exercise_starts_no_rank(told, monkeypatch):
    monkeypatch.setattr(_verdict, "spawn", None)
    assert told(left_open) == NOT_YET


@pytest.mark.parametrize(
    ("value", "english", "chinese"),
    [
        (
            None,
            "your function returns None where a number is expected: is `return` missing?",
            "你的函数返回了 None，而这里要的是一个数：是不是漏写了 `return`？",
        ),
        (
            "0.5",
            "your function returns a str, '0.5', where a number is expected.",
            "你的函数返回了 str 类型的 '0.5'，而这里要的是一个数。",
        ),
        (
            [0.5, 0.25],
            "your function returns a list, [0.5, 0.25], where a number is expected.",
            "你的函数返回了 list 类型的 [0.5, 0.25]，而这里要的是一个数。",
        ),
        (
            True,
            "your function returns a bool, True, where a number is expected.",
            "你的函数返回了 bool 类型的 True，而这里要的是一个数。",
        ),
        (
            torch.zeros(2, 3),
            "your function returns a Tensor of shape (2, 3) where a single number is expected.",
            "你的函数返回了形状为 (2, 3) 的 Tensor，而这里要的是一个数。",
        ),
        (
            np.zeros(1),
            "your function returns a ndarray of shape (1,) where a single number is expected.",
            "你的函数返回了形状为 (1,) 的 ndarray，而这里要的是一个数。",
        ),
    ],
    ids=["nothing", "string", "list", "bool", "matrix", "one-element array"],
)
def test_a_value_that_is_not_one_number_is_named(value, english, chinese, told):
    def global_loss(losses, counts):
        result = value
        return result

    assert told(global_loss) == [f"✗ quickstart-1: {english}", f"✗ quickstart-1：{chinese}"]


def test_what_it_raises_is_told_with_the_learners_line(told):
    def per_rank(loss, ranks):
        return loss / ranks

    def global_loss(losses, counts):
        return per_rank(sum(losses), 0)

    number = inspect.getsourcelines(per_rank)[1] + 1
    english, chinese = told(global_loss)
    assert re.sub(r"rank \d", "rank R", english) == (
        "✗ quickstart-1: on rank R your function raises ZeroDivisionError: float division by zero "
        f"(line {number}: `return loss / ranks`)."
    )
    assert re.sub(r"rank \d", "rank R", chinese) == (
        "✗ quickstart-1：在 rank R 上，你的函数抛出了 ZeroDivisionError: float division by zero"
        f"（第 {number} 行：`return loss / ranks`）。"
    )


def test_an_error_of_many_lines_stays_one_line_of_bounded_length(told):
    def global_loss(losses, counts):
        raise ValueError("first\nsecond\n" + "x" * 100_000)

    lines = told(global_loss)
    assert len(lines) == 2
    assert "ValueError: first second xxx" in lines[0]
    assert all(len(line) < 600 for line in lines)


def test_an_error_without_a_message_of_its_own_is_told(told):
    class Odd(Exception):
        def __str__(self):
            raise KeyError

    def global_loss(losses, counts):
        raise Odd

    assert "Odd: <exception str() failed> (line " in told(global_loss)[0]


def test_leaving_by_sys_exit_is_told_like_an_error(told):
    assert "your function raises SystemExit: 3 (line " in told(lambda losses, counts: sys.exit(3))[0]


@pytest.mark.parametrize(
    ("death", "english", "chinese"),
    [
        (lambda losses, counts: os._exit(0), "exit code 0", "退出码 0"),
        (lambda losses, counts: os._exit(3), "exit code 3", "退出码 3"),
        (lambda losses, counts: os.kill(os.getpid(), 9), "SIGKILL", "SIGKILL"),
        (lambda losses, counts: os.killpg(0, 9), "SIGKILL", "SIGKILL"),
    ],
)
def test_an_answer_that_ends_its_process_is_told_how(death, english, chinese, told):
    lines = [re.sub(r"rank \d", "rank R", line) for line in told(death)]
    assert lines == [
        f"✗ quickstart-1: your function ended its own process: rank R, {english}.",
        f"✗ quickstart-1：你的函数让自己所在的进程退出了：rank R，{chinese}。",
    ]


def test_a_crash_in_c_is_told_by_its_signal(told):
    def global_loss(losses, counts):
        import ctypes

        return ctypes.string_at(0)

    assert "your function ended its own process: rank " in (line := told(global_loss)[0])
    assert line.endswith(", SIGSEGV.")


@pytest.mark.skipif(sys.platform != "linux", reason="the ranks have one parent, the warm server, on Linux")
def test_an_answer_that_kills_the_server_of_all_ranks_spoils_no_later_check(told):
    assert told(lambda losses, counts: os.kill(os.getppid(), 9))[0].startswith("✗")
    assert told(weighted_mean) == RIGHT


def test_a_loop_without_an_end_is_ended_and_its_line_told(told, monkeypatch):
    def global_loss(losses, counts):
        while True:
            counts.append(1)
            counts.pop()

    assert told(weighted_mean) == RIGHT  # the server is warm
    monkeypatch.setattr(_verdict, "TIME_LIMIT", 2)
    english, chinese = told(global_loss)
    assert english.startswith("✗ quickstart-1: your function was not done after 2 s and was ended (line ")
    assert re.search(r"`(while True:|counts.append\(1\)|counts.pop\(\))`\): is there a loop without", english)
    assert chinese.startswith("✗ quickstart-1：你的函数运行了 2 秒还没有结束，已被终止（第 ")


def test_ranks_that_never_started_are_not_held_against_the_answer(told, monkeypatch):
    assert told(weighted_mean) == RIGHT  # the server is warm
    monkeypatch.setattr(_verdict, "TIME_LIMIT", 1e-9)
    english, chinese = told(weighted_mean)
    assert "so your function was not tried: the machine is busy; run this cell again." in english
    assert "你的函数没有运行：机器太忙，请再运行一次这个单元格。" in chinese


def test_printing_is_shown_up_to_five_lines_per_rank_and_then_counted(told):
    def global_loss(losses, counts):
        for line in range(25_000):
            print("line", line)
        return sum(loss * count for loss, count in zip(losses, counts)) / sum(counts)  # noqa: B905

    shown = ["line 0", "line 1", "line 2", "line 3", "line 4"]
    shown.append("… lines not shown: 99,995 · 还有 99,995 行没有显示")
    assert told(global_loss) == [f"[rank {r}] {line}" for r in range(3) for line in shown] + RIGHT


def test_one_endless_line_is_shown_in_part(told):
    def global_loss(losses, counts):
        print("x" * 10_000_000, end="")
        return sum(losses)

    assert max(map(len, told(global_loss))) < 1100


def test_what_goes_past_python_straight_to_the_terminal_is_not_shown(told):
    def global_loss(losses, counts):
        os.write(1, b"a line\n" * 100_000)
        return sum(loss * count for loss, count in zip(losses, counts)) / sum(counts)  # noqa: B905

    assert told(global_loss) == RIGHT


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is Linux's")
def test_hunger_for_memory_ends_in_an_error(told):
    def global_loss(losses, counts):
        return sum(bytearray(2**30))

    english, _ = told(global_loss)
    assert "your function raises MemoryError (line " in english
    assert english.endswith("`return sum(bytearray(2**30))`).")


def test_an_answer_that_cannot_travel_is_told_why(told):
    lock = threading.Lock()

    def global_loss(losses, counts):
        with lock:
            return sum(losses)

    english, chinese = told(global_loss)
    assert english.startswith("✗ quickstart-1: your function cannot be sent to the ranks: it uses something")
    assert chinese.startswith("✗ quickstart-1：你的函数无法传给各个 rank：它用到了外面某个不能复制的东西")


def test_a_value_in_place_of_the_function_is_named(told):
    assert told(weighted_mean([0.5, 0.5], [1, 1])) == [
        "✗ quickstart-1: check needs your function and got 0.5: "
        "pass `global_loss` itself, without calling it.",
        "✗ quickstart-1：check 需要你的函数，收到的却是 0.5：请传 `global_loss` 本身，不要先调用它。",
    ]


def test_a_wrong_number_of_parameters_is_named(told):
    assert told(lambda losses: 0.5) == [
        "✗ quickstart-1: your function takes (losses) and is called with 2 values: losses, counts.",
        "✗ quickstart-1：你的函数的参数是 (losses)，而调用时会传入 2 个值：losses, counts。",
    ]


@pytest.mark.parametrize("name", ["quickstart", "Quickstart-1", None, ["quickstart-1"]])
def test_an_unknown_name_is_refused_with_the_names_there_are(name):
    for use in (lambda: check(name, weighted_mean), lambda: hint(name), lambda: solution(name)):
        with pytest.raises(ConfigError) as caught:
            use()
        assert (
            caught.value.en == f"there is no exercise {name!r}: choose one of {', '.join(all_exercises())}."
        )
        assert caught.value.zh.startswith(f"没有名为 {name!r} 的练习：请从 ")


def test_the_hint_comes_in_both_languages(capsys):
    hint(NAME)
    english, chinese = capsys.readouterr().out.splitlines()
    assert english.startswith("quickstart-1: a rank's mean loss times its number of samples is")
    assert chinese.startswith("quickstart-1：每个 rank 的平均损失乘以它的样本数，就是")


def test_the_solution_shows_the_source_of_what_is_tested(monkeypatch):
    shown = []
    monkeypatch.setattr("ddp_src.notebook.show_source", shown.append)
    solution(NAME)
    assert shown == [quickstart.global_loss]


# An exercise in which the learner's own function communicates.


def average_over_ranks(fn, case):
    value = torch.full((1,), float(dist.get_rank()))
    fn(value)
    return value.item()


def average(value):
    dist.all_reduce(value)
    value /= dist.get_world_size()


@pytest.fixture
def average_exercise(monkeypatch):
    exercise = Exercise(
        cases=[0],
        trial=average_over_ranks,
        judge=lambda results: Feedback(f"{results}", "不对") if results != [(0.5, 0.5)] else None,
        hint=Feedback("", ""),
        solution=average,
    )
    monkeypatch.setitem(quickstart.EXERCISES, "average-1", exercise)


def test_results_come_to_the_judge_by_case_and_rank(average_exercise, told):
    assert told(average, "average-1")[0] == "✓ average-1: right in all 1 cases, on 2 ranks."
    assert told(lambda value: dist.all_reduce(value), "average-1")[0] == "✗ average-1: [(1.0, 1.0)]"


def test_ranks_that_wait_for_one_another_are_told_where_each_stands(average_exercise, told, monkeypatch):
    def on_rank_0_only(value):
        if dist.get_rank() == 0:
            dist.all_reduce(value)

    monkeypatch.setattr(_verdict, "TIMEOUT", 2)
    number = inspect.getsourcelines(on_rank_0_only)[1] + 2
    assert told(on_rank_0_only, "average-1") == [
        "✗ average-1: the ranks wait for one another: rank 0 is in your function "
        f"(line {number}: `dist.all_reduce(value)`); rank 1 has returned. "
        "Every rank must make the same collective calls.",
        f"✗ average-1：各个 rank 互相等待，卡住了：rank 0 停在你的函数里（第 {number} 行："
        "`dist.all_reduce(value)`）；rank 1 已经返回。每个 rank 都要做同样的集合通信调用。",
    ]


def test_the_rank_that_failed_is_told_not_the_one_that_waited_for_it(average_exercise, told):
    def raises_on_rank_1(value):
        if dist.get_rank() == 1:
            raise KeyError("weights")
        dist.all_reduce(value)

    assert (
        "on rank 1 your function raises KeyError: 'weights' (line " in told(raises_on_rank_1, "average-1")[0]
    )


# What is left behind, and where a learner's function comes from.


def processes_of_this_session():
    """The live processes that share our session: ranks do, and what they start."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(session) == os.getsid(0) and state != "Z":
            found.add(int(stat.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are listed from /proc")
@pytest.mark.parametrize("way", ["returns", "dies", "hangs"])
def test_no_process_is_left(way, told, monkeypatch):
    def global_loss(losses, counts):
        subprocess.Popen(["sleep", "600"])
        if way == "dies":
            os._exit(1)
        while way == "hangs":
            pass
        return 0.5

    assert told(weighted_mean) == RIGHT
    before = processes_of_this_session()
    monkeypatch.setattr(_verdict, "TIME_LIMIT", 2)
    assert told(global_loss)[0].startswith("✗")
    assert multiprocessing.active_children() == []
    until = time.monotonic() + 10
    while (left := processes_of_this_session() - before) and time.monotonic() < until:
        time.sleep(0.01)  # the kernel takes a moment to take a killed process off its list
    assert left == set()


CELLS = '''
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in (
    "from ddp_src import check\\nSCALE = 1",
    """
def global_loss(losses, counts):
    return SCALE * sum(l * n for l, n in zip(losses, counts)) / sum(counts)
check("quickstart-1", global_loss)""",
    """
def global_loss(losses, counts):
    return losses["rank 0"]
check("quickstart-1", global_loss)""",
):
    shell.run_cell(cell).raise_error()
'''


def test_a_function_defined_in_a_cell_is_checked_and_its_line_quoted(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", CELLS],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=os.environ | {"PYTHONIOENCODING": "utf-8", "IPYTHONDIR": str(tmp_path)},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    right_en, right_zh, wrong_en, wrong_zh = ended.stdout.splitlines()
    assert [right_en, right_zh] == RIGHT
    assert "raises TypeError: list indices must be integers or slices, not str" in wrong_en
    assert wrong_en.endswith('(line 2: `return losses["rank 0"]`).')
    assert wrong_zh.endswith('（第 2 行：`return losses["rank 0"]`）。')
