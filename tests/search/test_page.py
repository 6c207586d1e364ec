"""The page of results: one file, small upright thumbnails, everything escaped."""

import base64
import io
import re

from PIL import Image

from patchreorder.search import page


def test_the_page_is_one_file_with_small_upright_images(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # stored rotated
    Image.new("RGB", (400, 200), (200, 0, 0)).save(tmp_path / "a.jpg", exif=exif)
    (tmp_path / "b.jpg").write_bytes(b"not an image")
    images = [
        page.Thumbnail(tmp_path / "a.jpg", "a&<b>.jpg", ["0.123"]),
        page.Thumbnail(tmp_path / "gone.jpg", "gone.jpg"),
    ]
    query = page.Thumbnail(tmp_path / "b.jpg", "b.jpg", ["query"])
    page.write(tmp_path / "page.html", [page.Section("<i>", images, query)], title="<b>", about=["<u>"])
    text = (tmp_path / "page.html").read_text()
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in text
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"<(b|i|u)>|<script|https?://|javascript:", text)
    assert text.count("cannot be shown") == 2
    (source,) = re.findall(r'<img src="data:image/jpeg;base64,([^"]+)"', text)
    image = Image.open(io.BytesIO(base64.b64decode(source)))
    assert (image.format, image.size) == ("JPEG", (80, 160))
    assert "a&amp;&lt;b&gt;.jpg" in text
