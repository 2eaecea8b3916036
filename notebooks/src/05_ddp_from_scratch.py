# %% [markdown] id="title" lang="en"
# # 05 · DDP from scratch: could I write DDP myself?
#
# Yes: in five small classes, each a few lines more than the last. After this chapter you can:
#
# - write what `DDP` does, and prove that N ranks train as one process would;
# - say what each part is for: the broadcast, the mean, the flat buffer, the buckets, the hooks;
# - notice replicas that have drifted apart.

# %% [markdown] id="title" lang="zh" sync="a26af3a1:a4262677"
# # 05 · 从零写 DDP：我自己能写出来吗？
#
# 能。一共五个小类，一个比一个多走一步。读完这一章，我们就能：
#
# - 自己写出 `DDP` 所做的事，并证明 N 个 rank（进程在组内的编号，也指这个进程）训练出的结果，和一个进程只差舍入；
# - 说清每个部分管什么：广播、求平均、缓冲区、梯度桶（bucket）、钩子（hook）；
# - 发现已经走散的副本。

# %% id="setup"
import statistics

import torch
import torch.distributed as dist
from torch import nn

from ddp_src import check, hint, own_ddp, own_ddp_timing, plots, show_source, solution, spawn, warm_up
from ddp_src.lessons import ddp_from_scratch as lesson
from ddp_src.model import SimpleModel, SmallCNN

warm_up()  # gets the ranks' processes ready while you read on

# %% [markdown] id="predict" lang="en"
# ## Predict first
#
# Two ranks start from the same weights. Delete the all-reduce: now each trains alone, on its half of the digits,
# dealt anew in each epoch. What gives it away?
#
# - (a) the losses stop falling
# - (b) the test accuracy drops by several points
# - (c) neither: you find out only by comparing the weights
#
# Write your letter down before you read on.

# %% [markdown] id="predict" lang="zh" sync="dbc68950:4c029c28"
# ## 先猜一猜
#
# 两个 rank 从相同的权重出发。现在把 all-reduce（全归约）删掉：此后它们各练各的，每一轮（epoch）只用自己分到的
# 那一半数字。从哪里能看出来？
#
# - (a) 损失不再下降
# - (b) 测试准确率掉好几个百分点
# - (c) 这两处都看不出来，要比较权重才知道
#
# 先写下你的答案，再往下看。

# %% [markdown] id="run" lang="en"
# ## Run it
#
# **Version 0** wraps a model the way `DDP` does: it copies rank 0's weights to every rank, calls the model, and
# does nothing else. `buffers()` are a model's tensors that no optimizer updates; the models here have none.
# `detach()` keeps autograd out of the broadcast. **Version 1** adds the mean: one all-reduce per parameter.

# %% [markdown] id="run" lang="zh" sync="825ed87e:53c335d1"
# ## 跑起来
#
# **第 0 版**像 `DDP` 那样把模型包起来：先把 rank 0 的权重广播给大家，此后只管调用模型。`buffers()` 是
# **缓冲张量**（buffer）：属于模型，却不由优化器更新；本章的模型都没有。`detach()` 让自动求导不管这次广播。
# **第 1 版**再加上求平均：每个参数做一次 all-reduce。

# %% id="first-versions"
show_source(own_ddp.NoSync, own_ddp.Naive)

# %% [markdown] id="loop" lang="en"
# The training loop is that of chapter 00 plus `model.sync()`, which torch's DDP hides inside `backward()`. The
# model, not the optimizer, clears the gradients; "Break it" shows why. Each rank also measures how far its weights are
# from rank 0's.

# %% [markdown] id="loop" lang="zh" sync="19734cd5:56ff34d9"
# 训练循环就是第 00 章的，加上 `model.sync()`；torch 的 DDP 把这一行藏在 `backward()` 里。清零梯度改由 `model` 来做，
# 原因见“弄坏它”。每走一步，各个 rank 还要量一次自己的权重离 rank 0 有多远。

# %% id="train-source"
show_source(lesson.train)

# %% id="two-runs"
alone = spawn(lesson.train, (own_ddp.NoSync,), nprocs=2)
synced = spawn(lesson.train, (own_ddp.Naive,), nprocs=2)
for name, ranks in (("no sync", alone), ("with sync", synced)):
    for rank, trained in enumerate(ranks):
        first, last = trained.steps[0].loss, trained.steps[-1].loss
        print(f"{name:>9}, rank {rank}: loss {first:.2f} → {last:.2f}")

