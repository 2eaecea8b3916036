# %% [markdown] id="title" lang="en"
# # 01 · One process: what exactly will be parallel?
#
# Before two processes share a training step, look at what one process does in it. After this chapter you can:
#
# - measure where a training step spends its time;
# - say which parts of a step DDP divides among the ranks, and which part every rank repeats;
# - say when the mean of the ranks' gradients is the gradient of the whole batch, and when it is not.

# %% [markdown] id="title" lang="zh" sync="d87143f1:0c541562"
# # 01 · 单进程：到底是什么在并行？
#
# 要让几个进程分担一步训练，先看清一个进程在一步里做了什么。读完这一章，我们就能：
#
# - 量出一步训练的时间花在了哪里；
# - 说清一步当中，DDP（分布式数据并行）把什么分给各个 rank（进程在组内的编号，也指这个进程），什么由
#   每个 rank 重做；
# - 判断各个 rank 梯度的平均什么时候等于整个 batch 的梯度，什么时候不等于。

# %% id="setup"
import tempfile

import torch
from PIL import Image

from ddp_src import check, hint, plots, show_source, shows, solution, spawn, warm_up
from ddp_src.data import MNISTDataset, load_digits
from ddp_src.errors import DataError
from ddp_src.lessons import one_process
from ddp_src.model import SimpleModel, build_model

warm_up()  # gets the ranks' processes ready while you read on

# %% [markdown] id="program" lang="en"
# ## The program
#
# A training program has a data set, a model and a loop. **The data set** is a `.pth` file that holds two
# tensors: the pixels, as whole numbers from 0 to 255, and the labels. This class reads it:

# %% [markdown] id="program" lang="zh" sync="b9ecbc23:71abb075"
# ## 训练程序
#
# 训练程序有三样东西：数据集、模型和训练循环。**数据集**是一个 `.pth` 文件，存着两个张量：
# 像素（0 到 255 的整数）和标签。读它的是下面这个类：

# %% id="dataset-source"
show_source(MNISTDataset)

# %% [markdown] id="dataset" lang="en"
# One index gives one sample, a list of indices a whole batch. Here such a file is written and read:

# %% [markdown] id="dataset" lang="zh" sync="219bc6b3:ab0c31ce"
# 给一个下标，返回一个样本；给一个下标列表，一次返回整个 batch。写一个这样的文件，再读回来：

# %% id="dataset-file"
folder = tempfile.TemporaryDirectory()  # deleted when the notebook's kernel ends
path = f"{folder.name}/mnist_train.pth"
torch.save(tuple(load_digits(train=True)), path)

digits = MNISTDataset(path)
image, label = digits[3]
images, labels = digits[[3, 1, 4]]
print(f"{len(digits):,} digits; one sample {list(image.shape)}, a batch of three {list(images.shape)}")

# %% [markdown] id="pictures" lang="en"
# Two tensors and nothing else, because a `.pth` file is a pickle, which can run code while it is loaded. So
# `torch.load` takes only tensors, numbers, strings and their containers, unless
# [told otherwise](https://docs.pytorch.org/docs/stable/generated/torch.load.html). A list of pictures can be
# saved, but not loaded:

# %% [markdown] id="pictures" lang="zh" sync="9b877ee5:b8df750b"
# 只存张量，因为 `.pth` 文件用的是 pickle 格式，载入时可能执行里面的代码。
# 所以 `torch.load` 默认只接受张量、数、字符串和装着它们的容器
# （[可以改，但不安全](https://docs.pytorch.org/docs/stable/generated/torch.load.html)）。
# 图片列表就存得进去，读不出来：

# %% id="pictures-refused"
pictures = f"{folder.name}/pictures.pth"
torch.save([(Image.new("L", (28, 28)), 7)], pictures)
with shows(DataError):
    MNISTDataset(pictures)

# %% [markdown] id="loop" lang="en"
# **The model** is `SimpleModel`: 784 pixels, 100 hidden units, 10 classes. The outputs call it `simple`, and a
# larger, convolutional one `cnn`. **The loop** is the second piece of source below. One step has four phases;
# `clock.lap()` gives the seconds of each:
#
# - **data**: get a batch of samples;
# - **forward**: from the images to the loss;
# - **backward**: from the loss to the **gradient**, which says for each weight how the loss changes with it;
# - **update**: the optimizer changes the weights.

