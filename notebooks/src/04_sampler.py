# %% [markdown] id="title" lang="en"
# # 04 · Samplers: which rank sees which sample?
#
# Several ranks share one data set, and each trains on a part of it. Who says which part? After this chapter you can:
#
# - say which samples each rank gets in each epoch, and notice when it gets the wrong ones;
# - compute a test accuracy that is the same number on any number of ranks;
# - share out a stream, whose samples have no numbers.

# %% [markdown] id="title" lang="zh" sync="9b411ac7:2bd66f66"
# # 04 · 采样器：哪个 rank 看到哪个样本？
#
# 几个进程共用一个数据集，训练时要把样本分给各个 rank（进程在组内的编号，也用来称呼这个进程）。
# 哪个样本归谁，由谁说了算？读完这一章，我们就能：
#
# - 说出每个 rank 在每一轮分到哪些样本，分错了也能看出来；
# - 算出一个与 rank 个数无关的测试准确率；
# - 把没有编号的数据流也分给各个 rank。

# %% [markdown] id="words" lang="en"
# In a **data set** every sample has a number: `dataset[3]` is sample 3. A **sampler** says which numbers come next,
# and the `DataLoader` puts those samples together into a **batch**. `DistributedSampler` gives each rank numbers of
# its own. An **epoch** is one pass through the samples; to **shuffle** is to put them into a random order.

# %% [markdown] id="words" lang="zh" sync="751872fa:7227a167"
# 数据集按编号取样本：`dataset[3]` 就是 3 号样本。**采样器**（sampler）决定接下来取哪些编号，`DataLoader`
# 照着去取，再拼成一个 batch。`DistributedSampler` 是给多个 rank 用的采样器，给每个 rank 各发一份编号。
# 把全部样本过一遍叫一**轮**（epoch），把样本排成随机的顺序叫**打乱**（shuffle）。

# %% id="setup"
from collections import Counter

from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from ddp_src import check, data, hint, plots, show_source, shows, solution, spawn, warm_up
from ddp_src.lessons import sampler

warm_up()

# %% [markdown] id="predict" lang="en"
# ## Predict first
#
# Two ranks train on 4,000 samples for ten epochs. The sampler shuffles, but nobody calls its method
# `set_epoch`. How many *different* samples has rank 0 seen at the end?
#
# - (a) all 4,000
# - (b) about 3,996
# - (c) 2,000
#
# Write your letter down before you read on.

# %% [markdown] id="predict" lang="zh" sync="e687e1f7:9e6f8f22"
# ## 先猜一猜
#
# 两个 rank 用 4000 个样本训练十轮。采样器会打乱顺序，但没有人调用它的 `set_epoch` 方法。十轮下来，
# rank 0 一共见过多少个*不同的*样本？
#
# - (a) 全部 4000 个
# - (b) 约 3996 个
# - (c) 2000 个
#
# 先写下你的答案，再往下看。

# %% [markdown] id="run" lang="en"
# ## Run it
#
# This is an ordinary DDP program with one addition: every sample brings its number along, so that each rank can
# note which ones it trained on. You run it twice, without `set_epoch` and with it.

# %% [markdown] id="run" lang="zh" sync="69bc9eca:ec0e3693"
# ## 跑起来
#
# 下面是一个普通的 DDP 程序，只多了一样东西：每个样本都带着自己的编号，好让每个 rank 记下自己用过哪些样本。
# 我们让它跑两遍，一遍不调用 `set_epoch`，一遍调用。

# %% id="source"
show_source(sampler.train)

# %% id="two-ranks"
ways = {"without set_epoch": False, "with set_epoch": True}
runs = {way: spawn(sampler.train, (4000, called), nprocs=2) for way, called in ways.items()}
for way, ranks in runs.items():
    first, second = (len(rank.different) for rank in ranks)
    print(f"{way}: rank 0 saw {first:,} different samples, rank 1 saw {second:,}")

# %% [markdown] id="see" lang="en"
# ## See it
#
# 4,000 samples are too many for a picture: here are 20, on three ranks. A row is an epoch; the number in a cell is
# the rank that saw the sample. A black frame marks a sample seen twice; the reason comes below.

