# %% [markdown] id="title" lang="en"
# # 03 · Collectives: what does each one leave on each rank?
#
# In chapter 02 the ranks found one another. Here they talk: numbers go from rank to rank, and you look at what
# lies where afterwards. After this chapter you can:
#
# - say of each of ten calls what it leaves on each rank, and what it does not promise;
# - write an all-reduce yourself, out of messages between neighbours;
# - say what a message costs, small or large, and why a program hangs when one rank leaves a call out.

# %% [markdown] id="title" lang="zh" sync="6f352810:8a603aa5"
# # 03 · 集合通信：每种操作做完，各个 rank 手里有什么？
#
# 第 02 章里，各个 rank 找到了彼此。这一章它们开始说话：数在 rank 之间传来传去，我们来看传完之后谁手里有什么。
# 读完这一章，我们就能：
#
# - 说清这十种操作各自在每个 rank 上留下什么，又有哪些结果是不作保证的；
# - 只用相邻 rank 之间的收和发，亲手写出一个 all-reduce；
# - 说清一条消息要花多少时间，以及为什么有一个 rank 少调用一次，程序就会卡住。

# %% [markdown] id="words" lang="en"
# Two ranks that send and receive communicate **point-to-point**. A **collective** is a call that all ranks make
# together: each calls the same function, gives what it has, and gets its part of the result. To **reduce** is to
# make one value out of those of all ranks: their sum, unless you ask for another with `op=dist.ReduceOp.MAX` or
# the like.

# %% [markdown] id="words" lang="zh" sync="18204b95:9e86322b"
# 一个 rank 发、另一个 rank 收，叫**点对点通信**（point-to-point）。**集合通信**（collective communication）
# 则是所有 rank 一起做的事：大家调用同一个函数，各自交出手里的数据，各自拿回应得的那份结果。
# **归约**（reduce）就是把各个 rank 的值合成一个：默认是求和，也可以用 `op=dist.ReduceOp.MAX` 之类的参数另外指定。

# %% id="setup"
from statistics import median

import torch
import torch.distributed as dist

from ddp_src import RankFailed, RanksStuck, check, hint, plots, show_source, shows, solution, spawn, warm_up
from ddp_src.lessons import collectives
from ddp_src.message_cost import all_reduce_times, fit_line, ratios
from ddp_src.ring import ring_all_reduce

warm_up()  # gets the ranks' processes ready while you read on

# %% [markdown] id="predict" lang="en"
# ## Predict first
#
# Ranks 0, 1, 2 hold 1, 10, 100. All three call `dist.reduce(x, dst=0)`, which adds the three up on rank 0.
# What do ranks 1 and 2 hold afterwards?
#
# - (a) 10 and 100: theirs, untouched
# - (b) 111 and 111: the sum, as on rank 0
# - (c) something else
#
# Write your letter down before you read on.

# %% [markdown] id="predict" lang="zh" sync="061fa62a:3da9feda"
# ## 先猜一猜
#
# rank 0、1、2 手里各是 1、10、100。三个 rank 都调用 `dist.reduce(x, dst=0)`，它把三个数之和放到 rank 0 上。
# 调用之后，rank 1 和 rank 2 手里是什么？
#
# - (a) 10 和 100：还是自己的数，没变
# - (b) 111 和 111：和 rank 0 一样，都是总和
# - (c) 别的数
#
# 先写下你的答案，再往下看。

# %% [markdown] id="run" lang="en"
# ## Run it
#
# Before each call every rank takes a fresh copy of its own number; after it, `Held` records the numbers before
# and after. `src` is the rank that gives, `dst` the rank that gets; without either, all ranks are alike.
# The powers of ten are on purpose: in a sum of them, **the digits tell whose numbers are in it**.

# %% [markdown] id="run" lang="zh" sync="6aff9741:452c8a0d"
# ## 跑起来
#
# 下面每次调用之前，都先把自己的数复制一份；调用之后，用 `Held` 记下前后的数。`src` 是给数据的 rank，`dst` 是收结果的
# rank；两个都没有的，对所有 rank 一视同仁。各个 rank 的数特意取成 10 的幂：加在一起之后，
# **看一个和的各位数字，就知道里面有谁的数**。

# %% id="source-in-place"
show_source(collectives.in_place)

