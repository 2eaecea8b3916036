"""Chapter 05: its versions of DDP are one process, fail as it says, and its exercises tell what is wrong."""

import inspect

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_src import check, hint, own_ddp, own_ddp_timing, spawn
from ddp_src.launch import RankFailed
from ddp_src.lessons import ddp_from_scratch
from ddp_src.model import SimpleModel, SmallCNN

SYNCED = ("naive", "flat", "bucketed", "overlapped")
CASES = {
    "different seeds",
    "tied weights",
    "frozen layer",
    "layer without gradient",
    "… except on rank 0",
}


@pytest.fixture(scope="module", params=[2, 3])
def found(request):
    return spawn(ddp_from_scratch.differences, nprocs=request.param, backend="gloo", show=False)


@pytest.mark.parametrize("name", SYNCED)
def test_every_version_with_a_sync_is_one_process_in_every_case(name, found):
    for differences in found:
        assert set(differences) == CASES
        for case, by_version in differences.items():
            assert by_version[name] < 1e-12, case


def test_without_a_sync_every_case_differs_so_the_comparison_can_fail(found):
    for differences in found:
        assert all(by_version["no sync"] > 1e-2 for by_version in differences.values())


def test_each_version_is_short():
    assert list(own_ddp.VERSIONS) == ["no sync", *SYNCED]
    for version in own_ddp.VERSIONS.values():
        assert len(inspect.getsourcelines(version)[0]) <= 40


def gradients_beside_torchs(rank):
    """max|own gradient − torch's DDP's| of SmallCNN by version, after two steps from different seeds."""
    torch.manual_seed(10 + rank)
    images, labels = torch.rand(4, 1, 28, 28, dtype=torch.float64), torch.tensor([3, 1, 4, 1])
    found = {}
    for name in SYNCED:
        gradients = []
        for wrap in (DDP, own_ddp.VERSIONS[name]):
            torch.manual_seed(rank)
            model = wrap(SmallCNN().double())
            for _ in range(2):
                model.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                if wrap is not DDP:
                    model.sync()
            gradients.append([p.grad.clone() for p in model.module.parameters()])
        found[name] = max((a - b).abs().max().item() for a, b in zip(*gradients, strict=True))
    return found


def test_the_gradients_are_those_of_torchs_ddp():
    for found in spawn(gradients_beside_torchs, nprocs=2, backend="gloo", show=False):
        assert set(found) == set(SYNCED)
        assert max(found.values()) < 1e-12


def buffers_after_wrapping(rank):
    model = nn.BatchNorm1d(2)
    model.running_mean += rank + 1
    own_ddp.NoSync(model)
    return model.running_mean.tolist()


def test_buffers_start_equal_too():
    assert spawn(buffers_after_wrapping, nprocs=2, backend="gloo", show=False) == [[1, 1], [1, 1]]


def mean_gradient(rank):
    model = own_ddp.Naive(nn.Linear(1, 1, bias=False))
    model(torch.tensor([[rank + 1.0]])).mean().backward()
    model.sync()
    return model.module.weight.grad.item(), list(model.state_dict())


def test_gradients_are_averaged_and_names_have_the_wrappers_prefix():
    ranks = spawn(mean_gradient, nprocs=2, backend="gloo", show=False)
    assert ranks == [(1.5, ["module.weight"])] * 2


def train(wrap, epochs=1):
    return spawn(ddp_from_scratch.train, (wrap, epochs), nprocs=2, backend="gloo", show=False)


def test_without_a_sync_the_replicas_part_and_no_loss_shows_it():
    alone, synced = train(own_ddp.NoSync, 2), train(own_ddp.Naive, 2)
    assert len(alone[1].apart) == len(alone[1].steps) + 1 == 2 * 16 + 1
    assert alone[1].apart[0] == 0
    assert all(distance > 0.1 for distance in alone[1].apart[1:])
    assert synced[1].apart == [0] * 33
    for one, other in zip(alone, synced, strict=True):
        assert one.steps[0].loss == other.steps[0].loss
        assert one.steps[-1].loss < one.steps[0].loss - 1  # nats: both learn, from 2.3 down
        assert other.steps[-1].loss < other.steps[0].loss - 1
        assert abs(one.accuracy - other.accuracy) < 0.08  # the replicas of 32 steps, not yet at 90 %
    assert synced[0].accuracy == synced[1].accuracy


