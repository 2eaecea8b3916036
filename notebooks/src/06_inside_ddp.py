# %% [markdown] id="title" lang="en"
# # 06 · Inside DDP: what does the wrapper do, when?
#
# In chapter 05 you wrote DDP yourself. Now you open PyTorch's own. After this chapter you can:
#
# - list what DDP sends when it is built, in a forward pass and in a backward pass;
# - say which gradients travel together, and read it from DDP itself;
# - tell what DDP keeps equal on all ranks, and what it leaves to you.

# %% [markdown] id="title" lang="zh" sync="92843fcc:08e30806"
# # 06 · DDP 的内部：这层包装在什么时候做了什么？
#
# 第 05 章里，我们自己写了 DDP；现在打开 PyTorch 自带的 DDP。读完这一章，我们就能：
#
# - 说出 DDP 在构造、前向传播、反向传播时各发送了什么；
# - 说出哪些梯度一起发送，并直接从 DDP 那里读出来；
# - 分清哪些东西 DDP 保证处处一致，哪些要我们自己管。

# %% [markdown] id="words" lang="en"
# A **bucket** (chapter 05) holds the gradients of several parameters, which travel together in one all-reduce.
# `bucket_cap_mb` sets how large it may get, its **cap**: by default 25 MB, and 1 MB for the first bucket.

# %% [markdown] id="words" lang="zh" sync="e32d8d43:a493692a"
# 第 05 章的**梯度桶**（bucket）装着几个参数的梯度，用一次 all-reduce（全归约）一起发送。一个桶装多少，由**上限**
# （cap）`bucket_cap_mb` 决定：默认是 25 MB，只有第一个桶是 1 MB。

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
# train it with `DDP(model)`, no options. How many all-reduces does DDP launch in the first step?
#
# - (a) 24: one for each parameter
# - (b) two: a first bucket of about 1 MB, and one with all the rest, which is below 25 MB
# - (c) one: all 24 gradients are in one bucket
#
# Write your letter down before you read on.

# %% [markdown] id="predict" lang="zh" sync="04a10444:c5afaae6"
# ## 先猜一猜
#
# 一个模型有 12 个同样的层，每层一个权重、一个偏置：共 24 个参数，12.6 MB 梯度。两个 rank（组内的进程）用
# `DDP(model)` 训练它，不加任何选项。第一步里，DDP 会发起几次 all-reduce？
#
# - (a) 24 次：每个参数一次
# - (b) 两次：首桶约 1 MB；剩下的不到 25 MB，装在另一个桶里
# - (c) 一次：24 个梯度都在一个桶里
#
# 先写下你的答案，再往下看。

# %% [markdown] id="run" lang="en"
# ## Run it
#
# Each rank runs this function under PyTorch's **profiler** (chapter 05), which records when every operation begins
# and ends. `record_function` adds marks to the record, the **trace**, so that you can tell the phases apart.

# %% [markdown] id="run" lang="zh" sync="dd0e0f13:7846946f"
# ## 跑起来
#
# 每个 rank 都运行下面的函数，同时由第 05 章见过的**性能分析器**（profiler）记下每个操作何时开始、何时结束。
# 这份记录叫**跟踪记录**（trace）；`record_function` 在里面做上标记，好分清各个阶段。

# %% id="source"
show_source(inside_ddp.deep_model, inside_ddp.profile_steps)

# %% [markdown] id="launch" lang="en"
# Rank 0 writes its trace to a file. From it, the next cell lists the collectives of each phase, and how many
# numbers each works on. It all runs on the CPU with Gloo, even where there are GPUs: the profiler sees Gloo's
# threads.

# %% [markdown] id="launch" lang="zh" sync="3c0ea862:b6ee011a"
# rank 0 把跟踪记录存成文件。下一个单元格从中列出每个阶段的集合通信（collective），以及每次处理多少个数。
# 即使有 GPU，这里也只用 CPU 和 Gloo：Gloo 的线程，性能分析器看得到。

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
# The two backward passes, from the same trace. Each block above computes one layer's gradients, last layer
# first; the blocks below are the all-reduces. The 3,151,872 numbers, 4 bytes each, are 12.6 MB.

# %% [markdown] id="see" lang="zh" sync="fcc2b229:dd6d9e83"
# ## 看结果
#
# 同一份跟踪记录里的两次反向传播：上排每一块是在算一层的梯度，从最后一层算起；下排是 all-reduce。
# 那 3,151,872 个数，每个 4 字节，就是 12.6 MB。

