"""Chapter 02's exercise: where a rank stands, node and local rank from its number."""

from __future__ import annotations

import numbers
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddp_src.exercises._exercise import Exercise, Feedback, WrongAnswer


def place(rank: int, world_size: int, ranks_per_node: int) -> tuple[int, int]:
    """(node, local rank) of a rank, where the first node has the first ranks, and so on."""
    return rank // ranks_per_node, rank % ranks_per_node


@dataclass(frozen=True)
class Places:
    """The learner's (node, local rank) of every rank of one layout."""

    ranks_per_node: int
    given: list[tuple[int, int]]

    @property
    def world_size(self) -> int:
        return len(self.given)

    @property
    def right(self) -> list[tuple[int, int]]:
        return [place(rank, self.world_size, self.ranks_per_node) for rank in range(self.world_size)]


def try_layout(fn: Callable, layout: tuple[int, int]) -> Places:
    world_size, ranks_per_node = layout
    given = [_pair(fn(rank, world_size, ranks_per_node)) for rank in range(world_size)]
    return Places(ranks_per_node, given)


def _pair(value: object) -> tuple[int, int]:
    shown = reprlib.repr(value)
    if value is None:
        raise WrongAnswer(
            "your function returns None where a pair (node, local rank) is expected: is `return` missing?",
            "你的函数返回了 None，而这里要的是一对数（节点，local rank）：是不是漏写了 `return`？",
        )
    try:
        node, local_rank = value
    except (TypeError, ValueError):
        raise WrongAnswer(
            f"your function returns {shown} where a pair (node, local rank) is expected.",
            f"你的函数返回了 {shown}，而这里要的是一对数（节点，local rank）。",
        ) from None
    for number in (node, local_rank):
        if not isinstance(number, numbers.Integral) or isinstance(number, bool):
            raise WrongAnswer(
                f"your function returns {shown}: node and local rank are whole numbers, `//` gives one.",
                f"你的函数返回了 {shown}：节点和 local rank 都是整数；整除要用 `//`。",
            )
    return int(node), int(local_rank)


def judge_places(results: Sequence[Sequence[Places]]) -> Feedback | None:
    for ranks in results:
        for places in ranks:
            if places.given != places.right:
                return _diagnose(places)
    return None


def _diagnose(places: Places) -> Feedback:
    """Name the two commonest mistakes by what they do to the ranks, and any other by its first value."""
    world_size, per_node, right = places.world_size, places.ranks_per_node, places.right
    if places.given == [(local_rank, node) for node, local_rank in right]:
        return Feedback(
            f"with {per_node} ranks per node, rank 1 of {world_size} landed on node {places.given[1][0]}: "
            f"neighbours share a node; you give {places.given[1]}, it is {right[1]}.",
            f"每个节点有 {per_node} 个 rank，rank 1 却落在了节点 {places.given[1][0]} 上："
            f"编号相邻的 rank 在同一个节点；你给出 {places.given[1]}，应该是 {right[1]}。",
        )
    if all(node == 0 for node, _ in places.given):
        return Feedback(
            f"all {world_size} ranks are on node 0, the last as local rank {places.given[-1][1]}: "
            f"a node has only {per_node}, so rank {world_size - 1} is on node {right[-1][0]}.",
            f"{world_size} 个 rank 全在节点 0 上，最后一个的 local rank 是 {places.given[-1][1]}："
            f"一个节点只有 {per_node} 个 rank，rank {world_size - 1} 应该在节点 {right[-1][0]} 上。",
        )
    rank = next(r for r in range(world_size) if places.given[r] != right[r])
    return Feedback(
        f"for rank {rank} of {world_size}, {per_node} per node, you give {places.given[rank]}, "
        f"but it is on node {right[rank][0]} with local rank {right[rank][1]}.",
        f"共 {world_size} 个 rank、每个节点 {per_node} 个时，你给 rank {rank} 的是 {places.given[rank]}，"
        f"而它在节点 {right[rank][0]} 上，local rank 是 {right[rank][1]}。",
    )


EXERCISES = {
    "processes-1": Exercise(
        cases=((8, 4), (6, 2), (12, 3)),
        trial=try_layout,
        judge=judge_places,
        hint=Feedback(
            "with 4 ranks per node, node 0 has ranks 0 to 3 and node 1 has ranks 4 to 7. Which division of "
            "5 by 4 gives 1, and what is left over?",
            "每个节点 4 个 rank 时，节点 0 上是 rank 0 到 3，节点 1 上是 rank 4 到 7。5 除以 4，"
            "商是几，余数又是几？",
        ),
        solution=place,
    )
}
