"""Conversion of GGUF files into model folders.

GGUF files take long to load, so each is dequantised once, into a folder of the cache named by the file's hash. A
manifest (`complete.json`, written last) has the checksum of every file: a damaged folder is detected and rebuilt.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers.processors import TemplateProcessing
from transformers import AutoModel, AutoTokenizer

from howsmooth.errors import InputError, first_line
from howsmooth.extras import require
from howsmooth.models.cache import building_folder, cache_root
from howsmooth.models.memory import free_memory
from howsmooth.models.network import quiet_transformers
from howsmooth.models.weights import check_counts, check_fits

_FORMAT = 3
_MANIFEST = "complete.json"


@dataclass(frozen=True)
class ConvertedModel:
    """A model folder made from a GGUF file.

    Attributes:
        folder: The folder, with config, safetensors and tokenizer.
        sha256: The hash of the GGUF file.
        quantisation: The quantisation of the GGUF file, such as Q4_K_M.
    """

    folder: Path
    sha256: str
    quantisation: str

    @property
    def weights(self) -> str:
        """The weights in words, for records."""
        plain = self.quantisation in ("F64", "F32", "F16", "BF16")
        return f"{self.quantisation} GGUF" + ("" if plain else ", dequantised")


def convert_gguf(file: Path, cache_dir: str | os.PathLike[str] | None = None) -> ConvertedModel:
    """Return the model folder of a GGUF file; convert the file if the cache has no intact folder.

    Raises:
        InputError: The file does not exist or cannot be converted, or the cache folder is not writable.
    """
    if not file.is_file():
        raise InputError(f"expected a GGUF file, got {str(file)!r}, which does not exist; check the path")
    check_fits(file.stat().st_size, free_memory(), file.name, "the file, which is dequantised")
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise InputError(f"expected a GGUF file, got {str(file)!r} without the GGUF mark; check the file")
        stream.seek(0)
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()

    final = cache_root(cache_dir) / "gguf" / sha256
    manifest = _read_manifest(final)
    if manifest is None:
        require("gguf", "accelerate", purpose="to read GGUF files")
        try:
            with building_folder(final.parent, f"{sha256[:12]}.") as building:
                manifest = _convert(file, building)
                _move_into_place(building, final)
        except OSError as error:
            raise _unwritable(final.parent, error) from error
    return ConvertedModel(final, sha256, manifest["quantisation"])


def _convert(file: Path, folder: Path) -> dict[str, Any]:
    """Write config, float32 weights and tokenizer of `file` into `folder`, then the manifest, which is returned."""
    # The dequantisation loop writes a progress bar to stderr that transformers' settings do not disable.
    with quiet_transformers(), contextlib.redirect_stderr(io.StringIO()), _alone(file) as source:
        try:
            _check_declared_size(file)
            quantisation, declared = _quantisation(file), _declared_special_tokens(file)
            network, report = AutoModel.from_pretrained(
                source,
                gguf_file=file.name,
                dtype=torch.float32,
                output_loading_info=True,
                local_files_only=True,
                trust_remote_code=False,
            )
            if report["missing_keys"]:  # transformers would use random numbers instead
                raise ValueError(f"no weights for {min(report['missing_keys'])}")
            tokenizer = AutoTokenizer.from_pretrained(
                source, gguf_file=file.name, local_files_only=True, trust_remote_code=False
            )
        except (InputError, MemoryError):
            raise
        except Exception as error:  # for a damaged file the readers may raise anything
            reason = first_line(error)
            raise InputError(
                f"expected a complete GGUF file of a supported model, got {str(file)!r}: {reason}; "
                "fetch the file again, or give a model folder"
            ) from error
        config = network.config
        if hasattr(config, "quantization_config"):  # the folder has plain float32 weights
            del config.quantization_config
        config.save_pretrained(folder)
        _set_special_tokens(tokenizer, declared)
        tokenizer.save_pretrained(folder)
        saved = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if _adds_other_tokens(saved, declared):
            raise InputError(
                f"expected a tokenizer that adds special tokens as {str(file)!r} says ({declared}), got one "
                "that does not; name another: --tokenizer on the command line, tokenizer= in load()"
            )
    weights = {key: value.contiguous() for key, value in network.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    manifest = {
        "format": _FORMAT,
        "quantisation": quantisation,
        "checksums": {path.name: _checksum(path) for path in sorted(folder.iterdir())},
    }
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1))
    return manifest


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[str]:
    """Yield a temporary folder with nothing but a link to the file.

    Transformers also reads a config and a tokenizer that lie beside a GGUF file. They may be of another model, and the
    result is cached under the hash of the GGUF file alone.
    """
    with tempfile.TemporaryDirectory(prefix="howsmooth-gguf-") as folder:
        link = Path(folder) / file.name
        try:
            link.symlink_to(file.resolve())
        except OSError:  # Windows: links need a privilege
            shutil.copyfile(file, link)
        yield folder


def _move_into_place(building: Path, final: Path) -> None:
    """Rename a complete folder, even if other processes do the same at the same time."""
    try:
        os.rename(building, final)
        return
    except OSError:
        if not final.exists():
            raise
    if _read_manifest(final) is not None:
        return  # another process was first, and its folder is intact
    damaged = Path(tempfile.mkdtemp(prefix=f"{final.name[:12]}.damaged-", dir=final.parent))
    try:
        # Two processes may get here: the second finds no folder to move, or an intact one at the destination.
        with contextlib.suppress(FileNotFoundError):
            os.rename(final, damaged / "folder")
        try:
            os.rename(building, final)
        except OSError:
            if _read_manifest(final) is None:
                raise
    finally:
        shutil.rmtree(damaged, ignore_errors=True)


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of an intact folder, None if the folder does not exist, is incomplete or damaged."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
        intact = (
            manifest["format"] == _FORMAT
            and isinstance(manifest["quantisation"], str)
            and all(_checksum(folder / name) == checksum for name, checksum in manifest["checksums"].items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return manifest if intact else None


def _checksum(path: Path) -> str:
    """Return size and CRC-32, which detect accidental damage and are several times faster than a hash."""
    crc = 0
    with path.open("rb") as stream:
        while block := stream.read(1 << 24):
            crc = zlib.crc32(block, crc)
    return f"{path.stat().st_size}:{crc:08x}"


def _quantisation(file: Path) -> str:
    """Return the name of the file's quantisation, such as Q4_K_M; if it has none, the type of most weights."""
    from gguf import GGUFReader, LlamaFileType

    reader = GGUFReader(file)
    declared = reader.fields.get("general.file_type")
    with contextlib.suppress(ValueError):  # a number that this version of gguf does not have
        if declared is not None and (name := LlamaFileType(int(declared.contents())).name) != "GUESSED":
            return name.removeprefix("MOSTLY_").removeprefix("ALL_")
    elements: Counter[str] = Counter()
    for tensor in reader.tensors:
        elements[tensor.tensor_type.name] += int(tensor.n_elements)
    return elements.most_common(1)[0][0]