# %% [markdown] id="see" lang="zh" sync="4350b2c8:18fd08d2"
# ## 看结果
#
# 4000 个样本画不下，我们换成 20 个样本、三个 rank。一行是一轮，格子里的数字是看到这个样本的 rank。
# 黑框里的样本被看了两次，原因后面会讲。

# %% id="grid"
few = {way: spawn(sampler.train, (20, called), nprocs=3) for way, called in ways.items()}
plots.shares({way: [rank.epochs for rank in ranks] for way, ranks in few.items()}, samples=20)

# %% [markdown] id="grid-alt" alt="grid" lang="en"
# Without set_epoch all ten rows are the same: no sample ever changes its rank, and sample 4 is seen twice in every
# epoch, by ranks 0 and 2. With set_epoch every row differs from the one above: samples move from rank to rank, and
# another one is seen twice.

# %% [markdown] id="grid-alt" alt="grid" lang="zh" sync="7eaa02e0:b3d2e5ff"
# 不调用 set_epoch，十行完全一样：4 号样本每一轮都被 rank 0 和 rank 2 各看一次，其余样本永远归同一个 rank。
# 调用 set_epoch，每一行都和上一行不同：样本在各个 rank 之间换来换去，被看两次的样本也在换。

# %% id="orders"
for way, ranks in few.items():
    epochs = ranks[0].epochs
    print(f"{way}: rank 0, epoch 0 {epochs[0]}, epoch 1 {epochs[1]}")

# %% [markdown] id="read" lang="en"
# **The answer is (c).** Without `set_epoch` there is one order for all ten epochs. Of the 4,000 samples rank 0
# saw the same half ten times, and never the other half.
#
# Does it show in the loss, or in the accuracy on the 1,000 test digits?

# %% [markdown] id="read" lang="zh" sync="c7f4c92d:daf141d8"
# **答案是 (c)**。不调用 `set_epoch`，十轮用的是同一个顺序：rank 0 把同一半样本看了十遍，另一半一眼也没看过。
#
# 那么，从损失上看得出来吗？从 1000 个测试数字的准确率上呢？

# %% id="harmless"
for way, ranks in runs.items():
    loss, p = sum(rank.last_loss for rank in ranks) / 2, ranks[0].accuracy
    print(f"{way}: loss in epoch 9 = {loss:.2f}, accuracy = {p:.1%} ± {(p * (1 - p) / 1000) ** 0.5:.1%}")
for way, ranks in runs.items():
    print(f"{way}: different batches of both ranks together = {len(sampler.joined_batches(ranks))}")

# %% [markdown] id="harmless-read" lang="en"
# No. Neither loss looks suspicious, and the accuracies differ no more than chance allows: ± is the standard error,
# the uncertainty that 1,000 digits leave. The model did see all samples in each epoch: rank 1 has what rank 0
# lacks, and their gradients are averaged. What it missed is variety: the same 16 joined batches came ten times. So
# this mistake goes unnoticed for long. Look at the sample numbers, not at the curves.

# %% [markdown] id="harmless-read" lang="zh" sync="aebb16e2:343a0f62"
# 都看不出来。两个损失，单看哪一个都不可疑。± 后面是标准误差（standard error）：只测 1000 个数字，
# 准确率本来就有这么大的误差，两次之差完全可能是偶然。况且模型每一轮都见到了全部样本：
# rank 0 缺的那一半在 rank 1 手里，而两边的梯度会求平均。它缺的是变化：同样的 16 个 batch 来了十遍。
#
# 这个错误因此能潜伏很久。要发现它，别盯着曲线，去看样本的编号。

# %% [markdown] id="why" lang="en"
# ## Why
#
# The ranks never talk about samples. Each draws the same random order by itself, and takes its share as cards are
# dealt out: with three ranks, every third number. Tell a sampler `num_replicas`, which is the world size, and
# `rank`, and it does so without starting a process:

# %% [markdown] id="why" lang="zh" sync="e4c2a483:a1837d35"
# ## 为什么
#
# 分样本时，各个 rank 之间一句话也不说。每个 rank 自己抽出同一个随机顺序，再像轮流发牌那样，只取属于自己的：
# 有三个 rank，就每三个取一个。采样器只要知道 `num_replicas`（也就是 world size，进程总数）和 `rank`，
# 不启动任何进程也能算出来：

# %% id="deal"
dealt = [list(DistributedSampler(range(10), num_replicas=3, rank=rank)) for rank in range(3)]
plots.dealing(dealt, samples=10)

# %% [markdown] id="deal-alt" alt="deal" lang="en"
# Ten samples in the order 4, 1, 7, 5, 3, 9, 0, 8, 6, 2. The first two, 4 and 1, are repeated at the end, which
# makes twelve. They are dealt out in turn: rank 0 gets 4, 5, 0, 2; rank 1 gets 1, 3, 8, 4; rank 2 gets 7, 9,
# 6, 1. Samples 4 and 1 are seen twice.

# %% [markdown] id="deal-alt" alt="deal" lang="zh" sync="5bea9b9d:29199cdc"
# 十个样本的顺序是 4、1、7、5、3、9、0、8、6、2，开头的 4 和 1 在末尾再来一次，凑成十二个。轮流发下去：
# rank 0 得到 4、5、0、2，rank 1 得到 1、3、8、4，rank 2 得到 7、9、6、1。样本 4 和 1 被看到两次。

# %% [markdown] id="seed-epoch" lang="en"
# 10 does not divide by 3, so the first samples come again: **padding**. It gives every rank equally many; a rank
# with a batch more would wait for the others in vain (chapter 09).
#
# The order is drawn by a random number generator whose seed is `seed + epoch`: equal on all ranks, new in each
# epoch. But the sampler does not count epochs: until `set_epoch` tells it, its epoch stays 0.

# %% [markdown] id="seed-epoch" lang="zh" sync="84a2134f:110f5bf4"
# 10 不能被 3 整除，所以开头的样本再来一次，这叫**补齐**（padding）。补齐之后，每个 rank 的样本一样多；
# 不然，多一个 batch 的 rank 会白白等别人（见第 09 章）。
#
# 这个顺序由随机数生成器抽出，种子是 `seed + epoch`：各个 rank 抽到的因此相同，每一轮抽到的又不同。
# 可采样器自己不数轮数，要靠 `set_epoch` 告诉它；没人告诉，它就一直停在第 0 轮。


# %% id="seeds"
def share(rank, *, seed=0, epoch=0):
    dealer = DistributedSampler(range(20), num_replicas=3, rank=rank, seed=seed)
    dealer.set_epoch(epoch)
    return list(dealer)


print("seed 0: epoch 1 = epoch 0:", share(0, epoch=1) == share(0, epoch=0))
print("seed 1, epoch 0 = seed 0, epoch 1:", share(0, seed=1) == share(0, epoch=1))
seen = {number for rank in range(3) for number in share(rank, seed=rank)}
print("seed = rank: on no rank:", sorted(set(range(20)) - seen))

# %% [markdown] id="seeds-read" lang="en"
# Two things follow. Only the sum counts: seed 1 in epoch 0 is seed 0 in epoch 1, so runs with seeds 0 and 1 meet
# almost the same orders.
#
# And the sampler's seed must be the same on all ranks. With the rank in it, each rank deals from a deck of its own,
# and some samples reach nobody. Seeds that *should* differ by rank are those of dropout and of random changes to
# the images (chapter 08).
#
# - If you chose (a): you thought that a sampler shuffles anew in each epoch, as `DataLoader(shuffle=True)` does,
#   so that ten epochs are enough to see all samples.
# - If you chose (b): that is what `set_epoch` brings. A sample misses rank 0 in all ten epochs with a chance of
#   1 / 2¹⁰: about four of 4,000 do. In the first output five missed rank 0 and two missed rank 1.

