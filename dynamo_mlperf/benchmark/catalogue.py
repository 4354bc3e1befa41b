"""Product catalogues: the data set of the Qwen3-VL benchmark, from disk to chat messages.

On disk: `catalogue.jsonl`, one product a line with the field names of Shopify/product-catalogue, and the images
that it names, as files below the same directory. Images go to the engine as they are: no resize, no
re-encoding, as the benchmark's rules ask.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from dynamo_mlperf.benchmark.json_lines import json_lines
from dynamo_mlperf.benchmark.wording import Wording, load_wording
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import read_bounded

if TYPE_CHECKING:
    from pathlib import Path

CATALOGUE_FILE = "catalogue.jsonl"
_TINY_NAME = "tiny-product-catalogue"
"""What `init --assets` calls the small catalogue that it makes."""
_TEXT_FIELDS = ("product_title", "product_image", "ground_truth_category")
_OPTIONAL_TEXT_FIELDS = ("product_description", "ground_truth_brand")

_INSTRUCTION = """\
Look at the title, the description and the photo of the product. Reply with one JSON object and nothing else. Keys:
"category": the one of the categories below that fits the product best, spelled as it is there;
"brand": the name of the brand;
"is_secondhand": true if the product is used, otherwise false.
Where the description holds code, read the text in it and leave out the code."""

# Start of the file by media type. WebP has its mark behind the length of its RIFF container.
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
)
_SIGNATURE_BYTES = 16
_SHOWN_LETTERS = 200


def media_type(image: bytes) -> str | None:
    """The media type that the first bytes of `image` prove, or None where no known format begins so."""
    if image[:4] == b"RIFF" and image[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _SIGNATURES if image.startswith(start)), None)


def _known_type(image: bytes, path: Path, where: str) -> str:
    kind = media_type(image)
    if kind is None:
        start = f"begins with {image[:8].hex()}, which no known format does" if image else "is empty"
        raise ConfigError(f"{where}: image {path} {start}", "name a PNG, JPEG, WebP, GIF or BMP file there")
    return kind


@dataclass(frozen=True)
class ProductSample:
    """One product.

    Attributes:
        title: Title as the shop gives it.
        description: Description as the shop gives it; empty where there is none (as for some of the real products).
        choices: Category paths to choose from, in the order of the file.
        category: True category path, levels joined by " > ".
        brand: True brand; empty where none is known.
        is_secondhand: True for a used product.
        image_path: The image's file.
        where: File and line that the sample comes from, for messages.
        wording: How the product is asked about; None = in this project's words.
        described: Whether the data set has a description at all; an empty one is one.
    """

    title: str
    description: str
    choices: tuple[str, ...]
    category: str
    brand: str
    is_secondhand: bool
    image_path: Path
    where: str
    wording: Wording | None = None
    described: bool = True

    @property
    def image_bytes(self) -> bytes:
        """The image's file, byte for byte, read at each call.

        Raises:
            ConfigError: The file has gone or cannot be read.
        """
        try:
            return read_bounded(self.image_path)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"{self.where}: image {self.image_path}: {why}", "restore that file") from error

    @property
    def image_media_type(self) -> str:
        """The image's media type by its first bytes, whatever its name says.

        Raises:
            ConfigError: The file is of no known image format, or cannot be read.
        """
        return _known_type(self.image_bytes, self.image_path, self.where)

    def data_url(self) -> str:
        """The image as a data URL of its exact bytes."""
        image = self.image_bytes
        return f"data:{_known_type(image, self.image_path, self.where)};base64,{base64.b64encode(image).decode()}"


class Catalogue(Sequence[ProductSample]):
    """The products of one catalogue in file order; sample N of a run is product N here."""

    def __init__(self, samples: Sequence[ProductSample]) -> None:
        self._samples = tuple(samples)

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, index: int) -> ProductSample: ...
    @overload
    def __getitem__(self, index: slice) -> Catalogue: ...
    def __getitem__(self, index: int | slice) -> ProductSample | Catalogue:
        if isinstance(index, slice):
            return Catalogue(self._samples[index])
        return self._samples[index]


def load_catalogue(directory: Path) -> Catalogue:
    """Read `catalogue.jsonl` of `directory`; images are checked by their first bytes, and read whole later.

    Raises:
        ConfigError: No catalogue, no product in it, or a line that is not a product with an image; names file and line.
    """
    path = directory / CATALOGUE_FILE
    root = directory.resolve()
    wording = load_wording(directory)
    lines = json_lines(path, _way_out(directory))
    samples = [_sample(product, where, root, wording) for where, product in lines]
    if not samples:
        raise ConfigError(f"measure.dataset: {path}: 0 products", _way_out(directory))
    return Catalogue(samples)


def _way_out(directory: Path) -> str:
    """What to do where `directory` holds no catalogue."""
    if directory.name == _TINY_NAME:
        make_it = "`dynamo-mlperf init --assets assets` makes it"
    else:
        make_it = f"name a directory that holds a {CATALOGUE_FILE}"
    return (
        f"{make_it}; a relative path counts from the directory where the command is run "
        "(with sbatch: from the directory of submission)"
    )


def _sample(product: dict[str, Any], where: str, root: Path, wording: Wording | None) -> ProductSample:
    for field in _TEXT_FIELDS:
        if not isinstance(product.get(field), str):
            raise ConfigError(f"{where}: {field} is {_shown(product, field)}", f"give {field} as a string")
    for field in _OPTIONAL_TEXT_FIELDS:
        if not isinstance(product.get(field), str | None):
            raise ConfigError(f"{where}: {field} is {_shown(product, field)}", f"give {field} as a string or null")
    choices = product.get("potential_product_categories")
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        shown = _shown(product, "potential_product_categories")
        raise ConfigError(f"{where}: potential_product_categories is {shown}", "give it as a list of strings")
    secondhand = product.get("ground_truth_is_secondhand")
    if not isinstance(secondhand, bool):
        shown = _shown(product, "ground_truth_is_secondhand")
        raise ConfigError(f"{where}: ground_truth_is_secondhand is {shown}", "give it as true or false")
    for field in (*_TEXT_FIELDS, *_OPTIONAL_TEXT_FIELDS):
        _refuse_half_pairs(product.get(field) or "", f"{where}: {field}")
    for choice in choices:
        _refuse_half_pairs(choice, f"{where}: potential_product_categories")
    return ProductSample(
        title=product["product_title"],
        description=product.get("product_description") or "",
        choices=tuple(choices),
        category=product["ground_truth_category"],
        brand=product.get("ground_truth_brand") or "",
        is_secondhand=secondhand,
        image_path=_image_path(product["product_image"], where, root),
        where=where,
        wording=wording,
        described=product.get("product_description") is not None,
    )


def _shown(product: dict[str, Any], field: str) -> str:
    if field not in product:
        return "missing"
    try:
        shown = json.dumps(product[field])
    except RecursionError:
        return "nested too deeply"
    return shown if len(shown) <= _SHOWN_LETTERS else f"{shown[:_SHOWN_LETTERS]}..."


def _refuse_half_pairs(text: str, place: str) -> None:
    """Refuse what JSON can spell though UTF-8 cannot: one half of a surrogate pair (RFC 8259, section 8.2)."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise ConfigError(
            f"{place} holds {half}, half of a surrogate pair, at character {error.start}", "write the whole character"
        ) from error


