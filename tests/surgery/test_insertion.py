"""`insert_after` and `remove_after` on small models; test_vision.py has those of torchvision and timm."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from patchreorder import PatchReorder, RankedPool, patch_reorder
from patchreorder.surgery.insertion import insert_after, remove_after
from tests.compiling import onnx_runner

Reorder = Callable[[nn.Module, str, Tensor], Tensor]
pytestmark = pytest.mark.usefixtures("one_thread")


class Block(nn.Module):
    """Calls one activation twice, as residual blocks do."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.act = nn.LeakyReLU(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x + self.conv2(self.act(self.conv1(x))))


class Dense(nn.ModuleDict):
    """Iterates over its children, each of which must take the growing input."""

    def __init__(self) -> None:
        super().__init__({"a": nn.Conv2d(4, 2, 3, padding=1), "b": nn.Conv2d(6, 2, 3, padding=1)})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.values():
            x = torch.cat([x, layer(x)], 1)
        return x


class Loop(nn.ModuleList):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return x


class Walker(nn.Module):
    """Iterates over its children, though its class is no container; the call is in a comprehension."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 1), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return [x := part(x) for _ in range(1) for part in self.children()][-1]


class Net(nn.Module):
    """One module of every kind, then a classifier that sees positions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.body = nn.Sequential(Block(4), nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU()))
        self.dense = Dense()
        self.loop = Loop([nn.ReLU(), nn.Conv2d(8, 8, 1)])
        self.walker = Walker()
        self.heads = nn.ModuleList([nn.Linear(8 * 64, 5)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.walker(self.loop(self.dense(self.body(self.stem(x)))))
        return self.heads[0](x.flatten(1))


class Scale(nn.Module):
    """A layer with a parameter; counts its calls."""

    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.factor


class Both(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


NAMES = ["stem", "body", "body.0", "body.0.conv1", "body.0.act", "body.1.1", "dense", "dense.a", "loop", "walker"]


@pytest.fixture
def images() -> Tensor:
    return torch.randn(2, 3, 8, 8)


@pytest.mark.parametrize("name", ["", *NAMES])
def test_the_output_of_the_module_goes_through_the_layer(name: str, images: Tensor, reorder_by_hand: Reorder) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()) if name == "" else Net()
    plain, expected = model(images), reorder_by_hand(model, name, images)
    assert insert_after(model, name, PatchReorder("pixels")) is model
    assert torch.equal(model(images), expected)
    assert not torch.equal(plain, expected)


def test_the_layer_runs_at_every_call_of_the_module(images: Tensor) -> None:
    model, layer = Net(), Scale()
    insert_after(model, "body.0.act", layer)
    model(images)
    assert layer.calls == 2


def test_a_module_with_two_names_gets_the_layer_under_both(images: Tensor) -> None:
    act = nn.ReLU()
    model = nn.Sequential(nn.Conv2d(3, 4, 3), act, nn.Conv2d(4, 4, 3), act)
    layer = Scale()
    insert_after(model, "3", layer)
    model(images)
    assert layer.calls == 2
    assert remove_after(model, "1") == [layer]


def test_a_sequential_gets_a_last_child_that_iteration_reaches(images: Tensor) -> None:
    model = insert_after(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), "", PatchReorder("pixels"))
    assert [name for name, _ in model.named_children()] == ["0", "1", "reorder"]
    x = images
    for part in model:
        x = part(x)
    assert torch.equal(x, model(images))


def test_layers_run_in_the_order_of_insertion(images: Tensor) -> None:
    for name in ("", "0"):
        model = nn.Sequential(nn.Conv2d(3, 4, 3))
        expected = torch.relu(model(images)) * 3 - 1
        shift = nn.BatchNorm2d(4).eval()
        nn.init.constant_(shift.bias, -1.0)
        shift.eps = 0.0
        for layer in (nn.ReLU(), Scale(3.0), shift):
            insert_after(model, name, layer)
        torch.testing.assert_close(model(images), expected)


def test_one_layer_can_follow_two_modules(images: Tensor) -> None:
    model, layer = Net(), Scale()
    insert_after(insert_after(model, "stem", layer), "body.1.1", layer)
    model(images)
    assert layer.calls == 2
    assert remove_after(model, "stem") == [layer]
    model(images)
    assert layer.calls == 3


def test_the_gradient_goes_through_the_layer(images: Tensor, reorder_by_hand: Reorder) -> None:
    model = Net()
    reorder_by_hand(model, "body.0", images).square().sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    insert_after(model, "body.0", PatchReorder("pixels"))(images).square().sum().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad, gradient)


