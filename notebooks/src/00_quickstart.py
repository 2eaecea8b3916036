# %% [markdown] id="title" lang="en"
# # 00 · Quickstart: can I see DDP train right now?
#
# Yes, on this machine, with or without a GPU. Two processes are about to train one model together.
# After this chapter you can:
#
# - run a program on two processes from a notebook cell and plot what each of them recorded;
# - say which loss curve counts, and why two processes with different data keep the same weights;
# - turn a training script of your own into a distributed one, line by line.

# %% [markdown] id="title" lang="zh"
# # 00 · 快速上手：现在就能看到 DDP 训练吗？
#
# 能，就在你面前这台机器上，有没有 GPU 都行。下面我们让两个进程一起训练同一个模型。读完这一章，你会：
#
# - 在一个单元格里启动两个进程，并把它们各自的记录画成图；
# - 说清哪条损失曲线才算数，为什么数据不同的两个进程始终保有相同的权重；
# - 把自己的训练脚本一行一行改成分布式的。

# %% [markdown] id="words" lang="en"
# In **distributed data parallel (DDP)** training several processes share the work. Each one is called by
# its **rank**, a number from 0 up; how many there are is the **world size**. Every rank holds a whole copy
# of the model, a **replica**, and trains it on its own share of the data.

# %% [markdown] id="words" lang="zh"
# **分布式数据并行（DDP）**就是几个进程分担一次训练。每个进程有一个编号，叫 **rank**（进程在组内的编号，
# 从 0 开始）；一共几个进程，叫 **world size**（进程总数）。每个 rank 手里都有一份完整的模型，称为一个
# **副本**，用分给自己的那部分数据来训练它。

# %% id="setup"
import math

import torch.distributed as dist

from ddp_src import check, plots, show_source, shows, spawn, warm_up
from ddp_src.lessons import quickstart
from ddp_src.runlog import mean_losses

warm_up()  # gets the ranks' processes ready while you read on

# %% [markdown] id="predict" lang="en"
# ## Predict first
#
# Two ranks start from *different* random seeds and see different samples. Their loss curves never agree.
# After ten epochs, how far apart are their weights?
#
# - (a) about as far as the losses
# - (b) about 1e-6, rounding
# - (c) exactly 0, bit for bit
#
# Write your letter down before you read on.

# %% [markdown] id="predict" lang="zh"
# ## 先猜一猜
#
# 两个 rank 用*不同的*随机种子，看到的样本也不同，两条损失曲线从不一致。训练十轮（epoch）之后，
# 两边的权重差多少？
#
# - (a) 和损失的差别差不多
# - (b) 大约 1e-6，舍入误差
# - (c) 恰好是 0，逐位相同
#
# 先把你的答案写下来，再往下看。

# %% [markdown] id="run" lang="en"
# ## Run it
#
# This function is what every rank runs, all of it. Read it once; the lines that mention `world_size`,
# `DistributedSampler` or `DDP` are the only ones that an ordinary training loop does not have.

# %% [markdown] id="run" lang="zh"
# ## 跑起来
#
# 下面这个函数就是每个 rank 运行的全部代码，先通读一遍。和普通的训练循环相比，多出来的只有提到 `world_size`、
# `DistributedSampler` 和 `DDP` 的那几行。

# %% id="source"
show_source(quickstart.train)

# %% [markdown] id="launch" lang="en"
# `spawn` starts the ranks, runs the function on each, and brings back what each returned, in rank order.

# %% [markdown] id="launch" lang="zh"
# `spawn` 启动各个 rank，让每个 rank 运行这个函数，再按 rank 的顺序把返回值带回来。

# %% id="two-ranks"
ranks = spawn(quickstart.train, nprocs=2)
for rank, trained in enumerate(ranks):
    print(f"rank {rank}: loss {trained.steps[0].loss:.1f} → {trained.steps[-1].loss:.1f}")