@pytest.mark.parametrize("version", [own_ddp.Flat, own_ddp.Bucketed, own_ddp.Overlapped])
def test_replicas_that_sync_stay_equal_bit_for_bit(version):
    assert train(version)[1].apart == [0] * 17


class NoBroadcast(own_ddp.Naive):
    def start_equal(self):
        pass


class LostViews(own_ddp.Flat):
    def zero_grad(self, set_to_none=True):
        for p in self.trained:
            p.grad = None


def test_without_the_broadcast_the_distance_stays_what_it_was():
    apart = train(NoBroadcast)[1].apart
    assert apart[0] > 1
    assert abs(apart[-1] - apart[0]) < 1e-4


def test_gradients_set_to_none_are_no_longer_averaged():
    lost, alone = train(LostViews), train(own_ddp.NoSync)
    assert lost[1].apart == alone[1].apart
    assert lost[1].apart[-1] > 0.1


def backward_twice(rank):
    model = own_ddp.Overlapped(nn.Linear(2, 1))
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()


def test_a_second_backward_before_sync_is_refused():
    with pytest.raises(RankFailed, match=r"a second backward\(\) before sync\(\)"):
        spawn(backward_twice, nprocs=2, backend="gloo", show=False)


def test_a_bucket_is_closed_once_it_has_passed_the_cap():
    params = [nn.Parameter(torch.zeros(n)) for n in (10, 40, 5, 50, 1)]  # 4 bytes each
    sizes = [[p.numel() for p in group] for group in own_ddp.group(params, cap=200)]
    assert sizes == [[10, 40], [5, 50], [1]]
    assert [len(g) for g in own_ddp.group(reversed(list(SmallCNN().parameters())), 2**20)] == [4, 2, 2, 6]
    assert len(own_ddp.group(SimpleModel().parameters(), 2**20)) == 1
    assert own_ddp.group([], 200) == []


def test_a_gradient_is_a_view_into_the_buffer():
    params = [nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(4))]
    buffer = own_ddp.lay_out(params)
    (params[0].sum() + (2 * params[1]).sum()).backward()
    assert buffer.tolist() == [1] * 6 + [2] * 4
    buffer[6:] = 7
    assert params[1].grad.tolist() == [7] * 4


# --- what a step costs


def test_buckets_leave_while_backward_runs_in_the_last_version_only():
    names = ("naive", "flat", "bucketed", "overlapped")
    for traced in spawn(own_ddp_timing.trace, (names, 2, 2), nprocs=2, backend="gloo", show=False):
        early = {name: own_ddp_timing.launched_early(spans) for name, spans in traced.items()}
        assert early == {"naive": (0, 14), "flat": (0, 1), "bucketed": (0, 4), "overlapped": (4, 4)}
        for name, spans in traced.items():
            assert sum(span.name == "all-reduce" for span in spans) == early[name][1]
            phases = [span.name for span in spans if span.name in own_ddp_timing.PHASES]
            assert phases == ["forward", "backward", "sync", "update"]
            assert all(0 <= span.start <= span.end for span in spans)


def test_every_round_times_every_version():
    (seconds, _) = spawn(own_ddp_timing.time_steps, (SimpleModel, 2, 1), nprocs=2, backend="gloo", show=False)
    assert list(seconds) == ["no sync", *SYNCED, "torch's DDP"]
    assert all(len(times) == 15 and min(times) > 0 for times in seconds.values())


def test_a_ratio_is_taken_within_its_round():
    ratios = own_ddp_timing.ratios({"naive": [2.0, 9.0], "torch's DDP": [1.0, 3.0]})
    assert ratios == {"naive": [2.0, 3.0], "torch's DDP": [1.0, 1.0]}


# --- the exercises


@pytest.fixture
def told(capsys):
    """Check an answer; what is said of it in English and in Chinese, without mark and name."""

    def run(name, fn):
        capsys.readouterr()
        check(name, fn)
        english, chinese = capsys.readouterr().out.splitlines()
        return english.replace(f"✗ {name}: ", ""), chinese.replace(f"✗ {name}：", "")

    return run


def join(params, *, missing=torch.zeros_like):
    return torch.cat([(missing(p) if p.grad is None else p.grad).flatten() for p in params])


def write_back(params, buffer):
    for p, piece in zip(params, buffer.split([p.numel() for p in params]), strict=True):
        p.grad = piece.view_as(p)


