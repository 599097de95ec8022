"""Answers to lab 08 that students really give, and what they must be told."""

import json
from collections import Counter, defaultdict

import numpy as np
from changed_solution import change, forgets_to_return

# --- 08-1


def _order(size, *seed):
    return np.random.RandomState(list(seed)).permutation(size).tolist()


def permuted_so_often(size, world_size, rank, seed, epoch):
    """One generator, which draws a permutation for each epoch up to this one."""
    generator = np.random.RandomState(seed)
    order = [generator.permutation(size) for _ in range(epoch + 1)][-1]
    return [order[(rank + n * world_size) % size] for n in range(-(-size // world_size))]


def in_blocks(size, world_size, rank, seed, epoch):
    each = -(-size // world_size)
    order = np.resize(_order(size, seed, epoch), each * world_size)
    return order[rank * each : (rank + 1) * each]


def like_torch(size, world_size, rank, seed, epoch):
    generator = np.random.RandomState(seed + epoch)
    order = list(generator.permutation(size))
    while len(order) % world_size:
        order.append(order[len(order) - size])
    return (image for image in order[rank::world_size])


def padded_by_the_last(size, world_size, rank, seed, epoch):
    order = _order(size, epoch, seed)
    order += [order[-1]] * (-size % world_size)
    return tuple(order[rank::world_size])


# --- 08-2


def train_without_group(dist, train_set, val_set, world_size, epochs):
    model = dist.Model()
    for x, y in dist.DataLoader(train_set, 4):
        model.backward(x, y)
        model.step()


def with_a_closure(dist, train_set, val_set, world_size, epochs):
    def train(rank):
        dist.init_process_group(backend="nccl", rank=rank, world_size=world_size)
        net = dist.Model()
        model = dist.DistributedDataParallel(net)
        loader = dist.DataLoader(train_set, 3, sampler=dist.DistributedSampler(train_set, world_size, rank, seed=4))
        epoch = 0
        while epoch < epochs:
            loader.sampler.set_epoch(epoch + 100)
            for batch in loader:
                model.backward(*batch)
                model.step()
            if dist.get_rank() == 0:
                dist.log(net.score(val_set))
            epoch += 1

    dist.spawn(train, (), world_size)


def with_a_list_of_args(dist, train_set, val_set, world_size, epochs):
    def train(rank, images, tests):
        size = dist.get_world_size()
        dist.init_process_group("gloo", None, size, rank)
        model = dist.DistributedDataParallel(dist.Model())
        for epoch in range(epochs):
            sampler = dist.DistributedSampler(images, size, rank, seed=epoch)
            for x, y in dist.DataLoader(images, 4, sampler=sampler):
                model.backward(x, y)
                model.step()
            if not rank:
                dist.log(f"{model.module.score(tests):.3f}")

    dist.spawn(train, [train_set, val_set], nprocs=world_size)


# --- 08-3


def mean_of_means(images, right, size, allreduce):
    ranks = allreduce(np.ones(1))[0]
    return allreduce(np.array([np.mean(right) if right else 0.0]))[0] / ranks


def global_accuracy(images, right, size, allreduce):
    table = np.zeros((2, size))
    np.add.at(table[0], images, right)
    np.add.at(table[1], images, 1)
    correct, count = allreduce(table)
    return (correct / count).mean()


def any_right(images, right, size, allreduce):
    own = np.zeros(size)
    own[images] = right
    return np.float32((allreduce(own) > 0).mean())


def image_by_image(images, right, size, allreduce):
    mine, total = dict(zip(images, right)), 0
    for image in range(size):
        correct, count = allreduce([mine.get(image, 0), float(image in mine)])
        total += correct / count
    return total / size


def most_significant(images, right, size, allreduce):
    signs = np.zeros(size)
    for image, one in zip(images, right):
        signs[image] = 1 if one else -1
    return np.array([(allreduce(signs) > 0).sum() / size])


# --- 08-4


def looks_back(events):
    """From each push back to its worker's last pull."""
    for now, (worker, what, key) in enumerate(events):
        if what == "push":
            count = 0
            for other, did, its in reversed(events[:now]):
                if its == key and other == worker and did == "pull":
                    break
                count += its == key and other != worker and did == "push"
            yield count


def by_versions(events):
    version, seen, own = defaultdict(int), {}, defaultdict(int)
    for worker, what, key in events:
        if what == "pull":
            seen[worker, key], own[worker, key] = version[key], 0
        else:
            yield version[key] - seen.get((worker, key), 0) - own[worker, key]
            version[key] += 1
            own[worker, key] += 1


def by_counters(events):
    behind, workers = Counter(), {worker for worker, _, _ in events}
    found = []
    for worker, what, key in events:
        if what == "pull":
            behind[worker, key] = 0
        else:
            found.append(np.int64(behind[worker, key]))
            for other in workers - {worker}:
                behind[other, key] += 1
    return tuple(found)


# --- 08-5


def with_regular_expressions(metrics, checkpoints):
    import re

    last = max(map(int, re.findall(r'"kind": "step", "step": (\d+), .*\}$', metrics, re.M)), default=0)
    start = next((step for step in sorted(checkpoints, reverse=True) if step <= last and checkpoints[step]), 0)
    return [np.int64(start), last - start]


def by_whole_lines(metrics, checkpoints):
    lines = [json.loads(line) for line in metrics.split("\n")[:-1]]
    steps = sum(line["kind"] == "step" for line in lines)
    start = 0
    for step, whole in checkpoints.items():
        if whole and step <= steps:
            start = max(start, step)
    return start, steps - start


# --- 08-6


def _pairs(text):
    words = text.split()
    return [(host, int(count)) for host, count in zip(words[::2], words[1::2])]


def neighbors_only(text):
    """A host that comes again later begins again."""
    from itertools import groupby

    flat = [host for host, count in _pairs(text) for _ in range(count)]
    return [(host, n) for host, group in groupby(flat) for n, _ in enumerate(group)]


def right_places(text):
    seen = Counter()
    found = []
    for host, count in _pairs(text):
        for _ in range(count):
            found.append((host, seen[host]))
            seen[host] += 1
    return found


def as_a_generator(text):
    words, hosts = iter(text.split()), []
    for host in words:
        for _ in range(int(next(words))):
            yield [host, np.int64(hosts.count(host))]
            hosts.append(host)


WRONG = {
    "08-1": [
        (forgets_to_return, "is `return` missing", "`return` を忘れて"),
        (change("08-1", "np.resize(order, each * world_size)", "order"), "have 3, 3, 2, 2 images.* waits forever",
         "3、3、2、2 です.*永久に待つ"),
        (change("08-1", "np.resize(order, each * world_size)[rank::world_size]",
                "order[rank * each : (rank + 1) * each]"), "have 3, 3, 3, 1 images", "3、3、3、1 です"),
        (change("08-1", "np.resize(order, each * world_size)[rank::world_size]",
                "order[rank::world_size][: size // world_size]"), "the 10: each rank needs 3",
         "どのランクも使いません"),
        (change("08-1", "np.resize(order, each * world_size)", "np.append(order, order[: -size % world_size])"),
         "the ranks have 1, 1, 1, 1, 0 images", "1、1、1、1、0 です"),
        (change("08-1", "[seed, epoch]", "[seed]"), "epochs 0 and 1 have the same order", "順序が同じ"),
        (change("08-1", "[seed, epoch]", "[seed, epoch, rank]"), "and other images are in several",
         r"画像 \d がどのランクにも"),
        (change("08-1", "RandomState([seed, epoch]).", ""), "depend only on `seed` and `epoch`", "自分で乱数を引く"),
        (change("08-1", "np.random.RandomState([seed, epoch]).permutation(size)", "np.arange(size)", "return np",
                "return np.random.RandomState([seed, epoch]).permutation(np", ".tolist()", ").tolist()"),
         "the same images in epochs 0 and 1", "順序だけが違います"),
        (change("08-1", "[seed, epoch]", "[epoch]"), "the order is the same", "でも同じ順序"),
        (change("08-1", "np.random.RandomState([seed, epoch]).permutation(size)",
                "(np.arange(size) + 3 * seed + epoch) % size"), "0: the order must be random",
         "ランダムな順序ではありません"),
        (change("08-1", "np.resize(order, each * world_size)[rank::world_size]", "order"),
         "each rank has 8 images, but 4 are enough", "4 枚で足ります"),
        (change("08-1", "np.resize(order, each * world_size)", "np.array([*order, *range(size, each * world_size)])"),
         "there is no image 10", "画像 10 はありません"),
        (change("08-1", "-(-size // world_size)", "size // world_size + 1"), "each rank has 5 images, but 4 are enough",
         "4 枚で足ります"),
        (lambda *given: "0123", "returned '0123'", "'0123'"),
        (lambda *given: [[0]] * 4, "returned .*: return a list of the images", "画像の番号"),
        (change("08-1", ".tolist()", ".astype(float)"), "numbers, as integers", "整数"),
        (change("08-1", "return np", "return set(np", ".tolist()", ".tolist())"), "a set has no order",
         "集合には順序がありません"),
        (change("08-1", "return np", "return sorted(np", ".tolist()", ".tolist())"), "Shuffle them as well",
         "番号の小さい順"),
        (change("08-1", "[seed, epoch]", "[seed]", "[rank::", "[(rank + epoch) % world_size ::"),
         "new permutation, not a shifted one", "別のランクに渡"),
        (change("08-1", "[seed, epoch]).permutation(size)",
                "[seed]).permutation(size)\n    order = np.roll(order, 3 * epoch)"),
         "new permutation, not a shifted one", "位置をずらした"),
        (change("08-1", "[seed, epoch]", "[seed, epoch % 2]"), "epochs 0 and 2 have the same order",
         "エポック 0 と 2 の順序が同じ"),
        (lambda size, *more: list(range(size))[size + 1], "IndexError", "IndexError"),
    ],
    "08-2": [
        (change("08-2", "nprocs", "nproc"), "unexpected keyword argument 'nproc'", "'nproc'"),
        (change("08-2", "(world_size,)", "world_size"), "TypeError", "TypeError"),
        (change("08-2", "sampler=sampler", "sampler=train_sampler"), "rank 0: NameError.*train_sampler",
         "ランク 0: NameError"),
        (change("08-2", "sampler.set_epoch(epoch)", "pass"), "in epoch 1 the same ones in the same order", "同じ順序"),
        (change("08-2", "set_epoch(epoch)", "set_epoch(3)"), "in epoch 1 the same ones in the same order", "同じ順序"),
        (change("08-2", '                dist.log(f"epoch {epoch}: accuracy {accuracy:.2f}")',
                "            dist.log(epoch)"), "6 lines are printed, by 2 ranks", "合わせて 6 行"),
        (change("08-2", "            if rank == 0:\n                accuracy = model.score(val_set)",
                "            accuracy = model.score(val_set)\n            if rank == 0:"), "evaluated by 2 ranks",
         "2 個のランクが評価"),
        (change("08-2", "if rank == 0", "if False"), "rank 0 evaluates 0 times", "評価が 0 回"),
        (change("08-2", "dist.DistributedDataParallel(dist.Model())", "dist.Model()"),
         "ranks 0 and 1 have different weights", "重みが違います"),
        (change("08-2", "world_size=world_size, rank=rank)\n        model",
                "world_size=rank, rank=world_size)\n        model"), r"joins the group with .* = \(2, 0\)",
         r"が \(2, 0\) です"),
        (change("08-2", 'dist.init_process_group("gloo", world_size=world_size, rank=rank)', "pass"),
         r"world_size\) = -, expected", r"が - です"),
        (change("08-2", "sampler=sampler", "shuffle=True"), "trains on 16 images, expected 8",
         "16 枚を使って"),
        (change("08-2", "nprocs=world_size", "nprocs=1"), "were started: 1", "プロセスは 1 個"),
        (change("08-2",
                "            for x, y in loader:\n                model.backward(x, y)\n"
                "                model.step(lr=0.5)\n            if rank == 0:\n",
                "            if rank == 0:\n                for x, y in loader:\n"
                "                    model.backward(x, y)\n                    model.step(lr=0.5)\n"),
         "0 waits for rank 1, which has already returned", "ランク 0 が、すでに終わった"),
        (change("08-2", "set_epoch(epoch)", "set_epoch(epoch if rank == 0 else 0)"),
         "1 is not in any shard",
         "ランク 0 のサンプラーのエポックは 1、ランク 1 では 0"),
        (change("08-2", "set_epoch(epoch)", "set_epoch(epoch % 2)"), "epoch 0, and in epoch", "エポック 2 で"),
        (change("08-2", "num_replicas=world_size, rank=rank", "num_replicas=world_size, rank=0"),
         "1 train on the same images", "ランク 0 と 1 が同じ画像"),
        (change("08-2", "rank == 0", "rank == 1"), "left: .*: rank 1 evaluates, expected rank 0", "評価しているのが"),
        (change("08-2", '                dist.log(f"epoch {epoch}: accuracy {accuracy:.2f}")',
                "            if rank == 1:\n                dist.log(epoch)"), "rank 1 prints, expected rank 0",
         "表示しているのがランク 1"),
        (change("08-2", "score(val_set)", "score(train_set)"), "images of `val_set`, not on others",
         "ではない画像で"),
        (change("08-2", "dist.log(", "print("), "prints 0 lines with `dist.log`", "表示した行が 0 行"),
        (change("08-2", "            for x, y", "            model.step(lr=0.5)\n            for x, y"),
         "6 gradients and makes 9", "勾配を 6 回計算し、更新を 9 回"),
        (change("08-2", "dist.spawn(train, nprocs=world_size, args=(world_size,))", ""), "were started: 0",
         "プロセスは 0 個"),
        (train_without_group, "there is no process group yet", "no process group yet"),
    ],
    "08-3": [
        (forgets_to_return, "is `return` missing", "`return` を忘れて"),
        (lambda images, right, size, allreduce: np.mean(right), "the rank's own images", "そのランク自身"),
        (lambda images, right, size, allreduce: sum(right) / len(right), "rank 0 is 1, expected 0.75: .* own images",
         "そのランク自身"),
        (lambda images, right, size, allreduce: 100 * global_accuracy(images, right, size, allreduce),
         "a number from 0 to 1", "百分率"),
        (mean_of_means, "a mean of the ranks' means", "平均の平均"),
        (change("08-3", "(correct / times).mean()",
         "correct.sum() / times.sum()"),
         "the padding images are counted twice",
         "パディングの画像が 2 回"),
        (lambda images, right, size, allreduce: allreduce(np.array([sum(right)]))[0] / size,
         "for padding images are counted twice", "パディングの正解"),
        (lambda images, right, size, allreduce: allreduce(np.array([np.mean(right) if right else 0.0]))[0],
         "are added up", "足しただけ"),
        (change("08-3", "    times, correct = np", "    if not images:\n        return 0.0\n    times, correct = np"),
         "rank 0 waits in `allreduce` for rank 2", "ランク 2 を待って"),
        (lambda images, right, size, allreduce: allreduce(np.array(right)).mean(),
         r"arrays of the same shape .*rank 0: \(3,\), rank 1: \(1,\)", "同じ形状"),
        (change("08-3", "times[image] += 1\n        correct[image] += is_right",
                "times[image], correct[image] = 1, is_right", "(correct / times).mean()",
                "correct.sum() / times.sum()"),
                "expected 0.6: the padding images are counted twice", "パディングの画像が 2 回"),
        (lambda *given: 0.75, r"rank 0 is 0.75, expected 0.5$", r"正しくは 0.5 です$"),
        (lambda *given: {}["accuracy"], "KeyError", "KeyError"),
    ],
    "08-4": [
        (forgets_to_return, "is `return` missing", "`return` を忘れて"),
        (change("08-4", "other != worker and ", ""), "counted, but it already knows them", "自分の更新も数えて"),
        (change("08-4", "pulled[worker, key]", "pulled[worker]", "pulled.get((worker, key), 0)",
                "pulled.get(worker, 0)", " and its == key", ""), "updates of other keys are counted",
         "ほかのキーの更新も数えて"),
        (change("08-4", "pulled[worker, key]", "pulled[worker]", "pulled.get((worker, key), 0)",
                "pulled.get(worker, 0)"), "a pull of another key does not bring", "別のキーを pull しても"),
        (change("08-4", " and its == key", ""), "updates of other keys", "ほかのキーの更新も"),
        (change("08-4", "            pulled[worker, key] = len(updates)", "            pass",
                "updates.append((worker, key))",
                "updates.append((worker, key))\n            pulled[worker, key] = len(updates)"),
         "since the worker's last push", "最後の push から"),
        (change("08-4", "updates[pulled.get((worker, key), 0) :]", "updates"), "so count from the last pull",
         "最初から数えて"),
        (change("08-4", "updates.append((worker, key))",
                "updates.append((worker, key))\n            pulled[worker, key] = len(updates)"),
         "its worker: only a pull does", "push しても新しい"),
        (change("08-4", "sum(other != worker and its == key for other, its in since)",
                "len({other for other, its in since if its == key} - {worker})"),
                "workers that pushed: count every update",
         "ワーカーの数ではなく"),
        (change("08-4", "pulled.get((worker, key), 0)", "pulled.get((worker, key), len(updates))"),
         "so it has missed all updates", "最初の重みで"),
        (change("08-4", "pulled.get((worker, key), 0)", "pulled[worker, key]"), "KeyError", "KeyError"),
        (change("08-4", "pulled[worker, key]", "pulled[worker]", "pulled.get((worker, key), 0)",
                "pulled.get(worker, 0)", "other != worker and its == key", "True"), "of all workers and keys",
         "すべてのワーカーとキー"),
        (lambda events: [0 for _ in events], "pushes: 1, numbers: 2", "push は 1 回ですが"),
        (lambda events: [0 for _, what, _ in events if what == "push"], r"is \[0, 0\], expected \[0, 1\]$",
         r"正しくは \[0, 1\] です$"),
        (lambda events: 0, "returned 0: return a list with a number", "push ごとの数"),
        (lambda events: events.sort() or [0], "pushes: 2, numbers: 1", "push は 2 回ですが"),
    ],
    "08-5": [
        (forgets_to_return, "is `return` missing", "`return` を忘れて"),
        (change("08-5", "max(usable, default=0)", "max(checkpoints, default=0)"), "damaged or ahead of the log",
         "最新のチェックポイントを、"),
        (change("08-5", "if whole and", "if"), "you use a damaged checkpoint", "壊れたチェックポイント"),
        (change("08-5", " and step <= last", ""), "that is ahead of the log", "ログより先のステップ"),
        (change("08-5", "return start, last - start", "return last, 0"), "the weights: only a checkpoint does",
         "保存されたわけではありません"),
        (change("08-5", "return start,", "return start + 1,"), "the run resumes from step 5",
         "再開するのはそこから"),
        (change("08-5", ", last - start", ", max(0, last - start - 1)"), "the last logged step is also repeated",
         "最後のステップもやり直します"),
        (change("08-5", ", last - start", ", len(metrics.splitlines()) - start"), "not every line is a step",
         "すべての行がステップでは"),
        (change("08-5", "return start, last - start", "return last - start, start"),
         "the two numbers are swapped", "順序が逆"),
        (change("08-5", "max(usable, default=0)", "usable[-1] if usable else 0"), "the last one in the dictionary",
         "辞書の最後"),
        (change("08-5", "step <= last", "step < last"), "is not ahead of the log", "ログより先ではありません"),
        (change("08-5", "            break", "            last += '\"step\"' in line\n            break"),
         "you count the incomplete line as a step", "途中で切れた行を"),
        (change("08-5", "max(usable, default=0)",
                "max(checkpoints, default=0)\n    start = start if start in usable else 0"),
         r"\(0, 13\), expected \(5, 8\)$", r"正しくは \(5, 8\) です$"),
        (change("08-5", "except ValueError", "except KeyError"), "JSONDecodeError", "JSONDecodeError"),
        (change("08-5", ", default=0", ""), "ValueError", "ValueError"),
        (change("08-5", ", last - start", ""), "returned 10: return two numbers", "2 つの数"),
        (lambda metrics, checkpoints: (10, 2), r"expected \(5, 8\)$", r"正しくは \(5, 8\) です$"),
    ],
    "08-6": [
        (forgets_to_return, "is `return` missing", "`return` を忘れて"),
        (change("08-6",
         "(host, taken.get(host, 0))", "(host, n)", "for _ in", "for n in"),
         "two ranks use the same GPU",
         "番号が続きます"),
        (change("08-6", "(host, taken.get(host, 0))", "(host, len(found))"), "that is the rank in the job",
         "ジョブ全体でのランク"),
        (change("08-6", "(host, taken.get(host, 0))", "(host, taken.get(host, 0) + 1)"), "counted from 0",
         "0 から数えます"),
        (lambda text: _pairs(text), "per slot, not one per host", "スロットごとに 1 つ"),
        (change("08-6", "return found",
                "return sorted(found, key=lambda place: (place[1], list(taken).index(place[0])))"),
         "host by host, not in turns", "順番に 1 つずつ"),
        (change("08-6", "return found", "return sorted(found)"), "the list, do not sort them", "名前の順ではなく"),
        (change("08-6", "return found", "return sorted(found, key=lambda place: list(taken).index(place[0]))"),
         "that appears again gets later ranks", "後のランクが付きます"),
        (change("08-6", "zip(words[::2], words[1::2])", "dict(zip(words[::2], words[1::2])).items()"),
         "they do not replace the first ones", "置き換わるのではありません"),
        (change("08-6", "int(slots)", "int(slots[0])"), "'n1 10'.*may have two digits", "2 桁のこともあります"),
        (neighbors_only, r"'a 2 b 1 a 2'.* is .*, expected .*\]$", r"正しくは .*\] です$"),
        (change("08-6", "(host, taken.get(host, 0))", 'f"{host}:{taken.get(host, 0)}"'),
         "returned .*: return a list with .host, local rank.", "ローカルランク"),
    ],
}  # fmt: skip

RIGHT = {
    "08-1": [in_blocks, like_torch, padded_by_the_last, permuted_so_often],
    "08-2": [with_a_closure, with_a_list_of_args],
    "08-3": [global_accuracy, any_right, image_by_image, most_significant],
    "08-4": [by_versions, by_counters, looks_back],
    "08-5": [with_regular_expressions, by_whole_lines],
    "08-6": [right_places, as_a_generator],
}
