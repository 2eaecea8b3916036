# %% [markdown] id="title" lang="en"
# # 06 · Inside DDP: what does the wrapper do, when?
#
# In chapter 05 you wrote DDP yourself. Now you open PyTorch's own and let it tell you what it does.
# After this chapter you can:
#
# - list what DDP sends when it is built, in a forward pass and in a backward pass;
# - say which gradients travel together, and read it from DDP itself;
# - tell what DDP keeps equal on all ranks, and what it leaves to you.

# %% [markdown] id="title" lang="zh" sync="1cb73b25:dac60fd1"
# # 06 · DDP 的内部：这层包装在什么时候做了什么？
#
# 第 05 章里，我们自己写了一个 DDP。这一章打开 PyTorch 的 DDP，让它自己告诉我们它在做什么。
# 读完这一章，我们就能：
#
# - 说出 DDP 在构造时、前向传播时、反向传播时各发送了什么；
# - 说出哪些梯度会一起发送，并且直接从 DDP 那里读出来；
# - 分清哪些东西 DDP 保证处处一致，哪些要我们自己管。

# %% [markdown] id="words" lang="en"
# You know the **bucket** from chapter 05: a flat buffer for the gradients of several parameters, which
# travel together in one all-reduce. DDP lets you set how large a bucket may get, its **cap**, with
# `bucket_cap_mb`. If you say nothing, the cap is 25 MB, and that of the first bucket is 1 MB.

# %% [markdown] id="words" lang="zh" sync="d077f50f:63af7f48"
# **梯度桶**（bucket）在第 05 章已经见过：把几个参数的梯度放进同一块展平缓冲区，用一次 all-reduce（全归约）
# 一起发送。DDP 用 `bucket_cap_mb` 设定一个桶的**上限**（cap）。不设定的话，上限是 25 MB，
# 其中第一个桶的上限是 1 MB。

# %% id="setup"
from pathlib import Path

import torch.nn.functional as F

from ddp_src import RankFailed, check, hint, plots, show_source, shows, solution, spawn, warm_up
from ddp_src.lessons import inside_ddp
from ddp_src.profiler_trace import collectives, in_phase, layer_gradients, overlap, read_spans, stretch

warm_up()  # gets the ranks' processes ready while you read on

# %% [markdown] id="predict" lang="en"
# ## Predict first
#
# A model has 12 equal layers, each with a weight and a bias: 24 parameters, 12.6 MB of gradients. Two ranks
# train it with `DDP(model)`, no options. How many all-reduces does DDP launch in the very first step?
#
# - (a) 24: one for each parameter
# - (b) two: a first bucket of about 1 MB, and one with all the rest, which is below 25 MB
# - (c) one
#
# Write your letter down before you read on.

# %% [markdown] id="predict" lang="zh" sync="0faedfcc:5e051ff7"
# ## 先猜一猜
#
# 一个模型有 12 个同样的层，每层一个权重、一个偏置：共 24 个参数，梯度一共 12.6 MB。两个 rank（进程在组内的
# 编号）用 `DDP(model)` 训练它，不加任何选项。第一步里，DDP 会发起几次 all-reduce？
#
# - (a) 24 次：每个参数一次
# - (b) 两次：首桶约 1 MB；剩下的不到 25 MB，装在另一个桶里
# - (c) 一次
#
# 先写下你的答案，再往下看。

# %% [markdown] id="run" lang="en"
# ## Run it
#
# A **profiler** writes down every operation of a program: its name, when it began and when it ended. Each rank
# runs this function under PyTorch's own, `torch.profiler`. `record_function` puts marks of ours into the
# record, called a **trace**, so that you can tell the phases apart.

# %% [markdown] id="run" lang="zh" sync="844cc447:1f49e886"
# ## 跑起来
#
# **性能分析器**（profiler）会记下程序的每个操作：叫什么，何时开始，何时结束。每个 rank 都在 PyTorch 自带的
# `torch.profiler` 之下运行这个函数。这份记录叫**跟踪记录**（trace）；`record_function` 在里面做上我们自己的
# 标记，好分清各个阶段。

