from __future__ import annotations

import _thread
import signal
import threading

import pytest

from logpolar.distributed import ahead, interruptibly
from process_tasks import refuse_five

PATIENCE = 30  # seconds after which a test that waits for another thread gives up


@pytest.fixture
def ctrl_c_counts():
    """Also where the tests run in the background, and shells turn it off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class TestAhead:
    @pytest.mark.parametrize("count", [0, 1, 7])
    def test_items_are_the_same(self, count):
        assert list(ahead(iter(range(count)))) == list(range(count))

    def test_the_next_is_made_in_a_thread_while_one_is_in_use(self):
        made, threads = [threading.Event() for _ in range(5)], set()

        def items():
            for number, event in enumerate(made):
                threads.add(threading.get_ident())
                event.set()
                yield number

        for number in ahead(items()):
            assert made[min(number + 1, 4)].wait(PATIENCE)
            assert not any(event.is_set() for event in made[number + 2 :])
        assert threading.get_ident() not in threads

    def test_errors_reach_the_caller_after_the_items_before(self):
        seen = []
        with pytest.raises(ValueError, match="number 5 is odd"):
            for result in ahead(map(refuse_five, range(40))):
                seen.append(result)
        assert seen == [-task for task in range(5)]


class TestInterruptibly:
    def test_returns_what_a_thread_computes(self):
        assert interruptibly(threading.get_ident) != threading.get_ident()

    def test_errors_reach_the_caller(self):
        with pytest.raises(ValueError, match="number 5 is odd"):
            interruptibly(lambda: refuse_five(5))

    def test_ctrl_c_does_not_wait(self, ctrl_c_counts):
        """The thread itself presses it, and goes on."""
        proceed = threading.Event()

        def work():
            _thread.interrupt_main()  # no real signal: a handler that a library left behind may kill the process
            assert proceed.wait(PATIENCE)

        with pytest.raises(KeyboardInterrupt):
            interruptibly(work)
        proceed.set()
