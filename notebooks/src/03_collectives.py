# %% [markdown] id="title" lang="en"
# # 03 · Collectives: what does each one leave on each rank?
#
# In chapter 02 the ranks found one another. Here they talk, and you look at what lies where afterwards. After
# this chapter you can:
#
# - say of each of ten calls what it leaves on each rank;
# - write an all-reduce yourself, out of messages between neighbours;
# - say what a message costs, and why a program hangs when one rank leaves a call out.

# %% [markdown] id="title" lang="zh" sync="3ebd9b0f:91fe6d73"
# # 03 · 集合通信：每种操作做完，各个 rank 手里有什么？
#
# 第 02 章里，各个 rank 找到了彼此；现在它们开始传数据。读完这一章，我们就能：
#
# - 说清十种通信操作做完之后，每个 rank 手里有什么；
# - 只用相邻 rank 之间的收和发，亲手写出一个 all-reduce；
# - 说清一条消息要花多少时间，以及为什么只要有一个 rank 少调用一次，程序就会卡住。

# %% [markdown] id="words" lang="en"
# **Point-to-point** communication has one sender and one receiver. A **collective** is a call that all ranks make
# together: each gives what it has and gets its part of the result. To **reduce** is to make one value out of
# those of all ranks: in chapter 00 their mean, here their sum unless you ask for another, such as
# `op=dist.ReduceOp.MAX`.

# %% [markdown] id="words" lang="zh" sync="3abf4dd9:491085e6"
# 一个 rank 发、另一个 rank 收，叫**点对点通信**（point-to-point）。**集合通信**（collective communication）
# 则是所有 rank 一起调用同一个函数，各交各的数据，各拿各的结果。**归约**（reduce）把各个 rank 的值合成一个：
# 第 00 章是求平均，这里默认求和，也可以另外指定，例如 `op=dist.ReduceOp.MAX`。

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
# - (c) 110 and 100
#
# Write your letter down before you read on.

# %% [markdown] id="predict" lang="zh" sync="6858d1c6:fba0f7e0"
# ## 先猜一猜
#
# rank 0、1、2 手里各是 1、10、100。三个 rank 都调用 `dist.reduce(x, dst=0)`，它把三个数之和放到 rank 0 上。
# 调用之后，rank 1 和 rank 2 手里是什么？
#
# - (a) 10 和 100：还是自己的数，没变
# - (b) 111 和 111：和 rank 0 一样，都是总和
# - (c) 110 和 100
#
# 先写下你的答案，再往下看。

# %% [markdown] id="run" lang="en"
# ## Run it
#
# Every rank makes each call on a fresh copy of its own number; `Held` keeps the numbers before and after. `src`
# is the rank that gives, `dst` the rank that gets. Why powers of ten? In a sum of them, **the digits tell whose
# numbers are in it**.

# %% [markdown] id="run" lang="zh" sync="abc51aef:dba53680"
# ## 跑起来
#
# 每次调用都用一份新复制的数，`Held` 记下调用前后的数。`src` 是给数据的 rank，`dst` 是收结果的 rank。
# 各个 rank 的数特意取成 10 的幂：**看一个和的各位数字，就知道里面有谁的数**。

# %% id="source-in-place"
show_source(collectives.in_place)

# %% [markdown] id="launch" lang="en"
# One launch makes these four calls and, for later sections, others on the same three ranks, with Gloo on every
# machine. The figure shows `reduce`: left of the arrow what ranks r0, r1, r2 held before, right of it after.

# %% [markdown] id="launch" lang="zh" sync="922dccb4:0df63c81"
# 下面一次启动，不但做这四种操作，也把后面几节要看的一并做完，一律用 Gloo 后端。图里先只画 `reduce`：
# 箭头左边是 r0、r1、r2 三个 rank 原先的数，右边是之后的数。

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
# **The answer is (c).** Read the digits: 110 = 10 + 100 is the sum of ranks 1 and 2. Gloo passed
# partial sums along, 100 → 110 → 111, and left them there. The documentation promises the sum on `dst` alone;
# elsewhere (hatched) you may find anything, and with another backend something else again.
#
# - If you chose (a): you thought that a rank keeps what it gives. Gloo adds in that very tensor; rank 2's is
#   unchanged only because the adding starts there.
# - If you chose (b): you thought of `all_reduce`, which leaves the sum on every rank.