# %% id="source"
show_source(inside_ddp.deep_model, inside_ddp.profile_steps)

# %% [markdown] id="launch" lang="en"
# Rank 0 leaves its trace in a file. From it, the next cell lists the collectives of each phase, with how many
# numbers the tensor holds that each of them works on. The backend is Gloo also where there are GPUs: it does
# its work on threads of its own, and the profiler sees them.

# %% [markdown] id="launch" lang="zh" sync="7c0190e6:0a023341"
# rank 0 把跟踪记录存成文件。下一个单元格从中列出每个阶段的集合通信（collective），以及每次处理的张量里有多少个
# 数。这里即使有 GPU 也用 Gloo：它在自己的线程上通信，性能分析器看得到。

# %% id="messages"
trace = Path("runs/inside_ddp/trace.json")
trace.parent.mkdir(parents=True, exist_ok=True)
# show=False hides the lines that the profiler prints about itself on every rank
spawn(inside_ddp.profile_steps, (str(trace.absolute()),), nprocs=2, backend="gloo", show=False)

spans = read_spans(trace)
for phase in ("construct", "forward 1", "backward 1", "forward 2", "backward 2"):
    sent = [f"{one.name} of {one.numbers:,}" for one in collectives(in_phase(spans, phase))]
    print(f"{phase:>10}: {', '.join(sent) or '-'}")

# %% [markdown] id="see" lang="en"
# ## See it
#
# The two backward passes, from the same trace. Each block above is the computation of one layer's gradients,
# last layer first. The blocks below are the all-reduces.

# %% [markdown] id="see" lang="zh" sync="3cf99818:9c6485b4"
# ## 看结果
#
# 下图画出同一份跟踪记录里的两次反向传播。上排每一块是一层梯度的计算，从最后一层开始；下排是 all-reduce。

# %% id="timeline"
plots.backward_timeline({f"step {step}": in_phase(spans, f"backward {step}") for step in (1, 2)})

# %% [markdown] id="timeline-alt" alt="timeline" lang="en"
# Two timelines one above the other, on one axis in ms. In step 1 twelve blocks of gradients come first, and a
# single all-reduce of 12.6 MB begins after the last of them. In step 2 an all-reduce of 1.05 MB begins
# soon after the first block and runs while others are computed; a second one, 11.6 MB, again begins after the
# last block.

# %% [markdown] id="timeline-alt" alt="timeline" lang="zh" sync="00032779:d3741ad1"
# 上下两条时间线，共用一条以毫秒为单位的横轴。第 1 步里，先是十二块梯度计算，全部算完才开始唯一的一次 12.6 MB
# 的 all-reduce。第 2 步里，第一块算完不久，1.05 MB 的 all-reduce 就开始了，与后面的计算同时进行；
# 另一次 11.6 MB 的仍要等到最后一块算完。

# %% id="claim"
for step in (1, 2):
    backward = in_phase(spans, f"backward {step}")
    computed, sent = stretch(layer_gradients(backward)), collectives(backward)
    carried = " + ".join(f"{4 * one.numbers / 1e6:.3g} MB" for one in sent)
    print(f"step {step}: all-reduces = {carried}, overlap > 0: {overlap(computed, sent) > 0}")

# %% [markdown] id="read" lang="en"
# **The answer is (c).** In step 1 one all-reduce carries everything. It can only begin when the last gradient
# is done, so computing and sending take turns: no **overlap**. In step 2 there are two buckets, and the first
# travels while backward still runs. But the second holds eleven of the twelve layers, and it still has to
# wait: for a model of less than 25 MB, the default hides little.
#
# The file stays in the folder `runs/inside_ddp` beside this notebook (git ignores it). To look around in it,
# open it in a trace viewer such as [Perfetto](https://ui.perfetto.dev): *Open trace file*, then search for
# `gloo:all_reduce`. The threads called `pt_gloo_runloop` are Gloo's.

