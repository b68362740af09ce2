"""A tiny target, text for it, and a head that fits it."""

from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM

from resispec.models.distill.corpus import Document
from resispec.models.distill.features import FeatureStore, extract_features
from resispec.models.head.config import HeadConfig, TargetFingerprint
from resispec.models.head.module import HeadModule

VOCAB, HIDDEN = 30, 16


@pytest.fixture(scope="session")
def target() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    model = LlamaForCausalLM(config)
    model.requires_grad_(False).eval()
    torch.nn.init.normal_(model.lm_head.weight, std=0.5)  # laws far from flat, so that there is much to learn
    return model


@pytest.fixture(scope="session")
def documents() -> list[Document]:
    """Of lengths 2 to 41; even ones begin with a prompt of a third."""
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randint(0, VOCAB, (length,), generator=generator).tolist() for length in range(2, 42)]
    return [Document(tuple(ids), 0 if len(ids) % 2 else len(ids) // 3) for ids in drawn]


@pytest.fixture(scope="session")
def store(
    target: LlamaForCausalLM, documents: list[Document], tmp_path_factory: pytest.TempPathFactory
) -> FeatureStore:
    folder: Path = tmp_path_factory.mktemp("features")
    return extract_features(target, documents, folder, Console(quiet=True))


@pytest.fixture
def head() -> HeadModule:
    torch.manual_seed(2)
    marks = TargetFingerprint("tiny", VOCAB, HIDDEN, "-", (0.0,))
    return HeadModule(HeadConfig(HIDDEN, 4, 2, 4, 24, 1e4, 1e-6, 64, 12, marks))
