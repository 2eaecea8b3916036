# %% [markdown] id="title" lang="en"
# # 00 · Quickstart: can I see DDP train right now?
#
# Yes, on your own machine, with or without a GPU: here two processes train one model together.
# To run the cells yourself, type `./launch.sh lab en` in a terminal. After this chapter you can:
#
# - run a function on two processes from a notebook cell and plot what each of them recorded;
# - say which loss curve counts, and what becomes of the weights when each process sees other data;
# - turn a training script of your own into a distributed one, line by line.

# %% [markdown] id="title" lang="zh" sync="99879146:4a4b41d4"
# # 00 · 快速上手：现在就能看到 DDP 训练吗？
#
# 能，就在你面前这台机器上，有没有 GPU 都行。下面我们让两个进程一起训练同一个模型，教它认手写数字。
# 读完这一章，我们就能：
#
# - 在一个单元格里启动两个进程，并把它们各自的记录画成图；
# - 说清哪条损失曲线才算数，以及各个进程看到的数据不同时，权重会怎样；
# - 把自己的训练脚本一行一行改成分布式的。

# %% [markdown] id="words" lang="en"
# A **process** is one running program with its own memory. In **distributed data parallel (DDP)** training,
# several processes share the work. Each is called by its number, its **rank**, from 0 up; how many there are
# is the **world size**. Every rank holds a whole copy of the model, a **replica**, and trains it on its own
# share of the data.

# %% [markdown] id="words" lang="zh" sync="9141df59:2997b642"
# **进程**就是一个正在运行的程序，有自己的一块内存。
# **分布式数据并行**（DDP）就是几个进程分担一次训练。每个进程都有自己的 **rank**（进程在组内的编号，
# 从 0 开始），我们也用 rank 来称呼这个进程。进程一共有几个，叫 **world size**（进程总数）。
# 每个 rank 手里都有一份完整的模型，叫**副本**（replica），用分给自己的那部分数据来训练。

# %% id="setup"
import math

import torch.distributed as dist

from ddp_src import check, hint, plots, show_source, shows, solution, spawn, warm_up
from ddp_src.lessons import quickstart
from ddp_src.runlog import mean_losses

warm_up()  # gets the ranks' processes ready while you read on

# %% [markdown] id="predict" lang="en"
# ## Predict first
#
# Two ranks start from *different* random seeds and see different samples. Their loss curves never agree.
# After ten epochs, how far apart are their weights?
#
# - (a) about as far as their losses
# - (b) about 1e-6: equal but for rounding
# - (c) exactly 0: equal bit for bit
#
# Write your letter down before you read on.

# %% [markdown] id="predict" lang="zh" sync="57f4f521:a7458673"
# ## 先猜一猜
#
# 两个 rank 的随机种子*不同*，分到的样本也不同，每一步的损失都对不上。训练十轮（epoch）之后，
# 两边的权重差多少？
#
# - (a) 和两边损失的差距差不多大
# - (b) 大约 1e-6，只是舍入误差
# - (c) 恰好是 0，逐位相同
#
# 先写下你的答案，再往下看。

# %% [markdown] id="run" lang="en"
# ## Run it
#
# This function is all that every rank runs. Read it once. What an ordinary training loop does not have stands
# in the lines that mention `rank`, `world_size`, `sampler` or `DDP`. `steps` is the record for the figures,
# and `float64` keeps rounding small, so that you can compare two runs closely.

# %% [markdown] id="run" lang="zh" sync="6a945a6e:56a6b2b9"
# ## 跑起来
#
# 下面这个函数就是每个 rank 运行的全部代码，先通读一遍。和普通的训练循环相比，多出来的东西都在提到
# `rank`、`world_size`、`sampler` 或 `DDP` 的那几行里。`steps` 是留着画图的记录；用 `float64`
# 是为了让舍入误差足够小，后面好把两次训练放在一起细比。

# %% id="source"
show_source(quickstart.train)

# %% [markdown] id="launch" lang="en"
# `spawn` starts the ranks, runs the function on each, and returns what each returned, in rank order. The line
# that it prints says how many ranks there are, which **backend** carries the messages between them, and on
# which device they compute.

