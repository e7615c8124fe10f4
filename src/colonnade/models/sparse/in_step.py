"""Computations whose questions are answered together: one round of requests serves them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")
Outcome = TypeVar("Outcome")


def in_step(
    computations: Sequence[Callable[[Callable[[Question], Answer]], Outcome]],
    answer: Callable[[dict[int, Question]], Mapping[int, Answer | Exception]],
) -> list[Outcome]:
    """What each computation returns, given a function that answers its questions or raises what `answer` has for it.

    A computation has a thread of its own and waits there until each that goes on has a question. `answer` gets all of
    them at once, {place of the computation: question} in the order of places, in the thread of the caller: so the
    outcome does not depend on which thread is faster. If it fails, or a computation does, all end.
    """
    asked: SimpleQueue[tuple[int, Question | Future[Any]]] = SimpleQueue()
    replies: list[SimpleQueue[Answer | BaseException]] = [SimpleQueue() for _ in computations]

    def ask(place: int, question: Question) -> Answer:
        asked.put((place, question))
        reply = replies[place].get()
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def ended(place: int, future: Future[Outcome]) -> None:
        asked.put((place, future))

    with ThreadPoolExecutor(len(computations)) as threads:
        futures = [threads.submit(work, partial(ask, place)) for place, work in enumerate(computations)]
        for place, future in enumerate(futures):
            future.add_done_callback(partial(ended, place))
        left = set(range(len(computations)))
        try:
            while left:
                questions: dict[int, Question] = {}
                while len(questions) < len(left):
                    place, message = asked.get()
                    if isinstance(message, Future):
                        message.result()
                        left.remove(place)
                    else:
                        questions[place] = message
                if questions:
                    for place, reply in answer(dict(sorted(questions.items()))).items():
                        replies[place].put(reply)
        except BaseException as error:
            for place in left:
                replies[place].put(error)
            raise
    return [future.result() for future in futures]
