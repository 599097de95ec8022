"""Answers to lab 07 that students really give, and what they must be told."""

import math
from fractions import Fraction
from statistics import median

import numpy as np
from changed_solution import change, forgets_to_return
from mxnet import autograd, gluon, nd

# --- 07-1


def _step(net, loss, trainer, devices, x, y, divisor):
    shards = zip(*(gluon.utils.split_and_load(part, devices, even_split=False) for part in (x, y)))
    with autograd.record():
        losses = [loss(net(images), labels) for images, labels in shards]
    autograd.backward(losses)
    trainer.step(divisor)


# --- 07-2


def _reached(curve, target):
    return next((step for step, right in curve if right >= target), math.inf)


def _none(value):
    return None if math.isinf(value) else value


def in_numpy(curves, target):
    reached = [np.array(curve)[np.array(curve)[:, 1] >= target, 0].min(initial=np.inf) for curve in curves]
    middle = np.median(reached)
    return middle if np.isfinite(middle) else None


def by_halves(curves, target):
    steps = sorted(_reached(curve, target) for curve in curves)
    while len(steps) > 2:
        steps = steps[1:-1]
    return None if math.inf in steps else Fraction(sum(steps), len(steps)).__float__()


# --- 07-3


def _lstsq(sizes, steps, weights):
    sizes, steps = np.array(sizes, float), np.array(steps, float)
    weights = weights(sizes, steps)
    columns = np.stack([weights, weights / sizes], axis=1)
    (fewest, images), *_ = np.linalg.lstsq(columns, weights * steps, rcond=None)
    return fewest, images


def absolute(sizes, steps):
    fewest, images = _lstsq(sizes, steps, lambda n, s: np.ones(len(n)))
    return fewest, images / fewest


def relative(sizes, steps):
    fewest, images = _lstsq(sizes, steps, lambda n, s: 1 / s)
    return fewest, images / fewest


def inverse_errors(sizes, steps):
    """The sum of (steps / curve - 1)**2, by ever smaller steps."""
    n, s = np.array(sizes, float), np.array(steps, float)

    def error(fewest, critical):
        return ((s / (fewest * (1 + critical / n)) - 1) ** 2).sum()

    found, width = np.array(relative(sizes, steps)), 0.5
    while width > 1e-7:
        tried = [found * (1 + width * np.array(by)) for by in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, -1), (-1, 1))]
        best = min(tried, key=lambda each: error(*each))
        if error(*best) < error(*found):
            found = best
        else:
            width /= 2
    return tuple(found)


def relative_to_the_curve(sizes, steps):
    fewest, images = relative(sizes, steps)[0], np.prod(relative(sizes, steps))
    for _ in range(50):
        fewest, images = _lstsq(sizes, steps, lambda n, s, a=fewest, b=images: 1 / (a + b / n))
    return fewest, images / fewest


def through_images(sizes, steps):
    slope, at = np.polyfit(sizes, np.multiply(sizes, steps), 1)
    return slope, at / slope


def power_law(sizes, steps):
    slope, at = np.polyfit(np.log(sizes), np.log(steps), 1)
    return math.exp(at), slope


def two_points(sizes, steps):
    images = (steps[0] - steps[-1]) / (1 / sizes[0] - 1 / sizes[-1])
    fewest = steps[0] - images / sizes[0]
    return fewest, images / fewest


def normal_equations(sizes, steps):
    n, s = np.array(sizes, float), np.array(steps, float)
    design = np.stack([1 / s, 1 / (n * s)], axis=1)
    fewest, images = np.linalg.solve(design.T @ design, design.sum(axis=0))
    return [fewest, images / fewest]


def weighted_polyfit(sizes, steps):
    images, fewest = np.polyfit(1 / np.array(sizes), steps, 1, w=1 / np.array(steps))
    return np.array([fewest, images / fewest])


# --- 07-4


def _search(steps_with, first, limit, most=None, patience=1):
    best, fewest = first, steps_with(first, limit)
    for factor in (2, 0.5):
        rate, failed = first * factor, 0
        while failed < patience:
            steps = steps_with(rate, most or fewest)
            if steps is None or steps >= fewest:
                failed += 1
            else:
                best, fewest = rate, steps
            rate *= factor
    return best


def on_a_grid(steps_with, first, limit):
    rates = [first * 2.0**power for power in range(-8, 9)]
    steps = {rate: steps_with(rate, limit) for rate in rates}
    return min((rate for rate in rates if steps[rate] is not None), key=steps.get)


