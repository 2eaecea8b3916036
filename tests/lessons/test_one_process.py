"""Chapter 01: what is timed, when parts make up the whole and when not, and what the exercises say."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from ddp_src import check, hint, spawn
from ddp_src.data import MNISTDataset, load_digits
from ddp_src.lessons import one_process
from ddp_src.model import SimpleModel
from ddp_src.runlog import Step

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def digits():
    return MNISTDataset.from_digits(load_digits(train=True))


# --- the loop and its clock


class Counter:
    """A stopwatch whose first lap takes 1 s, the second 2 s, and so on."""

    def __init__(self, device):
        self.laps = 0

    def lap(self):
        self.laps += 1
        return self.laps


def test_each_phase_gets_its_own_lap_and_the_time_between_steps_none(digits, monkeypatch):
    monkeypatch.setattr(one_process, "WorkClock", Counter)
    steps = one_process.timed_steps(DataLoader(digits, 4), SimpleModel(), CPU)
    phases = [(s.data, s.forward, s.backward, s.update) for s in (next(steps), next(steps))]
    assert phases == [(1, 2, 3, 4), (6, 7, 8, 9)]


def readings(*seconds):
    return iter(seconds).__next__


def test_on_a_cpu_the_clock_counts_the_work_of_this_thread(monkeypatch):
    monkeypatch.setattr(one_process.time, "get_clock_info", lambda name: SimpleNamespace(resolution=1e-9))
    monkeypatch.setattr(one_process.time, "thread_time", readings(1.0, 3.5, 4.0))
    clock = one_process.WorkClock(CPU)
    assert [clock.lap(), clock.lap()] == [2.5, 0.5]


@pytest.mark.parametrize(("device", "resolution", "synchronised"), [("cuda", 1e-9, 2), ("cpu", 0.015, 0)])
def test_on_a_gpu_and_where_work_is_not_measured_it_counts_every_second(
    device, resolution, synchronised, monkeypatch
):
    calls = []
    monkeypatch.setattr(
        one_process.time, "get_clock_info", lambda name: SimpleNamespace(resolution=resolution)
    )
    monkeypatch.setattr(one_process.time, "perf_counter", readings(1.0, 3.5, 4.0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append(1))
    clock = one_process.WorkClock(torch.device(device))
    assert [clock.lap(), clock.lap()] == [2.5, 0.5]
    assert len(calls) == synchronised


def test_the_timed_loop_trains_like_a_plain_one(digits):
    loader = DataLoader(digits, 1000)  # 4 batches, in order: the loop starts over after them
    torch.manual_seed(0)
    timed, plain = SimpleModel(), SimpleModel()
    plain.load_state_dict(timed.state_dict())
    steps = one_process.timed_steps(loader, timed, CPU)
    records = [next(steps) for _ in range(6)]

    optimizer = torch.optim.Adam(plain.parameters(), lr=0.001)
    losses = []
    for images, labels in [*loader, *loader][:6]:
        loss = F.cross_entropy(plain(images), labels)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert [record.loss for record in records] == losses
    assert [(record.step, record.samples) for record in records] == [(i, 1000) for i in range(6)]
    assert all(torch.equal(a, b) for a, b in zip(timed.parameters(), plain.parameters(), strict=True))


class Asked(MNISTDataset):
    """Notes every index that it is asked for."""

    def __init__(self, digits):
        self._hold(digits, None, torch.float32)
        self.indices = []

    def __getitem__(self, index):
        self.indices.append(index)
        return super().__getitem__(index)


def test_a_batch_is_asked_for_sample_by_sample_or_at_once():
    by_sample, by_batch = (Asked(load_digits(train=True)) for _ in range(2))
    for dataset, load in ((by_sample, one_process.load_by_sample), (by_batch, one_process.load_by_batch)):
        images, labels = next(iter(load(dataset)))
        assert (images.shape, labels.shape) == ((128, 1, 28, 28), (128,))
    assert [type(index) for index in by_sample.indices] == [int] * 128
    (indices,) = by_batch.indices
    assert len(set(indices)) == len(set(by_sample.indices)) == 128
    assert indices != sorted(indices)  # shuffled


def test_loaders_take_turns_and_their_first_step_is_not_counted(monkeypatch):
    turns = []

    def steps(loader, model, device):
        for number in range(100):
            turns.append(loader)
            yield Step(
                0, number, 0.0, 1, *(100 if number == 0 else 10 * number + phase for phase in range(4))
            )

    monkeypatch.setattr(one_process, "timed_steps", steps)
    monkeypatch.setattr(torch, "set_num_threads", turns.append)
    found = one_process.in_turn({"x": "A", "y": "B"}, 3)
    assert turns == [1, *"AB" * 4]
    assert found == {name: Step(0, 3, 0.0, 1, 20, 21, 22, 23) for name in "xy"}


def test_every_feed_and_every_batch_size_is_timed():
    (feeds,) = spawn(one_process.time_feeds, ("simple", 2), nprocs=1, show=False)
    assert list(feeds) == ["PIL per sample", "tensor per sample", "tensor per batch"]
    (sizes,) = spawn(one_process.time_batch_sizes, ((8, 32), 2), nprocs=1, show=False)
    assert {size: step.samples for size, step in sizes.items()} == {8: 8, 32: 32}
    for step in (*feeds.values(), *sizes.values()):
        assert min(step.data, step.forward, step.backward, step.update) > 0


def test_only_the_first_feed_makes_pictures(monkeypatch):
    monkeypatch.setattr(one_process, "in_turn", lambda loaders, steps, model: loaders)
    loaders = one_process.time_feeds(0)
    assert [type(loader.dataset.transforms).__name__ for loader in loaders.values()] == [
        "ToTensor",
        "NoneType",
        "NoneType",
    ]
    assert [loader.batch_size for loader in loaders.values()] == [128, 128, None]


# --- parts and the whole


def whole(count):
    return one_process.gradient(*one_process.few_digits(count))


def largest(difference):
    return difference.abs().max().item()


def test_the_mean_of_the_halves_gradients_is_the_gradient_of_the_whole_batch():
    images, labels = one_process.few_digits(8)
    assert labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    first, second = (one_process.gradient(images[p], labels[p]) for p in (slice(0, 4), slice(4, 8)))
    assert first.shape == (79_510,)
    assert largest(first - second) > 0.05
    assert largest((first + second) / 2 - whole(8)) < 1e-12


@pytest.mark.parametrize(
    ("counts", "loss", "what_ddp_gives"),
    [
        ((4, 4), one_process.mean_loss, lambda own: whole(8)),
        ((4, 1), one_process.mean_loss, lambda own: whole(5) + 0.3 * (own[1] - own[0])),
        ((4, 4), one_process.summed_loss, lambda own: 4 * whole(8)),
        ((4, 4), one_process.loss_times_ranks, lambda own: 2 * whole(8)),
        ((4, 1), one_process.weighed_by_count, lambda own: whole(5)),
        ((1, 7), one_process.weighed_by_count, lambda own: whole(8)),
    ],
)
def test_what_ddp_makes_of_two_parts(counts, loss, what_ddp_gives):
    ranks = spawn(one_process.own_and_joined, (counts, loss), nprocs=2, backend="gloo", show=False)
    own, joined = zip(*ranks, strict=True)
    assert torch.equal(*joined)
    assert largest(own[0] - own[1]) > 0.05
    assert largest(joined[0] - (own[0] + own[1]) / 2) < 1e-12
    assert largest(joined[0] - what_ddp_gives(own)) < 1e-12


def test_four_and_one_samples_are_off_by_more_than_the_gradient_itself():
    images, labels = one_process.few_digits(5)
    parts = [one_process.gradient(images[:4], labels[:4]), one_process.gradient(images[4:], labels[4:])]
    assert largest(sum(parts) / 2 - whole(5)) == pytest.approx(0.298, abs=0.001)
    assert largest(whole(5)) == pytest.approx(0.108, abs=0.001)


def test_labels_left_out_make_equal_parts_unequal():
    images, labels = one_process.few_digits(8)
    labels[5:] = -100
    parts = [one_process.gradient(images[:4], labels[:4]), one_process.gradient(images[4:], labels[4:])]
    assert largest(one_process.gradient(images, labels) - whole(5)) < 1e-12
    assert largest(sum(parts) / 2 - one_process.gradient(images, labels)) > 0.1


def test_the_gradient_of_one_sample_is_a_picture_of_it():
    images, labels = one_process.few_digits(8)
    for i in range(8):
        image = images[i, 0]
        picture = one_process.picture(one_process.gradient(images[i : i + 1], labels[i : i + 1]))
        factor = (picture * image).sum() / image.square().sum()
        assert abs(factor) > 0.04  # to be seen in the figure
        assert largest(picture - factor * image) < 1e-12


def test_sgd_feels_a_gradient_four_times_too_large_and_adam_does_not():
    def ratio(kind):
        return one_process.size_of_update(kind, 4) / one_process.size_of_update(kind, 1)

    assert ratio(torch.optim.SGD) == pytest.approx(4, abs=1e-6)
    assert ratio(torch.optim.Adam) == pytest.approx(1, abs=1e-3)


# --- the exercises


@pytest.fixture
def told(capsys):
    """Check an answer; everything printed, in lines."""

    def run(name, fn):
        capsys.readouterr()
        check(name, fn)
        return capsys.readouterr().out.splitlines()

    return run


def left_open(grads, counts):
    """The whole batch's gradient."""
    ...