# %% [markdown] id="read" lang="zh" sync="658b6a21:4b169beb"
# **答案是 (c)**。第 1 步里，一次 all-reduce 装着全部梯度，要等最后一个梯度算完才能开始；计算和通信轮流进行，
# 没有**重叠**（overlap）。第 2 步有两个桶，第一个桶发送时，反向传播还在继续。可是第二个桶装着十二层里的
# 十一层，它还得等到最后：模型不到 25 MB 时，默认设置能藏住的通信并不多。
#
# 文件留在这个 notebook 旁边的 `runs/inside_ddp` 文件夹里（git 会忽略它）。想自己翻看，可以用
# [Perfetto](https://ui.perfetto.dev) 这类查看器打开：点 *Open trace file*，再搜索 `gloo:all_reduce`。
# 名叫 `pt_gloo_runloop` 的就是 Gloo 的线程。

# %% [markdown] id="why" lang="en"
# ## Why
#
# Read the list of messages from the top.
#
# **construct.** First, ranks must hold the same model. The `all_gather of 1` tells everyone how many parameters
# each rank has. The `broadcast of 72` carries the shapes of rank 0's parameters and how they lie in memory, and
# every rank compares them with its own. The `broadcast of 3,151,872` is rank 0's weights: all of them. Below,
# each rank starts from a seed of its own; you see one weight before and after `DDP(layer)`:

# %% [markdown] id="why" lang="zh" sync="35d83b9f:b576d8b1"
# ## 为什么
#
# 我们从上往下读那张消息清单。
#
# **construct（构造）**。各个 rank 手里必须是同一个模型。`all_gather of 1` 让大家知道每个 rank 有几个参数；
# `broadcast of 72` 发来 rank 0 各个参数的形状和内存排列，每个 rank 拿它和自己的比对；`broadcast of 3,151,872` 则是
# rank 0 的全部权重。下面让每个 rank 用不同的种子，看同一个权重在 `DDP(layer)` 前后的值：

# %% id="wrap"
show_source(inside_ddp.wrap)
for rank, (before, after) in enumerate(spawn(inside_ddp.wrap, (100,), nprocs=2)):
    print(f"rank {rank}: {before:+.6f} → {after:+.6f}")

# %% [markdown] id="mismatch-intro" lang="en"
# And if the shapes differ, say because one rank reads another configuration? Rank 0 builds a layer with 100
# outputs, rank 1 one with 101:

# %% [markdown] id="mismatch-intro" lang="zh" sync="d2ae351a:df5d8554"
# 如果形状不一样呢？比如有个 rank 读错了配置。下面 rank 0 的层有 100 个输出，rank 1 的有 101 个：

# %% id="mismatch"
with shows(RankFailed):
    spawn(inside_ddp.wrap_unequal, nprocs=2)

# %% [markdown] id="rebuild" lang="en"
# Rank 1 finds the difference before a single step has run. After construction DDP never compares or copies
# weights again.
#
# **backward 1.** A bucket can be sent once all its gradients are there, so it should hold gradients that come
# one after another. But DDP has not seen a backward pass yet. So it puts everything into one bucket, and notes
# in which order the gradients become ready.
#
# **forward 2.** Now DDP **rebuilds** its buckets in that order. All ranks must send the same buckets, so rank 0's
# order counts. The two small broadcasts carry it: 24 parameters and the number of buckets, then the length of
# each bucket.
#
# You can ask DDP for its buckets. A **communication hook** is a function that DDP calls with each full bucket,
# in place of its own all-reduce. This one writes down what is inside, then does the same all-reduce:

# %% [markdown] id="rebuild" lang="zh" sync="b4feb103:1bac955b"
# 一步都还没跑，rank 1 就发现了差别。构造完成以后，DDP 不会再比对或复制权重。
#
# **backward 1**。一个桶里的梯度要到齐才能发送，所以最好把先后相邻的梯度放在一起。可这时 DDP 还没见过反向传播，
# 只好先把所有梯度放进一个桶，同时记下它们算好的先后顺序。
#
# **forward 2**。现在 DDP 按这个顺序**重建**（rebuild）各个桶。每个 rank 发送的桶必须一样，所以都以 rank 0 的顺序
# 为准。那两次很小的广播，先发 24 个参数的顺序和桶的个数，再发每个桶有多长。
#
# 桶里有什么，可以直接问 DDP。**通信钩子**（communication hook）是一个函数，每个桶装满时，DDP 就调用它，代替
# 自己的 all-reduce。下面这个钩子先记下桶里的内容，再照样做 all-reduce：

# %% id="hook-source"
show_source(inside_ddp.record_buckets)

# %% id="buckets"
for step, sent in enumerate(spawn(inside_ddp.record_buckets, ({},), nprocs=2)[0], 1):
    for number, bucket in enumerate(sent):
        first, *_, last = bucket.parameters
        count = len(bucket.parameters)
        print(f"step {step}, bucket {number}: {bucket.nbytes:>10,} B, {count:>2} gradients, {first} … {last}")

# %% [markdown] id="read-buckets" lang="en"
# In step 1 the names stand in the order of the model. From step 2 on they stand in the order of backward:
# the last layer alone in the small first bucket, then the others down to layer 0. After that nothing changes
# any more.
#
# - If you chose (a): you thought of the naive version in chapter 05, which sends every gradient by itself.
# - If you chose (b): you know the documentation. These are the buckets from step 2 on; you counted one step
#   too early.

# %% [markdown] id="read-buckets" lang="zh" sync="e6f6cb94:b889073b"
# 第 1 步，名字按模型里的顺序排列。从第 2 步起，按反向传播的顺序：最后一层独占小小的首桶，其余的依次排到第 0 层。
# 此后不再变化。
#
# - 选 (a)，想的是第 05 章的朴素版本：每个梯度单独发送。
# - 选 (b)，说明读过文档。那正是第 2 步以后的桶，只是早算了一步。

# %% [markdown] id="sweep" lang="en"
# ### How large is a bucket?
#
# The same function with other caps. Each bar is all the gradients, in the order in which backward makes them,
# cut into buckets. The hatched bucket is full only when backward ends; all others can travel under it.

# %% [markdown] id="sweep" lang="zh" sync="f0bec4f5:1089ef4b"
# ### 一个桶有多大？
#
# 还是那个函数，换几个上限。每一条都是全部梯度，按反向传播算出的先后排列，切成若干个桶。带网纹的桶要到反向传播
# 结束才装满，其余的桶都能在反向传播进行时发送。

# %% id="bucket-map"
caps = {"default": None, "bucket_cap_mb=25": 25, "bucket_cap_mb=4": 4, "bucket_cap_mb=1": 1}
caps["bucket_cap_mb=0.001"] = 0.001
runs = {}
for name, cap in caps.items():
    steps = spawn(inside_ddp.record_buckets, ({"bucket_cap_mb": cap},), nprocs=2)[0]
    runs[name] = [[bucket.nbytes for bucket in sent] for sent in steps]
sizes = {"step 1": runs["default"][0]} | {name: steps[1] for name, steps in runs.items()}
plots.bucket_map(sizes)

# %% [markdown] id="bucket-map-alt" alt="bucket-map" lang="en"
# One bar of 12.6 MB for each setting. Step 1, whatever the cap, is one bucket, full when backward ends. From
# step 2 on the default has two, of which the first is small; `bucket_cap_mb=25` has one again, a cap of 4 has
# three equal ones, a cap of 1 has twelve, a cap of 0.001 has twenty-four.

