"""Firing rates: networks whose scores are known, an oracle in plain Python, and batches of any size and order."""

import math
from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from patchreorder.metrics import invariance
from patchreorder.metrics.invariance import FiringThresholds, LocalFiring

POSITIONS = 25
SHIFTS = range(-5, 6)  # eleven poses, the one of no shift among them


def thresholds(values, *, batch=None, images=None, **settings):
    first = FiringThresholds(images=images or len(values), **settings)
    for part in values.split(batch or len(values)):
        first.update(part)
    return first.result()


def measured(network, images, poses):
    """Both passes of a network over images, with poses that are functions of them."""
    second = LocalFiring(thresholds(network(images)))
    second.update(network(images), torch.cat([network(pose(images)) for pose in poses]))
    return second.result()


def shift(by):
    return lambda images: images.roll(by, 3)


@pytest.fixture
def dots():
    """200 images of 1 x 25 pixels with one bright pixel each, every position eight times, no two equally bright."""
    images = torch.zeros(200, 1, 1, POSITIONS)
    images[torch.arange(200), 0, 0, torch.arange(200) % POSITIONS] = 1 + torch.randperm(200) / 100
    return images


class TestByHand:
    """Of 200 images 3 are the fewest above 1 %: G = 0.015."""

    def test_an_invariant_network_reaches_the_ceiling(self, dots):
        brightest = lambda images: images.flatten(1).amax(1, keepdim=True)  # noqa: E731
        found = measured(brightest, dots, [shift(by) for by in SHIFTS])
        assert found.global_rate.tolist() == [3 / 200]
        assert found.local_rate.tolist() == [1.0]
        assert found.score == found.ceiling == pytest.approx(200 / 3)
        assert (found.unselective, found.silent, found.nans) == (0, 0, 0)

    def test_a_constant_network_scores_one(self, dots):
        constant = lambda images: images.new_full((len(images), 7), 0.3)  # noqa: E731
        found = measured(constant, dots, [shift(by) for by in SHIFTS])
        assert found.scores.tolist() == [1.0] * 7
        assert found.score == 1.0
        assert found.unselective == 7

    def test_a_position_detector_fires_in_one_pose_of_eleven(self, dots):
        found = measured(lambda images: images, dots, [shift(by) for by in SHIFTS])
        assert found.scores.shape == (POSITIONS,)
        assert found.local_rate.tolist() == pytest.approx([1 / 11] * POSITIONS)
        assert found.score == pytest.approx(200 / 3 / 11)

    @pytest.mark.parametrize(("detectors", "best"), [(4, 1), (5, 2), (9, 2), (10, 3)])
    def test_the_score_is_the_mean_of_the_best_fifth(self, dots, detectors, best):
        def mixed(images):  # one invariant neuron, and detectors of one position each
            return torch.cat([images.flatten(1).amax(1, keepdim=True), images.flatten(1)[:, :detectors]], 1)

        found = measured(mixed, dots, [shift(by) for by in SHIFTS])
        assert found.score == pytest.approx(200 / 3 * (1 + (best - 1) / 11) / best)  # rounded up

    def test_half_the_poses(self):
        images = torch.arange(100.0)[:, None, None, None]
        found = measured(lambda x: x.flatten(1), images, [lambda x: x, lambda x: -x])
        assert found.global_rate.item() == 0.02
        assert found.score == 0.5 / 0.02


