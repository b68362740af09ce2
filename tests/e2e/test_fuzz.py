"""Generated requests against the OpenAPI document: no server errors, no answers that it does not describe."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# For each operation, beside a fixed set for each of its parameters. `make fuzz` asks for many more.
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "2"))
CASES = 5000 if EXAMPLES >= 200 else 1000


def test_generated_requests(serve, tiny_arguments, tmp_path):
    # Short answers: what is tested is what goes in and the form of what comes out.
    server = serve(
        *tiny_arguments, "--max-model-len", "96", "--request-timeout", "0.5", "--max-num-seqs", "4"
    )
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.url}/openapi.json"),
        *("--max-examples", str(EXAMPLES), "--continue-on-failure", "--request-timeout", "60", "--no-color"),
        # Numbers of tokens have limits that depend on each other, so a refusal may be right.
        *("--exclude-checks", "positive_data_acceptance"),
    ]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    print(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr
    counts = re.search(r"(\d+) generated, (\d+) passed", result.stdout)
    assert counts, result.stdout
    assert CASES <= int(counts[1]) == int(counts[2])
    assert not [line for line in server.stderr if '"status": 5' in line or "Traceback" in line]