# %% [markdown] id="launch" lang="en"
# The launch below makes all ten calls of this chapter and brings the records back. The figure shows one of them:
# left of the arrow what ranks r0, r1, r2 held before, right of it what they held after. The backend is Gloo on
# every machine, since another may leave other things behind.

# %% [markdown] id="launch" lang="zh" sync="20aba495:4711b199"
# 下面一次启动就把本章的十种操作都做一遍，并带回记录。图里先只画一种：箭头左边是 r0、r1、r2 三个 rank 原先的数，
# 右边是之后的数。这里一律用 Gloo 后端，有 GPU 也一样，因为换一个后端，留下的东西可能不同。

# %% id="reduce"
ranks = spawn(collectives.every_collective, nprocs=3, backend="gloo")
plots.collectives(ranks, [["reduce"]])

# %% [markdown] id="reduce-alt" alt="reduce" lang="en"
# Before the reduce the ranks hold 1, 10 and 100. After it rank 0 holds 111; rank 1 holds 110, striped in the
# colours of ranks 1 and 2; rank 2 holds 100. The cells of ranks 1 and 2 are hatched: not promised.

# %% [markdown] id="reduce-alt" alt="reduce" lang="zh" sync="6061cfd0:c4239e8f"
# reduce 之前三个 rank 是 1、10、100。之后 rank 0 是 111；rank 1 是 110，格子里有 rank 1 和 rank 2 两种颜色；
# rank 2 是 100。rank 1 和 rank 2 的格子画了斜线：结果不作保证。

# %% [markdown] id="answer" lang="en"
# **The answer is (c):** 110 and 100. Read the digits: 110 = 10 + 100 is the sum of ranks 1 and 2. So Gloo passed
# partial sums along, 100 → 110 → 111, and left them there. The documentation promises the sum on `dst` alone;
# elsewhere you may find anything, and with another backend something else again.
#
# - If you chose (a): you thought that a rank which gives keeps what it gave. Its tensor was the workbench.
# - If you chose (b): you thought of `all_reduce`, which leaves the sum on every rank.

# %% [markdown] id="answer" lang="zh" sync="2cc930d1:4ddeb3b6"
# **答案是 (c)**：110 和 100。看各位数字：110 = 10 + 100，是 rank 1 和 rank 2 的和。可见 Gloo 是一路加过去的，
# 100 → 110 → 111，半路上的和就留在了原地。文档只保证 `dst` 上是总和，别的 rank 上是什么都有可能，
# 换个后端可能又不一样。
#
# - 选 (a)，多半是以为数交出去，自己手里的还在。其实自己的张量被当成了加法的工作台。
# - 选 (b)，多半是想成了 `all_reduce`，它才让每个 rank 都拿到总和。

# %% [markdown] id="see" lang="en"
# ## See it
#
# Five more calls take or give a list with one tensor for each rank:

# %% [markdown] id="see" lang="zh" sync="70b620fd:fe179308"
# ## 看结果
#
# 还有五种操作，交出或拿回的是一个列表，给每个 rank 一个张量：

# %% id="source-from-lists"
show_source(collectives.from_lists)

# %% [markdown] id="see-all" lang="en"
# All ten in one picture, drawn from what really was on each rank. A list stands as a column, its first tensor on
# top; a dash means that the rank gives or gets nothing. All ten run on Gloo, though of older versions you may
# read that some are missing.

# %% [markdown] id="see-all" lang="zh" sync="cba747d6:380d02f7"
# 十种操作画在一起，每个格子都是当时真正在那个 rank 上的数。列表竖着画，第一个张量在最上面；
# 短横线表示这个 rank 不用交，或者什么也不拿。十种都能在 Gloo 上运行；旧资料里可能会说缺了几种，那是从前的版本。

# %% id="all-ten"
plots.collectives(ranks)

# %% [markdown] id="all-ten-alt" alt="all-ten" lang="en"
# Ten panels, ranks as columns, before → after. send/recv and broadcast copy rank 0's 1. reduce leaves 111 on
# rank 0 only, all_reduce on all. scatter deals out rank 0's 1, 2, 3; gather collects 1, 10, 100 on rank 0,
# all_gather on all. reduce_scatter leaves the sums 111, 222, 333, one per rank. all_to_all swaps rows and
# columns. barrier: rank 0 comes first and waits some 80 ms, all ranks leave together when the last has come.