# %% [markdown] id="bucket-map-alt" alt="bucket-map" lang="zh" sync="fb03b5fd:15888a7b"
# 每种设置一条，长 12.6 MB。第 1 步不管上限是多少，都只有一个桶，反向传播结束时才装满。从第 2 步起：默认设置有
# 两个桶，首桶很小；`bucket_cap_mb=25` 又只有一个；上限为 4 时是三个一样大的桶，为 1 时十二个，
# 为 0.001 时二十四个。

# %% id="sweep-claim"
for name, sent in sizes.items():
    early = sum(sent[:-1]) / sum(sent)
    print(f"{name:>19}: all-reduces = {len(sent):>2}, first = {sent[0]:>10,} B, full early = {early:4.0%}")
print("all-reduces in step 1, for each cap:", [len(steps[0]) for steps in runs.values()])
print(f"4 MB as a cap = {4 * 2**20:,} B")

# %% [markdown] id="traps" lang="en"
# Three things that surprise most people:
#
# - `bucket_cap_mb=25` is not the default. Whatever number you give, the small first bucket is gone: one bucket
#   here in place of two.
# - A bucket closes when it has *reached* the cap. With 4 MB (DDP's MB are 2^20 bytes), four layers of
#   1,050,624 B share a bucket of 4,202,496 B, a little more than the cap.
# - A gradient is never split. Below the size of the smallest one, every gradient has a bucket of its own: 24
#   all-reduces, the naive version of chapter 05.
#
# So small buckets start early, and large ones pay the latency of chapter 03 less often. Here is step 2 again,
# with a cap of 1 MB:

# %% [markdown] id="traps" lang="zh" sync="83bccb8f:20b50d2a"
# 有三点常常出人意料：
#
# - `bucket_cap_mb=25` 不等于默认设置。不管写哪个数，小小的首桶都没有了：这里一个桶，而不是两个。
# - 桶要*达到*上限才关上。上限是 4 MB 时（DDP 的 MB 是 2^20 字节），四层各 1,050,624 B 同在一个桶里，
#   共 4,202,496 B，比上限略多。
# - 一个梯度不会拆开。上限比最小的梯度还小，每个梯度就各占一个桶：24 次 all-reduce，正是第 05 章的朴素版本。
#
# 桶小，发送开始得早；桶大，第 03 章讲的时延付得少。下面还是第 2 步，上限改成 1 MB：

# %% id="one-mb"
trace_1mb = trace.with_name("trace_1mb.json")
options = {"bucket_cap_mb": 1}
spawn(inside_ddp.profile_steps, (str(trace_1mb.absolute()), 2, options), nprocs=2, backend="gloo", show=False)
backward_1mb = in_phase(read_spans(trace_1mb), "backward 2")
plots.backward_timeline({"step 2, bucket_cap_mb=1": backward_1mb})

# %% [markdown] id="one-mb-alt" alt="one-mb" lang="en"
# One timeline: twelve blocks of gradients above, twelve short all-reduces below, in two rows where they run at
# the same time. The first of them begin early and run under the gradients that are still being computed.

# %% [markdown] id="one-mb-alt" alt="one-mb" lang="zh" sync="3017712f:5f35c810"
# 一条时间线：上排是十二块梯度计算，下面是十二次较短的 all-reduce，同时进行的分成两排。最早的几次很早就开始，
# 与还在进行的梯度计算重叠。

# %% id="one-mb-claim"
computed, sent = stretch(layer_gradients(backward_1mb)), collectives(backward_1mb)
early = sum(one.start < computed.end for one in sent)
print(f"all-reduces = {len(sent)}, of which begun before the last gradient was done = {early}")
print(f"overlap > 0: {overlap(computed, sent) > 0}")