# %% id="timeline"
plots.backward_timeline({f"step {step}": in_phase(spans, f"backward {step}") for step in (1, 2)})

# %% [markdown] id="timeline-alt" alt="timeline" lang="en"
# Two timelines on one axis in ms. In step 1 a single all-reduce of 12.6 MB begins after the last of twelve blocks
# of gradients. In step 2 one of 1.05 MB begins soon after the first block and runs while others are computed; a
# second one, 11.6 MB, again begins after the last block.

# %% [markdown] id="timeline-alt" alt="timeline" lang="zh" sync="78d7ea0a:50e63c18"
# 两条时间线共用一条横轴，单位是毫秒。第 1 步里，十二块梯度全部算完，才开始唯一一次 12.6 MB 的 all-reduce。
# 第 2 步里，第一块算完不久，1.05 MB 的 all-reduce 就开始了，与后面的计算同时进行；11.6 MB 的那次，仍要等最后一块
# 算完。

# %% id="claim"
for step in (1, 2):
    backward = in_phase(spans, f"backward {step}")
    computed, sent = stretch(layer_gradients(backward)), collectives(backward)
    carried = " + ".join(f"{4 * one.numbers / 1e6:.3g} MB" for one in sent)
    print(f"step {step}: all-reduces = {carried}, overlap > 0: {overlap(computed, sent) > 0}")

# %% [markdown] id="read" lang="en"
# **The answer is (c).** In step 1 one all-reduce carries everything. It cannot begin before the last gradient
# is done, so computing and sending take turns: no **overlap**. In step 2 the first of two buckets travels while
# backward still runs. But the second holds eleven of the twelve layers and has to wait: by default, a model of
# less than 25 MB sends only its first bucket early.
#
# To look around in the trace, open `runs/inside_ddp/trace.json`, beside this notebook, in a viewer such as
# [Perfetto](https://ui.perfetto.dev). Search for `gloo:all_reduce`; Gloo's threads are called `pt_gloo_runloop`.

# %% [markdown] id="read" lang="zh" sync="bf9f1c4f:d1fc8776"
# **答案是 (c)**。第 1 步里，一次 all-reduce 发送全部梯度，要等最后一个梯度算完才能开始：先计算，后通信，
# 没有**重叠**（overlap）。第 2 步有两个桶，第一个桶发送时，反向传播还在继续；可是第二个桶装着十二层里的
# 十一层，仍要等到最后。模型不到 25 MB 时，默认设置下只有首桶能提前发送。
#
# 想自己翻看，可以用 [Perfetto](https://ui.perfetto.dev) 这类查看器打开 notebook 旁边的
# `runs/inside_ddp/trace.json`，再搜索 `gloo:all_reduce`。Gloo 的线程叫 `pt_gloo_runloop`。

# %% [markdown] id="why" lang="en"
# ## Why
#
# Read the list of messages from the top.
#
# **construct.** The ranks must hold the same model. In `all_gather of 1` each tells how many parameters it has.
# `broadcast of 72` carries the shapes of rank 0's parameters and how they lie in memory, six numbers per layer;
# every rank compares them with its own. `broadcast of 3,151,872` is all of rank 0's weights. Here is one weight
# before and after `DDP(layer)`; each rank starts from a seed of its own:

# %% [markdown] id="why" lang="zh" sync="65d06e77:e35bdff4"
# ## 为什么
#
# 从上往下读前面那张消息清单。
#
# **construct（构造）**。各个 rank 手里必须是同一个模型。`all_gather of 1`（全收集）报告每个 rank 有几个参数。
# `broadcast of 72` 是 rank 0 各个参数的形状和内存排列，每层六个数，别的 rank 拿它和自己的比对。
# `broadcast of 3,151,872` 是 rank 0 的全部权重。下面各个 rank 用不同的种子，看同一个权重在 `DDP(layer)` 前后的值：

# %% id="wrap"
show_source(inside_ddp.wrap)
for rank, (before, after) in enumerate(spawn(inside_ddp.wrap, (100,), nprocs=2)):
    print(f"rank {rank}: {before:+.6f} → {after:+.6f}")

# %% [markdown] id="mismatch-intro" lang="en"
# And if one rank reads another configuration? Rank 0 builds a layer with 100 outputs, rank 1 one with 101:

# %% [markdown] id="mismatch-intro" lang="zh" sync="36ab801f:6a7fc12d"
# 如果有个 rank 读错了配置呢？下面 rank 0 的层有 100 个输出，rank 1 的有 101 个：