# %% [markdown] id="answer" lang="zh" sync="09ddb12b:6b3716ea"
# **答案是 (c)**。看各位数字：110 = 10 + 100，是 rank 1 和 rank 2 的和。Gloo 一路加过去，100 → 110 → 111，
# 半路上的和就留在了原地。文档只保证 `dst` 上是总和；画斜线的格子里什么都有可能，换个后端可能又不一样。
#
# - 选 (a)，多半是以为自己手里的数不会动。其实加法就做在这个张量上；rank 2 没变，只因为是从它加起的。
# - 选 (b)，多半是想成了 `all_reduce`，它才让每个 rank 都拿到总和。

# %% [markdown] id="see" lang="en"
# ## See it
#
# Five more calls take or give a list with one tensor for each rank. The first argument takes the result; in
# `gather` it is the second:

# %% [markdown] id="see" lang="zh" sync="7cd44eb2:80390810"
# ## 看结果
#
# 另外五种操作，交出或拿回的是一个列表，每个 rank 对应其中一个张量。结果写进第一个参数，只有 `gather` 是第二个：

# %% id="source-from-lists"
show_source(collectives.from_lists)

# %% [markdown] id="see-all" lang="en"
# All ten, drawn from what really was on each rank. A list is a column, its first tensor on top; a dash means that
# the rank gives or gets nothing. `barrier` moves no data: there you see when each rank came and went on. All ten
# run on Gloo; older texts say that some are missing.

# %% [markdown] id="see-all" lang="zh" sync="62268854:746fef8a"
# 十种操作，画的都是实际跑出来的数。列表竖着画，第一个张量在最上面；短横线是不交或不拿。`barrier` 不传数据，
# 画的是时间：竖线是到达，圆点是离开。十种都能用 Gloo 运行；旧资料说缺几种，那已经过时。

# %% id="all-ten"
plots.collectives(ranks)

# %% [markdown] id="all-ten-alt" alt="all-ten" lang="en"
# Ten panels, ranks as columns, before → after. send/recv and broadcast copy rank 0's 1. reduce leaves 111 on
# rank 0 only, all_reduce on all. scatter deals out rank 0's 1, 2, 3; gather collects 1, 10, 100 on rank 0,
# all_gather on all. reduce_scatter leaves the sums 111, 222, 333, one per rank. all_to_all swaps rows and
# columns. barrier: rank 0 comes first and waits some 80 ms, all ranks leave together when the last has come.

# %% [markdown] id="all-ten-alt" alt="all-ten" lang="zh" sync="5410f23e:b2aaf454"
# 十幅小图，每列一个 rank，左边是之前，右边是之后。send/recv 和 broadcast 复制了 rank 0 的 1。reduce 只在 rank 0 上
# 留下 111，all_reduce 在每个 rank 上都留下。scatter 把 rank 0 的 1、2、3 分出去；gather 把 1、10、100 收到 rank 0，
# all_gather 让大家都收齐。reduce_scatter 留下 111、222、333，每个 rank 一个。all_to_all 行列互换。
# barrier：rank 0 先到，等了 80 毫秒左右，最后一个到了，大家一起离开。

# %% id="claim"
barrier = [rank["barrier"] for rank in ranks]
gap = min(rank.left for rank in barrier) - max(rank.came for rank in barrier)
print(f"barrier: first leaves − last comes = {1e3 * gap:.1f} ms ≥ 0: {gap >= 0}")

# %% [markdown] id="read" lang="en"
# Read the panels in pairs:
#
# - **Broadcast** gives all ranks the same tensor, **scatter** gives each its own. **Gather** undoes a scatter.
# - **All-gather** and **all-reduce** are gather and reduce with the result on every rank.
# - **Reduce-scatter** leaves each rank one piece of the sum. With an all-gather after it, it is an all-reduce.
# - **All-to-all** swaps rows and columns. At a **barrier** nobody leaves before the last has come.

# %% [markdown] id="read" lang="zh" sync="04328851:8b3d371c"
# 对照着图看：
#
# - **广播**（broadcast）给大家同一个张量，**分发**（scatter）给每个 rank 各一个；**收集**（gather）是分发的逆操作。
# - **all-gather**（全收集）和 **all-reduce**（全归约）就是收集和归约，只是结果人人都有。
# - **reduce-scatter**（归约后分发）让每个 rank 只留和的一段；再接一次 all-gather，就成了 all-reduce。
# - **all-to-all**（全互换）是行列互换。**屏障**（barrier）：最后一个没到，谁也走不了。

