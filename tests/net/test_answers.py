"""What a server remembers: answers given, requests in progress, things lent."""

from __future__ import annotations

from transferqueue.net import lent, replies
from transferqueue.net.lent import Lent
from transferqueue.net.replies import AnswerLog
from transferqueue.wire.format import OK_OP, Message

PEER = b"p"


def answer(number: int) -> Message:
    return Message(op=OK_OP, request_id=number, body={"n": number})


def test_an_answer_is_repeated_for_its_own_peer_and_request() -> None:
    log = AnswerLog()
    log.begin(PEER, 1)
    assert log.is_in_progress(PEER, 1)
    assert log.answer_to(PEER, 1) is None
    log.finish(PEER, 1, answer(1), keep=True)
    assert not log.is_in_progress(PEER, 1)
    assert log.answer_to(PEER, 1) == answer(1)
    assert log.answer_to(b"other", 1) is None
    assert log.answer_to(PEER, 2) is None


def test_an_answer_that_can_be_made_again_is_not_kept() -> None:
    log = AnswerLog()
    log.begin(PEER, 1)
    log.finish(PEER, 1, answer(1), keep=False)
    assert log.answer_to(PEER, 1) is None


def test_a_request_that_was_given_up_is_in_progress_no_more() -> None:
    log = AnswerLog()
    log.begin(PEER, 1)
    log.abandon(PEER, 1)
    log.abandon(PEER, 2)
    assert not log.is_in_progress(PEER, 1)


def test_the_newest_answers_of_the_newest_peers_are_kept() -> None:
    log = AnswerLog()
    for number in range(replies.MAX_ANSWERS_PER_PEER + 1):
        log.finish(PEER, number, answer(number), keep=True)
    assert log.answer_to(PEER, 0) is None
    assert log.answer_to(PEER, 1) == answer(1)
    for peer in range(replies.MAX_PEERS):
        log.finish(b"%d" % peer, 1, answer(1), keep=True)
    assert log.answer_to(PEER, 1) is None
    assert log.answer_to(b"0", 1) == answer(1)


def test_what_was_lent_is_taken_back_once() -> None:
    loans: Lent[str] = Lent()
    assert loans.note((PEER, 1), "lease 7") is None
    assert loans.take_back((PEER, 1)) == "lease 7"
    assert loans.take_back((PEER, 1)) is None


def test_lending_again_for_the_same_request_tells_what_its_lost_answer_lent() -> None:
    loans: Lent[str] = Lent()
    loans.note((PEER, 1), "lease 7")
    assert loans.note((PEER, 1), "lease 8") == "lease 7"
    assert loans.take_back((PEER, 1)) == "lease 8"


def test_only_the_newest_loans_are_remembered() -> None:
    loans: Lent[int] = Lent()
    for number in range(lent.MAX_REMEMBERED + 1):
        loans.note((PEER, number), number)
    assert loans.take_back((PEER, 0)) is None
    assert loans.take_back((PEER, 1)) == 1


def test_an_answer_is_repeated_for_a_peer_that_knows_its_name_with_an_earlier_server() -> None:
    log = AnswerLog()
    log.finish(PEER, 1, answer(1), keep=True)
    assert log.answer_to(b"new", 1, [b"other", PEER]) == answer(1)
    assert log.answer_to(b"new", 2, [PEER]) is None
    for nonsense in (None, [], [None, 3, [PEER]], PEER, {"p": 1}, "p"):
        assert log.answer_to(b"new", 1, nonsense) is None
