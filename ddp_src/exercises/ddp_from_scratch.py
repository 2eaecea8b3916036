"""Chapter 05's exercises: average the gradients in one flat buffer, and send the last bucket too."""

from __future__ import annotations

from ddp_src.exercises._exercise import Exercise, Feedback
from ddp_src.exercises._flat_sync import Layout, judge_sync, sync, try_sync
from ddp_src.exercises._flush_buckets import Backward, judge_buckets, sync_in_buckets, try_buckets

EXERCISES = {
    "ddp_from_scratch-1": Exercise(
        cases=(
            Layout(((3, 2), (4,))),
            Layout(((100, 784), (100,), (7,), (10, 100), (10,)), frozen=(2,), missing=(3,)),
        ),
        trial=try_sync,
        judge=judge_sync,
        hint=Feedback(
            "torch.cat joins flattened gradients into one buffer and buffer.split(sizes) takes it apart; "
            "what can stand in the buffer for a gradient that is None?",
            "torch.cat 能把展平的梯度接成一个缓冲区，buffer.split(sizes) 再把它拆开；梯度是 None 的参数，"
            "在缓冲区里可以用什么顶替？",
        ),
        solution=sync,
    ),
    "ddp_from_scratch-2": Exercise(
        cases=(Backward((10, 1000, 100, 784), 1000), Backward((10, 90, 60, 40), 100), Backward((5,), 100)),
        trial=try_buckets,
        judge=judge_buckets,
        hint=Feedback(
            "after the loop over the gradients, what lies in the list: always something, or only sometimes?",
            "遍历完所有梯度之后，列表里可能还剩着梯度吗？一定会剩吗？",
        ),
        solution=sync_in_buckets,
    ),
}