class TestThreshold:
    @pytest.mark.parametrize(
        ("images", "fired"),
        [
            (1, 1),
            (2, 1),
            (50, 1),
            (99, 1),
            (100, 2),
            (101, 2),
            (199, 2),
            (200, 3),
            (2900, 30),
            (5700, 58),
            (10_000, 101),
        ],
    )
    def test_just_above_one_percent(self, images, fired):
        values = torch.randperm(images).float()[:, None]
        found = thresholds(values)
        assert found.fired.tolist() == [fired]
        assert found.needed == fired
        assert Fraction(fired, images) > Fraction(1, 100) >= Fraction(fired - 1, images)
        assert int((values > found.threshold).sum()) == fired

    def test_the_threshold_is_the_next_lower_value(self):
        assert thresholds(torch.arange(200.0)[:, None]).threshold.tolist() == [196.0]

    @pytest.mark.parametrize("equal", [2, 5, 60, 150])
    def test_ties_fire_together(self, equal):
        values = torch.cat([torch.arange(200.0 - equal), torch.full((equal,), 500.0)])[torch.randperm(200), None]
        found = thresholds(values, batch=7)
        assert found.fired.tolist() == [max(3, equal)]
        assert found.threshold.tolist() == [200.0 - equal - 1 if equal > 2 else 196.0]

    def test_a_tie_below_the_threshold_changes_nothing(self):
        values = torch.tensor([9.0, 8.0, 7.0] + [6.0] * 197)[torch.randperm(200), None]
        found = thresholds(values, batch=11)
        assert (found.threshold.tolist(), found.fired.tolist()) == ([6.0], [3])

    def test_a_neuron_that_is_zero_for_99_percent_always_fires(self):
        values = torch.zeros(400, 1)
        values[:4] = 1  # 1 %, not more
        found = thresholds(values)
        assert (found.threshold.tolist(), found.fired.tolist()) == ([-math.inf], [400])
        values[4] = 1
        found = thresholds(values)
        assert (found.threshold.tolist(), found.fired.tolist()) == ([0.0], [5])

    @pytest.mark.parametrize("seen", [1, 99, 100, 250, 777])
    def test_fewer_images_than_announced(self, seen):
        values = torch.randint(0, 40, (seen, 6)).float()
        for announced in (seen, 2000, 50_000):
            found = thresholds(values, images=announced, batch=13)
            expected = thresholds(values)
            assert torch.equal(found.threshold, expected.threshold)
            assert torch.equal(found.fired, expected.fired)
            assert found.images == seen

    def test_results_between_updates(self):
        values = torch.randint(0, 300, (900, 5)).float()
        first = FiringThresholds(images=900)
        for stop in (1, 40, 300, 301, 900):
            first.update(values[first.seen : stop])
            for found, expected in ((first.result(), thresholds(values[:stop])), (first.result(), first.result())):
                assert torch.equal(found.threshold, expected.threshold)
                assert torch.equal(found.fired, expected.fired)

    def test_memory_does_not_grow_with_the_images(self):
        first = FiringThresholds(images=20_000)
        first.update(torch.rand(500, 10))
        sizes = [array.nbytes for array in vars(first).values() if isinstance(array, np.ndarray)]
        for _ in range(39):
            first.update(torch.rand(500, 10))
        assert [array.nbytes for array in vars(first).values() if isinstance(array, np.ndarray)] == sizes
        assert sum(sizes) <= 10 * (4 * (201 + 256) + 4 + 8)


class TestNotFinite:
    def test_nan_never_fires_and_is_counted(self):
        values = torch.arange(200.0)[:, None].repeat(1, 2)
        values[[199, 50], 0] = math.nan
        found = thresholds(values, batch=9)
        assert found.threshold.tolist() == [195.0, 196.0]
        assert found.fired.tolist() == [3, 3]
        assert found.nans == 2
        second = LocalFiring(found)
        copies = values.clone()
        copies[198] = math.nan
        second.update(values, copies)
        assert second.result().local_rate.tolist() == pytest.approx([2 / 3, 2 / 3])
        assert second.result().nans == 2

    @pytest.mark.parametrize("value", [math.nan, -math.inf])
    def test_a_neuron_without_values_is_silent(self, value):
        values = torch.full((200, 3), value)
        values[:, 2] = torch.arange(200.0)
        values[:2, 1] = 1.0  # not more than 1 %
        second = LocalFiring(thresholds(values))
        second.update(values, values)
        found = second.result()
        assert found.silent == 2
        assert found.scores.tolist() == [0.0, 0.0, 200 / 3]

    def test_all_silent(self):
        values = torch.full((10, 3), math.nan)
        second = LocalFiring(thresholds(values))
        second.update(values, values)
        assert second.result().score == 0.0

    def test_infinite_values_fire(self):
        values = torch.arange(200.0)[:, None]
        values[:5] = math.inf
        found = thresholds(values)
        assert (found.threshold.tolist(), found.fired.tolist()) == ([199.0], [5])