# %% [markdown] id="see" lang="en"
# ## See it
#
# Lines are the run without a sync, open marks the run with one, every few steps. On the right, ‖w₁ − w₀‖ is the
# length of the difference between the two ranks' weights, on a log axis that also has a 0.

# %% [markdown] id="see" lang="zh" sync="7dc5048b:d439d6dc"
# ## 看结果
#
# 线是没有同步的训练，空心标记是有同步的，隔几步画一个。右图的 ‖w₁ − w₀‖ 是两个 rank 权重之差的长度；
# 纵轴是对数的，底下另加了一个 0。

# %% id="hero"
plots.replicas_apart(
    [trained.steps for trained in alone],
    [trained.steps for trained in synced],
    alone_apart=alone[1].apart,
    synced_apart=synced[1].apart,
)

# %% [markdown] id="hero-alt" alt="hero" lang="en"
# Left: the losses of two ranks with a sync and of two without fall together and cannot be told apart. Right, on
# a log axis: without a sync the distance between the replicas jumps up in the first steps and keeps growing; with a
# sync it is 0 at every step.

# %% [markdown] id="hero-alt" alt="hero" lang="zh" sync="9f48a80a:3c8b5274"
# 左图：有同步的两个 rank 和没有同步的两个 rank，四条损失曲线一起下降，分不出谁是谁。右图是两个副本的距离，
# 对数坐标：没有同步，头几步就猛增，之后越来越远；有同步，每一步都恰好是 0。

# %% id="claim"
for name, ranks in (("no sync", alone), ("with sync", synced)):
    accuracy = " and ".join(f"{100 * trained.accuracy:.1f} %" for trained in ranks)
    print(f"{name:>9}: ‖w₁ − w₀‖ = {ranks[1].apart[-1]:.3g}, test accuracy {accuracy}")
p = alone[0].accuracy
print(f"standard error on 1,000 digits: {100 * (p * (1 - p) / 1000) ** 0.5:.1f} points")

# %% [markdown] id="read" lang="en"
# **The answer is (c).** The losses fall alike. The accuracies differ by about one standard error: chance, on 1,000
# digits. Only the weights tell: without a sync there are two models. Training looks fine, rank 0 saves its model,
# and all the work of rank 1 is lost.

# %% [markdown] id="read" lang="zh" sync="35c4e9d7:21a6dabd"
# **答案是 (c)**。损失照样下降；几个准确率之间的差别，和标准误差差不多大，在 1,000 个数字上靠偶然就能出现。
# 只有权重说了实话：没有同步，就成了两个模型。训练看上去一切正常，最后只保存 rank 0 的模型，rank 1 就白干了。

# %% [markdown] id="why" lang="en"
# ## Why
#
# A rank that trains alone still trains: a whole model, on 2,000 digits per epoch, with gradients of its own.
#
# - If you chose (a): you thought that a rank needs the others to learn. It needs them to stay equal.
# - If you chose (b): you thought that half the samples per step must show. On these digits it hardly does.
#
# So no curve can test our DDP. The test is equality: N ranks must give the weights of one process on the joined
# batch. What must `sync()` leave on every rank for that, the *sum* of the gradients or their *mean*? Take one
# weight w, the loss w · x, and x = 1 on rank 0, x = 2 on rank 1; then both samples on one rank:

# %% [markdown] id="why" lang="zh" sync="941418cc:398b14c3"
# ## 为什么
#
# 没有同步的 rank 照样在学：模型是完整的，每一轮有 2,000 个数字，梯度是自己的。
#
# - 选 (a)，多半是以为离了别的 rank 就学不会。其实和别的 rank 通信，只是为了保持一致。
# - 选 (b)，多半是以为每一步少一半样本，总该看得出来。在这些数字上，几乎看不出来。
#
# 所以曲线检验不了我们写的 DDP，只有相等才算数：N 个 rank 的权重，必须和一个进程用合并后的 batch
# 训练出来的一样。那么 `sync()` 该在每个 rank 上留下梯度的*和*，还是*平均值*？取一个权重 w，损失是 w · x，
# rank 0 上 x = 1，rank 1 上 x = 2；再把两个样本都交给一个 rank：


# %% id="mean"
def one_weight(rank, world_size):
    model = own_ddp.Naive(nn.Linear(1, 1, bias=False))
    inputs = torch.tensor([[1.0], [2.0]]).chunk(world_size)[rank]
    model(inputs).mean().backward()
    own = model.module.weight.grad.item()
    model.sync()
    return own, model.module.weight.grad.item(), list(model.state_dict())


