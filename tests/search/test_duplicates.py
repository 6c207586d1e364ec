"""Groups of copies: verified pairs only, one file kept, found again without comparing."""

import io
import os
import shutil

import pytest
from PIL import Image, ImageDraw, ImageFont, ImageOps

from patchreorder.search import duplicates, verification
from patchreorder.search.duplicates import find_duplicates
from patchreorder.search.images import ImageFile
from patchreorder.search.index import Index
from patchreorder.search.keeping import KeepRule, Place
from patchreorder.search.relations import SIMILAR

from .photographs import CHANGES, photograph
from .samples import aged, made

pytest.importorskip("cv2")


@pytest.fixture
def folder(tmp_path):
    """Six photographs; of the first a copy of every kind, of the second the same bytes."""
    root = tmp_path / "photos"
    (root / "other").mkdir(parents=True)
    for seed in range(6):
        photograph(seed).save(root / f"{seed}.jpg", quality=95)
    for number, change in enumerate(CHANGES.values()):
        change(photograph(0)).save(root / f"other/copy{number:02}.jpg", quality=85)
    shutil.copy(root / "1.jpg", root / "other/same.jpg")
    aged(root)
    made(root, tmp_path / "index")
    return root


def groups(folder, **options):
    return find_duplicates(Index(folder.parent / "index"), **options).groups


def test_every_copy_is_found_and_nothing_else(folder):
    first, second = groups(folder)
    assert [member.file.name for member in first] == ["0.jpg", *(f"other/copy{n:02}.jpg" for n in range(len(CHANGES)))]
    assert [member.words for member in first[1:]] == list(CHANGES)
    assert [(member.file.name, member.words, member.keep) for member in second] == [
        ("1.jpg", "kept", True),
        ("other/same.jpg", "identical", False),
    ]
    assert [member.keep for member in first] == [True] + [False] * len(CHANGES)


def test_each_pair_is_compared_once(folder, monkeypatch):
    before = groups(folder)
    monkeypatch.setattr(verification, "relate", lambda first, second: pytest.fail("compared again"))
    assert [[member.words for member in group] for group in groups(folder)] == [
        [member.words for member in group] for group in before
    ]
    path = folder.parent / "index" / verification.FILE
    path.write_bytes(path.read_bytes()[:-40])  # cut off, as after a kill
    compared = []
    monkeypatch.undo()
    real = verification.relate
    monkeypatch.setattr(verification, "relate", lambda *pair: compared.append(pair) or real(*pair))
    assert [len(group) for group in groups(folder)] == [len(group) for group in before]
    assert len(compared) == 1


def test_a_file_that_changed_is_in_no_group(folder):
    photograph(50).save(folder / "other/copy03.jpg")
    (folder / "other/copy04.jpg").unlink()
    names = [member.file.name for member in groups(folder)[0]]
    assert "other/copy03.jpg" not in names
    assert "other/copy04.jpg" not in names
    assert len(names) == len(CHANGES) - 1


def test_what_only_looks_alike_is_apart(folder, monkeypatch):
    index = Index(folder.parent / "index")
    listed = {}
    for distance in (0.0, 2.0):  # of descriptors, up to which images look alike
        monkeypatch.setattr(duplicates, "ALIKE", distance)
        listed[distance] = find_duplicates(index, similar=True).similar
        assert not any(relation.is_copy for relation, _, _ in listed[distance])
    assert not any(relation.kind == SIMILAR for relation, _, _ in listed[0.0])
    assert any(relation.kind == SIMILAR for relation, _, _ in listed[2.0])
    assert not find_duplicates(index).similar


@pytest.mark.parametrize(
    ("rule", "kept", "why"),
    [
        ("pixels", "a/large.jpg", "it has the most pixels"),
        ("quality", "b/lossless.png", "it is encoded with the best quality"),
        ("oldest", "a/large.jpg", "it is the oldest file"),
        ("newest", "c/last.jpg", "it is the newest file"),
        ("folder", "a/large.jpg", "its folder was named first"),
        ("name", "c/last.jpg", "its path is the shortest"),
    ],
)
def test_the_rule_decides_what_is_kept(tmp_path, rule, kept, why):
    root = tmp_path / "in"
    image = photograph(9)
    for name, shown, quality in (
        ("a/large.jpg", image, 60),
        ("b/lossless.png", image.resize((160, 120)), None),
        ("c/last.jpg", image.resize((240, 180)), 90),
    ):
        (root / name).parent.mkdir(parents=True)
        shown.save(root / name, **({"quality": quality} if quality else {}))
    aged(root)
    made([root / "a", root / "b", root / "c"], tmp_path / "out")
    (group,) = find_duplicates(Index(tmp_path / "out"), keep=KeepRule(rule)).groups
    assert (group[0].file.name, group[0].why) == (kept, why)
    reference = KeepRule(rule, (root / "b",))
    (group,) = find_duplicates(Index(tmp_path / "out"), keep=reference).groups
    assert (group[0].file.name, group[0].why) == ("b/lossless.png", "it is in a reference folder")


