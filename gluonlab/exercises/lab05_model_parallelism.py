"""The exercises of lab 05: a model that is split over devices.

05-1 and 05-2: cuts between layers. 05-3: the units of layers, divided among devices (tensor
parallelism). 05-4 to 05-6: pipelines.
"""

from __future__ import annotations

import itertools
from functools import partial
from statistics import median
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

try:
    import numpy as np
except ImportError:  # in a browser, where only the exercises about pipelines run
    np = None  # type: ignore[assignment]

from gluonlab.errors import ScheduleError
from gluonlab.exercises.exercise_registry import Wrong, case_integers, case_rng, exercise
from gluonlab.exercises.explain_wrong_answers import (
    NO_TEXT,
    AnswerResults,
    CaseText,
    Mistake,
    TextPair,
    count_in_english,
    counterexample,
    find_mistake,
    formula_mistakes,
    is_close_number,
    is_integer,
    is_number,
    matches_formula,
    pick_explanation,
    run_cases,
    to_list,
    wrong_result_texts,
    wrong_return,
)
from gluonlab.exercises.guesses import DictForm, NumberForm, register_guess
from gluonlab.parallel.pipeline.pipeline_cost import Costs, predict_timeline
from gluonlab.parallel.pipeline.pipeline_schedule import (
    BACKWARD,
    FORWARD,
    Instruction,
    PipelineSchedule,
    from_orders,
    gpipe,
    one_forward_one_backward,
)
from gluonlab.parallel.pipeline.verify_pipeline_schedule import peaks, verify

# --- Answers that are a list with a number for each device


def is_same_list(got: Any, want: Sequence[float]) -> bool:
    """Return whether ``got`` is a list that equals ``want`` up to rounding errors."""
    return (
        isinstance(got, list)
        and len(got) == len(want)
        and all(not isinstance(one, bool) and _is_close(one, other) for one, other in zip(got, want))
    )


def _is_close(got: Any, want: float) -> bool:
    return is_close_number(got, want) or (is_number(got) and abs(float(got) - want) < 1e-9)


matches_list_formula = partial(matches_formula, same=is_same_list)


def run_list_cases(
    answer: Callable[..., Any], cases: Sequence[Tuple[Any, ...]], want: Callable[..., Any]
) -> AnswerResults:
    """Run the answer for every case, and convert its results to lists."""
    return run_cases(lambda *case: to_list(answer(*case)), cases, want)


def check_lists(results: AnswerResults, mistakes: Sequence[Mistake], call: Callable[..., str]) -> None:
    """Raise Wrong for the first result that is not the expected list.

    ``call(*case)`` returns the text of a case's call, for messages.
    """

    def describe(*arguments: Any) -> TextPair:
        """Return the texts of a counterexample.

        ``arguments``: the arguments of the call, the answer's list, and the expected list.
        """
        *case, got, want = arguments
        text, devices = call(*case), len(want)
        if not isinstance(got, list) or not all(is_number(one) for one in got):
            raise wrong_return(got, text, "a list with a number for each device", "デバイスごとに 1 個の数を持つリスト")
        if len(got) != devices:
            raise counterexample(
                f"{text} returned {count_in_english(len(got), 'number')}, expected {devices}: one for each device",
                f"{text} の答えには数が {len(got)} 個あります。デバイスごとに 1 個、全部で {devices} 個のはずです",
            )
        return wrong_result_texts(text, format_list(got), format_list(want))

    results.check_results(is_same_list, mistakes, describe)


def format_list(numbers: Sequence[float]) -> str:
    """Return numbers as text, such as ``[0.25, 0.5]``."""
    return f"[{', '.join(_format_number(number) for number in numbers)}]"


def _format_number(number: float) -> str:
    return f"{number:.0f}" if float(number).is_integer() else f"{number:.4g}"


def random_integers(random: Any, count: int, least: int, most: int) -> List[int]:
    """Return ``count`` random Python integers from ``least`` to ``most - 1``."""
    return [int(number) for number in random.randint(least, most, count)]


# --- 05-1 and 05-2: the bytes sent between the stages of a chain of layers, and the best cuts
#
# A cut c is a position in the chain: layer c is the first layer of the next stage.


FLOAT32_BYTES = 4

LayerCosts = List[float]


@exercise("05-1")
def check_sent_bytes(answer: Callable[[List[int], List[int], int], Sequence[int]]) -> None:
    """Count the bytes that each device sends in a step of a model that is split between layers."""
    cases: List[Tuple[List[int], List[int], int]] = [
        ([3, 5], [1], 1),
        ([7, 5, 2, 4], [1, 3], 1),
        ([7, 5, 2, 4], [1, 3], 6),
        ([3380, 800, 128, 10], [2], 64),
        ([3380, 800, 128, 10], [], 64),
    ]
    random = case_rng(51)
    for _ in range(10):
        layers = int(random.randint(2, 10))
        places = random.permutation(np.arange(1, layers))[: random.randint(1, layers)]
        cuts = sorted(int(place) for place in places)
        cases.append((random_integers(random, layers, 1, 900), cuts, int(random.randint(2, 129))))
    results = run_list_cases(
        answer, cases, lambda o, c, images: _sent_both_ways(FLOAT32_BYTES * images, _boundary_outputs(o, c))
    )
    check_lists(results, SENT_BYTES_MISTAKES, lambda o, c, images: f"sent_bytes({o}, {c}, {images})")


def _boundary_outputs(outputs: Sequence[int], cuts: Sequence[int], beyond: int = 0) -> List[int]:
    """Return how many numbers per image cross each stage boundary, with 0 at both ends.

    ``outputs``: the number of outputs of each layer. ``beyond``: 1 to simulate the mistake of using
    the layer after each cut, or else 0.
    """
    return [0, *(outputs[cut - 1 + beyond] for cut in cuts), 0]


def _sent_both_ways(each: float, edges: Sequence[float]) -> List[float]:
    """Return how much each stage sends: ``each`` times the sum of the numbers at its two edges."""
    return [each * (before + after) for before, after in zip(edges, edges[1:])]


def _split_stages(outputs: Sequence[int], cuts: Sequence[int]) -> List[Sequence[int]]:
    """Return, for each stage, the number of outputs of each of its layers."""
    bounds = [0, *cuts, len(outputs)]
    return [outputs[begin:end] for begin, end in zip(bounds, bounds[1:])]


