"""The engine: requests in, steps, outputs as values. Knows nothing of HTTP or processes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import msgspec
from tokenizers import Tokenizer

from resispec.models.compiled.compilation import Compilation
from resispec.models.compiled.state import CompileState, CompileStatus

from .block import end_block
from .budget.base import TreeBudget
from .budget.controller import Controller
from .budget.meter import PlainStep, SpeedMeter
from .cost.keep import CostKeeper
from .detokenizer import IncrementalDetokenizer
from .grammar.allowed import AllowedTokens
from .grammar.cache import GrammarCache
from .grammar.compiler import GrammarCompiler
from .grammar.intake import GrammarIntake
from .grammar.slots import form_sources
from .kv.memory_manager import KVManager
from .outputs import (
    EngineInfo,
    FinishedStats,
    FinishReason,
    RequestOutput,
    SpeculationMetrics,
    StepResult,
    StepStats,
    Usage,
)
from .request import FormHelp, Request, RequestError, SpeculationMode, SpeculationParams
from .runner.runner import Runner, RunResult
from .runner.trace import with_forced, with_texts
from .runner.verify import Outcome
from .sampling.uniforms import stream_key
from .scheduler import PlannedSequence, Scheduler, StepPlan
from .sequence import Sequence
from .sources.factory import SourceFactory
from .stats import StepTally, request_metrics, share_time
from .text_decoder import TextDecoder
from .tree import DRAFT
from .validate import check_request, limit_notes
from .verifiers.table import VERIFIERS

_log = logging.getLogger(__name__)

_LOOK_AGAIN = 1.0  # seconds, for whoever waits for requests while layers are being compiled


class Engine:
    """Continuous batching over one draft-target pair. Not for use by two threads at once."""

    def __init__(
        self,
        info: EngineInfo,
        tokenizer: Tokenizer,
        kv: KVManager,
        scheduler: Scheduler,
        runner: Runner,
        controller: Controller,
        meter: SpeedMeter | None,
        compilation: Compilation | None = None,
        keeper: CostKeeper | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """meter: what trees are weighed against; None where nothing proposes any.

        clock: seconds, by which requests and steps are timed.
        """
        self.info = info
        self._clock = clock
        self._tokenizer = tokenizer
        self._kv = kv
        self._scheduler = scheduler
        self._runner = runner
        self.controller = controller
        self._meter = meter
        self._compilation = compilation
        self._keeper = keeper
        self._max_forced = scheduler.config.max_forced_tokens
        self._sources = SourceFactory()
        self._sequences: dict[str, Sequence] = {}
        self._ended: list[tuple[RequestOutput, FinishedStats]] = []  # outside of a step: aborted
        self._intake = GrammarIntake(
            GrammarCache(lambda: GrammarCompiler(tokenizer, info.vocab_size, info.eos_token_ids))
        )

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything: for requests, or to let compiled layers take over."""
        compiled = self._compilation is not None and self._compilation.is_over
        return bool(self._sequences or self._ended or compiled)

    @property
    def look_again(self) -> float | None:
        """Seconds after which it may have work without being asked for any; None: never."""
        return _LOOK_AGAIN if self.info.compilation.state is CompileState.BUILDING else None

    @property
    def kv_usage(self) -> float:
        """Share of the KV rows that running requests hold, in [0, 1]."""
        return self._kv.usage()

    def tree_limits(self, wanted: SpeculationParams) -> tuple[SpeculationMode, TreeBudget]:
        """The mode of a request that asks for this, and the most that its trees may hold."""
        mode = self._mode(wanted)
        return mode, self._scheduler.tree_limits(mode, wanted)

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError, naming the field, for one that cannot be served."""
        if request.request_id in self._sequences:
            raise RequestError(f"a request with id {request.request_id!r} is already running", "request_id")
        check_request(request, self.info)
        sampling, wanted = request.sampling, request.speculation
        verifier = wanted.verifier or self.info.verifier
        mode = self._mode(wanted)
        proposers = () if mode is SpeculationMode.OFF else wanted.proposers or self.info.proposers
        sequence = Sequence(
            request,
            verifier,
            stream_key(sampling.seed),
            IncrementalDetokenizer(self._tokenizer, request.prompt_token_ids, sampling),
            list(request.prompt_token_ids),
            mode,
            limit_notes(wanted, self.info),
            self.controller.history(verifier, sampling),
            self._scheduler.tree_limits(mode, wanted),
            DRAFT in proposers and DRAFT in self.info.proposers,
            self._sources.make(request, proposers),
        )
        if request.speculation.trace:
            sequence.trace_decoder = TextDecoder(
                self._tokenizer, request.prompt_token_ids, request.sampling.skip_special_tokens
            )
        self._sequences[request.request_id] = sequence
        if request.sampling.structured is not None:
            self._intake.put(sequence)
            return
        if request.sampling.allowed_token_ids is not None:
            sequence.constraint = AllowedTokens(request.sampling.allowed_token_ids, self.info.vocab_size)
        self._scheduler.add(sequence)

    def abort(self, request_id: str) -> None:
        """End a request at once. One that has ended, or never was, is no error."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            tally = StepTally()
            output = RequestOutput(request_id, "", (), self._usage(sequence), FinishReason.ABORT)
            self._ended.append((self._finish(sequence, output, tally, self._clock()), tally.finished[0]))

    def step(self, late: tuple[tuple[str, float], ...] = ()) -> StepResult:
        """Run one step for everybody there is room for.

        late: phases of the step before, and their seconds, that had not ended when its result was made.
        """
        changed = self._advance_compilation()
        started, began = self._clock(), time.perf_counter()
        ended, self._ended = self._ended, []
        tally = StepTally(finished=[stats for _, stats in ended], compilation=changed)
        outputs = [output for output, _ in ended]
        outputs += self._take_in(tally)
        plan = self._scheduler.schedule(started)
        self._runner.apply(plan.moves)
        scheduled = time.perf_counter()
        result, errors = self._run(plan.items)
        committing = time.perf_counter()
        meter = self._meter
        plain = meter.plain_step(plan.items) if meter and meter.looks_at(plan.items) else None
        now = self._clock()
        outputs += self._commit(plan.items, result, errors, tally, plain, now)
        if meter is not None and plain is not None:
            if errors:
                meter.forget()
            else:
                meter.finish(
                    plain, result.sample_seconds, plan.choosing_seconds, started, more=bool(self._sequences)
                )
        if self._keeper is not None:
            self._keeper.step()
        phases = (
            ("schedule", scheduled - began),
            ("draft", result.draft_seconds),
            ("verify", result.verify_seconds),
            ("sample", result.sample_seconds),
            ("commit", time.perf_counter() - committing - tally.detokenise_seconds),
            ("detokenise", tally.detokenise_seconds),
            *late,
        )
        tally.grammar_seconds = self._intake.timer.take()
        return StepResult(tuple(outputs), self._stats(plan, result, tally, phases))

    def settle(self) -> None:
        """Wait until the target runs as it is going to: compiled, where that was asked for and can be."""
        if self._compilation is not None:
            self._compilation.wait()
            self._advance_compilation()

    def close(self) -> None:
        """Give up what is done in the background. Idempotent."""
        if self._compilation is not None:
            self._compilation.close()

    def _advance_compilation(self) -> CompileStatus | None:
        """The compilation's status, if it has changed."""
        if self._compilation is None or not self._compilation.advance():
            return None
        self.info = replace(self.info, compilation=self._compilation.status)
        return self._compilation.status

    def _take_in(self, tally: StepTally) -> list[RequestOutput]:
        """Queue the requests whose grammars are ready; the outputs of those that have none."""
        outputs: list[RequestOutput] = []
        idle = not self._scheduler.running and self._scheduler.num_waiting == 0
        for sequence, error in self._intake.take(idle=idle):
            if error is None:
                assert sequence.constraint is not None
                if sequence.mode is not SpeculationMode.OFF and self._scheduler.config.speculates:
                    for source in form_sources(sequence.request, sequence.constraint, self._tokenizer):
                        sequence.sources = sequence.sources.behind(source)
                    # The log-probabilities of a token come from the step that it is drawn in.
                    takes_forced = FormHelp.FORCED in sequence.request.speculation.form
                    sequence.runs_ahead = takes_forced and sequence.request.sampling.logprobs is None
                self._scheduler.add(sequence)
                continue
            usage, reason = self._usage(sequence), FinishReason.ERROR
            output = RequestOutput(sequence.request_id, "", (), usage, reason, error=error.message)
            outputs.append(self._finish(sequence, output, tally, self._clock()))
        return outputs

    def check_integrity(self) -> None:
        """Raise AssertionError unless every KV row is free, cached or a running sequence's own."""
        live = [sequence.entry for sequence in self._scheduler.running]
        assert None not in live, "a running sequence has no rows"
        self._kv.check([entry for entry in live if entry is not None])
        known = {*self._scheduler.running, *self._scheduler.waiting, *self._intake.sequences}
        assert known == {*self._sequences.values()}, "a sequence is neither waiting nor running, or forgotten"

    def _run(self, items: SequenceOf[PlannedSequence]) -> tuple[RunResult, dict[int, Exception]]:
        """Run the items together; if that fails, one by one, so that only those at fault fail.

        A step changes no sequence and its random numbers go by position, so it can be repeated.
        """
        if not items:
            return RunResult((), 0, 0.0, 0.0, 0.0), {}
        try:
            return self._runner.run(items), {}
        except Exception as error:  # noqa: BLE001  any fault of one request must not end the others
            _log.exception("a step of %d requests failed", len(items))
            if len(items) == 1:
                return RunResult((None,), 0, 0.0, 0.0, 0.0), {0: error}
        parts = [self._run([item]) for item in items]
        return (
            RunResult.joined([result for result, _ in parts]),
            {index: errors[0] for index, (_, errors) in enumerate(parts) if errors},
        )

    def _commit(
        self,
        items: SequenceOf[PlannedSequence],
        result: RunResult,
        errors: dict[int, Exception],
        tally: StepTally,
        plain: PlainStep | None,
        now: float,
    ) -> list[RequestOutput]:
        if plain is not None:
            share_time(items, result)
        self._runner.keep(
            [
                (item, outcome.slots)
                for item, outcome in zip(items, result.outcomes, strict=True)
                if outcome is not None and not outcome.bad
            ]
        )
        outputs: list[RequestOutput] = []
        for index, (item, outcome) in enumerate(zip(items, result.outcomes, strict=True)):
            tally.prompt_tokens += item.num_tokens if item.sequence.num_output == 0 else 0
            try:
                if index in errors:
                    raise errors[index]
                item.sequence.prompt_logprobs += result.prompt_logprobs.get(index, ())
                if outcome is None:
                    self._commit_chunk(item)
                elif outcome.bad:
                    raise ArithmeticError("the model's logits are not numbers")
                else:
                    outputs.append(self._commit_block(item, outcome, tally, plain, now))
            except Exception as error:  # noqa: BLE001  this request's own; the others go on
                _log.error("request %s failed", item.sequence.request_id, exc_info=error)
                outputs.append(self._fail(item.sequence, error, tally, now))
        return outputs

    def _commit_chunk(self, item: PlannedSequence) -> None:
        """A part of a prompt that is not yet its end."""
        sequence = item.sequence
        sequence.draft_rows += item.catch_up
        sequence.target_rows += item.num_tokens
        self._declare(sequence, ())

    def _commit_block(
        self, item: PlannedSequence, outcome: Outcome, tally: StepTally, plain: PlainStep | None, now: float
    ) -> RequestOutput:
        """The tokens a step gave a request: cut at whatever ends it, then counted, then delivered."""
        sequence = item.sequence
        room = self.info.max_model_len - len(sequence.token_ids)
        block = end_block(sequence, outcome.tokens, self.info.eos_token_ids, room, self._max_forced)
        cut = block.cut
        began = time.perf_counter()
        piece = sequence.detokenizer.push(block.tokens[: cut.num_text_tokens])
        text, reason = piece.text, cut.finish_reason
        tokens = block.tokens[: cut.num_tokens]
        stopped: int | str | None = cut.stop_reason
        if piece.stop is not None:
            tokens, reason, stopped = block.tokens[: piece.num_tokens], FinishReason.STOP, piece.stop
        elif reason is not None:
            text += sequence.detokenizer.finish()
        tally.detokenise_seconds += time.perf_counter() - began
        unshown = len(tokens) - len(piece.ends)  # an EOS or stop id
        is_first = sequence.num_output == 0

        if plain is not None and item.decodes:
            sequence.tally.decoded(plain, len(tokens))
        slots = outcome.slots[: len(tokens)]
        ran = sequence.target_rows + item.num_tokens  # rows of the committed tokens
        if item.tree is not None:
            children = outcome.children[: len(slots)]
            exact = VERIFIERS[sequence.verifier].exact
            sequence.tally.add(item.tree, slots, children)
            tally.drafted(sequence.verifier, exact, item.tree, slots, children)
        if item.shape is not None:
            kept = item.tree.num_run_by_draft(slots) if item.tree and self._runner.keeps_draft_rows else 0
            sequence.draft_rows = ran + kept
            self._observe(sequence, item, outcome.slots)
        else:
            sequence.draft_rows += item.catch_up
        sequence.target_rows = ran + len(slots)
        before = len(sequence.token_ids)
        sequence.token_ids += tokens
        sequence.num_forced = block.num_forced(tokens)
        sequence.tally.num_forced += sequence.num_forced
        ahead = () if sequence.num_forced else outcome.ahead  # which is of the places behind the drawn token
        sequence.sources.committed(sequence.token_ids, before, outcome.tops, ahead)
        self._declare(sequence, tokens)
        tally.residual_underflow += outcome.underflow
        tally.delivered(sequence, len(tokens), now)
        output = RequestOutput(
            sequence.request_id,
            text,
            tokens,
            self._usage(sequence),
            reason,
            stopped,
            text_ends=piece.ends + (sequence.detokenizer.num_characters,) * unshown,
            logprobs=outcome.logprobs[: len(tokens)],
            prompt_logprobs=tuple(sequence.prompt_logprobs) if is_first else (),
        )
        if reason is not None:
            output = self._finish(sequence, output, tally, now)
        if outcome.trace is None or sequence.trace_decoder is None:
            return output
        trace = with_forced(outcome.trace, block.tokens[block.num_drawn :])
        return msgspec.structs.replace(output, trace=(with_texts(trace, tokens, sequence.trace_decoder),))

    def _observe(self, sequence: Sequence, item: PlannedSequence, path: SequenceOf[int]) -> None:
        """Tell the controller what became of what the draft added, unless known candidates hid that."""
        assert item.tree is not None
        drafted = [slot for slot in path if not item.tree.known_node(slot)]
        if len(drafted) == len(path):
            self.controller.observe(sequence.history, item.tree.shape, len(drafted))

    def _declare(self, sequence: Sequence, tokens: SequenceOf[int]) -> None:
        assert sequence.entry is not None
        self._kv.extend(sequence.entry, tokens, sequence.target_rows, sequence.draft_rows)

    def _finish(
        self, sequence: Sequence, output: RequestOutput, tally: StepTally, now: float
    ) -> RequestOutput:
        """Forget a sequence; its last ``output`` with its metrics."""
        reason = output.finish_reason
        assert reason is not None
        metrics = request_metrics(sequence, self._speculation(sequence), now)
        tally.finished.append(FinishedStats(reason, output.usage, metrics))
        self._intake.drop(sequence)
        sequence.sources.finished(sequence.token_ids)
        # Rows of one that failed may hold what made it fail, and others would take them over.
        self._scheduler.remove(sequence, keep=reason is not FinishReason.ERROR)
        del self._sequences[sequence.request_id]
        return msgspec.structs.replace(output, metrics=metrics)

    def _fail(self, sequence: Sequence, error: Exception, tally: StepTally, now: float) -> RequestOutput:
        if sequence.entry is not None:
            self._runner.clear(sequence.entry.extent)
        message = f"the request failed inside the engine ({type(error).__name__}); others were not affected"
        usage = self._usage(sequence)
        output = RequestOutput(sequence.request_id, "", (), usage, FinishReason.ERROR, error=message)
        return self._finish(sequence, output, tally, now)

    def _mode(self, wanted: SpeculationParams) -> SpeculationMode:
        return (wanted.mode or self.info.speculation) if wanted.enabled else SpeculationMode.OFF

    def _speculation(self, sequence: Sequence) -> SpeculationMetrics | None:
        if sequence.mode is SpeculationMode.OFF or not (sequence.drafts or sequence.sources):
            return None
        exact = VERIFIERS[sequence.verifier].exact
        seconds = (sequence.last_token_time or 0.0) - (sequence.first_token_time or 0.0)
        return sequence.tally.metrics(sequence.verifier, exact, sequence.mode, sequence.notes, seconds)

    def _usage(self, sequence: Sequence) -> Usage:
        return Usage(sequence.num_prompt, sequence.num_output, sequence.cached_tokens)

    def _stats(
        self, plan: StepPlan, result: RunResult, tally: StepTally, phases: tuple[tuple[str, float], ...]
    ) -> StepStats:
        usage = self._kv.usage()
        return tally.stats(
            plan,
            result.num_rows,
            phases,
            num_running=len(self._scheduler.running),
            num_waiting=self._scheduler.num_waiting,
            kv_usage_target=usage,
            kv_usage_draft=usage if DRAFT in self.info.proposers else 0.0,
        )
