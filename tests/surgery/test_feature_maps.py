"""The modules that return feature maps, and what a forward pass shows of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from patchreorder import PatchReorder
from patchreorder.surgery.feature_maps import ForwardTrace, trace_forward
from patchreorder.surgery.insertion import insert_after
from patchreorder.surgery.probe import Probe, evaluating


def trace(model: nn.Module, *shape: int) -> ForwardTrace:
    with evaluating(model):
        return trace_forward(Probe(model, (torch.randn(shape or (2, 3, 15, 15)),)))


def names(model: nn.Module, *shape: int) -> list[str]:
    return [found.name for found in trace(model, *shape).map_modules()]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x + self.conv2(self.act(self.conv1(x))))


def test_a_module_called_twice_counts_by_its_first_call() -> None:
    # Its second output is that of the block, which is therefore listed itself; the outer container is not.
    found = {found.name: found for found in trace(nn.Sequential(nn.Sequential(Residual()), nn.Flatten())).map_modules()}
    assert list(found) == ["0.0.conv1", "0.0.act", "0.0.conv2", "0.0"]
    assert [entry.first_call for entry in found.values()] == [1, 2, 3, 5]
    assert found["0.0.act"].calls == 2


def test_identities_and_containers_of_the_same_maps_are_not_listed() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([nn.Sequential(nn.Conv2d(3, 4, 3), nn.Identity())])

        def forward(self, x: Tensor) -> Tensor:
            return self.parts[0](x)

    assert names(nn.Sequential(Deep(), nn.Flatten())) == ["0.parts.0.0"]


def test_a_module_that_the_model_does_not_list_is_not_listed() -> None:
    class Hidden(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return hidden(super().forward(x)).flatten(1)

    hidden = nn.Tanh()
    assert names(Hidden(nn.Conv2d(3, 4, 3))) == ["0"]


def test_outputs_with_channels_last_and_vectors_are_no_feature_maps() -> None:
    class Next(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.LayerNorm(8)
            self.fc1, self.act, self.fc2 = nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)
            self.same, self.pool = nn.Identity(), nn.AdaptiveAvgPool2d(1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x)
            return self.pool(x * self.same(self.fc2(self.act(self.fc1(self.norm(x.movedim(1, 3)))))).movedim(3, 1))

    assert names(Next()) == ["conv"]


def test_a_layer_norm_over_channels_that_are_as_many_as_columns() -> None:
    class Norm2d(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.movedim(1, 3)).movedim(3, 1)

    assert names(nn.Sequential(nn.Conv2d(3, 6, 3), Norm2d(6), nn.Flatten()), 1, 3, 8, 8) == ["0", "1"]


def test_convolutions_larger_than_one_pixel_are_counted() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, (1, 3)), nn.ReLU(), nn.Conv2d(4, 4, 3))
    assert trace(model).convolutions == [2, 4]


def test_negative_values_are_noted() -> None:
    found = trace(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten())).map_modules()
    assert [entry.negative for entry in found] == [True, False]


def test_the_global_pool_after_the_last_maps_is_named() -> None:
    class Excited(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.squeeze, self.conv = nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, 8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x * self.squeeze(x)).mean((2, 3))  # `squeeze` is another pool

    assert trace(Excited()).pool == ""
    assert trace(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sequential(nn.AdaptiveAvgPool2d(1)))).pool == "1.0"


def test_a_layer_of_the_family_is_seen_behind_the_module_before_it() -> None:
    class Loop(nn.ModuleList):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self:
                x = layer(x)
            return x * 1

    def followed(container: type[nn.Sequential] | type[Loop], name: str) -> list[str]:
        parts = [nn.Conv2d(3, 8, 3), nn.Tanh()]
        features = Loop(parts) if container is Loop else nn.Sequential(*parts)
        model = insert_after(nn.Sequential(features, nn.Flatten()), name, PatchReorder("pixels"))
        found = trace(model)
        assert found.has_sorting
        assert not any(isinstance(entry.module, PatchReorder) for entry in found.map_modules())
        return [entry.name for entry in found.map_modules() if entry.followed]

    assert followed(nn.Sequential, "0.0") == ["0.0"]
    assert followed(nn.Sequential, "0") == ["0.1"]  # the container returns the output of its last child
    assert followed(Loop, "0") == ["0"]  # held by a hook alone


def test_the_hook_is_removed_after_an_error() -> None:
    class Failing(nn.ReLU):
        fails = False

        def forward(self, x: Tensor) -> Tensor:
            assert not self.fails
            return super().forward(x)

    model = Failing()
    probe = Probe(model, (torch.randn(1, 3, 4, 4),))
    model.fails = True
    with pytest.raises(AssertionError):
        trace_forward(probe)
    assert not nn.modules.module._global_forward_hooks
