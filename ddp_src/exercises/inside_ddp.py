"""Chapter 06's exercise: cut a model's gradients into buckets as DDP does, judged by DDP itself."""

from __future__ import annotations

import numbers
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_src.exercises._exercise import Exercise, Feedback, WrongAnswer

_MIB = 2**20


def buckets(sizes: Sequence[int], first_cap: int, cap: int) -> list[list[int]]:
    """The buckets in the order in which they are sent, each a list of sizes; all in bytes."""
    closed, bucket, limit = [], [], first_cap
    for size in reversed(sizes):  # backward begins with the last layer
        bucket.append(size)
        if sum(bucket) >= limit:
            closed.append(bucket)
            bucket, limit = [], cap
    return [*closed, bucket] if bucket else closed


@dataclass(frozen=True)
class Cut:
    """One model: what the learner was given, the learner's buckets, and DDP's own after the rebuild."""

    sizes: list[int]
    first_cap: int
    cap: int
    given: list[list[int]]
    real: list[list[int]]


def try_model(fn: Callable, case: tuple[Sequence[int], bool, float | None]) -> Cut:
    """`case`: the widths of a chain of linear layers, whether they have biases, and `bucket_cap_mb`."""
    widths, bias, cap_mb = case
    model = nn.Sequential(*(nn.Linear(a, b, bias) for a, b in pairwise(widths)))
    first_cap, cap = (_MIB, 25 * _MIB) if cap_mb is None else (int(cap_mb * _MIB),) * 2
    real = _buckets_of_ddp(DDP(model, bucket_cap_mb=cap_mb), widths[0])
    sizes = [parameter.nbytes for parameter in model.parameters()]
    given = _lists_of_sizes(fn(list(sizes), first_cap, cap))
    return Cut(sizes, first_cap, cap, given, real)


def _buckets_of_ddp(ddp: DDP, inputs: int) -> list[list[int]]:
    sent: list[list[int]] = []

    def watch(state, bucket):
        sent.append([parameter.nbytes for parameter in bucket.parameters()])
        return allreduce_hook(dist.group.WORLD, bucket)

    ddp.register_comm_hook(None, watch)
    for _ in range(2):
        sent.clear()  # only the buckets after the rebuild count
        ddp(torch.ones(1, inputs)).sum().backward()
    return sent


def _lists_of_sizes(value: object) -> list[list[int]]:
    if value is None:
        raise WrongAnswer(
            "your function returns None where a list of buckets is expected: is `return` missing?",
            "你的函数返回了 None，而这里要的是桶的列表：是不是漏写了 `return`？",
        )
    if isinstance(value, list | tuple) and all(isinstance(bucket, list | tuple) for bucket in value):
        entries = [size for bucket in value for size in bucket]
        if all(isinstance(size, numbers.Real) for size in entries):
            return [list(bucket) for bucket in value]
    got = reprlib.repr(value)
    raise WrongAnswer(
        f"your function returns {got}, where a list of buckets is expected, each a list of sizes.",
        f"你的函数返回了 {got}，而这里要的是桶的列表，每个桶又是一个由字节数组成的列表。",
    )


def judge_cuts(results: Sequence[Sequence[Cut]]) -> Feedback | None:
    wrong = (cut for ranks in results for cut in ranks if cut.given != cut.real)
    cut = next(wrong, None)
    return cut and (_wrong_contents(cut) or _wrong_bucket(cut))