# %% [markdown] id="all-ten-alt" alt="all-ten" lang="zh" sync="5410f23e:54d1ae7b"
# 十个小图，每列一个 rank，左边是之前，右边是之后。send/recv 和 broadcast 复制了 rank 0 的 1。reduce 只在 rank 0 上
# 留下 111，all_reduce 在每个 rank 上都留下。scatter 把 rank 0 的 1、2、3 分出去；gather 把 1、10、100 收到 rank 0，
# all_gather 让每个 rank 都收齐。reduce_scatter 留下 111、222、333，每个 rank 一个。all_to_all 行列互换。
# barrier：rank 0 先到，等了 80 毫秒左右，最后一个到齐后大家一起离开。


# %% id="claim"
def left_by(name):
    return " ".join(str(held[name].after[0]) for held in ranks)


print(
    f"reduce: {left_by('reduce')}   all_reduce: {left_by('all_reduce')}   reduce_scatter: {left_by('reduce_scatter')}"
)

# %% [markdown] id="read" lang="en"
# Read the panels in pairs. A **broadcast** gives one rank's number to all. **Scatter** and **gather** are each
# other's way back. **All-gather** and **all-reduce** are gather and reduce with the result on every rank. A
# **reduce-scatter** adds as all-reduce does, but each rank keeps one piece of the sum: let an all-gather follow,
# and you have an all-reduce. An **all-to-all** swaps rows and columns. A **barrier** moves no data: nobody
# leaves before the last has come.

# %% [markdown] id="read" lang="zh" sync="bceeae2d:5475fc80"
# 一对一对地看。**broadcast**（广播）把一个 rank 的数发给大家。**scatter**（分发）和 **gather**（收集）互为
# 逆操作。**all-gather**（全收集）和 **all-reduce**（全归约）就是收集和归约，只是结果人人都有。
#
# **reduce-scatter**（归约后分发）也求和，但每个 rank 只留一段；后面接一次 all-gather，就成了 all-reduce。
# **all-to-all**（全互换）是行列互换。**屏障**（barrier）不传数据：最后一个没到，谁也走不了。

# %% [markdown] id="names" lang="en"
# Three of them have a twin that takes one tensor in place of the list, so that nothing has to be copied
# together first. Two have new names; much code that you meet has the old ones, which work and warn:
#
# | with a list | with one tensor | its older name |
# |---|---|---|
# | `all_gather(pieces, x)` | `all_gather_single(whole, x)` | `all_gather_into_tensor` |
# | `reduce_scatter(x, pieces)` | `reduce_scatter_single(x, whole)` | `reduce_scatter_tensor` |
# | `all_to_all(pieces, pieces)` | `all_to_all_single(whole, whole)` | the same |

# %% [markdown] id="names" lang="zh" sync="3d38007e:8bb6d13a"
# 其中三种还有一个孪生函数：不用列表，用一整块张量，省去拼接和复制。前两个改过名字；不少代码用的还是旧名，
# 现在还能用，但会有警告：
#
# | 用列表 | 用一整块张量 | 旧名 |
# |---|---|---|
# | `all_gather(pieces, x)` | `all_gather_single(whole, x)` | `all_gather_into_tensor` |
# | `reduce_scatter(x, pieces)` | `reduce_scatter_single(x, whole)` | `reduce_scatter_tensor` |
# | `all_to_all(pieces, pieces)` | `all_to_all_single(whole, whole)` | 没改 |

# %% id="old-names"
print(dist.all_gather_into_tensor.__deprecated__)
print(dist.reduce_scatter_tensor.__deprecated__)

# %% [markdown] id="ring" lang="en"
# ## Why: an all-reduce by hand
#
# The plain way: all ranks send their tensor to rank 0, which adds and sends the sum back. Then rank 0 carries
# N − 1 whole tensors in and N − 1 out, while the others wait. In a **ring** all carry the same: cut the tensor
# into N chunks, and let every rank send one chunk to the next rank in each step.
#
# `isend` starts a message and does not wait for its end; `wait` does. If every rank called `send` first, which
# may wait until the message is taken, nobody would be left to take one.