# %% [markdown] id="names" lang="en"
# Three of them have a twin that takes all pieces in one tensor, here `whole`, which saves copying:
#
# | with a list | with one tensor |
# |---|---|
# | `all_gather(pieces, x)` | `all_gather_single(whole, x)` |
# | `reduce_scatter(x, pieces)` | `reduce_scatter_single(x, whole)` |
# | `all_to_all(pieces, pieces)` | `all_to_all_single(whole, whole)` |
#
# Much code has the older names of the first two. They still work, and warn:

# %% [markdown] id="names" lang="zh" sync="10a840fc:99c21f7b"
# 其中三种另有一个版本：不用列表，只用一整块张量（表中的 `whole`），省去复制：
#
# | 用列表 | 用一整块张量 |
# |---|---|
# | `all_gather(pieces, x)` | `all_gather_single(whole, x)` |
# | `reduce_scatter(x, pieces)` | `reduce_scatter_single(x, whole)` |
# | `all_to_all(pieces, pieces)` | `all_to_all_single(whole, whole)` |
#
# 前两个改过名。许多代码还用旧名，能运行，但会有警告：

# %% id="old-names"
print(dist.all_gather_into_tensor.__deprecated__)
print(dist.reduce_scatter_tensor.__deprecated__)

# %% [markdown] id="ring" lang="en"
# ## Why: an all-reduce by hand
#
# The plain way: all N ranks send their tensor to rank 0, which adds and sends the sum back. Then rank 0 receives
# N − 1 whole tensors and sends N − 1, while the others wait. In a **ring** all do equally much: cut the tensor
# into N chunks, and let every rank send one chunk to the next rank in each step.
#
# `isend` starts a message and does not wait for its end; `wait` does. If every rank called `send`, which may wait
# until the message is taken, nobody would be left to take one. Which chunk goes where, the figure shows better
# than the two lines with `%`.

# %% [markdown] id="ring" lang="zh" sync="770341a2:1e4efa33"
# ## 为什么：亲手写一个 all-reduce
#
# 最直接的办法：N 个 rank 都把张量发给 rank 0，由它加好再发回去。这样 rank 0 要收、发各 N − 1 份张量，别人都在等。
# **ring all-reduce**（环形 all-reduce）让大家一样忙：rank 排成一圈，张量切成 N 段，每一步只给下一个 rank 发一段。
#
# `isend` 不等发完就返回，`wait` 才等。`send` 则可能要等对方收走：大家都先 `send`，就没有人来收了。
# 哪一步传哪一段，不用细算那两行 `%`，看后面的图就清楚。

# %% id="source-ring"
show_source(ring_all_reduce)

# %% [markdown] id="ring-run" lang="en"
# Four ranks, four chunks of one number each. A column is a rank, a row a chunk; a thick frame marks what a step
# changed. The last frame is `dist.all_reduce` on the same numbers.

# %% [markdown] id="ring-run" lang="zh" sync="f9d2e9fd:db3809cb"
# 四个 rank，四段，每段一个数。列是 rank，行是段，粗框是这一步改动的格子。
# 最后一幅是 `dist.all_reduce` 对同样的数算出的结果。

# %% id="ring-steps"
rings = spawn(collectives.ring_and_torch, nprocs=4, backend="gloo")
plots.ring([rank.steps for rank in rings], total=[rank.total for rank in rings])

# %% [markdown] id="ring-steps-alt" alt="ring-steps" lang="en"
# Eight frames. In steps 1 to 3 each chunk's sum grows from two ranks' numbers to all four's: after step 3 rank r
# holds 1111 in chunk r and partial sums elsewhere. In steps 4 to 6 the finished chunks travel on, until every
# cell is 1111, as in the last frame, all_reduce.

# %% [markdown] id="ring-steps-alt" alt="ring-steps" lang="zh" sync="72646e5c:87ee9f0d"
# 八幅小图。第 1 到 3 步，每一段的和从两个 rank 的数长到四个：第 3 步之后，rank r 的第 r 段是 1111，其余还是部分和。
# 第 4 到 6 步，算好的段继续往下传，直到每个格子都是 1111，和最后一幅 all_reduce 一样。