# %% [markdown] id="overlap-note" lang="en"
# More all-reduces now run under the backward pass. Whether that also saves time depends on what they compete
# for: on a CPU, Gloo's threads need the same cores as the gradients. Measure before you tune; chapter 16 does.

# %% [markdown] id="overlap-note" lang="zh" sync="51453469:b4ac7b98"
# 现在有更多的 all-reduce 和反向传播同时进行。这样能不能省时间，要看它们争不争同样的资源：在 CPU 上，Gloo 的线程
# 和梯度计算用的是同样几个核。调之前先测量，第 16 章会这样做。

# %% [markdown] id="options" lang="en"
# ### Two options
#
# Normally every gradient exists twice: in `.grad`, and as a copy in its bucket. With
# `gradient_as_bucket_view=True`, `.grad` is a window into the bucket:

# %% [markdown] id="options" lang="zh" sync="df82f388:85506de8"
# ### 两个选项
#
# 通常，每个梯度都有两份：一份在 `.grad` 里，一份是桶里的副本。设 `gradient_as_bucket_view=True` 之后，
# `.grad` 就是桶上的一个窗口：

# %% id="view"
show_source(inside_ddp.gradient_storages)
for as_view in (False, True):
    gradients, blocks = spawn(inside_ddp.gradient_storages, (as_view,), nprocs=2)[0]
    print(f"gradient_as_bucket_view={as_view}: {gradients} gradients in {blocks} blocks of memory")

# %% [markdown] id="static" lang="en"
# Two blocks: the two buckets. The second copy, 12.6 MB here, is saved.
#
# `static_graph=True` is a promise of yours: every step uses the same parameters in the same way. What it buys is
# a matter for chapter 10, with `find_unused_parameters`. Both change when the buckets are rebuilt. All-reduces
# in steps 1, 2 and 3:

# %% [markdown] id="static" lang="zh" sync="1383d44d:7d044acc"
# 两块内存，就是那两个桶。第二份梯度省掉了，这里是 12.6 MB。
#
# `static_graph=True` 是我们的一个承诺：每一步用到的参数和用法都相同。它能换来什么，和 `find_unused_parameters`
# 一起放在第 10 章讲。这两个选项都会改变重建桶的时机。第 1、2、3 步的 all-reduce 次数：

# %% id="static-graph"
for options in ({}, {"static_graph": True}, {"find_unused_parameters": True}):
    steps = spawn(inside_ddp.record_buckets, (options,), nprocs=2)[0]
    print(f"{[len(sent) for sent in steps]}  {options or 'default'}")

# %% [markdown] id="static-why" lang="en"
# With `static_graph`, step 1 is spent on counting how often each parameter is used. The order is noted in step
# 2, and the new buckets come in step 3. With `find_unused_parameters` there are two buckets from the start, and
# they are never rebuilt: a parameter that is not used in one step may be used in the next.

# %% [markdown] id="static-why" lang="zh" sync="8cd2c78b:c589265c"
# 设了 `static_graph`，第 1 步用来数每个参数用了几次，第 2 步才记顺序，第 3 步才有新桶。设了
# `find_unused_parameters`，一开始就是两个桶，而且永不重建：这一步没用到的参数，下一步可能又会用到。

# %% [markdown] id="alone" lang="en"
# ## What it leaves alone
#
# You have seen every message that DDP sends for this model: weights once, gradients in every step. Here is what
# one step leaves on each rank. The model has a BatchNorm layer, whose running mean is a **buffer**: it belongs
# to the model, but has no gradient.

# %% [markdown] id="alone" lang="zh" sync="7e974ac9:6e160e5e"
# ## 它不管的事
#
# DDP 为这个模型发送的消息，我们全看过了：权重一次，梯度每步都有。再看走完一步之后，每个 rank 手里是什么。
# 下面的模型里有一层批归一化（BatchNorm），它的滑动平均是**缓冲张量**（buffer）：属于模型，但没有梯度。