def test_a_sequential_with_a_forward_of_its_own_is_followed_as_a_whole(images: Tensor) -> None:
    class Skip(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return x + super().forward(x)

    model = nn.Sequential(Skip(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU()))
    expected = patch_reorder(model(images), grid="pixels")
    assert torch.equal(insert_after(model, "0", PatchReorder("pixels"))(images), expected)
    # The same for a forward that is set on the instance.
    model = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1))
    plain = model.forward
    model.forward = lambda x: x + plain(x)
    expected = patch_reorder(model(images), grid="pixels")
    assert torch.equal(insert_after(model, "", PatchReorder("pixels"))(images), expected)


# State dicts


@pytest.mark.parametrize("name", ["", *NAMES])
def test_old_checkpoints_load_strictly_and_no_key_changes(name: str) -> None:
    old = Net().state_dict()
    model = insert_after(Net(), name, PatchReorder())
    assert list(model.state_dict()) == list(old)
    model.load_state_dict(old, strict=True)
    assert all(torch.equal(value, old[key]) for key, value in model.state_dict().items())
    Net().load_state_dict(model.state_dict(), strict=True)


def test_a_layer_with_state_only_adds_keys_and_moves_with_the_model() -> None:
    model = insert_after(insert_after(Net(), "body", Scale()), "stem", Scale())
    added = {"stem.reorder.factor", "body.reorder.factor"}
    assert set(model.state_dict()) - set(Net().state_dict()) == added
    assert {name for name, _ in model.named_parameters()} >= added
    assert model.double().stem.reorder.factor.dtype == torch.float64


# Printing and removal


@pytest.mark.parametrize("name", ["", *NAMES])
def test_print_shows_the_layer(name: str) -> None:
    model = insert_after(Net(), name, PatchReorder("pixels", energy="l1"))
    assert repr(model).count("PatchReorder(grid='pixels', energy='l1'") == 1


def everything(module: nn.Module) -> dict[str, object]:
    """All attributes of all modules, in a form that can be compared."""
    return {part: {key: str(value) for key, value in vars(child).items()} for part, child in module.named_modules()}


@pytest.mark.parametrize("name", ["", *NAMES])
def test_removal_leaves_the_model_as_it_was(name: str, images: Tensor) -> None:
    model = Net()
    before, shown, keys, output = everything(model), repr(model), [*model.state_dict()], model(images)
    layers = [PatchReorder(), nn.ReLU()]
    for layer in layers:
        insert_after(model, name, layer)
    assert everything(model) != before
    assert remove_after(model, name) == layers
    assert everything(model) == before
    assert (repr(model), [*model.state_dict()]) == (shown, keys)
    assert torch.equal(model(images), output)
    with pytest.raises(ValueError, match="no layer is inserted after"):
        remove_after(model, name)


def test_a_child_that_is_called_reorder_already_stays() -> None:
    model = nn.Sequential()
    model.add_module("reorder", nn.Tanh())
    model.reorder.reorder = nn.ReLU()
    for name in ("", "reorder"):
        insert_after(model, name, PatchReorder())
        assert model.get_submodule(f"{name}.reorder_1".lstrip(".")) is remove_after(model, name)[0]
    assert isinstance(model.reorder, nn.Tanh)
    assert isinstance(model.reorder.reorder, nn.ReLU)


def test_removal_names_the_modules_that_have_layers() -> None:
    model = insert_after(insert_after(Net(), "stem", PatchReorder()), "body", PatchReorder())
    with pytest.raises(ValueError, match="after module 'loop', only after module 'stem', module 'body'"):
        remove_after(model, "loop")


def test_a_layer_deleted_by_hand_is_gone(images: Tensor) -> None:
    model = Net()
    plain = model(images)
    insert_after(insert_after(model, "stem", PatchReorder()), "body", PatchReorder())
    del model.stem.reorder, model.body[-1]
    assert torch.equal(model(images), plain)
    layer = Scale()
    insert_after(model, "stem", layer)  # gets the free name: the old hook must not run it as well
    model(images)
    assert layer.calls == 1
    assert remove_after(model, "stem") == [layer]
    with pytest.raises(ValueError, match="only after nothing"):
        remove_after(model, "body")


# Copies


def by_torch_save(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    return torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), by_torch_save])
def test_a_copy_runs_its_own_layers(copied: Callable[[nn.Module], nn.Module], images: Tensor) -> None:
    model = Net()
    for name in ("stem", "body"):
        insert_after(model, name, Scale())
    for name in ("dense", "walker"):
        insert_after(model, name, PatchReorder())
    other, output = copied(model), model(images)
    assert repr(other) == repr(model)
    assert torch.equal(other(images), output)
    with torch.no_grad():
        other.stem.reorder.factor.fill_(0.0)
    assert not torch.equal(other(images), output)
    assert torch.equal(model(images), output)
    for name in ("stem", "body", "dense", "walker"):
        remove_after(other, name)
    assert repr(other) == repr(Net())
    assert torch.equal(model(images), output)