def skips_none(params):
    present = [p for p in params if p.grad is not None]
    buffer = join(present)
    dist.all_reduce(buffer)
    write_back(present, buffer / dist.get_world_size())


def sums(params):
    trained = [p for p in params if p.requires_grad]
    buffer = join(trained)
    dist.all_reduce(buffer)
    write_back(trained, buffer)


def thaws(params):
    buffer = join(params)
    dist.all_reduce(buffer)
    write_back(params, buffer / 2)


def one_each(params):
    for p in params:
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad)
            p.grad /= 2


def gathers(params):
    buffer = join([p for p in params if p.requires_grad])
    ranks = [torch.zeros_like(buffer) for _ in range(2)]
    dist.all_gather(ranks, buffer)
    write_back([p for p in params if p.requires_grad], sum(ranks) / 2)


def keeps_the_result(params):
    buffer = join([p for p in params if p.requires_grad])
    dist.all_reduce(buffer)
    buffer /= 2


def leaves_none(params):
    trained = [p for p in params if p.requires_grad]
    buffer = join(trained)
    dist.all_reduce(buffer)
    for p, piece in zip(trained, buffer.split([p.numel() for p in trained]), strict=True):
        if p.grad is not None:
            p.grad = piece.view_as(p) / 2


def halves_before_and_after(params):
    trained = [p for p in params if p.requires_grad]
    buffer = join(trained) / 2
    dist.all_reduce(buffer)
    write_back(trained, buffer / 2)


SYNC = [
    (
        skips_none,
        "rank 0 sends 79,510 numbers, rank 1 78,510: buffers must have the same layout on all ranks, so a "
        "gradient that is missing on one rank counts as zeros there.",
        "rank 0 发送 79,510 个数，rank 1 发送 78,510 个：所有 rank 的缓冲区布局必须一致，"
        "某个 rank 上缺少的梯度，要在那里当作零。",
    ),
    (
        sums,
        "every entry of params[0].grad is exactly 2× too large: it starts with 2.2, the mean with 1.1; "
        "divide the sum by the number of ranks.",
        "params[0].grad 的每个数都恰好是平均值的 2 倍：它以 2.2 开头，平均值以 1.1 开头；"
        "求和之后要除以 rank 数。",
    ),
    (
        thaws,
        "params[2] is frozen, yet on rank 0 it now has a gradient of 7 numbers: leave out parameters that do "
        "not require a gradient.",
        "params[2] 是冻结的，可它在 rank 0 上却有了 7 个数的梯度：不需要梯度的参数不要放进来。",
    ),
    (
        one_each,
        "the gradients are right, but it took 2 all-reduces, of 6, 4 numbers: put all gradients in one "
        "buffer, which needs only one.",
        "梯度是对的，但用了 2 次 all-reduce，依次发送 6, 4 个数：把所有梯度放进一个缓冲区，一次就够。",
    ),
    (
        gathers,
        "the gradients are right, but not by way of `dist.all_reduce`, which was called 0 times: call "
        "`dist.all_reduce(...)` once, by this name.",
        "梯度是对的，但 `dist.all_reduce` 的调用次数是 0：请用它求和，只调用一次，"
        "并且就写成 `dist.all_reduce(...)`。",
    ),
    (
        keeps_the_result,
        "on rank 0 params[0].grad still holds the rank's own values, 1.54 first; the mean starts with 1.1: "
        "average over the ranks, then write the result back.",
        "rank 0 上的 params[0].grad 还是它自己的值，以 1.54 开头；平均值以 1.1 开头：先在各 rank 之间求平均，"
        "再把结果写回去。",
    ),
    (
        halves_before_and_after,
        "on rank 0 params[0].grad starts with 0.551, but the mean of 1.54 and 0.661 is 1.1.",
        "rank 0 上的 params[0].grad 以 0.551 开头，而 1.54 和 0.661 的平均值是 1.1。",
    ),
]


@pytest.mark.parametrize(("answer", "english", "chinese"), SYNC, ids=[row[0].__name__ for row in SYNC])
def test_a_wrong_sync_is_told_by_its_own_values(answer, english, chinese, told):
    assert told("ddp_from_scratch-1", answer) == (english, chinese)


def test_a_gradient_that_stays_none_is_told_with_its_rank(told):
    english, chinese = told("ddp_from_scratch-1", leaves_none)
    assert english.startswith("on rank 1 params[3].grad is still None; the mean over the ranks starts with ")
    assert chinese.startswith("rank 1 上的 params[3].grad 仍然是 None；")