# %% [markdown] id="seeds-read" lang="zh" sync="2bbfea21:9b0fb16e"
# 由此得出两点。第一，算数的只是这个和：种子 1 的第 0 轮，就是种子 0 的第 1 轮。所以用种子 0 和 1 各跑一次，
# 遇到的顺序几乎相同。
#
# 第二，采样器的种子在所有 rank 上必须一样：把 rank 加进种子，就成了各人发各人的牌，有的样本谁也没分到。
# 应当因 rank 而异的，是 dropout 和图像随机变换的种子（见第 08 章）。
#
# - 选 (a)，多半是以为采样器和 `DataLoader(shuffle=True)` 一样每轮重新打乱，十轮足够把样本看全。
# - 选 (b)，那要调用了 `set_epoch` 才对：一个样本连续十轮都没轮到 rank 0，概率是 1 / 2¹⁰，
#   4000 个样本里约有四个。第一次输出里，rank 0 漏了五个，rank 1 漏了两个。

# %% [markdown] id="break" lang="en"
# ## Break it: four more mistakes
#
# **First**, an old script says `shuffle=True`, and you add a sampler:

# %% [markdown] id="break" lang="zh" sync="8e197937:576e7283"
# ## 弄坏它：另外四个错误
#
# **第一个**，旧脚本里写着 `shuffle=True`，我们又加上一个采样器：

# %% id="shuffle"
numbers = range(4000)
half = DistributedSampler(numbers, num_replicas=2, rank=0)
with shows(ValueError):
    DataLoader(numbers, batch_size=128, shuffle=True, sampler=half)

# %% [markdown] id="shuffle-why" lang="en"
# The sampler decides the order, so the loader may not: delete `shuffle=True`. **Second**: what if you delete the
# sampler instead?

# %% [markdown] id="shuffle-why" lang="zh" sync="5e3db936:b2a39d6f"
# 顺序由采样器决定，`DataLoader` 就不能再管。该删掉的是 `shuffle=True`。**第二个**：如果删掉的是采样器呢？

# %% id="no-sampler"
everything = DataLoader(numbers, batch_size=128, shuffle=True)
own_half = DataLoader(numbers, batch_size=128, sampler=half)
print("one process, or each of 2 ranks without a sampler:", len(everything), "steps per epoch")
print("each of 2 ranks with a sampler:", len(own_half), "steps per epoch")
print("samples per step on both ranks together:", 2 * own_half.batch_size)

# %% [markdown] id="no-sampler-why" lang="en"
# Without a sampler each rank walks through all 4,000 samples. Two ranks do twice the work, in as many steps as one
# process: nothing gets faster, and nothing tells you. With the sampler the steps halve.
#
# For `DataLoader`, `batch_size` is the **batch size per rank**. One step takes 128 from each of two ranks: the
# **global batch size** is 256. Training programs differ in which of the two their option means; look it up before
# you compare runs. Chapter 07 shows what a larger global batch does to the training.

# %% [markdown] id="no-sampler-why" lang="zh" sync="b0ef7dc4:62574873"
# 没有采样器，每个 rank 都要走完全部 4000 个样本。两个 rank 干了两倍的活，一轮的步数却和单进程一样：
# 一点没变快，也没有任何提示。有了采样器，步数才减半。
#
# `DataLoader` 的 `batch_size` 是**每个 rank 的批量大小**。一步里两个 rank 各取 128 个，**全局批量大小**就是 256。
# 各家训练程序的选项，有的指前者，有的指后者，比较之前先查清楚。全局批量变大对训练有什么影响，见第 07 章。

# %% [markdown] id="padded-test" lang="en"
# **Third**, a `DistributedSampler` in the test. Ten samples go to three ranks, without shuffling. Suppose the model
# is wrong about samples 0 and 9 alone. The sampler's option `drop_last=True` leaves out samples instead of
# repeating some:

# %% [markdown] id="padded-test" lang="zh" sync="843197f8:82ce85a7"
# **第三个**，测试时也用 `DistributedSampler`。十个样本，三个 rank，不打乱。假设模型只在 0 号和 9 号样本上答错。
# 采样器的选项 `drop_last=True` 不补齐，而是丢掉多出来的样本：