# %% [markdown] id="loop" lang="zh" sync="3ce77632:d93cb0c1"
# **模型**是 `SimpleModel`：784 个像素，100 个隐藏单元，10 个类别。输出里叫它 `simple`；`cnn` 是一个大一些的卷积网络。
# **训练循环**是下面的第二段代码。一步分四个阶段，秒表 `clock.lap()` 给出每个阶段用了多少秒：
#
# - **data**：取一个 batch 的样本；
# - **forward**：前向传播，从图像算到损失；
# - **backward**：反向传播，从损失算出**梯度**（gradient），也就是每个权重变动时，损失怎样变；
# - **update**：优化器修改权重。

# %% id="loop-source"
show_source(SimpleModel, one_process.timed_steps)
for name in ("simple", "cnn"):
    print(f"{name:6}  {sum(p.numel() for p in build_model(name).parameters()):9,} weights")

# %% [markdown] id="predict" lang="en"
# ## Predict first
#
# Many programs, those with torchvision's own MNIST among them, read each sample as a picture of the library PIL
# and turn it into a tensor with `ToTensor`. One of them trains `SimpleModel` on a CPU, in batches of 128. Where
# does a step spend most of its time?
#
# - (a) in forward and backward
# - (b) in the update
# - (c) in the data
#
# Write your letter down before you read on.

# %% [markdown] id="predict" lang="zh" sync="e2ff8cae:8ba4d0c3"
# ## 先猜一猜
#
# 许多程序，比如用 torchvision 自带 MNIST 的，把每个样本先做成图像库 PIL 的图片，再用 `ToTensor` 变成张量。
# 在 CPU 上这样训练 `SimpleModel`，每个 batch 128 个样本，一步的时间主要花在哪里？
#
# - (a) 前向传播和反向传播
# - (b) 更新权重
# - (c) 取数据
#
# 先写下你的答案，再往下看。

# %% [markdown] id="run" lang="en"
# ## Run it
#
# Three ways to feed the same model the same digits, in batches of 128: PIL pictures one by one, tensors one by
# one, and whole batches, where `batch_size=None` makes `DataLoader` hand each list of indices to the data set.
#
# They take turns, one step each, so that a busy machine slows all three alike. On a CPU the clock counts only
# this process's own work, not the turns of other programs. The time of each phase is its median over the steps.

# %% [markdown] id="run" lang="zh" sync="739d70af:71aedc22"
# ## 跑起来
#
# 同样的模型和数字，每个 batch 128 个样本，用三种方式喂：逐个样本经过 PIL，逐个样本直接取张量，整批取张量。
# 整批取时，`batch_size=None` 让 `DataLoader` 把整个下标列表直接交给数据集。
#
# 三种方式轮流各走一步，机器再忙，受的影响也一样。在 CPU 上，秒表只计这个进程真正干活的时间。
# 每个阶段的时间，取各步的中位数（median）。

# %% id="run-source"
show_source(
    one_process.time_feeds, one_process.load_by_sample, one_process.load_by_batch, one_process.in_turn
)

# %% [markdown] id="see" lang="en"
# ## See it
#
# One bar for each way to feed `simple`; the numbers for `cnn` are printed below it.

# %% [markdown] id="see" lang="zh" sync="847365a7:04ff6309"
# ## 看结果
#
# 每种喂法一条，用的是 `simple`；`cnn` 的结果打印在图的下面。

# %% id="feeds"
feeds = {
    model: spawn(one_process.time_feeds, (model, n), nprocs=1)[0] for model, n in [("simple", 50), ("cnn", 3)]
}
plots.step_times(feeds["simple"])

# %% [markdown] id="feeds-alt" alt="feeds" lang="en"
# Fed PIL pictures, a step is several times as long as when it is fed whole batches, and most of it is data. Fed
# tensor by tensor, a large part still is; fed whole batches, a small one. Forward, backward and update take
# about the same time in all three.