# %% [markdown] id="ring-read" lang="en"
# Follow the top row. Its chunk starts on rank 1 as 10, becomes 110 on rank 2, 1110 on rank 3 and 1111 on rank 0.
# After these three steps rank r holds the sum of chunk r: a reduce-scatter. Three more hand the sums on: an
# all-gather. In all, each rank sends 2(N − 1) chunks of 1/N: less than two tensors, however many the ranks.
#
# In the same launch they did it with 4,096 numbers each: are the sums *bit for bit* those of `dist.all_reduce`?

# %% [markdown] id="ring-read" lang="zh" sync="4b67b391:b223b0be"
# 看最上面一行：从 rank 1 的 10 出发，到 rank 2 变成 110，到 rank 3 变成 1110，到 rank 0 变成 1111。三步之后，
# rank r 有了第 r 段的总和，这是 reduce-scatter；再走三步，把总和传给大家，这是 all-gather。
# 每个 rank 一共发出 2(N − 1) 段，每段是张量的 1/N：rank 再多，也不到两份张量。
#
# 同一次启动里，每个 rank 还用 4096 个数做了一遍：算出的和与 `dist.all_reduce` 的结果*逐位相同*吗？


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
# Whole numbers this small need no rounding: all sums are equal. Of the random ones about one in five is not.
# Neither is wrong: a float32 keeps some seven digits, so each addition rounds, and **another order of additions
# rounds differently**. Take the first sum that differs, and add its numbers in two orders, the ring's first:

# %% [markdown] id="bits-why" lang="zh" sync="5cd1c3cd:f2b7ee51"
# 整数不大，用不着舍入，所以全部相同；随机数的和，大约五个就有一个不同。两边都没错：float32 大约只有七位有效数字，
# 每加一次就舍入一次，**相加的次序不同，舍入就不同**。取出第一个不同的和，按两种次序加一遍，先按环的次序：

# %% id="two-orders"
sums = rings[0].random
first = (sums.ring != sums.torchs).nonzero()[0].item()
x0, x1, x2, x3 = (rank.random.own[first] for rank in rings)
print(f"((x1 + x2) + x3) + x0 = {((x1 + x2) + x3) + x0:.9f}   ring:       {sums.ring[first]:.9f}")
print(f"((x3 + x2) + x1) + x0 = {((x3 + x2) + x1) + x0:.9f}   all_reduce: {sums.torchs[first]:.9f}")
print(f"ring turned round ≠ all_reduce in {(sums.turned != sums.torchs).sum()} of {len(sums.turned)} sums")

# %% [markdown] id="two-orders-why" lang="en"
# The last line is about all 4,096: let the ring run to the next *lower* rank, and not one sum differs. Gloo adds
# in that order. (On two ranks there is only one.) Do not build on it: no documentation promises an order.
#
# What the documentation of `all_reduce` does promise: all ranks get the *same* bits. Here each sum is made once
# and then copied. That is why the replicas of chapter 00 stay equal.

# %% [markdown] id="two-orders-why" lang="zh" sync="18a97682:039c7d42"
# 最后一行说的是全部 4096 个和：让环反过来转，发给编号*小*一号的 rank，就一个不差。Gloo 正是按这个次序加的
# （只有两个 rank 时，次序只有一种）。不过别依赖次序，没有文档保证它。
#
# `all_reduce` 的文档保证的是另一条：所有 rank 的结果逐位相同。在这里，是因为每个和只算一次，再复制给大家。
# 第 00 章的副本始终相等，靠的就是它。

# %% [markdown] id="cost" lang="en"
# ## Why: what a message costs
#
# How long does one all-reduce take? Measure from 4 B (one number) to 64 MB, each size twelve times, and take the
# slower rank's median. Then fit the simplest model: time = α + S/β, where S is the size. **Latency** α is the
# price of any message, **bandwidth** β the bytes per second; KB, MB and GB count in powers of 1,024.

# %% [markdown] id="cost" lang="zh" sync="fe0de216:15e77186"
# ## 为什么：一条消息要花多少时间
#
# 一次 all-reduce 要多久？从 4 B（一个数）到 64 MB，每种大小量十二次，取较慢那个 rank 的中位数，再用最简单的公式拟合：
# 时间 = α + S/β。S 是大小；α 是**时延**（latency），消息再小也要付；β 是**带宽**（bandwidth），每秒能传多少字节。
# KB、MB、GB 都按 1024 进位。