# %% id="ten-on-three"
wrong = {0, 9}
for name, drop_last in {"padding": False, "drop_last": True}.items():
    tests = [DistributedSampler(range(10), 3, rank, shuffle=False, drop_last=drop_last) for rank in range(3)]
    tested = [number for test in tests for number in test]
    right = sum(number not in wrong for number in tested)
    print(f"{name:9}  {[list(test) for test in tests]}  {right}/{len(tested)} = {right / len(tested):.3f}")
print(f"each once  8/10 = {8 / 10:.3f}")

# %% [markdown] id="ten-on-three-read" lang="en"
# Padding makes 12 of 10: samples 0 and 1 are tested twice, and 0 is a wrong one, so the accuracy comes out too low.
# `drop_last` makes 9: sample 9, a wrong one, is never tested, and the accuracy comes out too high. Both change with
# the number of ranks.
#
# In training this does little harm: with `set_epoch`, other samples are repeated or left out in each epoch. In a
# test it gives a wrong number, and no error: in [RF-DETR](https://github.com/roboflow/rf-detr/issues/1507), for
# one, 21 validation images on two GPUs became 22.
#
# The cure needs no sampler. With three ranks, each tests every third sample, even if some get one fewer. Each
# counts two things, right answers and samples. Both are added up over the ranks, and divided once.

# %% [markdown] id="ten-on-three-read" lang="zh" sync="bdff5f7a:0224c9bd"
# 补齐让 10 个变成 12 个：0 号和 1 号测了两遍，而 0 号正是答错的，准确率就偏低。`drop_last` 只测 9 个：
# 漏掉的 9 号也是答错的，准确率就偏高。两种结果都会随 rank 的个数变化。
#
# 训练时影响不大：有 `set_epoch`，每轮重复或丢掉的样本都在换。测试时却会得到一个错的数，而且不报错。比如目标检测库
# [RF-DETR](https://github.com/roboflow/rf-detr/issues/1507) 里，21 张验证图片在两块 GPU 上变成了 22 张。
#
# 解决办法用不着采样器：有三个 rank，就各自每三个样本测一个，谁少测一个也没关系。每个 rank 数两样东西：
# 对了几个，测了几个。两个数分别在各个 rank 之间求和，最后只除一次。

# %% id="exact-source"
show_source(sampler.exact_accuracy)

# %% [markdown] id="exact" lang="en"
# Here `exact_accuracy` tests the model trained above on the 1,000 test digits, beside two common mistakes: `padded`
# shares the digits out with a `DistributedSampler`; `mean of ranks` repeats none, but averages the ranks' own
# accuracies.

# %% [markdown] id="exact" lang="zh" sync="cb8cf571:f32ba6bd"
# 用 `exact_accuracy` 在 1000 个测试数字上测一测刚才训练好的模型，旁边放上两种常见的错法：`padded` 用
# `DistributedSampler` 来分；`mean of ranks` 没有重复，却不求和，而是把各个 rank 自己的准确率拿来平均。

# %% id="exact-test"
weights = runs["with set_epoch"][0].weights
# gloo: all three on the CPU, since a GPU rounds differently and might take another digit for right
tests = {n: spawn(sampler.test, (weights,), nprocs=n, backend="gloo")[0] for n in (1, 2, 3)}
print(f"ranks  {'padded':33}{'mean of ranks':21}exact")
for n, test in tests.items():
    padded = f"{test.padded!r} ({test.slots:,} tests)"
    print(f"{n:5}  {padded:33}{test.mean_of_ranks!r:21}{test.exact!r}")

# %% [markdown] id="exact-read" lang="en"
# The exact accuracy is the same on 1, 2 and 3 ranks, to the last digit, since whole numbers are added. The other
# two change on 3 ranks: the sampler makes 1,002 tests of 1,000, and the mean gives the 334 samples of rank 0 the
# same weight as the 333 of rank 1.
#
# The project's training program does both right. Its `test_loader` repeats nothing (`_load_whole_batches` makes the
# `DataLoader`). Its `train_loader` holds a `DistributedSampler`, and `batches`, which walks through that loader,
# demands the epoch, so nobody can forget `set_epoch`:

# %% [markdown] id="exact-read" lang="zh" sync="2c4229e9:f69fbe55"
# `exact` 一列加的都是整数，所以在 1、2、3 个 rank 上完全相同，直到最后一位。另外两列到 3 个 rank 就变了：
# 采样器让 1000 个样本测了 1002 次；求平均则把 rank 0 的 334 个样本和 rank 1 的 333 个看得一样重。
#
# 本项目的训练程序两件事都做对了：测试用的 `test_loader` 不重复任何样本（`_load_whole_batches` 负责建 `DataLoader`）；
# 训练用的 `train_loader` 里装着一个 `DistributedSampler`，取数据要经过 `batches`，而它非要知道 `epoch` 不可，
# 这样谁也不会忘记 `set_epoch`：

# %% id="training-program"
show_source(data.test_loader)
with shows(TypeError):
    data.batches(data.train_loader(numbers, batch_size=128))

# %% [markdown] id="stream" lang="en"
# **Fourth**, a stream. The samples of an `IterableDataset` have no numbers; they come one after another, like lines
# read from a file. A sampler has nothing to choose from:

# %% [markdown] id="stream" lang="zh" sync="9eb6f96b:fc9b11c0"
# **第四个**，数据流。`IterableDataset` 的样本没有编号，只会一个接一个地来，像一行一行地读文件。
# 采样器没有编号可挑：

# %% id="stream-sampler"
with shows(ValueError):
    DataLoader(sampler.Stream(10), sampler=DistributedSampler(range(10), num_replicas=2, rank=0))

# %% [markdown] id="stream-source" lang="en"
# So no sampler. But then every rank reads the stream from its start. So does every **worker** that a rank's
# `DataLoader` may have: a process that fetches batches in the background, with its own copy of the stream.
# `SharedStream` mends that; read it closely:

# %% [markdown] id="stream-source" lang="zh" sync="8e1f81de:a45a620d"
# 那就不用采样器。可这样一来，每个 rank 都会从头读这个流。`DataLoader` 还可以带几个**加载进程**（worker），
# 在后台替 rank 取数据。每个加载进程手里又有一份流的副本，也从头读起。改好的是 `SharedStream`，请细读：

# %% id="stream-classes"
show_source(sampler.Stream, sampler.SharedStream, sampler.read_stream)

# %% id="stream-read"
for name, shared in {"Stream": False, "SharedStream": True}.items():
    received = spawn(sampler.read_stream, (shared,), nprocs=2, backend="gloo")
    for rank, batches in enumerate(received):
        print(f"{name}: rank {rank} got {batches}")
    came = Counter(number for batches in received for batch in batches for number in batch)
    print(f"{name}: {len(came)} samples, times each came:", *set(came.values()))

# %% [markdown] id="stream-why" lang="en"
# Two ranks with two workers each: every sample comes four times. A rank reads 20 samples where 5 are its share, and
# nothing tells you. `SharedStream` deals twice, each time with `islice`, which takes every n-th item: every second
# sample goes to this rank, and these are dealt to its workers. `get_worker_info()` tells a worker its number. The
# rank is handed in when the stream is made: on macOS and Windows a worker
# [starts as a fresh process](https://docs.pytorch.org/docs/stable/data.html#platform-specific-behaviors), which does
# not know for which rank it works (chapter 02).
#
# Here each rank has five of ten samples; of eleven, one rank would have six. Nothing pads a stream: chapter 09
# shows how ranks end together.

# %% [markdown] id="stream-why" lang="zh" sync="bea42cb7:f21b918d"
# 两个 rank，每个带两个加载进程，于是每个样本来了四次：本该读 5 个的 rank 读了 20 个，却没有任何提示。
# `SharedStream` 用两次 `islice` 来分：先是每个 rank 隔一个取一个，再由它的加载进程把取到的分掉。
# 加载进程用 `get_worker_info()` 得知自己的编号。rank 却要在创建时传进去：在 macOS 和 Windows 上，加载进程是
# [另起的全新 Python 进程](https://docs.pytorch.org/docs/stable/data.html#platform-specific-behaviors)，
# 不知道自己在替哪个 rank 干活（见第 02 章）。
#
# 这里两个 rank 各有五个样本；换成十一个样本，就会有一个 rank 多一个。数据流没有补齐这回事，
# 各个 rank 怎样一起结束，见第 09 章。