def test_later_hooks_do_not_replace_that_of_an_unpickled_model(images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = insert_after(Net(), "stem", Scale())
    (number,) = model.stem._forward_hooks
    stored = pickle.dumps(model)
    monkeypatch.setattr(RemovableHandle, "next_id", 0)  # as in a new process
    loaded = pickle.loads(stored)
    for _ in range(number + 1):
        loaded.stem.register_forward_hook(lambda *_: None)
    assert torch.equal(loaded(images), model(images))
    assert loaded.stem.reorder.calls == 1


@pytest.mark.parametrize(("name", "channels"), [("stem", 3), ("body", 4), ("dense", 4), ("walker", 8)])
def test_train_and_eval_reach_the_layer(name: str, channels: int) -> None:
    model = insert_after(Net(), name, nn.Dropout(1.0))
    for other in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        for mode in (False, True, False):
            other.train(mode)
            output = other.get_submodule(name)(torch.randn(2, channels, 8, 8))
            assert bool(output.any()) is not mode
            assert all(module.training is mode for module in other.modules())


def test_insertion_leaves_the_mode_of_the_layer(images: Tensor) -> None:
    model = insert_after(Net().train(), "stem", nn.Dropout(1.0).eval())
    assert model.stem(images).abs().sum() > 0


# Compilers and exporters


@pytest.fixture
def operated() -> nn.Module:
    model = Net().eval()
    for name in ("stem", "body", "dense"):  # by hook, as a last child, by hook alone
        insert_after(model, name, PatchReorder(grid=2))
    return model


def test_it_compiles_in_one_graph(operated: nn.Module, images: Tensor) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(operated, fullgraph=True, backend="eager")
    assert torch.equal(compiled(images), operated(images))


@pytest.mark.parametrize("strict", [False, True])
def test_it_exports(operated: nn.Module, images: Tensor, strict: bool) -> None:
    program = torch.export.export(operated, (images,), strict=strict)
    assert torch.equal(program.module()(images), operated(images))


def test_it_runs_in_onnxruntime(images: Tensor) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), Block(4)).eval()
    for name in ("0", "1", ""):
        insert_after(model, name, PatchReorder("pixels"))  # exports as one TopK each
    pytest.importorskip("onnxruntime")
    (output,) = onnx_runner(torch.onnx.export(model, (images,), dynamo=True, verbose=False))(images)
    torch.testing.assert_close(output, model(images).detach())


def test_fx_traces_through_the_hook(images: Tensor) -> None:
    model = insert_after(nn.Sequential(nn.Conv2d(3, 4, 3), Block(4)), "1", nn.Tanh())
    assert torch.equal(torch.fx.symbolic_trace(model)(images), model(images))


# Refused models and arguments


@pytest.fixture
def process_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def compiled_in_place(model: nn.Module) -> nn.Module:
    model.compile()
    return model


def compiled_forward(model: nn.Module) -> nn.Module:
    model.forward = torch.compile(model.forward)
    return model


WRAPPINGS = {
    "compiled": torch.compile,
    "compiled in place": compiled_in_place,
    "compiled forward": compiled_forward,
    "wrapped in DataParallel": nn.DataParallel,
    "scripted": torch.jit.script,
    "traced": lambda model: torch.jit.trace(model, torch.zeros(1, 3, 8, 8)),
}


def assert_refused(model: nn.Module, match: str) -> None:
    names = [name for name, _ in model.named_modules()]
    for name in ("", names[1], "unknown"):
        with pytest.raises(TypeError, match=match):
            insert_after(model, name, PatchReorder())
        with pytest.raises(TypeError, match=match):
            remove_after(model, name)
    assert [name for name, _ in model.named_modules()] == names


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("nested", [False, True], ids=["whole", "part"])
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_wrapped_models_are_refused(wrapping: str, nested: bool) -> None:
    model = WRAPPINGS[wrapping](nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()))
    state = {"scripted": "scripted or traced", "traced": "scripted or traced"}.get(wrapping, wrapping)
    state = "compiled" if wrapping.startswith("compiled") else state
    if nested:
        assert_refused(nn.Sequential(nn.Identity(), model), f"module '1' is {state}: .* before it is {state}")
    else:
        assert_refused(model, f"the model is {state}: .* before it is {state}")