for world_size in (2, 1):
    own, averaged, names = zip(
        *spawn(one_weight, (world_size,), nprocs=world_size, backend="gloo", show=False), strict=True
    )
    print(f"world size {world_size}: own gradients {own}, after sync() {averaged}")
print("in state_dict():", names[0])

# %% [markdown] id="mean-why" lang="en"
# The mean: 1.5 on both ranks, as on one with both samples. The sum would be 3; hence the `/=` in `sync()`. It is
# right for a loss that is a mean over the samples, equally many on every rank (chapter 01).
#
# The last line is a by-product: the wrapper keeps the model in `self.module`, so every name in its `state_dict()`
# begins with `module.`, as with torch's DDP. Save `model.module.state_dict()` and the prefix is gone.

# %% [markdown] id="mean-why" lang="zh" sync="72e1e23c:50200a72"
# 是平均值：两个 rank 上都是 1.5，和单进程把两个样本放进一个 batch 一样；求和就成了 3。所以 `sync()` 里有 `/=`。
# 前提是损失本身就是样本的平均，而且各个 rank 的样本一样多（第 01 章）。
#
# 最后一行顺便告诉我们：模型放在包装类的 `self.module` 里，`state_dict()` 中的名字就都以 `module.` 开头，
# torch 的 DDP 也一样。保存时写 `model.module.state_dict()`，就没有这个前缀了。

# %% [markdown] id="flat" lang="en"
# ## Version 2: one buffer
#
# Each all-reduce costs a fixed latency, however little it sends (chapter 03), and version 1 pays it once per
# parameter. So put all gradients into one **flat buffer** and send that. To save copying, each `p.grad` becomes a
# **view**: a tensor without memory of its own, a window onto a part of the buffer. `backward()` adds to a `grad` that
# is already there, so it writes into the buffer. A parameter without a gradient leaves zeros there: the `if` of
# version 1 is no longer needed.

# %% [markdown] id="flat" lang="zh" sync="fac998b1:4386854a"
# ## 第 2 版：一个缓冲区
#
# 每次 all-reduce 都有一份固定的时延，传得再少也要付（第 03 章），第 1 版却每个参数付一次。
# 不如把所有梯度放进一个**展平缓冲区**（flat buffer），一次传完。为了省掉来回复制，让每个 `p.grad` 都是一个
# **视图**（view）：没有自己的内存，看到的就是缓冲区里的一段。
#
# `backward()` 会加到已有的 `p.grad` 上，也就直接写进了缓冲区。没有梯度的参数，那一段仍是零，
# 第 1 版的 `if` 就用不着了。

# %% id="flat-source"
show_source(own_ddp.Flat, own_ddp.lay_out)

# %% [markdown] id="buckets" lang="en"
# ## Version 3: buckets
#
# One buffer is complete only when the first layer has its gradient, and the first layer is the last to get it:
# `backward()` runs from the loss back to the input. Several buffers, called **buckets**, filled from the last
# layer back, are complete one after the other. This version still sends them all at the end: `sync()` starts
# every all-reduce with `async_op=True` (chapter 03), then waits for each. In `group`, a bucket is
# full at `cap` bytes (1 MB unless you say otherwise); `size` starts at `cap`, so that the first parameter opens one.

# %% [markdown] id="buckets" lang="zh" sync="c8f7e356:3021b90c"
# ## 第 3 版：分桶
#
# 反向传播从损失走向输入，第一层的梯度最后才算好；只有一个缓冲区，就要等到那时才装满。
# 换成几个缓冲区，从最后一层往前装，就能一个接一个地装满。这样的缓冲区叫**梯度桶**，简称桶；
# 攒够 `cap` 字节（默认 1 MB）就换下一个。这一版仍然等到最后，才把所有的桶发出去：`sync()` 用
# `async_op=True`（第 03 章）启动全部 all-reduce，再逐个等待。
# `group` 里的 `size` 从 `cap` 起步，所以第一个参数一来，就会开出第一组。

# %% id="buckets-source"
show_source(own_ddp.Bucketed, own_ddp.group)

