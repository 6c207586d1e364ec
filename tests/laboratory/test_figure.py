"""What figures are measured on: networks, images, layers."""

import pytest
import torch

from patchreorder import recipes
from patchreorder.data.generated import write_photos
from patchreorder.laboratory.cells import Resources, jobs
from patchreorder.laboratory.figure import FigureTask, stages
from patchreorder.laboratory.run import run
from patchreorder.models import create_model
from tests.laboratory.trained_networks import write_training


def test_the_ends_of_layers_are_those_of_the_paper():
    alexnet = {"conv1": 4, "pool1": 8, "conv2": 8, "pool2": 16, "conv3": 16, "conv4": 16, "conv5": 16, "maps": 32}
    connected = {"fc6": 0, "fc7": 0, "fc8": 0}
    for options in ({}, {"variant": "torchvision"}, {"place": "pool5", "grid": "pixels", "levels": 1}):
        model = create_model("alexnet_pr", width=4, classes=3, **options)
        assert {name: stage.stride for name, stage in stages(model).items()} == alexnet | connected
    seen = {}
    stage = stages(model)["maps"]
    model.get_submodule(stage.module).register_forward_hook(lambda module, given, said: seen.update(said=said))
    model.flatten.register_forward_hook(lambda module, given, said: seen.update(given=given[0]))
    model(torch.rand(1, 3, 224, 224))
    assert torch.equal(seen["said"], seen["given"])
    assert list(stages(create_model("st_cnn", dataset="mnist-t"))) == ["conv1", "pool1", "conv2", "maps", "classifier"]
    cifar = {name: stage.stride for name, stage in stages(create_model("cifar_st")).items()}
    assert cifar == {name: stride // 4 for name, stride in alexnet.items()} | connected


def test_what_a_setting_needs_is_asked_for(tmp_path):
    for setting, table in (("trained", "table1"), ("cifar10", "table2_cifar10")):
        with pytest.raises(ValueError, match=rf"CNN needs --trained DIR, .* `patchreorder run {table} --setting "):
            run(recipes.load("fig-invariance"), out=tmp_path, setting=setting)
    torch.save(write_training(tmp_path / "run", "cnn").state_dict(), tmp_path / "conv.pt")
    resources = Resources(trained=tmp_path / "run", weights=tmp_path / "conv.pt")
    with pytest.raises(ValueError, match=r"fig_invariance needs --data DIR here, a folder with train/CLASS"):
        run(recipes.load("fig-invariance"), out=tmp_path, setting="grocery", resources=resources)
    for change in ({"lr": 1}, {"images": 0}, {"images": 1.5}):
        with pytest.raises(ValueError, match=r"change \(.*\) must (name one of: images|be of the type)"):
            list(jobs(recipes.load("fig_propagation"), FigureTask(), out=tmp_path, change=change))
    with pytest.raises(ValueError, match=r"split \(validation\) must be test"):
        run(recipes.load("fig-invariance"), out=tmp_path, setting="smoke", split="validation")


def test_photographs_are_spread_over_all_classes(tmp_path):
    for part in ("train", "val"):
        write_photos(tmp_path / part, classes=4, images=3)
    task = FigureTask()
    setting = {"setting": "grocery", "rows": ["cnn"], "columns": ["rotation"]}
    (job,) = jobs(recipes.load("fig_invariance"), task, out=tmp_path, data=tmp_path, **setting, change={"images": 4})
    images, labels = task.images(job).batch(torch.arange(4))
    assert labels.tolist() == [0, 1, 2, 3]
    assert images.shape == (4, 3, 224, 224)
    assert task.identify(tmp_path, job.plan, "test") != task.identify(None, job.plan, "test") == ""


def test_a_setting_has_only_its_columns(tmp_path):
    recipe = recipes.load("fig_propagation")
    cells = {job.cell.column for job in jobs(recipe, FigureTask(), out=tmp_path)}
    assert cells == {"conv1", "conv2", "maps"}
    with pytest.raises(ValueError, match=r"columns \('conv5'\) must be among conv1, conv2, maps"):
        list(jobs(recipe, FigureTask(), out=tmp_path, columns=["conv5"]))