plots.losses([trained.steps for trained in ranks])

# %% [markdown] id="two-ranks-alt" alt="two-ranks" lang="en"
# Training loss against step for rank 0 and rank 1: both fall from 2.3 to about 0.2 and cross all the way
# down without ever lying on one another; their mean runs between them.

# %% [markdown] id="two-ranks-alt" alt="two-ranks" lang="zh"
# rank 0 和 rank 1 的训练损失随步数的变化：两条曲线都从 2.3 降到 0.2 左右，一路交错，始终不重合；
# 它们的平均值走在两者之间。

# %% [markdown] id="why-two-curves" lang="en"
# Two processes, two curves, each the loss on the 128 samples that this rank happened to get in this step.
# Neither is *the* loss. Is their mean? Let one process take all 256 samples in each step and see.

# %% [markdown] id="why-two-curves" lang="zh"
# 两个进程，两条曲线：每条都只是这个 rank 在这一步分到的 128 个样本上的损失，哪一条都不能代表整次训练。
# 那么它们的平均呢？让一个进程每步独自处理全部 256 个样本，对比一下就知道了。

# %% [markdown] id="see" lang="en"
# ## See it

# %% [markdown] id="see" lang="zh"
# ## 看结果

# %% id="one-process"
alone = spawn(quickstart.train, nprocs=1)[0]
plots.losses([trained.steps for trained in ranks], one_process=alone.steps)

# %% [markdown] id="one-process-alt" alt="one-process" lang="en"
# The same two curves and their mean, with the one-process run drawn as circles: every circle lies on the
# mean. An inset shows the difference between mean and one process at each step on a log axis: all are
# below 1e-12, many are exactly 0.

# %% [markdown] id="one-process-alt" alt="one-process" lang="zh"
# 还是那两条曲线和它们的平均值，单进程的结果画成空心圆：每个圆都落在平均值上。右上角的小图用对数坐标画出
# 每一步平均值与单进程之差：全部小于 1e-12，许多恰好是 0。

# %% id="claim"
mean = mean_losses([trained.steps for trained in ranks])
loss_gap = max(abs(m - step.loss) for m, step in zip(mean, alone.steps, strict=True))
weight_gap = (ranks[0].weights - ranks[1].weights).abs().max().item()
print(f"max|mean loss − one process| = {loss_gap:.0e} < 1e-12: {loss_gap < 1e-12}")
print(f"max|weights of rank 0 − rank 1| = {weight_gap:g}")

# %% [markdown] id="read" lang="en"
# **The answer is (c).** After 160 steps the two ranks hold the same weights, bit for bit. And the mean of
# their losses is, to rounding, the loss of one process that trains on the joined batch. This is the curve
# that counts; the coloured ones are samples of it.

# %% [markdown] id="read" lang="zh"
# **答案是 (c)。**走完 160 步，两个 rank 的权重逐位相同。两边损失的平均值，也和单进程用合并后的 batch
# 训练得到的损失一致，只差舍入。真正算数的就是这条平均曲线，彩色的两条只是从中抽样看到的样子。

# %% [markdown] id="why" lang="en"
# ## Why
#
# ```text
#           rank 0                              rank 1
#    same weights w                      same weights w           DDP(model) copied rank 0's
#    128 samples → loss 0, g0            128 samples → loss 1, g1     backward() of its own share
#                  ╲                      ╱
#                   g = (g0 + g1) / 2                             all-reduce, inside backward()
#                  ╱                      ╲
#    w ← Adam(w, g)                      w ← Adam(w, g)           same w, same g → same w again
# ```
#
# Wrapping the model in `DDP` copies rank 0's weights to every rank, so the seeds no longer matter. Then,
# inside each `backward()`, an **all-reduce** averages the gradients: every rank gives its own, and every
# rank gets the same mean back. Equal weights plus equal gradients give equal weights, step after step.
#
# - If you chose (a): you thought of two models. There is one, measured on two handfuls of samples.
# - If you chose (b): you thought that each rank adds up on its own. The sum is made once and handed out.

