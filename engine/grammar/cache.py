"""Compiled grammars of recent requests, made on a thread of their own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from ..request import StructuredSpec
from .compiler import GrammarCompiler
from .state import CompiledGrammar


class GrammarCache:
    """Compiles off the step path: llguidance releases the interpreter's lock while it works."""

    def __init__(self, make_compiler: Callable[[], GrammarCompiler], capacity: int = 64) -> None:
        """make_compiler: called once, on the thread, for the first grammar."""
        self._make_compiler = make_compiler
        self._capacity = capacity
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._compiler: GrammarCompiler | None = None
        self._known: OrderedDict[StructuredSpec, Future[CompiledGrammar]] = OrderedDict()

    def get(self, spec: StructuredSpec) -> Future[CompiledGrammar]:
        """The grammar, or the RequestError that says why there is none."""
        found = self._known.get(spec)
        if found is None:
            found = self._known[spec] = self._thread.submit(self._compile, spec)
            if len(self._known) > self._capacity:
                self._known.popitem(last=False)
        self._known.move_to_end(spec)
        return found

    def _compile(self, spec: StructuredSpec) -> CompiledGrammar:
        if self._compiler is None:
            self._compiler = self._make_compiler()
        return self._compiler.compile(spec)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
