"""The report of `patchreorder fit` on the terminal."""

import io

import pytest
from rich.console import Console

from patchreorder.report import fitted
from patchreorder.report.text import MINUS
from tests.report.fitted_report import HOSTILE, difference, fitted_report, hostile, untested


def printed(report, *, width: int = 80, terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None, highlight=False)
    fitted.show(report, console)
    return console.file.getvalue()


def test_what_is_printed():
    lines = printed(fitted_report()).splitlines()
    assert lines == [
        "90.0 % of 30 test photographs are right.",
        "Chosen: sorted quarters; backbone efficientnet_lite0 at 224 pixels; learned from photographs and 4 posed "
        "copies of each.",
        "Cross-validation: 85.0 % right as they are, +5.0 points (+1.0 to +9.0) against the plain average; 84.0 % in "
        "poses that mean the same, +9.0 points (+4.0 to +14.0).",
        "",
        "% right                fit              plain average     5 nearest",
        "as they are            90.0 (81 to 96)  80.0 (71 to 86)   70.0 (61 to 76)",
        "rotated up to 45°      90.0 (81 to 96)  80.0 (71 to 86)*  70.0 (61 to 76)*",
        "any rotation           90.0 (81 to 96)  80.0 (71 to 86)*  70.0 (61 to 76)*",
        "mean of 24 rotations   89.2             79.2              69.2",
        "worst of 24 rotations  70.0 at 90°      60.0 at 90°       50.0 at 90°",
        "In brackets: 95 % intervals; * differs from fit by more than chance (paired).",
        "",
        "Weakest classes: class 0 (8 of 10 right), class 1 (9 of 10 right), class 2 (9 of 10 right). "
        "Most confused: class 0 and class 1 (2), class 1 and class 2 (1), class 2 and class 0 (1).",
        "Probabilities are off by 2.5 points on average (expected calibration error).",
        '"None of these" wrongly refuses 3.0 % of the test photographs; of photographs of classes left out of '
        "training it refuses 81.0 %.",
        "5 training photographs are probably mislabelled, the first 3:",
        *(f"  /data/train/class 0/{index}.jpg: label class 0, predicted class 1 (99 %)" for index in range(3)),
    ]


def test_a_terminal_is_not_left_behind():
    faulty = {"unreadable": {f"class 0/{index}.jpg": "no image" for index in range(9)}, "shared": ["class 1/1.jpg"]}
    faulty |= {"single": ["class 2"], "in_two_classes": [["class 0/7.jpg", "class 1/7.jpg"]]}
    lines = printed(fitted_report(10, **faulty), terminal=True).splitlines()
    assert len(lines) <= 35
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {"unreadable": {f"a/{index}.jpg": "cut off" for index in range(5)}},
            "5 files cannot be read and are left out: a/0.jpg (cut off); a/1.jpg (cut off); a/2.jpg (cut off); and "
            "2 more.",
        ),
        ({"in_two_classes": [["a/1.jpg", "b/1.jpg"]]}, "1 photograph is in more than one class: a/1.jpg = b/1.jpg."),
        (
            {"shared": ["a/1.jpg", "a/2.jpg"]},
            "2 test photographs are also in training and left out of the test: a/1.jpg; a/2.jpg.",
        ),
        (
            {"single": ["rare"]},
            "1 class has one training photograph, which cross-validation cannot leave out: rare.",
        ),
        (
            {
                "rotations_hurt": {
                    "cost": difference(3.0, 1.0),
                    "loss": difference(9.0, 1.0),
                    "rotations": 180.0,
                    "classes": [["6", "9"]],
                }
            },
            "Rotations hurt (cross-validation): photographs rotated by up to 180° are right less often by 9.0 points "
            "(1.0 to 17.0), and learning from them costs 3.0 points (1.0 to 5.0) on photographs as they are. If a "
            "rotated photograph means something else, say so: --rotations 45 or 0; most confused then: 6 and 9.",
        ),
        ({"absent": ["6", "9"]}, "2 classes have no training photograph that can be read: 6; 9."),
        (
            {"ignored": ["6/notes.txt"]},
            "1 file is left out: not named like an image, or a link to nothing: 6/notes.txt.",
        ),
    ],
)
def test_faults_come_after_the_verdict(changed, sentence):
    assert printed(fitted_report(**changed)).splitlines()[1] == sentence