# %% [markdown] id="why" lang="zh"
# ## 为什么
#
# ```text
#           rank 0                              rank 1
#    相同的权重 w                        相同的权重 w             DDP(model) 复制了 rank 0 的权重
#    128 个样本 → 损失 0、梯度 g0        128 个样本 → 损失 1、梯度 g1    各自 backward()
#                  ╲                      ╱
#                   g = (g0 + g1) / 2                             all-reduce，就在 backward() 里
#                  ╱                      ╲
#    w ← Adam(w, g)                      w ← Adam(w, g)           同样的 w、同样的 g → 还是同样的 w
# ```
#
# 用 `DDP` 包装模型时，rank 0 的权重被复制给每个 rank，种子不同也就不要紧了。此后每次 `backward()`，都有一次
# **all-reduce**（全归约：归约后每个 rank 都拿到结果）对梯度求平均：每个 rank 交出自己的一份，拿回同一个平均值。
# 权重相同，梯度相同，更新后的权重自然还是相同，一步一步都是如此。
#
# - 选 (a) 的人，想的是两个模型。其实模型只有一个，只是用两把不同的样本去量它。
# - 选 (b) 的人，想的是每个 rank 各加各的。其实和只算一次，算好再发给大家。

# %% [markdown] id="break" lang="en"
# ## Break it: how a first listing fails
#
# Most first DDP listings look alike: `init_process_group(backend="nccl")`, a dataset read from a `.pth`
# file with `ToTensor()`, `DDP(model)`, and a line printed every hundred steps. Run one here and it fails
# four times, each time a little later. **First**, started as `python listing.py`:

# %% [markdown] id="break" lang="zh"
# ## 弄坏它：第一份代码是怎样失败的
#
# 初学 DDP 时写的代码大都长得差不多：`init_process_group(backend="nccl")`，从 `.pth` 文件读数据并用
# `ToTensor()` 转换，`DDP(model)`，每一百步打印一行。拿到这里来跑，它会失败四次，一次比一次晚一点。
# **第一次**，直接用 `python listing.py` 启动：

# %% id="fault-rank"
with shows(ValueError):
    dist.init_process_group(backend="nccl")

# %% [markdown] id="fault-rank-why" lang="en"
# Nobody told this process which rank it is. A launcher does that: `torchrun` for scripts, `spawn` for
# notebooks; both start the processes and give each its number. **Second**, with a launcher, on a machine
# without GPUs:

# %% [markdown] id="fault-rank-why" lang="zh"
# 没有人告诉这个进程它是几号 rank。这是启动器的事：脚本用 `torchrun`，notebook 用 `spawn`，它们启动各个进程，
# 并给每个进程发一个编号。**第二次**，用了启动器，但机器上没有 GPU：

# %% id="fault-nccl"
with shows(RuntimeError):
    spawn(quickstart.ask_for_nccl, nprocs=1, backend="gloo")

# %% [markdown] id="fault-nccl-why" lang="en"
# NCCL is the backend for NVIDIA GPUs, one for each rank. On CPUs it is Gloo. `spawn` picks the one that
# fits, so the same notebook runs on both. **Third**, with Gloo, at the first sample:

# %% [markdown] id="fault-nccl-why" lang="zh"
# NCCL 是 NVIDIA GPU 用的后端，每个 rank 要有自己的一块；CPU 上用 Gloo。`spawn` 会挑合适的那个，
# 所以同一个 notebook 在两种机器上都能跑。**第三次**，换成 Gloo 之后，读第一个样本时：

# %% id="fault-totensor"
from torchvision.transforms import ToTensor

from ddp_src.data import load_digits

image = load_digits(train=True).images[0]
with shows(TypeError):
    ToTensor()(image)