# %% [markdown] id="your-turn" lang="en"
# ## Your turn
#
# **1.** Write the sampler yourself. `shard` gives the sample numbers of one `rank`, out of `n` samples; `world` is
# the world size. Together the ranks see every sample; each gets equally many, and as few as possible come twice.
# Another `epoch` or `seed` gives another random order.
#
# `hint("sampler-1")` gives a hint, `solution("sampler-1")` the answer; `"sampler-2"` does so for the second one.

# %% [markdown] id="your-turn" lang="zh" sync="9ca25b3e:ea41f6bf"
# ## 动手试试
#
# **1.** 自己写一个采样器：`shard` 给出 `rank` 在 `n` 个样本里分到的编号，`world` 是 rank 的总数。所有 rank
# 合起来要看到每一个样本，各个 rank 分到的一样多，重复的尽量少；`epoch` 或 `seed` 一变，随机顺序也跟着变。
#
# 需要提示就运行 `hint("sampler-1")`，想看答案就运行 `solution("sampler-1")`；第 2 题换成 `"sampler-2"`。

# %% id="exercise-shard"
import torch


def shard(n, rank, world, epoch, seed):
    """The numbers of this rank's samples in this epoch, for example [4, 5, 0, 2] out of n = 10."""
    ...


check("sampler-1", shard)

# %% [markdown] id="exercise-2" lang="en"
# **2.** Now the loss: compute the exact mean loss over `n` samples. `mean_loss([3, 1, 4])` tests the model on these
# samples and gives the mean of their losses, as `cross_entropy` does. Every rank calls your function. Test each
# sample on one rank, once, and return the same number on all ranks. `dist.get_rank()` and `dist.get_world_size()`
# say where you are.

# %% [markdown] id="exercise-2" lang="zh" sync="ce592fbb:4e38542a"
# **2.** 这回算损失：求 `n` 个样本上准确的平均损失。`mean_loss([3, 1, 4])` 用模型测这几个样本，给出它们损失的
# 平均，和 `cross_entropy` 一样。每个 rank 都会运行你的函数：每个样本只由一个 rank 测一次，所有 rank 返回同一个数。
# 在函数里，用 `dist.get_rank()` 和 `dist.get_world_size()` 查自己是几号、一共有几个。

# %% id="exercise-loss"
import torch.distributed as dist


def exact_loss(mean_loss, n):
    """The mean loss over samples 0 … n - 1, on however many ranks there are."""
    ...


check("sampler-2", exact_loss)

# %% [markdown] id="next" lang="en"
# ## Next
#
# - [Chapter 05](05_ddp_from_scratch.ipynb) writes DDP itself: how the ranks come to the same gradient, now
#   that each has its own samples.
# - Chapter 09 shows what happens when one rank has a batch more than another.
# - Chapter 12 stops in the middle of an epoch and goes on with the samples that are left.
#
# Sources:
# [`DistributedSampler`](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)
# · [`IterableDataset`](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset) ·
# [padding in a test, as reported to PyTorch](https://github.com/pytorch/pytorch/issues/25162)

# %% [markdown] id="next" lang="zh" sync="3d18a54a:a932393b"
# ## 接下来
#
# - 样本分好了，各个 rank 怎样得到同一个梯度？[第 05 章](05_ddp_from_scratch.ipynb)，我们自己动手写 DDP。
# - 一个 rank 比别人多一个 batch 会怎样？见第 09 章。
# - 训练在一轮中间停下，怎样从剩下的样本接着训练？见第 12 章。
#
# 参考资料：[`DistributedSampler`](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler) ·
# [`IterableDataset`](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset) ·
# [测试时补齐的问题：提给 PyTorch 的一份报告](https://github.com/pytorch/pytorch/issues/25162)