class TestNeurons:
    def test_every_position_of_a_feature_map_is_a_neuron(self):
        maps = torch.rand(150, 3, 4, 5)
        found = thresholds(maps)
        assert torch.equal(found.threshold, thresholds(maps.flatten(1)).threshold)
        assert found.neurons.number == 60

    @pytest.mark.parametrize("max_neurons", [None, 17])
    def test_the_memory_layout_does_not_matter(self, max_neurons):
        x, copies = torch.rand(150, 3, 4, 5), torch.rand(300, 3, 4, 5)
        results = []
        for layout in (torch.contiguous_format, torch.channels_last):
            second = LocalFiring(thresholds(x.contiguous(memory_format=layout), max_neurons=max_neurons))
            second.update(x.contiguous(memory_format=layout), copies.contiguous(memory_format=layout))
            results.append(second.result().scores)
        assert torch.equal(*results)

    def test_poses_may_have_other_layouts(self):
        x, copies = torch.rand(150, 3, 4, 5), torch.rand(150, 3, 4, 5)
        plain, mixed = LocalFiring(thresholds(x)), LocalFiring(thresholds(x))
        pairs = mixed.firing(x)
        for part in (copies, copies.contiguous(memory_format=torch.channels_last), copies.mT.contiguous().mT):
            plain.update(x, copies)
            mixed.update(pairs, part)
        assert torch.equal(plain.result().scores, mixed.result().scores)

    def test_the_drawn_neurons_are_the_same_in_both_passes(self):
        x, copies = torch.rand(150, 3, 4, 5), torch.rand(150, 3, 4, 5)
        everything, some = (LocalFiring(thresholds(x, max_neurons=max_neurons, seed=3)) for max_neurons in (None, 17))
        for second in (everything, some):
            second.update(x, copies)
        chosen = some.thresholds.neurons.chosen
        assert len(chosen) == len(set(chosen.tolist())) == 17
        assert torch.equal(some.result().scores, everything.result().scores[chosen])
        assert not torch.equal(chosen, thresholds(x, max_neurons=17, seed=4).neurons.chosen)
        assert thresholds(x, max_neurons=60).neurons.chosen is None

    def test_double_and_half_precision(self):
        values = 1 + torch.arange(200.0, dtype=torch.float64)[:, None] * 1e-12
        assert thresholds(values).fired.tolist() == [3]
        values = torch.rand(200, 4).half()
        assert torch.equal(thresholds(values).threshold, thresholds(values.float()).threshold)
        second = LocalFiring(thresholds(values))
        second.update(values, values)
        assert second.result().score == pytest.approx(second.result().ceiling, rel=0.5)


