"""The page of `patchreorder fit`: complete, escaped, of a bounded size."""

import base64
import re

import pytest

from patchreorder.report import fitted_page
from patchreorder.report.drawing import BLUE, GREY
from tests.report.fitted_report import JPEG, angles, fitted_report, hostile, mistake, untested
from tests.report.html import assert_well_formed, read
from tests.report.svg import lines, texts


def words(html: str) -> str:
    return " ".join(" ".join(read(html).text).split())


def chart(html: str) -> str:
    (source,) = (tag["src"] for name, tag in read(html).tags if name == "img" and "svg" in tag["src"])
    return base64.b64decode(source.split(",")[1]).decode()


def thumbnails(html: str) -> list[str]:
    return [tag["src"] for name, tag in read(html).tags if name == "img" and "jpeg" in tag["src"]]


@pytest.fixture(scope="module")
def html():
    report = fitted_report(unreadable={"a/1.jpg": "cut off"}, repeated=3)
    return fitted_page.render(report, thumbnails={report["mistakes"][0]["name"]: JPEG})


def test_the_page_is_well_formed_and_loads_nothing(html):
    assert_well_formed(html)
    assert html.startswith("<!doctype html>")


def test_the_page_shows_everything(html):
    text = words(html)
    for part in (
        "A classifier for 3 classes",
        "Photographs of class 0, class 1 and class 2: 60 to train, 30 to test.",
        "90.0 % of 30 test photographs are right.",
        "1 file cannot be read and is left out: a/1.jpg (cut off)",
        "3 of the training photographs only repeat another",
        "rotated up to 45° 90.0 (81.0 to 96.0) 80.0 (71.0 to 86.0) 70.0 (61.0 to 76.0) +10.0 (+2.0 to +18.0) +20.0",
        "worst of 24 rotations 70.0 at 90° 60.0 at 90° 50.0 at 90°",
        "Each rotation was tested on 7 to 8 photographs.",
        "sorted quarters, posed copies (chosen) 85.0 84.0 0.01",
        "class 0 80.0 88.9 8 10 20",  # precision: 8 of 9
        "class 0 8 2 0 class 1 0 9 1 class 2 1 0 9",
        "class 0 class 1 2 0",
        "3 test photographs are wrong as they are",
        "In /data/val : label class 0, predicted class 1 (95 %) class 0/0.jpg",
        "5 training photographs",
        "Probabilities are off by 2.5 points",
        "(rightly) 81.0",
        "rotated by up to 180°, not mirrored, shifted by up to 10 %, scaled by up to 10 %",
        "44 s, 1 min 20 s of processor time",
        "patchreorder fit --data photographs",
    ):
        assert part in text, part


def test_thumbnails_are_embedded_and_a_missing_one_is_said(html):
    assert thumbnails(html) == ["data:image/jpeg;base64," + base64.b64encode(JPEG).decode()]
    assert html.count("no thumbnail") == 2 + 5


def test_the_chart_goes_round_the_circle(html):
    (ours,) = lines(chart(html), BLUE)
    assert len(ours) == 25
    assert ours[0][1] == ours[24][1] < ours[6][1]  # lower at 90 degrees; y grows downwards
    assert {"fit", "plain average", "5 nearest"} <= set(texts(chart(html)))
    assert "band" not in " ".join(texts(chart(html)))


def test_the_band_of_ours_is_drawn_if_it_is_known():
    known = {**angles(90.0), "low": [80.0] * 24, "high": [95.0] * 24}
    drawn = chart(fitted_page.render(fitted_report(angles={"fit": known, "plain average": angles(80.0)})))
    assert any(text.startswith("band: 95 % interval") for text in texts(drawn))
    assert lines(drawn, GREY) == []


def test_at_most_60_photographs_of_a_list():
    many = [mistake(f"/data/val/a/{index}.jpg", 0.5) for index in range(100)]
    html = fitted_page.render(fitted_report(mistakes=many), thumbnails={each["name"]: JPEG for each in many})
    assert len(thumbnails(html)) == 60
    assert "100 test photographs are wrong" in words(html)
    assert "40 more are in report.json" in words(html)