def test_copies_are_counted():
    assert "learned from photographs and 1 posed copy of each." in printed(fitted_report(copies=1))
    assert "learned from photographs and 3 posed copies of each." in printed(fitted_report(copies=3))


def test_without_a_test_part_the_choice_is_still_reported():
    lines = printed(untested()).splitlines()
    assert lines[0] == "Nothing was measured."
    assert "also in training" in lines[1]
    assert any(line.startswith("Chosen: sorted quarters") for line in lines)
    assert any("probably mislabelled" in line for line in lines)
    assert not any(word in line for line in lines for word in ("worst of", "Weakest", "None of these", "Probabilities"))


def test_what_is_missing_is_left_out():
    assert printed({}) == "Nothing was measured.\n"
    for key in fitted_report():
        report = fitted_report()
        del report[key]
        assert printed(report)
        assert printed({**fitted_report(), key: None})


def test_fine_tuning_that_is_not_kept_is_said():
    told = {"epochs": 12.0, "held_out": 128, "gain": difference(-3.0, 1.0), "kept": False}
    (line,) = (line for line in printed(fitted_report(finetune=told)).splitlines() if line.startswith("Fine-tuning"))
    assert line.startswith("Fine-tuning for 12 epochs: \N{MINUS SIGN}3.0 points (")
    assert line.endswith("on 128 photographs held out; not kept, the backbone stays frozen.")
    assert "held out; kept." in printed(fitted_report(finetune={**told, "kept": True}))


def test_the_plain_average_is_not_praised():
    report = fitted_report(gain={"upright": difference(0.0, 0.0), "posed": difference(0.0, 0.0)})
    report["chosen"] = report["tried"][0]
    (line,) = (line for line in printed(report).splitlines() if line.startswith("Cross-validation"))
    assert line.endswith("75.0 % in poses that mean the same; this is the plain average, nothing was better.")


def test_a_loss_is_a_loss():
    report = fitted_report(gain={"upright": difference(-2.0, -4.0), "posed": difference(1.0, -1.0)})
    assert f"{MINUS}2.0 points ({MINUS}4.0 to 0.0) against the plain average" in printed(report)
    report = fitted_report(differences={"as they are": {"plain average": difference(-3.0, -5.0)}})
    assert "80.0 (71 to 86)*" in printed(report)


def test_refusal_that_catches_nothing_is_called_that():
    for others, end in ((49.0, "49.0 %: do not rely on it."), (51.0, "51.0 %."), (None, "is not known.")):
        assert fitted.refusal(fitted_report(refusal={"own": 5.0, "others": others, "test": 3.0})).endswith(end)
    assert "5.0 % of the training photographs" in fitted.refusal(fitted_report(refusal={"own": 5.0, "others": None}))


def test_pairs_are_counted_both_ways():
    report = fitted_report(confusion=[[5, 1, 4], [3, 9, 0], [2, 0, 7]])
    assert fitted.confused(report) == [("class 0", "class 2", 4, 2), ("class 1", "class 0", 3, 1)]


def test_a_perfect_classifier_has_no_weak_class():
    report = fitted_report(2, confusion=[[10, 0], [0, 10]], mistakes=[], mislabelled=[])
    for own in report["per_class"]:
        own["right"] = 10
    assert "Weakest" not in printed(report)
    assert "mislabelled" not in printed(report)


def test_300_classes_are_as_short_as_three():
    assert len(printed(fitted_report(300)).splitlines()) == len(printed(fitted_report()).splitlines())


@pytest.mark.parametrize("terminal", [True, False])
def test_names_are_text(terminal):
    shown = printed(hostile(), width=300, terminal=terminal)
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\u202e" not in shown
    assert "[red]" in shown
    assert ":smile:" in shown
    assert "{{ 7 * 7 }}" in shown
    shown.encode()


def test_names_are_whole_in_a_pipe_and_cut_on_a_terminal():
    name = "/data/" + "x" * 500 + "/last.jpg"
    report = fitted_report(shared=[name])
    assert f": {name}.\n" in printed(report)
    shown = printed(report, terminal=True)
    assert "/data/xxx" in shown
    assert "x/last.jpg" in shown
    assert len(shown) < 3500


def test_names_without_end_are_cut():
    assert len(printed(hostile("x" * 100_000))) < 40 * fitted.LONGEST
    assert len(printed(hostile("x" * 100_000), terminal=True).splitlines()) < 80
    assert fitted.short_name("ab" + HOSTILE * 1000, 9) == "ab<s…ile:"