# %% [markdown] id="launch" lang="zh" sync="1bdab9cd:0d6d743e"
# `spawn` 启动各个 rank，让每个 rank 都运行这个函数，再按编号顺序把各自的返回值交给我们。它先打印一行：
# 一共几个 rank，用哪个**后端**（backend，负责在进程之间传数据），在什么设备上计算。

# %% id="two-ranks"
ranks = spawn(quickstart.train, nprocs=2)
for rank, trained in enumerate(ranks):
    print(f"rank {rank}: loss {trained.steps[0].loss:.1f} → {trained.steps[-1].loss:.1f}")
plots.losses([trained.steps for trained in ranks])

# %% [markdown] id="two-ranks-alt" alt="two-ranks" lang="en"
# Training loss against step for rank 0 and rank 1: both start at 2.3; rank 0 ends at 0.3, rank 1 at 0.2.
# The two curves cross again and again on the way down; their mean, a thick black line, runs between them.

# %% [markdown] id="two-ranks-alt" alt="two-ranks" lang="zh" sync="16396dd1:9416c1b8"
# rank 0 和 rank 1 的训练损失随步数的变化：两条曲线都从 2.3 降到 0.2 至 0.3。前几步几乎贴在一起，
# 往后一路交错，却不重合；它们的平均值走在两者之间。

# %% [markdown] id="why-two-curves" lang="en"
# Two processes, two curves: each is the loss on the samples that this rank got in this step, 128 of them, or
# fewer at the end of an epoch. Neither is *the* loss. Is their mean? To find out, let one process train on
# both shares at once, the **joined batch** of 256.

# %% [markdown] id="why-two-curves" lang="zh" sync="992ea133:595f3c9f"
# 两个进程，两条曲线。每条都只是一个 rank 在当前这一步分到的样本上的损失：通常是 128 个，一轮的最后一步
# 少一些。哪一条都不能代表整次训练。那么它们的平均，也就是图中的黑线，能代表吗？我们让一个进程独自训练，
# 每步处理两份样本合起来的 batch，也就是 256 个，比一比就知道了。

# %% [markdown] id="see" lang="en"
# ## See it
#
# The circles are the one process, every eighth step; the inset shows how far it is from the mean in each.

# %% [markdown] id="see" lang="zh" sync="f318ede2:71101c47"
# ## 看结果
#
# 圆圈是单进程的损失，每八步画一个；右上角的小图画出每一步它与平均值差多少。

# %% id="one-process"
alone = spawn(quickstart.train, nprocs=1)[0]
plots.losses([trained.steps for trained in ranks], one_process=alone.steps)

# %% [markdown] id="one-process-alt" alt="one-process" lang="en"
# The same two curves and their mean, with the one-process run drawn as a circle at every eighth step: every
# circle lies on the mean. An inset shows the difference between mean and one process at each step on a log
# axis that also has a 0: all are below 1e-12, many are exactly 0.

# %% [markdown] id="one-process-alt" alt="one-process" lang="zh" sync="b1429076:19bc4081"
# 还是那两条曲线和它们的平均值，单进程的结果画成空心圆：每个圆都落在平均线上。右上角的小图用对数坐标，
# 画出每一步的平均值与单进程的损失之差：全部小于 1e-12，许多恰好是 0。

# %% id="claim"
mean = mean_losses([trained.steps for trained in ranks])
loss_gap = max(abs(m - step.loss) for m, step in zip(mean, alone.steps, strict=True))
weight_gap = (ranks[0].weights - ranks[1].weights).abs().max().item()
print(f"max|mean loss − one process| = {loss_gap:.0e} < 1e-12: {loss_gap < 1e-12}")
print(f"max|weights of rank 0 − rank 1| = {weight_gap:g}")

# %% [markdown] id="read" lang="en"
# **The answer is (c).** After 160 steps the two ranks hold the same weights, bit for bit. And the mean of
# their losses is the loss of one process on the joined batch: the differences in the inset are rounding. So
# the mean is the loss that counts; each rank's own curve is a sample of it.