def test_names_are_shown_below_their_common_folder():
    def shown(*names):
        found = fitted_page._photographs([mistake(name, 0.5) for name in names], {})
        return found.folder, [each.name for each in found.shown]

    assert shown("/data/val/a/1.jpg", "/data/val/b/1.jpg") == ("/data/val", ["a/1.jpg", "b/1.jpg"])
    assert shown("/data/val/a/1.jpg") == ("/data/val", ["a/1.jpg"])
    assert shown("a/1.jpg", "b/1.jpg") == ("", ["a/1.jpg", "b/1.jpg"])
    assert shown("/x/a/1.jpg", "rest/b/1.jpg") == ("", ["/x/a/1.jpg", "rest/b/1.jpg"])


def test_two_classes():
    html = fitted_page.render(fitted_report(2, refusal={"threshold": 0.1, "own": 5.0, "others": None, "test": 2.0}))
    assert_well_formed(html)
    assert "class 0 8 2 class 1 1 9" in words(html)
    assert "is not known" in html


def test_many_classes_have_pairs_instead_of_a_matrix():
    html = fitted_page.render(fitted_report(300))
    text = words(html)
    assert_well_formed(html)
    assert "Confusion matrix" not in text
    assert "The 30 most confused of 300 pairs" in text
    assert "the weakest 40 of 300 classes" in text
    assert "and 288 other classes" in text
    assert "class 299" in text  # in the table of all classes
    assert len(html) < 400_000
    assert "Confusion matrix" in fitted_page.render(fitted_report(25))
    assert "Confusion matrix" not in fitted_page.render(fitted_report(26))


def test_1000_classes_stay_small():
    assert len(fitted_page.render(fitted_report(1000))) < 700_000


def test_of_many_faults_few_are_unfolded():
    report = fitted_report(unreadable={f"{index:03}.jpg": "cut off" for index in range(300)})
    html = fitted_page.render(report)
    assert_well_formed(html)
    shown, folded = html.split("<summary>295 more</summary>")
    assert "004.jpg" in shown
    assert "005.jpg" not in shown
    assert "199.jpg" in folded
    assert "200.jpg" not in folded
    assert "and 100 more, in report.json" in folded


def test_classes_without_test_photographs_are_named():
    report = fitted_report()
    report["per_class"][1] |= {"test": 0, "right": 0}
    assert "Without test photographs: class 1." in words(fitted_page.render(report))


def test_shades_follow_the_number_of_mistakes():
    report = fitted_report(confusion=[[9, 10, 1], [5, 9, 0], [0, 0, 9]])
    looks = re.findall(r'<td class="((?:own|wrong|none)[^"]*)">(\d+)</td>', fitted_page.render(report))
    assert looks == [
        *(("own", "9"), ("wrong shade5", "10"), ("wrong shade1", "1")),
        *(("wrong shade3", "5"), ("own", "9"), ("none", "0")),
        *(("none", "0"), ("none", "0"), ("own", "9")),
    ]


def test_without_a_test_part_nothing_is_claimed():
    html = fitted_page.render(untested())
    assert_well_formed(html)
    text = words(html)
    assert "Nothing was measured." in text
    assert "What was chosen" in text
    for part in ("Accuracy in each pose", "Confusion", "Mistakes", "none of these"):
        assert part not in text


def test_what_is_missing_is_left_out():
    assert_well_formed(fitted_page.render({}))
    whole = fitted_report(angles={})  # the chart takes long
    for key in whole:
        assert_well_formed(fitted_page.render({**whole, key: None}))


def test_nothing_in_names_becomes_markup():
    html = fitted_page.render(hostile())
    assert "<script" not in html
    assert "{{ 7 * 7 }}" in html
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert_well_formed(html)
    html.encode()


def test_names_without_end_are_cut():
    assert len(fitted_page.render(hostile("x" * 100_000))) < 200_000


def test_the_same_report_makes_the_same_page(tmp_path):
    fitted_page.write(fitted_report(), tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == fitted_page.render(fitted_report())