# %% [markdown] id="ring" lang="zh" sync="bb12a804:855de663"
# ## 为什么：亲手写一个 all-reduce
#
# 最直接的办法：大家都把张量发给 rank 0，由它加好再发回去。这样 rank 0 要收 N − 1 份、发 N − 1 份完整的张量，
# 别人都在等。**环形 all-reduce**（ring all-reduce）让大家一样忙：把张量切成 N 段，每一步，每个 rank
# 只给下一个 rank 发一段。
#
# `isend` 只负责开始发送，不等它结束；要等，就调用 `wait`。如果大家都先调用 `send`，而它可能要等对方收走才返回，
# 那就没有人腾得出手来收了。

# %% id="source-ring"
show_source(ring_all_reduce)

# %% [markdown] id="ring-run" lang="en"
# Four ranks, four chunks of one number each. In the figure a column is a rank, a row is a chunk, and a thick
# frame marks what a step changed. The last frame is `dist.all_reduce` on the same numbers.

# %% [markdown] id="ring-run" lang="zh" sync="c4bab0f6:f986df24"
# 四个 rank，四段，每段一个数。图中一列是一个 rank，一行是一段，粗框是这一步改动的格子。
# 最后一格是 `dist.all_reduce` 对同样的数算出的结果。

# %% id="ring-steps"
rings = spawn(collectives.ring_and_torch, nprocs=4, backend="gloo")
plots.ring([rank.steps for rank in rings], total=[rank.total for rank in rings])

# %% [markdown] id="ring-steps-alt" alt="ring-steps" lang="en"
# Eight frames. In steps 1 to 3 each chunk's sum grows from two ranks' numbers to all four's: after step 3 rank r
# holds 1111 in chunk r and partial sums elsewhere. In steps 4 to 6 the finished chunks travel on, until every
# cell is 1111, as in the last frame, all_reduce.

# %% [markdown] id="ring-steps-alt" alt="ring-steps" lang="zh" sync="72646e5c:847fd874"
# 八个小图。第 1 到 3 步，每一段的和从两个 rank 的数长到四个：第 3 步之后，rank r 的第 r 段是 1111，其余还是部分和。
# 第 4 到 6 步，算好的段继续往下传，直到每个格子都是 1111，和最后一格 all_reduce 一样。

# %% [markdown] id="ring-read" lang="en"
# Follow the top row. Its chunk starts on rank 1 as 10, becomes 110 on rank 2, 1110 on rank 3 and 1111 on rank 0:
# three steps, and rank r holds the sum of chunk r, which is a reduce-scatter. Three more steps hand the sums on,
# which is an all-gather. In 2(N − 1) steps each rank sends 2(N − 1)/N of its tensor: less than twice its
# size, however many ranks there are.

# %% [markdown] id="ring-read" lang="zh" sync="e3f4567d:2c25c92a"
# 看最上面一行。这一段从 rank 1 的 10 出发，到 rank 2 变成 110，到 rank 3 变成 1110，到 rank 0 变成 1111。走完三步，
# rank r 手里就有第 r 段的总和，这是 reduce-scatter。再走三步，把总和传给大家，这是 all-gather。
# 一共 2(N − 1) 步，每个 rank 发出张量的 2(N − 1)/N：不管有多少个 rank，都不到两份。

# %% [markdown] id="bits" lang="en"
# Now 4,096 numbers on each rank, and a strict question: are the sums equal *bit for bit* to those of
# `dist.all_reduce`?

# %% [markdown] id="bits" lang="zh" sync="4c70c53f:0d2e99ec"
# 再来，每个 rank 4096 个数，问得严一点：这些和与 `dist.all_reduce` 的结果*逐位相同*吗？


# %% id="sums"
def compare(kind, sums):
    unequal = (sums.ring != sums.torchs).sum()
    gap = (sums.ring - sums.torchs).abs().max()
    print(
        f"{kind} numbers: ring ≠ all_reduce in {unequal} of {len(sums.ring)} sums, max|difference| = {gap:.1e}"
    )


compare("whole", rings[0].whole)
compare("random", rings[0].random)
same = all(torch.equal(rank.random.ring, rings[0].random.ring) for rank in rings)
print(f"all ranks hold the same bits: {same}")

