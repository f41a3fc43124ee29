"""Whatever a kernel writes to the worker's channel is not mistaken for the worker's answer."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deepgen.run.measure.channel import _HEAD, _MAGIC, Channel, Closed, Garbled


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel, socket.socket]]:
    """The supervisor's end, the worker's, and the descriptor that a kernel can find."""
    ours, theirs = socket.socketpair()
    kernel = theirs.dup()
    worker = Channel.hidden(theirs.detach())
    supervisor = Channel(ours)
    yield supervisor, worker, kernel
    for end in (supervisor, worker, kernel):
        end.close()


FORGED = json.dumps({"measurements": []}).encode()


def test_a_request_is_answered_and_the_socket_lies_far_from_other_files(
    ends: tuple[Channel, Channel, socket.socket],
) -> None:
    supervisor, worker, _ = ends
    for number in range(3):
        supervisor.ask({"do": number})
        assert supervisor.take_answer() is None
        assert worker.receive_request() == {"do": number}
        worker.answer({"done": number})
        assert supervisor.take_answer() == {"done": number}
    assert worker.fileno() > supervisor.fileno() + 100


@settings(max_examples=50)
@given(written=st.binary(min_size=1, max_size=100))
@example(written=_HEAD.pack(_MAGIC, len(FORGED), bytes(16)) + FORGED)
def test_nothing_but_the_answer_is_taken(written: bytes) -> None:
    ours, theirs = socket.socketpair()
    supervisor, worker = Channel(ours), Channel(theirs)
    supervisor.ask({"do": "measure"})
    worker.receive_request()
    theirs.sendall(written)
    worker.answer({"measurements": ["right"]})
    with pytest.raises(Garbled):
        while supervisor.take_answer() is None:
            pass
    supervisor.close()
    worker.close()


def test_an_answer_to_an_earlier_request_is_not_taken(ends: tuple[Channel, Channel, socket.socket]) -> None:
    supervisor, worker, _ = ends
    supervisor.ask(1)
    worker.receive_request()
    worker.answer("one")
    assert supervisor.take_answer() == "one"
    worker.answer("one again")
    supervisor.ask(2)
    with pytest.raises(Garbled):
        supervisor.take_answer()


def test_two_answers_at_once_are_none(ends: tuple[Channel, Channel, socket.socket]) -> None:
    supervisor, worker, kernel = ends
    supervisor.ask(1)
    worker.receive_request()
    worker.answer("one")
    kernel.sendall(b"x")
    with pytest.raises(Garbled):
        supervisor.take_answer()


def test_part_of_an_answer_is_not_waited_for(ends: tuple[Channel, Channel, socket.socket]) -> None:
    supervisor, worker, kernel = ends
    supervisor.ask(1)
    kernel.sendall(b"xyz")
    assert supervisor.take_answer() is None
    worker.close()
    kernel.close()
    with pytest.raises(Closed):
        supervisor.take_answer()