# %% id="mismatch"
with shows(RankFailed):
    spawn(inside_ddp.wrap_unequal, nprocs=2)

# %% [markdown] id="rebuild" lang="en"
# Rank 1 finds the difference before a single step has run. After construction DDP never compares or copies
# weights again.
#
# **backward 1.** A bucket can leave once all its gradients are there, so it should hold gradients that become
# ready one after another. DDP has not seen a backward pass yet. So it puts everything into one bucket, and notes
# in which order the gradients become ready.
#
# **forward 2.** Now DDP **rebuilds** its buckets in that order: rank 0's, since all ranks must send the same
# buckets. `broadcast of 25` carries the 24 parameters in order and the number of buckets, `broadcast of 2` how many
# parameters each bucket holds.
#
# A **communication hook** is a function that DDP calls with each full bucket, in place of its own all-reduce.
# Here `watch` writes down what is inside, then does the same all-reduce:

# %% [markdown] id="rebuild" lang="zh" sync="eee3ce15:3816c8ef"
# 一步都还没跑，rank 1 就发现了差别。构造完成以后，DDP 不再比对或复制权重。
#
# **backward 1**。桶里的梯度到齐才能发送，所以最好把接连算好的放在一起。可这时 DDP 还没见过反向传播，
# 只好先把所有梯度放进一个桶，同时记下它们算好的先后。
#
# **forward 2**。现在 DDP 按这个先后**重建**（rebuild）各个桶。每个 rank 发送的桶必须一样，所以都听 rank 0 的：
# `broadcast of 25` 是 24 个参数的顺序和桶的个数，`broadcast of 2` 是每个桶里有几个参数。
#
# **通信钩子**（communication hook）是一个函数，每装满一个桶，DDP 就调用它，代替自己的 all-reduce。
# 下面的 `watch` 先记下桶里的内容，再照样做 all-reduce：

# %% id="hook-source"
show_source(inside_ddp.record_buckets)

# %% id="buckets"
for step, sent in enumerate(spawn(inside_ddp.record_buckets, ({},), nprocs=2)[0], 1):
    for number, bucket in enumerate(sent):
        first, *_, last = bucket.parameters
        count = len(bucket.parameters)
        print(f"step {step}, bucket {number}: {bucket.nbytes:>10,} B, {count:>2} gradients, {first} … {last}")

# %% [markdown] id="read-buckets" lang="en"
# In step 1 the gradients stand in the order of the model. From step 2 on they stand in the order of backward:
# the last layer alone in the small first bucket, then the others down to layer 0.
#
# - If you chose (a): you thought of the naive version in chapter 05.
# - If you chose (b): you cut by the caps, as DDP does from step 2 on. In step 1 it does not know the order yet.

# %% [markdown] id="read-buckets" lang="zh" sync="9571d6e2:7826c716"
# 第 1 步，梯度按模型里的顺序排列；从第 2 步起，按反向传播的顺序：最后一层独占首桶，其余的依次排到第 0 层。
#
# - 选 (a)，想的是第 05 章的第 1 版。
# - 选 (b)，是按上限来分桶，DDP 从第 2 步起也是这样；可在第 1 步，它还不知道先后。

# %% [markdown] id="sweep" lang="en"
# ### How large is a bucket?
#
# The same function with other caps. Each bar is all the gradients, in the order of backward, cut into buckets.
# The hatched bucket is full only with the last gradient; all others can leave earlier. The thin buckets of the
# bottom bar are the biases.

# %% [markdown] id="sweep" lang="zh" sync="2c73babf:3bb8cd83"
# ### 一个桶有多大？
#
# 还是那个函数，换几个上限。每一条都是全部梯度，按反向传播的先后排列，切成桶。带网纹的桶要等最后一个梯度算完
# 才装满，其余的都能提前发送。最下面一条里，窄得看不见的桶装的是偏置。

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
# One bar of 12.6 MB for each setting; its last bucket is full only with the last gradient. Step 1, whatever the cap,
# is that one bucket. From step 2 on the default has two, of which the first is small; `bucket_cap_mb=25` has one
# again, a cap of 4 three equal ones, a cap of 1 twelve, a cap of 0.001 twenty-four, half of them too thin to see.

# %% [markdown] id="bucket-map-alt" alt="bucket-map" lang="zh" sync="e6a47db0:8ebcd042"
# 每种设置一条，长 12.6 MB，最后一个桶要等最后一个梯度算完才装满。第 1 步不管上限是多少，都只有这一个桶。从第 2 步起：
# 默认设置有两个，首桶很小；`bucket_cap_mb=25` 又只有一个；上限为 4 时是三个一样大的，为 1 时十二个，为 0.001 时
# 二十四个，其中一半窄得看不见。

