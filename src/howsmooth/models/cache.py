"""Folders of the cache: models that are converted once and kept.

A folder is complete or absent: it is built beside its final place (`building_folder`) and renamed into it, and gone if
its process dies. A GGUF file takes long to load, so it is dequantised once into a folder named by the file's hash. A
seal (`complete.json`, written last) holds the checksum of every file, so a damaged folder is noticed and rebuilt.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import shutil
import tempfile
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from safetensors.torch import save_file
from tokenizers.processors import TemplateProcessing
from transformers import AutoModel, AutoTokenizer

from howsmooth.errors import InputError
from howsmooth.models.families import family_of
from howsmooth.models.network import quiet_transformers

try:
    import fcntl
except ImportError:  # not on Windows: what a dead process left is told by its age alone
    fcntl = None  # type: ignore[assignment]

_MARK = "building-"
_OLD = 24 * 3600.0  # seconds after which a folder without a lock was surely abandoned
_FORMAT = 2
_SEAL = "complete.json"


def cache_root(cache_dir: str | os.PathLike | None = None) -> Path:
    """Return the cache folder: the argument, else $HOWSMOOTH_CACHE, else ~/.cache/howsmooth."""
    chosen = cache_dir or os.environ.get("HOWSMOOTH_CACHE") or "~/.cache/howsmooth"
    return Path(chosen).expanduser()


@contextlib.contextmanager
def building_folder(parent: Path, prefix: str = "") -> Iterator[Path]:
    """Make a new folder in `parent` to build in, and remove it afterwards unless it was renamed.

    A lock beside the folder tells other processes that it is in use. The system releases the lock when this process
    ends, however that happens: the next process that builds something removes the folder.
    """
    parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(parent)
    folder = parent / f"{prefix}{_MARK}{uuid.uuid4().hex[:12]}"
    lock = _lock_of(folder)
    with lock.open("w") as stream:
        _locked(stream)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


def remove_abandoned(parent: Path) -> None:
    """Remove folders in `parent` whose process died while it was building."""
    for folder in parent.glob(f"*{_MARK}*"):
        lock = _lock_of(folder)
        if folder.suffix == lock.suffix or not folder.is_dir():
            continue
        with contextlib.suppress(OSError):
            if not lock.exists():
                if time.time() - folder.stat().st_mtime > _OLD:
                    shutil.rmtree(folder)
                continue
            with lock.open("r+") as stream:
                if _locked(stream):
                    shutil.rmtree(folder)
                    lock.unlink(missing_ok=True)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(folder.name + ".lock")


def _locked(stream: IO[str]) -> bool:
    """Take the lock if it is free; whether it was."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class Converted:
    """A plain model folder made from a GGUF file."""

    folder: Path
    sha256: str
    quantisation: str

    @property
    def weights(self) -> str:
        plain = self.quantisation in ("F64", "F32", "F16", "BF16")
        return f"{self.quantisation} GGUF" + ("" if plain else ", dequantised")


def convert_once(file: Path, cache_dir: str | os.PathLike | None = None) -> Converted:
    """Return the converted folder of a GGUF file, converting it only if no sound folder is there."""
    if not file.is_file():
        raise InputError(f"expected a GGUF file, got {str(file)!r}, which does not exist; check the path")
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise InputError(f"expected a GGUF file, got {str(file)!r} without the GGUF mark; check the file")
        stream.seek(0)
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()

    final = cache_root(cache_dir) / "gguf" / sha256
    seal = _read_seal(final)
    if seal is None:
        _require_extra()
        try:
            with building_folder(final.parent, f"{sha256[:12]}.") as building:
                seal = _convert(file, building)
                _put_in_place(building, final)
        except OSError as error:
            raise _unwritable(final.parent, error) from error
    return Converted(final, sha256, seal["quantisation"])