# %% [markdown] id="bits-why" lang="en"
# Whole numbers: equal. Random float32 numbers: about one sum in five is not. Both are right to within rounding:
# a float32 keeps some seven digits, so each addition rounds, and **another order of additions rounds
# elsewhere**. Take the first sum that differs, and add its four numbers in two orders:

# %% [markdown] id="bits-why" lang="zh" sync="54771a05:cc4b6e3e"
# 整数：完全相同。随机的 float32：大约五个和里就有一个不同。两边都没错，只差舍入：float32 大约只有七位有效数字，
# 每加一次就舍入一次，**相加的次序不同，舍入的地方就不同**。取出第一个不同的和，把它的四个数按两种次序加一遍：

# %% id="two-orders"
sums = rings[0].random
first = (sums.ring != sums.torchs).nonzero()[0].item()
x0, x1, x2, x3 = (rank.random.own[first] for rank in rings)
print(f"((x1 + x2) + x3) + x0 = {((x1 + x2) + x3) + x0:.9f}   ring:       {sums.ring[first]:.9f}")
print(f"((x3 + x2) + x1) + x0 = {((x3 + x2) + x1) + x0:.9f}   all_reduce: {sums.torchs[first]:.9f}")
print(f"ring turned round ≠ all_reduce in {(sums.turned != sums.torchs).sum()} of {len(sums.turned)} sums")

# %% [markdown] id="two-orders-why" lang="en"
# The last line is the proof. Let the ring run the other way round, to the next *lower* rank, and not one of the
# sums differs: Gloo's own all-reduce is this ring, turned round. On two ranks there is only one order, and the
# question does not arise. Do not build on the order: no documentation promises one.
#
# What you may build on, since the documentation of `all_reduce` does promise it: all ranks get the *same* bits.
# Here each sum is made once and then copied. That is why the replicas of chapter 00 stay equal.

# %% [markdown] id="two-orders-why" lang="zh" sync="8b354002:3dc24d2d"
# 最后一行就是证据。让环反过来转，每步发给编号*小*一号的 rank，四千多个和就一个不差：Gloo 自己的 all-reduce
# 正是这样一个环，只是转向相反。只有两个 rank 时次序只有一种，也就没有这个问题。不过别依赖次序，
# 没有哪份文档保证它。
#
# 可以依赖的是另一条，`all_reduce` 的文档写明了：所有 rank 拿到的结果逐位相同。在这里，是因为每个和只算一次，
# 然后复制给大家。第 00 章的副本能始终相等，靠的就是这一点。

# %% [markdown] id="cost" lang="en"
# ## Why: what a message costs
#
# How long does one all-reduce take? Measure from 4 B (one number) to 64 MB, each size twelve times, and take
# medians. Then fit the simplest model: time = α + S/β. Here **latency** α is the price of any message,
# **bandwidth** β the bytes per second, S the size; KB, MB and GB count in powers of 1,024.

# %% [markdown] id="cost" lang="zh" sync="608f65ee:e809457c"
# ## 为什么：一条消息要花多少时间
#
# 一次 all-reduce 要多久？从 4 B（一个数）量到 64 MB，每种大小量十二次，取中位数，再用最简单的模型去拟合：
# 时间 = α + S/β。其中 S 是大小；α 是**时延**（latency），不管消息多小都要付；β 是**带宽**（bandwidth），
# 每秒能传多少字节。KB、MB、GB 都按 1024 进位。

# %% id="source-times"
show_source(all_reduce_times)

# %% id="times"
sizes = [4 * 4**k for k in range(13)]
seconds = [max(times) for times in zip(*spawn(all_reduce_times, (sizes,), nprocs=2), strict=True)]
alpha, beta = fit_line(sizes, seconds)
plots.message_time(sizes, seconds, alpha=alpha, beta=beta)

# %% [markdown] id="times-alt" alt="times" lang="en"
# Time of one all-reduce against size, both axes logarithmic. The circles lie level from 4 B to tens of KB, where
# the fitted line follows α, and rise in proportion to the size above some MB, where it follows S/β.

# %% [markdown] id="times-alt" alt="times" lang="zh" sync="d8f7f0a7:a5f05aa8"
# 一次 all-reduce 的时间随大小的变化，两条轴都是对数。从 4 B 到几十 KB，圆圈几乎是平的，拟合线贴着 α；
# 到几 MB 以上，时间与大小成正比，拟合线贴着 S/β。

