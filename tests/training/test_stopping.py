"""Requests to stop; whole runs that are stopped are in test_run_interrupted.py."""

from __future__ import annotations

import _thread
import signal
import threading
import time

import pytest

from logpolar.training import stopping
from logpolar.training.stopping import Stopped, stop_requests


def press(requests):
    """Ctrl-C, as the main thread notices it."""
    requests.receive(signal.SIGINT, None)


def test_a_request_is_noted_and_the_second_raises():
    with stop_requests() as requests:
        assert not requests
        press(requests)
        assert requests
        assert str(requests.stopped(7)) == "stopped after step 7; rerun the command to resume"
        assert requests.stopped(7).number == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            press(requests)


def test_what_is_kept_already_stops_at_once():
    with stop_requests() as requests:
        with pytest.raises(Stopped, match="after step 3"), requests.at_once(3):
            press(requests)
        with pytest.raises(Stopped, match="after step 4"), requests.at_once(4):
            pytest.fail("a request before this one was overlooked")


def test_results_and_errors_of_the_thread():
    with stop_requests() as requests:
        assert requests.finish(lambda: 5, lambda: True) == 5
        with pytest.raises(ZeroDivisionError):
            requests.finish(lambda: 1 // 0, lambda: True)


def test_work_is_given_up_if_it_can_be(monkeypatch):
    monkeypatch.setattr(stopping, "PATIENCE", 0.0)
    asked, goes_on = [], threading.Event()

    def work():
        _thread.interrupt_main()
        goes_on.wait(60)
        return 1

    def refuse():
        asked.append(time.monotonic())
        goes_on.set()
        return False

    with stop_requests() as requests:
        assert requests.finish(work, refuse) == 1
    assert asked
    goes_on.clear()
    with stop_requests() as requests:
        assert requests.finish(work, lambda: True) is None
        goes_on.set()


def test_signals_have_their_meaning_again_afterwards():
    before = signal.getsignal(signal.SIGTERM)
    with stop_requests():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
    with stop_requests(False):
        assert signal.getsignal(signal.SIGTERM) is before


def test_signals_that_are_ignored_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_requests():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