def _forward_bytes(outputs: Sequence[int], cuts: Sequence[int], images: int) -> List[int]:
    """Return how many bytes each stage sends in the forward pass alone."""
    return [FLOAT32_BYTES * images * after for after in _boundary_outputs(outputs, cuts)[1:]]


def _own_output_bytes(outputs: Sequence[int], cuts: Sequence[int], images: int) -> List[int]:
    """Return the bytes of a known mistake: each stage sends back the gradient of its own output."""
    output_bytes = [FLOAT32_BYTES * images * stage[-1] for stage in _split_stages(outputs, cuts)]
    return [size * ((n < len(cuts)) + (n > 0)) for n, size in enumerate(output_bytes)]


SENT_BYTES_MISTAKES = formula_mistakes(matches_list_formula, [
    (_forward_bytes, "in backward, each device sends the gradient of what it received back over the same cut",
     "逆伝播では、各デバイスが受け取った活性値の勾配を同じ切れ目から送り返します"),
    (lambda o, c, n: _sent_both_ways(n, _boundary_outputs(o, c)), "that counts numbers: a float32 has 4 bytes",
     "それは数値の個数です。float32 は 1 個 4 バイトです"),
    (lambda o, c, n: _sent_both_ways(FLOAT32_BYTES, _boundary_outputs(o, c)),
     "that is for one image, not for the batch",
     "これは画像 1 枚分です。バッチ全体の量を答えます"),
    (lambda o, c, n: _sent_both_ways(FLOAT32_BYTES * n, _boundary_outputs(o, c, 1)),
     "layer c is the first of the next stage: the output of layer c - 1 crosses the cut",
     "層 c は次のステージの最初の層です。切れ目を通るのは層 c - 1 の出力です"),
    (lambda o, c, n: _sent_both_ways(2 * FLOAT32_BYTES * n, _boundary_outputs(o, c)),
     "that is twice as much: a number has 4 bytes, and bytes that a device receives do not count",
     "ちょうど 2 倍です。1 個は 4 バイトで、受け取る量は数えません"),
    (_own_output_bytes, "a device sends back the gradient of its input, not of its output",
     "切れ目から送り返すのは受け取った値の勾配です。自分が出力した値の勾配ではありません"),
    (lambda o, c, n: [2 * sent for sent in _forward_bytes(o, c, n)],
     "the device after the cut sends the gradient back",
     "切れ目を通って戻る勾配を送るのは、切れ目の後ろのデバイスです"),
    (lambda o, c, n: _sent_both_ways(FLOAT32_BYTES * n, [*_boundary_outputs(o, c)[:-1], o[-1]]),
     "the last device does not send its activation: it computes the loss itself",
     "最後のデバイスは活性値を送りません。損失は自分で計算します"),
    (lambda o, c, n: [FLOAT32_BYTES * n * sum(stage) for stage in _split_stages(o, c)],
     "activations between layers of one stage stay on its device",
     "同じステージの層どうしでやり取りする値は、デバイスの外に出ません"),
])  # fmt: skip


@exercise("05-2")
def check_balanced_cuts(answer: Callable[[LayerCosts, int], Sequence[int]]) -> None:
    """Find the cuts of a chain of layers that make its most expensive stage cheapest."""
    cases: List[Tuple[LayerCosts, int]] = [
        ([1, 1, 1, 1], 2),
        ([5, 1, 1, 1], 2),
        ([1, 1, 1, 5], 2),
        ([4, 3, 3, 4, 1, 3], 3),
        ([0.25, 0.5, 0.125, 0.25, 0.375], 3),
        ([2, 2, 2], 3),
        ([9, 1, 1, 1], 3),  # the first layer determines the largest cost, but the answer must return three stages
        ([0, 0, 8, 0], 4),
        ([3, 0, 4], 1),
    ]
    random = case_rng(52)
    for number in range(14):
        layers = int(random.randint(4, 25))
        costs: LayerCosts = [float(one) for one in random_integers(random, layers, 0, 30)]
        if number % 2:
            costs = [round(one / 16, 4) for one in costs]
        cases.append((costs, int(random.randint(2, min(layers, 7)))))
    cases.append(([float(one) for one in random_integers(random, 120, 1, 100)], 9))
    results = run_list_cases(answer, cases, lambda costs, stages: _largest_stage_cost(costs, _best_cuts(costs, stages)))
    for (costs, stages), got, want in results:
        call = f"balanced({format_list(costs)}, {stages})"
        if len(costs) > 30:
            call = f"balanced([{len(costs)} costs], {stages})"
        _check_cuts(CaseText(call, call), got, len(costs), stages)
        if _largest_stage_cost(costs, got) > want * (1 + 1e-9):
            best = _best_cuts(costs, stages)
            largest, least = (_format_number(_largest_stage_cost(costs, cuts)) for cuts in (got, best))
            raise counterexample(
                f"{call} returned the cuts {format_list(got)}: the most expensive stage costs {largest}, but only "
                f"{least} with the cuts {format_list(best)}",
                f"{call} の切れ目は {format_list(got)} で、最大のステージのコストは {largest} です。"
                f"{format_list(best)} なら {least} です",
                _explain_worse_cuts(results),
            )
    results.raise_error()


def _check_cuts(case: CaseText, got: Any, layers: int, stages: int) -> None:
    """Raise Wrong unless the cuts ``got`` divide ``layers`` layers into ``stages`` stages."""
    is_cut_list = isinstance(got, list) and all(is_integer(cut) and not isinstance(cut, bool) for cut in got)
    if not is_cut_list:
        raise wrong_return(got, case.en,
        "a list with the number of the first layer of each stage except the first stage",
                           "最初以外の各ステージが始まる層の番号のリスト")  # fmt: skip
    case.check_faults(
        (len(got) != stages - 1,
         f"{count_in_english(len(got), 'cut')}, {got}, make{'s' * (len(got) == 1)} "
         f"{count_in_english(len(got) + 1, 'stage')}, expected {stages}",
         f"切れ目が {len(got)} 個 ({got}) なので、ステージは {len(got) + 1} 個です。正しくは {stages} 個です"),
        (any(not 1 <= cut < layers for cut in got),
         f"the cuts {got}: layers are numbered from 0 to {layers - 1}, and no stage is empty",
         f"切れ目が {got} です。層の番号は 0 から {layers - 1} までで、空のステージは作れません"),
        (any(b <= a for a, b in zip(got, got[1:])),
         f"the cuts {got} must be in ascending order: each stage has at least one layer",
         f"切れ目 {got} は順に増えていなければなりません。どのステージにも層が 1 つは要ります"),
    )  # fmt: skip


