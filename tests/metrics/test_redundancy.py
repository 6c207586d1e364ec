"""Cosines between weights: by hand, pair by pair, in blocks of any size, and fc6 of AlexNet in less than 1 GB."""

import itertools
import math
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from patchreorder.metrics import redundancy
from patchreorder.metrics.redundancy import SimilarityHistogram, neuron_similarity, position_similarity


def in_bins(cosines, bins):
    """Counts by comparing with the edges, in double precision."""
    edges = torch.linspace(-1, 1, bins + 1, dtype=torch.float64)
    values = torch.tensor(cosines, dtype=torch.float64)
    counts = [int(((values >= a) & (values < b)).sum()) for a, b in itertools.pairwise(edges)]
    counts[-1] += int((values >= 1).sum())
    return counts


def cosine(a, b):
    a, b = a.double(), b.double()
    return float(a @ b / (a.norm() * b.norm()))


class TestHistogram:
    def test_ends_and_middle(self):
        histogram = SimilarityHistogram()
        histogram.update(torch.tensor([[-1.0, 1.0], [0.0, 1.0 + 1e-6]]))
        found = histogram.result()
        assert (found.counts[0], found.counts[100], found.counts[200]) == (1, 1, 2)
        assert found.edges[100] < 0 < found.edges[101]
        assert (found.pairs, found.mean, found.mean_magnitude) == (4, 0.25, 0.75)

    def test_shares_sum_to_one(self):
        histogram = SimilarityHistogram(bins=3)
        histogram.update(torch.tensor([0.0, 0.0, 0.0, -1.0]))
        assert histogram.result().shares.tolist() == [0.25, 0.75, 0]

    def test_no_cosines(self):
        found = SimilarityHistogram().result()
        assert found.pairs == 0
        assert math.isnan(found.mean)
        assert found.shares.sum() == 0

    def test_the_given_tensor_is_left_alone(self):
        cosines = torch.tensor([-0.5, 0.5])
        SimilarityHistogram().update(cosines)
        assert cosines.tolist() == [-0.5, 0.5]

    def test_bins(self):
        with pytest.raises(ValueError, match=r"bins \(0\)"):
            SimilarityHistogram(bins=0)


class TestPositions:
    def test_inputs_are_flattened_map_by_map(self):
        """A layer behind 3 maps of 2x2 whose positions all have the same weights: all cosines are 1."""
        position = torch.rand(5, 3)
        weight = position[:, :, None, None].expand(5, 3, 2, 2).flatten(1)
        found = position_similarity(weight, maps=3)
        assert (found.pairs, found.counts[-1]) == (5 * 6, 5 * 6)
        assert found.mean == pytest.approx(1, abs=1e-6)
        # Flattened position by position they differ.
        assert position_similarity(position[:, None].expand(5, 4, 3).flatten(1), maps=3).mean < 0.99

    def test_equal_positions_make_a_layer_invariant(self):
        """Such a layer has equal outputs for a rotated map, which is what the paper's Eq. 4 is about."""
        layer = nn.Linear(12, 5)
        with torch.no_grad():
            layer.weight.copy_(torch.rand(5, 3)[:, :, None].expand(5, 3, 4).flatten(1))
        x = torch.rand(2, 3, 2, 2)
        assert torch.allclose(layer(x.flatten(1)), layer(x.rot90(1, (2, 3)).flatten(1)), atol=1e-5)
        assert position_similarity(layer.weight, maps=3).counts[-1] == 30

    @pytest.mark.parametrize("block", [1, 3, 100])
    def test_pair_by_pair(self, monkeypatch, block):
        monkeypatch.setattr(redundancy, "ROOM", block * (18 + 36))
        weight = torch.randn(7, 3 * 6)
        cosines = [
            cosine(weight[o, p::6], weight[o, q::6]) for o in range(7) for p in range(6) for q in range(p + 1, 6)
        ]
        found = position_similarity(weight, maps=3, bins=41)
        assert found.pairs == len(cosines) == 7 * 15
        assert found.counts.tolist() == in_bins(cosines, 41)
        assert found.mean == pytest.approx(sum(cosines) / len(cosines), abs=1e-6)
        assert found.mean_magnitude == pytest.approx(sum(map(abs, cosines)) / len(cosines), abs=1e-6)

    def test_a_position_with_zero_weights_has_no_cosine(self):
        weight = torch.ones(1, 2, 3)
        weight[0, :, 1] = 0
        found = position_similarity(weight.flatten(1), maps=2)
        assert (found.pairs, found.undefined) == (1, 2)

    @pytest.mark.parametrize("maps", [0, 5, 12])
    def test_maps_must_fit(self, maps):
        with pytest.raises(ValueError, match=rf"maps \({maps}\)"):
            position_similarity(torch.rand(4, 12), maps=maps)