# %% id="times"
show_source(all_reduce_times)
sizes = [4 * 4**k for k in range(13)]
seconds = [max(times) for times in zip(*spawn(all_reduce_times, (sizes,), nprocs=2), strict=True)]
alpha, beta = fit_line(sizes, seconds)
plots.message_time(sizes, seconds, alpha=alpha, beta=beta)

# %% [markdown] id="times-alt" alt="times" lang="en"
# Time of one all-reduce against size, both axes logarithmic. The circles lie level from 4 B to some KB, where
# the fitted line follows α, and rise in proportion to the size above some MB, where it follows S/β.

# %% [markdown] id="times-alt" alt="times" lang="zh" sync="41db9f3c:1556dedb"
# 一次 all-reduce 的时间随大小的变化，两条轴都是对数。从 4 B 到几 KB，圆圈几乎是平的，拟合线贴着 α；
# 到几 MB 以上，时间与大小成正比，拟合线贴着 S/β。

# %% id="times-claim"
errors = [abs(ratio - 1) for ratio in ratios(sizes, seconds, alpha, beta)]
print(f"α = {alpha * 1e6:.0f} µs   β = {beta / 2**30:.2g} GB/s   αβ = {alpha * beta / 2**10:.0f} KB")
print(f"fit against measurement: median error {median(errors):.0%}, largest {max(errors):.0%}")
print(f"4 KB ÷ 4 B: {seconds[5] / seconds[0]:.1f} × the time for {sizes[5] // sizes[0]} × the bytes")

# %% [markdown] id="cost-read" lang="en"
# The dashed and the dotted line cross at S = αβ. Below it you pay for the message: a thousand times the bytes,
# 4 KB for 4 B, take a time of the same order. Above it you pay for the bytes. So send one large message rather
# than many small ones, as DDP does in chapters 05 and 06.

# %% [markdown] id="cost-read" lang="zh" sync="d7544e42:ebf401c3"
# 虚线和点线相交在 S = αβ 处。比它小，时间主要花在时延上：从 4 B 到 4 KB，字节数是一千倍，时间还在一个量级。
# 比它大，时间主要花在传字节上。所以宁可发一条大的，不要发许多条小的；DDP 传梯度时就是这样做的（第 05、06 章）。

# %% [markdown] id="fine-print" lang="en"
# ## Five things worth knowing
#
# First: **nobody needs a barrier before a reduction.** In the launch of the ten calls the ranks also came 40 ms
# apart to an `all_reduce`. It waits for the last rank by itself, since it needs that rank's numbers:

# %% [markdown] id="fine-print" lang="zh" sync="7bbf98a5:acfce848"
# ## 五件值得知道的事
#
# 第一，**归约之前不需要屏障**。前面跑十种操作的那次启动里，三个 rank 还先后相差 40 毫秒走到 `all_reduce`。
# 缺了最后那个 rank 的数就算不出和，所以它自己就会等：

# %% id="no-barrier"
plots.collectives(ranks, [["all_reduce without barrier"]])

# %% [markdown] id="no-barrier-alt" alt="no-barrier" lang="en"
# As at the barrier above: in the all_reduce rank 0 comes first and waits, rank 1 waits half as long, rank 2
# hardly at all; all go on once rank 2 has come.

# %% [markdown] id="no-barrier-alt" alt="no-barrier" lang="zh" sync="d0b22c75:53cabbe7"
# 和前面的 barrier 一样：走到 all_reduce，rank 0 先到、等得最久，rank 1 只等一半，rank 2 几乎不等；
# rank 2 一到，大家就往下走。

# %% [markdown] id="fine-print-run" lang="en"
# The other four, one function each, from the same launch: a sum in a sub-group, Python objects, the gradient
# behind an `all_gather`, and a call that does not wait.

# %% [markdown] id="fine-print-run" lang="zh" sync="91e023df:be3076ea"
# 另外四件，各有一个函数，也是那次启动里跑的：在子组里求和、传 Python 对象、`all_gather` 之后的梯度、不等结果的调用。