# %% [markdown] id="hooks" lang="en"
# ## Version 4: hooks
#
# Now each bucket leaves when it is complete, while `backward()` works on the layers before it. To learn of that
# moment, give every parameter a **hook**: a function that autograd calls as soon as it has written that parameter's
# gradient. `partial` tells it the number of its bucket; `len(self.works)` buckets have left, which makes it the number
# of the next. Take care of a layer that gets no gradient on some rank:
#
# - on that rank its hook never runs, so its bucket is never complete: `sync()` sends what is left;
# - on the other ranks the hook does run, so buckets get complete in another order there. All ranks must make the
#   same calls in the same order (chapter 03), so the buckets leave by number.
#
# A second `backward()` before `sync()` would add to buckets that are already on their way; hence the `raise`.

# %% [markdown] id="hooks" lang="zh" sync="0471352c:391809fc"
# ## 第 4 版：钩子
#
# 现在让桶一装满就出发，这时 `backward()` 还在算更靠前的层。怎么知道装满了？给每个参数挂一个**钩子**：
# 一个函数，这个参数的梯度一写好，自动求导就会调用它；`partial` 把桶的编号一并交给它。
# 已经出发的桶有 `len(self.works)` 个，这也正是下一个桶的编号。要当心的是在某个 rank 上没有梯度的层：
#
# - 在这个 rank 上，它的钩子不会被调用，桶永远装不满，所以 `sync()` 要把剩下的桶发出去；
# - 在别的 rank 上，它的钩子照常被调用，桶装满的先后就不一样。所有 rank 必须按同样的次序做同样的集合通信（第 03 章），
#   所以桶一律按编号出发。
#
# 没等 `sync()` 就再来一次 `backward()`，梯度会加进已经上路的桶里，结果就错了，所以这里有一句 `raise`。

# %% id="hooks-source"
show_source(own_ddp.Overlapped)

# %% [markdown] id="prove" lang="en"
# ## Prove it
#
# Ten steps in float64, every version, against one process on the joined batches. `learn` trains and returns the
# weights; `VERSIONS` lists the five classes by name, `CASES` the rows of the table, each with the share of images that
# have a lit corner; `cap=1024` gives even this small model several buckets. The ranks start from different seeds on
# purpose, and each further row of the table has a trap: two layers that share one weight (**tied**), a layer that is
# not trained (**frozen**), and `extra`, through which only images with a lit corner pass: no image has one, or only
# rank 0's have.

# %% [markdown] id="prove" lang="zh" sync="592c674c:45421e7c"
# ## 证明它
#
# 每个版本都用 float64 走十步，和一个进程用合并后的 batch 训练的结果相比；`learn` 训练完就返回权重，
# `VERSIONS` 按名字列出五个类，`CASES` 列出表的各行，以及角上像素点亮的图占多少。桶设得很小（1 KB），这样小的模型也能分出好几个。
#
# 各个 rank 的种子故意不同；从第二行起，每行还埋了一个坑：两层**共享权重**（tied weights）；有一层**冻结**（frozen），
# 不参加训练。最后两行的坑在 `extra` 层，只有角上像素点亮的图才经过它：先是谁都没有这样的图，再是只有 rank 0 有。

# %% id="tricky-source"
show_source(lesson.Tricky, lesson.differences)

# %% id="equal"
ranks = spawn(lesson.differences, nprocs=2, backend="gloo")
print(f"{'max|w − w of one process|':<26}" + "".join(f"{name:>12}" for name in own_ddp.VERSIONS))
largest = 0.0
for case in lesson.CASES:
    row = {name: max(found[case][name] for found in ranks) for name in own_ddp.VERSIONS}
    print(f"{case:<26}" + "".join(f"{value:>12.0e}" for value in row.values()))
    largest = max(largest, *(value for name, value in row.items() if name != "no sync"))
print(f"largest with a sync: {largest:.0e} < 1e-12: {largest < 1e-12}")

# %% [markdown] id="equal-read" lang="en"
# All four versions with a sync are one process, but for rounding; version 0 is not even close. This table, not a
# loss curve, is what shows that your own DDP works.

# %% [markdown] id="equal-read" lang="zh" sync="41dc7d19:0f6d95a4"
# 有同步的四个版本都和一个进程相同，只差舍入；第 0 版差得很远。能证明我们的 DDP 写对了的，是这张表，不是损失曲线。