class TestNeurons:
    @pytest.mark.parametrize("block", [1, 2, 5, 9, 100])
    def test_pair_by_pair(self, monkeypatch, block):
        monkeypatch.setattr(redundancy, "ROOM", block * 2 * 7)
        weight = torch.randn(9, 7)
        cosines = [cosine(weight[i], weight[j]) for i in range(9) for j in range(i + 1, 9)]
        found = neuron_similarity(weight, bins=41)
        assert found.pairs == 36
        assert found.counts.tolist() == in_bins(cosines, 41)
        assert found.mean == pytest.approx(sum(cosines) / 36, abs=1e-6)

    def test_kernels_of_a_convolution(self):
        weight = torch.randn(4, 3, 5, 5)
        assert torch.equal(neuron_similarity(weight).counts, neuron_similarity(weight.flatten(1)).counts)

    def test_not_the_same_as_between_positions(self):
        weight = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]])  # two maps of two positions
        assert position_similarity(weight, maps=2).mean == pytest.approx(1, abs=1e-6)
        assert neuron_similarity(weight).mean == 0

    def test_zero_neurons(self):
        found = neuron_similarity(torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]]))
        assert (found.pairs, found.undefined, found.mean) == (1, 2, 1.0)

    @pytest.mark.parametrize("size", [1e-30, 1e30])
    def test_small_and_large_weights(self, size):
        weight = torch.tensor([[3.0, 4.0], [4.0, 3.0]]) * size
        assert neuron_similarity(weight).mean == pytest.approx(0.96, abs=1e-6)

    @pytest.mark.parametrize(
        ("weight", "message"),
        [
            (torch.ones(1, 4), "two output neurons"),
            (torch.ones(4), r"\(4,\)"),
            (torch.ones(4, 4).int(), "int32"),
            (torch.tensor([[1.0, math.nan], [1.0, 1.0]]), "NaN"),
            (torch.tensor([[1.0, math.inf], [1.0, 1.0]]), "NaN or infinite"),
        ],
    )
    def test_errors(self, weight, message):
        with pytest.raises(ValueError, match=message):
            neuron_similarity(weight)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_fc6_of_alexnet_needs_less_than_one_gigabyte():
    """The peak of a process of its own, with Python, torch and the weights; 1024 neurons are several blocks."""
    program = """
import re, torch
from pathlib import Path
from patchreorder.metrics.redundancy import neuron_similarity, position_similarity

def peak():  # not getrusage: there the peak of the process that started this one counts too
    return 1024 * int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])

torch.set_num_threads(1)
weight = torch.empty(4096, 9216).uniform_(-1, 1, generator=torch.Generator().manual_seed(0))
weight[1] = weight[0]
weight[2].view(256, 36)[:, 1:] = weight[2].view(256, 36)[:, :1]
before = peak()
places, neurons = position_similarity(weight, maps=256), neuron_similarity(weight[:1024])
print(places.pairs, neurons.pairs, int(places.counts[-1]), int(neurons.counts[-1]))
print(peak(), peak() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300, env=dict(os.environ)
    )
    counts, peaks = done.stdout.splitlines()
    peak, more = map(int, peaks.split())
    assert counts == f"{4096 * 630} {1024 * 1023 // 2} 630 1"
    assert peak < 1_000_000_000
    assert more < 300_000_000  # two copies of the weights: without blocks it would be more