# %% id="step-source"
show_source(inside_ddp.Classifier, inside_ddp.train_step)


# %% id="alone-run"
def compare(ranks):
    for name in ("loss", "gradients", "weights", "running_mean"):
        first, second = (getattr(rank, name) for rank in ranks)
        print(f"{name:>12}: max|rank 0 − rank 1| = {(first - second).abs().max():.1g}")


ranks = spawn(inside_ddp.train_step, (lambda ddp, x, y: F.cross_entropy(ddp(x), y),), nprocs=2)
compare(ranks)

# %% [markdown] id="alone-why" lang="en"
# Gradients and weights are equal, bit for bit. The loss is each rank's own, and so is every metric that you do
# not reduce yourself (chapter 04). The buffers differ too. DDP does broadcast rank 0's before every forward
# (`forward_sync_buffers`, called `broadcast_buffers` in older versions), but then each forward updates them
# with its own samples (chapter 08).
#
# Two forwards before one backward broadcast twice. Some versions of PyTorch
# [failed with BatchNorm here](https://github.com/pytorch/pytorch/issues/175024); this one does not:

# %% [markdown] id="alone-why" lang="zh" sync="75e0fc3e:26075d93"
# 梯度和权重逐位相同。损失是每个 rank 自己的；任何指标，只要我们不去归约，也都是这样（第 04 章）。缓冲张量也不同：
# DDP 确实会在每次前向传播之前广播 rank 0 的缓冲张量（`forward_sync_buffers`，旧版本叫 `broadcast_buffers`），
# 可随后的前向传播又各自用自己的样本更新了它（第 08 章）。
#
# 两次前向、一次反向，就会广播两次。有些版本的 PyTorch
# [碰到 BatchNorm 会在这里报错](https://github.com/pytorch/pytorch/issues/175024)，这个版本不会：


# %% id="two-forwards"
def twice(ddp, x, y):
    return F.cross_entropy(ddp(x), y) + F.cross_entropy(ddp(1 - x), y)


compare(spawn(inside_ddp.train_step, (twice,), nprocs=2))

# %% [markdown] id="module" lang="en"
# And the wrapper is a module around your module, its `.module`. What you save from it shows that in every name,
# and the plain model does not know these names:

# %% [markdown] id="module" lang="zh" sync="bafb3f39:35dbdd0f"
# 另外，这层包装本身也是一个模块，我们的模型是它的 `.module`。从它保存的每个名字都带着这个前缀，而没有包装的模型
# 不认识这些名字：

# %% id="prefix"
with shows(RuntimeError):
    inside_ddp.Classifier().load_state_dict(ranks[0].state)
plain = {name.removeprefix("module."): tensor for name, tensor in ranks[0].state.items()}
print(inside_ddp.Classifier().load_state_dict(plain))

# %% [markdown] id="break" lang="en"
# Save `ddp.module.state_dict()`, and there is no prefix to take off (chapter 12).
#
# ## Break it: around the wrapper
#
# `Classifier` has a method `loss`. The wrapper has not:

# %% [markdown] id="break" lang="zh" sync="bafd764e:be1404a6"
# 保存时用 `ddp.module.state_dict()`，就没有前缀要去掉了（第 12 章）。
#
# ## 弄坏它：绕过包装
#
# `Classifier` 有个方法叫 `loss`，包装却没有：

# %% id="no-method"
with shows(RankFailed):
    spawn(inside_ddp.train_step, (lambda ddp, x, y: ddp.loss(x, y),), nprocs=2)

# %% [markdown] id="break-inner" lang="en"
# The next idea is everybody's: go through `.module`.

# %% [markdown] id="break-inner" lang="zh" sync="41fec297:67f59e9a"
# 接下来，谁都会想到走 `.module`：