# %% [markdown] id="read" lang="zh" sync="5b97f69a:1e6bc5e8"
# **答案是 (c)**。走完 160 步，两个 rank 的权重逐位相同。再看损失：单进程用合并后的 batch 训练，
# 得到的损失就是两边的平均值，只差舍入。真正算数的是这条平均曲线；彩色的两条，每步各只看到一半样本。

# %% [markdown] id="why" lang="en"
# ## Why
#
# `DDP(model)` copies rank 0's weights to every rank, so the seeds no longer matter. Then each `backward()`
# computes the rank's own gradient, g0 or g1, and averages the two in an **all-reduce**: every rank gives its
# own and gets the same mean back. Equal weights and equal gradients give equal weights, step after step.

# %% [markdown] id="why" lang="zh" sync="f221c6ae:81064cfa"
# ## 为什么
#
# 用 `DDP` 包装模型时，rank 0 的权重会复制给每个 rank，种子不同也就不要紧了。此后每次 `backward()`，各个 rank
# 先算出自己的梯度 g0、g1，再做一次 **all-reduce**（全归约：归约后每个 rank 都拿到结果）。归约（reduce）
# 是把各个 rank 的值合成一个，这里就是求平均：每个 rank 交出自己的梯度，拿回同一个平均值。
# 权重相同，梯度相同，更新后的权重自然也相同，每一步都是如此。

# %% id="one-step"
plots.one_step()

# %% [markdown] id="one-step-alt" alt="one-step" lang="en"
# One step from left to right, rank 0 above rank 1. The weights are equal, the losses L0 and L1 and the
# gradients g0 and g1 are not. One all-reduce turns both gradients into g = (g0 + g1) / 2 on both ranks, and
# Adam makes equal new weights of it.

# %% [markdown] id="one-step-alt" alt="one-step" lang="zh" sync="e6409fbf:1cf31a5f"
# 从左到右是一步训练，上面是 rank 0，下面是 rank 1。两边的权重相等；损失 L0 和 L1、梯度 g0 和 g1 都不相等。
# 一次 all-reduce 之后，两边的梯度都变成 g = (g0 + g1) / 2；Adam 用它更新，得到的新权重又相等。

# %% [markdown] id="why-equal" lang="en"
# Both shares are equally large, so the mean of their gradients is the gradient of the joined batch. That is
# why the two ranks together take the same steps as the one process.
#
# - If you chose (a): you thought of two models. There is one, and each loss measures it on other samples.
# - If you chose (b): you thought that each rank adds up for itself, with its own rounding. The sum is made
#   once, and every rank gets that result.

# %% [markdown] id="why-equal" lang="zh" sync="b83526b8:fc568e34"
# 两份样本一样多，所以两个梯度的平均，就是合并后的 batch 的梯度。因此两个 rank 合起来走的每一步，
# 和那一个进程走的完全一样。
#
# - 选 (a)，多半是以为有两个模型。其实两个副本是同一个模型，只是用两份不同的样本各量了一次。
# - 选 (b)，多半是以为每个 rank 各自求和，舍入会略有出入。其实这个和只算一次，算好再发给每个 rank。

# %% [markdown] id="break" lang="en"
# ## Break it: how a first listing fails
#
# A first DDP listing often looks like this one:
#
# ```python
# dist.init_process_group(backend="nccl")
# dataset = MNISTDataset("mnist_train.pth", transforms=ToTensor())  # the file holds tensors
# loader = DataLoader(dataset, batch_size=128, sampler=DistributedSampler(dataset))
# model = DDP(SimpleModel())
# for epoch in range(10):
#     for i, (images, labels) in enumerate(loader):
#         ...  # forward, backward, optimizer step
#         if (i + 1) % 100 == 0:
#             print(f"step {i + 1}, loss {loss.item():.4f}")
# dist.destroy_process_group()
# ```
#
# It fails four times here, each time a little later. **First**, started as `python listing.py`:

# %% [markdown] id="break" lang="zh" sync="a0fd0a91:eb35ab64"
# ## 弄坏它：第一份 DDP 代码是怎样失败的
#
# 初学者的第一份 DDP 代码，常常长成这样：
#
# ```python
# dist.init_process_group(backend="nccl")
# dataset = MNISTDataset("mnist_train.pth", transforms=ToTensor())  # 文件里存的是张量
# loader = DataLoader(dataset, batch_size=128, sampler=DistributedSampler(dataset))
# model = DDP(SimpleModel())
# for epoch in range(10):
#     for i, (images, labels) in enumerate(loader):
#         ...  # 前向、反向、更新参数
#         if (i + 1) % 100 == 0:
#             print(f"step {i + 1}, loss {loss.item():.4f}")
# dist.destroy_process_group()
# ```
#
# 拿到这里来跑，它会失败四次，每次都比上一次多走几行。**第一次**，把它存成文件，直接用 `python listing.py`
# 启动：

# %% id="fault-rank"
with shows(ValueError):
    dist.init_process_group(backend="nccl")

# %% [markdown] id="fault-rank-why" lang="en"
# Nobody told this process its rank. That is the job of a **launcher**: it starts the processes and gives each
# its number. `torchrun` does so for scripts, `spawn` for notebooks. **Second**, with a launcher, on a machine
# without GPUs (if yours has some, this cell hides them):

# %% [markdown] id="fault-rank-why" lang="zh" sync="31d01f4e:4f3f58ba"
# 环境变量 `RANK` 是空缺的：没有人告诉这个进程它是几号。这是启动器（launcher）的事：脚本用 `torchrun`，
# notebook 用 `spawn`。它们启动各个进程，并给每个进程发一个编号。
# **第二次**，用了启动器，但机器上没有 GPU（如果你的机器有，这个单元格会把它们藏起来）：

# %% id="fault-nccl"
with shows(RuntimeError):
    spawn(quickstart.ask_for_nccl, nprocs=1, backend="gloo")

# %% [markdown] id="fault-nccl-why" lang="en"
# NCCL is the backend for NVIDIA GPUs and needs one GPU for each rank; Gloo is the backend for CPUs. `spawn`
# picks the one that fits, so the same notebook runs on both. **Third**, with Gloo, at the first sample:

# %% [markdown] id="fault-nccl-why" lang="zh" sync="4536cb1f:79da9029"
# NCCL 是 NVIDIA GPU 用的后端，每个 rank 要独占一块 GPU；CPU 上用 Gloo。`spawn` 会挑合适的那个，
# 所以有没有 GPU，同一个 notebook 都能跑。**第三次**，换成 Gloo 之后，读第一个样本时：

# %% id="fault-totensor"
from torchvision.transforms import ToTensor

from ddp_src.data import load_digits

image = load_digits(train=True).images[0]
with shows(TypeError):
    ToTensor()(image)

# %% [markdown] id="fault-totensor-why" lang="en"
# `ToTensor` turns a picture into a tensor, but the `.pth` file holds tensors already. The `MNISTDataset` of
# this project hands its `transforms` a picture, as torchvision's own dataset does; without `transforms` it
# gives values from 0 to 1. **Fourth**, with all of this mended, three epochs on two ranks:

# %% [markdown] id="fault-totensor-why" lang="zh" sync="635da231:df63d116"
# `ToTensor` 用来把图片变成张量，而 `.pth` 文件里存的已经是张量。本项目的 `MNISTDataset` 会先还原成图片，
# 再交给 `transforms`，和 torchvision 自己的数据集一样；不写 `transforms`，拿到的就是 0 到 1 之间的张量。
# **第四次**，前面的问题全部改好，在两个 rank 上训练三轮：

# %% id="fault-silence"
printed = spawn(quickstart.first_listing, nprocs=2)
print("lines printed by each rank:", [len(steps) for steps in printed])
print("steps per epoch, 4,000 digits on 2 ranks:", math.ceil(4000 / 2 / 128))
print("steps per epoch, 60,000 digits on 8 ranks:", math.ceil(60000 / 8 / 128))