# %% [markdown] id="fault-totensor-why" lang="en"
# `ToTensor` turns a picture into a tensor, and the `.pth` file holds tensors already. `MNISTDataset` here
# hands its `transforms` a picture, as torchvision's own dataset does, and needs none to give values from
# 0 to 1. **Fourth**, with all of this mended, three epochs on two ranks:

# %% [markdown] id="fault-totensor-why" lang="zh"
# `ToTensor` 的用处是把图片变成张量，而 `.pth` 文件里存的已经是张量。本项目的 `MNISTDataset` 和 torchvision
# 自己的数据集一样，交给 `transforms` 的是图片；不写 `transforms` 时，直接得到 0 到 1 之间的值。
# **第四次**，前面的问题全部改好，在两个 rank 上训练三轮：

# %% id="fault-silence"
printed = spawn(quickstart.first_listing, nprocs=2)
print("lines printed by each rank:", [len(steps) for steps in printed])
print("steps per epoch, 4,000 digits on 2 ranks:", math.ceil(4000 / 2 / 128))
print("steps per epoch, 60,000 digits on 8 ranks:", math.ceil(60000 / 8 / 128))

# %% [markdown] id="fault-silence-why" lang="en"
# It trains, and says nothing. Each rank has its share of the samples, so an epoch has few steps, and
# `(i + 1) % 100 == 0` is never true; not on eight GPUs with the whole of MNIST either. The training
# program of this project counts steps over the whole run.
#
# Three faults remain that raise no error at all: without `set_epoch` every epoch shuffles alike, without
# a `device` a GPU would stand idle, and the loss of one rank is printed as if it were the loss.

# %% [markdown] id="fault-silence-why" lang="zh"
# 训练做完了，却一个字也没打印。样本分给了各个 rank，一轮就没有几步，`(i + 1) % 100 == 0` 永远不成立；
# 换成八块 GPU 和完整的 MNIST 也一样。所以本项目的训练程序按整次训练的总步数来报告。
#
# 还有三个错误不会报任何错：没有 `set_epoch`，每一轮的打乱顺序都一样；没有 `device`，有 GPU 也闲着；
# 打印出来的“损失”其实只是其中一个 rank 的损失。

# %% [markdown] id="your-script" lang="en"
# ## Your own script → DDP
#
# | | one process | DDP | chapter |
# |---|---|---|---|
# | start | `python train.py` | `torchrun --nproc-per-node 2 train.py` | 02 |
# | begin | | `dist.init_process_group()` | 02 |
# | device | `device = "cuda"` | `device = f"cuda:{os.environ['LOCAL_RANK']}"` | 02 |
# | shuffle | `shuffle=True` | `sampler=DistributedSampler(dataset)` | 04 |
# | batch | `batch_size=256` | `batch_size=256 // dist.get_world_size()` | 07 |
# | epoch | | `sampler.set_epoch(epoch)` | 04 |
# | model | `model = Net().to(device)` | `model = DDP(Net().to(device))` | 05 |
# | gradients | `loss.backward()` | `loss.backward()`, which averages them | 06 |
# | loss | `print(loss.item())` | add up sums and counts over ranks, print on rank 0 | 00 |
# | test | `correct / total` | `dist.all_reduce` both, then divide | 04 |
# | save | `torch.save(model.state_dict(), path)` | `if rank == 0: torch.save(model.module.state_dict(), path)` | 12 |
# | end | | `dist.destroy_process_group()` | 02 |
#
# The whole of it, ready to copy, is [`ddp_src/train.py`](../../ddp_src/train.py).
#
# `torch.nn.DataParallel` (DP) is the older relative: one process that sends the model to every GPU again
# in each step. DDP keeps one process and one replica per GPU and sends only gradients. PyTorch advises
# DDP [on a single machine too](https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html).