def test_camera_data_decide_before_quality_and_formats_that_do_not_tell_decide_nothing(tmp_path):
    image, exif = photograph(9), Image.Exif()
    exif[0x0110] = "a camera"
    image.save(tmp_path / "camera.jpg", quality=70, exif=exif)
    image.save(tmp_path / "fine.jpg", quality=80)
    image.save(tmp_path / "unknown.webp", quality=80)
    (tmp_path / "broken.jpg").write_bytes(b"")
    for number, name in enumerate(("fine.jpg", "unknown.webp", "broken.jpg"), 1):
        os.utime(tmp_path / name, (number, number))

    def kept(*names):
        places = [Place.of(ImageFile(name, 0, 0, "", "", 320, 240), tmp_path) for name in names]
        chosen, why = KeepRule().choose(places)
        return chosen.file.name, why

    assert kept("camera.jpg", "fine.jpg", "unknown.webp") == ("camera.jpg", "it has the data of the camera")
    assert kept("unknown.webp", "fine.jpg") == ("fine.jpg", "it is the oldest file")
    assert kept("unknown.webp", "broken.jpg") == ("unknown.webp", "it has colours")


def test_a_grey_copy_one_of_few_colours_and_those_with_a_border_or_transparent_are_not_kept(tmp_path):
    image = photograph(9)
    mask = Image.new("L", image.size, 255)
    mask.paste(0, (0, 0, 20, 20))
    clear = image.copy()
    clear.putalpha(mask)
    clear.save(tmp_path / "clear.png")
    image.save(tmp_path / "own.jpg", quality=70)
    image.convert("L").save(tmp_path / "grey.png")
    image.quantize(256).save(tmp_path / "few.gif")
    ImageOps.expand(image, 40, "white").save(tmp_path / "framed.png")
    for number, name in enumerate(("own.jpg", "grey.png", "few.gif", "framed.png", "clear.png"), 1):
        os.utime(tmp_path / name, (number, number))

    def kept(name, size=(320, 240), inside=1.0):
        others = Place.of(ImageFile(name, 0, 0, "", "", *size), tmp_path, inside)
        return KeepRule().choose([others, Place.of(ImageFile("own.jpg", 0, 0, "", "", 320, 240), tmp_path)])

    assert (kept("grey.png")[0].file.name, kept("grey.png")[1]) == ("own.jpg", "it has colours")
    assert (kept("few.gif")[0].file.name, kept("few.gif")[1]) == ("own.jpg", "it is the oldest file")
    assert (kept("clear.png")[0].file.name, kept("clear.png")[1]) == ("own.jpg", "it is the oldest file")
    chosen, why = kept("framed.png", (400, 320), 320 * 240 / (400 * 320))
    assert (chosen.file.name, why) == ("own.jpg", "it has the most pixels")


def test_screenshots_that_differ_in_a_few_digits_are_no_copies(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(3):
        image = Image.new("RGB", (800, 600), "white")
        draw = ImageDraw.Draw(image)
        for line in range(20):
            draw.text((30, 70 + 24 * line), f"Message {line} about subject {line * (number + 3) % 11}", fill="black")
        image.save(tmp_path / f"in/{number}.png")
    image.resize((600, 450), Image.Resampling.LANCZOS).save(tmp_path / "in/small.jpg", quality=80)
    made(tmp_path / "in", tmp_path / "out")
    found = find_duplicates(Index(tmp_path / "out")).groups
    assert [[member.file.name for member in group] for group in found] == [["2.png", "small.jpg"]]


def window(state: str, pressed: int) -> Image.Image:
    """A small window of few colours, with the marks that JPEG leaves around letters."""
    image = Image.new("RGB", (420, 300), (30, 30, 34))
    draw = ImageDraw.Draw(image)
    draw.rectangle((12, 10, 408, 290), fill=(168, 190, 180))
    draw.rectangle((12, 10, 408, 40), fill="white")
    font = ImageFont.load_default(size=20)
    draw.text((30, 14), "Window title", font=font, fill="black")
    draw.text((30, 60), f"Your application: {state}", font=font, fill="black")
    for place in range(9):
        x, y = 30 + 125 * (place % 3), 100 + 62 * (place // 3)
        draw.rectangle((x, y, x + 110, y + 52), fill=(100, 120, 150) if place == pressed else (60, 75, 110))
        draw.text((x + 10, y + 14), f"Button {place}", font=font, fill="white")
    content = io.BytesIO()
    image.save(content, "JPEG", quality=75)
    return Image.open(content).convert("RGB")


def test_two_states_of_a_compressed_screenshot_are_no_copies(tmp_path):
    (tmp_path / "in").mkdir()
    for number, image in enumerate((window("stop", 1), window("play", 2), window("stop", 1).resize((300, 214)))):
        image.save(tmp_path / f"in/{number}.jpg", quality=80)
    made(tmp_path / "in", tmp_path / "out")
    found = find_duplicates(Index(tmp_path / "out"), similar=True)
    assert [[member.file.name for member in group] for group in found.groups] == [["0.jpg", "2.jpg"]]


def test_a_border_does_not_count_as_pixels(tmp_path):
    image = photograph(3)
    (tmp_path / "in").mkdir()
    image.save(tmp_path / "in/own.png")
    framed = Image.new("RGB", (400, 320), "white")
    framed.paste(image, (40, 40))
    framed.save(tmp_path / "in/framed.png")
    made(tmp_path / "in", tmp_path / "out")
    (group,) = find_duplicates(Index(tmp_path / "out")).groups
    assert [(member.file.name, member.words) for member in group] == [
        ("own.png", "kept"),
        ("framed.png", "with a border"),
    ]