def _convert(file: Path, folder: Path) -> dict:
    """Write config, float32 weights and tokenizer of `file` into `folder`, then the seal."""
    source, name = str(file.parent), file.name
    # The dequantisation loop draws a bar of its own on stderr, which transformers' settings do not reach.
    with quiet_transformers(), contextlib.redirect_stderr(io.StringIO()):
        try:
            quantisation, frame = _quantisation(file), _declared_frame(file)
            network, report = AutoModel.from_pretrained(
                source, gguf_file=name, dtype=torch.float32, output_loading_info=True
            )
            if report["missing_keys"]:  # transformers would go on with random numbers in their place
                raise ValueError(f"no weights for {min(report['missing_keys'])}")
            tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
        except MemoryError:
            raise
        except Exception as error:  # the readers raise anything at all on a damaged file
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise InputError(
                f"expected a complete GGUF file of a supported model, got {str(file)!r}: {reason}; "
                "fetch the file again, or give a model folder"
            ) from error
        config = network.config
        if hasattr(config, "quantization_config"):  # the folder holds plain float32, nothing is left to undo
            del config.quantization_config
        family_of(config, str(file))
        config.save_pretrained(folder)
        _add_as_declared(tokenizer, frame)
        tokenizer.save_pretrained(folder)
        if _differing(AutoTokenizer.from_pretrained(folder), frame):
            raise InputError(
                f"expected a tokenizer that adds special tokens as {str(file)!r} says ({frame}), got one "
                "that does not; give another with tokenizer="
            )
    weights = {key: value.contiguous() for key, value in network.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    seal = {
        "format": _FORMAT,
        "quantisation": quantisation,
        "checksums": {path.name: _checksum(path) for path in sorted(folder.iterdir())},
    }
    (folder / _SEAL).write_text(json.dumps(seal, indent=1))
    return seal


def _put_in_place(building: Path, final: Path) -> None:
    """Rename a finished folder into its place, whoever else is doing the same."""
    try:
        os.rename(building, final)
        return
    except OSError:
        if not final.exists():
            raise
    if _read_seal(final) is not None:
        return  # another process was first, and its folder is sound
    damaged = Path(tempfile.mkdtemp(prefix=f"{final.name[:12]}.damaged-", dir=final.parent))
    try:
        # Two processes may both come here; the loser finds nothing to move, or a sound folder in its way.
        with contextlib.suppress(FileNotFoundError):
            os.rename(final, damaged / "folder")
        try:
            os.rename(building, final)
        except OSError:
            if _read_seal(final) is None:
                raise
    finally:
        shutil.rmtree(damaged, ignore_errors=True)


def _read_seal(folder: Path) -> dict | None:
    """Return the seal of a sound folder, None for one that is absent, incomplete or damaged."""
    try:
        seal = json.loads((folder / _SEAL).read_text())
        sound = (
            seal["format"] == _FORMAT
            and isinstance(seal["quantisation"], str)
            and all(_checksum(folder / name) == checksum for name, checksum in seal["checksums"].items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return seal if sound else None


def _checksum(path: Path) -> str:
    """Return size and CRC-32: enough against accidents, and several times faster than a hash."""
    crc = 0
    with path.open("rb") as stream:
        while block := stream.read(1 << 24):
            crc = zlib.crc32(block, crc)
    return f"{path.stat().st_size}:{crc:08x}"


def _quantisation(file: Path) -> str:
    """Return the name of the file's quantisation, such as Q4_K_M; where it has none, the type of most weights."""
    from gguf import GGUFReader, LlamaFileType

    reader = GGUFReader(file)
    declared = reader.fields.get("general.file_type")
    with contextlib.suppress(ValueError):  # a number that this version of gguf does not know
        if declared is not None and (name := LlamaFileType(int(declared.contents())).name) != "GUESSED":
            return name.removeprefix("MOSTLY_").removeprefix("ALL_")
    elements: Counter[str] = Counter()
    for tensor in reader.tensors:
        elements[tensor.tensor_type.name] += int(tensor.n_elements)
    return elements.most_common(1)[0][0]


def _declared_frame(file: Path) -> dict[str, bool]:
    """What the file says of special tokens around a text: whether "bos" and "eos" are added, where it says so."""
    from gguf import GGUFReader

    fields = GGUFReader(file).fields
    return {
        name: bool(fields[key].contents())
        for name in ("bos", "eos")
        if (key := f"tokenizer.ggml.add_{name}_token") in fields
    }


def _differing(tokenizer, frame: dict[str, bool]) -> bool:
    """Whether the tokenizer adds other special tokens than the file says."""
    ids = tokenizer("a")["input_ids"]
    ends = {"bos": (ids[:1], tokenizer.bos_token_id), "eos": (ids[-1:], tokenizer.eos_token_id)}
    return any((ends[name][0] == [ends[name][1]]) != added for name, added in frame.items())


def _add_as_declared(tokenizer, frame: dict[str, bool]) -> None:
    """Make the tokenizer add special tokens as the file says; transformers reads the vocabulary alone."""
    if not _differing(tokenizer, frame):
        return
    added = {
        name: token for name, token in (("bos", tokenizer.bos_token), ("eos", tokenizer.eos_token)) if frame.get(name)
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
    for name in frame:
        if hasattr(tokenizer, f"add_{name}_token"):  # some classes make their own frame of it when loaded again
            setattr(tokenizer, f"add_{name}_token", frame[name])


def _require_extra() -> None:
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"expected the packages that read GGUF files, got no {' and no '.join(missing)}; "
            "run: pip install 'howsmooth[gguf]'"
        )


def _unwritable(folder: Path, error: OSError) -> InputError:
    return InputError(
        f"expected a writable cache folder, got {str(folder)!r} ({error.strerror or error}); "
        "give cache_dir=, or set HOWSMOOTH_CACHE to a folder with room for the dequantised weights"
    )