# %% id="sweep-claim"
for name, sent in sizes.items():
    early = sum(sent[:-1]) / sum(sent)
    print(
        f"{name:>19}: all-reduces = {len(sent):>2}, first = {sent[0]:>10,} B, "
        f"bytes full before the last gradient = {early:4.0%}"
    )
print("all-reduces in step 1, for each cap:", [len(steps[0]) for steps in runs.values()])
print(f"4 MB as a cap = {4 * 2**20:,} B")

# %% [markdown] id="traps" lang="en"
# Three surprises:
#
# - `bucket_cap_mb=25` is not the default. A number that you give is the first bucket's cap too: one
#   bucket here, not two.
# - A bucket closes when it has *reached* the cap. With 4 MB (DDP's MB are 2^20 bytes), four layers of
#   1,050,624 B share a bucket of 4,202,496 B, a little more than the cap.
# - A gradient is never split. With a cap below the smallest one, every gradient has a bucket of its own: 24
#   all-reduces, as in the naive version of chapter 05.
#
# So small buckets start early, and large ones pay the latency of chapter 03 less often. Step 2 again, with a cap
# of 1 MB; where two all-reduces run at once, one is drawn in a second row:

# %% [markdown] id="traps" lang="zh" sync="d01cc22b:1bf92ebb"
# 有三点出人意料：
#
# - `bucket_cap_mb=25` 不等于默认设置。不管写哪个数，它也成了首桶的上限：这里一个桶，而不是两个。
# - 桶要*达到*上限才关上。上限是 4 MB 时（DDP 的 MB 是 2^20 字节），四层各 1,050,624 B 同在一个桶里，
#   共 4,202,496 B，比上限略多。
# - 梯度不会拆开。上限比最小的梯度还小，每个梯度就各占一个桶：24 次 all-reduce，正是第 05 章的第 1 版。
#
# 所以桶小，发送开始得早；桶大，第 03 章讲的时延就少付几次。再看第 2 步，上限改成 1 MB；两次 all-reduce
# 同时进行时，一次画在第二排：

# %% id="one-mb"
trace_1mb = trace.with_name("trace_1mb.json")
options = {"bucket_cap_mb": 1}
spawn(inside_ddp.profile_steps, (str(trace_1mb.absolute()), 2, options), nprocs=2, backend="gloo", show=False)
backward_1mb = in_phase(read_spans(trace_1mb), "backward 2")
plots.backward_timeline({"step 2, bucket_cap_mb=1": backward_1mb})

# %% [markdown] id="one-mb-alt" alt="one-mb" lang="en"
# One timeline: twelve blocks of gradients above, twelve all-reduces below, in two rows where they run at the
# same time. Most of them begin while gradients are still being computed.

# %% [markdown] id="one-mb-alt" alt="one-mb" lang="zh" sync="bf5e4ca7:4420687d"
# 一条时间线：上排是十二块梯度计算，下面是十二次 all-reduce，同时进行的分成两排，大多数在梯度还没算完时就已开始。

# %% id="one-mb-claim"
computed, sent = stretch(layer_gradients(backward_1mb)), collectives(backward_1mb)
early = sum(one.start < computed.end for one in sent)
print(f"all-reduces = {len(sent)}, of which begun before the last gradient was done = {early}")
print(f"overlap > 0: {overlap(computed, sent) > 0}")

# %% [markdown] id="overlap-note" lang="en"
# More all-reduces now begin before the last gradient is done. Whether that saves time depends on what they compete for:
# on a CPU, Gloo's threads need the same cores as the gradients. Measure before you tune, as in chapter 16.

# %% [markdown] id="overlap-note" lang="zh" sync="83cc0782:20aa7384"
# 现在，更多的 all-reduce 在最后一个梯度算完之前就开始了。能不能省时间，要看两者争不争资源：在 CPU 上，Gloo 的线程
# 和梯度计算用的是同样几个核。先测量，再调整，第 16 章就这样做。

# %% [markdown] id="options" lang="en"
# ### Options
#
# Normally every gradient exists twice: in `.grad`, and as a copy in its bucket. With
# `gradient_as_bucket_view=True`, `.grad` is a view of the bucket, as in version 2 of chapter 05:

# %% [markdown] id="options" lang="zh" sync="38025033:8dfbd631"
# ### 选项
#
# 通常，每个梯度都有两份：一份在 `.grad` 里，一份在桶里。设了 `gradient_as_bucket_view=True`，`.grad` 就只是桶的
# 视图，和第 05 章的第 2 版一样：

# %% id="view"
show_source(inside_ddp.gradient_storages)
for as_view in (False, True):
    gradients, blocks = spawn(inside_ddp.gradient_storages, (as_view,), nprocs=2)[0]
    print(f"gradient_as_bucket_view={as_view}: {gradients} gradients in {blocks} blocks of memory")

# %% [markdown] id="static" lang="en"
# Two blocks: the two buckets. The second copy, 12.6 MB here, is saved.
#
# With `static_graph=True` you promise that every step uses the same parameters in the same way;
# `find_unused_parameters=True` allows for steps that leave some out. Chapter 10 shows what they buy. Both change
# when the buckets are rebuilt. All-reduces in steps 1, 2 and 3:

# %% [markdown] id="static" lang="zh" sync="fcce58c3:beb91171"
# 两块内存，就是那两个桶。第二份梯度省掉了，这里是 12.6 MB。
#
# 设 `static_graph=True`，是承诺每一步用到的参数和用法都相同；设 `find_unused_parameters=True`，则允许某一步
# 有参数没用到。它们能换来什么，第 10 章再讲。两者都会影响桶何时重建，看第 1、2、3 步的 all-reduce 次数：

# %% id="static-graph"
for options in ({}, {"static_graph": True}, {"find_unused_parameters": True}):
    steps = spawn(inside_ddp.record_buckets, (options,), nprocs=2)[0]
    print(f"{[len(sent) for sent in steps]}  {options or 'default'}")

# %% [markdown] id="static-why" lang="en"
# With `static_graph`, DDP counts in step 1 how often each parameter is used, notes the order in step 2, and has
# the new buckets in step 3. With `find_unused_parameters` it cuts by the caps from the start and never rebuilds:
# a parameter that is not used in one step may be used in the next.

# %% [markdown] id="static-why" lang="zh" sync="a2a25c4b:0e434770"
# 设了 `static_graph`，第 1 步用来数每个参数用了几次，第 2 步才记先后，第 3 步才有新桶。设了
# `find_unused_parameters`，一开始就按上限分桶，而且永不重建：这一步没用到的参数，下一步可能又会用到。

# %% [markdown] id="alone" lang="en"
# ## What it leaves alone
#
# These were all the messages for this model: weights and the order of the buckets once, gradients in every step.
# What does one step leave on each rank? The next model has a BatchNorm layer. Its running mean is a **buffer** of
# the model, not a flat buffer: a tensor that is saved, but has no gradient.

# %% [markdown] id="alone" lang="zh" sync="bb13325d:8346b2a3"
# ## 它不管的事
#
# 上面那个模型的消息，我们全看过了：权重和桶的顺序各一次，梯度每步都有。走完一步之后，每个 rank 手里是什么？
# 下面的模型里有一层批归一化（BatchNorm），它的滑动平均是**缓冲张量**（buffer）：随模型保存，但没有梯度，
# 和展平缓冲区不是一回事。

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
# not reduce (chapter 04). The buffers differ too: DDP broadcasts rank 0's before every forward
# (`forward_sync_buffers`, in older versions `broadcast_buffers`), but then each rank updates them with its own
# samples (chapter 08).
#
# Two forwards before one backward: some versions of PyTorch
# [failed with BatchNorm here](https://github.com/pytorch/pytorch/issues/175024); this one does not:

# %% [markdown] id="alone-why" lang="zh" sync="08076df0:8891a293"
# 梯度和权重逐位相同。损失各是各的；没有归约过的指标也都如此（第 04 章）。缓冲张量也不同：每次前向传播之前，
# DDP 会广播 rank 0 的那份（`forward_sync_buffers`，旧版本叫 `broadcast_buffers`），可随后每个 rank 又用自己的样本
# 更新了它（第 08 章）。
#
# 两次前向、一次反向：有些版本的 PyTorch
# [碰到 BatchNorm 会在这里报错](https://github.com/pytorch/pytorch/issues/175024)，这个版本不会：


# %% id="two-forwards"
def twice(ddp, x, y):
    return F.cross_entropy(ddp(x), y) + F.cross_entropy(ddp(1 - x), y)


compare(spawn(inside_ddp.train_step, (twice,), nprocs=2))