# %% id="times-claim"
errors = [abs(ratio - 1) for ratio in ratios(sizes, seconds, alpha, beta)]
print(f"α = {alpha * 1e6:.0f} µs   β = {beta / 2**30:.2g} GB/s   αβ = {alpha * beta / 2**10:.0f} KB")
print(f"fit against measurement: median error {median(errors):.0%}, largest {max(errors):.0%}")
print(f"4 KB ÷ 4 B: {seconds[5] / seconds[0]:.1f} × the time for {sizes[5] // sizes[0]} × the bytes")
print(f"64 MB ÷ 4 MB: {seconds[12] / seconds[10]:.0f} × the time for {sizes[12] // sizes[10]} × the bytes")

# %% [markdown] id="cost-read" lang="en"
# Below αβ you pay for the message, above it for the bytes. From 4 B to 4 KB there are a thousand times the bytes,
# and the time stays of the same order; from 4 MB to 64 MB it grows as the bytes do. So send one large message
# rather than many small ones. DDP gathers gradients into large pieces for this reason, in chapters 05 and 06.

# %% [markdown] id="cost-read" lang="zh" sync="d3cffb2e:3a6cfbe0"
# 比 αβ 小，时间花在“发一条消息”上；比它大，时间才花在传字节上。从 4 B 到 4 KB，字节数是一千倍，时间还在
# 一个量级；从 4 MB 到 64 MB，时间就随着字节数一起涨。所以宁可发一条大的，不要发许多条小的。
# DDP 正因为这样，才把梯度攒成大块再传；第 05、06 章会讲。

# %% [markdown] id="fine-print" lang="en"
# ## Five things worth knowing
#
# First: **nobody needs a barrier before a reduction.** Below, the ranks come 40 ms apart, once to a barrier, once
# straight to an all-reduce: it waits for the last rank by itself, since it needs that rank's numbers.

# %% [markdown] id="fine-print" lang="zh" sync="64b62a56:92f25e9c"
# ## 五件值得知道的事
#
# 第一，**归约之前不需要屏障**。下图里三个 rank 前后相差 40 毫秒，一次走到 `barrier`，一次直接走到 `all_reduce`：
# 缺了最后那个 rank 的数就算不出和，所以 all-reduce 自己就会等它。

# %% id="no-barrier"
plots.collectives(ranks, [["barrier", "all_reduce without barrier"]])

# %% [markdown] id="no-barrier-alt" alt="no-barrier" lang="en"
# Two timelines that look alike: at the barrier and in the all_reduce, rank 0 comes first and waits, rank 1 waits
# half as long, rank 2 hardly at all; all go on once rank 2 has come.

# %% [markdown] id="no-barrier-alt" alt="no-barrier" lang="zh" sync="7b436ad9:d825aa8b"
# 两条时间线一个样：不管是 barrier 还是 all_reduce，都是 rank 0 先到、等得最久，rank 1 只等一半，rank 2 几乎不等；
# rank 2 一到，大家一起往下走。

# %% [markdown] id="fine-print-run" lang="en"
# The other four in one launch:

# %% [markdown] id="fine-print-run" lang="zh" sync="373ff048:dbcd246c"
# 另外四件，一次启动都做了：

# %% id="fine-print-source"
show_source(
    collectives.sum_in_sub_group,
    collectives.gather_notes,
    collectives.gather_with_gradient,
    collectives.go_on,
)

# %% id="fine-print-launch"
seen = spawn(collectives.fine_print, nprocs=3, backend="gloo")
print("sum in the group of 0 and 2:", *(rank.in_sub_group for rank in seen))
print("objects on rank 2:", seen[2].notes)
print("all_gather gives a gradient:", *(rank.gathered_has_gradient for rank in seen))
print("x.grad, own part put back:", *(rank.gradient for rank in seen))
print(
    "async call returned after",
    *(f"{rank.returned_after:.1%}" for rank in seen),
    "of the time until wait() returned",
)
print(
    "x[0] before wait():",
    *(f"{rank.before_wait:g}" for rank in seen),
    "  after:",
    *(f"{rank.after_wait:g}" for rank in seen),
)