# %% [markdown] id="cost" lang="en"
# ## What it costs
#
# The step time of each version, divided by that of torch's DDP, with SimpleModel and with the larger SmallCNN
# (chapter 01's `cnn`). Timings jump about on a busy machine, so every round runs every version, and the ratio is taken
# within the round. `step_of` returns a function that makes one training step; `TorchDDP` is torch's DDP with a
# `sync()` that does nothing. The bar is the median of 15 rounds; the thin line spans the middle half of them.

# %% [markdown] id="cost" lang="zh" sync="7d70a823:fe3f7fe5"
# ## 要花多少时间
#
# 下面是每个版本一步的耗时与 torch 的 DDP 之比，用 SimpleModel 和大一些的 SmallCNN（第 01 章的 `cnn`）来量。
# 机器一忙，计时就忽高忽低，所以每一回合都把所有版本跑一遍，当场求比值。
# `step_of` 返回一个函数，调用一次就训练一步；`TorchDDP` 就是 torch 的 DDP，外加一个什么也不做的 `sync()`。
# 横条是 15 个回合的中位数，细线是居中一半回合的范围。

# %% id="times-source"
show_source(own_ddp_timing.time_steps)

# %% id="times"
ratios = {}
for build, batch, steps in ((SimpleModel, 32, 10), (SmallCNN, 8, 1)):
    seconds = spawn(own_ddp_timing.time_steps, (build, batch, steps), nprocs=2, backend="gloo")[0]
    ratios[f"{build.__name__}, batch {batch}"] = own_ddp_timing.ratios(seconds)
    milliseconds = 1000 * statistics.median(seconds[own_ddp_timing.TORCHS])
    print(f"{build.__name__}: torch's DDP {milliseconds:.1f} ms per step")
plots.version_times(ratios, against=own_ddp_timing.TORCHS)

# %% [markdown] id="times-alt" alt="times" lang="en"
# Step time relative to torch's DDP, for SimpleModel and SmallCNN. The naive version is the slowest with both. With
# SimpleModel flat, bucketed and overlapped stand near 1, which is torch's own DDP, and no sync far below. With SmallCNN
# the three lie between no sync, again the fastest, and naive; their thin lines overlap.

# %% [markdown] id="times-alt" alt="times" lang="zh" sync="928a2c43:e36a36fc"
# 每个版本一步的耗时与 torch 的 DDP 之比，左边是 SimpleModel，右边是 SmallCNN。两个模型上都是 naive 最慢；
# SimpleModel 上，flat、bucketed、overlapped 都在 1（即 torch 的 DDP）附近，no sync 远低于 1；
# SmallCNN 上，这三个介于最快的 no sync 和 naive 之间，细线互相重叠。

# %% [markdown] id="times-read" lang="en"
# The one buffer is the great step: with SimpleModel, the naive version takes clearly longer than torch's DDP, the flat one
# about as long. Buckets and hooks cannot help there, since all gradients fit into one bucket. SmallCNN fills four, and
# even so the last three versions differ no more than the rounds of one version do: the thin lines overlap.
#
# Does communication overlap with `backward()` at all? A profiler records what ran when. Of the two lanes of a version,
# the upper has the phases of the step, the lower the all-reduces on Gloo's own threads; the dashed line is where
# `backward()` ends.

# %% [markdown] id="times-read" lang="zh" sync="7812f988:5f932c69"
# 收效最大的是合成一个缓冲区：在 SimpleModel 上，naive 明显比 torch 的 DDP 慢，flat 就和它差不多了。
# 这里梯度全在一个桶里，分桶和钩子帮不上忙。SmallCNN 有四个桶，可是后三个版本的差别，也不比同一版本各回合之间的大：
# 细线互相重叠。
#
# 那么通信和计算到底重叠了没有？性能分析器（profiler）会记下什么时候在运行什么。每个版本画成两行：
# 上一行是训练的各个阶段，下一行是 Gloo 自己的线程上运行的 all-reduce；虚线处 `backward()` 结束。

# %% id="timeline"
names = ("naive", "flat", "bucketed", "overlapped")
traced = spawn(own_ddp_timing.trace, (names,), nprocs=2, backend="gloo", show=False)[0]
for name, spans in traced.items():
    early, launched = own_ddp_timing.launched_early(spans)
    print(f"{name:>10}: all-reduces launched before backward() ended: {early} of {launched}")
plots.version_timeline(traced)

# %% [markdown] id="timeline-alt" alt="timeline" lang="en"
# One step of SmallCNN on rank 0, four versions on one time axis. In naive, flat and bucketed every all-reduce
# starts after the dashed line where backward ends: 14, 1 and 4 of them. In overlapped, all-reduces already run under
# backward.