def _wrong_contents(cut: Cut) -> Feedback | None:
    """What is wrong with the gradients and their order, whatever the buckets are."""
    mine, ready = ([size for bucket in cuts for size in bucket] for cuts in (cut.given, cut.real))
    if mine == cut.sizes and mine != ready:
        return Feedback(
            f"your first bucket begins with {mine[0]:,} B, the first parameter of the first layer; "
            f"DDP starts from the last layer, with {ready[0]:,} B: its gradients are ready first.",
            f"你的第一个桶从 {mine[0]:,} B 开始，那是第一层的第一个参数；DDP 从最后一层开始，"
            f"先放 {ready[0]:,} B：那里的梯度最先算好。",
        )
    if len(mine) < len(ready) and mine == ready[: len(mine)]:
        left = len(ready) - len(mine)
        return Feedback(
            f"{left} of {len(ready)} gradients are in none of your buckets, {sum(ready[len(mine) :]):,} B: "
            "the last bucket is sent too, full or not.",
            f"{len(ready)} 个梯度里有 {left} 个不在你的任何一个桶里，共 {sum(ready[len(mine) :]):,} B："
            "最后一个桶不管满没满，都要发出去。",
        )
    if mine != ready:
        return Feedback(
            f"your buckets hold {len(mine)} gradients, {_listed(mine)}; DDP's hold {len(ready)}, in the "
            f"order {_listed(ready)}.",
            f"你的桶里有 {len(mine)} 个梯度：{_listed(mine)}；DDP 的有 {len(ready)} 个，顺序是 "
            f"{_listed(ready)}。",
        )
    return None


def _wrong_bucket(cut: Cut) -> Feedback:
    """The order is right: name the first bucket that ends elsewhere than DDP's."""
    if [] in cut.given:
        number, count = cut.given.index([]), len(cut.given)
        return Feedback(
            f"your bucket {number} of {count} is empty: a bucket is sent only when gradients are in it.",
            f"你给出了 {count} 个桶，其中 {number} 号桶是空的：桶里有梯度才会发送。",
        )
    number = next(n for n, bucket in enumerate(cut.real) if cut.given[n] != bucket)
    mine, real = cut.given[number], cut.real[number]
    cap = cut.cap if number else cut.first_cap
    en = f"your bucket {number} holds {len(mine)} gradients, {sum(mine):,} B"
    zh = f"你的 {number} 号桶里有 {len(mine)} 个梯度，共 {sum(mine):,} B"
    if len(mine) > len(real) and number == 0 and cut.first_cap < cut.cap:
        return Feedback(
            f"{en}: the first bucket has a cap of its own, {cap:,} B, and closes with {sum(real):,} B.",
            f"{zh}：第一个桶有自己的上限 {cap:,} B，装到 {sum(real):,} B 就关上了。",
        )
    if len(mine) > len(real):
        return Feedback(
            f"{en}: with {sum(real):,} B it had reached the cap of {cap:,} B, and closes there.",
            f"{zh}：装到 {sum(real):,} B 时就达到了上限 {cap:,} B，应当在那里关上。",
        )
    if number and cut.first_cap <= sum(mine) < cut.cap:
        return Feedback(
            f"{en}: the small cap of {cut.first_cap:,} B is the first bucket's alone, "
            f"all others have {cap:,} B.",
            f"{zh}：较小的上限 {cut.first_cap:,} B 只属于第一个桶，其余的桶上限都是 {cap:,} B。",
        )
    return Feedback(
        f"{en}, below the cap of {cap:,} B: DDP's is still open then, and closes once it has reached the "
        f"cap, with {len(real)} gradients and {sum(real):,} B.",
        f"{zh}，还不到上限 {cap:,} B：这时 DDP 的桶还开着，要达到上限才关，"
        f"那时有 {len(real)} 个梯度，共 {sum(real):,} B。",
    )


def _listed(sizes: Sequence[int]) -> str:
    """The first few sizes."""
    return ", ".join(f"{size:,}" for size in sizes[:4]) + (", …" if len(sizes) > 4 else "")


EXERCISES = {
    "inside_ddp-1": Exercise(
        cases=(
            ((512,) * 13, True, 4),
            ((512,) * 13, True, None),  # the default, whose first bucket is small
            ((784, 512, 256, 128, 64, 10), True, 0.25),
            ((512,) * 6, False, 2),  # two layers are the cap, to the byte
        ),
        trial=try_model,
        judge=judge_cuts,
        hint=Feedback(
            "go through the sizes from the last to the first and put each into the open bucket. When has "
            "that bucket had enough? And what of a bucket that is still open at the end?",
            "从后往前，把每个字节数放进当前开着的桶。这个桶什么时候算满？走到头时还开着的桶怎么办？",
        ),
        solution=buckets,
    )
}
