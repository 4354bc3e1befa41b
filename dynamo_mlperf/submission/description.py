"""The site's description of a system: what a submission has to say of it and no run can know.

A YAML file of the site's own. Its keys below `system` are those of the submission's `systems/<name>.json`; what the
nodes recorded completes it (`system_json`), and what neither says is asked for by name. Source of the keys and of those
that must be filled: `SYSTEM_DESC_REQUIRED_FIELDS` and `SYSTEM_DESC_MEANINGFUL_RESPONSE_REQUIRED_FIELDS` of
mlcommons/inference b66003e1, `tools/submission/submission_checker/constants.py`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import read_text
from dynamo_mlperf.submission.finding import Finding
from dynamo_mlperf.topology.document import read_document
from dynamo_mlperf.topology.strict import StrictModel, check

PLACEHOLDER = "FILL-IN"

_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")

_BY_THE_VERB = ("division", "submitter")
_OPTIONAL = (
    "host_processor_frequency",
    "host_processor_caches",
    "host_processor_interconnect",
    "accelerator_frequency",
    "accelerator_interconnect_topology",
    "accelerator_on-chip_memories",
    "hw_notes",
    "sw_notes",
    "system_type_detail",
)


def folder_name(name: str) -> str:
    """`name` itself where it can be a folder of the tree.

    Raises:
        ValueError: It cannot.
    """
    if not _FOLDER.fullmatch(name):
        raise ValueError(f"wanted a folder's name of letters, digits and . _ + -, got {name!r}")
    return name


def _line(text: str) -> str:
    if PLACEHOLDER in text:
        raise ValueError(f"still {PLACEHOLDER}")
    if not text.isprintable():
        raise ValueError("wanted one line of text")
    return text.strip()


def _filled(text: str) -> str:
    if not _line(text):
        raise ValueError("wanted text, got nothing")
    return _line(text)


Folder = Annotated[str, AfterValidator(folder_name)]
Line = Annotated[str, AfterValidator(_line)]
Filled = Annotated[str, AfterValidator(_filled)]
Count = Annotated[int, Field(ge=1)]


class SystemFields(StrictModel):
    """The keys of `systems/<name>.json`; those left out are taken from what the nodes recorded, where they did."""

    system_name: Line | None = Field(default=None, description="Name of the system as results show it")
    status: Literal["available", "preview", "rdi"] | None = Field(
        default=None, description="Availability by MLPerf's rules"
    )
    system_type: Literal["datacenter"] = Field(default="datacenter", description="Suite that is submitted to")
    system_type_detail: Line = Field(default="", description="More about the type, such as on-premise; may be empty")
    number_of_nodes: Count | None = Field(default=None, description="Nodes; left out, those of the plan")
    host_processor_model_name: Line | None = Field(default=None, description="CPU; left out, as the nodes recorded it")
    host_processors_per_node: Count | None = Field(
        default=None, description="CPU sockets of a node; left out, recorded"
    )
    host_processor_core_count: Count | None = Field(default=None, description="Cores of one CPU; left out, recorded")
    host_processor_frequency: Line = Field(default="", description="CPU frequency; may be empty")
    host_processor_caches: Line = Field(default="", description="CPU caches; may be empty")
    host_processor_interconnect: Line = Field(default="", description="Between CPUs of a node; may be empty")
    host_memory_capacity: Line | None = Field(default=None, description="Memory of a node; left out, recorded")
    host_memory_configuration: Line | None = Field(default=None, description="Modules, such as 2x 240GB LPDDR5X")
    host_storage_capacity: Line | None = Field(default=None, description="Storage of a node; left out, recorded")
    host_storage_type: Line | None = Field(default=None, description="Such as NVMe SSD; left out, recorded")
    host_networking: Line | None = Field(default=None, description="Such as InfiniBand NDR400 or 100GbE")
    host_networking_topology: Line | None = Field(default=None, description="Such as fat tree, or N/A on one node")
    host_network_card_count: Line | Count | None = Field(
        default=None, description="Such as 4x 400Gbps; left out, recorded"
    )
    accelerators_per_node: Count | None = Field(
        default=None, description="Whole number; its product with number_of_nodes is shown as the total"
    )
    accelerator_model_name: Line | None = Field(default=None, description="Accelerator; left out, recorded")
    accelerator_memory_capacity: Line | None = Field(default=None, description="Of one; left out, recorded")
    accelerator_memory_configuration: Line | None = Field(default=None, description="Kind, such as HBM3e")
    accelerator_frequency: Line = Field(default="", description="Frequency; may be empty")
    accelerator_on_chip_memories: Line = Field(
        default="", alias="accelerator_on-chip_memories", description="On-chip memories; may be empty"
    )
    accelerator_host_interconnect: Line | None = Field(default=None, description="Such as NVLink-C2C or PCIe Gen5 x16")
    accelerator_interconnect: Line | None = Field(default=None, description="Such as 1.8 TB/s NVLink")
    accelerator_interconnect_topology: Line = Field(
        default="", description="Topology between accelerators; may be empty"
    )
    cooling: Line | None = Field(default=None, description="Such as liquid or air")
    framework: Line | None = Field(default=None, description="Engine and serving; left out, from the versions recorded")
    operating_system: Line | None = Field(default=None, description="Left out, recorded")
    other_software_stack: Line | None = Field(default=None, description="Left out, from the versions recorded")
    hw_notes: Line = Field(default="", description="Notes on hardware; may be empty")
    sw_notes: Line = Field(default="", description="Notes on software; may be empty")


class ModelMeasurements(StrictModel):
    """The five keys of `measurements.json` for one benchmark; none may be empty."""

    input_data_types: Filled = Field(description="Such as int32 or uint8")
    retraining: Filled = Field(description='Whether weights were retrained: "No" in the closed division')
    starting_weights_filename: Filled = Field(description="The weights that everything began with")
    weight_data_types: Filled = Field(description="Types of the weights as served, such as fp4")
    weight_transformations: Filled = Field(description="What was done to them, such as quantization; none, if nothing")


class System(StrictModel):
    """A system, its benchmarks' weights, and its calibration."""

    name: Folder = Field(description="Names the system's folder and its JSON file in the tree")
    system: SystemFields = Field(description="Keys of the system's JSON file")
    measurements: dict[str, ModelMeasurements] = Field(description="By benchmark: what was done to its weights")
    calibration: str = Field(description="The calibration document, a Markdown file beside this one")
    uneven_nodes: Filled | None = Field(
        default=None, description="How the nodes differ in accelerators, for hw_notes; wanted where they do"
    )
    serving: Filled | None = Field(
        default=None, description="How the endpoint was served; wanted for runs of `measure`, which have no topology"
    )