def test_an_empty_answer_is_told_not_yet(told):
    assert told("one_process-1", left_open) == [
        "○ one_process-1: not yet: write `join(grads, counts)`, then run this cell again.",
        "○ one_process-1：还没写：写好 `join(grads, counts)`，再运行一次这个单元格。",
    ]
    english, _ = told("one_process-2", ...)
    assert english.startswith(
        "○ one_process-2: not yet: write `step_time(data, forward, backward, update, ranks)`"
    )


def in_place(grads, counts):
    joined = torch.zeros_like(grads[0])
    for grad, count in zip(grads, counts, strict=True):
        joined += grad.mul_(count)
    return joined.div_(sum(counts))


@pytest.mark.parametrize(
    "fn",
    [
        in_place,
        lambda grads, counts: torch.tensor(counts).double() @ torch.stack(grads) / sum(counts),
        lambda grads, counts: sum(g.float() * c for g, c in zip(grads, counts, strict=True)) / sum(counts),
        lambda grads, counts: sum(g.numpy() * c for g, c in zip(grads, counts, strict=True)) / sum(counts),
    ],
    ids=["in place", "product", "float32", "numpy"],
)
def test_another_way_to_join_is_right(fn, told):
    assert told("one_process-1", fn) == [
        "✓ one_process-1: right in all 4 cases, on 3 ranks.",
        "✓ one_process-1：3 个 rank、4 组数据，全对。",
    ]