# %% [markdown] id="fault-silence-why" lang="en"
# It trains, and prints nothing. The listing prints when `(i + 1) % 100 == 0`, and `i` starts at 0 again in
# every epoch. Each rank has only its share of the samples, so an epoch has 16 steps here, and 59 on eight
# ranks with the whole of MNIST: never 100. Count the steps over the whole run instead.
#
# Three more faults raise no error at all. Nobody calls `set_epoch`; chapter 04 shows what that costs. Without a
# `device`, a GPU stands idle. And the loss of one rank is printed as if it were the loss.

# %% [markdown] id="fault-silence-why" lang="zh" sync="21c3a0f8:e04809c5"
# 训练做完了，却一个字也没打印。样本分给了各个 rank，一轮只有 16 步；`i` 每轮又从头数起，
# `(i + 1) % 100 == 0` 永远不成立。换成八块 GPU 和完整的 MNIST，一轮也只有 59 步，照样不打印。
# 所以本项目的训练程序不在每轮里数步，而是按整次训练累计的步数来报告。
#
# 还有三个错误，连报错都没有。漏了 `set_epoch`，后果见第 04 章；不指定 `device`，有 GPU 也闲着；
# 把一个 rank 的损失打印出来，当成了整次训练的损失。

# %% [markdown] id="your-script" lang="en"
# ## Your own script → DDP
#
# | | one process | DDP | chapter |
# |---|---|---|---|
# | start | `python train.py` | `torchrun --nproc-per-node 2 train.py` | [02](02_processes.ipynb) |
# | begin | | `dist.init_process_group()` | [02](02_processes.ipynb) |
# | device | `device = "cuda"` | `device = f"cuda:{os.environ['LOCAL_RANK']}"` | [02](02_processes.ipynb) |
# | sampler | | `sampler = DistributedSampler(data)` | [04](04_sampler.ipynb) |
# | loader | `DataLoader(data, 256, shuffle=True)` | `DataLoader(data, 256 // dist.get_world_size(), sampler=sampler)` | 07 |
# | epoch | | `sampler.set_epoch(epoch)` | [04](04_sampler.ipynb) |
# | model | `model = Net().to(device)` | `model = DDP(Net().to(device))` | [05](05_ddp_from_scratch.ipynb) |
# | gradients | `loss.backward()` | `loss.backward()`, which averages them | [06](06_inside_ddp.ipynb) |
# | loss | `print(loss.item())` | `dist.all_reduce` its sum and its count, divide, print on rank 0 | 00 |
# | test | `correct / total` | `dist.all_reduce` both, then divide | [04](04_sampler.ipynb) |
# | save | `torch.save(model.state_dict(), path)` | `if dist.get_rank() == 0: torch.save(model.module.state_dict(), path)` | 12 |
# | end | | `dist.destroy_process_group()` | [02](02_processes.ipynb) |
#
# The imports stand in [`ddp_src/lessons/quickstart.py`](../../ddp_src/lessons/quickstart.py). The last column
# is the chapter that explains the line; [the README](../../README.md) lists the chapters that are ready.
#
# A complete program, with a test after every epoch and a checkpoint to go on from, is
# [`ddp_src/train.py`](../../ddp_src/train.py), with the modules beside it that it imports.
#
# `torch.nn.DataParallel` (DP) is the older relative: one process that copies the model to every GPU again in
# each step. DDP keeps one process and one replica per GPU and sends gradients instead. PyTorch advises DDP
# [on a single machine too](https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html).

