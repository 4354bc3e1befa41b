"""Product catalogues: what is read, what is refused and how, and the chat messages."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from dynamo_mlperf.benchmark.catalogue import load_catalogue, media_type, messages
from dynamo_mlperf.errors import ConfigError

PNG = b"\x89PNG\r\n\x1a\n rest"
PRODUCT = {
    "product_title": "Blue cup",
    "product_description": "A cup.",
    "product_image": "images/0.png",
    "potential_product_categories": ["Home > Kitchen > Cups", "Home > Décor"],
    "ground_truth_category": "Home > Kitchen > Cups",
    "ground_truth_brand": "Kestrel",
    "ground_truth_is_secondhand": True,
}


def _write(directory: Path, *lines: str, image: bytes = PNG) -> Path:
    (directory / "images").mkdir(exist_ok=True)
    (directory / "images" / "0.png").write_bytes(image)
    (directory / "catalogue.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return directory


def _with(**changes: Any) -> str:
    return json.dumps({**PRODUCT, **changes})


def test_products_in_file_order(tmp_path: Path) -> None:
    catalogue = load_catalogue(_write(tmp_path, _with(), _with(product_title="Red cup"), ""))
    assert [sample.title for sample in catalogue] == ["Blue cup", "Red cup"]
    assert [sample.title for sample in catalogue[1:]] == ["Red cup"]
    first = catalogue[0]
    assert (first.description, first.category, first.brand) == ("A cup.", "Home > Kitchen > Cups", "Kestrel")
    assert first.choices == ("Home > Kitchen > Cups", "Home > Décor")
    assert first.is_secondhand is True
    assert first.image_bytes == PNG
    assert first.image_media_type == "image/png"


def test_absent_description_and_brand_are_empty(tmp_path: Path) -> None:
    product = {key: value for key, value in PRODUCT.items() if key != "ground_truth_brand"}
    sample = load_catalogue(_write(tmp_path, json.dumps({**product, "product_description": None})))[0]
    assert (sample.description, sample.brand) == ("", "")


def test_images_are_read_when_asked_for(tmp_path: Path) -> None:
    sample = load_catalogue(_write(tmp_path, _with()))[0]
    (tmp_path / "images" / "0.png").write_bytes(PNG + b" changed")
    assert sample.image_bytes == PNG + b" changed"
    (tmp_path / "images" / "0.png").unlink()
    with pytest.raises(ConfigError, match=r"catalogue\.jsonl:1: image .*0\.png: No such file"):
        _ = sample.image_bytes


def test_message_is_the_exact_image_and_the_texts(tmp_path: Path) -> None:
    image = PNG + bytes(range(256))
    system, user = messages(load_catalogue(_write(tmp_path, _with(), image=image))[0])
    assert system == {
        "role": "system",
        "content": (
            "Look at the title, the description and the photo of the product. "
            "Reply with one JSON object and nothing else. Keys:\n"
            '"category": the one of the categories below that fits the product best, spelled as it is there;\n'
            '"brand": the name of the brand;\n'
            '"is_secondhand": true if the product is used, otherwise false.\n'
            "Where the description holds code, read the text in it and leave out the code."
        ),
    }
    assert user["role"] == "user"
    text, picture = user["content"]
    assert text == {
        "type": "text",
        "text": 'title: Blue cup\ndescription: A cup.\ncategories: ["Home > Kitchen > Cups", "Home > Décor"]',
    }
    kind, encoded = picture["image_url"]["url"].split(";base64,")
    assert kind == "data:image/png"
    assert base64.b64decode(encoded) == image


def test_a_message_gives_no_answer_away(tmp_path: Path) -> None:
    sample = load_catalogue(_write(tmp_path, _with(product_title="Cup", product_description="")))[0]
    sent = json.dumps(messages(sample))
    assert "Kestrel" not in sent
    assert sent.count("Kitchen") == 1  # among the choices


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp"),
        (b"GIF89a", "image/gif"),
        (b"BM", "image/bmp"),
        (b"RIFF\x10\0\0\0WAVE", None),
        (b"<svg", None),
        (b"", None),
    ],
)
def test_media_type_by_first_bytes(start: bytes, kind: str | None) -> None:
    assert media_type(start) == kind


def test_the_name_of_an_image_proves_nothing(tmp_path: Path) -> None:
    sample = load_catalogue(_write(tmp_path, _with(), image=b"\xff\xd8\xff\xe0 jpeg"))[0]
    assert sample.image_media_type == "image/jpeg"
    assert sample.data_url().startswith("data:image/jpeg;base64,")


def test_an_unknown_image_is_refused_by_name(tmp_path: Path) -> None:
    sample = load_catalogue(_write(tmp_path, _with()))[0]
    (tmp_path / "images" / "0.png").write_bytes(b"<html>")
    with pytest.raises(ConfigError, match=r"catalogue\.jsonl:1: image .*0\.png begins with 3c68746d6c3e"):
        messages(sample)


@pytest.mark.parametrize(
    ("image", "complaint"),
    [(b"<html>", "begins with 3c68746d6c3e, which no known format does"), (b"", "is empty")],
)
def test_no_image_is_refused_at_load_time(tmp_path: Path, image: bytes, complaint: str) -> None:
    _write(tmp_path, _with(), _with(product_image="images/1.png"))
    path = tmp_path / "images" / "1.png"
    path.write_bytes(image)
    with pytest.raises(ConfigError) as refusal:
        load_catalogue(tmp_path)
    assert refusal.value.what == f"{tmp_path / 'catalogue.jsonl'}:2: image {path} {complaint}"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (_with(potential_product_categories=["a", "b\0"]), "holds a NUL character"),
        (_with()[:-1] + ', "product_title": "b"}', 'the key "product_title" stands there twice'),
        ("{", "not JSON: Expecting property name enclosed in double quotes at column 2"),
        ("[1]", "a list where an object has to be: [1]"),
        (_with(product_title=None), "product_title is null"),
        (_with(product_title=7), "product_title is 7"),
        (_with(ground_truth_category=["a"]), r'ground_truth_category is ["a"]'),
        (_with(ground_truth_brand=1), "ground_truth_brand is 1"),
        (_with(potential_product_categories="Cups"), 'potential_product_categories is "Cups"'),
        (_with(potential_product_categories=[1]), "potential_product_categories is [1]"),
        (_with(ground_truth_is_secondhand=1), "ground_truth_is_secondhand is 1"),
        (_with(ground_truth_is_secondhand=None), "ground_truth_is_secondhand is null"),
        (json.dumps({}), "product_title is missing"),
        (_with(product_image="images/1.png"), "no image file"),
        (_with(product_image="images"), "no image file"),
        (_with(product_image="../outside.png"), "image ../outside.png leads out of"),
        (_with(product_image="/etc/hostname"), "image /etc/hostname leads out of"),
        (_with(product_image="images/0.png\0"), "holds a NUL character"),
        (_with(product_image="a" * 300), f'image "{"a" * 199}...: File name too long'),
        (_with(product_image="\udc80"), r"product_image holds \udc80, half of a surrogate pair, at character 0"),
        (_with(product_title="ab\ud800"), r"product_title holds \ud800, half of a surrogate pair, at character 2"),
        (_with(product_description="\ud800"), r"product_description holds \ud800"),
        (_with(ground_truth_category="\ud800"), r"ground_truth_category holds \ud800"),
        (_with(ground_truth_brand="\ud800"), r"ground_truth_brand holds \ud800"),
        (_with(potential_product_categories=["\ud800"]), r"potential_product_categories holds \ud800"),
        ("[" * 100_000, "no JSON that can be read: maximum recursion depth exceeded"),
        ('{"a": ' + "1" * 5000 + "}", "no JSON that can be read: Exceeds the limit"),
    ],
)
def test_a_bad_line_is_refused_with_file_and_line(tmp_path: Path, line: str, complaint: str) -> None:
    (tmp_path / "outside.png").write_bytes(PNG)
    directory = tmp_path / "catalogue"
    directory.mkdir()
    _write(directory, _with(), line)
    with pytest.raises(ConfigError) as refusal:
        load_catalogue(directory)
    assert refusal.value.what.startswith(f"{directory / 'catalogue.jsonl'}:2: {complaint}")
    assert refusal.value.action


def test_no_nesting_ends_in_a_traceback(tmp_path: Path) -> None:
    """Somewhere near Python's limit a value can be read though not shown."""
    for depth in range(500, 1100, 3):
        line = '{"product_title": ' + "[" * depth + "]" * depth + "}"
        with pytest.raises(ConfigError, match=r"catalogue\.jsonl:1: (product_title is|no JSON that can be read)"):
            load_catalogue(_write(tmp_path, line))


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    _write(tmp_path, _with(product_image="images/loop"))
    (tmp_path / "images" / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match=r'catalogue\.jsonl:1: image "images/loop": Symlink loop'):
        load_catalogue(tmp_path)


