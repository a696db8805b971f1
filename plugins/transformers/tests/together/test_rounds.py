"""Groups that compute together: every round has all of them, whatever each has to do, and all come to an end."""

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell import PeerLost
from stepwell_kernels.collective.threads import thread_groups
from stepwell_transformers.together import Bells, Inbox, Rounds


class Party:
    """One group: a worker thread that goes through its inbox and notes what each round was."""

    def __init__(self, group, folder, size):
        self.bells = Bells(folder, group.rank, size, 5.0)
        self.rounds = Rounds(group, self.bells)
        self.inbox = Inbox(self.rounds, self.idle)
        self.noted, self.failed = [], None
        self.thread = threading.Thread(target=self.work, daemon=True)

    def begin(self):
        self.bells.listen(self.inbox.knock)
        self.thread.start()

    def idle(self, call):
        self.note(0, self.rounds.take_part(0, prefill=False, call=call))

    def note(self, own, agreed):
        self.noted.append((own, agreed))

    def work(self):
        try:
            while (step := self.inbox.get()) is not None:
                if step.tokens:
                    self.note(step.tokens, self.rounds.take_part(step.tokens, prefill=step.tokens > 1))
        except Exception as error:
            self.failed = error


class Step:
    def __init__(self, tokens):
        self.tokens = tokens


@pytest.fixture
def party(tmp_path):
    made = []

    def make(size):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.extend(Party(group, folder, size) for group in thread_groups(size, 10.0))
        for one in made[-size:]:
            one.begin()
        return made[-size:]

    yield make
    for one in made:
        one.bells.close()


def end(parties):
    for one in parties:
        one.inbox.put(None)
    for one in parties:
        one.thread.join(20)
        assert not one.thread.is_alive()


def test_an_idle_group_is_called_into_each_step(party):
    busy, idle = party(2)
    for tokens in (9, 1, 1):
        busy.inbox.put(Step(tokens))
    end([busy, idle])
    assert busy.failed is idle.failed is None
    assert [agreed for _, agreed in busy.noted] == [agreed for _, agreed in idle.noted]
    steps = [(own, agreed) for own, agreed in busy.noted if own]
    assert [(own, agreed.most, agreed.prefill) for own, agreed in steps] == [(9, 9, True), (1, 1, False), (1, 1, False)]
    assert busy.noted[-1][1].ending


@settings(max_examples=25, deadline=None)
@given(work=st.lists(st.lists(st.integers(0, 5), max_size=8), min_size=2, max_size=3), pauses=st.randoms())
def test_all_rounds_have_all_groups(tmp_path_factory, work, pauses):
    folder = tmp_path_factory.mktemp("bells")
    parties = [Party(group, folder, len(work)) for group in thread_groups(len(work), 10.0)]
    for one in parties:
        one.begin()
    for at in range(8):
        for one, steps in zip(parties, work, strict=True):
            if at < len(steps):
                one.inbox.put(Step(steps[at]))  # of no tokens: a step that only copies pages
            if pauses.random() < 0.2:
                time.sleep(0.001)
    end(parties)
    for one in parties:
        one.bells.close()
    assert [one.failed for one in parties] == [None] * len(work)
    rounds = {tuple(agreed for _, agreed in one.noted) for one in parties}
    assert len(rounds) == 1
    for one, steps in zip(parties, work, strict=True):
        assert [own for own, _ in one.noted if own] == [tokens for tokens in steps if tokens]
    for together in zip(*(one.noted for one in parties), strict=True):
        brought = [own for own, _ in together]
        assert (together[0][1].least, together[0][1].most) == (min(brought), max(brought))


def test_a_group_that_ends_still_serves_those_that_go_on(party):
    early, late = party(2)
    early.inbox.put(None)
    time.sleep(0.05)
    for _ in range(5):
        late.inbox.put(Step(3))
    end([late])
    early.thread.join(20)
    assert early.failed is late.failed is None
    assert [own for own, _ in late.noted if own] == [3] * 5
    assert early.noted[-1][1].ending and not early.noted[-2][1].ending


def test_a_group_that_is_gone_is_named(party):
    lost, other = party(2)
    lost.bells.close()
    other.inbox.put(Step(1))
    other.thread.join(10)
    assert isinstance(other.failed, PeerLost)
    assert str(other.failed) == "group 0 is gone (No such file or directory)"


def test_a_group_that_does_not_come_is_a_lost_peer(tmp_path):
    groups = thread_groups(2, 0.2)
    bells = [Bells(tmp_path, rank, 2, 1.0) for rank in range(2)]
    with pytest.raises(PeerLost, match="another group is gone or does not answer"):
        Rounds(groups[0], bells[0]).take_part(1, prefill=False)


def test_calls_of_two_groups_into_one_round_are_one_call(tmp_path):
    """Neither is put behind the other for ever."""
    groups = thread_groups(3, 10.0)
    bells = [Bells(tmp_path, rank, 3, 1.0) for rank in range(3)]
    rounds = [Rounds(group, bell) for group, bell in zip(groups, bells, strict=True)]
    joined = []
    inbox = Inbox(rounds[2], lambda call: joined.append(rounds[2].take_part(0, prefill=False, call=call)))
    inbox.knock(0)
    inbox.knock(0)
    inbox.put("step")
    others = [threading.Thread(target=one.take_part, args=(3,), kwargs={"prefill": False}) for one in rounds[:2]]
    for other in others:
        other.start()
    assert inbox.get() == "step"
    assert not joined, "the step goes there"
    assert rounds[2].take_part(1, prefill=False).most == 3
    inbox.knock(0)
    inbox.put("next")
    assert inbox.get() == "next"
    for other in others:
        other.join(10)
    for bell in bells:
        bell.close()


def test_an_idle_group_called_by_two_joins_once(tmp_path):
    groups = thread_groups(3, 10.0)
    bells = [Bells(tmp_path, rank, 3, 1.0) for rank in range(3)]
    rounds = [Rounds(group, bell) for group, bell in zip(groups, bells, strict=True)]
    joined = []
    inbox = Inbox(rounds[2], lambda call: joined.append(rounds[2].take_part(0, prefill=False, call=call)))
    inbox.knock(0)
    inbox.knock(0)
    others = [threading.Thread(target=one.take_part, args=(3,), kwargs={"prefill": False}) for one in rounds[:2]]
    for other in others:
        other.start()
    waiting = threading.Thread(target=inbox.get, daemon=True)
    waiting.start()
    for other in others:
        other.join(5)
        assert not other.is_alive()
    inbox.put("step")
    waiting.join(5)
    assert len(joined) == 1
    for bell in bells:
        bell.close()
