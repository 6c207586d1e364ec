"""Train the network of a fitted classifier further, on photographs in new poses in every epoch."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from patchreorder.engine import checkpoint
from patchreorder.engine.batches import channels_last
from patchreorder.engine.options import Training
from patchreorder.engine.progress import SILENT, Screen
from patchreorder.engine.train import train
from patchreorder.files import digest
from patchreorder.models.backbones import BACKBONES, OpenedBackbone, truncated
from patchreorder.models.familiarity import Familiarity
from patchreorder.models.photo_classifier import Block, PhotoClassifier
from patchreorder.models.saved import save_classifier

from .choose import folds_of, halves, posed
from .choose import train as train_head
from .evaluate import difference
from .features import Features, compute
from .fit import FitOptions, Fitted, Part, set_head, test_report, verdict, with_head, with_report
from .head import temperature
from .photographs import Cropper, Crops, SamePoses, Shown, sweep_poses, training_poses
from .refusal import Refusal, keeping

BATCH, RATE, DECAY = 32, 3e-4, 0.05  # of AdamW: folded batch norms leave layers with gradients of very different sizes
CLIP = 1.0  # of the gradient's norm: the head's large weights would send steps through the backbone that destroy it
EARLY = 2  # named layers that stay as they are: their maps are the largest, and cost most in a backward pass
TRAINED = 0.5  # of the saved weights; the rest is the frozen backbone's, which knows more kinds of light (WiSE-FT)
FOLDS = 10  # one of them, in which look-alikes stay together, decides whether the result is kept, and calibrates it
VARIED = 0.25  # zoom of training poses, at least
LIGHT, COLOUR, CONTRAST, SATURATION = 0.2, 0.12, 0.3, 0.5  # of training photographs, see `relit`


@dataclass(frozen=True)
class PosedPhotographs:
    """Training photographs in a new pose in every epoch, for `engine.train`."""

    part: Part
    rows: tuple[int, ...]  # of the photographs that could be read
    same: SamePoses
    size: int
    short: int
    seed: int
    workers: int

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        """Images (b, 3, size, size), uint8, and labels (b,)."""
        rows = [self.rows[index] for index in indices.tolist()]
        wanted = {self.part.features.kept[row]: row for row in rows}
        shown: dict[int, list[Shown]] = {
            own: [Shown(self.same.draw(1, (self.seed, epoch + 1, own))[0])] for own in wanted
        }
        cropper = Cropper(self.part.photographs, shown, self.size, self.short)  # type: ignore[arg-type]
        found = []
        for row in rows:
            own = self.part.features.kept[row]
            found.append(relit(_pixels(cropper(own)), np.random.default_rng([self.seed, epoch + 1, own, 1])))
        return torch.from_numpy(np.concatenate(found)).permute(0, 3, 1, 2), self.part.labels[rows]


def relit(pixels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Pixels (..., 3), uint8, in another light: brighter or darker, of another colour, contrast and saturation.

    Photographs of another day differ in this. A network that is trained further would learn the light of the training
    photographs instead of the things.
    """
    gains = np.exp(LIGHT * random.standard_normal() + COLOUR * random.standard_normal(3))
    contrast, saturation = (random.uniform(1 - most, 1 + most) for most in (CONTRAST, SATURATION))
    values = pixels * gains.astype(np.float32)
    middle = values.mean(dtype=np.float64).astype(np.float32)
    values = middle + (values - middle) * np.float32(contrast)
    grey = (values @ np.array([0.299, 0.587, 0.114], np.float32))[..., None]
    return np.clip(np.rint(grey + (values - grey) * np.float32(saturation)), 0, 255).astype(np.uint8)