def by_tenths(steps_with, first, limit):
    return min((first * factor for factor in (0.1, 1, 10)), key=lambda rate: steps_with(rate, limit) or math.inf)


def never_ends(steps_with, first, limit):
    rate = first
    while True:
        steps_with(rate, 1)
        rate *= 2


def down_first(steps_with, first, limit):
    fewest, best = steps_with(first, limit), first
    for factor in (0.5, 2):
        while (steps := steps_with(best * factor, fewest - 1)) is not None:
            best, fewest = best * factor, steps
        if best != first:
            break
    return best


def with_powers(steps_with, first, limit):
    known = {0: steps_with(first, limit)}

    def improve(place, direction):
        found = steps_with(first * 2.0 ** (place + direction), known[place])
        if found is None or found >= known[place]:
            return place
        known[place + direction] = found
        return improve(place + direction, direction)

    place = improve(0, -1)
    return first * np.exp2(place if place else improve(0, 1))


# --- 07-5


def mxnets_rule(weights, gradients, velocities, lr, former_lr, momentum):
    for weight, gradient, velocity in zip(weights, gradients, velocities):
        nd.sgd_mom_update(weight, gradient, velocity, out=weight, lr=lr, momentum=momentum)


def _corrected(factor, after=False, of_gradient=lambda lr, former: 1.0, sign=1):
    def answer(weights, gradients, velocities, lr, former_lr, momentum):
        former = former_lr or lr
        for weight, gradient, velocity in zip(weights, gradients, velocities):
            if not after:
                velocity[:] = factor(lr, former) * velocity
            velocity[:] = momentum * velocity - lr * of_gradient(lr, former) * gradient
            weight[:] = weight + sign * velocity
            if after:
                velocity[:] = factor(lr, former) * velocity

    return answer


def scaled_by_the_kernel(weights, gradients, velocities, lr, former_lr, momentum):
    if former_lr is not None:
        for velocity in velocities:
            velocity *= lr / former_lr
    mxnets_rule(weights, gradients, velocities, lr, None, momentum)


def with_replaced_entries(weights, gradients, velocities, lr, former_lr, momentum):
    ratio = 1 if former_lr is None else lr / former_lr
    for place, gradient in enumerate(gradients):
        velocities[place] = momentum * ratio * velocities[place] - lr * gradient
        weights[place] = weights[place] + velocities[place]
    return weights


# --- 07-6


def _offers(steps, seconds, counts, even=True):
    for batch, number in steps.items():
        for devices in counts:
            if number is not None and (batch % devices == 0 or not even):
                time = number * seconds(batch, devices)
                yield time, devices * time, devices, batch


def cheapest_first(steps, seconds, counts, deadline):
    offers = sorted((cost, time, k, b) for time, cost, k, b in _offers(steps, seconds, counts))
    return next(([k, b] for _, time, k, b in offers if time <= deadline), None)


def in_loops(steps, seconds, counts, deadline):
    best, found = (math.inf, math.inf), None
    for k in reversed(counts):
        for batch in steps:
            if steps[batch] and not batch % k:
                time = steps[batch] * seconds(batch, k)
                if time <= deadline and (k * time, time) < best:
                    best, found = (k * time, time), (np.int64(k), batch)
    return found


class _Stepper:
    """A trainer with another step."""

    def __init__(self, trainer, step, lr):
        trainer.set_learning_rate(lr)
        self.step = step


def interpolated(curves, target):
    def crosses(curve):
        for (a, low), (b, high) in zip(curve, curve[1:]):
            if low >= target:
                return a
            if high >= target:
                return a + (b - a) * (target - low) / (high - low)
        return curve[-1][0] if curve[-1][1] >= target else math.inf

    return _none(median(map(crosses, curves)))