# %% [markdown] id="fine-print-read" lang="en"
# - **Sub-groups.** Ranks 0 and 2 have 101; rank 1 kept its 10. But `new_group` is itself a call for *all* ranks.
# - **Objects.** `all_gather_object` carries any Python object, pickled: slow, fine for a few notes, and only
#   from ranks that you trust, since unpickling can run code.
# - **`all_gather` carries no gradient.** What you gather is a copy without a history. Put your own part back, and
#   the gradient flows through that one; the others' parts stay constants.
# - **Asynchronous calls.** With `async_op=True` the call comes back early, and you may compute meanwhile. Until
#   `wait` has returned, `x` can hold anything: the old number, a partial sum, the sum. Leave it alone.

# %% [markdown] id="fine-print-read" lang="zh" sync="0ba5314f:ee5f29d9"
# - **子组**。rank 0 和 rank 2 得到 101，rank 1 还是自己的 10。不过 `new_group` 本身要*所有* rank 都调用。
# - **对象**。`all_gather_object` 能传任何 Python 对象，靠的是 pickle：慢，传几句话够用；只能用于信得过的 rank，
#   因为反序列化时可能会执行代码。
# - **`all_gather` 不传梯度**。收集来的只是副本，没有计算历史。把自己的那份换回去，梯度就能从那一份流过；
#   别人的那几份只是常数。
# - **异步调用**。加上 `async_op=True`，调用很快返回，我们可以趁这段时间算别的。但在 `wait` 返回之前，`x` 里
#   可能是旧的数、部分和、总和，什么都说不准，不要碰它。

# %% [markdown] id="break" lang="en"
# ## Break it: one rank makes another call
#
# You want the mean loss printed once, so you put everything under `if rank == 0`. This is the commonest way to
# hang a distributed program. (A rank may wait 2 s here; torch alone waits
# [up to 30 minutes](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group).)

# %% [markdown] id="break" lang="zh" sync="1724e867:620d5e5e"
# ## 弄坏它：有一个 rank 的调用和别人不一样
#
# 平均损失只想打印一次，于是把整段都放进 `if rank == 0`。分布式程序卡住，最常见的就是这样。
# 这里规定最多等 2 秒；torch 自己默认
# [要等 30 分钟](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group)。

# %% id="stuck"
show_source(collectives.log_on_rank_0)
with shows(RanksStuck):
    spawn(collectives.log_on_rank_0, nprocs=3, backend="gloo", timeout=2)

# %% [markdown] id="stuck-why" lang="en"
# Rank 0 waits in `all_reduce` for ranks that never call it. The print belongs under the `if`, the all-reduce
# outside; exercise `collectives-2` mends it. A `barrier` under an `if` hangs in the same way, and so does a
# save that calls a collective inside. Next, rank 1 makes *another* call. With `debug=True` torch compares the
# calls before it runs them, and what would be a hang becomes a message:

# %% [markdown] id="stuck-why" lang="zh" sync="e7613e70:8e13e33e"
# rank 0 停在 `all_reduce` 里，等别人来；别人根本没有调用它。该放进 `if` 的只有打印，all-reduce 要放在外面：
# 练习 `collectives-2` 就来改好它。把 `barrier` 放进 `if`，或者只让 rank 0 调用内部带集合通信的保存函数，也会这样卡住。
#
# 再看 rank 1 调用了*另一个*函数的情形。打开 `debug=True`，torch 会先核对各个 rank 的调用再执行，
# 原本的卡住就变成了一条报错：

# %% id="mismatch"
with shows(RankFailed):
    spawn(collectives.call_another, nprocs=3, backend="gloo", timeout=2, debug=True)

# %% [markdown] id="mismatch-why" lang="en"
# The message is long; it names both calls, `ALLREDUCE` and `BROADCAST`. The worst case has no message. All
# ranks sum `a` and then `b`, but rank 1 does `b` first:

# %% [markdown] id="mismatch-why" lang="zh" sync="b3d6b730:2dcb4739"
# 报错很长，要看的是它点出的两个操作：`ALLREDUCE` 和 `BROADCAST`。最糟的情形却连报错都没有：
# 大家都是先对 `a` 求和、再对 `b` 求和，只有 rank 1 先做了 `b`：