# %% id="fine-print-source"
show_source(
    collectives.sum_in_sub_group,
    collectives.gather_notes,
    collectives.gather_with_gradient,
    collectives.go_on,
)
seen = [rank["fine print"] for rank in ranks]
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
# - **Sub-groups.** Ranks 0 and 2 have 101; rank 1 kept its 10. But *all* ranks must call `new_group`.
# - **Objects.** `all_gather_object` carries any Python object, pickled. Use it for a few notes, and only among
#   ranks that you trust: unpickling can run code.
# - **`all_gather` carries no gradient.** What you gather is a copy without a history. Put your own part back, and
#   the gradient flows through that one; the others' stay constants.
# - **Asynchronous calls.** With `async_op=True` the call comes back early, and you may compute meanwhile. Leave
#   `x` alone until `wait` has returned: it can hold the old number, a partial sum or the sum.

# %% [markdown] id="fine-print-read" lang="zh" sync="79a450b7:772ad6b0"
# - **子组**：rank 0 和 rank 2 得到 101，rank 1 还是自己的 10。但 `new_group` 要*所有* rank 都调用。
# - **对象**：`all_gather_object` 能传任何能序列化（pickle）的 Python 对象。传几句话够用，而且只能用于信得过的 rank，
#   因为反序列化时可能会执行代码。
# - **`all_gather` 不传梯度**：收集来的只是复制的数，没有计算历史。把自己的那份换回去，梯度就能流过这一份。
# - **异步调用**（asynchronous）：加上 `async_op=True`，调用很快返回，可以趁这段时间算别的。
#   但在 `wait` 返回之前不要碰 `x`：里面可能是旧的数、部分和或总和。

# %% [markdown] id="break" lang="en"
# ## Break it: one rank makes another call
#
# You want the mean loss printed once, so you put everything under `if rank == 0`. Here a rank may wait 2 s;
# [Gloo's default is 30 minutes](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group).

# %% [markdown] id="break" lang="zh" sync="e9184b1e:bb05788c"
# ## 弄坏它：有一个 rank 的调用和别人不一样
#
# 平均损失只想打印一次，于是把整段都放进 `if rank == 0`。这里规定最多等 2 秒；
# [Gloo 默认要等 30 分钟](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group)。

# %% id="stuck"
show_source(collectives.log_on_rank_0)
with shows(RanksStuck):
    spawn(collectives.log_on_rank_0, nprocs=3, backend="gloo", timeout=2)

# %% [markdown] id="stuck-why" lang="en"
# Rank 0 waits in `all_reduce` for ranks that never call it. The cure: only the print stands under the `if`, the
# all-reduce outside; you write it in exercise `collectives-2`. A `barrier` under an `if` hangs in the same way,
# and so does a save on rank 0 that calls a collective inside.
#
# Next, rank 1 calls `broadcast` where the others call `all_reduce`. With `debug=True`, in your own scripts
# `TORCH_DISTRIBUTED_DEBUG=DETAIL`, torch compares the calls before it runs them, and the hang becomes a message:

# %% [markdown] id="stuck-why" lang="zh" sync="4419719f:a4b374cc"
# rank 0 卡住（hang）了：它在 `all_reduce` 里等别人，别人却根本没有调用它。该放进 `if` 的只有打印，all-reduce
# 要放在外面：练习 `collectives-2` 就来改好它。`barrier` 放进 `if`，或者只让 rank 0 调用内部带集合通信的保存函数，
# 也会这样卡住。
#
# 再来一种：别人都调用 `all_reduce`，rank 1 却调用 `broadcast`。打开 `debug=True`（自己的脚本里是设
# `TORCH_DISTRIBUTED_DEBUG=DETAIL`），torch 会先核对各个 rank 的调用再执行，卡住就变成了报错：

# %% id="mismatch"
show_source(collectives.call_another)
try:
    spawn(collectives.call_another, nprocs=3, backend="gloo", timeout=2, debug=True)
except RankFailed as error:  # the middle of its message describes both calls at length
    print("RankFailed:", error.message.partition(" Rank ")[0], "…")
    print(error.message.rpartition(".")[2])

# %% [markdown] id="mismatch-why" lang="en"
# The message names the two calls; `…` stands for a screenful about their tensors. The worst case has no message.
# All ranks sum `a` and then `b`, but rank 1 does `b` first:

# %% [markdown] id="mismatch-why" lang="zh" sync="c0c18487:345a8328"
# 报错点出了两个操作；`…` 处原有一屏字，描述两边的张量。最糟的情形连报错都没有：
# 大家都先对 `a` 求和、再对 `b` 求和，只有 rank 1 反过来：

