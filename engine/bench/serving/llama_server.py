"""Runs llama.cpp's server from the xllamacpp package. A script for another Python: it stands alone.

python llama_server.py MODEL.gguf PORT CONTEXT SLOTS THREADS none|ngram
"""

import sys
import threading


def main(model: str, port: str, context: str, slots: str, threads: str, speculation: str) -> None:
    """Serve until the process is ended. ``context``: tokens of each of the slots."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames = ["127.0.0.1"]
    params.port = int(port)
    params.n_parallel = int(slots)
    params.n_ctx = int(context) * int(slots)
    params.cpuparams.n_threads = int(threads)
    params.cpuparams_batch.n_threads = int(threads)
    if speculation == "ngram":
        kinds = xllamacpp.common_speculative_type
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)  # noqa: T201
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
