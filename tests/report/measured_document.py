"""A result of `patchreorder measure`, made by hand."""

from patchreorder.measuring.measurement import Measurement, PosedView, UnstableImage
from patchreorder.report.measured import Document, MeasuredNetwork

PNG = b"\x89PNG\r\n\x1a\n"


def document(*, labelled: bool = True, second: bool = False) -> Document:
    """Ten images, three poses; the first network is wrong once unposed and five times when shifted by 20 %."""
    poses = {"as it is": (0.0, 0.0, 0.0), "x -0.2": (0.0, 0.0, -0.2), "x 0.2": (0.0, 0.0, 0.2)}
    wrong = {"one": [[0], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]], "<i>[/two]": [[0], [0], list(range(10))]}
    similar = {"image": 0.9, "features.3": 0.8, "features.10": 0.3, "last": 0.5}
    names = list(wrong)[: 1 + second]
    found = []
    for name in names:
        for pose, images in zip(poses, wrong[name], strict=True):
            rates = {"error": 10.0 * len(images)} if labelled else {}
            rates["agreement"] = 100 - 10.0 * len(images)
            for measure, value in rates.items():
                found.append(Measurement(model=name, measure=measure, pose=pose, value=value, indices=images, n=10))
        found.append(Measurement(model=name, measure="consistency", transform="translate", value=50.0, n=10))
        found += [
            Measurement(model=name, measure="similarity", layer=layer, pose=pose, value=value, n=10)
            for layer, value in similar.items()
            for pose in list(poses)[1:]
        ]
    views = [PosedView("as it is", "cat", PNG), PosedView("x 0.2", "<b>dog", PNG)]
    return Document(
        images="somewhere",
        n=10,
        labelled=labelled,
        models=[MeasuredNetwork(name, "own", 2, 40, 1.0, 1.0) for name in names],
        poses=poses,
        transforms={"translate": list(poses)},
        measurements=found,
        unstable=[UnstableImage("one", "<u>.png", "cat" if labelled else "", 2, views)],
    )