def _check_declared_size(file: Path) -> None:
    """Raise InputError if the file declares more layers than any model has, or weights that do not fit in memory."""
    from gguf import GGUFReader

    reader = GGUFReader(file)
    numbers = {key: field.contents() for key, field in reader.fields.items() if key.endswith("_count")}
    check_counts({key.removesuffix("_count"): value for key, value in numbers.items()}, file.name)
    weights = sum(int(tensor.n_elements) for tensor in reader.tensors)
    check_fits(4 * weights, free_memory(), file.name, f"its {weights:,} weights in float32")


def _declared_special_tokens(file: Path) -> dict[str, bool]:
    """Return whether the file declares that "bos" and "eos" are added to a text; without those it does not mention."""
    from gguf import GGUFReader

    fields = GGUFReader(file).fields
    return {
        name: bool(fields[key].contents())
        for name in ("bos", "eos")
        if (key := f"tokenizer.ggml.add_{name}_token") in fields
    }


def _adds_other_tokens(tokenizer: Any, declared: dict[str, bool]) -> bool:
    """Return whether the tokenizer adds other special tokens than the file declares."""
    ids = tokenizer("a")["input_ids"]
    ends = {"bos": (ids[:1], tokenizer.bos_token_id), "eos": (ids[-1:], tokenizer.eos_token_id)}
    return any((ends[name][0] == [ends[name][1]]) != added for name, added in declared.items())


def _set_special_tokens(tokenizer: Any, declared: dict[str, bool]) -> None:
    """Make the tokenizer add special tokens as the file declares; transformers reads only the vocabulary."""
    if not _adds_other_tokens(tokenizer, declared):
        return
    added = {
        name: token
        for name, token in (("bos", tokenizer.bos_token), ("eos", tokenizer.eos_token))
        if declared.get(name)
    }
    one, two = (
        [*([added["bos"]] if "bos" in added else []), part, *([added["eos"]] if "eos" in added else [])]
        for part in ("$A", "$B:1")
    )
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=one,
        pair=[*one, *two],
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in added.values()],
    )
    for name in declared:
        if hasattr(tokenizer, f"add_{name}_token"):  # some classes use it when they are loaded again
            setattr(tokenizer, f"add_{name}_token", declared[name])


def _unwritable(folder: Path, error: OSError) -> InputError:
    return InputError(
        f"expected a writable cache folder, got {str(folder)!r} ({error.strerror or error}); "
        "set HOWSMOOTH_CACHE, or cache_dir= in load(), to a folder with room for the dequantised weights"
    )
