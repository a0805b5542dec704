"""Images and sounds: by the model's own processor, generated, or refused."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
import torch
from transformers import ViTImageProcessor, WhisperFeatureExtractor

from howsmooth import load
from howsmooth.errors import InputError
from howsmooth.models.inputs import _smooth_waves, smooth_images
from tests import reasons
from tests.tolerances import FLOAT32, close

from .zoo import ZOO


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vit")
    ZOO["vit"].network(torch.float32).save_pretrained(folder)
    ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(folder)
    return load(folder)


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whisper")
    ZOO["whisper_encoder"].network(torch.float32).save_pretrained(folder)
    # 10 frames of 160 samples, for the 5 positions of the tiny encoder
    WhisperFeatureExtractor(feature_size=6, sampling_rate=1600, chunk_length=1).save_pretrained(folder)
    return load(folder)


def test_a_folder_of_images(vit, tmp_path):
    image = pytest.importorskip("PIL.Image", reason=reasons.PILLOW)
    levels = np.linspace(0, 255, 20 * 30 * 3).reshape(20, 30, 3)
    image.fromarray(levels.astype(np.uint8)).save(tmp_path / "b.png")
    image.fromarray(255 - levels.astype(np.uint8)).save(tmp_path / "a.jpg")
    (tmp_path / "notes.txt").write_text("no image")
    made = vit.images(tmp_path)
    assert made.shape == (2, 3, 8, 8) and made.abs().max() <= 1.01
    assert made[0, 0, 0, 0] > 0 > made[1, 0, 0, 0]  # in the order of their names
    assert vit.map_at(made[0], 1).x.shape == (5, 16)
    assert close(vit.images(tmp_path, 1), made[:1], FLOAT32)
    with pytest.raises(InputError, match="expected 3 images"):
        vit.images(tmp_path, 3)
    (tmp_path / "c.png").write_bytes(b"broken")
    with pytest.raises(InputError, match=r"c.png"):
        vit.images(tmp_path)


def png(path, width, height, body=b""):
    """Write a PNG file of one bit per pixel with that header, whatever its body is."""
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", body), (b"IEND", b""))
    coded = (struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in chunks)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(coded))


@pytest.mark.parametrize("side", [60_000, 10_000])  # Pillow raises an exception of its own, or only warns
def test_images_too_large_to_unpack(vit, tmp_path, side):
    pytest.importorskip("PIL.Image", reason=reasons.PILLOW)
    png(tmp_path / "a.png", side, side)
    with pytest.raises(InputError, match=r"expected an image of at most [\d,]+ pixels, got more in .*a\.png"):
        vit.images(tmp_path)


def test_images_that_are_damaged_inside(vit, tmp_path):
    pytest.importorskip("PIL.Image", reason=reasons.PILLOW)
    png(tmp_path / "a.png", 8, 8, body=b"no deflated data")
    with pytest.raises(InputError, match=r"expected an image, got .*a\.png"):
        vit.images(tmp_path)


def test_generated_images_are_smooth_and_seeded(vit):
    made = vit.images(count=2, seed=1)
    assert made.shape == (2, 3, 8, 8)
    assert close(made, vit.images(count=2, seed=1), FLOAT32) and not close(made, vit.images(count=2, seed=2), FLOAT32)
    large = smooth_images(1, 224, 224)
    assert large.diff(dim=-1).abs().mean() < 0.05  # noise of variance 1 would have 1.1
    assert torch.allclose(large.std((-2, -1)), torch.ones(1, 3), atol=1e-3)


def test_a_generated_input_does_not_depend_on_how_many_there_are(vit, whisper):
    assert close(vit.images(count=5, seed=3)[:2], vit.images(count=2, seed=3), FLOAT32)
    assert close(whisper.sounds(count=5, seed=3)[:2], whisper.sounds(count=2, seed=3), FLOAT32)
    assert close(_smooth_waves(5, 800, 3)[:2], _smooth_waves(2, 800, 3), FLOAT32)


def test_sounds(whisper):
    assert whisper.sounds(count=2).shape == (2, 6, 10)
    wave = np.sin(np.arange(1600) * 0.1)
    made = whisper.sounds([wave, wave[:800]])
    assert made.shape == (2, 6, 10) and not close(made[0], made[1], FLOAT32)
    assert close(whisper.sounds(wave)[0], made[0], FLOAT32)
    assert whisper.map_at(made[0], 1).x.shape == (5, 16)
    for wrong in (np.zeros((2, 5)), np.array([]), np.array([np.nan])):
        with pytest.raises(InputError, match="mono sound"):
            whisper.sounds(wrong)


def test_invalid_inputs_are_refused(vit, whisper, tmp_path):
    bert = load(ZOO["bert"].network(torch.float32))
    for call, match in (
        (lambda: bert.images(), "expected a vision model"),
        (lambda: bert.sounds(), "a model that takes sounds, got 'bert'"),
        (lambda: vit.chunks("A text.", 4), "expected a text model, got .*, which takes vision"),
        (lambda: vit.images(tmp_path / "absent"), "expected a file or a folder of images"),
        (lambda: vit.images(count=0), "at least 1"),
        (lambda: vit.map_at([1, 2, 3], 0), "an image .* got list"),
        (lambda: vit.map_at(torch.zeros(8, 8), 0), r"got shape \(8, 8\)"),
        (lambda: vit.map_at(torch.full((3, 8, 8), torch.nan), 0), "finite"),
        (lambda: vit.map_at({}, 0), "by name"),
        (lambda: load(ZOO["vit"].network()).images(tmp_path, 1), "expected 1 image |without files"),
        (lambda: load(ZOO["whisper_decoder"].network(), part="decoder").map_at([5, 6], 0), "input_features"),
        (lambda: bert.map_at("A text.", 0), "token numbers or chunks"),
    ):
        with pytest.raises(InputError, match=match):
            call()
