"""Stored hidden states: those of the target, whatever the batching and the interruptions."""

from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import LlamaForCausalLM

from resispec.models.base import ModelError
from resispec.models.distill import features
from resispec.models.distill.corpus import Document
from resispec.models.distill.features import FeatureStore, extract_features

QUIET = Console(quiet=True)


def test_states_are_what_the_output_matrix_reads(
    target: LlamaForCausalLM, documents: list[Document], store: FeatureStore
) -> None:
    assert len(store) == len(documents)
    with torch.no_grad():
        for row, document in zip(store.documents.tolist(), documents, strict=True):
            offset, length, start = row
            assert store.tokens[offset : offset + length].tolist() == list(document.token_ids)
            assert start == document.output_start
            logits = target(torch.tensor([document.token_ids])).logits[0]
            ours = store.hidden[offset : offset + length].float() @ target.lm_head.weight.T
            torch.testing.assert_close(ours, logits, rtol=0, atol=0.05)  # bfloat16 on disk


def test_what_goes_into_layers_is_kept_beside(
    target: LlamaForCausalLM, documents: list[Document], store: FeatureStore, tmp_path: Path
) -> None:
    kept = extract_features(target, documents, tmp_path, QUIET, layers=(1, 0))
    assert kept.layers is not None
    assert store.layers is None
    assert kept.hidden.equal(store.hidden)
    for row, document in zip(kept.documents.tolist(), documents, strict=True):
        offset, length, _ = row
        with torch.no_grad():
            states = target(torch.tensor([document.token_ids]), output_hidden_states=True).hidden_states
        expected = torch.cat([states[1][0], states[0][0]], dim=-1)
        torch.testing.assert_close(kept.layers[offset : offset + length].float(), expected, rtol=0, atol=0.02)
    assert not any(layer._forward_pre_hooks for layer in target.model.layers)  # the target is as it was
    # A store without layers, or with others, is another one; of the same it is not computed again.
    again = extract_features(target, documents, tmp_path, QUIET, layers=(0,))
    assert again.layers is not None
    assert again.layers.shape[1] == target.config.hidden_size
    with pytest.raises(ModelError, match="cut off"):
        FeatureStore.open(tmp_path, target.config.hidden_size, num_layers=2)


def test_a_layer_that_is_not_there_is_refused(
    target: LlamaForCausalLM, documents: list[Document], tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=r"reads layers \[0, 2\], but the target has 2"):
        extract_features(target, documents, tmp_path, QUIET, layers=(0, 2))


def test_an_interrupted_run_goes_on(
    target: LlamaForCausalLM,
    documents: list[Document],
    store: FeatureStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(features, "_BATCH_TOKENS", 100)
    calls: list[int] = []
    write = features._write_batch

    def interrupted(*given: Any) -> None:
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(len(given[2]))
        write(*given)

    monkeypatch.setattr(features, "_write_batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        extract_features(target, documents, tmp_path, QUIET, "tiny")
    rest: list[int] = []

    def counted(*given: Any) -> None:
        rest.append(len(given[2]))
        write(*given)

    monkeypatch.setattr(features, "_write_batch", counted)
    again = extract_features(target, documents, tmp_path, QUIET, "tiny")
    assert sum(calls) + sum(rest) == len(documents)
    torch.testing.assert_close(again.hidden, store.hidden, rtol=0, atol=0.02)
    assert extract_features(target, documents, tmp_path, QUIET, "tiny").hidden.equal(again.hidden)
    assert sum(calls) + sum(rest) == len(documents)  # nothing was left to do
    extract_features(target, documents, tmp_path, QUIET, "another target")
    assert sum(calls) + sum(rest) == 2 * len(documents)


def test_a_store_that_is_not_there_or_cut_off_is_refused(
    target: LlamaForCausalLM, documents: list[Document], tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="no feature store"):
        FeatureStore.open(tmp_path, 16)
    extract_features(target, documents[:3], tmp_path, QUIET)
    with pytest.raises(ModelError, match="cut off"):
        FeatureStore.open(tmp_path, 17)


def test_an_empty_corpus_is_refused(target: LlamaForCausalLM, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no document"):
        extract_features(target, [], tmp_path, QUIET)
