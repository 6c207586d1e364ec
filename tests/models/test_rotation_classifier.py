"""One classifier for all rotations: against a linear layer on every shift; circular padding against torch's."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from patchreorder.models.rotation_classifier import CircularPad, RotationClassifier


class TestRotationClassifier:
    def test_against_a_linear_layer_on_every_shift(self):
        head, x = RotationClassifier(6, 5, classes=3), torch.randn(4, 2, 3, 5)
        nn.init.normal_(head.bias)
        flat = x.view(4, 6, 5)
        scores = [
            F.linear(flat.roll(-turn, 2).flatten(1), head.weight.flatten(1), head.bias[:, turn]) for turn in range(5)
        ]
        torch.testing.assert_close(head(x), torch.stack(scores, 2).exp().sum(2).log())
        # The probability of a class is the sum of those of its turns.
        torch.testing.assert_close(
            head(x).softmax(1), torch.stack(scores, 2).flatten(1).softmax(1).view(4, 3, 5).sum(2)
        )

    @pytest.mark.parametrize("any_turn", [True, False])
    def test_shifts_change_nothing_only_for_any_turn(self, any_turn):
        head, x = RotationClassifier(6, 5, classes=3, any_turn=any_turn), torch.randn(4, 6, 5)
        nn.init.normal_(head.bias)
        assert torch.allclose(head(x.roll(2, 2)), head(x), atol=1e-5) == any_turn

    def test_gradients_are_right(self):
        head = RotationClassifier(3, 4, classes=2).double()
        x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)

        def run(x, weight, bias):
            return torch.func.functional_call(head, {"weight": weight, "bias": bias}, (x,))

        assert torch.autograd.gradcheck(run, (x, head.weight, head.bias))

    def test_other_shapes_are_refused(self):
        head = RotationClassifier(6, 5, classes=3)
        with pytest.raises(ValueError, match="x has 6 features and 4 turns, not 6, 5"):
            head(torch.randn(1, 6, 4))
        with pytest.raises(ValueError, match="x has 2 columns, fewer than the padding \\(3\\)"):
            CircularPad(3)(torch.zeros(1, 1, 1, 2))
        assert repr(head) == "RotationClassifier(features=6, turns=5, classes=3)"

    def test_wrapping_is_circular_padding(self):
        x, conv = torch.randn(2, 3, 7, 8), nn.Conv2d(3, 4, 5, padding=(0, 2), padding_mode="circular")
        torch.testing.assert_close(F.conv2d(CircularPad(2)(x), conv.weight, conv.bias), conv(x))