def _largest_stage_cost(costs: LayerCosts, cuts: Sequence[int]) -> float:
    """Return the cost of the most expensive stage."""
    bounds = [0, *cuts, len(costs)]
    return max(sum(costs[begin:end]) for begin, end in zip(bounds, bounds[1:]))


def _best_cuts(costs: LayerCosts, stages: int) -> List[int]:
    """Return cuts that minimize the cost of the most expensive stage."""
    from gluonlab.parallel.pipeline.network_stages import minimize_largest_stage  # imports MXNet

    totals = [0.0, *itertools.accumulate(costs)]
    return minimize_largest_stage(lambda _, begin, end: totals[end] - totals[begin], len(costs), stages)


def _equal_count_cuts(costs: LayerCosts, stages: int) -> List[int]:
    """Return cuts into stages of equal layer counts. The first stages may have one more layer."""
    each, extra = divmod(len(costs), stages)
    return [number * each + min(number, extra) for number in range(1, stages)]


def _greedy_cuts(costs: LayerCosts, stages: int, after_exceeding: bool = False) -> Optional[List[int]]:
    """Return the cuts of a greedy algorithm that fills one stage after the other, or None.

    Each stage receives layers up to an equal fraction of the total cost. ``after_exceeding``:
    whether the layer that exceeds this fraction still belongs to the stage. The result is None if
    the algorithm fills fewer than ``stages`` stages.
    """
    cuts: List[int] = []
    part, total = sum(costs) / stages, 0.0
    for number, cost in enumerate(costs):
        full = total >= part if after_exceeding else total + cost > part
        if number and full and len(cuts) < stages - 1 and number > ([0, *cuts])[-1]:
            cuts.append(number)
            total = 0.0
        total += cost
    return cuts if len(cuts) == stages - 1 else None


