"""Computations in step: what they are answered, in which order, and how they end."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from colonnade.models.sparse.in_step import in_step
from colonnade.models.sparse.path import Withheld

Ask = Callable[[int], int]


def counting(times: int, pause: float = 0.0) -> Callable[[Ask], list[int]]:
    def work(ask: Ask) -> list[int]:
        answers = []
        for number in range(times):
            time.sleep(pause)
            answers.append(ask(number))
        return answers

    return work


def test_questions_come_together_in_the_order_of_places() -> None:
    asked: list[dict[int, int]] = []

    def answer(questions: dict[int, int]) -> dict[int, int | Exception]:
        asked.append(dict(questions))
        return {place: 10 * place + question for place, question in questions.items()}

    outcome = in_step([counting(2, pause=0.02), counting(3), counting(0)], answer)
    assert outcome == [[0, 1], [10, 11, 12], []]
    assert [[*questions.items()] for questions in asked] == [[(0, 0), (1, 0)], [(0, 1), (1, 1)], [(1, 2)]]


def test_an_answer_may_be_an_exception_for_one_of_them() -> None:
    def wary(ask: Ask) -> str:
        try:
            ask(0)
        except Withheld as withheld:
            return withheld.party
        return "shown"

    def answer(questions: dict[int, int]) -> dict[int, int | Exception]:
        return {place: Withheld("bank") if place == 1 else 0 for place in questions}

    assert in_step([wary, wary, wary], answer) == ["shown", "bank", "shown"]


def test_where_an_answer_or_a_computation_fails_all_end() -> None:
    ended: list[int] = []

    def patient(ask: Ask) -> None:
        try:
            while True:
                ask(0)
        finally:
            ended.append(1)

    def failing(ask: Ask) -> None:
        ask(0)
        raise ValueError("of its own")

    def lost(questions: dict[int, int]) -> dict[int, int | Exception]:
        raise ConnectionError("nobody answers")

    with pytest.raises(ConnectionError):
        in_step([patient, patient], lost)
    assert len(ended) == 2
    with pytest.raises(ValueError, match="of its own"):
        in_step([patient, failing, patient], lambda questions: dict.fromkeys(questions, 1))
    assert len(ended) == 4