# %% id="swapped"
show_source(collectives.swap_two_calls)
for debug in (False, True):
    swapped = spawn(collectives.swap_two_calls, nprocs=3, backend="gloo", debug=debug)
    print(f"debug={debug!s:5}", *(f"  rank {rank}: a = {a}, b = {b}" for rank, (a, b) in enumerate(swapped)))

# %% [markdown] id="swapped-why" lang="en"
# Right would be `a` = 111 and `b` = 222. The digits give it away: 121 = 1 + 20 + 100, so rank 1's part comes from
# its `b`. Both calls are all-reduces of one number; nothing is there for `debug=True` to notice. A collective
# does not know your variables: **it joins the ranks' first calls, then their second calls.** So every rank
# makes the same calls in the same order, whatever it branches on.

# %% [markdown] id="swapped-why" lang="zh" sync="865bb73c:2f77495d"
# 本来应该是 `a` = 111、`b` = 222。看各位数字就露馅了：121 = 1 + 20 + 100，rank 1 交出的是它的 `b`。两次都是一个数的
# all-reduce，`debug=True` 也看不出毛病。集合通信不认得变量名，**它只把各个 rank 的第一次调用配在一起，
# 第二次调用配在一起**。所以不管程序怎样分支，每个 rank 都要按同样的次序做同样的调用。

# %% [markdown] id="your-turn" lang="en"
# ## Your turn
#
# **`collectives-1`.** Write the *mean* over all ranks yourself, out of `dist.reduce_scatter` and
# `dist.all_gather`. `x` may have any length, also one that the number of ranks does not divide: chunks must be
# equally long. `hint("collectives-1")` gives a hint, `solution("collectives-1")` the answer.

# %% [markdown] id="your-turn" lang="zh" sync="2b54a36d:feeca8fb"
# ## 动手试试
#
# **`collectives-1`**：用 `dist.reduce_scatter` 和 `dist.all_gather`，自己写出对所有 rank 求*平均*的函数。`x` 的长度
# 任意，不一定能被 rank 数整除，而切成的每一段必须一样长。需要提示就运行 `hint("collectives-1")`，
# 想看答案就运行 `solution("collectives-1")`。


# %% id="exercise-1"
def mean_over_ranks(x):
    """The mean of all ranks' x, a tensor of one dimension; every rank returns the whole of it."""
    ...


check("collectives-1", mean_over_ranks)

# %% [markdown] id="your-turn-2" lang="en"
# **`collectives-2`.** Mend the hang from above: print the mean of all ranks' losses, once, on rank 0. Leave
# `loss` as it is, for the caller still needs it.

# %% [markdown] id="your-turn-2" lang="zh" sync="d18c76b5:ea6c1c6c"
# **`collectives-2`**：把上面卡住的程序改好：打印所有 rank 的平均损失，只由 rank 0 打印一次。
# 不要改动 `loss` 本身，调用者后面还要用它。


# %% id="exercise-2"
def print_mean_loss(loss):
    """Print the mean of all ranks' losses on rank 0 only; loss is a tensor with one number."""
    ...


check("collectives-2", print_mean_loss)

# %% [markdown] id="next" lang="en"
# ## Next
#
# The ranks can talk. Chapter 04 gives each of them its own share of the data, and chapter 05 builds DDP out of
# the two: shares, and one all-reduce of the gradients.
#
# Sources: [`torch.distributed`, every call](https://docs.pytorch.org/docs/stable/distributed.html) ·
# [Patarasuk and Yuan on why a ring is bandwidth-optimal](https://doi.org/10.1016/j.jpdc.2008.09.002) ·
# [a tutorial that builds on the same calls](https://docs.pytorch.org/tutorials/intermediate/dist_tuto.html)

# %% [markdown] id="next" lang="zh" sync="540a3886:c272d295"
# ## 接下来
#
# 各个 rank 会说话了。第 04 章给每个 rank 分一份数据；第 05 章把两样合起来，分好的数据，加上对梯度做的
# all-reduce，就搭成了 DDP。
#
# 参考资料：[`torch.distributed` 的全部函数](https://docs.pytorch.org/docs/stable/distributed.html) ·
# [Patarasuk 与 Yuan：环为什么能把带宽用到极限](https://doi.org/10.1016/j.jpdc.2008.09.002) ·
# [用同样这些函数写成的教程](https://docs.pytorch.org/tutorials/intermediate/dist_tuto.html)
