"""Logits of a dataset, in the order of its images."""

import pytest
import torch
from torch import nn

from patchreorder.engine.predict import for_inference, predict
from tests.engine.toy import digits, network

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("batch", [1, 4, 46, 100])
def test_logits_are_in_the_order_of_the_images(batch):
    model, data = network("noisy"), digits()
    images, labels = data.batch(torch.arange(46))
    model.train()
    logits, truth = predict(model, data, batch=batch)
    assert model.training
    assert torch.equal(truth, labels)
    model.eval()
    torch.testing.assert_close(logits, model(images).detach())


def test_training_modes_are_restored_after_an_error():
    inner = network().eval()
    outer = nn.Sequential(inner, nn.Linear(3, 3))
    inner.eval()
    with pytest.raises(RuntimeError):
        predict(outer, digits())
    assert (outer.training, inner.training) == (True, False)


def test_for_inference():
    model = network("noisy")
    assert for_inference(model) is model
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