WRONG = {
    "07-1": [
        (change("07-1", "len(devices) * lr", "lr"), "use k times the learning rate", "1 台分の学習率のまま"),
        (change("07-1", "trainer.set_learning_rate(len(devices) * lr)", "pass"),
         "set it to k times lr", "trainer の元の学習率"),
        (change("07-1", "len(devices) * lr", "len(devices) ** 0.5 * lr"), "the square root", "平方根"),
        (change("07-1", "len(devices) * batch_per_device", "batch_per_device"), "must contain k times as many",
         "バッチが 1 台分の枚数"),
        (change("07-1", "step(len(x))", "step(batch_per_device)"), "divided by the images", "1 台分の枚数で割って"),
        (change("07-1", "step(len(x))", "step(size)"), "divide it by its own size", "満杯のバッチの枚数"),
        (change("07-1", "step(len(x))", "step(1)"), "the sum of the gradients is not", "割られて"),
        (change("07-1", "images[begin : begin + size], labels[begin : begin + size]",
                "(data.take(nd.arange(begin, begin + size) % len(images)) for data in (images, labels))",
                "begin + size if begin + size < len(images) else 0", "(begin + size) % len(images)"),
         "is filled up with the first images", "先頭の画像を足して"),
        (change("07-1", "images[begin : begin + size], labels[begin : begin + size]",
                "(data.take(nd.arange(begin, begin + size) % len(images)) for data in (images, labels))"),
         "is filled up with the first images", "先頭の画像を足して"),
        (change("07-1", "loss(net(x_part), y_part)", "loss(net(x_part), y_part).mean()", "step(len(x))",
                "step(len(devices))"), "smaller shard count more than others", "デバイスごとの平均の平均"),
        (change("07-1",
         "begin + size < len(images)",
         "begin + 2 * size <= len(images)"),
         "is missing: its images also count", "捨てられて"),
        (change("07-1", "    begin = 0\n", "    begin = 0\n    good_enough(net)\n"), "step: call it after each step",
         "最初のステップの前"),
        (change("07-1", "return step", "return"), "is `return` missing", "`return` を忘れて"),
        (change("07-1", "return step", "return step - 1"), "your function returned 1, expected 2$", "正しくは 2 です$"),
        (change("07-1", "return None", "return step"), "your function returned 4, expected None", "正しくは None"),
        (change("07-1", "if good_enough(net)", "if begin + size >= len(images) and good_enough(net)"),
         "called: call it after each step", "何ステップか進んでから"),
        (change("07-1", "if good_enough(net)", "if good_enough(net) and step < limit"),
         "expected 6: the last step within the limit", "上限の最後のステップで"),
        (lambda net, loss, trainer, devices, images, labels, b, lr, good_enough, limit: limit,
         "9 steps: `good_enough` was never called",
         "一度も呼ばれて"),
        (change("07-1", "return step", "pass"), "steps: training continued after step 2", "2 ステップで終わらず"),
        (change("07-1", "(x, devices", "(x, devices[:1]", "(y, devices", "(y, devices[:1]", "step(len(x))",
                "step(len(x), ignore_stale_grad=True)"), "device 1 computed no image", "デバイス 1 が画像を 1 枚も"),
        (lambda *given: 1 / 0, "ZeroDivisionError", "ZeroDivisionError"),
    ],
    "07-2": [
        (change("07-2", "    middle",
                "    reached = [step for step in reached if step < math.inf] or reached\n    middle"),
         "seeds as slower than all others", "除かれて"),
        (change("07-2", "math.inf) for", "curve[-1][0]) for"),
         "reached it at its last evaluation", "最後の計測で達した"),
        (change("07-2", ">=", ">"), "an accuracy equal to the target is enough", "ちょうど目標"),
        (change("07-2", "(reached[(len(reached) - 1) // 2] + reached[len(reached) // 2]) / 2",
                "sum(reached) / len(reached)"),
                "that is the mean, which a single bad seed spoils: use the median", "これは平均です"),
        (change("07-2", "(reached[(len(reached) - 1) // 2] + reached[len(reached) // 2]) / 2",
                "reached[len(reached) // 2]"), "the mean of the middle two", "中央の 2 つの平均"),
        (change("07-2", "(step for step, right in curve", "(n for n, (_, right) in enumerate(curve)"),
         "evaluation, not its number of steps", "何番目の計測か"),
        (change("07-2", "in curve if", "in curve[::-1] if"), "above the target: use the first",
         "最後に目標に達していた"),
        (change("07-2", "(reached[(len(reached) - 1) // 2] + reached[len(reached) // 2]) / 2", "reached[0]"),
         "the fastest seed", "最も速いシード"),
        (change("07-2", "None if math.isinf(middle) else ", ""), "return None if there is no number",
         "None を返して"),
        (change("07-2", "None if", "0 if"), r"gave 0, expected None$", "正しくは None です$"),
        (forgets_to_return, "the function returns nothing", "何も返して"),
        (change("07-2", "math.isinf(middle)", "math.inf in reached"),
         "does not make the median infinite", "達しないシードが 1 つあっても"),
        (lambda curves, target: 20 if len(curves) == 1 else None, r"gave None, expected \d+$", r"正しくは \d+ です$"),
        (change("07-2", "next((step for step, right in curve if right >= target), math.inf)",
                "min((step for n, (step, _) in enumerate(curve) if all(right >= target for _, right in curve[n:])), "
                "default=math.inf)"), "if it falls below again later", "最初に目標以上になった"),
        (interpolated, "at or above the target counts", "計測と計測の間は"),
        (change("07-2", "(step for step, right in curve", "(n for n, (_, right) in enumerate(curve, 1)"),
         "number of evaluations, not of steps", "計測の回数"),
        (lambda curves, target: str(curves[0][-1][0]), "gave '20', expected 20", "'20'"),
    ],
    "07-3": [
        (absolute, "each difference by the measured steps", "小さいバッチだけで決まって"),
        (lambda sizes, steps: _lstsq(sizes, steps, lambda n, s: 1 / s), "divide it by the fewest steps",
         "最小ステップ数で割って"),
        (inverse_errors, "steps: divide by the measured steps", "相対誤差が逆です"),
        (relative_to_the_curve, "steps: divide by the measured steps", "曲線のステップ数で割って"),
        (lambda n, s: relative(n, s)[::-1], "the wrong way round", "順番が逆"),
        (through_images, "so only the large batches matter", "大きいバッチだけで"),
        (power_law, "a power law", "べき乗則"),
        (two_points, "the largest batch: fit all batches", "最小と最大のバッチだけ"),
        (lambda n, s: (min(s), relative(n, s)[1]),
         "curve, not from the smallest measurement", "計測した中の最小ではあり"),
        (lambda n, s: relative(n, s)[1], "returned .*: return two numbers", "2 つの数"),
        (forgets_to_return, "is `return` missing.*two numbers", "`return` を忘れて"),
        (lambda n, s: (10.0, 9.0), r"is \(10, 9\), expected \(50, 16\)$", r"\(50, 16\) です$"),
    ],
    "07-4": [
        (change("07-4", "(rate, fewest)", "(rate, limit)"), "a learning rate is no better",
         "で足ります"),
        (lambda steps_with, first, limit: _search(steps_with, first, limit, patience=4), "a learning rate is no better",
         "で足ります"),
        (on_a_grid, "is right, but 17 training runs", "17 回の学習"),
        (change("07-4", "(2, 0.5)", "(2,)"), "was never tried", "試していません"),
        (change("07-4", "(2, 0.5)", "(2,)", "return best", "return rate"), r"0.5 takes 100 steps, 0.25 takes 50",
         "0.5 では 100 ステップ"),
        (change("07-4", "return best", "return fewest"), "that is a number of steps", "これはステップ数"),
        (by_tenths, r"only double or halve 0\.25 repeatedly", "2 倍、4 倍"),
        (never_ends, "has not stopped after 40 trainings", "40 回学習しても"),
        (lambda steps_with, first, limit: first, "0.5 was never tried", "0.5 を試していません"),
        (forgets_to_return, "is `return` missing", "`return` を忘れて"),
    ],
    "07-5": [
        (change("07-5", " * factor", ""), "still contains the former learning rate", "MXNet の規則のまま"),
        (_corrected(lambda lr, former: former / lr), "upside down", "逆数"),
        (_corrected(lambda lr, former: lr / former, after=True), "after the update", "更新の後"),
        (change("07-5", "nd.sgd_mom_update(weight, gradient, velocity, out=weight, lr=lr, momentum=momentum * factor)",
                "weight -= lr * gradient"), "the step without momentum", "モーメンタムがないのと同じ"),
        (change("07-5", "nd.sgd_mom_update(weight, gradient, velocity, out=weight, lr=lr, momentum=momentum * factor)",
                "weight += momentum * factor * velocity - lr * gradient"), "they stay for the next step",
         "その場で書き換えて"),
        (change("07-5", "nd.sgd_mom_update(weight, gradient, velocity, out=weight, lr=lr, momentum=momentum * factor)",
                "weight = weight + momentum * factor * velocity - lr * gradient"), "the weights are unchanged",
         "重みが変わっていません"),
        (with_replaced_entries, "putting new arrays into the lists", "リストの要素を差し替えるのではなく"),
        (change("07-5", "        nd", "        velocity *= lr == former_lr\n        nd", " * factor)", ")"),
         "multiply it by a factor instead", "速度を捨てています"),
        (change("07-5", "nd.sgd_mom_update(weight, gradient, velocity, out=weight, lr=lr, momentum=momentum * factor)",
                "velocity[:] = momentum * velocity + gradient\n        weight -= lr * velocity"),
         "velocity is u = -lr v", "それは論文の v です"),
        (change("07-5", "nd.sgd_mom_update(weight, gradient, velocity, out=weight, lr=lr, momentum=momentum * factor)",
                "velocity[:] = momentum * factor * velocity + lr * gradient\n        weight -= velocity"),
         "your velocity has the wrong sign", "符号も同じ"),
        (change("07-5", "        nd",
                "        velocity = velocity if former_lr is None else velocity * factor\n        nd", " * factor)",
                ")"), "changed in this step: `velocity", "このステップで変わっていません"),
        (_corrected(lambda lr, former: lr / former, of_gradient=lambda lr, former: lr / former),
         "the factor: multiply only the velocity", "勾配にも係数"),
        (_corrected(lambda lr, former: lr / former, sign=-1), "weights move in the wrong direction", "逆向き"),
        (change("07-5", "1 if former_lr is None else ", ""), "TypeError", "TypeError"),
        (change("07-5", "        nd",
         "        gradient *= lr\n        nd", "lr=lr", "lr=1"), r"to \[0\.5\]: compute with a copy",
         "書き換えられました"),
        (change("07-5", "zip(weights,", "zip(weights[:1],"), r"parameter 1 is \[0\], expected \[-1\]",
         r"パラメータ 1 が \[0\]"),
        (lambda weights, gradients, velocities, lr, former_lr, momentum: _corrected(
                lambda lr, former: lr / former, of_gradient=lambda lr, former: 1 - momentum
            )(weights, gradients, velocities, lr, former_lr, momentum), "1 - momentum", "1 - モーメンタム"),
    ],
    "07-6": [
        (change("07-6", "devices * time, time,", "time, time,"), "choose the cheapest", "最も速い選択"),
        (change("07-6", "time <= deadline", "True"),
         "the cheapest that meets the deadline", "期限を無視した、最も安い"),
        (change("07-6", "devices * time, time,", "time, time,", "time <= deadline", "True"),
         "the cheapest that meets the deadline", "期限を無視した、最も速い"),
        (change("07-6", "devices * time, time,", "-batch / seconds(batch, devices), time,", "time <= deadline", "True"),
         "the most images/s", "1 秒あたりの枚数が最大"),
        (change("07-6", "devices * time, time,", "devices, time,"), "the fewest devices", "デバイスが最少"),
        (change("07-6", " or batch % devices", ""), "does not divide evenly", "割り切れません"),
        (change("07-6", "time <= deadline", "time < deadline"), "it can be done in time", "時間内に終わる選択"),
        (change("07-6", "[2:]", "[:1:-1]"), "the devices first, then the batch", "デバイス数が先"),
        (change("07-6", "min(offers)", "min(offers, key=lambda offer: offer[0])"),
         r"64\), expected \(4, 64\): it costs as much", "同じですが、時間が"),
        (change("07-6", "seconds(batch, devices)", "seconds(devices, batch)"),
         "was called: the batch comes first, then the devices", "バッチサイズが先、デバイス数が後"),
        (change("07-6", "seconds(batch, devices)", "seconds(batch // devices, devices)"),
         "pass the size of the whole batch, not the images of one device", "バッチ全体のサイズ"),
        (change("07-6", "[2:]", "[3]"), r"return \(devices, batch\), or None", "か None を返して"),
        (change("07-6", "time <= deadline", "True", "min(offers)[2:] if offers else None",
                "min(offers, key=lambda offer: (offer[1] > deadline, *offer))[2:]"),
                "the cheapest that meets the deadline",
         "期限を無視した"),
        (change("07-6", "number is None or ", "", "number * seconds", "(number or 0) * seconds"),
         "never reach the target", "目標に達しません"),
        (forgets_to_return, "it can be done in time", "時間内に終わる"),
    ],
}  # fmt: skip


def by_hand_on_devices(net, loss, trainer, devices, images, labels, b, lr, good_enough, limit):
    """Batches from an iterator, losses added up, the rate in the divisor."""
    trainer.set_learning_rate(lr)
    size = b * len(devices)

    def forever():
        while True:
            yield from range(0, images.shape[0], size)

    for step, begin in zip(range(limit), forever()):
        end = min(begin + size, images.shape[0])
        _step(
            net, loss, trainer, devices, images[begin:end], labels[begin:end],
            (end - begin) / len(devices),
        )  # fmt: skip
        if good_enough(net):
            return np.int64(step + 1)
    return None


RIGHT = {
    "07-1": [by_hand_on_devices],
    "07-2": [in_numpy, by_halves],
    "07-3": [relative, normal_equations, weighted_polyfit],
    "07-4": [_search, down_first, with_powers],
    "07-5": [scaled_by_the_kernel, _corrected(lambda lr, former: lr / former)],
    "07-6": [cheapest_first, in_loops],
}
