"""The pixels of two images after alignment: is one a copy of the other, or another photograph of the same thing?

Matching features prove little: two shots of one face, or two motorcycles of one model, have a hundred. So the images
are laid over each other and compared window by window, by the correlation of their grey values. A change of light or
colour keeps the correlation near 1 everywhere; another shot has parallax, another expression, other reflections.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .light import grey_of, light_field, smooth_grey, tones
from .local_features import Picture, inverse, mapped, need_opencv, plausible
from .overlays import overlaid

WINDOWS = 20  # windows along a side of the overlap
AGREE = 0.7  # the correlation of a window that agrees
NOISE = 2.0  # grey levels: a deviation below it is no texture
TEXTURE = 0.06  # variance of a window, relative to the mean of all, to count
HOPELESS = 0.5  # the median correlation below which an alignment is no copy's, and is not refined
PATCH = 5  # pixels a side of the patches of `largest_difference`
BEND = 6  # windows a side of the large windows of `bend`
ITERATIONS = 15  # of the refinement
BLUR = 3.0  # pixels, of the comparison without detail
DRIFT = 12.0  # pixels that the refinement may move a corner
EVENED = 0.6  # the least share of the texture that is left when light is evened out
SHIFTED = 0.15  # pixels of `drift` above which a map is refined
HAND, SIZED = 3.0, 0.03  # degrees of rotation, and change of size, up to which two shots of a hand-held camera differ
EDGE = 9  # pixels a side of the square that the overlap is eroded by: beyond its edge may be a border


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two images laid over each other.

    Args:
        matrix: the map (2, 3) from the pixels of the first to those of the second, refined.
        first, second: the share of each frame that lies in the other one.
        agree: the share of the windows with texture that agree.
        median, low: correlation of these windows: the median, and the lowest tenth.
        texture: the share of the overlap that has texture.
        side: of the overlap, in pixels: the square root of its area.
        rest: the lowest tenth of the correlation where no window near disagrees.
        overlay: how far the windows that disagree look as if something was laid over one image: 0 to 1.
        drawn: whether it must have been drawn: thin strokes such as letters, or patches of one or two exact colours. A
            thing that came before the camera has shades, whatever is behind it.
        patches: the share of the overlap that differs in more than strokes, and was not drawn.
        level: mean change of grey values that depends on the value alone, of 255.
        hue: the same of colour without brightness.
        flat: the share of the overlap without any gradient, in the image that has more of it: large in screenshots.
        coarse: the lowest tenth of the correlation without fine detail; noise and compression leave it near 1.
        drift, drift_high: how far windows are shifted against each other after alignment, in pixels: half of them, and
            nine tenths, by no more than this. Hardly in a copy; another shot has parallax and another perspective.
        bend: the same of large windows, nine tenths of them: noise has no shift there, another perspective has.
        outside: how far the corners of the frame that lies in the other one are beyond it, in pixels of the picture
            with less detail: hardly in a copy, as far as chance has it in another shot. Borders belong to no frame.
        apart: how far the corners of one frame are from those of the other one, in the same pixels: not at all if
            nothing was cut off.
        lean: how far windows at the edges of the overlap are moved by the part of the map that no program makes on
            purpose, in the same pixels: a small rotation, a small change of size, as hands that hold a camera make it.
    """

    matrix: np.ndarray
    first: float
    second: float
    agree: float = 0.0
    median: float = 0.0
    low: float = 0.0
    rest: float = 0.0
    texture: float = 0.0
    side: float = 0.0
    overlay: float = 0.0
    drawn: bool = False
    patches: float = 0.0
    level: float = 255.0
    hue: float = 255.0
    flat: float = 0.0
    coarse: float = 0.0
    drift: float = 0.0
    drift_high: float = 0.0
    bend: float = 0.0
    outside: float = 0.0
    apart: float = 0.0
    lean: float = 0.0


def compare(first: Picture, second: Picture, matrix: np.ndarray) -> Comparison:
    """Compare the pixels of two images that a map lays over each other.

    The map is refined where they disagree. Light that changes slowly over an image, as at the edges of a vignette, is
    evened out if they agree better then.
    """
    found = _compared(first, second, matrix)
    if found.median > HOPELESS and (found.median < 0.97 or found.agree < 0.97 or found.drift > SHIFTED):
        refined = refine(first, second, found)
        if refined is not None:
            better = _compared(first, second, refined)
            if _fit(better) > _fit(found):
                found = better
    if found.median > HOPELESS and (found.agree < 0.97 or found.drift > SHIFTED):
        evened = _compared(first, second, found.matrix, even=True)
        if _fit(evened) > _fit(found) and evened.texture > EVENED * found.texture:
            return replace(evened, level=found.level, hue=found.hue, flat=found.flat)
    return found