HINTS = [
    "ddp_from_scratch-1: torch.cat joins flattened gradients into one buffer and buffer.split(sizes) takes "
    "it apart; what can stand in the buffer for a gradient that is None?",
    "ddp_from_scratch-1：torch.cat 能把展平的梯度接成一个缓冲区，buffer.split(sizes) 再把它拆开；"
    "梯度是 None 的参数，在缓冲区里可以用什么顶替？",
    "ddp_from_scratch-2: after the loop over the gradients, what lies in the list: always something, or only "
    "sometimes?",
    "ddp_from_scratch-2：遍历完所有梯度之后，列表里可能还剩着梯度吗？一定会剩吗？",
]


def test_the_hints_come_in_both_languages(capsys):
    hint("ddp_from_scratch-1")
    hint("ddp_from_scratch-2")
    assert capsys.readouterr().out.splitlines() == HINTS


def never_flushes(grads, cap, average):
    bucket = []
    for grad in grads:
        bucket.append(grad)
        if sum(g.numel() for g in bucket) >= cap:
            average(bucket)
            bucket = []


def always_flushes(grads, cap, average):
    bucket = []
    for grad in grads:
        bucket.append(grad)
        if sum(g.numel() for g in bucket) >= cap:
            average(bucket)
            bucket = []
    average(bucket)


def never_empties(grads, cap, average):
    bucket = []
    for grad in grads:
        bucket.append(grad)
        if sum(g.numel() for g in bucket) >= cap:
            average(bucket)


def one_bucket(grads, cap, average):
    average(list(grads))


def another_tensor(grads, cap, average):
    average([torch.cat(list(grads))])


BUCKETS = [
    (
        never_flushes,
        "the first layer's gradient, 784 numbers, was never sent: it starts with 0.405 on rank 0 and 0.519 "
        "on rank 1. With cap 1,000, what is left when backward ends must leave too.",
        "第一层的梯度（784 个数）从没发送过：它在 rank 0 上以 0.405 开头，在 rank 1 上以 0.519 开头。"
        "上限是 1,000，反向传播结束时剩下的也要发出去。",
    ),
    (
        always_flushes,
        "bucket 2 is empty when you send it, after 2 full ones: if backward ends just as a bucket is full, "
        "nothing is left to send.",
        "第 2 号桶发送时是空的，前面的 2 个桶都满了：反向传播结束时桶恰好装满，就没有剩下的要发了。",
    ),
    (
        never_empties,
        "gradient 0, 10 numbers, was sent 3 times: start a new, empty bucket after each that you send.",
        "第 0 号梯度（10 个数）发送了 3 次：每发出一个桶，就换一个新的空桶。",
    ),
    (
        one_bucket,
        "with cap 1,000, bucket 0 holds 1,894 numbers, gradients [0, 1, 2, 3]; it should hold 1,010, "
        "gradients [0, 1]: send it as soon as it has 1,000 or more.",
        "上限是 1,000 时，第 0 号桶装了 1,894 个数（梯度 [0, 1, 2, 3]），应该装 1,010 个（梯度 [0, 1]）："
        "一达到 1,000 个或更多就发送。",
    ),
    (
        another_tensor,
        "not everything in bucket 0 (Tensor) is a gradient from `grads`: pass `average` a list of those "
        "gradients themselves.",
        "第 0 号桶里的东西（Tensor）不全是 `grads` 给出的梯度：请把那些梯度本身列成列表交给 `average`。",
    ),
]


@pytest.mark.parametrize(("answer", "english", "chinese"), BUCKETS, ids=[row[0].__name__ for row in BUCKETS])
def test_wrong_buckets_are_told_by_their_own_values(answer, english, chinese, told):
    assert told("ddp_from_scratch-2", answer) == (english, chinese)


def open_sync(params): ...


def open_buckets(grads, cap, average): ...


def test_open_answers_are_not_yet_written(told):
    for name, fn, call in (
        ("ddp_from_scratch-1", open_sync, "sync(params)"),
        ("ddp_from_scratch-2", open_buckets, "sync_in_buckets(grads, cap, average)"),
    ):
        english, chinese = told(name, fn)
        assert english == f"○ {name}: not yet: write `{call}`, then run this cell again."
        assert chinese == f"○ {name}：还没写：写好 `{call}`，再运行一次这个单元格。"