# %% [markdown] id="timeline-alt" alt="timeline" lang="zh" sync="2150875b:5410c059"
# rank 0 上 SmallCNN 的一步，四个版本画在同一条时间轴上。naive、flat、bucketed 的 14 次、1 次、4 次 all-reduce，
# 都在反向传播结束（虚线）之后才开始；overlapped 的 all-reduce 大多在反向传播进行时就已经在跑。

# %% [markdown] id="timeline-read" lang="en"
# It does: version 4 launches all its buckets from inside `backward()`. How long a phase takes varies from step to
# step, so whether that saves time is for the medians above to say: no more here than the rounds differ. With Gloo an
# all-reduce is work for the same cores that compute the gradients, and these are busy already. Between GPUs other hardware does most of the transfer, and overlap is one of the things that let
# [DDP scale to hundreds of them](https://arxiv.org/abs/2006.15704).

# %% [markdown] id="timeline-read" lang="zh" sync="5b4ef1d4:0eb66eba"
# 确实重叠了：第 4 版的桶，全是在 `backward()` 里面发出的。每一步各个阶段的长短都不一样，所以省没省时间，
# 要看上面的中位数：差别不比各回合之间的大。Gloo 的 all-reduce 和梯度计算用的是同样的 CPU 核，这些核本来就在忙。GPU 之间传数据，主要靠另外的硬件；
# [DDP 能扩展到几百块 GPU](https://arxiv.org/abs/2006.15704)，重叠是原因之一。

# %% [markdown] id="break" lang="en"
# ## Break it
#
# **No broadcast.** Leave out the copy of rank 0's weights, and keep everything else of version 1:

# %% [markdown] id="break" lang="zh" sync="c39e2c31:186929e8"
# ## 弄坏它
#
# **没有广播。** 去掉开头的广播，第 1 版的其余部分原样保留：


# %% id="no-broadcast"
class NoBroadcast(own_ddp.Naive):
    def start_equal(self):
        pass


epochs = 2
ranks = spawn(lesson.train, (NoBroadcast, epochs), nprocs=2)
for step in (0, 1, len(ranks[1].steps)):
    print(f"‖w₁ − w₀‖ after {step:>2} steps: {ranks[1].apart[step]:.4f}")
for rank, trained in enumerate(ranks):
    print(f"rank {rank}: loss {trained.steps[0].loss:.2f} → {trained.steps[-1].loss:.2f}")

# %% [markdown] id="no-broadcast-why" lang="en"
# The gradients are averaged perfectly, so both ranks take the very same steps. From different starts, the same
# steps lead to different ends: the replicas stay apart for ever, by the same distance. And again the losses fall.
# The cure is the one broadcast at the start.
#
# **`optimizer.zero_grad()`.** You know this line from every training loop. By default it sets each gradient to
# None, to save memory. In version 2 that throws the views away:

# %% [markdown] id="no-broadcast-why" lang="zh" sync="4eb9121c:dae32979"
# 梯度的平均毫无差错，两个 rank 每一步都迈得一模一样。可是起点不同，步子相同，终点也就不同：
# 两个副本永远隔着同样的距离，而损失照样下降。改正：开头广播一次。
#
# **`optimizer.zero_grad()`。** 每个训练循环里都有这一行。为了省内存，它默认把每个梯度设成 None；
# 放到第 2 版里，视图就丢了：


# %% id="lost-views"
class LostViews(own_ddp.Flat):
    def zero_grad(self, set_to_none=True):  # what optimizer.zero_grad() does
        for p in self.trained:
            p.grad = None


for wrap in (LostViews, own_ddp.Flat, own_ddp_timing.TorchDDP):
    ranks = spawn(lesson.train, (wrap, epochs), nprocs=2)
    steps = len(ranks[1].steps)
    print(f"{wrap.__name__:>9}: ‖w₁ − w₀‖ after {steps} steps {ranks[1].apart[steps]:.3g}")
print(f"  no sync: ‖w₁ − w₀‖ after {steps} steps {alone[1].apart[steps]:.3g}")

# %% [markdown] id="lost-views-why" lang="en"
# `backward()` makes new tensors outside the buffer, `sync()` averages a buffer of zeros, and the replicas drift
# as if there were no sync, without an error. That is why `Flat` has its own `zero_grad`, which fills the buffer with
# zeros, and why the loop calls `model.zero_grad()`. torch's DDP does not mind the None: it copies a gradient that
# lies outside its bucket into it.