def _fit(found: Comparison) -> float:
    """How well two images lie over each other."""
    return found.agree + 2 * found.median - 0.2 * found.drift


def _layers(first: Picture, second: Picture, matrix: np.ndarray) -> tuple[Picture, Picture, np.ndarray, np.ndarray]:
    """The picture with less detail, the other one, the map from the other to it, and the other's blurred pixels."""
    scale = float(np.sqrt(abs(np.linalg.det(matrix[:, :2]))))
    coarse, fine, warp = (first, second, inverse(matrix)) if scale >= 1 else (second, first, matrix)
    return coarse, fine, warp, _blurred(fine.pixels, max(scale, 1 / scale))


def refine(first: Picture, second: Picture, found: Comparison) -> np.ndarray | None:
    """The map after maximising the correlation of the whole images; None if that fails.

    The frame that shows more is the template: what it has beyond the other, perhaps a border, is then left out.
    """
    cv2 = need_opencv()
    scale = float(np.sqrt(abs(np.linalg.det(found.matrix[:, :2]))))
    grey, greys = (_blurred(picture.grey, own) for picture, own in ((first, 1 / scale), (second, scale)))
    swapped = found.first > found.second  # the map must lead from the template to the other image
    template, other = (greys, grey) if swapped else (grey, greys)
    start = (inverse(found.matrix) if swapped else found.matrix).astype(np.float32)
    stop = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, ITERATIONS, 1e-4)
    try:
        _, best = cv2.findTransformECC(template, other, start.copy(), cv2.MOTION_AFFINE, stop, None, 3)
    except cv2.error:  # it does not converge
        return None
    if not np.isfinite(best).all() or not plausible(best):
        return None
    refined = inverse(best.astype(np.float64)) if swapped else best.astype(np.float64)
    width, height = first.shape
    corners = np.array([[0, 0], [width, 0], [0, height], [width, height]], np.float64)
    if np.abs(mapped(refined, corners) - mapped(found.matrix, corners)).max() > DRIFT * max(scale, 1.0):
        return None
    return refined


def _blurred(pixels: np.ndarray, scale: float) -> np.ndarray:
    """An image without the detail that is lost when it is scaled down."""
    cv2 = need_opencv()
    return cv2.GaussianBlur(pixels, (0, 0), 0.5 * float(np.sqrt(scale**2 - 1))) if scale > 1.05 else pixels