WRONG_JOINS = {
    "plain mean": (
        lambda grads, counts: sum(grads) / len(grads),
        "right for equal parts only: with 4 + 1 samples, entry 0 of your gradient is 0.4, the whole "
        "batch's is "
        "1.06, off by 0.656: weigh each part by its count.",
        "只有各部分样本数相等时才对：样本数是 4 + 1 时，你的梯度的第 0 项是 0.4，整个 batch 的是 1.06，差了 "
        "0.656：每个部分要按样本数加权。",
    ),
    "mean over weights": (
        lambda grads, counts: torch.cat(grads).mean(),
        "your function returns one number, 0.931, where a gradient of shape [6] is expected: average "
        "over the "
        "parts, not over the weights.",
        "你的函数返回了一个数 0.931，而这里要的是形状为 [6] 的梯度：是在各部分之间求平均，不是在各"
        "个权重之间。",
    ),
    "sum": (
        lambda grads, counts: sum(grads),
        "with 4 + 4 samples, your gradient is 2 times the whole batch's (entry 1: 3.33 instead of 1.66): its "
        "direction is right; what do you divide by?",
        "样本数是 4 + 4 时，你的梯度是整个 batch 的 2 倍（第 1 项是 3.33，应为 1.66）：方向对了，最"
        "后该除以什么？",
    ),
    "first part": (
        lambda grads, counts: grads[0],
        "with 4 + 4 samples, entry 0 of your gradient is 1.49, the whole batch's is 0.466.",
        "样本数是 4 + 4 时，你的梯度的第 0 项是 1.49，而整个 batch 的是 0.466。",
    ),
    "joined end to end": (
        lambda grads, counts: torch.cat(grads),
        "your function returns a Tensor of shape [12] where [6], the shape of each part's gradient, "
        "is expected.",
        "你的函数返回了形状为 [12] 的 Tensor，而这里要的形状是 [6]，和各部分的梯度一样。",
    ),
    "word": (
        lambda grads, counts: "mean",
        "your function returns a str where a gradient, a tensor of shape [6], is expected.",
        "你的函数返回了 str 类型的值，而这里要的是梯度，形状为 [6] 的张量。",
    ),
}