def _explain_worse_cuts(results: Sequence[Any]) -> TextPair:
    """Return the texts of the known mistake that explains all suboptimal cuts, or NO_TEXT."""

    def is_best(got: Any, want: float) -> bool:
        return bool(got[1] <= want * (1 + 1e-9))

    costs_of_cuts = [
        result._replace(got=(result.got, _largest_stage_cost(result.case[0], result.got)))
        for result in results
        if isinstance(result.got, list) and len(result.got) == result.case[1] - 1
    ]

    def cuts_by(formula: Callable[[LayerCosts, int], Optional[List[int]]]) -> Callable[..., bool]:
        return lambda costs, stages, got: list(got[0]) == formula(costs, stages)

    return find_mistake(
        costs_of_cuts,
        is_best,
        (cuts_by(_equal_count_cuts), "every stage has the same number of layers: balance their costs instead",
         "コストを見ずに、層の数を均等にしています"),
        (cuts_by(lambda costs, stages: [n * len(costs) // stages for n in range(1, stages)]),
         "every stage has the same number of layers: balance their costs instead",
         "コストを見ずに、層の数を均等にしています"),
        (lambda costs, stages, got: is_best(
            (None, _largest_stage_cost(costs, [cut + 1 for cut in got[0]])),
            _largest_stage_cost(costs, _best_cuts(costs, stages))),
         "those are the last layers of stages: a cut is the first layer of the next stage",
         "それはステージの最後の層です。切れ目は次のステージが始まる層の番号です"),
        (cuts_by(_greedy_cuts),
         "you fill each stage up to an equal part of the sum: the rest then piles up in the last stage",
         "合計の均等割りを上限に、前から順に詰めています。入り切らない分が最後のステージにたまります"),
        (cuts_by(lambda costs, stages: _greedy_cuts(costs, stages, after_exceeding=True)),
         "you fill each stage until it reaches an equal part of the sum: its last layer may exceed that by far",
         "合計の均等割りに達するまで、前から順に詰めています。最後に入れた層の分だけ、超過することがあります"),
    )  # fmt: skip


# --- 05-3: two dense layers with their units divided among devices, and a single sum at the end


PARAMETER_NAMES = ("w1", "b1", "w2", "b2")
Part = Tuple[Any, Any, Any, Any]


class DenseLayers(NamedTuple):
    """Two dense layers with ReLU between them: (n, in) -> (n, hidden) -> (n, out)."""

    w1: Any  # (hidden, in)
    b1: Any  # (hidden,)
    w2: Any  # (out, hidden)
    b2: Any  # (out,)

    def forward(self, x: Any) -> Any:
        """Return the outputs, of shape (n, out), for inputs of shape (n, in)."""
        return np.maximum(x @ self.w1.T + self.b1, 0) @ self.w2.T + self.b2


class _WrongSum(NamedTuple):
    """A case where the sum of the devices' results is wrong.

    ``layers``: the undivided layers. ``parts``: the answer's layers for each device.
    ``x``: the inputs.
    """

    case: CaseText
    got: Any
    want: Any
    layers: DenseLayers
    devices: int
    parts: Sequence[DenseLayers]
    x: Any

    def is_first_bias_divided(self) -> bool:
        """Return whether the sum is right if every b1 is multiplied by the number of devices."""
        undone = [part._replace(b1=self.devices * part.b1) for part in self.parts]
        return np.allclose(sum(part.forward(self.x) for part in undone), self.want, 1e-4, 1e-6)


@exercise("05-3")
def check_layer_parts(answer: Callable[..., Sequence[Part]]) -> None:
    """Split two layers over devices so that the results add up to the whole model's results."""
    random = case_rng(53)
    sizes = [(3, 4, 2, 1), (3, 4, 2, 2), (3, 7, 2, 3), (5, 64, 10, 4)]  # (in, hidden, out, devices)
    for _ in range(6):
        devices = int(random.randint(2, 7))
        inputs, outputs = int(random.randint(1, 9)), int(random.randint(1, 9))
        sizes.append((inputs, devices + int(random.randint(0, 20)), outputs, devices))
    wrong_sums: List[_WrongSum] = []
    for inputs, hidden, outputs, devices in sizes:
        layers = _random_layers(random, inputs, hidden, outputs)
        frozen = [array.copy() for array in layers]
        for array in frozen:
            array.flags.writeable = False
        case = CaseText(
            f"{inputs} -> {hidden} -> {outputs} units on {count_in_english(devices, 'device')}",
            f"{inputs} -> {hidden} -> {outputs} ユニット、デバイス {devices} 台",
        )
        parts = _read_parts(case, answer(*frozen, devices), devices)
        _check_shapes(case, parts, layers)
        _check_unit_shares(case, parts, hidden, devices)
        x = random.normal(size=(6, inputs))
        got, want = sum(part.forward(x) for part in parts), layers.forward(x)
        if not np.allclose(got, want, rtol=1e-4, atol=1e-6):
            wrong_sums.append(_WrongSum(case, got, want, layers, devices, parts, x))
    if not wrong_sums:
        return
    case, got, want, *_ = wrong_sums[0]
    index = tuple(int(place) for place in np.argwhere(~np.isclose(got, want, 1e-4, 1e-6))[0])
    raise case.counterexample(
        f"for one input, the sum of output {index[1]} over the devices is {got[index]:.4g}, expected {want[index]:.4g}",
        f"ある入力の出力 {index[1]} は合計後に {got[index]:.4g} でしたが、正しくは {want[index]:.4g} です",
        _explain_wrong_sums(wrong_sums),
    )


def _random_layers(random: Any, inputs: int, hidden: int, outputs: int) -> DenseLayers:
    """Return two random layers of the given sizes."""
    return DenseLayers(
        random.normal(size=(hidden, inputs)),
        random.normal(size=hidden),
        random.normal(size=(outputs, hidden)),
        1 + random.uniform(size=outputs),  # biases far from 0, so that an additional bias is noticed
    )


def _read_parts(case: CaseText, given: Any, devices: int) -> List[DenseLayers]:
    """Convert the answer's result to the layers of each device.

    Raises Wrong unless the result is a list with a tuple (w1, b1, w2, b2) for each device.
    """
    en = "a list with (w1, b1, w2, b2) for each device"
    ja = "デバイスごとの (w1, b1, w2, b2) を並べたリスト"
    parts = to_list(given)
    if not isinstance(parts, list):
        raise wrong_return(given, case.en, en, ja)
    case.check_faults(
        (len(parts) != devices, f"there are {len(parts)} parts, expected {devices}: one per device",
         f"部分が {len(parts)} 個あります。デバイスごとに 1 個、{devices} 個のはずです"),
    )  # fmt: skip
    layers = []
    for part in map(to_list, parts):
        if not isinstance(part, list) or len(part) != len(PARAMETER_NAMES):
            raise wrong_return(given, case.en, en, ja)
        layers.append(DenseLayers(*(np.asarray(array, dtype=float) for array in part)))
    return layers


def _check_shapes(case: CaseText, parts: Sequence[DenseLayers], whole: DenseLayers) -> None:
    """Raise Wrong unless the shape of each device's arrays matches the device's number of units."""
    inputs, outputs = whole.w1.shape[1], whole.w2.shape[0]
    for device, part in enumerate(parts):
        units = len(part.w1) if part.w1.ndim else 0
        expected_shapes = {"w1": (units, inputs), "b1": (units,), "w2": (outputs, units), "b2": (outputs,)}
        for name, array in zip(PARAMETER_NAMES, part):
            if array.shape == expected_shapes[name]:
                continue
            raise case.counterexample(
                f"device {device} has {units} units of the first layer, but the shape of its {name} is "
                f"{array.shape}, expected {expected_shapes[name]}",
                f"デバイス {device} には最初の層のユニットが {units} 個ありますが、"
                f"{name} の形状は {array.shape} です。正しくは {expected_shapes[name]} です",
                _explain_wrong_shape(name, array, part, whole, units),
            )


def _explain_wrong_shape(name: str, array: Any, part: DenseLayers, whole: DenseLayers, units: int) -> TextPair:
    """Return the likely reason for a wrong shape. ``units``: the hidden units of this device."""
    hidden, outputs = whole.w1.shape[0], whole.w2.shape[0]
    expected_w2 = (outputs, units)
    has_few_rows = array.ndim == 2 and name == "w2" and array.shape[0] < outputs
    return pick_explanation(
        (has_few_rows and array.shape[1] == hidden,
         "that is a part of the outputs, which needs the hidden units of all devices: select the device's own "
             "hidden units, columns of w2",
         "それは出力の一部で、計算にはほかのデバイスの隠れユニットもすべて必要です。"
         "手元にあるのは自分のユニットだけで、w2 の列にあたります"),
        (name == "w2" and array.shape == (outputs, hidden) and units < hidden,
         "the other hidden units are on other devices", "残りの隠れユニットはほかのデバイスにあります"),
        (name == "w1" and array.shape == (units, 0), "every unit needs all inputs", "どのユニットも入力全部を使います"),
        (name == "w1" and array.ndim == 2 and units == hidden and array.shape[1] > 0,
         "you divided the first layer by input: divide it by output, because each unit needs all inputs",
         "それは入力で分割しています。最初の層は出力で分割し、各ユニットは入力全部を使います"),
        (name == "w2" and array.shape == expected_w2[::-1] and expected_w2[0] != expected_w2[1], "it is transposed",
         "転置されています"),
        (name == "b1" and array.shape == (hidden,), "each unit has one bias", "バイアスはユニットごとに 1 個です"),
        (name == "b2" and array.size < outputs, "every device contributes to all outputs",
         "どのデバイスもすべての出力に足し込みます"),
    )  # fmt: skip


def _check_unit_shares(case: CaseText, parts: Sequence[DenseLayers], hidden: int, devices: int) -> None:
    """Raise Wrong unless the ``hidden`` units are divided evenly among the devices."""
    counts = [len(part.w1) for part in parts]
    case.check_faults(
        (devices > 1 and all(count == hidden for count in counts),
         f"every device has all {hidden} units: divide them among the devices",
         f"全デバイスが {hidden} 個のユニットをすべて持っています。分割されていません"),
        (sum(counts) != hidden, f"the devices have {counts} units, {sum(counts)} together, expected {hidden}",
         f"デバイスのユニット数は {counts} で、合計 {sum(counts)} 個です。{hidden} 個のはずです"),
        (max(counts) - min(counts) > 1, f"the devices have {counts} units: these numbers may differ by at most one",
         f"デバイスのユニット数が {counts} です。差は多くても 1 個にしてください"),
    )  # fmt: skip


def _explain_wrong_sums(wrong_sums: Sequence[_WrongSum]) -> TextPair:
    """Return the texts of the mistake that explains all wrong sums, or NO_TEXT.

    A single wrong sum is not enough to name a mistake.
    """
    if len(wrong_sums) < 2:
        return NO_TEXT
    deviations = [(one.got - one.want, one.layers.b2, one.devices) for one in wrong_sums]
    return pick_explanation(
        (all(np.allclose(deviation, (devices - 1) * b2, 1e-3, 1e-5) for deviation, b2, devices in deviations),
         "every device adds b2, so the sum contains it once per device: add it once",
         "どのデバイスも b2 を足しているため、合計にはデバイスの台数だけ入ります"),
        (all(np.allclose(deviation, -b2, 1e-3, 1e-5) for deviation, b2, _ in deviations), "b2 is missing",
         "b2 が入っていません"),
        (all(np.allclose(deviation, (1 / devices - 1) * b2, 1e-3, 1e-5) for deviation, b2, devices in deviations),
         "b2 is divided by the number of devices, but only one device adds it: do not divide it",
         "デバイス数で割った b2 を、1 台だけが足しています"),
        (all(one.is_first_bias_divided() for one in wrong_sums),
         "b1 is divided by the number of devices: each unit is on one device, so it needs its whole bias",
         "b1 がデバイス数で割られています。ユニットは 1 台だけにあり、バイアスもそのまま使います"),
    )  # fmt: skip


# --- 05-4 and 05-6: the idle fraction of each device in a pipeline, computed and measured
#
# In the formulas, f and b are lists: each stage's time for the forward pass and for the backward
# pass of a microbatch. m is the number of microbatches.


Times = List[float]


@exercise("05-4")
def check_idle_shares(answer: Callable[[Times, Times, int], Sequence[float]]) -> None:
    """Compute the idle fraction of each device in a GPipe step with unequal stages."""
    cases: List[Tuple[Times, Times, int]] = [
        ([1, 1], [2, 2], 1),
        ([1, 1, 1, 1], [2, 2, 2, 2], 8),
        ([1, 3], [2, 6], 4),
        ([4, 1, 2], [1, 5, 2], 3),
        ([5], [9], 3),
    ]
    random = case_integers(54)
    for _ in range(10):
        count = int(random.randint(2, 7))
        forward = [float(one) for one in random_integers(random, count, 1, 20)]
        backward = [float(one) for one in random_integers(random, count, 1, 40)]
        cases.append((forward, backward, int(random.randint(2, 17))))
    results = run_list_cases(answer, cases, partial(_idle_shares, gpipe))
    check_lists(results, IDLE_MISTAKES, lambda f, b, m: f"idle_shares({f}, {b}, {m})")


def _idle_shares(schedule: Callable[..., Any], forward: Times, backward: Times, microbatches: int) -> List[float]:
    """Return the fraction of a step in which each device is idle, computed with the cost model."""
    stages = len(forward)
    free_transfers = ((0.0, 0.0),) * (stages - 1)
    costs = Costs(tuple(forward), tuple(backward), free_transfers, (0.0,) * stages)
    return [max(0.0, bubble) for bubble in predict_timeline(schedule(stages, microbatches), costs).bubbles]


def _matches_step_time(step_formula: Callable[[Times, Times, int], float]) -> Callable[..., bool]:
    """Return a predicate that tests whether an answer used the step time ``step_formula(f, b, m)``.

    The formula returns the step time of a known mistake, and the idle fractions follow from it.
    ``f``, ``b``: each stage's forward and backward times. ``m``: the number of microbatches.
    """

    def shares(forward: Times, backward: Times, microbatches: int) -> List[float]:
        step_s = step_formula(forward, backward, microbatches)
        return [1 - microbatches * (f + b) / step_s for f, b in zip(forward, backward)]

    return matches_list_formula(shares)


def _step_time(forward: Times, backward: Times, m: int) -> float:
    return sum(forward) + sum(backward) + (m - 1) * (max(forward) + max(backward))


def _stage_times(forward: Times, backward: Times) -> List[float]:
    return [f + b for f, b in zip(forward, backward)]


def _idle_shares_until_own_end(forward: Times, backward: Times, m: int) -> List[float]:
    """Return the idle fractions of a known mistake: each device's step ends after its own work."""
    forward_end = sum(forward) + (m - 1) * max(forward)
    remaining_stages = [backward[device:] for device in range(len(backward))]
    ends = [forward_end + sum(rest) + (m - 1) * max(rest) for rest in remaining_stages]
    return [1 - m * each / end for each, end in zip(_stage_times(forward, backward), ends)]


IDLE_MISTAKES: List[Mistake] = [
    (matches_list_formula(lambda f, b, m: [(len(f) - 1) / (m + len(f) - 1)] * len(f)),
     "that is the bubble of equal stages", "それはステージが等しいときのバブルです"),
    (matches_list_formula(lambda f, b, m: [m * each / _step_time(f, b, m) for each in _stage_times(f, b)]),
     "that is the fraction of the time in which it works", "それは計算している時間の割合です"),
    (matches_list_formula(lambda f, b, m: [_step_time(f, b, m) / (m * each) - 1 for each in _stage_times(f, b)]),
     "that is the idle time divided by the busy time: divide it by the time of the whole step",
     "それは計算時間に対する割合です。ステップ全体の時間で割ります"),
    (matches_list_formula(lambda f, b, m: [_step_time(f, b, m) - m * each for each in _stage_times(f, b)]),
     "that is the idle time in seconds: divide it by the time of the step",
     "それは待ち時間そのものです。ステップの時間で割ります"),
    (_matches_step_time(lambda f, b, m: sum(_stage_times(f, b)) + (m - 1) * max(_stage_times(f, b))),
     "all forward passes come first: the stage with the slowest forward may differ from the stage with the slowest "
         "backward",
     "順伝播が全部終わってから逆伝播です。順伝播で最も遅いステージと逆伝播で最も遅いステージは、同じとは限りません"),
    (_matches_step_time(lambda f, b, m: m * sum(_stage_times(f, b))),
     "that assumes that a microbatch starts only after the previous one has finished backward",
     "前のマイクロバッチが逆伝播まで終わってから次を始めるかのような値です"),
    (_matches_step_time(lambda f, b, m: sum(_stage_times(f, b)) + m * (max(f) + max(b))),
     "that is one microbatch too many: the sums already contain the first one",
     "マイクロバッチが 1 個多く数えられています。最初の 1 個は和に入っています"),
    (_matches_step_time(lambda f, b, m: (m + len(f) - 1) * (max(f) + max(b))),
     "that assumes that all stages take as long as the slowest: the first microbatch passes each stage in that "
         "stage's time",
     "どのステージにも最も遅いステージと同じ時間がかかるとした値です。最初のマイクロバッチは、"
     "各ステージをそれぞれの時間で通ります"),
    (_matches_step_time(lambda f, b, m: (m + len(f) - 1) * max(_stage_times(f, b))),
     "that assumes that all stages take as long as the slowest: the first microbatch passes each stage in that "
         "stage's time",
     "どのステージにも最も遅いステージと同じ時間がかかるとした値です。最初のマイクロバッチは、"
     "各ステージをそれぞれの時間で通ります"),
    (matches_list_formula(lambda f, b, m: [100 * (1 - m * each / _step_time(f, b, m)) for each in _stage_times(f, b)]),
     "that is a percentage: return a number from 0 to 1", "パーセントになっています。割合は 0 から 1 の数です"),
    (matches_list_formula(lambda f, b, m: _idle_shares(one_forward_one_backward, f, b, m)),
     "that is for 1F1B, which starts backward before all forward passes are done: GPipe runs all forward passes "
     "first",
         "それは 1F1B の値です。1F1B は順伝播が全部終わる前に逆伝播を始めますが、GPipe では順伝播が全部先です"),
    (matches_list_formula(_idle_shares_until_own_end),
     "the step ends when all devices are done, not when each single device is",
     "ステップの終わりは全デバイスが終わったときです。デバイスごとの終わりではありません"),
    (_matches_step_time(lambda f, b, m: sum(f) + (m - 1) * max(f) + m * b[-1]),
     "the step ends when all devices are done: device 0 finishes last, not the end of the chain",
     "ステップの終わりは全デバイスが終わったときです。最後に終わるのは末尾のデバイスではなくデバイス 0 です"),
    (_matches_step_time(lambda f, b, m: m * (max(f) + max(b))),
     "the time in which the pipeline fills and drains is missing",
     "パイプラインが埋まるまでと空になるまでの時間が入っていません"),
    (_matches_step_time(lambda f, b, m: sum(_stage_times(f, b)) + (m - 1) * (f[-1] + b[-1])),
     "the slowest stage limits how fast microbatches follow each other, and it may not be the last stage",
     "マイクロバッチの間隔を決めるのは最も遅いステージで、最後のステージとは限りません"),
    (_matches_step_time(lambda f, b, m: sum(_stage_times(f, b)) + (m - 1) * (f[0] + b[0])),
     "the slowest stage limits how fast microbatches follow each other, and it may not be the first stage",
     "マイクロバッチの間隔を決めるのは最も遅いステージで、最初のステージとは限りません"),
]  # fmt: skip


class _DisturbedClock:
    """A simulated clock. The first run is slow, and other programs slow down later runs.

    ``times``: the undisturbed seconds of each function. ``reads``: the seconds that were returned
    for each function so far.
    """

    def __init__(self, times: Dict[Callable[[], None], float], random: Any) -> None:
        self._times, self._random = times, random
        self.reads: Dict[Callable[[], None], List[float]] = {work: [] for work in times}

    def __call__(self, work: Callable[[], None]) -> float:
        """Return the simulated seconds of one run of ``work``."""
        if work not in self.reads:
            raise Wrong(
                en="`seconds` was called with something other than `step` or a function of `alone`: pass the "
                "function itself, as in `seconds(step)`",
                ja="`seconds` に `step` と `alone` の要素以外のものが渡されました。"
                "処理そのものを渡すと `seconds` が呼び出します。`seconds(step)` と書いてください",
            )
        reads = self.reads[work]
        slowdown = 1.0 + float(self._random.randint(1, 64)) / 64
        if len(reads) in (0, 2):
            slowdown += 1.0 + len(reads)  # the first and third runs are the slowest
        elif len(reads) == 4 or (len(reads) > 4 and len(reads) % 3 == 0):
            slowdown = 1.0
        reads.append(self._times[work] * slowdown)
        return reads[-1]


@exercise("05-6")
def check_measured_idle(answer: Callable[..., Sequence[float]]) -> None:
    """Measure the idle fraction of each device from the times of the step and of its own work."""
    cases: List[Tuple[float, Times]] = [(8.0, [6.0, 4.0]), (4.0, [3.0]), (16.0, [2.0, 12.0, 8.0])]
    random = case_integers(56)
    for _ in range(6):
        alone = [float(one) for one in random_integers(random, int(random.randint(1, 6)), 8, 64)]
        cases.append((max(alone) * (1 + int(random.randint(1, 33)) / 16), alone))
    clocks: List[_DisturbedClock] = []

    def run_answer_with_noisy_clock(step_s: float, alone_s: Times) -> Any:
        """Run the answer with a simulated clock that returns the given times or longer times."""
        works = [_make_work() for _ in range(1 + len(alone_s))]
        clock = _DisturbedClock(dict(zip(works, [step_s, *alone_s])), random)
        clocks.append(clock)
        return to_list(answer(clock, works[0], works[1:]))

    results = run_cases(
        run_answer_with_noisy_clock, cases, lambda step_s, alone_s: [1 - own / step_s for own in alone_s]
    )
    _check_repeats(cases, clocks)
    was_read = any(any(clock.reads.values()) for clock in clocks)
    if results and isinstance(results[0].got, list) and not was_read:
        raise counterexample(
            "`seconds` was never called: pass each function to `seconds`, which runs the function and returns the "
            "time of one run",
            "`seconds` が一度も呼ばれていません。処理を渡すと、1 回にかかった秒数を返します",
        )
    mistakes = [(_matches_measured_formula(clocks, cases, formula), en, ja) for formula, en, ja in MEASUREMENT_MISTAKES]
    check_lists(results, mistakes, _format_call)


def _make_work() -> Callable[[], None]:
    return lambda: None


def _format_call(step_s: float, alone_s: Times) -> str:
    alone = ", ".join(f"{seconds:g}" for seconds in alone_s)
    return f"measured_idle(seconds, step, alone), step {step_s:g} s, alone {alone} s"


def _check_repeats(cases: Sequence[Tuple[float, Times]], clocks: Sequence[_DisturbedClock]) -> None:
    """Raise Wrong if the answer timed the step, or a device's own work, fewer than five times."""
    for case, clock in zip(cases, clocks):
        counts = [len(reads) for reads in clock.reads.values()]
        text = CaseText(_format_call(*case), _format_call(*case))
        text.check_faults(
            (any(counts) and min(counts) < 5,
             f"`seconds` was called {counts} times for the step and for each device's own work: measure each at "
                 "least five times, because the first run is slow and other programs interfere",
             f"`seconds` の呼び出しは、ステップと各デバイスの処理で {counts} 回でした。最初の 1 回は遅く、"
             "ほかのプログラムの影響もあります。それぞれ 5 回以上測ってください"),
        )  # fmt: skip


MeasuredFormula = Callable[[List[float], List[List[float]]], List[float]]


def _matches_measured_formula(
    clocks: Sequence[_DisturbedClock], cases: Sequence[Tuple[float, Times]], formula: MeasuredFormula
) -> Callable[..., bool]:
    """Return a predicate that tests whether an answer used ``formula`` for the idle fractions."""

    def shares(step_s: float, alone_s: Times) -> List[float]:
        clock = clocks[list(cases).index((step_s, alone_s))]
        step, *alone = clock.reads.values()
        return formula(step, alone) if step and all(alone) else []

    return matches_list_formula(shares)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


MEASUREMENT_MISTAKES: List[Tuple[MeasuredFormula, str, str]] = [
    (lambda step, alone: [1 - _mean(own) / _mean(step) for own in alone],
     "that uses the means, which one slow run changes: use the minimum of each",
     "平均を使っています。1 回の乱れで動いてしまうので、それぞれの最小値を使ってください"),
    (lambda step, alone: [1 - median(own) / median(step) for own in alone],
     "that uses the medians: other programs only make a run slower, so use the minimum of each",
     "中央値を使っています。ほかのプログラムは時間を延ばすだけなので、最小値を使ってください"),
    (lambda step, alone: [1 - max(own) / max(step) for own in alone],
     "that uses the slowest runs: use the minimum of each",
     "最も遅い回を使っています。それぞれの最小値を使ってください"),
    (lambda step, alone: [1 - own[0] / step[0] for own in alone],
     "that uses the first run of each, which includes the setup: use the minimum of each",
     "それぞれの最初の 1 回を使っています。最初は準備の時間が入ります"),
    (lambda step, alone: [min(own) / min(step) for own in alone], "that is the fraction of the time in which it works",
     "それは計算している時間の割合です"),
    (lambda step, alone: [min(step) / min(own) - 1 for own in alone],
     "that is the idle time divided by the busy time: divide it by the time of the whole step",
     "それは計算時間に対する割合です。ステップ全体の時間で割ります"),
    (lambda step, alone: [min(step) - min(own) for own in alone],
     "that is the idle time in seconds: divide it by the time of the step",
     "それは待ち時間そのものです。ステップの時間で割ります"),
    (lambda step, alone: [100 * (1 - min(own) / min(step)) for own in alone],
     "that is a percentage: return a number from 0 to 1", "パーセントになっています。割合は 0 から 1 の数です"),
    (lambda step, alone: [1 - min(own) / sum(map(min, alone)) for own in alone],
     "that is its part of all devices' work: the time of the step is missing",
     "それは全処理に占める割合から出した値です。ステップの時間を使っていません"),
]  # fmt: skip


# --- 05-5: the order of a device's forward and backward passes in a 1F1B schedule


Order = List[Tuple[str, int]]
JAPANESE_NAMES = {FORWARD: "順伝播", BACKWARD: "逆伝播"}


@exercise("05-5")
def check_one_f_one_b(answer: Callable[[int, int, int], Sequence[Tuple[str, int]]]) -> None:
    """Write a verified order of forward and backward passes, as fast as GPipe, with less memory."""
    cases = [(2, 4), (4, 8), (2, 1), (4, 2), (3, 3), (1, 3), (1, 1)]  # (devices, microbatches)
    random = case_integers(55)
    cases += [(int(random.randint(2, 9)), int(random.randint(1, 25))) for _ in range(6)]
    for devices, microbatches in cases:
        schedule = read_pipeline_schedule(answer, devices, microbatches)
        case = CaseText(
            f"{count_in_english(devices, 'device')}, {count_in_english(microbatches, 'microbatch', 'es')}",
            f"デバイス {devices} 台、マイクロバッチ {microbatches} 個",
        )
        _check_no_deadlock(case, schedule)
        _check_memory(case, schedule)
        _check_time(case, schedule)


def read_pipeline_schedule(
    answer: Callable[[int, int, int], Sequence[Tuple[str, int]]], devices: int, microbatches: int
) -> PipelineSchedule:
    """Return the schedule that an answer to 05-5 describes.

    Raises Wrong for an order that is wrong regardless of the other devices.
    """
    orders = []
    for device in range(devices):
        call = f"one_f_one_b({device}, {devices}, {microbatches})"
        order = _read_order(CaseText(call, call), answer(device, devices, microbatches))
        _check_device_order(CaseText(call, call), order, microbatches)
        orders.append([(op, device, microbatch) for op, microbatch in order])
    return from_orders("your order", orders, microbatches)


def _read_order(case: CaseText, given: Any) -> Order:
    """Convert the answer's result to a list of steps (op, microbatch), or raise Wrong."""
    en = 'a list of ("forward", microbatch) and ("backward", microbatch)'
    ja = '("forward", マイクロバッチ) と ("backward", マイクロバッチ) のリスト'
    order, steps = to_list(given), []
    if not isinstance(order, list):
        raise wrong_return(given, case.en, en, ja)
    for step in map(to_list, order):
        whole = isinstance(step, list) and len(step) == 2
        if not whole or not is_integer(step[1]) or step[0] not in JAPANESE_NAMES:
            raise wrong_return(given, case.en, en, ja)
        steps.append((str(step[0]), int(step[1])))
    return steps


def _check_device_order(case: CaseText, order: Order, microbatches: int) -> None:
    """Raise Wrong if a device's steps are wrong, regardless of the steps of other devices.

    The device must run one forward pass and then one backward pass for each microbatch, and must
    process the microbatches in the order of their numbers.
    """
    done = dict.fromkeys(JAPANESE_NAMES, 0)
    for place, (op, microbatch) in enumerate(order):
        next_microbatch = done[op]
        text_en = f"step {place} is {(op, microbatch)}"
        text_ja = f"ステップ {place} が {(op, microbatch)} です"
        case.check_faults(
            (not 0 <= microbatch < microbatches, f"{text_en}: microbatches go from 0 to {microbatches - 1}",
             f"{text_ja}。マイクロバッチは 0 から {microbatches - 1} までです"),
            (microbatch < next_microbatch, f"{text_en}, which was already done", f"{text_ja}が、それは済んでいます"),
            (microbatch > next_microbatch,
             f"{text_en}, before ({op!r}, {next_microbatch}): all devices process them in the same order, 0, 1, 2, "
                 "...",
             f"{text_ja}が、({op!r}, {next_microbatch}) がまだです。どのデバイスも 0, 1, 2, ... の順に処理します"),
            (op == BACKWARD and microbatch >= done[FORWARD], f"{text_en}, before its forward",
             f"{text_ja}が、順伝播がまだです"),
        )  # fmt: skip
        done[op] += 1
    for op, count in done.items():
        case.check_faults(
            (count < microbatches, f"there is no ({op!r}, {count}): each microbatch goes forward and backward once",
             f"({op!r}, {count}) がありません。どのマイクロバッチにも順伝播と逆伝播が 1 回ずつ要ります"),
        )  # fmt: skip


def _check_no_deadlock(case: CaseText, schedule: PipelineSchedule) -> None:
    """Raise Wrong if `verify` finds that devices wait for each other forever."""
    try:
        verify(schedule)
    except ScheduleError as error:
        device = error.device if error.device is not None else 0
        program = schedule.programs[device]
        waiting = program[error.place] if error.place is not None else program[-1]
        step = _next_computation(program, waiting)
        raise case.counterexample(
            f"device {device} waits forever before its {step.op} pass of microbatch {step.microbatch}: {error}",
            f"デバイス {device} はマイクロバッチ {step.microbatch} の{JAPANESE_NAMES[step.op]}の前で永久に待ちます。"
            f"証明の出力: {error}",
        ) from None


def _next_computation(program: Sequence[Instruction], waiting: Instruction) -> Instruction:
    """Return the first forward or backward pass at or after the instruction that waits."""
    remaining = program[list(program).index(waiting) :]
    steps = [one for one in (*remaining, *program) if one.op in JAPANESE_NAMES]
    return steps[0]


def _check_memory(case: CaseText, schedule: PipelineSchedule) -> None:
    """Raise Wrong if a device keeps the activations of more microbatches than with 1F1B."""
    for device, kept in enumerate(peaks(schedule)):
        needed = min(schedule.devices - device, schedule.microbatches)
        if kept > needed:
            gpipe = all(most == schedule.microbatches for most in peaks(schedule))
            why = " (all of them, like GPipe)" if gpipe else ""
            why_ja = " (GPipe と同じく全部)" if gpipe else ""
            raise case.counterexample(
                f"the order is right, but device {device} keeps the activations of {kept} microbatches at once{why}, "
                f"although {needed} would be enough",
                f"順序は正しいのですが、デバイス {device} が一度に {kept} 個のマイクロバッチの"
                f"活性値を保持します{why_ja}。{needed} 個で足ります",
            )


def _check_time(case: CaseText, schedule: PipelineSchedule) -> None:
    """Raise Wrong if a step takes longer than with 1F1B."""
    costs = Costs.uniform(schedule.stages)
    best_time = predict_timeline(one_forward_one_backward(schedule.devices, schedule.microbatches), costs).seconds
    cost = predict_timeline(schedule, costs)
    if cost.seconds > best_time * (1 + 1e-9):
        idlest = max(range(schedule.devices), key=lambda device: cost.bubbles[device])
        raise case.counterexample(
            f"the order is right and needs little memory, but a step takes as long as {cost.seconds:g} forward "
            f"passes of a stage, although {best_time:g} would be enough: device {idlest} is idle for "
            f"{cost.bubbles[idlest]:.0%} of the step",
            "順序は正しくメモリも少ないのですが、1 ステップにステージの順伝播 "
            f"{cost.seconds:g} 回分の時間がかかります。{best_time:g} 回分で済みます。"
            f"デバイス {idlest} はその {cost.bubbles[idlest]:.0%} の間、何もしていません",
        )


# --- The guesses


# fmt: off
register_guess("05-a", DictForm(NumberForm(0, example=30, factor=1.15), "layers", "channels"),
    "how many MiB does the device with the higher memory use need?",
    "2 台のうち、メモリを多く使うほうは何 MiB 使うか")
register_guess("05-b", NumberForm(0, 1, example=0.5, within=0.05),
    "for what fraction of a step does the second device compute?", "2 台目が計算しているのは 1 ステップの時間の何割か")
register_guess("05-c", DictForm(NumberForm(0, example=3, factor=1.3), "lenet-avg", "mlp"),
    "by what factor does the number of bytes change if you split channels instead of layers?",
    "チャネルの分割は層の間の分割の何倍のバイト数を転送するか")
register_guess("05-d", DictForm(NumberForm(0, 1, example=0.5, within=0.03), "sequential", "gpipe"),
    "for what fraction of the time are 4 devices idle with 8 microbatches?",
    "4 台、マイクロバッチ 8 個。デバイスが待っているのは時間の何割か")
register_guess("05-e", NumberForm(0, example=2, factor=1.2),
    "how many times as much memory for activations does device 0 need with GPipe as with 1F1B?",
    "2 台、マイクロバッチ 8 個。デバイス 0 の活性値は、GPipe では 1F1B の何倍か")
register_guess("05-f", NumberForm(0, example=4, factor=1.5),
    "how many of the lecture's GPUs do GPT-3's weights, gradients and Adam states need?",
    "GPT-3 の重み、勾配、Adam の状態だけで、講義の GPU が何個必要か")