KEYS = (
    *_BY_THE_VERB,
    *(field.alias or name for name, field in SystemFields.model_fields.items()),
)
"""All 35 keys of `systems/<name>.json`."""

MUST_BE_FILLED = tuple(key for key in KEYS if key not in _OPTIONAL)
"""The keys that the checker wants filled."""


def description_findings(path: Path) -> list[Finding]:
    """The faults of a system's file, one each; what is still to be filled in is none yet."""
    try:
        read_description(path)
    except ConfigError as problem:
        first, *more = problem.what.splitlines()
        told = [line.strip() for line in more or [first] if PLACEHOLDER not in line]
        return [Finding(str(path), "system file", "no fault", line, problem.action) for line in told]
    return []


def read_description(path: Path) -> tuple[System, str]:
    """A system's description and the text of its calibration document.

    Raises:
        ConfigError: The file has problems, or names a calibration document that cannot be read or is empty.
    """
    document = read_document(path)
    system = check(System, document)
    calibration = path.parent / system.calibration
    line = document.line_of(("calibration",))
    try:
        text = read_text(calibration)
    except (OSError, ValueError) as problem:
        known = {OSError: getattr(problem, "strerror", ""), UnicodeDecodeError: "no UTF-8 text"}
        why = next((text for kind, text in known.items() if isinstance(problem, kind)), str(problem))
        raise ConfigError(
            f"{path}:{line}: calibration: {calibration}: {why}", "name a Markdown file beside the description"
        ) from problem
    if not text.strip() or PLACEHOLDER in text:
        raise ConfigError(
            f"{calibration}: {'empty' if not text.strip() else f'still {PLACEHOLDER}'}",
            "write how the weights were calibrated, or that none were",
        )
    return system, text
