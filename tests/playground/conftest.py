"""The playground as an application and as a server. MNIST is absent, AlexNet is not trained."""

import threading

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from patchreorder import create_model
from patchreorder.playground import server as server_module
from patchreorder.playground.app import create_app
from patchreorder.playground.digits import Mnist
from patchreorder.playground.imagenet import ImagenetClassifier
from patchreorder.playground.networks import Networks
from patchreorder.playground.photographs import Photographs


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """A file with AlexNet's convolutions, not trained."""
    torch.manual_seed(0)
    model = create_model("alexnet", variant="torchvision", width=1, classes=1)
    path = tmp_path_factory.mktemp("weights") / "alexnet.safetensors"
    save_file({name: value for name, value in model.state_dict().items() if name.startswith("features")}, path)
    return path


@pytest.fixture(scope="session")
def no_mnist(tmp_path_factory):
    """An empty cache, whatever the machine has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATCHREORDER_CACHE", str(tmp_path_factory.mktemp("cache")))
        return Mnist()


@pytest.fixture(scope="session")
def app(weights, no_mnist):
    pytest.importorskip("fastapi", reason="the playground needs the extra `play`")
    return create_app(
        mnist=no_mnist, photos=Photographs(weights=weights, classifier=ImagenetClassifier(network=coarse()))
    )


def coarse():
    """A classifier that is not trained."""
    torch.manual_seed(0)
    return nn.Sequential(nn.AvgPool2d(56), nn.Flatten(), nn.Linear(48, 1000)).eval()


@pytest.fixture(scope="session")
def client(app):
    from fastapi.testclient import TestClient

    with TestClient(app, base_url="http://localhost") as opened:
        yield opened


@pytest.fixture(scope="session")
def models():
    return Networks()


@pytest.fixture(scope="session")
def address(app):
    """The address of the playground behind uvicorn, which runs in a thread."""
    import uvicorn

    listening = server_module.listen("127.0.0.1", 0)
    configuration = server_module.configuration(app)
    configuration.lifespan = "off"  # the application is used by other tests too
    running = uvicorn.Server(configuration)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    running.should_exit = True
    thread.join(10)
    listening.close()
