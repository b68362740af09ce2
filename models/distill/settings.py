"""What a distillation is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..base import ModelError

HEAD, MODEL = "head", "model"  # kinds of draft

_DEFAULT_TOKENS = 500_000  # written by the target when no data is given
_DEFAULT_VOCAB = 8192
_DEFAULT_LAYERS = 4
_DEFAULT_RATE = 1.5e-3


@dataclass(frozen=True, slots=True)
class DistillSettings:
    """The options of `resispec distill`. Raises ModelError for values that cannot work."""

    target: str  # "default", a hub id, a folder or a GGUF file
    out: Path  # folder of the finished draft; intermediate files lie beside it in OUT.work
    kind: str = HEAD  # or MODEL, some of the target's layers
    layers: int | None = None  # of a model; None: four
    target_layers: tuple[int, ...] = ()  # from 0, whose inputs a head reads beside the last state
    intermediate_size: int | None = None  # of a head; None: the earlier head's, else the target's
    start_from: Path | None = None  # an earlier head of the same target, trained further
    data: tuple[Path, ...] = ()  # JSONL with prompt and output ids, or plain text
    prompts: Path | None = None  # one a line, for the text the target writes; None: built-in ones
    generate_tokens: int | None = None  # None: none beside data, half a million without
    steps: int | None = None
    minutes: float | None = None  # of training; text and hidden states come on top
    learning_rate: float | None = None  # at its highest; None: 1.5e-3
    vocab: int | None = None  # tokens a head may draft; None: 8192
    max_tokens: int = 512  # of a document
    seed: int = 0
    device: str = "auto"  # auto, cpu, cuda, cuda:N
    dtype: str = "auto"  # auto: bfloat16; float32
    save_minutes: float = 5.0  # between two checkpoints of the training
    resume: bool = False  # go on where an earlier run of the same settings stopped
    offline: bool = False

    def __post_init__(self) -> None:
        if self.kind not in (HEAD, MODEL):
            raise ModelError(f"kind is {self.kind!r}; {HEAD} and {MODEL} can be distilled")
        heads = ("vocab", "start_from", "target_layers", "intermediate_size")
        for name, kind in (*((name, HEAD) for name in heads), ("layers", MODEL)):
            if getattr(self, name) not in (None, ()) and self.kind != kind:
                raise ModelError(f"{name} goes with kind {kind}; leave it out for kind {self.kind}")
        if len(set(self.target_layers)) < len(self.target_layers):
            raise ModelError(f"target_layers is {list(self.target_layers)}; name each layer once")
        if self.dtype not in ("auto", "bfloat16", "float32"):
            raise ModelError(f"dtype is {self.dtype!r}; auto, bfloat16 and float32 are known")
        sizes = {"vocab": 1, "layers": 1, "intermediate_size": 1, "max_tokens": 16, "generate_tokens": 0}
        for name, least in sizes.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ModelError(f"{name} is {value}, it must be at least {least}")
        if not self.save_minutes >= 0:
            raise ModelError(f"save_minutes is {self.save_minutes}, it must be at least 0")

    @property
    def tokens_to_write(self) -> int:
        if self.generate_tokens is not None:
            return self.generate_tokens
        return 0 if self.data else _DEFAULT_TOKENS

    @property
    def draft_vocab(self) -> int:
        """Tokens a head may draft."""
        return self.vocab or _DEFAULT_VOCAB

    @property
    def highest_rate(self) -> float:
        """Of learning."""
        return _DEFAULT_RATE if self.learning_rate is None else self.learning_rate

    @property
    def num_layers(self) -> int:
        """Layers of a model."""
        return self.layers or _DEFAULT_LAYERS

    @property
    def work(self) -> Path:
        return self.out.with_name(self.out.name + ".work")

    @property
    def target_name(self) -> str:
        """Without the place on this machine."""
        return Path(self.target).name if Path(self.target).expanduser().exists() else self.target

    @property
    def command(self) -> str:
        """The command that repeats the run, files by their names only."""
        words = ["resispec distill", f"--target {self.target_name}", f"--out {self.out.name}"]
        words += [f"--kind {MODEL} --layers {self.num_layers}"] if self.kind == MODEL else []
        words += [f"--target-layer {number}" for number in self.target_layers]
        words += [f"--intermediate-size {self.intermediate_size}"] if self.intermediate_size else []
        words += [f"--start-from {self.start_from.name}"] if self.start_from else []
        words += [f"--data {path.name}" for path in self.data]
        words += [f"--prompts {self.prompts.name}"] if self.prompts else []
        for name in ("generate_tokens", "steps", "minutes", "learning_rate"):
            value = getattr(self, name)
            words += [f"--{name.replace('_', '-')} {value:g}"] if value is not None else []
        words += [f"--vocab {self.draft_vocab}"] if self.kind == HEAD else []
        return " ".join([*words, f"--seed {self.seed}"])