# %% [markdown] id="module" lang="en"
# The wrapper is a module around yours, its `.module`. As in chapter 05, every name that you save from it begins
# with `module.`, and the plain model does not know these names:

# %% [markdown] id="module" lang="zh" sync="9b3ce069:eb98e89c"
# 包装本身也是一个模块，我们的模型是它的 `.module`。和第 05 章一样，它存下的每个名字都以 `module.` 开头，
# 没有包装的模型不认识：

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
# The next idea is to go through `.module`:

# %% [markdown] id="break-inner" lang="zh" sync="306cceb9:758be7c1"
# 谁都会想到的下一招，是走 `.module`：

# %% id="inner"
alone = spawn(inside_ddp.train_step, (lambda ddp, x, y: ddp.module.loss(x, y),), nprocs=2)
compare(alone)
mean = (alone[0].gradients + alone[1].gradients) / 2
gap = (mean - ranks[0].gradients).abs().max()
print(f"max|mean of these gradients − gradients through DDP| < 1e-6: {gap < 1e-6}")
for way, both in (("through DDP", ranks), ("through .module", alone)):
    print(f"{way:>15}: losses = {', '.join(f'{rank.loss:.4f}' for rank in both)}")

# %% [markdown] id="break-why" lang="en"
# No error, and the very losses of before. But the gradients differ now: nobody has averaged them. Their mean is
# what DDP gave before. From here on each rank trains a model of its own. Only DDP's own `forward` makes the
# hooks on the parameters ready; without it they let every gradient go by.
#
# So in training, call the wrapper: `F.cross_entropy(ddp(x), y)`, as in the first comparison. What needs another
# method goes into the model's `forward`. In evaluation, with no backward to come, `ddp.module(x)` is fine.

# %% [markdown] id="break-why" lang="zh" sync="a5571f65:ae4eb63d"
# 没有报错，损失和先前一模一样，梯度却不再相同：没有人求平均。我们自己补上这一步，就得到先前 DDP 的梯度。
# 从这里起，每个 rank 各练各的模型。参数上的钩子，要由 DDP 自己的 `forward` 准备好才管用；绕过了它，
# 梯度来了，钩子也不理会。
#
# 所以训练时要调用包装本身，像前面那样写 `F.cross_entropy(ddp(x), y)`。要用别的方法，就写进模型的 `forward`。
# 评估时没有反向传播，用 `ddp.module(x)` 没有问题。

# %% [markdown] id="your-turn" lang="en"
# ## Your turn
#
# Cut gradients into buckets as DDP does after the rebuild. `sizes` are the bytes of each parameter's gradient, in
# the order of `model.parameters()`. The first bucket has the cap `first_cap`, all others `cap`, both in bytes.
# Return the buckets in the order in which they are sent, each a list of sizes. `check` compares them with DDP's
# own for four models.
#
# `hint("inside_ddp-1")` gives a hint, `solution("inside_ddp-1")` the answer.

# %% [markdown] id="your-turn" lang="zh" sync="7d16570b:f3515c3c"
# ## 动手试试
#
# 像重建之后的 DDP 那样分桶。`sizes` 是每个参数的梯度有多少字节，顺序同 `model.parameters()`。首桶的上限是
# `first_cap`，其余的是 `cap`，单位都是字节。按发送的先后返回各个桶，每个桶是一个由字节数组成的列表。
# `check` 会用四个模型，和 DDP 实际的分法比对。
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
# - Chapter 07: four times the batch, when to send nothing at all (`no_sync`), and what happens to the
#   learning rate.
# - Chapter 10: what DDP says when a bucket never gets full, because a parameter was not used.
# - Chapter 17: other communication hooks, which send fewer bytes.
#
# Sources: [the DDP design note](https://docs.pytorch.org/docs/stable/notes/ddp.html) ·
# [the paper behind DDP](https://arxiv.org/abs/2006.15704) ·
# [communication hooks](https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html)

# %% [markdown] id="next" lang="zh" sync="f6946d92:a6d62ec6"
# ## 接下来
#
# - 第 07 章：批量变成四倍会怎样，什么时候可以一个字节都不发（`no_sync`），学习率又该怎么办。
# - 第 10 章：有参数没用到，桶永远装不满，这时 DDP 会说什么。
# - 第 17 章：别的通信钩子，可以少发一些字节。
#
# 参考资料：[DDP 设计说明](https://docs.pytorch.org/docs/stable/notes/ddp.html) ·
# [DDP 的论文](https://arxiv.org/abs/2006.15704) ·
# [通信钩子](https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html)