@pytest.mark.parametrize(("fn", "english", "chinese"), WRONG_JOINS.values(), ids=WRONG_JOINS)
def test_a_wrong_way_to_join_is_told_by_what_it_gives(fn, english, chinese, told):
    assert told("one_process-1", fn) == [f"✗ one_process-1: {english}", f"✗ one_process-1：{chinese}"]


def test_an_answer_without_return_is_told_so(told):
    def join(grads, counts):
        sum(grads)

    assert told("one_process-1", join)[0] == (
        "✗ one_process-1: your function returns None where a gradient of shape [6] is expected: is `return` "
        "missing?"
    )


WRONG_TIMES = {
    "everything divided": (
        lambda data, forward, backward, update, ranks: (data + forward + backward + update) / ranks,
        "on 4 ranks you give 2.38 ms, 0.125 of them for the update: that takes 0.5 ms however small "
        "the batch, "
        "and every rank does all of it.",
        "4 个 rank 时你给出 2.38 毫秒，其中更新占 0.125 毫秒：不管 batch 多小，更新都要 0.5 毫秒，"
        "而且每个 rank "
        "都要完整地做一遍。",
    ),
    "data not divided": (
        lambda data, forward, backward, update, ranks: data + (forward + backward) / ranks + update,
        "on 4 ranks you give 8.75 ms, 8 of them for the data: each rank reads only its own part of "
        "the batch.",
        "4 个 rank 时你给出 8.75 毫秒，其中取数据占 8 毫秒：每个 rank 只读自己那份。",
    ),
    "nothing divided": (
        lambda data, forward, backward, update, ranks: data + forward + backward + update,
        "for a step of 8 + 0.5 + 0.5 + 0.5 ms you give 9.5 ms on 4 ranks, but it takes 2.75 ms.",
        "一步是 8 + 0.5 + 0.5 + 0.5 毫秒，分给 4 个 rank，你给出 9.5 毫秒，应为 2.75 毫秒。",
    ),
}


@pytest.mark.parametrize(("fn", "english", "chinese"), WRONG_TIMES.values(), ids=WRONG_TIMES)
def test_a_wrong_time_is_told_by_what_it_gives(fn, english, chinese, told):
    assert told("one_process-2", fn) == [f"✗ one_process-2: {english}", f"✗ one_process-2：{chinese}"]


def test_the_right_time_is_right(told):
    def step_time(data, forward, backward, update, ranks):
        return update + sum([data, forward, backward]) / ranks

    assert told("one_process-2", step_time)[0] == "✓ one_process-2: right in all 3 cases, on 2 ranks."


@pytest.mark.parametrize("name", ["one_process-1", "one_process-2"])
def test_each_exercise_has_a_hint_in_both_languages(name, capsys):
    hint(name)
    english, chinese = capsys.readouterr().out.splitlines()
    assert english.startswith(f"{name}: ")
    assert chinese.startswith(f"{name}：")