# %% id="swapped"
show_source(collectives.swap_two_calls)
for debug in (False, True):
    swapped = spawn(collectives.swap_two_calls, nprocs=3, backend="gloo", debug=debug)
    print(f"debug={debug!s:5}", *(f"  rank {rank}: a = {a}, b = {b}" for rank, (a, b) in enumerate(swapped)))

# %% [markdown] id="swapped-why" lang="en"
# Right would be `a` = 111 and `b` = 222. Read the digits: 121 = 1 + 20 + 100, so rank 1's part comes from its
# `b`. Both calls are all-reduces of one number; `debug=True` has nothing to notice. A collective does not know
# your variables: **it joins the ranks' first calls, then their second calls.** The cure for all three: every
# rank makes the same calls in the same order, whatever it branches on.

# %% [markdown] id="swapped-why" lang="zh" sync="ae94cc39:bd961c0c"
# 本来应该是 `a` = 111、`b` = 222。看各位数字：121 = 1 + 20 + 100，rank 1 交出的是它的 `b`。两次都是一个数的
# all-reduce，`debug=True` 也看不出毛病。集合通信不认变量名，**只认次序：第一次调用配第一次，第二次配第二次**。
# 三种错误，解法只有一个：不管程序怎样分支，每个 rank 都按同样的次序做同样的调用。

# %% [markdown] id="your-turn" lang="en"
# ## Your turn
#
# **`collectives-1`.** Write the *mean* over all ranks yourself, out of `dist.reduce_scatter` and
# `dist.all_gather`. `x` may have any length, also one that the number of ranks does not divide; but the pieces
# must be equally long. `hint("collectives-1")` gives a hint, `solution("collectives-1")` the answer.

# %% [markdown] id="your-turn" lang="zh" sync="c6d5891d:b18f77a5"
# ## 动手试试
#
# **`collectives-1`**：用 `dist.reduce_scatter` 和 `dist.all_gather`，写出对所有 rank 求*平均*的函数。`x` 的长度
# 不一定能被 rank 数整除，而切成的每一段必须一样长。需要提示就运行 `hint("collectives-1")`，
# 想看答案就运行 `solution("collectives-1")`。


# %% id="exercise-1"
def mean_over_ranks(x):
    """The mean of all ranks' x, a tensor of one dimension; every rank returns the whole of it."""
    ...


check("collectives-1", mean_over_ranks)

# %% [markdown] id="your-turn-2" lang="en"
# **`collectives-2`.** Mend the hang from above: print the mean of all ranks' losses, once, on rank 0. Leave
# `loss` as it is: the caller still needs it.

# %% [markdown] id="your-turn-2" lang="zh" sync="9472c7b5:d282719d"
# **`collectives-2`**：把上面卡住的程序改好：所有 rank 的平均损失，只由 rank 0 打印一次。
# 不要改动 `loss` 本身，调用者后面还要用它。


# %% id="exercise-2"
def print_mean_loss(loss):
    """Print the mean of all ranks' losses on rank 0 only; loss is a tensor with one number."""
    ...


check("collectives-2", print_mean_loss)

# %% [markdown] id="next" lang="en"
# ## Next
#
# [Chapter 04](04_sampler.ipynb) gives each rank its own share of the data; [chapter
# 05](05_ddp_from_scratch.ipynb) adds one all-reduce of the gradients, and has built DDP.
#
# Sources: [`torch.distributed`, every call](https://docs.pytorch.org/docs/stable/distributed.html) ·
# [Patarasuk and Yuan on why a ring is bandwidth-optimal](https://doi.org/10.1016/j.jpdc.2008.09.002) ·
# [a tutorial that builds on the same calls](https://docs.pytorch.org/tutorials/intermediate/dist_tuto.html)

# %% [markdown] id="next" lang="zh" sync="54fe46be:b81df186"
# ## 接下来
#
# [第 04 章](04_sampler.ipynb)给每个 rank 分一份数据；[第 05 章](05_ddp_from_scratch.ipynb)再给梯度加一次 all-reduce，DDP 就搭成了。
#
# 参考资料：[`torch.distributed` 的全部函数](https://docs.pytorch.org/docs/stable/distributed.html) ·
# [Patarasuk 与 Yuan：环为什么能把带宽用到极限](https://doi.org/10.1016/j.jpdc.2008.09.002) ·
# [用这些函数写成的教程](https://docs.pytorch.org/tutorials/intermediate/dist_tuto.html)