# %% id="inner"
alone = spawn(inside_ddp.train_step, (lambda ddp, x, y: ddp.module.loss(x, y),), nprocs=2)
compare(alone)
mean = (alone[0].gradients + alone[1].gradients) / 2
print(f"max|mean of these gradients − gradients through DDP| = {(mean - ranks[0].gradients).abs().max():g}")

# %% [markdown] id="break-why" lang="en"
# No error, a sensible loss, and the gradients differ: nobody has averaged them. From here on each rank trains
# a model of its own. The hooks on the parameters are there, but only DDP's own `forward` makes them ready for a
# backward pass; without it they let every gradient go by.
#
# So in training, call the wrapper: `F.cross_entropy(ddp(x), y)`, as in the table before. What needs another
# method goes into the model's `forward`. In evaluation, with no backward to come, `ddp.module(x)` is fine.

# %% [markdown] id="break-why" lang="zh" sync="282d05ae:068cecbd"
# 没有报错，损失也像样，梯度却不相同：没有人替它们求平均。从这里起，每个 rank 各练各的模型。参数上的钩子都在，
# 但只有 DDP 自己的 `forward` 才会让它们为反向传播做好准备；没有经过它，梯度来了，钩子也不理会。
#
# 所以训练时要调用包装本身：`F.cross_entropy(ddp(x), y)`，就像前面那张表。需要别的方法时，把它写进模型的
# `forward`。评估时没有反向传播，用 `ddp.module(x)` 没有问题。

# %% [markdown] id="your-turn" lang="en"
# ## Your turn
#
# Cut gradients into buckets as DDP does after the rebuild. `sizes` are the bytes of each parameter's gradient, in
# the order of `model.parameters()`. The first bucket has the cap `first_cap`, all others have `cap`. Return the
# buckets in the order in which they are sent, each a list of sizes. `check` compares with what DDP does for four
# models.
#
# `hint("inside_ddp-1")` gives a hint, `solution("inside_ddp-1")` the answer.

# %% [markdown] id="your-turn" lang="zh" sync="ae6a81cc:a2fd86ce"
# ## 动手试试
#
# 像重建之后的 DDP 那样分桶。`sizes` 是每个参数的梯度有多少字节，顺序同 `model.parameters()`。第一个桶的上限是
# `first_cap`，其余的是 `cap`。按发送的先后返回各个桶，每个桶是一个由大小组成的列表。`check` 会拿四个模型，
# 和 DDP 实际的分法比对。
#
# 需要提示就运行 `hint("inside_ddp-1")`，想看答案就运行 `solution("inside_ddp-1")`。


# %% id="exercise"
def buckets(sizes, first_cap, cap):
    """The buckets, for example [[40, 400], [80]] from sizes [80, 400, 40] and caps of 100 and 1000."""
    ...


check("inside_ddp-1", buckets)

# %% [markdown] id="next" lang="en"
# ## Next
#
# - Chapter 07: four times the batch, when to send nothing at all (`no_sync`), and what happens to the learning
#   rate.
# - Chapter 10: what DDP says when a bucket never gets full, because a parameter was not used.
# - Chapter 17: other communication hooks, which send fewer bytes.
#
# Sources: [the DDP design note](https://docs.pytorch.org/docs/stable/notes/ddp.html) ·
# [the paper behind DDP](https://arxiv.org/abs/2006.15704) ·
# [communication hooks](https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html)

# %% [markdown] id="next" lang="zh" sync="b2ec161e:96095116"
# ## 接下来
#
# - 第 07 章：批量大四倍会怎样，什么时候可以一个字节都不发（`no_sync`），学习率又该怎么办。
# - 第 10 章：有参数没用到，桶永远装不满，这时 DDP 会说什么。
# - 第 17 章：别的通信钩子，可以少发一些字节。
#
# 参考资料：[DDP 设计说明](https://docs.pytorch.org/docs/stable/notes/ddp.html) ·
# [DDP 的论文](https://arxiv.org/abs/2006.15704) ·
# [通信钩子](https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html)
