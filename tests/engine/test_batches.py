"""Which images a batch holds, and as which tensors."""

import torch
from torch import nn

from patchreorder.engine.batches import channels_last, epoch_order, model_input
from tests.engine.toy import Images, network


def test_order_is_a_permutation_of_seed_and_epoch():
    data = Images(torch.zeros(50, 1), torch.zeros(50))
    orders = [tuple(epoch_order(data, seed=seed, epoch=epoch).tolist()) for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len(set(orders)) == 4
    assert epoch_order(data, seed=0, epoch=0).tolist() == list(orders[0])


class Backwards(Images):
    """Backwards in even epochs; no order of its own in odd ones."""

    def order(self, *, seed, epoch):
        return None if epoch % 2 else torch.arange(len(self) - 1, -1, -1)


def test_a_dataset_may_have_its_own_order():
    data, plain = Backwards(torch.zeros(9, 1), torch.zeros(9)), Images(torch.zeros(9, 1), torch.zeros(9))
    assert epoch_order(data, seed=0, epoch=0).tolist() == list(range(8, -1, -1))
    assert torch.equal(epoch_order(data, seed=0, epoch=1), epoch_order(plain, seed=0, epoch=1))


def test_bytes_become_floats_from_0_to_1():
    images = torch.randint(0, 256, (5, 3, 4, 4), dtype=torch.uint8)
    found = model_input(images, torch.device("cpu"))
    assert torch.equal(found, images / 255)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(model_input(images / 255, torch.device("cpu")), images / 255)
    features = torch.rand(5, 7)
    assert model_input(features, torch.device("cpu")) is features


def test_channels_last_leaves_other_dimensions_alone():
    model = network()
    model.deep = nn.Parameter(torch.rand(1, 2, 3, 4, 5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert channels_last(model) is model
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