def _image_path(name: str, where: str, root: Path) -> Path:
    """The image's real path, which has to lie below `root`, symbolic links resolved."""
    try:
        return _checked_image(name, where, root)
    except (OSError, ValueError, RuntimeError) as error:  # too long, unreadable; a zero byte; a loop of links
        reason = error.strerror if isinstance(error, OSError) else str(error)
        shown = _shown({"name": name}, "name")
        raise ConfigError(f"{where}: image {shown}: {reason}", "name a file that can be read") from error


def _checked_image(name: str, where: str, root: Path) -> Path:
    path = (root / name).resolve()
    if not path.is_relative_to(root):
        raise ConfigError(
            f"{where}: image {name} leads out of {root}", "put the image below the catalogue's own directory"
        )
    if not path.is_file():
        raise ConfigError(f"{where}: no image file {path}", "restore that file, or remove this line")
    with path.open("rb", buffering=0) as image:
        _known_type(image.read(_SIGNATURE_BYTES), path, where)
    return path


def prompt_texts(sample: ProductSample) -> tuple[str, str]:
    """The two texts of one product's prompt: what to answer, then the product."""
    if sample.wording is not None:
        return sample.wording.system, sample.wording.user_text(
            {
                "product_title": sample.title,
                "product_description": sample.description if sample.described else None,
                "potential_product_categories": list(sample.choices),
            }
        )
    choices = json.dumps(sample.choices, ensure_ascii=False)
    return _INSTRUCTION, f"title: {sample.title}\ndescription: {sample.description}\ncategories: {choices}"


def messages(sample: ProductSample, image_url: str | None = None) -> list[dict[str, Any]]:
    """Chat messages for one product in the OpenAI form: what to answer, then the texts, then the image.

    They carry what MLPerf's reference implementation sends, in the same order (title, description, categories to
    choose from, image), and ask for the same JSON object; the wording is the data set's own (`wording.py`), else this
    project's.

    Args:
        sample: The product.
        image_url: Stands for the image; None = a data URL of its bytes, for which its file is read.
    """
    instruction, text = prompt_texts(sample)
    return [
        {"role": "system", "content": instruction},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": text},
                {"type": "image_url", "image_url": {"url": sample.data_url() if image_url is None else image_url}},
            ],
        },
    ]