# %% [markdown] id="feeds-alt" alt="feeds" lang="zh" sync="f6a03580:5e8a0a93"
# 逐个样本经过 PIL，一步的时间是整批喂的好几倍，大部分花在取数据上。逐个喂张量，取数据仍占很大一块；
# 整批喂，只占一小块。前向、反向和更新，三种方式都差不多。

# %% id="feeds-claim"
for model, by_feed in feeds.items():
    for feed, step in by_feed.items():
        seconds = step.data + step.forward + step.backward + step.update
        rate = step.samples / seconds
        print(f"{model:6}  {feed:17}  data / step = {step.data / seconds:.2f}  {rate:7,.0f} samples/s")

# %% [markdown] id="read" lang="en"
# **The answer is (c).** Data is by far the largest part of the first bar; the model's work is the same in all
# three. A batch fed by samples is 128 calls from Python, each with its own small tensor, which are then copied
# together; with PIL, each sample also becomes a picture and a tensor again. A batch fed whole is one call.
#
# - If you chose (a): right for a larger model. `cnn` has 15 times as many weights and, fed the same pictures,
#   spends only a small part of its step on data.
# - If you chose (b): you thought that changing every weight must cost much. 79,510 are few. Yet see the third
#   bar: once the feed is fast, the update is no longer small beside the rest.
#
# So measure the feed first. A GPU would shorten only the small parts of the first bar.

# %% [markdown] id="read" lang="zh" sync="96a6f5a2:48f70c13"
# **答案是 (c)**。第一条里，取数据占了大头；模型做的事，三条都一样。逐个样本喂，一个 batch 要从 Python 里调用
# 128 次，得到 128 个小张量，再拼到一起；经过 PIL 的，每个样本还要变成图片再变回张量。整批喂，只调用一次。
#
# - 选 (a)，换成大一些的模型就对了：`cnn` 的权重是它的 15 倍，喂同样的图片，取数据只占一步的一小部分。
# - 选 (b)，多半是觉得每个权重都要改一遍，肯定很慢。其实 79,510 个权重并不多。不过看第三条：
#   数据一旦喂得快，更新就不算小了。
#
# 所以先量一量喂数据的时间。拿第一条来说，换成 GPU，缩短的也只是右边那几小块。

# %% [markdown] id="divide" lang="en"
# ## What is divided, and what is repeated
#
# DDP gives each rank a part of every batch. What does a smaller batch save? Here the model is fed whole batches
# of 64 to 1,024 samples, again in turn.

# %% [markdown] id="divide" lang="zh" sync="26a72ff4:53445937"
# ## 什么能分摊，什么要重复
#
# DDP 把每个 batch 分给各个 rank。batch 变小了，能省下什么？下面整批喂，batch 从 64 个样本到 1,024 个，
# 还是轮流各走一步。

# %% id="sizes"
sizes = spawn(one_process.time_batch_sizes, ((64, 128, 256, 512, 1024),), nprocs=1)[0]
plots.step_times(sizes, first="update", ylabel="batch size (samples)")

# %% [markdown] id="sizes-alt" alt="sizes" lang="en"
# The larger the batch, the longer data, forward and backward: from about half of the bar to most of it. The
# update, drawn first, is about equally long in every bar.

# %% [markdown] id="sizes-alt" alt="sizes" lang="zh" sync="3a9278ab:f4d24e1a"
# batch 越大，data、forward、backward 三段越长：从整条的一半左右，一直到绝大部分。
# 画在最左边的 update，每一条里都差不多长。

# %% id="sizes-claim"
whole, half = sizes[1024], sizes[512]
for phase in ("data", "forward", "backward", "update"):
    print(f"{phase:8}  time(512) / time(1024) = {getattr(half, phase) / getattr(whole, phase):.2f}")