def test_a_link_out_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside.png").write_bytes(PNG)
    directory = tmp_path / "catalogue"
    directory.mkdir()
    _write(directory, _with(product_image="images/link.png"))
    (directory / "images" / "link.png").symlink_to(tmp_path / "outside.png")
    with pytest.raises(ConfigError, match=r"catalogue\.jsonl:1: image images/link\.png leads out of"):
        load_catalogue(directory)


def test_a_catalogue_behind_a_link_is_fine(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    _write(real, _with())
    (tmp_path / "link").symlink_to(real)
    assert load_catalogue(tmp_path / "link")[0].image_bytes == PNG


PLACE = (
    "; a relative path counts from the directory where the command is run "
    "(with sbatch: from the directory of submission)"
)


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("tiny-product-catalogue", f"`dynamo-mlperf init --assets assets` makes it{PLACE}"),
        ("catalogue-8k", f"name a directory that holds a catalogue.jsonl{PLACE}"),
    ],
)
def test_a_missing_data_set_is_told_by_path_and_key(tmp_path: Path, name: str, action: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_catalogue(tmp_path / name)
    path = tmp_path / name / "catalogue.jsonl"
    assert refusal.value.what == f"measure.dataset: {path}: No such file or directory"
    assert refusal.value.action == action


def test_no_catalogue_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"catalogue\.jsonl: No such file or directory"):
        load_catalogue(tmp_path)
    _write(tmp_path, "", " ")
    with pytest.raises(ConfigError, match=r"catalogue\.jsonl: 0 products"):
        load_catalogue(tmp_path)
    (tmp_path / "catalogue.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 0"):
        load_catalogue(tmp_path)
