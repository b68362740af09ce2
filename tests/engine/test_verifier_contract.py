"""What every verifier promises beside its law: found by name, nothing read back to the host."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from resispec.engine.drawing import Drawing
from resispec.engine.proposers.children import propose
from resispec.engine.request import RequestError, SamplingParams
from resispec.engine.sampling.draw import Draw, draw_or_fall_back
from resispec.engine.sampling.penalties import SeenTokens
from resispec.engine.sampling.rows import sampling_rows
from resispec.engine.sampling.weights import NodeContext, target_law
from resispec.engine.verifiers.base import AnyVerifier, Decision, Links, Proposal, TargetLaw, TreeVerifier
from resispec.engine.verifiers.table import VERIFIERS, get
from resispec.engine.verifiers.walk import Topology, at_ends, walk
from resispec.models.device.base import Numbers
from resispec.models.device.cpu import host_tensor
from resispec.models.device.cuda import CudaDevice
from resispec.models.device.table import DEVICES


def test_found_by_name() -> None:
    for name, verifier in VERIFIERS.items():
        assert get(name) is verifier
        assert verifier.name == name
        assert verifier.exact == (name != "resispec-paper")
        assert verifier.drawing in verifier.fits
    with pytest.raises(RequestError, match="resispec, .*target") as caught:
        get("nonsense")
    assert caught.value.param == "speculation.verifier"


def decide(verifier: AnyVerifier, law: TargetLaw, proposal: Proposal, uniforms: Tensor) -> Decision:
    """Of nodes that have leaves below them, if anything."""
    rows, slots = proposal.tokens.shape
    if not isinstance(verifier, TreeVerifier):
        return verifier.decide(law, proposal, uniforms[:, : verifier.num_uniforms(slots)])
    nodes = torch.arange(rows, device=uniforms.device)
    links = Links(torch.full_like(proposal.tokens, -1), (nodes,), torch.ones_like(nodes, dtype=torch.bool))
    return verifier.decide_tree(law, proposal, links, uniforms)


def step(device: torch.device, verifier: AnyVerifier) -> Draw:
    """A step's device work: laws, children, decisions, walk, last token."""
    rows, vocab, slots, nodes = 4, 700, 3, 16
    params = SamplingParams(
        top_p=0.9, min_p=0.01, presence_penalty=1.0, min_tokens=2, logit_bias=((3, 1.0),), temperature=0.8
    )
    sampling = sampling_rows([params] * (nodes - 1) + [SamplingParams(temperature=0)], vocab, (2,), device)
    generator = torch.Generator().manual_seed(3)
    target_logits = torch.randn(nodes, vocab, generator=generator).to(device)
    seen = SeenTokens(
        torch.zeros(nodes - 1, 1, dtype=torch.int64, device=device),
        torch.zeros(nodes - 1, 1, device=device),
    )
    path = torch.full((nodes, 2), -1, device=device)
    context = NodeContext(path, torch.zeros(nodes, dtype=torch.int64, device=device), seen)
    laws = target_law(target_logits, sampling, context)
    uniforms = torch.rand(rows, slots, generator=generator, dtype=torch.float64).to(device)
    ones = torch.ones(rows, dtype=torch.int64, device=device)
    heads = ones if Drawing.HEAD_AND_TAIL in verifier.fits else 0 * ones
    proposal, _ = propose(
        target_logits[:rows], ones.float(), heads, 2 * ones, slots, 32, uniforms, drawing=verifier.drawing
    )
    law = laws.law.rows(torch.arange(rows, device=device))
    decision = decide(verifier, law, proposal, uniforms)
    assert isinstance(decision, Decision)
    children = torch.arange(rows, rows + rows * slots, device=device).view(rows, slots)
    expanded = torch.cat([torch.arange(rows, device=device), torch.full((nodes - rows,), -1, device=device)])
    topology = Topology(children, expanded, torch.arange(rows, device=device))
    walked = walk(topology, decision, max_depth=2)
    ended = laws.law.rows(walked.final)
    residual = verifier.residual(ended, *at_ends(proposal, decision, topology, walked))
    return draw_or_fall_back(residual, ended.weights.double(), uniforms[:, 0])


class MetaDevice(CudaDevice):
    """As a GPU, but its tensors have no memory to copy to."""

    def put(self, values: Numbers, dtype: torch.dtype | None = None) -> Tensor:
        return host_tensor(values, dtype).to(self.device)


@pytest.mark.parametrize("name", sorted(VERIFIERS))
def test_nothing_is_read_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meta tensors hold no values, so any read of one on the host raises."""
    monkeypatch.setitem(DEVICES, "meta", MetaDevice)
    drawn = step(torch.device("meta"), get(name))
    assert drawn.tokens.shape == (4,)
    with pytest.raises(RuntimeError):
        drawn.tokens.tolist()


@pytest.mark.parametrize("name", sorted(VERIFIERS))
def test_the_same_step_with_values(name: str) -> None:
    drawn = step(torch.device("cpu"), get(name))
    assert ((drawn.tokens >= 0) & (drawn.tokens < 700)).all()


@pytest.mark.parametrize("name", sorted(VERIFIERS))
def test_no_slots_and_no_nodes(name: str) -> None:
    """A batch without children: nothing is kept, and the residual is the target's law."""
    verifier = get(name)
    law = target_law(torch.randn(2, 9), sampling_rows([SamplingParams()] * 2, 9, (), torch.device("cpu"))).law
    for rows in (2, 0):
        count = torch.zeros(rows, dtype=torch.int64)
        proposal, _ = propose(
            torch.randn(rows, 9),
            count.float(),
            count,
            count,
            1,
            0,
            torch.zeros(rows, 1, dtype=torch.float64),
            drawing=verifier.drawing,
        )
        some = law.rows(torch.arange(rows))
        decided = decide(verifier, some, proposal, torch.zeros(rows, 1, dtype=torch.float64))
        assert decided.child.tolist() == [-1] * rows
        residual = verifier.residual(some, proposal, decided).dense()
        residual /= residual.sum(dim=1, keepdim=True)
        torch.testing.assert_close(residual, some.weights.double() / some.total[:, None])
