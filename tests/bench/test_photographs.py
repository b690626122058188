"""The maker of the benchmark's data set."""

from __future__ import annotations

import io

from PIL import Image

from bench import photographs


def test_an_image_depends_on_its_index_alone():
    assert photographs.encode(5) == photographs.encode(5)
    assert len({photographs.encode(index) for index in range(16)}) == 16


def test_images_have_the_promised_shape_and_size():
    encoded = [photographs.encode(index) for index in range(40)]
    with Image.open(io.BytesIO(encoded[0])) as image:
        assert (image.format, image.size, image.mode) == ("JPEG", (256, 256), "RGB")
    assert 17_000 < sum(map(len, encoded)) / len(encoded) < 25_000


def test_a_set_is_made_once_and_then_reused(tmp_path):
    made = photographs.make_photographs(tmp_path, 12)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*.jpg")}
    assert len(files) == len(made.pairs) == 12
    assert photographs.make_photographs(tmp_path, 12) == made
    assert photographs.make_photographs(tmp_path, 5).pairs == made.pairs[:5]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*.jpg")} == files
    lines = (tmp_path / "pairs.txt").read_text().splitlines()
    assert lines == [f"{path} {label}" for path, label in made.pairs]


def test_an_interrupted_set_is_completed_with_the_same_bytes(tmp_path):
    made = photographs.make_photographs(tmp_path, 6)
    missing = tmp_path / made.pairs[3][0]
    missing.unlink()
    photographs.make_photographs(tmp_path, 8)
    assert missing.read_bytes() == photographs.encode(3)
    assert len((tmp_path / "pairs.txt").read_text().splitlines()) == 8


def test_a_folder_has_at_most_a_thousand_files():
    assert photographs.relative_path(999) == "0000/0000999.jpg"
    assert photographs.relative_path(1_000) == "0001/0001000.jpg"