# %% [markdown] id="your-script" lang="zh"
# ## 你自己的脚本 → DDP
#
# | | 单进程 | DDP | 章节 |
# |---|---|---|---|
# | 启动 | `python train.py` | `torchrun --nproc-per-node 2 train.py` | 02 |
# | 开头 | | `dist.init_process_group()` | 02 |
# | 设备 | `device = "cuda"` | `device = f"cuda:{os.environ['LOCAL_RANK']}"` | 02 |
# | 打乱 | `shuffle=True` | `sampler=DistributedSampler(dataset)` | 04 |
# | 批量大小 | `batch_size=256` | `batch_size=256 // dist.get_world_size()` | 07 |
# | 每轮 | | `sampler.set_epoch(epoch)` | 04 |
# | 模型 | `model = Net().to(device)` | `model = DDP(Net().to(device))` | 05 |
# | 梯度 | `loss.backward()` | `loss.backward()`，同时求平均 | 06 |
# | 损失 | `print(loss.item())` | 各 rank 的总和与样本数相加，由 rank 0 打印 | 00 |
# | 测试 | `correct / total` | 两者都先 `dist.all_reduce`，再相除 | 04 |
# | 保存 | `torch.save(model.state_dict(), path)` | `if rank == 0: torch.save(model.module.state_dict(), path)` | 12 |
# | 结尾 | | `dist.destroy_process_group()` | 02 |
#
# 可以直接拿去改的完整程序是 [`ddp_src/train.py`](../../ddp_src/train.py)。
#
# `torch.nn.DataParallel`（DP）是它的前身：只有一个进程，每一步都要把模型重新发给各块 GPU。DDP 让每块 GPU
# 有自己的进程和副本，路上只传梯度。PyTorch 官方建议，
# [只有一台机器也用 DDP](https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html)。

# %% [markdown] id="your-turn" lang="en"
# ## Your turn
#
# Ranks do not always have equally many samples: at the end of an epoch one may have a smaller batch.
# From the mean loss and the number of samples of each rank, compute the mean loss over all samples.
# `hint("quickstart-1")` gives a hint, `solution("quickstart-1")` the answer; both come from `ddp_src`.

# %% [markdown] id="your-turn" lang="zh"
# ## 动手试试
#
# 各个 rank 的样本数不一定相等：一轮的最后一步，有的 rank 分到的 batch 会小一些。给你每个 rank 的平均损失
# 和样本数，请算出全部样本的平均损失。
# 需要提示就运行 `hint("quickstart-1")`，想看答案就运行 `solution("quickstart-1")`，两者都从 `ddp_src` 导入。


# %% id="exercise"
def global_loss(losses, counts):
    """For example losses [0.4, 1.2] and counts [128, 16]."""
    ...


check("quickstart-1", global_loss)

# %% [markdown] id="next" lang="en"
# ## Next
#
# - To understand every line: chapter 01 asks what exactly runs in parallel, and chapters 02 to 06 build
#   DDP up from two processes that know nothing of each other.
# - To train something of your own now: `./launch.sh train --help` in a terminal.
# - To see which chapters are there: [the list in the README](../../README.md).
#
# Sources: [the DDP design note](https://docs.pytorch.org/docs/stable/notes/ddp.html) ·
# [the paper behind DDP](https://arxiv.org/abs/2006.15704) ·
# [`DistributedSampler`](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)

# %% [markdown] id="next" lang="zh"
# ## 接下来
#
# - 想弄懂每一行：第 01 章先问到底是什么在并行，第 02 到 06 章从两个互不相识的进程开始，一步步搭出 DDP。
# - 想马上训练自己的模型：在终端里运行 `./launch.sh train --help`。
# - 想看现在有哪些章节：[README 里的目录](../../README.zh.md)。
#
# 参考资料：[DDP 设计说明](https://docs.pytorch.org/docs/stable/notes/ddp.html) ·
# [DDP 的论文](https://arxiv.org/abs/2006.15704) ·
# [`DistributedSampler`](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)
