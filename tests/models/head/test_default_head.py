"""The head that ships with the package."""

from importlib.resources import as_file, files
from pathlib import Path

import pytest
import torch

from resispec.models.head.checkpoint import load_head
from resispec.models.head.fingerprint import check_head
from resispec.models.load import load_causal, resolve

HEAD = files("resispec.models") / "assets" / "smollm2-135m-instruct-head"


def test_it_loads_and_is_small() -> None:
    with as_file(HEAD) as folder:
        module, vocab_ids = load_head(folder)
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
    assert size < 20_000_000
    assert len(vocab_ids) == 8192
    assert module.config.target.name == "SmolLM2-135M-Instruct"
    for name, value in module.state_dict().items():
        assert torch.isfinite(value).all(), name


def test_its_card_has_figures_for_three_levels() -> None:
    rows = [
        line for line in (HEAD / "README.md").read_text().splitlines() if line[:3] in ("| 1", "| 2", "| 3")
    ]
    figures = [[float(cell) for cell in row.split("|")[2:-1]] for row in rows]
    assert [len(row) for row in figures] == [5, 5, 5]
    assert all(0 < figure < 1 for row in figures for figure in row)
    assert figures[0][0] > figures[1][0] > figures[2][0] > 0.3


@pytest.mark.slow
def test_it_belongs_to_the_default_target_and_drafts_for_it() -> None:
    """Its first choice is what the target says, in more than three tokens of ten."""
    target, tokenizer = load_causal(
        resolve("default"), device=torch.device("cpu"), dtype=torch.float32, attn_implementation="sdpa"
    )
    with as_file(HEAD) as folder:
        module, vocab_ids = load_head(folder, dtype=torch.float32)
    check_head(module.config, target, tokenizer)
    messages = [{"role": "user", "content": "Why is the sky blue?"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
    ids = target.generate(prompt, max_new_tokens=64, do_sample=False, pad_token_id=2)
    with torch.no_grad():
        out = target.model(ids, output_hidden_states=True)
        inputs = [out.hidden_states[number] for number in module.config.target_layers]
        hidden = module.joined(out.last_hidden_state, torch.cat(inputs, dim=-1))
        read = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], dim=1)
        causal = torch.nn.functional.scaled_dot_product_attention

        def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return causal(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)

        states = module(target.model.embed_tokens(ids), read, torch.arange(ids.shape[1])[None], attention)
        drafted = vocab_ids[(states[0] @ target.lm_head.weight[vocab_ids].T).argmax(-1)]
    first = prompt.shape[1]
    hits = (drafted[first - 1 : -1] == ids[0, first:]).float().mean()
    assert hits > 0.3