def finetuned(fitted: Fitted, out: Path, options: FitOptions, *, epochs: float, screen: Screen = SILENT) -> Fitted:
    """The classifier with its layers trained further; the one that was given if that is not better.

    The first layers of our own backbones stay as they are. The weights that are saved are between those before and
    after the training (Wortsman et al., "Robust fine-tuning of zero-shot models", 2022), and the head is fitted anew to
    what they describe.

    A tenth of the training photographs, with look-alikes together, is held out: on it the trained network is compared
    with the frozen backbone whose head did not see these photographs either. A run that is killed goes on from its
    checkpoint in `out`, whose name has a digest of the photographs and of everything that the training depends on.

    Raises:
        ValueError: epochs is out of range, or there are too few photographs.
    """
    if not 0 < epochs <= 1000:
        raise ValueError(f"finetune ({epochs}) must be more than 0 and at most 1000 epochs")
    known, facts = fitted.known, fitted.facts
    folds = folds_of(known.features, known.labels, fitted.chosen.candidate.blocks[-1], count=FOLDS)
    held = (folds == 0).nonzero()[:, 0].tolist()
    if not held:
        raise ValueError(f"finetune ({epochs:g}) needs a class with two or more training photographs: add some")
    rest = sorted(set(range(len(known.labels))) - set(held))
    batch = min(BATCH, max(1, len(rest) // 4))
    varied = replace(options.same, zoom=max(VARIED, options.same.zoom))
    dataset = PosedPhotographs(known, tuple(rest), varied, facts.size, facts.short, options.seed, options.workers)
    network = copy.deepcopy(fitted.network)  # whose backbone may serve others
    features, blocks = known.features, fitted.chosen.candidate.blocks
    head = train_head(features, known.labels, fitted.chosen, classes=len(facts.classes), rows=torch.tensor(rest))
    frozen = head(torch.cat([features.block(block)[held] for block in blocks], 2))  # it did not see these either
    heat = temperature(frozen.flatten(0, 1), known.labels[held].repeat_interleave(frozen.shape[1]))
    set_head(network, head, heat)
    rate: dict[str, Any] = {"optimiser": "adamw", "lr": RATE, "weight_decay": DECAY, "scales": {"head": 10.0}}
    training = Training(epochs=epochs, batch=batch, clip=CLIP, **rate)
    start = {name: value.clone() for name, value in network.state_dict().items()}
    set_trainable(network, facts.backbone)
    screen.say(f"training on {len(rest)} photographs for {epochs:g} epochs")
    train(
        network,
        dataset,
        training,
        seed=options.seed,
        file=_checkpoint(out, fitted, dataset, training),
        callback=screen.training("fine-tuning"),
    )
    channels_last(network.requires_grad_(False).eval())
    for name, value in network.state_dict().items():
        if value.is_floating_point():
            value.lerp_(start[name], 1 - TRAINED)
    trained = network.features
    tuned = OpenedBackbone(facts.backbone, trained.backbone, trained.modules_of, facts.size, facts.short)
    poses = training_poses(len(known.photographs), options.same, copies=frozen.shape[1] - 1, seed=options.seed)
    own = _described(tuned, known, poses, blocks, out, options, screen)
    labels, classes = known.labels, len(facts.classes)
    x = torch.cat([own.block(block)[held] for block in blocks], 2)
    scores = train_head(own, labels, fitted.chosen, classes=classes, rows=torch.tensor(rest))(x)
    gain = difference(*(halves(each.argmax(2) == labels[held][:, None]) for each in (scores, frozen)))
    told = {"epochs": epochs, "held_out": len(held), "gain": gain, "kept": gain["value"] > 0}
    if not told["kept"]:
        return replace(fitted, report={**fitted.report, "finetune": told})
    heat = temperature(scores.flatten(0, 1), labels[held].repeat_interleave(x.shape[1]))
    head = train_head(own, labels, fitted.chosen, classes=classes)
    near, refusal = _familiar(own.block(blocks[-1]), labels, held, rest, classes)
    made = with_head(tuned, blocks, head, heat, near)
    sweep = sweep_poses(len(fitted.unseen.photographs), angles=options.angles)
    tested = _described(tuned, fitted.unseen, sweep, blocks, out, options, screen)
    ours = head(torch.cat([tested.block(block) for block in blocks], 2)) / heat
    distances = near.in_parts(tested.block(blocks[-1], [0])[:, 0])
    report: dict[str, Any] = {**fitted.report, "finetune": told}
    report |= test_report(known, fitted.unseen, fitted.plain, {"fit": ours}, refusal, distances)
    report["verdict"] = verdict(report)
    facts = with_report(replace(facts, threshold=refusal.threshold, directions=near.directions.shape[1]), report)
    save_classifier(out / "classifier.safetensors", made, facts)
    return replace(fitted, network=made, facts=facts, report=report)


def _described(
    tuned: OpenedBackbone,
    part: Part,
    poses: Sequence[Sequence[Shown]],
    blocks: Sequence[Block],
    out: Path,
    options: FitOptions,
    screen: Screen,
) -> Features:
    """The blocks of the trained network for the photographs of a part."""
    count = screen.count(f"new features of {len(part.photographs)} photographs", len(part.photographs))
    pools = list(dict.fromkeys(Block(block.layer, block.pool) for block in blocks))
    folder, workers = out / "features-finetuned", options.workers
    found = compute(tuned, part.photographs, poses, folder=folder, workers=workers, report=count, blocks=pools)
    if found.digests != part.features.digests:
        changed = next(iter(set(found.faults.items()) - set(part.features.faults.items())), ("photographs", "changed"))
        raise ValueError(f"{': '.join(changed)}: they were changed since their features were computed; fit again")
    return found


def set_trainable(network: PhotoClassifier, backbone: str) -> None:
    """Let all parameters be trained but those up to the second named layer of a backbone of ours.

    Batch norms, which networks of torchvision and timm have, keep their statistics: a batch has too few photographs.
    """
    network.requires_grad_(True)
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.register_forward_pre_hook(_as_in_tests)
    if len(known := list(BACKBONES[backbone].layers) if backbone in BACKBONES else []) > EARLY:
        early, _ = truncated(backbone, known[EARLY - 1 : EARLY])
        for name, _ in early.named_parameters():
            network.features.backbone.get_parameter(name).requires_grad_(False)


def _as_in_tests(module: nn.Module, images: object) -> None:
    module.eval()


def _checkpoint(out: Path, fitted: Fitted, dataset: PosedPhotographs, training: Training) -> Path:
    """The file of this training; those of other photographs or options are removed."""
    known, chosen = fitted.known, fitted.chosen
    backbone = fitted.network.features.state_dict()
    facts = {
        "photographs": [known.features.digests, known.names, known.labels.tolist(), dataset.rows],
        "poses": [asdict(dataset.same), dataset.size, dataset.short, dataset.seed],
        "training": [asdict(training), EARLY],
        "light": [LIGHT, COLOUR, CONTRAST, SATURATION],
        "start": [checkpoint.fingerprint(backbone), chosen.candidate, chosen.copies, chosen.strength],
    }
    file = out / f"finetune-{digest(facts)}.safetensors"
    for other in out.glob("finetune-*.safetensors"):
        if other != file and re.fullmatch(r"finetune-[0-9a-f]{8}\.safetensors", other.name):
            other.unlink()
    return file


def _familiar(x: Tensor, labels: Tensor, held: list[int], rest: list[int], classes: int) -> tuple[Familiarity, Refusal]:
    """Distances of the new features (photographs, poses, values); the threshold keeps 99 % of what is held out."""
    near = Familiarity.of(x[rest].flatten(0, 1), labels[rest].repeat_interleave(x.shape[1]), classes=classes)
    own = near.in_parts(x[held].flatten(0, 1)).unflatten(0, (-1, x.shape[1]))
    threshold = max(keeping(own[:, 0]), keeping(posed(own).flatten()))
    return near, Refusal(threshold, 100 * float((own > threshold).float().mean()), None)


def _pixels(crop: Crops) -> np.ndarray:
    if crop.pixels is None:
        raise ValueError(f"{crop.fault}: it was changed since its features were computed; fit again")
    return crop.pixels