# %% [markdown] id="your-script" lang="zh" sync="9bb856f5:93b97401"
# ## 你自己的脚本 → DDP
#
# | | 单进程 | DDP | 章节 |
# |---|---|---|---|
# | 启动 | `python train.py` | `torchrun --nproc-per-node 2 train.py` | [02](02_processes.ipynb) |
# | 开头 | | `dist.init_process_group()` | [02](02_processes.ipynb) |
# | 设备 | `device = "cuda"` | `device = f"cuda:{os.environ['LOCAL_RANK']}"` | [02](02_processes.ipynb) |
# | 采样器 | | `sampler = DistributedSampler(data)` | [04](04_sampler.ipynb) |
# | 数据 | `DataLoader(data, 256, shuffle=True)` | `DataLoader(data, 256 // dist.get_world_size(), sampler=sampler)` | 07 |
# | 每轮 | | `sampler.set_epoch(epoch)` | [04](04_sampler.ipynb) |
# | 模型 | `model = Net().to(device)` | `model = DDP(Net().to(device))` | [05](05_ddp_from_scratch.ipynb) |
# | 梯度 | `loss.backward()` | `loss.backward()`，同时给梯度求平均 | [06](06_inside_ddp.ipynb) |
# | 损失 | `print(loss.item())` | 损失之和、样本数各做一次 `dist.all_reduce`，相除后由 rank 0 打印 | 00 |
# | 测试 | `correct / total` | 分子、分母各做一次 `dist.all_reduce`，再相除 | [04](04_sampler.ipynb) |
# | 保存 | `torch.save(model.state_dict(), path)` | `if dist.get_rank() == 0: torch.save(model.module.state_dict(), path)` | 12 |
# | 结尾 | | `dist.destroy_process_group()` | [02](02_processes.ipynb) |
#
# 要导入的名字见 [`ddp_src/lessons/quickstart.py`](../../ddp_src/lessons/quickstart.py)。最后一列是讲解这一行的
# 章节；已经写好的章节见 [README](../../README.zh.md)。
#
# 完整的程序是 [`ddp_src/train.py`](../../ddp_src/train.py) 和它旁边的几个模块：每轮之后测试准确率，
# 保存检查点，中断之后可以接着训练。
#
# `torch.nn.DataParallel`（DP）是更早的做法：只有一个进程，每一步都要把模型重新发给各块 GPU。
# DDP 让每块 GPU 都有自己的进程和副本，之后只传梯度。PyTorch 官方建议，
# [只有一台机器时也用 DDP](https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html)。

# %% [markdown] id="your-turn" lang="en"
# ## Your turn
#
# Above, both ranks have equally many samples in every step; `DistributedSampler` sees to that. Elsewhere one
# rank may have fewer than another. Each rank gives you its mean loss and its number of samples: compute the
# mean loss over all samples.
#
# `hint("quickstart-1")` gives a hint, `solution("quickstart-1")` the answer.

# %% [markdown] id="your-turn" lang="zh" sync="80ec7060:31888549"
# ## 动手试试
#
# 上面的两个 rank 每步的样本数总相等，这是 `DistributedSampler` 保证的；换个地方就不一定了。
# 已知每个 rank 的平均损失和样本数，怎样算出全部样本的平均损失？请补完下面的函数。
# 需要提示就运行 `hint("quickstart-1")`，想看答案就运行 `solution("quickstart-1")`。


# %% id="exercise"
def global_loss(losses, counts):
    """The mean loss over all samples, for example from losses [0.4, 1.2] and counts [128, 16]."""
    ...


check("quickstart-1", global_loss)

# %% [markdown] id="next" lang="en"
# ## Next
#
# - To understand every line: [chapter 01](01_one_process.ipynb) asks what exactly runs in parallel, and
#   chapters 02 to 06 build DDP up from two processes that know nothing of each other.
# - To train now with other options: `./launch.sh train --help` in a terminal lists them.
# - To see which of these chapters are ready: [the list in the README](../../README.md).
#
# Sources: [the DDP design note](https://docs.pytorch.org/docs/stable/notes/ddp.html) ·
# [the paper behind DDP](https://arxiv.org/abs/2006.15704) ·
# [`DistributedSampler`](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)

# %% [markdown] id="next" lang="zh" sync="75ec8d16:5217c9fc"
# ## 接下来
#
# - 想弄懂每一行：[第 01 章](01_one_process.ipynb)先问到底是什么在并行；第 02 到 06 章从两个互不相识的进程开始，一步步搭出 DDP。
# - 想马上自己训练一次：在终端里运行 `./launch.sh train --help`，看看有哪些选项。
# - 想看现在有哪些章节：[README 里的目录](../../README.zh.md)。
#
# 参考资料：[DDP 设计说明](https://docs.pytorch.org/docs/stable/notes/ddp.html) ·
# [DDP 的论文](https://arxiv.org/abs/2006.15704) ·
# [`DistributedSampler`](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)
