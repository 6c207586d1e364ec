"""Groups of copies never hold two images that show different things."""

import pytest
from PIL import Image

from patchreorder.search.duplicates import find_duplicates
from patchreorder.search.groups import joined
from patchreorder.search.images import ImageFile
from patchreorder.search.index import Index
from patchreorder.search.keeping import KeepRule
from patchreorder.search.relations import COPY, SIMILAR, Relation

from .photographs import photograph
from .samples import made

pytest.importorskip("cv2")


def copy_of(agree: float) -> Relation:
    return Relation(kind=COPY, agree=agree)


def test_what_differs_is_not_joined_by_a_copy_of_both():
    by_digest = {name: [] for name in ("before", "after", "thumbnail", "again", "other")}
    relations = {
        ("after", "before"): Relation(kind=SIMILAR, moved=True),
        ("after", "thumbnail"): copy_of(0.95),
        ("before", "thumbnail"): copy_of(0.99),
        ("again", "after"): copy_of(0.9),
        ("again", "thumbnail"): Relation(kind=SIMILAR),
    }
    assert joined(by_digest, relations) == [["before", "thumbnail"], ["after", "again"], ["other"]]
    relations["after", "before"] = Relation(kind=SIMILAR)
    assert joined(by_digest, relations) == [["before", "after", "thumbnail", "again"], ["other"]]


def test_copies_with_different_texts_are_joined_by_the_photograph_but_by_no_thumbnail():
    same = Relation(kind=COPY, matrix=[[1, 0, 0], [0, 1, 0]], agree=0.9)
    relations = {("own", "text"): same, ("label", "own"): same, ("label", "text"): Relation(kind=SIMILAR, moved=True)}
    by_digest = {name: [ImageFile(name, 0, 0, name, "", 640, 480)] for name in ("own", "text", "label")}
    assert joined(by_digest, relations) == [["own", "text", "label"]]
    by_digest["own"] = [ImageFile("own", 0, 0, "own", "", 160, 120)]
    assert len(joined(by_digest, relations)) == 2


def collage(*images: Image.Image, high: int) -> Image.Image:
    small = [image.resize((round(image.width * high / image.height), high)) for image in images]
    found = Image.new("RGB", (sum(image.width for image in small) + 8 * (len(small) - 1), high), "white")
    x = 0
    for image in small:
        found.paste(image, (x, 0))
        x += image.width + 8
    return found


@pytest.mark.parametrize("high", [240, 150])
def test_a_collage_does_not_join_what_is_in_it(tmp_path, high):
    (tmp_path / "in").mkdir()
    first, second = photograph(1), photograph(2)
    collage(first, second, high=high).save(tmp_path / "in/collage.png")
    first.save(tmp_path / "in/first.png")
    first.resize((200, 150)).save(tmp_path / "in/small.png")
    second.save(tmp_path / "in/second.png")
    made(tmp_path / "in", tmp_path / "out")
    found = find_duplicates(Index(tmp_path / "out")).groups
    assert [[member.file.name for member in group] for group in found] == [["first.png", "small.png"]]


def test_two_parts_of_one_image_are_joined_by_it(tmp_path):
    (tmp_path / "in").mkdir()
    whole = photograph(1, (480, 360))
    whole.save(tmp_path / "in/whole.png")
    whole.crop((0, 0, 200, 280)).save(tmp_path / "in/left.png")
    whole.crop((260, 60, 470, 350)).save(tmp_path / "in/right.png")
    made(tmp_path / "in", tmp_path / "out")
    (group,) = find_duplicates(Index(tmp_path / "out")).groups
    assert [(member.file.name, member.keep) for member in group] == [
        ("whole.png", True),
        ("left.png", False),
        ("right.png", False),
    ]
    (group,) = find_duplicates(Index(tmp_path / "out"), keep=KeepRule("name")).groups  # the shortest
    assert [(member.file.name, member.keep) for member in group] == [
        ("left.png", True),
        ("right.png", True),
        ("whole.png", False),
    ]
    assert group[1].why == "the other one that is kept does not show it"