def oracle(values, copies):
    """Scores, thresholds and the mean of the best fifth by trying every threshold, from values (n, m)."""
    scores, limits = [], []
    for neuron in range(values.shape[1]):
        own = [-math.inf if math.isnan(v) else v for v in values[:, neuron].tolist()]
        need = Fraction(1, 100) * len(own)
        limit = max((t for t in {*own, -math.inf} if sum(v > t for v in own) > need), default=-math.inf)
        fires = [i for i, v in enumerate(own) if v > limit]
        limits.append(limit)
        if len(fires) <= need:
            scores.append(0.0)
            continue
        if limit == -math.inf:
            scores.append(1.0)
            continue
        there = [copy[i, neuron].item() > limit for i in fires for copy in copies]
        scores.append(sum(there) / len(there) / (len(fires) / len(own)))
    best = sorted(scores, reverse=True)[: math.ceil(Fraction(1, 5) * len(scores))]
    return scores, limits, sum(best) / len(best)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n=st.integers(1, 320),
    neurons=st.integers(1, 6),
    spread=st.sampled_from([1, 2, 5, 40, 100_000]),
    kind=st.sampled_from(["plain", "relu", "nan"]),
    poses=st.integers(1, 3),
    seed=st.integers(0, 10**6),
    data=st.data(),
)
def test_batches_of_any_size_and_order_against_the_oracle(monkeypatch, n, neurons, spread, kind, poses, seed, data):
    monkeypatch.setattr(invariance, "ROOM", data.draw(st.sampled_from([1, 3, 64, 256])))
    monkeypatch.setattr(invariance, "BLOCK", data.draw(st.sampled_from([1, 2, 4096])))
    random = torch.Generator().manual_seed(seed)
    values, *copies = (
        torch.randint(-spread, spread + 1, (n, neurons), generator=random).float() for _ in range(poses + 1)
    )
    if kind == "relu":
        values, copies = values.relu(), [copy.relu() for copy in copies]
    if kind == "nan":
        values[torch.rand(values.shape, generator=random) < 0.3] = math.nan
        copies[0][torch.rand(values.shape, generator=random) < 0.3] = math.nan
    scores, limits, mean = oracle(values, copies)

    shuffled = torch.randperm(n, generator=random)
    first = FiringThresholds(images=n)
    for part in shuffled.split(data.draw(st.integers(1, n))):
        first.update(values[part])
    found = first.result()
    assert found.threshold.tolist() == limits
    second = LocalFiring(found)
    for part in torch.randperm(n, generator=random).split(data.draw(st.integers(1, n))):
        if data.draw(st.booleans()):
            second.update(values[part], torch.cat([copy[part] for copy in copies]))
        else:
            pairs = second.firing(values[part])
            for copy in copies:
                second.update(pairs, copy[part])
    assert second.result().scores.tolist() == pytest.approx(scores)
    assert second.result().score == pytest.approx(mean)


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"images": 0}, r"images \(0\)"),
            ({"images": 5, "max_neurons": 0}, r"max_neurons \(0\)"),
        ],
    )
    def test_arguments(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            FiringThresholds(**arguments)

    def test_batches(self):
        first = FiringThresholds(images=5)
        with pytest.raises(ValueError, match="no images"):
            first.result()
        with pytest.raises(TypeError, match="int64"):
            first.update(torch.ones(2, 3, dtype=torch.int64))
        with pytest.raises(ValueError, match=r"\(2,\)"):
            first.update(torch.ones(2))
        with pytest.raises(ValueError, match=r"\(2, 0\)"):
            first.update(torch.ones(2, 0))
        first.update(torch.ones(2, 3))
        with pytest.raises(ValueError, match=r"\(2, 4\) do not match"):
            first.update(torch.ones(2, 4))
        with pytest.raises(ValueError, match=r"6 images are more than images \(5\)"):
            first.update(torch.ones(4, 3))
        first.update(torch.ones(0, 3))  # an empty batch is no error
        assert first.result().images == 2

    def test_second_pass(self):
        values = torch.rand(10, 3)
        found = thresholds(values)
        second = LocalFiring(found)
        with pytest.raises(ValueError, match="no copies"):
            second.result()
        with pytest.raises(ValueError, match=r"copies \(15\) must be of all 10 images"):
            second.update(values, torch.rand(15, 3))
        with pytest.raises(ValueError, match="do not match"):
            second.update(values, torch.rand(10, 4))
        with pytest.raises(ValueError, match="do not match"):
            second.update(torch.rand(10, 4), values)


def test_updates_in_and_outside_inference_mode():
    values = torch.rand(300, 4)
    with torch.inference_mode():
        first = FiringThresholds(images=300)
        first.update(values + 0)
        second = LocalFiring(first.result())
        pairs = second.firing(values + 0)
        second.update(pairs, values + 0)
    second.update(pairs, values)
    assert second.result().score == second.result().ceiling
    second.update(pairs, values - 1)
    assert second.result().local_rate.tolist() == pytest.approx([2 / 3] * 4)
