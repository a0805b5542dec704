"""Models of other people: without a tokenizer, of images, of sounds."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import numpy as np
import pytest
import torch

import howsmooth as package
from tests import reasons
from tests.tolerances import FLOAT32, at_most, close

RATE = 16_000
VISION = dict(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8
)
TEXT = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=30)


def save(folder: Path, network, processor) -> str:
    network.eval().save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    """Tiny random checkpoints with their processors."""
    import transformers as t

    root = tmp_path_factory.mktemp("models")
    size = {"height": 16, "width": 16}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        clip = t.CLIPConfig(vision_config=VISION, text_config=TEXT, projection_dim=8)
        whisper = t.WhisperConfig(
            d_model=16,
            encoder_layers=2,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            num_mel_bins=8,
            max_source_positions=50,
            vocab_size=30,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
        )
        wav2vec2 = t.Wav2Vec2Config(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            conv_dim=(8, 8),
            conv_kernel=(40, 16),
            conv_stride=(40, 16),
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
            vocab_size=30,
        )
        return {
            "vit": save(root / "vit", t.ViTModel(t.ViTConfig(**VISION)), t.ViTImageProcessor(size=size)),
            "dinov2": save(
                root / "dinov2", t.Dinov2Model(t.Dinov2Config(**VISION, mlp_ratio=2)), t.ViTImageProcessor(size=size)
            ),
            "clip": save(
                root / "clip", t.CLIPModel(clip), t.CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=size)
            ),
            "whisper": save(
                root / "whisper", t.WhisperModel(whisper), t.WhisperFeatureExtractor(feature_size=8, chunk_length=1)
            ),
            "wav2vec2": save(root / "wav2vec2", t.Wav2Vec2Model(wav2vec2), t.Wav2Vec2FeatureExtractor()),
        }


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    image = pytest.importorskip("PIL.Image", reason=reasons.PILLOW)
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(3):
        levels = np.random.default_rng(number).integers(0, 255, (20, 24, 3), dtype=np.uint8)
        image.fromarray(levels).save(folder / f"{number}.png")
    return folder


def write_wave(path: Path, samples: np.ndarray, rate: int = RATE, width: int = 2) -> None:
    """Write samples (t,) or (t, channels) from −1 to 1 as PCM."""
    with wave.open(str(path), "wb") as stream:
        stream.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        stream.setsampwidth(width)
        stream.setframerate(rate)
        if width == 1:
            stream.writeframes((128 + 127 * samples).astype(np.uint8).tobytes())
        else:
            integers = (samples * (2 ** (8 * width - 1) - 1)).astype("<i4")
            stream.writeframes(integers.reshape(-1, 1).view(np.uint8)[:, :width].tobytes())


@pytest.fixture(scope="module")
def recordings(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    time = np.arange(RATE // 2) / RATE
    write_wave(folder / "a.wav", 0.5 * np.sin(2 * np.pi * 220 * time))
    write_wave(folder / "b.wav", 0.5 * np.sin(2 * np.pi * 330 * time[: RATE // 4]))
    return folder


def records(result) -> list[dict]:
    assert result.code == 0, result.err
    return [json.loads(line) for line in result.out.splitlines()]


def test_a_model_without_a_tokenizer_is_measured_on_random_ids(howsmooth, bare):
    result = howsmooth(f"measure {bare} --lengths 8,16 --samples 2 --layers 1 --json -")
    found = records(result)
    assert "has no tokenizer: random token ids are measured" in result.err and "--tokenizer NAME" in result.err
    assert len(found) == 4 and {record["inputs"] for record in found} == {"ids"}
    assert all(record["top_tokens"][0]["token"].startswith("#") for record in found)
    (at_16,) = (record for record in found if record["n"] == 16 and record["sample"] == 0)
    model = package.load(bare)
    ids = [int(word.removeprefix("#")) for word in at_16["words"]]
    expected = package.local_lipschitz(model.attention(1), model.inputs(ids, 1)).value
    assert close(at_16["value"], expected, FLOAT32)


def test_the_same_in_python_with_a_warning(bare):
    with pytest.warns(UserWarning, match="has no tokenizer"):
        found = package.measure(bare, lengths=[8], samples=1, layers=[0])
    assert found[0]["inputs"] == "ids"


def test_the_first_ids_of_a_longer_draw_are_those_of_a_shorter_one(bare):
    from howsmooth.questions.inputs import IdInputs
    from howsmooth.questions.spec import spec_of

    inputs = IdInputs(package.load(bare), spec_of({"lengths": [8, 64]}))
    assert inputs.chunk(8, 1).ids.tolist() == inputs.chunk(64, 1).ids[:8].tolist() != inputs.chunk(8, 0).ids.tolist()


def test_ids_run_through_any_map(howsmooth, tiny):
    (record,) = records(howsmooth(f"measure {tiny} --inputs ids --map model --lengths 8 --samples 1 --json -"))
    assert (record["inputs"], record["map"], record["text"]) == ("ids", "model", "random token ids")


@pytest.mark.parametrize("name", ["vit", "dinov2", "clip"])
def test_images_of_a_folder(howsmooth, folders, pictures, name):
    found = records(howsmooth(f"measure {folders[name]} --images {pictures} --layers 0 --json -"))
    assert [record["sample"] for record in found] == [0, 1, 2] and {record["n"] for record in found} == {5}
    model = package.load(folders[name], part="vision")
    at = model.map_at(model.images(pictures)[1], 0)
    assert close(found[1]["value"], package.local_lipschitz(at.f, at.x).value, FLOAT32)
    assert found[1]["text"] == f"images of {pictures.name}"
    # Of 5 tokens, 4 are patches of an image of 8 by 8 pixels; the first is the class token.
    tops = {top["position"]: top["token"] for record in found for top in record["top_tokens"]}
    assert tops and all(token == ("patch" if position else "[CLS]") for position, token in tops.items())
    assert model.leading_tokens == ["[CLS]"]


def test_one_image_and_generated_images(howsmooth, folders, pictures):
    (record,) = records(
        howsmooth(f"measure {folders['vit']} --images {pictures / '1.png'} --map layer --layers 1 --json -")
    )
    assert record["map"] == "layer" and record["text"] == "images of 1.png"
    result = howsmooth(f"measure {folders['vit']} --layers 0 --samples 2 --json -")
    assert len(records(result)) == 2 and "takes images: generated ones are measured" in result.err


@pytest.mark.parametrize("name", ["whisper", "wav2vec2"])
def test_sounds_of_a_folder(howsmooth, folders, recordings, name):
    found = records(howsmooth(f"measure {folders[name]} --audio {recordings} --layers 1 --json -"))
    model = package.load(folders[name])
    made = model.sounds(recordings)
    at = model.map_at(made[0], 1)
    assert len(found) == 2 and found[0]["n"] == len(at.x) and found[0]["top_tokens"][0]["token"] == "frame"
    assert close(found[0]["value"], package.local_lipschitz(at.f, at.x).value, FLOAT32)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_samples_of_a_wave_file(tmp_path, width):
    from howsmooth.models.inputs import read_wave

    samples = 0.9 * np.sin(np.arange(200) * 0.1)
    write_wave(tmp_path / "mono.wav", samples, width=width)
    write_wave(tmp_path / "stereo.wav", np.stack([samples, 0 * samples], -1), width=width)
    tolerance = 2.0 ** (2 - 8 * width) + 1e-6
    assert at_most(np.abs(read_wave(tmp_path / "mono.wav", RATE) - samples).max(), tolerance)
    assert at_most(np.abs(read_wave(tmp_path / "stereo.wav", RATE) - samples / 2).max(), tolerance)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("measure {vit} --images {recordings}", "expected 1 image in"),
        ("measure {vit} --images {pictures} --samples 4", "expected 4 images in"),
        ("measure {vit} --images {pictures} --lengths 8", "expected no lengths (--lengths) with images"),
        ("measure {vit} --inputs ids", "expected images for"),
        ("measure {whisper} --images {pictures}", "which takes audio"),
        ("measure {wav2vec2} --audio {pictures}/0.png", "expected a WAV file with PCM samples"),
        ("measure {wav2vec2} --audio {slow}", "expected a sampling rate of 16000 Hz, got 8000 Hz"),
        ("measure {clip}", "(--part vision or text)"),
        ("bound {vit}", "a family with an adapter"),
        ("attack ball {vit}", "a family with an adapter"),
        ("meanfield splitting {vit}", "a family with an adapter"),
        ("flow model {vit}", "expected a model that reads text"),
    ],
)
def test_errors_are_one_line(howsmooth, folders, pictures, recordings, tmp_path, line, message):
    write_wave(tmp_path / "slow.wav", np.zeros(80), rate=8000)
    paths = {"pictures": pictures, "recordings": recordings, "slow": tmp_path / "slow.wav"}
    result = howsmooth(line.format(**folders, **paths))
    (error,) = (row for row in result.err.splitlines() if row.startswith("howsmooth: ") and "note:" not in row)
    assert result.code == 2 and message in error


def test_a_plan_needs_no_text(howsmooth, tiny, bare, folders, pictures):
    assert "random token ids are measured" in howsmooth(f"plan {bare} --lengths 16 --samples 1").err
    result = howsmooth(f"plan {tiny} --lengths 64 --samples 10000 --layers 0")
    assert result.code == 0 and "the embedded text is too short for n = 64: random token ids are timed" in result.err
    result = howsmooth(f"plan {folders['vit']} --images {pictures} --layers 0")
    assert result.code == 0 and "about" in result.out
