"""The training loop against updates computed by hand: batches, losses, curves, numbers that are not finite."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from patchreorder.engine import checkpoint
from patchreorder.engine import train as module
from patchreorder.engine.batches import epoch_order
from patchreorder.engine.options import Training
from patchreorder.engine.predict import predict
from patchreorder.engine.state import NotFinite
from patchreorder.engine.train import train
from tests.engine.toy import Frozen, Images, NaNFrom, bits, digits, network, outcome

pytestmark = pytest.mark.usefixtures("one_thread")


# ---- one update, by hand ---------------------------------------------------------------------------


def classifier():
    """A linear classifier of ten numbers into three classes, and the formula of its gradient."""
    torch.manual_seed(0)
    images, labels = torch.randn(6, 10, 1, 1), torch.tensor([0, 1, 2, 0, 1, 2])
    model = nn.Sequential(nn.Flatten(), nn.Linear(10, 3, bias=False))

    def gradient(weight):
        x = images.flatten(1)
        errors = (x @ weight.T).softmax(1) - torch.eye(3)[labels]
        return errors.T @ x / len(x)

    return model, Images(images, labels), gradient


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_with_momentum_and_weight_decay(nesterov):
    model, data, gradient = classifier()
    training = Training(
        steps=4, batch=6, lr=0.3, schedule="step", decay_every=2, momentum=0.8, nesterov=nesterov, weight_decay=0.1
    )
    weight, velocity = model[1].weight.detach().clone(), 0.0
    for rate in (0.3, 0.3, 0.03, 0.03):
        slope = gradient(weight) + 0.1 * weight
        velocity = 0.8 * velocity + slope
        weight = weight - rate * (slope + 0.8 * velocity if nesterov else velocity)
    train(model, data, training)
    torch.testing.assert_close(model[1].weight.detach(), weight, rtol=1e-12, atol=0)


def moved(model, **options):
    """How far one update moves every parameter."""
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    train(model, digits(), Training(steps=1, batch=8, momentum=0.0, **options))
    return {name: value.detach() - before[name] for name, value in model.named_parameters()}


@pytest.mark.usefixtures("double_precision")
def test_clipping_limits_the_norm_of_the_gradient():
    """Over all parameters together, and only where the gradient is longer."""

    def step(clip):
        return torch.cat([value.flatten() for value in moved(network(), lr=0.5, warmup=0.0, clip=clip).values()])

    free = step(None)
    length = float(free.norm()) / 0.5
    assert float(step(length / 7).norm()) == pytest.approx(0.5 * length / 7, rel=1e-5)
    torch.testing.assert_close(step(length / 7), free / 7, rtol=1e-4, atol=1e-12)
    assert torch.equal(step(length * 7), free)


def test_clipping_ignores_the_scale_of_the_loss(monkeypatch):
    monkeypatch.setattr(module, "half_precision", lambda device: torch.float16)
    free, clipped = (moved(network(), amp=True, clip=clip) for clip in (None, 100.0))
    assert all(torch.equal(clipped[name], value) for name, value in free.items())


def test_scales_of_the_learning_rate():
    plain, scaled = moved(network("noisy")), moved(network("noisy"), scales={"0": 3.0, "bias": 2.0})
    for name, scale in {"0.weight": 3.0, "0.bias": 6.0, "6.bias": 2.0, "6.weight": 1.0}.items():
        torch.testing.assert_close(scaled[name], plain[name] * scale, rtol=1e-3, atol=1e-7)


def test_half_precision_keeps_weights_in_single_precision():
    model, types = network(), set()
    model[0].register_forward_hook(lambda layer, x, y: types.add(y.dtype))
    done = train(model, digits(), Training(epochs=8, batch=8, amp=True))
    assert types == {torch.bfloat16}
    assert {value.dtype for value in model.state_dict().values()} == {torch.float32}
    assert done.curve[-1][1] < done.curve[0][1]


def test_frozen_and_unused_parameters_stay():
    model = Frozen()
    before = bits(model.state_dict())
    train(model, digits(), Training(steps=6, batch=8, weight_decay=0.1))
    after = bits(model.state_dict())
    same = {name for name in before if after[name] == before[name]}
    assert same == {"frozen.weight", "frozen.bias", "unused.weight", "unused.bias", "mask"}
    assert model.first.weight is model.second.weight
    assert int(model.count) == 6


# ---- the loop --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "noisy"])
def test_equal_seeds_give_equal_bits(tmp_path, kind):
    """The seed decides the order of the images alone, or dropout as well."""

    def trained(seed, name):
        train(network(kind), digits(), Training(epochs=2.4, batch=8), seed=seed, file=tmp_path / name)
        return outcome(tmp_path / name)

    first = trained(5, "a")
    torch.rand(7)
    assert trained(5, "b") == first
    other = trained(6, "c")
    assert all(other[0][name] != value for name, value in first[0].items() if "num_batches" not in name)
    assert other[1]["curve"] != first[1]["curve"]


def test_random_numbers_depend_on_seed_and_step():
    drawn = {seed: [] for seed in (0, 1)}
    for seed, numbers in drawn.items():
        model = network()
        model[0].register_forward_hook(lambda layer, inputs, output, to=numbers: to.append(float(torch.rand(()))))
        train(model, digits(), Training(steps=3, batch=8), seed=seed)
    assert len({*drawn[0], *drawn[1]}) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, r"seed \(-1\) must be 0 or more"),
        ({"accumulate": 0}, r"accumulate \(0\) must be 1 or more"),
    ],
)
def test_invalid_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        train(network(), digits(), Training(steps=1, batch=8), **options)


def test_too_few_images_for_a_batch():
    with pytest.raises(ValueError, match=r"batch \(8\) must not exceed"):
        train(network(), digits(7), Training(steps=1, batch=8))


def test_an_epoch_has_every_image_once_except_those_that_fill_no_batch():
    source = digits()
    data = Images(source.batch(torch.arange(46))[0], source.labels)
    train(network(), data, Training(epochs=2.4, batch=8))
    assert [epoch for epoch, _ in data.batches] == [0] * 5 + [1] * 5 + [2] * 2
    for epoch, length in enumerate((40, 40, 16)):
        indices = [index for at, batch in data.batches for index in batch if at == epoch]
        assert indices == epoch_order(data, seed=0, epoch=epoch).tolist()[:length]


def test_images_of_bytes_equal_images_of_floats():
    bytes_ = torch.randint(0, 256, (46, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(46) % 10
    found = []
    for images in (bytes_, bytes_ / 255):
        model = network()
        train(model, Images(images, labels), Training(steps=7, batch=8))
        found.append(bits(model.state_dict() | {"logits": predict(model, Images(images, labels))[0]}))
    assert found[0] == found[1]


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("parts", [2, 3, 8, 100])
def test_accumulated_gradients_equal_those_of_the_whole_batch(parts):
    models, reports = [network(), network()], [[], []]
    training = Training(steps=12, batch=8, clip=0.5, weight_decay=1e-3)
    for model, accumulate, seen in zip(models, (1, parts), reports, strict=True):
        train(model, digits(), training, accumulate=accumulate, callback=seen.append)
    torch.testing.assert_close(models[1].state_dict(), models[0].state_dict(), rtol=0, atol=1e-12)
    assert [at.loss for at in reports[1]] == pytest.approx([at.loss for at in reports[0]], rel=1e-12)


def test_accumulation_computes_one_part_at_a_time():
    seen = []
    model = network()
    model[0].register_forward_hook(lambda layer, inputs, output: seen.append(len(output)))
    train(model, digits(), Training(steps=2, batch=8), accumulate=3)
    assert seen == [3, 3, 2] * 2


@pytest.mark.parametrize(("budget", "ends"), [({"epochs": 2.4}, [5, 10, 12]), ({"steps": 3}, [3]), ({"steps": 5}, [5])])
@pytest.mark.parametrize("every", [1, 3, 100])
def test_curve_is_the_mean_loss_of_each_epoch(monkeypatch, budget, ends, every):
    """Also of fractions of epochs, and where the loss is checked every few updates, as on GPUs."""
    seen = []
    train(network(), digits(), Training(**budget, batch=8), callback=seen.append)
    losses = [at.loss for at in seen]
    assert [at.step for at in seen] == list(range(1, ends[-1] + 1))
    assert [at.epoch for at in seen] == pytest.approx([step / 5 for step in range(1, ends[-1] + 1)])
    monkeypatch.setattr(module, "_check_every", lambda device: every)
    rare = []
    done = train(network(), digits(), Training(**budget, batch=8), callback=rare.append)
    begins = [0, *ends]
    means = [sum(losses[a:b]) / (b - a) for a, b in zip(begins, ends, strict=False)]
    assert [x for x, _ in done.curve] == pytest.approx([end / 5 for end in ends])
    assert [y for _, y in done.curve] == pytest.approx(means)
    assert [at.step for at in rare] == [s for s in range(1, ends[-1] + 1) if s % every == 0 or s in ends]
    assert [at.loss for at in rare] == [losses[at.step - 1] for at in rare]
    assert (done.steps, done.resumed) == (ends[-1], 0)


def test_progress_has_the_rate_and_the_loss_of_the_batch():
    seen = []
    training = Training(steps=7, batch=8)
    train(network(), digits(), training, callback=seen.append)
    assert [at.rate for at in seen] == [training.rate(step, 7) for step in range(7)]
    assert all(at.total == 7 and at.images_per_second > 0 for at in seen)
    images, labels = digits().batch(epoch_order(digits(), seed=0, epoch=0)[:8])
    with torch.no_grad():
        assert seen[0].loss == pytest.approx(float(F.cross_entropy(network()(images), labels)), rel=1e-5)


# ---- numbers that are not finite -------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops(tmp_path):
    file, training = tmp_path / "c", Training(epochs=2, batch=8)
    message = rf"loss is not finite at step 7 \(nan\); the last good checkpoint is step 6, {file}; try a lower"
    with pytest.raises(NotFinite, match=message):
        train(network(), NaNFrom(7), training, file=file, save_every=0.0)
    assert checkpoint.read(file)[1]["step"] == 6
    with pytest.raises(NotFinite, match=r"loss is not finite at step 1 \(nan\); there is no earlier checkpoint"):
        train(network(), NaNFrom(1), training)
    with pytest.raises(NotFinite, match="last good checkpoint is step 6"):  # known from the file
        train(network(), NaNFrom(1), training, file=file)


@pytest.mark.parametrize("update", range(1, 11))
def test_rare_checks_name_the_right_step(tmp_path, monkeypatch, update):
    """Every third update, five an epoch: checks after 3, 5, 6, 9 and 10."""
    monkeypatch.setattr(module, "_check_every", lambda device: 3)
    good = max([step for step in (3, 5, 6, 9) if step < update], default=0)
    message = rf"not finite at step {update} .*" + (rf"checkpoint is step {good}," if good else "no earlier")
    with pytest.raises(NotFinite, match=message):
        train(network(), NaNFrom(update), Training(epochs=2, batch=8), file=tmp_path / "c", save_every=0.0)
    assert (tmp_path / "c").is_file() == (good > 0)


class Overflowing(nn.Module):
    """The loss is finite; the gradient of one update is infinite."""

    def __init__(self, update):
        super().__init__()
        self.body, self.update, self.calls = network(), update, 0

    def forward(self, x):
        self.calls += 1
        y = self.body(x)
        if self.calls == self.update:
            y.register_hook(lambda gradient: gradient * math.inf)
        return y


def test_infinite_weights_are_never_saved(tmp_path):
    file = tmp_path / "c"
    with pytest.raises(
        NotFinite, match=rf"model.body.* is not finite after step 4; the last good checkpoint is step 3, {file}"
    ):
        train(Overflowing(4), digits(), Training(epochs=2, batch=8), file=file, save_every=0.0)
    tensors, state = checkpoint.read(file)
    assert state["step"] == 3
    assert all(bool(value.isfinite().all()) for value in tensors.values())


@pytest.mark.parametrize("saved", [False, True])
def test_infinite_weights_after_the_last_update_are_an_error(tmp_path, saved):
    with pytest.raises(NotFinite, match=r"model.body.* is not finite after step 10; there is no earlier checkpoint"):
        train(Overflowing(10), digits(), Training(epochs=2, batch=8), file=tmp_path / "c" if saved else None)
    assert not list(tmp_path.iterdir())