for size in (1024, 128):
    seconds = [s.data + s.forward + s.backward + s.update for s in (sizes[size], sizes[size // 2])]
    print(f"two ranks, batch {size}: {seconds[0] / seconds[1]:.2f} times as fast")

# %% [markdown] id="divide-read" lang="en"
# Data, forward and backward are work *per sample*: half the samples take about half the time. The update is
# work *per weight*: it takes about as long for a small batch as for a large one. That answers this chapter's
# question. **Data, forward and backward will be parallel**: each rank does them for its own part. **The update
# is repeated**: every rank has all the weights, so every rank changes them all.
#
# The last two lines are about two ranks, each with half of the batch, if communication costs nothing. With 1,024
# samples they are less than twice as fast as one: the update is not divided. With 128 they gain little: the
# update is a large part of such a step, and the other phases have **fixed costs**, the same for any batch.

# %% [markdown] id="divide-read" lang="zh" sync="46e6c0bc:a494af30"
# data、forward、backward *按样本*干活：样本减半，时间大约也减半。update *按权重*干活：batch 再小，时间也差不多。
# 这就回答了本章的问题：**并行的是取数据、前向传播和反向传播**，每个 rank 只做自己那一份；
# **更新是重复的**，每个 rank 都有全部权重，都要全部改一遍。
#
# 最后两行是说：两个 rank 各分一半，通信又不花时间，速度是单进程的几倍。batch 是 1,024 时到不了两倍，
# 因为更新没有分摊。batch 是 128 时好处更小：更新占了很大一块，其余阶段也各有**固定开销**，batch 再小也省不掉。

# %% [markdown] id="why" lang="en"
# ## Why the parts make up the whole
#
# The update needs the gradient of the whole batch, and each rank knows only that of its own part. Write the
# loss of a batch of 8 as the mean of its samples' losses, and split it in two halves:
#
# $$\frac{l_0+l_1+\cdots+l_7}{8} \;=\; \frac12\left(\frac{l_0+l_1+l_2+l_3}{4}+\frac{l_4+l_5+l_6+l_7}{4}\right)$$
#
# The gradient of a sum is the sum of the gradients. So the same holds with the gradients g0 … g7 in place of
# the losses: **the mean of the halves' gradients is the gradient of the whole batch.** DDP rests on this
# identity.
#
# Each image below shows the gradient for the 784 weights that lead from the pixels to one hidden unit, chosen so
# that all eight digits show. The gradient of such a weight is the pixel's value times a number that is the same
# for all pixels, so the gradient of one sample looks like the sample: bright where the number is positive, dark
# where it is negative. Solid frames are the first half, dashed ones the second.

# %% [markdown] id="why" lang="zh" sync="218b0e07:0909874b"
# ## 为什么部分能拼成整体
#
# 更新要用整个 batch 的梯度，而每个 rank 只知道自己那一份的。8 个样本组成一个 batch，它的损失是各个样本损失的
# 平均，分成两半来写：
#
# $$\frac{l_0+l_1+\cdots+l_7}{8} \;=\; \frac12\left(\frac{l_0+l_1+l_2+l_3}{4}+\frac{l_4+l_5+l_6+l_7}{4}\right)$$
#
# 和的梯度等于梯度的和，所以把各个损失换成它们的梯度 g0 … g7，等式照样成立：
# **两半的梯度求平均，就是整个 batch 的梯度**。DDP 就建立在这个等式上。
#
# 从 784 个像素到同一个隐藏单元，有 784 个权重，下面每幅图画的就是它们的梯度；选这个单元，是因为八个数字
# 都看得见。每个权重的梯度，等于像素值乘以一个对所有像素都相同的数，所以一个样本的梯度，看上去就像这个样本：
# 这个数为正就亮，为负就暗。实线框是前一半，虚线框是后一半。

# %% id="halves"
images, labels = one_process.few_digits(8)
each = [one_process.gradient(images[i : i + 1], labels[i : i + 1]) for i in range(8)]
parts = [one_process.gradient(images[:4], labels[:4]), one_process.gradient(images[4:], labels[4:])]
halves = plots.Joined(
    "4 + 4", parts, joined=(parts[0] + parts[1]) / 2, whole=one_process.gradient(images, labels)
)
plots.gradient_of_halves(each, halves, picture=one_process.picture)

# %% [markdown] id="halves-alt" alt="halves" lang="en"
# Above, eight gradients in the shapes of the digits 0 to 7, some bright, some dark. Below, two mixtures of four
# digits each, then their mean and the gradient of the whole batch, which look the same; their difference is an
# even grey.

# %% [markdown] id="halves-alt" alt="halves" lang="zh" sync="577aaff1:140edfc3"
# 上面一排是八个梯度，形状就是数字 0 到 7，有的亮，有的暗。下面一排，先是两幅图，各由四个数字混合而成；
# 接着是它们的平均和整个 batch 的梯度，看不出区别；最后是这两者之差，一片均匀的灰色。

# %% id="halves-claim"
print(f"float64: max|mean of both − whole batch| = {halves.off:.0e} < 1e-12: {halves.off < 1e-12}")
images32 = images.float()
parts32 = [one_process.gradient(images32[:4], labels[:4]), one_process.gradient(images32[4:], labels[4:])]
off32 = (sum(parts32) / 2 - one_process.gradient(images32, labels)).abs().max().item()
print(f"float32: max|mean of both − whole batch| = {off32:.0e} < 1e-6: {off32 < 1e-6}")

# %% [markdown] id="halves-read" lang="en"
# The number under the grey image is the largest difference among all 79,510 weights, drawn or not; beside it
# stands the largest entry of the gradient itself. What is left is rounding, coarser in float32: the two ways add
# the same numbers in another order. So two ranks and one process agree closely, but not bit for bit.

# %% [markdown] id="halves-read" lang="zh" sync="d12aa1ef:30c93535"
# 灰色图下面的数，是全部 79,510 个权重里最大的差，没画出来的也算；它左边的数，是梯度本身最大的一项。
# 剩下的只是舍入（float32 的大一些）：两种算法加的数一样，只是先后不同。
# 所以两个 rank 和一个进程的结果非常接近，但不是逐位相同。

# %% [markdown] id="break" lang="en"
# ## Break it: three ways to lose it
#
# The identity needs three things: equal parts, a mean in each part, and a mean over the parts. Take one away at
# a time; `weighed_by_count` is the cure for the first. `own_and_joined` runs on two ranks. Each computes its
# gradient twice: alone, and with DDP, which hands both ranks the mean of their gradients.

# %% [markdown] id="break" lang="zh" sync="65b1eb39:2ec36ed8"
# ## 弄坏它：三种情况下等式不成立
#
# 这个等式要三个条件：各部分一样大，部分之内求平均，部分之间也求平均。我们每次去掉一个；`weighed_by_count`
# 是第一种情况的改法。`own_and_joined` 在两个 rank 上运行，每个 rank 把梯度算两次：一次自己算；
# 一次用 DDP，两边都拿到两个梯度的平均。

# %% id="break-source"
show_source(
    one_process.own_and_joined,
    one_process.mean_loss,
    one_process.summed_loss,
    one_process.loss_times_ranks,
    one_process.weighed_by_count,
)

# %% id="ways"
ways = [
    ((4, 4), one_process.mean_loss),
    ((4, 1), one_process.mean_loss),
    ((4, 4), one_process.summed_loss),
    ((4, 4), one_process.loss_times_ranks),
    ((4, 1), one_process.weighed_by_count),
]
rows, apart = [], []
for counts, loss in ways:
    ranks = spawn(one_process.own_and_joined, (counts, loss), nprocs=2, backend="gloo")
    own, joined = zip(*ranks, strict=True)
    batch = slice(0, sum(counts))
    whole = one_process.gradient(images[batch], labels[batch])
    name = f"{counts[0]} + {counts[1]}\n{loss.__name__}"
    rows.append(plots.Joined(name, own, joined[0], whole))
    apart.append((joined[0] - joined[1]).abs().max().item())
plots.joined_gradients(rows[1:], picture=one_process.picture)

# %% [markdown] id="ways-alt" alt="ways" lang="en"
# Four rows. 4 + 1 samples: rank 1's lone digit, a 4, shines through after DDP and is what the difference
# shows; its largest entry is almost three times that of the true gradient. Summed loss and loss times ranks:
# after DDP the pattern of the whole batch, but stronger. 4 + 1 samples, weighed by count: the difference is an
# even grey.

# %% [markdown] id="ways-alt" alt="ways" lang="zh" sync="ddaf1390:7c58ed77"
# 一共四行。4 + 1 个样本：rank 1 只有一个数字 4，DDP 之后它格外醒目，差值图里剩下的也正是它；差值最大的一项
# 几乎是真正的梯度最大项的三倍。损失求和、损失乘以 rank 数：DDP 之后的图案和整个 batch 的一样，只是更强。
# 4 + 1 个样本并按样本数加权：差值是一片均匀的灰色。

# %% id="ways-claim"
for row in rows:
    print(
        f"{' '.join(row.name.split()):23}  max|DDP − whole| = {row.off:.1e}   max|whole| = {row.whole.abs().max():.2f}"
    )
print(f"max|rank 0 − rank 1| after DDP = {max(apart):g}, in all {len(apart)}")

# %% [markdown] id="ways-read" lang="en"
# The first printed line, not drawn again, is the identity, now from DDP. The next three raise no error, and both
# ranks agree, on a wrong gradient:
#
# - **Unequal parts, 4 + 1.** Rank 1's lone digit makes up half of the mean instead of a fifth. The difference
#   shows this digit, and its largest entry exceeds that of the gradient itself.
# - **Summed loss.** The sum over 4 samples is 4 times their mean, and so is the result.
# - **Loss times ranks.** The factor turns DDP's mean over the ranks into a sum: twice the right gradient, and on
#   eight ranks eight times.
#
# **Mended**, in the last row: each rank sums over its samples and divides by the number of samples *on all
# ranks*. These shares must be added, so here the factor `get_world_size()` is right: it cancels DDP's division.

# %% [markdown] id="ways-read" lang="zh" sync="9841b318:bd71292b"
# 打印的第一行没有再画，它就是那个等式，这回由 DDP 算出。后面三行都不报错，两个 rank 的结果也一致，
# 只是梯度错了：
#
# - **两部分不一样大**，4 + 1。rank 1 唯一的样本在平均里占了一半，本来只该占五分之一。差值图里的那个
#   数字，就是多算的部分；差值最大的一项，比梯度本身最大的一项还大。
# - **损失求和**。4 个样本的和是平均的 4 倍，结果也就成了正确值的 4 倍。
# - **损失乘以 rank 数**。这一乘，把 DDP 求的平均变回了总和，结果成了正确值的两倍；八个 rank 就是八倍。
#
# **改正**见图的最后一行：每个 rank 把自己样本的损失加起来，除以*所有 rank 的*样本总数。这样的各份本该相加，
# 所以这里该乘以 `get_world_size()`，抵消 DDP 的那次除法。

# %% [markdown] id="hidden" lang="en"
# In training, `DistributedSampler` keeps the parts equal by repeating samples (chapter 04). Yet parts may only
# look equal. `cross_entropy` skips samples with the label −100, which often marks the padding
# at the end of short texts, and takes the mean over the others. Here both halves have 4 samples, and in the
# second only one has a label:

# %% [markdown] id="hidden" lang="zh" sync="eba965a3:0e632651"
# 训练时，`DistributedSampler` 会重复几个样本，让各部分一样大（第 04 章）。
# 可是，看上去一样大，也未必真的一样大。`cross_entropy` 会跳过标签为 −100 的样本，只对其余的求平均；
# 这个标签常用来标记短文本末尾补上的内容。下面两半都是 4 个样本，后一半却只有一个带标签：

# %% id="hidden-claim"
masked = labels.clone()
masked[5:] = -100
parts = [one_process.gradient(images[:4], masked[:4]), one_process.gradient(images[4:], masked[4:])]
off = (sum(parts) / 2 - one_process.gradient(images, masked)).abs().max().item()
print(f"4 + 4, three labels left out: max|mean of both − whole batch| = {off:.1e}")

# %% [markdown] id="adam" lang="en"
# The same error as for 4 + 1. (BatchNorm, which looks at all samples of a batch at once, breaks the identity in
# yet another way: chapter 08.)
#
# Would you notice such a mistake in training? When the gradient is 4 times too large, how many times as far does
# one update move the weights?

# %% [markdown] id="adam" lang="zh" sync="2d08d410:96702666"
# 误差和 4 + 1 时一样大。批归一化（BatchNorm）会同时看一个 batch 的所有样本，等式以另一种方式失效，见第 08 章。
#
# 这样的错误，训练时看得出来吗？如果梯度是正确值的 4 倍，一次更新会让权重走几倍远？

# %% id="adam-claim"
for kind in (torch.optim.SGD, torch.optim.Adam):
    ratio = one_process.size_of_update(kind, factor=4) / one_process.size_of_update(kind, factor=1)
    print(f"{kind.__name__:4}  |Δw(4g)| / |Δw(g)| = {ratio:.2f}")

# %% [markdown] id="adam-read" lang="en"
# SGD, plain gradient descent, goes four times as far, and you may notice. Adam goes as far as before: it
# divides each entry of the gradient by a running estimate of its size, so a constant factor cancels. With Adam a
# summed loss goes unnoticed, until you clip gradients or change the optimizer.

# %% [markdown] id="adam-read" lang="zh" sync="ebd39fba:bb589a5c"
# SGD（普通的梯度下降）走了四倍远，也许还能察觉。Adam 却和原来走得一样远：它把梯度的每一项除以这一项大小的
# 滑动估计，固定的倍数就约掉了。所以用 Adam 时看不出损失求了和，等到裁剪梯度或换一种优化器，错误才会冒出来。

# %% [markdown] id="your-turn" lang="en"
# ## Your turn
#
# **1.** For each part of a batch you get the gradient of its mean loss and its number of samples. Return the
# gradient of the whole batch's mean loss.

# %% [markdown] id="your-turn" lang="zh" sync="0469c04b:6ea59299"
# ## 动手试试
#
# **1.** 一个 batch 分成几部分，已知每一部分平均损失的梯度和样本数，怎样得到整个 batch 平均损失的梯度？
# 请补完下面的函数。


# %% id="exercise-join"
def join(grads, counts):
    """The whole batch's gradient, for example from two gradients and the counts [4, 1]."""
    ...


check("one_process-1", join)

# %% [markdown] id="your-turn-2" lang="en"
# **2.** You know how long each phase takes on one process. How long does the step take when several ranks divide
# the batch? Leave out communication, and the fixed costs of the work per sample.
#
# `hint("one_process-1")` gives a hint, `solution("one_process-1")` the answer; the same with `-2`.

# %% [markdown] id="your-turn-2" lang="zh" sync="b8a05cc5:c7c6beef"
# **2.** 已知单进程时每个阶段要多久。几个 rank 分担这个 batch，一步要多久？通信不算，按样本算的那几个阶段的
# 固定开销也不算。
#
# 需要提示就运行 `hint("one_process-1")`，想看答案就运行 `solution("one_process-1")`；第 2 题把 `-1` 换成 `-2`。


# %% id="exercise-time"
def step_time(data, forward, backward, update, ranks):
    """The time of one step on `ranks` ranks, in the unit of the four times."""
    ...


check("one_process-2", step_time)

# %% [markdown] id="next" lang="en"
# ## Next
#
# Now you know what two processes would share. [Chapter 02](02_processes.ipynb) starts them, and asks what
# each of them has that the other has not. [Chapter 05](05_ddp_from_scratch.ipynb) builds DDP from the
# identity of this chapter; chapter 16 comes back to the times.
#
# Sources: [the DDP design note](https://docs.pytorch.org/docs/stable/notes/ddp.html) ·
# [Goyal and others, 2017](https://arxiv.org/abs/1706.02677), whose pitfalls include the loss that is divided
# by the wrong number ·
# [`cross_entropy`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.cross_entropy.html)

# %% [markdown] id="next" lang="zh" sync="a65eddac:0fa436ff"
# ## 接下来
#
# 现在我们知道了两个进程要分担什么。[第 02 章](02_processes.ipynb)启动它们，看看每个进程有哪些东西是另一个没有的。
# [第 05 章](05_ddp_from_scratch.ipynb)从本章的等式出发，自己写出 DDP；第 16 章再回到时间上来。
#
# 参考资料：[DDP 设计说明](https://docs.pytorch.org/docs/stable/notes/ddp.html) ·
# [Goyal 等人 2017 年的论文](https://arxiv.org/abs/1706.02677)，其中列举的陷阱就有“损失除错了数” ·
# [`cross_entropy`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.cross_entropy.html)
