"""What cannot be measured is refused, by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from resispec.engine.bench.prompts import PROMPT_SETS
from resispec.engine.bench.serving.launch import Peer
from resispec.engine.bench.settings import BenchSettings, Tree, parse_list, sweep_trees
from resispec.engine.config import ConfigError
from resispec.engine.tree import plan_shape


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"batch": ()}, "batch"),
        ({"batch": (0, 1)}, "batch"),
        ({"temperature": (-1.0,)}, "temperature"),
        ({"temperature": (float("nan"),)}, "temperature"),
        ({"prompts": ("poems",)}, "prompts"),
        ({"tokens": 1}, "tokens"),
        ({"repeats": 0}, "repeats"),
        ({"num_threads": 0}, "num_threads"),
        ({"quantization": "int3"}, "quantization"),
        ({"draft_quantization": "int4"}, "draft_quantization"),
        ({"draft_quantization": "int8", "draft": None}, "draft_quantization"),
        ({"draft": None, "trees": (Tree(4, 2),)}, "draft"),
        ({"draft": None, "verifiers": ("target",)}, "draft"),
        ({"trees": (Tree(4, 2),), "modes": ("auto",)}, "sweep"),
        ({"trees": (Tree(4, 2),), "tree": Tree(4, 2)}, "sweep"),
        ({"tree": Tree(0, 2)}, "nodes"),
        ({"tree": Tree(4, 0)}, "depth"),
        ({"peers": (Peer("vllm", "python"),), "tree": Tree(4, 2)}, "peer"),
        ({"modes": ("often",)}, "modes"),
        ({"forms": ("forced+slots",), "prompts": ("schema",)}, "forms"),
        ({"forms": ("none+forced",), "prompts": ("schema",)}, "forms"),
        ({"forms": ("none",), "prompts": ("schema", "chat")}, "forms"),
        ({"forms": ("none",), "prompts": ("schema",), "trees": (Tree(4, 2),)}, "sweep"),
        ({"draft": None, "proposers": ("draft+ngram",)}, "proposers"),
        ({"peers": (Peer("vllm", "python"),), "proposers": ("ngram",)}, "peer"),
        ({"intruder": 100, "batch": (1,)}, "intruder"),
        ({"assisted": True, "transformers": False}, "assisted"),
        ({"draft": None, "untrained": True}, "untrained"),
        ({"simulate": True, "verifiers": ("target",)}, "simulate"),
        ({"simulate": True, "proposers": ("draft+ngram",)}, "simulate"),
    ],
)
def test_bad_settings(changes, name):
    with pytest.raises(ConfigError) as caught:
        BenchSettings(**changes)
    assert caught.value.setting == name


def test_files_need_a_folder(tmp_path):
    BenchSettings(json=tmp_path / "figures.json")
    with pytest.raises(ConfigError, match="cannot be written"):
        BenchSettings(json=tmp_path / "missing" / "figures.json")


def test_one_tree_for_all():
    config = BenchSettings(tree=Tree(9, 3), proposers=("draft",)).engine_config(256, speculates=True)
    assert (config.max_tree_nodes, config.max_tree_depth) == (9, 3)


def test_lists():
    assert parse_list("1, 8,1", int, "batch") == (1, 8)
    with pytest.raises(ConfigError, match="batch is '1;8'"):
        parse_list("1;8", int, "batch")


def test_a_sweep_lists_equal_trees_once():
    nodes, depths = (1, 2, 8, 16), (1, 2, 3, 9)
    trees = sweep_trees(nodes, depths)
    shapes = [plan_shape(tree.nodes, tree.depth, greedy=False) for tree in trees]
    assert len(set(shapes)) == len(shapes)
    assert set(shapes) == {plan_shape(size, depth, greedy=False) for size in nodes for depth in depths}
    assert all(shape.depth == tree.depth for shape, tree in zip(shapes, trees, strict=True))
    assert len(trees) < len(nodes) * len(depths)  # one candidate has no second level
    with pytest.raises(ConfigError, match="nodes"):
        sweep_trees((), (1,))


def test_an_engine_can_grow_every_tree_of_a_sweep():
    config = BenchSettings(trees=(Tree(16, 2), Tree(4, 5)), batch=(2, 4)).engine_config(100, speculates=True)
    assert (config.max_tree_nodes, config.max_tree_depth, config.max_num_seqs) == (16, 5, 4)
    assert not config.prefix_caching  # else the second repeat would have no prompts to run


def test_an_engine_has_the_proposers_that_are_compared():
    settings = BenchSettings(proposers=("ngram", "draft+ngram+suffix"))
    assert settings.engine_config(100, speculates=True).proposers == ("ngram", "draft", "suffix")
    assert settings.engine_config(100, speculates=False).proposers == ("draft",)
    assert settings.engine_config(100, speculates=False).draft is None


def test_prompts_are_many_and_different():
    for prompts in PROMPT_SETS.values():
        assert len(set(prompts)) == 8
    assert all(len(text.split()) > 40 for text in PROMPT_SETS["copy"])  # enough to copy


def test_settings_come_before_torch():
    """OpenMP's variables are set between the two."""
    code = "import sys, resispec.engine.bench.settings, resispec.engine.openmp; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"