@pytest.mark.usefixtures("process_group")
def test_distributed_models_are_refused(images: Tensor) -> None:
    assert_refused(nn.parallel.DistributedDataParallel(Net()), "wrapped in DistributedDataParallel")
    # Wrapping after the insertion works.
    model = insert_after(Net(), "stem", PatchReorder())
    expected = model(images)
    assert torch.equal(nn.parallel.DistributedDataParallel(model)(images), expected)


@pytest.mark.usefixtures("process_group")
def test_sharded_models_are_refused() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(Net(), mesh=init_device_mesh("cpu", (1,)))
    assert_refused(model, "wrapped in FSDPModule")


def test_a_forward_excluded_from_compilation_is_not_compiled(images: Tensor) -> None:
    class Eager(nn.Module):
        @torch.compiler.disable
        def forward(self, x: Tensor) -> Tensor:
            return x

    model = insert_after(Eager(), "", PatchReorder("pixels"))
    assert torch.equal(model(images), patch_reorder(images, grid="pixels"))


def test_an_unknown_name_gets_the_nearest_ones() -> None:
    with pytest.raises(ValueError, match=r"no module 'body\.0\.conv3'; nearest: .*body\.0\.conv[12]"):
        insert_after(Net(), "body.0.conv3", PatchReorder())
    with pytest.raises(ValueError, match=r"no module 'QQQQQQQQ'; it has: stem, body, body\.0,"):
        insert_after(Net(), "QQQQQQQQ", PatchReorder())
    with pytest.raises(ValueError, match="it has no submodules"):
        insert_after(nn.ReLU(), "0", PatchReorder())
    with pytest.raises(ValueError, match=r"no module 'stem\.reorder'; nearest: stem"):
        remove_after(Net(), "stem.reorder")


def test_a_module_without_forward_is_refused_naming_its_children() -> None:
    model = Net()
    with pytest.raises(ValueError, match=r"'heads' is a ModuleList, which is never called.*\(heads\.0\)"):
        insert_after(model, "heads", PatchReorder())
    with pytest.raises(ValueError, match="it has none"):
        insert_after(nn.ModuleDict(), "", PatchReorder())
    assert repr(model) == repr(Net())


@pytest.mark.parametrize("name", ["dense", "loop", "walker"])
def test_a_module_that_iterates_over_its_children_takes_no_layer_with_state(name: str) -> None:
    model = Net()
    for layer in (Scale(), nn.BatchNorm2d(8, affine=False)):
        with pytest.raises(ValueError, match=f"'{name}' .* iterates over its children"):
            insert_after(model, name, layer)
    assert repr(model) == repr(Net())
    assert [*vars(model.get_submodule(name))] == [*vars(Net().get_submodule(name))]


def test_a_layer_by_name(images: Tensor) -> None:
    model, by_name = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    by_name.load_state_dict(model.state_dict())
    insert_after(model, "1", RankedPool(keep=9, weights=-0.5))
    assert insert_after(by_name, "1", "ranked:keep=9,weights=-0.5") is by_name
    assert repr(by_name) == repr(model)
    assert torch.equal(by_name(images), model(images))
    assert isinstance(remove_after(by_name, "1")[0], RankedPool)
    with pytest.raises(
        ValueError, match=r"layer \('sorted'\) must begin with one of reorder, ranked, align, pose, orient"
    ):
        insert_after(by_name, "1", "sorted")
    assert "reorder" not in dict(by_name[1].named_children())


def test_wrong_arguments() -> None:
    model = Net()
    with pytest.raises(TypeError, match=r"layer must be an nn\.Module .* got the class PatchReorder"):
        insert_after(model, "stem", PatchReorder)
    with pytest.raises(TypeError, match=r"layer must be an nn\.Module .*, or its name, got function"):
        insert_after(model, "stem", patch_reorder)
    with pytest.raises(TypeError, match=r"name must be a string .* got int"):
        insert_after(model, 0, PatchReorder())
    with pytest.raises(TypeError, match=r"model must be an nn\.Module, got dict"):
        insert_after({}, "stem", PatchReorder())
    for name in ("", "body.0", "body.0.conv1"):
        with pytest.raises(ValueError, match="without end"):
            insert_after(model, name, model)
    assert repr(model) == repr(Net())


@pytest.mark.parametrize("module", [Both(), Loop([Both()])], ids=["child", "hook alone"])
def test_a_module_that_returns_no_tensor_is_named_when_it_runs(module: nn.Module, images: Tensor) -> None:
    model = nn.Sequential(nn.Sequential(nn.ReLU(), module))
    insert_after(model, "0.1", PatchReorder())
    with pytest.raises(TypeError, match=r"module '0\.1' returned tuple, not a tensor, so PatchReorder cannot"):
        model(images)