def _compared(first: Picture, second: Picture, matrix: np.ndarray, *, even: bool = False) -> Comparison:
    cv2 = need_opencv()
    coarse, fine, warp, pixels = _layers(first, second, matrix)
    size = coarse.shape
    covered = cv2.warpAffine(np.full(fine.grey.shape, 255, np.uint8), warp, size, flags=cv2.INTER_NEAREST) > 0
    share = float(covered.mean())
    back = share * size[0] * size[1] / (fine.grey.size * abs(float(np.linalg.det(warp[:, :2]))))
    shares = (share, min(back, 1.0)) if coarse is first else (min(back, 1.0), share)
    mask = cv2.erode(covered.astype(np.uint8), np.ones((EDGE, EDGE), np.uint8), borderType=cv2.BORDER_REPLICATE) > 0
    outside, apart = _frames(first, second, matrix)
    lean = _lean(first, second, matrix) * float(np.sqrt(max(mask.sum(), 1)))
    nothing = Comparison(matrix=matrix, first=shares[0], second=shares[1], outside=outside, apart=apart, lean=lean)
    if mask.sum() < 300:
        return nothing
    laid = cv2.warpAffine(pixels, warp, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    if even:
        light = light_field(coarse.pixels, laid, mask)
        if light is None:
            return nothing
        laid = np.rint(laid / np.exp(light)[..., None]).clip(0, 255).astype(np.uint8)
    return _judged(nothing, coarse.pixels, laid, mask)


def _frames(first: Picture, second: Picture, matrix: np.ndarray) -> tuple[float, float]:
    """`outside` and `apart` of two pictures and the map from the first to the second."""
    outside = []
    for own, other, there in ((first, second, matrix), (second, first, inverse(matrix))):
        corners, beyond = mapped(there, own.frame) - other.frame[0], 0.0
        for axis in (other.frame[1] - other.frame[0], other.frame[3] - other.frame[0]):
            length = float(np.linalg.norm(axis))
            places = corners @ axis / length
            beyond = max(beyond, float((-places).max()), float((places - length).max()))
        outside.append(beyond / max(_scale(there), 1.0))
    apart = []
    for one, two in ((first.frame, second.frame), (first.edges, second.edges)):
        distances = np.linalg.norm(mapped(matrix, one)[:, None] - two[None], axis=2)
        apart.append(float(max(distances.min(0).max(), distances.min(1).max())) / max(_scale(matrix), 1.0))
    return min(outside), min(apart)


def _scale(matrix: np.ndarray) -> float:
    """How many times larger a map makes things."""
    return float(np.sqrt(abs(np.linalg.det(matrix[:, :2]))))


def _lean(first: Picture, second: Picture, matrix: np.ndarray) -> float:
    """`lean` for an overlap of one pixel."""
    sizes = [
        np.diag([picture.shape[0] / picture.width, picture.shape[1] / picture.height]) for picture in (first, second)
    ]
    linear = np.linalg.inv(sizes[1]) @ matrix[:, :2] @ sizes[0]  # of the files
    flip = np.diag([-1.0, 1.0]) if np.linalg.det(linear) < 0 else np.eye(2)
    left, scales, right = np.linalg.svd(linear @ flip)
    rotation = left @ right
    degrees = float(np.degrees(np.arctan2(rotation[1, 0], rotation[0, 0])))
    off = abs((degrees + 45) % 90 - 45)
    found = np.radians(off) if off < HAND else 0.0
    sized = np.abs(scales - 1)
    return float(max(found, sized.max() / 2 if sized.max() < SIZED else 0.0))


def _judged(found: Comparison, one: np.ndarray, other: np.ndarray, mask: np.ndarray) -> Comparison:
    """The comparison of two layers (height, width, 3), uint8, within a mask."""
    cv2 = need_opencv()
    x, y = (smooth_grey(layer) for layer in (one, other))
    to_y, to_x = tones(x, y, mask), tones(y, x, mask)
    # Where light was cut off at white or black nothing is left to compare.
    cut = ((to_y > 249) & (y > 249)) | ((to_y < 6) & (y < 6)) | ((to_x > 249) & (x > 249)) | ((to_x < 6) & (x < 6))
    side = float(np.sqrt(mask.sum()))
    window = max(7, round(side / WINDOWS) | 1)
    usable = mask & ~cut
    weight = usable.astype(np.float32)

    def mean(values: np.ndarray) -> np.ndarray:
        return cv2.blur(values * weight, (window, window), borderType=cv2.BORDER_REFLECT) / np.maximum(part, 1e-3)

    part = cv2.blur(weight, (window, window), borderType=cv2.BORDER_REFLECT)
    middle_x, middle_y = mean(x), mean(y)
    own, others = np.maximum(mean(x * x) - middle_x**2, 0), np.maximum(mean(y * y) - middle_y**2, 0)
    floor = NOISE**2 / 4
    correlation = (mean(x * y) - middle_x * middle_y) / np.sqrt((own + floor) * (others + floor))
    inside = usable & (part > 0.3)
    if not inside.any():
        return found
    relative = np.maximum(own / max(own[inside].mean(), NOISE**2), others / max(others[inside].mean(), NOISE**2))
    textured = inside & (relative > TEXTURE) & (np.maximum(own, others) > NOISE**2)
    bad = textured & (correlation < AGREE)
    values = correlation[textured]
    if not len(values) or np.median(values) < HOPELESS:
        return replace(found, side=side, median=float(np.median(values)) if len(values) else 0.0)
    near = cv2.dilate(bad.astype(np.uint8), np.ones((window, window), np.uint8)) > 0
    apart = correlation[textured & ~near]
    calm = mask & ~near if (mask & ~near).any() else mask
    toned = tones(x, y, calm)
    quiet = (usable & ~near).astype(np.float32)
    overlay, drawn, patches = overlaid(grey_of(one), grey_of(other), x, y, toned, bad)
    drift, drift_high = _drift(toned, y, quiet, textured & ~near, 2 * window + 1)
    _, bend = _drift(toned, y, quiet, textured & ~near, BEND * window | 1)
    return replace(
        found,
        agree=float((values > AGREE).mean()),
        median=float(np.median(values)),
        low=float(np.quantile(values, 0.1)),
        rest=float(np.quantile(apart, 0.1)) if len(apart) else 0.0,
        texture=float(textured.sum() / mask.sum()),
        side=side,
        overlay=overlay,
        drawn=drawn,
        patches=0.0 if drawn else patches / float(mask.sum()),
        level=float(np.abs(toned - x)[calm].mean()),
        hue=_hue(one, other, calm),
        flat=max(_flat(one, mask), _flat(other, mask)),
        coarse=_coarse(x, y, usable, textured & ~near, window),
        drift=drift,
        drift_high=drift_high,
        bend=bend,
    )


def _coarse(x: np.ndarray, y: np.ndarray, usable: np.ndarray, textured: np.ndarray, window: int) -> float:
    """The lowest tenth of the correlation of larger windows after a blur."""
    cv2 = need_opencv()
    if not textured.any():
        return 0.0
    weight, wide = usable.astype(np.float32), (2 * window + 1, 2 * window + 1)
    part = np.maximum(cv2.blur(weight, wide, borderType=cv2.BORDER_REFLECT), 1e-3)

    def mean(values: np.ndarray) -> np.ndarray:
        return cv2.blur(values * weight, wide, borderType=cv2.BORDER_REFLECT) / part

    inside = np.maximum(cv2.GaussianBlur(weight, (0, 0), BLUR), 1e-3)
    x, y = (cv2.GaussianBlur(values * weight, (0, 0), BLUR) / inside for values in (x, y))
    own, others = (np.maximum(mean(values * values) - mean(values) ** 2, 0) for values in (x, y))
    floor = NOISE**2 / 4
    correlation = (mean(x * y) - mean(x) * mean(y)) / np.sqrt((own + floor) * (others + floor))
    return float(np.quantile(correlation[textured], 0.1))


def _drift(x: np.ndarray, y: np.ndarray, weight: np.ndarray, textured: np.ndarray, side: int) -> tuple[float, float]:
    """Displacement of windows of y against x in pixels, by one step of Lucas and Kanade: the median, nine tenths."""
    cv2 = need_opencv()
    right, down = cv2.Sobel(x, cv2.CV_32F, 1, 0, scale=1 / 8), cv2.Sobel(x, cv2.CV_32F, 0, 1, scale=1 / 8)
    size, change = (side, side), y - x

    def mean(values: np.ndarray) -> np.ndarray:
        return cv2.blur(values * weight, size, borderType=cv2.BORDER_REFLECT)

    change -= mean(change) / np.maximum(mean(np.ones_like(change)), 1e-3)
    xx, yy, xy, x_, y_ = (
        mean(a * b) for a, b in ((right, right), (down, down), (right, down), (right, change), (down, change))
    )
    least = (xx + yy) / 2 - np.sqrt(((xx - yy) / 2) ** 2 + xy**2)
    clear = textured & (least > 1.0)
    if not clear.any():
        return 0.0, 0.0
    xx, yy, xy, x_, y_ = (values[clear] for values in (xx, yy, xy, x_, y_))
    area = xx * yy - xy**2
    moved = np.hypot(yy * x_ - xy * y_, xx * y_ - xy * x_) / area
    return float(np.median(moved)), float(np.quantile(moved, 0.9))


def _hue(one: np.ndarray, other: np.ndarray, mask: np.ndarray) -> float:
    """How far colour without brightness changes, in the mean for pixels of the same colour."""
    found = 0.0
    first, second = (layer.astype(np.float32) for layer in (one, other))
    for channel in range(3):
        x, y = (np.clip(layer[..., channel] - layer.mean(2) + 128, 0, 255) for layer in (first, second))
        found += float(np.abs(tones(x, y, mask) - x)[mask].mean()) / 3
    return found


def largest_difference(first: Picture, second: Picture, matrix: np.ndarray) -> float:
    """The largest difference of small patches after alignment, of 255, but for a thousandth of them.

    It finds another digit in a screenshot, which windows of textures do not notice. Light that was changed evenly does
    not count.
    """
    cv2 = need_opencv()
    coarse, fine, warp, pixels = _layers(first, second, matrix)
    laid = cv2.warpAffine(pixels, warp, coarse.shape, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    covered = cv2.warpAffine(np.full(fine.grey.shape, 255, np.uint8), warp, coarse.shape, flags=cv2.INTER_NEAREST)
    edge = max(7, round(0.02 * max(coarse.shape)))
    mask = cv2.erode(covered, np.ones((edge, edge), np.uint8), borderType=cv2.BORDER_REPLICATE) > 0
    if not mask.any():
        return 255.0
    x, y = (smooth_grey(layer) for layer in (coarse.pixels, laid))
    patches = np.abs(cv2.blur(y - tones(x, y, mask), (PATCH, PATCH)))[mask]
    return float(np.quantile(patches, 0.9995))


def _flat(layer: np.ndarray, mask: np.ndarray) -> float:
    """The share of pixels that equal their neighbours to the right and below, nearly."""
    grey = layer.astype(np.int16).sum(2)
    still = np.zeros(grey.shape, bool)
    still[:-1, :-1] = (np.abs(np.diff(grey, axis=1))[:-1] <= 3) & (np.abs(np.diff(grey, axis=0))[:, :-1] <= 3)
    return float(still[mask].mean())
