"""The page of `patchreorder measure`: escaped, reproducible."""

from patchreorder.report import measured_page
from tests.report.measured_document import document


def test_names_are_escaped():
    page = measured_page.render(document(second=True))
    for tag in ("<i>", "<u>", "<b>"):
        assert tag not in page
    assert "&lt;i&gt;[/two]" in page
    assert "shifted 20 % right: &lt;b&gt;dog" in page
    assert "as it is: cat, label cat" in page


def test_the_same_result_makes_the_same_page():
    assert measured_page.render(document()) == measured_page.render(document())