# %% [markdown] id="lost-views-why" lang="zh" sync="f3add3e4:088c5de4"
# `backward()` 在缓冲区之外另建了张量，`sync()` 平均的只是一堆零，副本就像没有同步一样越走越远，也没有任何报错。
# 所以 `Flat` 有自己的 `zero_grad`，把缓冲区填成零；训练循环调用的也是 `model.zero_grad()`。
# torch 的 DDP 不怕 None：梯度不在桶里，它就先把梯度复制进桶。

# %% [markdown] id="your-turn" lang="en"
# ## Your turn
#
# **1.** Write version 2 as one function, `sync(params)`, that keeps nothing between calls: average the gradients in
# **one** all-reduce, by way of a new buffer. Some parameters are frozen; some may have no gradient on one rank only.
#
# `hint("ddp_from_scratch-1")` gives a hint, `solution("ddp_from_scratch-1")` the answer; the same with `-2`.

# %% [markdown] id="your-turn" lang="zh" sync="d9ca54bd:c78b84ce"
# ## 动手试试
#
# **1.** 把第 2 版写成一个函数 `sync(params)`，两次调用之间什么也不留：把梯度接进一个新的缓冲区，用**一次** all-reduce
# 求平均，再写回去。有些参数是冻结的；有些参数可能只在某一个 rank 上没有梯度。
#
# 需要提示就运行 `hint("ddp_from_scratch-1")`，想看答案就运行 `solution("ddp_from_scratch-1")`；第 2 题把 `-1` 换成 `-2`。


# %% id="exercise-1"
def sync(params):
    """Leave the mean over all ranks in the `grad` of every parameter that is trained."""
    ...


check("ddp_from_scratch-1", sync)

# %% [markdown] id="your-turn-2" lang="en"
# **2.** Write the buckets: `grads` yields the gradients as `backward()` makes them, the last layer's first. Collect
# them in a list, and call `average(bucket)` as soon as its gradients hold `cap` numbers or more together. `average`
# all-reduces a list of gradients and writes the mean into each.

# %% [markdown] id="your-turn-2" lang="zh" sync="cbf2837c:a4e8bcd0"
# **2.** 写出分桶：`grads` 按 `backward()` 算出的先后逐个给出梯度，最后一层的最先来。把它们收进一个列表，
# 里面的梯度合起来够了 `cap` 个数，就调用 `average(bucket)`：它会对列表里的梯度做 all-reduce，再把平均值写回每个梯度。


# %% id="exercise-2"
def sync_in_buckets(grads, cap, average):
    """Every gradient is averaged once, in buckets of `cap` numbers or a little more."""
    ...


check("ddp_from_scratch-2", sync_in_buckets)

# %% [markdown] id="next" lang="en"
# ## Next
#
# - [Chapter 06](06_inside_ddp.ipynb) opens torch's own DDP: which parameters share a bucket, why its first
#   step is different from all others, and what else it does that ours does not.
# - Chapter 07 takes several `backward()` calls per step, and asks how large a batch may get.
# - The five versions stand in [`ddp_src/own_ddp.py`](../../ddp_src/own_ddp.py): change one, and see what
#   breaks.
#
# Sources: [the paper behind DDP](https://arxiv.org/abs/2006.15704) ·
# [the DDP design note](https://docs.pytorch.org/docs/stable/notes/ddp.html) ·
# [hooks that run once a gradient is
# there](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.register_post_accumulate_grad_hook.html)

# %% [markdown] id="next" lang="zh" sync="f0f84477:a3b55ceb"
# ## 接下来
#
# - [第 06 章](06_inside_ddp.ipynb)打开 torch 自己的 DDP：哪些参数放在同一个桶里，为什么第一步和后面的都不一样，还有哪些事我们没做。
# - 第 07 章在一步里调用好几次 `backward()`，并且要问：batch 到底能有多大？
# - 五个版本都在 [`ddp_src/own_ddp.py`](../../ddp_src/own_ddp.py) 里：改动一处，看看会坏在哪里。
#
# 参考资料：[DDP 的论文](https://arxiv.org/abs/2006.15704) ·
# [DDP 设计说明](https://docs.pytorch.org/docs/stable/notes/ddp.html) ·
# [梯度写好后调用的钩子](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.register_post_accumulate_grad_hook.html)
